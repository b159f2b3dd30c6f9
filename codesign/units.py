"""Quantities with units: ``"20 ms"``, ``"8 TB/s"``, ``"128Ki"``, ``"0.4 pJ/bit"`` become floats in a stated unit.

Decimal prefixes are powers of 1,000 (``GB`` is 1e9 bytes), binary ones powers of 1,024 (``GiB``, ``Ki``).  Bytes, FLOP,
elementwise operations, dollars, tokens, chips and parameters are dimensions of their own, so that a rate of the wrong
kind is refused and not silently read.  Arithmetic is exact (fractions) and rounded once: ``"0.2 us"`` is ``2e-7``.

Products and quotients of units with powers, ``GB/s/mm^2``, are read here, from left to right; parentheses and blanks go
to pint, which is imported only then, since that takes most of half a second.
"""

import math
import re
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from functools import cache, lru_cache
from numbers import Real
from typing import Any, NamedTuple, cast

from codesign.errors import CodesignError

DECIMAL_PREFIXES = {
    "f": -15, "p": -12, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
BINARY_PREFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


class Dimension(NamedTuple):
    """A unit as a factor times powers of base units; ``powers`` is sorted and holds no zero."""

    factor: Fraction
    powers: tuple[tuple[str, int], ...]


def _atom(factor: int | Fraction = 1, **powers: int) -> Dimension:
    return Dimension(Fraction(factor), tuple(sorted(powers.items())))


#: Units that take prefixes, by spelling.
PREFIXED: dict[str, Dimension] = {
    **dict.fromkeys(("B", "byte", "bytes"), _atom(B=1)),
    **dict.fromkeys(("b", "bit", "bits"), _atom(Fraction(1, 8), B=1)),
    **dict.fromkeys(("FLOP", "FLOPs", "flop", "flops"), _atom(FLOP=1)),
    **dict.fromkeys(("op", "ops", "OP"), _atom(op=1)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), _atom(s=1)),
    **dict.fromkeys(("J", "joule", "joules"), _atom(J=1)),
    **dict.fromkeys(("W", "watt", "watts"), _atom(J=1, s=-1)),
    "Wh": _atom(3600, J=1),
    "m": _atom(m=1),
    "Hz": _atom(s=-1),
    "FLOPS": _atom(FLOP=1, s=-1),
    "OPS": _atom(op=1, s=-1),
    "bps": _atom(Fraction(1, 8), B=1, s=-1),
    **dict.fromkeys(("param", "params", "parameter", "parameters"), _atom(parameter=1)),
    **dict.fromkeys(("token", "tokens"), _atom(token=1)),
}

#: Units that stand alone.
PLAIN: dict[str, Dimension] = {
    "min": _atom(60, s=1),
    **dict.fromkeys(("h", "hour", "hours"), _atom(3600, s=1)),
    **dict.fromkeys(("day", "days"), _atom(86400, s=1)),
    "cm": _atom(Fraction(1, 100), m=1),
    **dict.fromkeys(("dollar", "dollars", "USD", "$"), _atom(dollar=1)),
    **dict.fromkeys(("chip", "chips"), _atom(chip=1)),
    **dict.fromkeys(("layer", "layers"), _atom(layer=1)),
    **dict.fromkeys(("sequence", "sequences"), _atom(sequence=1)),
    "%": _atom(Fraction(1, 100)),
    "1": _atom(),
}

#: Base units that only count things: a bare number is understood where one of them is expected.
COUNTS = frozenset({"token", "chip", "layer", "sequence", "parameter", "op"})

#: The same dimension is written in many units: what to suggest for it.
EXAMPLES = {
    "B/s": "8 TB/s", "B": "192 GB", "FLOP/s": "4.5 PFLOP/s", "op/s": "60 Top/s", "s": "20 ms", "W": "1.2 kW",
    "J/B": "80 pJ/B", "J/FLOP": "0.5 pJ/FLOP", "J/op": "1 pJ/op", "m": "11 mm", "m^2": "800 mm^2",
    "dollar/h": "2.1 dollar/h", "dollar/B": "12 dollar/GB", "B/s/m^2": "36 GB/s/mm^2", "B/m^2": "2 MB/mm^2",
    "W/m^2": "1 W/mm^2", "token": "128Ki", "chip": "72", "1": "0.9",
}  # fmt: skip

