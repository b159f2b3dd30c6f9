"""Error of predictions on measured points: tables by chip, table and operation, as text and as JSON.

Kernel tables are recognised by their columns, and so are tables with the board's power beside the time
(`codesign.calibration.tables.power`), which no fit reads: they check the energies per byte and FLOP.  Error is
predicted over measured, less one; bias its median; coverage the share of lines inside their 90 % intervals, where they
have any.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from codesign.calibration import store, tables
from codesign.calibration.constants import KERNELS
from codesign.calibration.fit import Fit, fit, fitted_lines, subset
from codesign.calibration.names import known_as
from codesign.calibration.predict import Predicted, Scatter, predict, scatter_of
from codesign.calibration.serving.reading import refused
from codesign.calibration.tables import power
from codesign.calibration.tables.base import Columns, Sample
from codesign.errors import CodesignError

SCHEMA = "codesign.validation/1"


class Point(NamedTuple):
    """One quantity of a line: what it is grouped by, measured and predicted, half width of the interval if it has one.

    ``quantity`` is ``kernel_s``, ``board_w`` or ``board_w_at_measured_time``.
    """

    by: dict[str, str]
    measured: float
    predicted: float
    half: float | None
    quantity: str = "kernel_s"


#: The quantities of which each line of a table has one.
LEADING = ("kernel_s", "board_w")


def summary(points: Sequence[Point]) -> dict[str, float | int | None]:
    """Count, median, mean and 90th percentile of the absolute relative error, median error, coverage, half width.

    The last two are None where a point has no interval.
    """
    ratio = np.array([p.predicted / p.measured for p in points])
    error = np.abs(ratio - 1.0)
    half = np.array([np.nan if p.half is None else p.half for p in points])
    told = not np.isnan(half).any()
    return {
        "n": len(points), "median_ape": float(np.median(error)), "mean_ape": float(error.mean()),
        "p90_ape": float(np.quantile(error, 0.9)), "bias": float(np.median(ratio - 1.0)),
        "coverage_90": float(np.mean(np.abs(np.log(ratio)) <= half)) if told else None,
        "median_half_width": float(np.median(np.expm1(half))) if told else None,
    }  # fmt: skip


def _by(s: Sample) -> list[dict[str, str]]:
    """What each line of a sample is grouped by."""
    return [
        {"split": str(split), "hardware": str(system), "table": s.kind.name, "operation": str(operation),
         "group": s.kind.group}
        for split, system, operation in zip(s.splits, s.systems, s.operations, strict=True)
    ]  # fmt: skip


def points_of(found: Predicted) -> list[Point]:
    """A sample's lines as points."""
    s = found.sample
    each = zip(_by(s), s.seconds, found.seconds, found.half, strict=True)
    return [Point(by, float(m), float(p), float(h)) for by, m, p, h in each]


def power_points(found: Predicted, watts: np.ndarray) -> list[Point]:
    """A power table's sample as points, two of each line: at the predicted and at the measured time.

    Args:
        found: the sample with predicted times.
        watts: measured board power of its lines [W], (n,).
    """
    s = found.sample
    told = zip(("board_w", "board_w_at_measured_time"), power.board(s, found.seconds), strict=True)
    return [
        Point(by, float(m), float(p), None, quantity)
        for quantity, predicted in told
        for by, m, p in zip(_by(s), watts, predicted, strict=True)
    ]


#: Groups of the error table, coarse to fine.
GROUPINGS = (
    ("split", "group"), ("split", "table"), ("split", "hardware", "table"),
    ("split", "hardware", "table", "operation"),
)  # fmt: skip


