"""What is not known of a machine: the numbers of its files that state a range, as values to try."""

from dataclasses import dataclass, fields

import numpy as np

from codesign.catalog.loader import LoadedSystem
from codesign.catalog.quantity import Number
from codesign.machine import Machine

#: Numbers of which a value between the ends means nothing.
FLAGS = ("in_switch_reduction",)

#: Numbers that no metric of the sensitivities depends on.
LEFT_OUT = ("dollars_per_hour",)

#: Endings of the names of numbers of which less serves more; of all others more does.
COSTS = ("energy", "hop", "setup", "launch", "exponential_ops", "static_power", "provisioned_power")


@dataclass(frozen=True)
class Unknown:
    """A number of a machine with the range that its file states, SI.

    Attributes:
        name: field of `Machine`. leaves: fields that move with it, itself first.
        value, low, high: as the catalog has it, and the ends of the range.
        unit, kind: as in the file.
    """

    name: str
    leaves: tuple[str, ...]
    value: float
    low: float
    high: float
    unit: str
    kind: str

    def grid(self, points: int) -> np.ndarray:
        """``points`` values over the range, evenly by ratio, one of them moved to the catalog's own."""
        if self.name in FLAGS:
            return np.unique([self.low, self.value, self.high])
        values = np.geomspace(self.low, self.high, points) if self.low > 0 else np.linspace(self.low, self.high, points)
        values[0], values[-1] = self.low, self.high
        inner = 1 + int(np.argmin(np.abs(np.log(values[1:-1] / self.value)))) if self.low > 0 and self.value else 1
        if self.low < self.value < self.high:
            values[inner] = self.value
        return np.unique(values)

    @property
    def worst(self) -> float:
        """The end of the range that serves less."""
        return self.high if self.name.endswith(COSTS) else self.low

    @property
    def best(self) -> float:
        """The end of the range that serves more."""
        return self.low if self.name.endswith(COSTS) else self.high

    def between(self, end: float, share: float) -> float:
        """The value at a share of the way from the catalog's to ``end``, by ratio where both are above zero."""
        if min(self.value, end) > 0.0:
            return float(self.value * (end / self.value) ** share)
        return self.value + share * (end - self.value)

    def change(self, value: float) -> dict[str, float]:
        """The machine's leaves at another value."""
        return dict.fromkeys(self.leaves, float(value))


def numbers_of(system: LoadedSystem) -> dict[str, Number]:
    """The catalog's number behind each field of `Machine`, as far as the system's files have one."""
    found = {}
    for f in fields(Machine):
        number = getattr(system.accelerator, f.name, None) or getattr(system.system, f.name, None)
        if isinstance(number, Number):
            found[f.name] = number
    return found


def unknowns_of(system: LoadedSystem) -> list[Unknown]:
    """Every number of the machine that states a range, in the order of `Machine`.

    A chip's rating moves with its power limit where both say the same; a format without a rate or an energy of its
    own moves with the next wider one.
    """
    numbers = numbers_of(system)
    followers: dict[str, list[str]] = {}
    for suffix in ("", "_energy"):
        last = f"tensor_bf16{suffix}"
        for dtype in ("fp8", "fp4"):
            name = f"tensor_{dtype}{suffix}"
            if name in numbers:
                last = name
            else:
                followers.setdefault(last, []).append(name)
    rating, limit = numbers["chip_power"], numbers["power_limit"]
    together = (rating.si, rating.si_range) == (limit.si, limit.si_range)
    if together:
        followers["power_limit"] = ["chip_power"]
    found = []
    for name, number in numbers.items():
        span = number.si_range
        if span is None or span[0] == span[1] or name in LEFT_OUT or (together and name == "chip_power"):
            continue
        leaves = (name, *followers.get(name, ()))
        found.append(Unknown(name, leaves, number.si, *span, number.unit, number.kind))
    return found