_NUMBER = re.compile(
    r"[+-]?(?=\.?[0-9])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,24}(?:_[0-9]{1,24})*)?(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?"
)
_FACTOR = re.compile(r"([^\W\d_]+|[%$]|1)(?:(?:\^|\*\*)(-?[0-9]))?")
_OPERATOR = re.compile(r"(?<!\*)([*/])(?!\*)")
_PINT_INPUT = re.compile(r"[A-Za-z0-9/*^() -]{1,60}")
_TWO_DIGITS = re.compile(r"[0-9]{2}")


def prefix_hint(text: str) -> str | None:
    """What to write instead of a common misspelling of a unit or a count, or None."""
    if text == "K":
        return "k for 1,000 or Ki for 1,024"
    if text.startswith("K") and text[1:] in PREFIXED:
        return f"k{text[1:]} for 1,000 or Ki{text[1:]} for 1,024"
    close = [name for name in _spellings() if name.casefold() == text.casefold()]
    return " or ".join(close or get_close_matches(text, _spellings(), n=1, cutoff=0.6)) or None


@cache
def _spellings() -> tuple[str, ...]:
    short = ("B", "b", "FLOP", "op", "s", "J", "W", "m", "Hz", "bit", "bps")
    return (*PREFIXED, *PLAIN, *(p + u for p in (*DECIMAL_PREFIXES, "Ki", "Mi", "Gi", "Ti") for u in short))


def _named(name: str) -> Dimension | None:
    """One unit with at most one prefix, or None where it is unknown."""
    if name in PLAIN:
        return PLAIN[name]
    if name in PREFIXED:
        return PREFIXED[name]
    name = name.replace("\u00b5", "u").replace("\u03bc", "u")
    for prefix, power in BINARY_PREFIXES.items():
        unit = PREFIXED.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if unit is not None and dict(unit.powers).get("B"):
            return Dimension(unit.factor * 1024**power, unit.powers)
    unit = PREFIXED.get(name[1:])
    if unit is not None and name[0] in DECIMAL_PREFIXES:
        return Dimension(unit.factor * Fraction(10) ** DECIMAL_PREFIXES[name[0]], unit.powers)
    return None


def _combine(parts: list[tuple[Dimension, int]]) -> Dimension:
    factor, powers = Fraction(1), {}
    for unit, exponent in parts:
        factor *= unit.factor**exponent
        for base, power in unit.powers:
            powers[base] = powers.get(base, 0) + power * exponent
    return Dimension(factor, tuple(sorted((k, v) for k, v in powers.items() if v)))


@lru_cache(maxsize=4096)
def dimension(text: str) -> Dimension:
    """Read a unit expression such as ``GB/s/mm^2``; raises `CodesignError` where it is not one."""
    parts: list[tuple[Dimension, int]] = []
    pieces = _OPERATOR.split(text)  # factor, operator, factor, ...; read from left to right
    for piece, operator in zip(pieces[::2], ["*", *pieces[1::2]], strict=True):
        match = _FACTOR.fullmatch(piece.strip())
        if not match:
            return _by_pint(text)
        unit = _named(match[1])
        if unit is None:
            hint = prefix_hint(match[1])
            raise CodesignError(f"unknown unit {match[1]!r}", allowed=hint or "e.g. TB/s, GB, ms, pJ/bit, PFLOP/s")
        exponent = int(match[2]) if match[2] else 1
        parts.append((unit, -exponent if operator == "/" else exponent))
    return _combine(parts)


