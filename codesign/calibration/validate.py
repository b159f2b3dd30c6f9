"""Error of predictions on measured points: tables by chip, table and operation, as text and as JSON.

Kernel tables are recognised by their columns.  Error is predicted over measured, less one; bias its median; coverage
the share of lines inside their 90 % intervals.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from codesign.calibration import store, tables
from codesign.calibration.constants import KERNELS
from codesign.calibration.fit import Fit, fit, fitted_lines, subset
from codesign.calibration.predict import Predicted, Scatter, predict, scatter_of
from codesign.calibration.tables.base import Sample
from codesign.errors import CodesignError

SCHEMA = "codesign.validation/1"


class Point(NamedTuple):
    """One line of a table: what it is grouped by, measured and predicted seconds, half width of the interval."""

    by: dict[str, str]
    measured: float
    predicted: float
    half: float


def summary(points: Sequence[Point]) -> dict[str, float | int]:
    """Count, median, mean and 90th percentile of the absolute relative error, median error, coverage, half width."""
    ratio = np.array([p.predicted / p.measured for p in points])
    half = np.array([p.half for p in points])
    error = np.abs(ratio - 1.0)
    return {
        "n": len(points), "median_ape": float(np.median(error)), "mean_ape": float(error.mean()),
        "p90_ape": float(np.quantile(error, 0.9)), "bias": float(np.median(ratio - 1.0)),
        "coverage_90": float(np.mean(np.abs(np.log(ratio)) <= half)),
        "median_half_width": float(np.median(np.expm1(half))),
    }  # fmt: skip


def points_of(found: Predicted) -> list[Point]:
    """A sample's lines as points."""
    s = found.sample
    return [
        Point(
            {"split": str(split), "hardware": str(system), "table": s.kind.name, "operation": str(operation),
             "group": s.kind.group},
            float(m), float(p), float(h),
        )
        for split, system, operation, m, p, h in zip(
            s.splits, s.systems, s.operations, s.seconds, found.seconds, found.half, strict=True
        )
    ]  # fmt: skip


#: Groups of the error table, coarse to fine.
GROUPINGS = (
    ("split", "group"), ("split", "table"), ("split", "hardware", "table"),
    ("split", "hardware", "table", "operation"),
)  # fmt: skip


def grouped(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Summaries by each of `GROUPINGS`."""
    found = []
    for keys in GROUPINGS:
        parts: dict[tuple[str, ...], list[Point]] = {}
        for p in points:
            parts.setdefault(tuple(p.by[k] for k in keys), []).append(p)
        for key in sorted(parts):
            by = dict(zip(keys, key, strict=True))
            found.append({"by": by, "quantity": "kernel_s", **summary(parts[key])})
    return found


def document(points: Sequence[Point], unplaced: Sequence[Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Schema ``codesign.validation/1``."""
    return {
        "schema": SCHEMA, "rows": rows, "placed": len(points), "unplaced": list(unplaced),
        "overall": summary(points) if points else None, "groups": grouped(points),
    }  # fmt: skip


def files_of(where: Path) -> list[Path]:
    """Kernel tables at a path: a file, or those of a folder."""
    if where.is_dir():
        found = [p for p in sorted(where.glob("*.csv")) if tables.recognise(tables.read_columns(p)) is not None]
        if not found:
            raise CodesignError("no kernel tables here", file=str(where), allowed="CSV files with their columns")
        return found
    if not where.is_file():
        raise CodesignError("no such file or folder", file=str(where))
    return [where]


def validate(where: Path, *, folder: Path | None = None, leave_out: str | None = None) -> dict[str, Any]:
    """Predict every kernel table at a path and tell the error.

    Args:
        where: a table or a folder of tables.
        folder: of the fit; the one that ships where None.
        leave_out: a chip to leave out: refit without its lines, and predict those alone.
    """
    placed: list[Sample] = []
    unplaced: list[dict[str, Any]] = []
    for path in files_of(where):
        samples, left = tables.place(path, strict=False)
        placed += samples
        unplaced += [{"row": i + 2, "file": path.name, "reason": reason} for i, reason in sorted(left.items())]
    fitted, scatter = store.load(folder or store.bundled()) if leave_out is None else without(placed, leave_out)
    if leave_out is not None:
        placed, strange = of_chip(placed, leave_out, fitted)
        reason = f"kernels measured on {leave_out} alone"
        unplaced += [{"row": i + 2, "file": name, "reason": reason} for name, i in strange]
    points = [p for s in placed for p in points_of(predict(s, fitted, scatter, without=leave_out))]
    return document(points, unplaced, len(points) + len(unplaced))


def of_chip(samples: Sequence[Sample], chip: str, fitted: Fit) -> tuple[list[Sample], list[tuple[str, int]]]:
    """A chip's lines, and table and number of those whose kernels have constants that the fit does not know."""
    known = {t.owner for t in fitted.terms.terms if t.level == "kernel"}
    found, strange = [], []
    for s in samples:
        mine = np.array(s.chips) == chip
        new = mine & np.array([bool(set(k) & set(KERNELS) - known) for k in s.kernels])
        strange += [(s.kind.name, int(i)) for i in s.lines[new]]
        if (mine & ~new).any():
            found.append(subset(s, mine & ~new))
    return found, strange


def without(samples: Sequence[Sample], chip: str) -> tuple[Fit, Scatter]:
    """The fit to all lines but those of a chip.

    Raises:
        CodesignError: the tables have no such chip, or no other.
    """
    chips = sorted({c for s in samples for c in s.chips})
    if chip not in chips:
        raise CodesignError(f"no lines of {chip!r}", key="--leave-out", allowed=", ".join(chips))
    used = fitted_lines(samples, chip)
    found = fit(samples, without=chip)
    return found, scatter_of(used, found)


def calibrate(measured: Path, out: Path, source: str) -> dict[str, Any]:
    """Fit to all kernel tables of a folder, write the files of `store`, and tell the error on lines held back.

    Returns:
        the document of `validate` on the same tables, with ``files``, ``chip_specific_numbers`` and ``numbers``.
    """
    samples = [s for path in files_of(measured) for s in tables.place(path)[0]]
    found = fit(samples)
    scatter = scatter_of(fitted_lines(samples), found)
    points = [p for s in samples for p in points_of(predict(s, found, scatter))]
    held = [p for p in points if p.by["split"] == "check"] or points
    errors: dict[str, float] = {}
    for name in dict.fromkeys(p.by["group"] for p in held):
        errors[name] = float(summary([p for p in held if p.by["group"] == name])["median_ape"])
    files = store.save(out, found, scatter, source, errors)
    return document(points, [], len(points)) | {
        "files": [p.name for p in files], "chip_specific_numbers": found.terms.chip_specific(),
        "numbers": len(found.terms), "steps": found.steps,
    }  # fmt: skip
