r"""The numbers that serving adds to the kernels' constants, and their priors.

A constant in a server is that of the chip's kernels, shifted:
:math:`u = u_{kernels} + \delta_{all} + \delta_{vendor} + \delta_{generation} + \delta_{chip} + \delta_{framework}`,
each with a normal prior about zero, in the u of `codesign.calibration.constants` (shares stay below one).  Shifts of a
chip are tied: one for all memory streams, one for grouped products, one for all tensor rates, one for all launches.
Beside them stand the host's seconds per step and per sequence, by framework and vendor, as
logarithms.  Shapes (rows, outputs and messages at half efficiency, overlap of lanes) stay as the kernels have them, but
for grouped products: a server runs the same kernels, in worse company.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from codesign.calibration import store
from codesign.calibration.constants import DEFAULT_KERNELS, GENERATIONS, LAWS
from codesign.calibration.constants import generation_of as kernel_generation
from codesign.calibration.fit import Fit

PLACE = {law.name: i for i, law in enumerate(LAWS)}

#: Overheads stand behind the constants in the vector of a line: seconds per step and per sequence.
OVERHEADS = ("step", "sequence")

#: Constants that are shifted together, by the name of the shift.
TIED: dict[str, tuple[str, ...]] = {
    "memory": ("memory_gemm", "memory_attention", "memory_elementwise", "memory_state"),
    "experts": ("memory_experts", "grouped"),
    "tensor": ("tensor_bf16", "tensor_fp8", "tensor_fp4", "attention_tensor"),
    "launches": ("launches_gemm", "launches_attention", "launches_elementwise", "launches_state"),
}

#: Standard deviation of the shift of all chips, by the start of a constant's name; those not here are not shifted.
SHIFTED = {
    "memory_": 0.5, "launches_": 0.7, "tensor_": 0.4, "attention_tensor": 0.4, "grouped": 0.5, "vector": 0.4,
    "scale_up": 0.4, "all_reduce": 0.5, "all_to_all": 0.5, "exchange": 0.4, "overlap_p_experts": 0.7, "group_ops": 1.0,
    "expert_rows_half_": 0.7,
}  # fmt: skip
#: Shapes are not shifted, those of grouped products apart, of which servers have kernels that no table has.
KEPT = ("exchange_half", "exchange_least")

#: Constants of grouped products.
GROUPED = (
    "memory_experts", "launches_experts", "overlap_p_experts", "grouped", "group_ops", "expert_rows_half_bf16",
    "expert_rows_half_fp8", "expert_rows_half_fp4",
)  # fmt: skip

#: Chips by generation, those whose serving was measured beside those with kernel tables.
SERVED = GENERATIONS | {"cdna3": ("mi300x", "mi325x"), "cdna4": ("mi355x",)}

#: Standard deviations of the priors, in u.
VENDOR, GENERATION, CHIP, FRAMEWORK = 0.3, 0.2, 0.2, 0.5
#: Priors of the overheads: median [s] and standard deviation of the logarithm.
STEP, SEQUENCE, OVERHEAD_SPREAD = 5e-4, 5e-6, 1.2


class Shift(NamedTuple):
    """One fitted number: its level, whose it is, what it shifts."""

    level: str
    owner: str
    what: str


class Line(NamedTuple):
    """What decides which numbers a point sees."""

    chip: str
    vendor: str
    framework: str


def generation_of(chip: str) -> str:
    """Name of a chip's generation, its own where it has no relatives."""
    return next((g for g, chips in SERVED.items() if chip in chips), chip)


