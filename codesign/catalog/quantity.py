"""A number of the catalog: value with unit, kind and source, optional range and note; SI on demand.

In a file: ``{ value = "22 TB/s", kind = "datasheet", source = "...", range = ["20 TB/s", "22 TB/s"], note = "..." }``.
The unit that a value must have is declared by the field that holds it (`Unit`), so that a time cannot stand where a
rate is wanted.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, PrivateAttr, StringConstraints
from pydantic_core import PydanticCustomError, core_schema

from codesign import units
from codesign.errors import CodesignError

#: How far a number can be trusted, best first.
Kind = Literal["datasheet", "measured", "fitted", "estimate", "assumption", "rumour"]
KIND_ORDER: tuple[str, ...] = get_args(Kind)

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]


def refuse(problem: str, allowed: str | None = None, key: str | None = None) -> PydanticCustomError:
    """An error for pydantic to place, with what is allowed instead; ``key`` is relative to the validated table."""
    return PydanticCustomError("codesign", "{problem}", {"problem": problem, "allowed": allowed, "key": key})


class Table(BaseModel):
    """Base of every table: unknown keys and silent conversions are refused, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _scalar(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        what = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "not a quantity"
        raise refuse(f"is {what}", 'a number with its unit, e.g. "22 TB/s"')
    return value


def _scalar_or_list(value: Any) -> Any:
    if not isinstance(value, list):
        return _scalar(value)
    if not 1 <= len(value) <= 1000:
        raise refuse(f"has {len(value)} elements", "1 to 1,000")
    return [_scalar(v) for v in value]


def _pair(value: Any) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise refuse("is not a pair", "[lowest, highest], each with its unit")
    return [_scalar(v) for v in value]


class Number(Table):
    """A value with its unit, what kind of knowledge it is, and where it comes from.

    Attributes:
        value: text with unit; a plain number where the field only counts; a list of them where the field says so.
        kind: one of `KIND_ORDER`.
        source: document, page or reasoning.
        range: lowest and highest plausible value, in order, around the value.
        note: what a reader must know beside it.
    """

    value: Annotated[Any, BeforeValidator(_scalar_or_list)]
    kind: Kind
    source: Text
    range: Annotated[Any, BeforeValidator(_pair)] = None
    note: Text | None = None
    _unit: str = PrivateAttr(default="")
    _values: tuple[float, ...] = PrivateAttr(default=())
    _bounds: tuple[float, float] | None = PrivateAttr(default=None)

    @property
    def unit(self) -> str:
        """The unit of `si`, as declared by the field; the base unit of the value itself in a generic table."""
        return self._unit

    @property
    def si(self) -> float:
        """The value in `unit`; raises `TypeError` for a list."""
        if isinstance(self.value, list):
            raise TypeError("a list of values: use si_list")
        return self._values[0]

    @property
    def si_list(self) -> tuple[float, ...]:
        """The values in `unit`; one element where the value is no list."""
        return self._values

    @property
    def si_range(self) -> tuple[float, float] | None:
        """Lowest and highest plausible value in `unit`, or None."""
        return self._bounds

    @property
    def text(self) -> str:
        """The value as the file has it."""
        return ", ".join(map(str, self.value)) if isinstance(self.value, list) else str(self.value)


@dataclass(frozen=True)
class Unit:
    """What a field of type `Number` demands of its value; stands in the field's annotation.

    Attributes:
        unit: unit of ``Number.si``, e.g. ``B/s``; None takes whatever dimension the value has.
        zero: zero is allowed.
        whole: only whole numbers.
        least, most: bounds, inclusive.
        many: a list is wanted, else a single value.
    """

    unit: str | None
    zero: bool = False
    whole: bool = False
    least: float = 0.0
    most: float = float("inf")
    many: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Check after the table itself is known to be well formed."""
        return core_schema.no_info_after_validator_function(self.bind, handler(source))

    def bind(self, number: Number) -> Number:
        """Convert value and range, and keep the results in the number."""
        many = isinstance(number.value, list)
        if many != self.many:
            raise refuse("is a list" if many else "is one value", "a list of values" if self.many else "one value")
        values, unit = [], self.unit
        for one in number.value if many else [number.value]:
            value, unit = self._convert(one, unit)
            values.append(self._checked(value, one))
        if number.range is not None:
            low, high = (self._convert(one, unit)[0] for one in number.range)
            if not low <= min(values) <= max(values) <= high:
                told = f"{number.range[0]} to {number.range[1]}"
                raise refuse(f"range {told} does not enclose {number.text}", "lowest <= value <= highest")
            number._bounds = (low, high)
        number._unit, number._values = unit or "", tuple(values)
        return number

    @staticmethod
    def _convert(value: Any, unit: str | None) -> tuple[float, str]:
        try:
            return (units.parse(value, unit), unit) if unit is not None else units.parse_any(value)
        except CodesignError as error:
            raise refuse(error.problem, error.allowed) from error

    def _checked(self, value: float, told: Any) -> float:
        if value == 0.0 and not self.zero:
            raise refuse(f"{told!r} is zero", "more than zero")
        if self.whole and not value.is_integer():
            raise refuse(f"{told!r} is not whole", "a whole number")
        if not self.least <= value <= self.most:
            most = "" if self.most == float("inf") else f", at most {self.most:g}"
            raise refuse(f"{told!r} is out of bounds", f"at least {self.least:g}{most}")
        return value


# The dimensions of the catalog. Rates and capacities are above zero, since work is divided by them.
BytesPerSecond = Annotated[Number, Unit("B/s")]
Bytes = Annotated[Number, Unit("B")]
FlopPerSecond = Annotated[Number, Unit("FLOP/s")]
OpsPerSecond = Annotated[Number, Unit("op/s")]
Ops = Annotated[Number, Unit("op")]
Seconds = Annotated[Number, Unit("s", zero=True)]
Watts = Annotated[Number, Unit("W")]
JoulesPerByte = Annotated[Number, Unit("J/B", zero=True)]
JoulesPerFlop = Annotated[Number, Unit("J/FLOP", zero=True)]
JoulesPerOp = Annotated[Number, Unit("J/op", zero=True)]
Chips = Annotated[Number, Unit("chip", whole=True, least=1)]
Share = Annotated[Number, Unit("1", zero=True, most=1)]
Metres = Annotated[Number, Unit("m")]
SquareMetres = Annotated[Number, Unit("m^2")]
BytesPerSecondPerArea = Annotated[Number, Unit("B/s/m^2")]
BytesPerArea = Annotated[Number, Unit("B/m^2")]
WattsPerArea = Annotated[Number, Unit("W/m^2")]
DollarsPerHour = Annotated[Number, Unit("dollar/h", zero=True)]
DollarsPerByte = Annotated[Number, Unit("dollar/B", zero=True)]
Layers = Annotated[Number, Unit("layer", whole=True, least=1)]
Parameters = Annotated[Number, Unit("parameter")]
Sequences = Annotated[Number, Unit("sequence", whole=True, least=1)]
Tokens = Annotated[Number, Unit("token", whole=True, least=1)]
TokenSeries = Annotated[Number, Unit("token", many=True, least=1)]
Anything = Annotated[Number, Unit(None, zero=True)]

__all__ = [
    "KIND_ORDER", "Anything", "Bytes", "BytesPerArea", "BytesPerSecond", "BytesPerSecondPerArea", "Chips",
    "DollarsPerByte", "DollarsPerHour", "FlopPerSecond", "JoulesPerByte", "JoulesPerFlop", "JoulesPerOp",
    "Kind", "Layers", "Metres", "Number", "Ops", "OpsPerSecond", "Parameters", "Seconds", "Sequences", "Share",
    "SquareMetres", "Table", "Text", "TokenSeries", "Tokens", "Unit", "Watts", "WattsPerArea", "refuse",
]  # fmt: skip