@cache
def _registry() -> Any:
    """A pint registry with exactly the units and prefixes above; built on first use."""
    import pint

    registry = pint.UnitRegistry(cast(str, None))  # None leaves it empty, "" would load pint's own units
    for prefix, power in DECIMAL_PREFIXES.items():
        registry.define(f"{prefix}- = 1e{power}")
    for prefix, power in BINARY_PREFIXES.items():
        registry.define(f"{prefix}- = {1024**power}")
    bases = sorted({base for unit in (*PREFIXED.values(), *PLAIN.values()) for base, _ in unit.powers})
    for base in bases:
        registry.define(f"base_{base} = [{base}]")
    for name, unit in (PREFIXED | PLAIN).items():
        if name.isalpha():
            product = " * ".join(f"base_{base} ** {power}" for base, power in unit.powers)
            registry.define(f"{name} = {float(unit.factor)!r} * {product}")
    return registry


def _by_pint(text: str) -> Dimension:
    expression = text.replace("$", "dollar").replace("\u00b5", "u").replace("\u03bc", "u").replace("\u00b7", "*")
    if not _PINT_INPUT.fullmatch(expression) or _TWO_DIGITS.search(expression):
        raise CodesignError(f"{text!r} is not a unit", allowed="e.g. TB/s, GB, ms, pJ/bit, PFLOP/s, GB/s/mm^2")
    registry = _registry()
    try:
        unit = registry.parse_units(expression)
        factor, root = registry.get_root_units(unit)
    except Exception as error:  # pint raises a dozen unrelated types on malformed expressions
        raise CodesignError(f"{text!r} is not a unit", allowed="e.g. TB/s, GB, ms, pJ/bit, GB/s/mm^2") from error
    powers = [(str(name).removeprefix("base_"), float(power)) for name, power in root._units.items() if power]
    if any(power != int(power) or abs(power) > 9 for _, power in powers):
        raise CodesignError(f"{text!r} has a fractional power", allowed="whole powers, e.g. mm^2")
    return Dimension(Fraction(repr(float(factor))), tuple(sorted((name, int(power)) for name, power in powers)))


def _split(text: str) -> tuple[Fraction, str]:
    """Number and unit of a text, exact."""
    text = text.strip()
    match = _NUMBER.match(text)
    if not match:
        raise CodesignError(f"{text[:60]!r} is not a number", allowed="a number with a unit, e.g. 20 ms, 8 TB/s, 128Ki")
    return Fraction(Decimal(match[0].replace(",", "").replace("_", ""))), text[match.end() :].strip()


def _scaled(value: str | int | float) -> tuple[Fraction, str]:
    """Number and unit of a text or a plain number, with bare suffixes (k, Ki, M, ...) multiplied in."""
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise CodesignError(
            f"{_told(value)} is not a quantity", allowed="a number with a unit, e.g. 20 ms, 8 TB/s, 128Ki"
        )
    if isinstance(value, int):
        return Fraction(value), ""
    if not isinstance(value, str):
        if not math.isfinite(value):
            raise CodesignError(f"{value} is not finite", allowed="a finite number")
        return Fraction(repr(float(value))), ""
    if len(value) > 200:
        raise CodesignError("a quantity of more than 200 characters", allowed="e.g. 20 ms, 8 TB/s, 128Ki")
    number, unit = _split(value)
    if unit in BINARY_PREFIXES:
        return number * 1024 ** BINARY_PREFIXES[unit], ""
    if unit in ("k", "M", "G", "T"):
        return number * 10 ** DECIMAL_PREFIXES[unit], ""
    if unit == "K":
        raise CodesignError(f"{value.strip()!r} is ambiguous", allowed=prefix_hint("K"))
    return number, unit


def _finish(number: Fraction, told: object, positive: bool = False) -> float:
    if number < 0 or (positive and number == 0):
        what = "negative" if number < 0 else "zero"
        raise CodesignError(f"{_told(told)} is {what}", allowed="more than zero" if positive else "zero or more")
    try:
        result = float(number)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or (number > 0 and result == 0.0):
        raise CodesignError(f"{_told(told)} is out of range", allowed="a number that a double can hold")
    return result