@dataclass(frozen=True)
class Shifts:
    """All numbers of a fit.

    Attributes:
        shifts: in the order of the vector.
        mean, spread: of the normal prior, (n,).
    """

    shifts: tuple[Shift, ...]
    mean: np.ndarray
    spread: np.ndarray

    def __len__(self) -> int:
        return len(self.shifts)

    @property
    def onto(self) -> np.ndarray:
        """(n, constants and overheads): what each number is added to."""
        out = np.zeros((len(self), len(LAWS) + len(OVERHEADS)))
        for j, s in enumerate(self.shifts):
            if s.what in OVERHEADS:
                out[j, len(LAWS) + OVERHEADS.index(s.what)] = 1.0
            else:
                for name in TIED.get(s.what, (s.what,)):
                    out[j, PLACE[name]] = 1.0
        return out

    def sees(self, lines: Iterable[Line], *, without: str | None = None) -> np.ndarray:
        """(lines, n): 1 where a line sees a number; of chip ``without`` nothing of its own."""
        rows = []
        for line in lines:
            own = {("all", ""), ("vendor", line.vendor), ("generation", generation_of(line.chip)),
                   ("framework", f"{line.framework} {line.vendor}")}  # fmt: skip
            if line.chip != without:
                own.add(("chip", line.chip))
            rows.append([1.0 if (s.level, s.owner) in own else 0.0 for s in self.shifts])
        return np.array(rows)

    def chip_specific(self) -> int:
        """Numbers that belong to one chip; those of a generation are shared by its chips, measured or not."""
        return sum(s.level == "chip" for s in self.shifts)


def shifts_of(lines: Iterable[Line]) -> Shifts:
    """The numbers to fit for lines of some chips and frameworks."""
    lines = list(lines)
    chips, vendors = sorted({x.chip for x in lines}), sorted({x.vendor for x in lines})
    generations = sorted({generation_of(c) for c in chips})
    frameworks = sorted({f"{x.framework} {x.vendor}" for x in lines})
    found: list[tuple[Shift, float, float]] = []
    for law in LAWS:
        spread = next((s for start, s in SHIFTED.items() if law.name.startswith(start)), 0.0)
        if not spread or law.name in KEPT:
            continue
        found.append((Shift("all", "", law.name), 0.0, spread))
        found += [(Shift("vendor", v, law.name), 0.0, VENDOR) for v in vendors]
        found += [(Shift("generation", g, law.name), 0.0, GENERATION) for g in generations]
    for what in TIED:
        found += [(Shift("chip", c, what), 0.0, CHIP) for c in chips]
    for f in frameworks:
        found.append((Shift("framework", f, "launches"), 0.0, FRAMEWORK))
        found.append((Shift("framework", f, "step"), float(np.log(STEP)), OVERHEAD_SPREAD))
        found.append((Shift("framework", f, "sequence"), float(np.log(SEQUENCE)), OVERHEAD_SPREAD))
    return Shifts(tuple(s for s, _, _ in found), np.array([m for _, m, _ in found]), np.array([x for _, _, x in found]))


@lru_cache(maxsize=8)
def _kernel_fit(folder: Path, written: int) -> Fit:  # noqa: ARG001 - another file is another fit
    return store.load(folder)[0]


def kernels_beside(folder: Path | None) -> Path:
    """Folder of the kernels' fit that a fit to serving points in ``folder`` stands on: there, or the one that ships."""
    return folder if folder is not None and (folder / "kernels-fit.json").exists() else store.bundled()


@lru_cache(maxsize=512)
def _kernels(chip: str | None, generation: str | None, folder: Path, written: int) -> tuple[float, ...]:
    found = _kernel_fit(folder, written)
    generation = generation or (kernel_generation(chip) if chip else None)
    kernels = DEFAULT_KERNELS.get(generation, DEFAULT_KERNELS[None])
    u = found.terms.matrix(chip, kernels, generation) @ found.theta
    for term, mean in zip(found.terms.terms, found.terms.mean, strict=True):
        if term.level == "all" and term.law in GROUPED:
            u[PLACE[term.law]] = mean
    return tuple(u)


def kernels_of(chip: str | None, generation: str | None = None, folder: Path | None = None) -> tuple[float, ...]:
    """The u of each constant of a chip's kernels; of a generation, or of all chips, where no chip is given.

    Grouped products start from the published estimates: servers run other kernels for them than the tables have, and
    constants of those carried over badly to models that were left out.

    Args:
        chip, generation: whose.
        folder: of the fit, see `kernels_beside`.
    """
    where = kernels_beside(folder)
    return _kernels(chip, generation, where, (where / "kernels-fit.json").stat().st_mtime_ns)