def grouped(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Summaries of each quantity by each of `GROUPINGS`."""
    found = []
    for keys in GROUPINGS:
        parts: dict[tuple[str, ...], list[Point]] = {}
        for p in points:
            parts.setdefault((*(p.by[k] for k in keys), p.quantity), []).append(p)
        for *key, quantity in sorted(parts):
            by = dict(zip(keys, key, strict=True))
            found.append({"by": by, "quantity": quantity, **summary(parts[*key, quantity])})
    return found


def document(points: Sequence[Point], unplaced: Sequence[Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Schema ``codesign.validation/1``; ``overall`` of the times, of power where there is nothing else."""
    leading = {q: [p for p in points if p.quantity == q] for q in LEADING}
    told = next((same for same in leading.values() if same), None)
    return {
        "schema": SCHEMA, "rows": rows, "placed": sum(len(same) for same in leading.values()),
        "unplaced": list(unplaced), "overall": summary(told) if told else None, "groups": grouped(points),
    }  # fmt: skip


#: Lists of a document whose items are of one line of one file.
OF_LINES = ("unplaced", "beyond_memory", "assumed")


def filed(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A document of one file of a folder, whose lines tell the file."""
    told = {key: [{**item, "file": name} for item in document[key]] for key in OF_LINES if key in document}
    return dict(document) | told


def joined(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A document with that of another table of the same folder; ``overall`` of the first."""
    lists = ("groups", *(key for key in OF_LINES if key in document or key in more))
    return dict(document) | {
        "rows": document["rows"] + more["rows"], "placed": document["placed"] + more["placed"],
    } | {key: [*document.get(key, ()), *more.get(key, ())] for key in lists}  # fmt: skip


def files_of(where: Path) -> list[Path]:
    """Kernel and power tables at a path: a file, or those of a folder."""
    if where.is_dir():
        found = [p for p in sorted(where.glob("*.csv")) if _recognised(tables.read_columns(p))]
        if not found:
            told = "CSV files with their columns, or serving points"
            raise CodesignError("no kernel tables here", file=str(where), allowed=told)
        return found
    if not where.is_file():
        raise CodesignError("no such file or folder", file=str(where))
    columns = tables.read_columns(where)
    if not _recognised(columns):
        raise refused(where, list(columns))
    return [where]


def is_kernel_table(path: Path) -> bool:
    """Whether a file has the columns of a kernel or power table."""
    return _recognised(tables.read_columns(path))


def _recognised(columns: Columns) -> bool:
    return tables.recognise(columns) is not None or power.recognise(columns) is not None


def validate(where: Path, *, folder: Path | None = None, leave_out: str | None = None) -> dict[str, Any]:
    """Predict every kernel table at a path and tell the error.

    Args:
        where: a table or a folder of tables.
        folder: of the fit; the one that ships where None.
        leave_out: a chip to leave out: refit without its lines, and predict those alone.
    """
    placed: list[Sample] = []
    powered: list[tuple[Sample, np.ndarray]] = []
    unplaced: list[dict[str, Any]] = []
    for path in files_of(where):
        columns = tables.read_columns(path)
        if tables.recognise(columns) is None and power.recognise(columns) is not None:
            told, left = power.read(columns, str(path))
            if leave_out is not None:  # nothing is fitted to it, so nothing can be left out
                told, left = [], dict.fromkeys(range(len(columns["system"])), "board power, which no fit reads")
            powered += told
        else:
            samples, left = tables.place(path, strict=False)
            placed += samples
        unplaced += [{"row": i + 2, "file": path.name, "reason": reason} for i, reason in sorted(left.items())]
    if leave_out is not None and not placed:
        raise CodesignError("no fit reads these tables", key="--leave-out", allowed="with kernel tables")
    if leave_out is not None:
        leave_out = known_as(leave_out, {str(c) for s in placed for c in s.chips})
    fitted, scatter = store.load(folder or store.bundled()) if leave_out is None else without(placed, leave_out)
    if leave_out is not None:
        placed, strange = of_chip(placed, leave_out, fitted)
        reason = f"kernels measured on {leave_out} alone"
        unplaced += [{"row": i + 2, "file": name, "reason": reason} for name, i in strange]
    points = [p for s in placed for p in points_of(predict(s, fitted, scatter, without=leave_out))]
    points += [p for s, watts in powered for p in power_points(predict(s, fitted, scatter), watts)]
    return document(points, unplaced, sum(p.quantity in LEADING for p in points) + len(unplaced))


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


def placed_in(measured: Path) -> list[Sample]:
    """The lines of all kernel tables of a folder; tables of board power are left to `validate`."""
    found: list[Sample] = []
    for path in files_of(measured):
        columns = tables.read_columns(path)
        if tables.recognise(columns) is not None:
            found += tables.place(path)[0]
    return found


def calibrate(samples: Sequence[Sample], out: Path, source: str) -> dict[str, Any]:
    """Fit to placed lines, write the files of `store`, and tell the error on lines held back.

    Args:
        samples: of all tables, from a folder (`placed_in`) or the package `codesign.calibration.aiconfigurator` reads.
        out: folder of the files.
        source: said in every one of them.

    Returns:
        the document of `validate` on the same tables, with ``files``, ``chip_specific_numbers`` and ``numbers``.
    """
    found = fit(samples)
    scatter = scatter_of(fitted_lines(samples), found)
    points = [p for s in samples for p in points_of(predict(s, found, scatter))]
    held = [p for p in points if p.by["split"] == "check"]
    errors: dict[str, float] = {}
    for name in dict.fromkeys(p.by["group"] for p in held):
        errors[name] = float(np.median([abs(p.predicted / p.measured - 1.0) for p in held if p.by["group"] == name]))
    files = store.save(out, found, scatter, source, errors)
    return document(points, [], len(points)) | {
        "files": [p.name for p in files], "chip_specific_numbers": found.terms.chip_specific(),
        "numbers": len(found.terms), "steps": found.steps,
    }  # fmt: skip