def _bare_allowed(powers: tuple[tuple[str, int], ...]) -> bool:
    return all(base in COUNTS for base, _ in powers)


def parse(value: str | int | float, unit: str, *, bare: bool = False, positive: bool = False) -> float:
    """Convert a quantity to a float in ``unit``.

    Args:
        value: ``"22 TB/s"``, ``"128Ki"``, ``515000``; a number without a unit is accepted where ``unit`` only counts
            (tokens, chips, 1) and, with ``bare``, everywhere: it is then taken to be in ``unit``.  Zero needs none.
        unit: what the caller needs, e.g. ``B/s``, ``s``, ``J/FLOP``, ``dollar/h``, ``token``, ``1``.
        bare: accept plain numbers for quantities with a dimension (Python arguments; never catalog files).
        positive: refuse zero as well.

    Raises:
        CodesignError: not a number, not finite, negative (or zero), unknown unit, or a unit of another dimension.
    """
    target = dimension(unit)
    number, written = _scaled(value)
    example = f"{unit}, e.g. {EXAMPLES[unit]}" if unit in EXAMPLES else unit
    if not written:
        if number and not (bare or _bare_allowed(target.powers)):
            raise CodesignError(f"{_told(value)} has no unit", allowed=example)
        return _finish(number, value, positive)
    source = dimension(written)
    if source.powers != target.powers:
        raise CodesignError(f"{_told(value)} has the wrong dimension", allowed=example)
    return _finish(number * source.factor / target.factor, value, positive)


def _told(value: object) -> str:
    try:
        text = repr(value.strip() if isinstance(value, str) else value)
    except ValueError:  # whole numbers of thousands of digits
        text = "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."


def parse_any(value: str | int | float) -> tuple[float, str]:
    """Convert a quantity of any dimension to base units; returns the float and the unit's name, e.g. ``B/s``.

    Base units are B, FLOP, op, s, J, m, dollar, token, chip, layer, sequence and parameter; a plain number has unit
    ``1``.  Errors as in `parse`.
    """
    number, written = _scaled(value)
    unit = dimension(written) if written else _atom()
    return _finish(number * unit.factor, value), unit_name(unit.powers)


def unit_name(powers: tuple[tuple[str, int], ...]) -> str:
    """Spell powers of base units: ``(("B", 1), ("s", -1))`` is ``B/s``; J/s is spelled W."""
    left = dict(powers)
    if left.get("J") == 1 and left.get("s", 0) <= -1:
        left = {"W": 1, **{k: v for k, v in left.items() if k not in ("J", "s")}}
        if dict(powers)["s"] < -1:
            left["s"] = dict(powers)["s"] + 1
    above = [base if power == 1 else f"{base}^{power}" for base, power in left.items() if power > 0]
    below = [base if power == -1 else f"{base}^{-power}" for base, power in left.items() if power < 0]
    return "/".join(["*".join(above) or "1", *below])


def format_quantity(value: float, unit: str, digits: int = 4) -> str:
    """Write a float in ``unit`` for people, with a decimal prefix on the numerator: ``2.2e13, "B/s"`` is ``22 TB/s``.

    Counts and units that take no prefix (dollar, m^2) are written as they are; ``0.15, "1"`` is ``0.15``.
    """
    whole = float(value).is_integer() and abs(value) < 1e15
    head, _, tail = unit.partition("/")
    if unit == "1" or unit in COUNTS:
        text = f"{value:.0f}" if whole else f"{value:.{digits}g}"
        return text if unit == "1" else f"{text} {unit}"
    prefix = ""
    if head in PREFIXED and head not in COUNTS - {"op"} and value and math.isfinite(value):
        steps = {power: name for name, power in DECIMAL_PREFIXES.items()} | {0: ""}
        power = 3 * math.floor(math.log10(float(f"{abs(value):.{digits}g}")) / 3)
        power = min(max(power, -15), 0 if unit == "s" else 18)
        prefix, value = steps[power], value / 10.0**power
    return f"{value:.{digits}g} {prefix}{head}{'/' + tail if tail else ''}"
