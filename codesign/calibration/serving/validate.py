"""Error of predicted serving points as `codesign validate` tells it, the points with their predictions, and the fit."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from codesign.calibration.names import known_as
from codesign.calibration.serving import store
from codesign.calibration.serving.fit import fit, with_power
from codesign.calibration.serving.notes import assumed
from codesign.calibration.serving.points import COLUMNS, Points, place, twins
from codesign.calibration.serving.predict import (
    NEW_CHIP,
    NEW_MODEL,
    LeftOut,
    Out,
    Predicted,
    in_flight,
    leave_out,
    predict,
    scatter_of,
    scatter_without,
    summary,
)
from codesign.calibration.serving.program import Program
from codesign.calibration.serving.terms import kernels_beside
from codesign.errors import CodesignError

#: Groups of the error table, coarse to fine.
GROUPINGS = (
    ("split",), ("split", "hardware"), ("split", "model"), ("split", "framework"), ("split", "concurrency"),
    ("split", "limited_by"), ("hardware", "model"),
)  # fmt: skip
QUANTITIES = {"tpot_s": "tpot", "board_j_per_output_token": "joules"}
PREDICTED = (
    "predicted_tpot_s", "predicted_tpot_s_lo", "predicted_tpot_s_hi", "predicted_board_j_per_output_token", "placed",
    "reason",
)  # fmt: skip


def _by(row: Mapping[str, str]) -> dict[str, str]:
    return {k: str(row.get(k) or "") for k in ("hardware", "model", "framework", "precision", "concurrency")} | {
        "split": str(row.get("split") or "check")
    }


def _measured(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row.get(name) or "nan")
    except ValueError:
        return float("nan")
    return value if value > 0.0 else float("nan")


#: What was taken for granted, by number of the line.
Notes = Mapping[int, Sequence[str]]


def document(
    rows: Sequence[Mapping[str, str]],
    found: Sequence[Predicted],
    left: Mapping[int, str],
    notes: Notes = MappingProxyType({}),
) -> dict[str, Any]:
    """Schema ``codesign.validation/1``; twins count once."""
    doubled = twins([row for i, row in enumerate(rows)]) if all(k in rows[0] for k in COLUMNS) else set()
    lines: list[tuple[dict[str, str], str, float, float]] = []
    for p in found:
        for i, tpot, half, joules, limit in zip(p.points.lines, p.tpot, p.half, p.joules, p.limited, strict=True):
            row = rows[int(i)]
            if int(i) in doubled:
                continue
            for quantity, value, width in (
                ("tpot_s", tpot, float(half)), ("board_j_per_output_token", joules, float("nan"))
            ):  # fmt: skip
                measured = _measured(row, quantity)
                if np.isfinite(measured):
                    lines.append((_by(row) | {"limited_by": limit}, quantity, float(np.log(value / measured)), width))

    def told(chosen: list[tuple[dict[str, str], str, float, float]]) -> dict[str, Any]:
        half = np.array([x[3] for x in chosen])
        return summary(np.array([x[2] for x in chosen]), half if np.isfinite(half).all() else None)

    groups = []
    for quantity in QUANTITIES:
        mine = [x for x in lines if x[1] == quantity]
        for keys in GROUPINGS:
            parts: dict[tuple[str, ...], list[tuple[dict[str, str], str, float, float]]] = {}
            for x in mine:
                parts.setdefault(tuple(x[0][k] for k in keys), []).append(x)
            order = sorted(parts, key=lambda k: [(len(x), x) if x.isdigit() else (0, x) for x in k])
            groups += [{"by": dict(zip(keys, k, strict=True)), "quantity": quantity, **told(parts[k])} for k in order]
    tpot = [x for x in lines if x[1] == "tpot_s"]
    return {
        "schema": "codesign.validation/1", "rows": len(rows), "placed": len(rows) - len(left),
        "unplaced": [{"row": i + 2, "reason": reason} for i, reason in sorted(left.items())],
        "twins": len(doubled), "overall": told(tpot) if tpot else None, "groups": groups,
        "beyond_memory": [
            {"row": int(i) + 2, "lacks_bytes": float(x)}
            for p in found for i, x in zip(p.points.lines, p.lacks, strict=True) if x > 0.0
        ],
        "assumed": [{"row": i + 2, "reason": "; ".join(told)} for i, told in sorted(notes.items())],
    }  # fmt: skip


def written(
    rows: Sequence[Mapping[str, str]],
    found: Sequence[Predicted],
    left: Mapping[int, str],
    notes: Notes = MappingProxyType({}),
) -> str:
    """The table with its predictions beside it, as CSV; ``reason`` of a placed line has its notes."""
    out: list[dict[str, Any]] = [dict(row) for row in rows]
    for p in found:
        for i, tpot, half, joules, lacks in zip(p.points.lines, p.tpot, p.half, p.joules, p.lacks, strict=True):
            more = (f"does not fit: each chip lacks {lacks / 1e9:.3g} GB",) if lacks > 0.0 else ()
            out[int(i)] |= {
                "predicted_tpot_s": f"{tpot:.6g}", "predicted_tpot_s_lo": f"{tpot * np.exp(-half):.6g}",
                "predicted_tpot_s_hi": f"{tpot * np.exp(half):.6g}",
                "predicted_board_j_per_output_token": f"{joules:.6g}", "placed": "1",
                "reason": "; ".join((*more, *notes.get(int(i), ()))),
            }  # fmt: skip
    for i, reason in left.items():
        out[i] |= dict.fromkeys(PREDICTED, "") | {"placed": "0", "reason": reason}
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(k for k in rows[0] if k not in PREDICTED), *PREDICTED], lineterminator="\n")
    writer.writeheader()
    writer.writerows(out)
    return text.getvalue()


def held_back(found: Iterable[Predicted]) -> list[dict[str, Any]]:
    """Points of split ``check`` with their predictions, keys `codesign.calibration.serving.store.HELD_BACK`."""
    rows = []
    for p in found:
        points = p.points
        users = in_flight(points.load, points.mapping)
        for i in np.flatnonzero((points.splits == "check") & np.isfinite(points.tpot)):
            values = (points.chips[i], points.model.name, points.frameworks[i], float(users[i]), float(points.tpot[i]))
            rows.append(dict(zip(store.HELD_BACK, (*values, float(p.tpot[i]), float(p.half[i])), strict=True)))
    return rows


def told(folder: Path) -> dict[str, Any]:
    """The errors that the fits were told with: of kernels by group, of serving held back and left out."""
    from codesign.calibration.store import read_errors

    kernels = read_errors(kernels_beside(folder))
    return {"schema": "codesign.accuracy/1", "kernels": kernels, "serving": store.load(folder)[2]}


def _fitted(points: Sequence[Points], out: Out) -> bool:
    """Whether anything is left to fit, and anything with a time to predict."""
    timed = [np.isfinite(p.tpot) for p in points]
    shown = any(bool(np.any(t & (p.splits == "fit") & out.shown(p))) for p, t in zip(points, timed, strict=True))
    return shown and any(bool(np.any(t & out.predicted(p))) for p, t in zip(points, timed, strict=True))


def _out(points: Sequence[Points], names: Sequence[str]) -> Out:
    """What the names leave out: a chip of the table, a model of it, or one of each.

    Raises:
        CodesignError: a name is neither, or two are of a kind.
    """
    models, chips = {p.model.name for p in points}, {str(c) for p in points for c in p.chips}
    found: dict[str, str] = {}
    for given in names:
        name = known_as(given, chips, models)
        kind = "model" if name in models else "chip"
        if name not in models | chips:
            known = f"a chip or a model of the table: {', '.join(sorted(chips | models))}"
            raise CodesignError(f"no lines of {given!r}", key="--leave-out", allowed=known)
        if kind in found:
            raise CodesignError(f"two of a kind, {found[kind]} and {name}", key="--leave-out", allowed="one of each")
        found[kind] = name
    return Out(**found)


def validate(
    rows: Sequence[Mapping[str, str]], *, folder: Path, leave_out: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Predict a serving table: the error document and the table with its predictions.

    Args:
        rows: lines with `COLUMNS`, and ``tpot_s``, ``board_j_per_output_token`` and ``split`` where known.
        folder: of the fit.
        leave_out: a chip, a model or one of each to refit without; what is predicted has all of them.

    Raises:
        CodesignError: no line can be placed, or none is of what is left out.
    """
    points, left = place(rows)
    programs = [Program(p, folder) for p in points]
    fitted, scatter, errors = store.load(folder)
    if not points:
        i, reason = next(iter(left.items()))
        raise CodesignError(f"no line can be placed; line {i + 2}: {reason}")
    if not leave_out:
        found = [predict(p, fitted, scatter) for p in programs]
        notes = assumed(found, fitted.shifts)
        return document(rows, found, left, notes), written(rows, found, left, notes)
    out = _out(points, leave_out)
    chosen = [Program(p.take(mine), folder) for p in points if (mine := out.predicted(p)).any()]
    if not chosen:
        raise CodesignError(
            f"no lines of {out.name}", key="--leave-out", allowed="a chip and a model measured together"
        )
    again = fit(programs, keep=out.shown)
    again = with_power(programs, again, keep=out.shown)
    wider = scatter_without(scatter, out) | of_new_but(out, errors["left_out"])
    found = [predict(p, again, wider, without=out.chip) for p in chosen]
    told = {int(i) for p in chosen for i in p.points.lines}
    left |= {i: f"not of what is left out, {out.name}" for i in range(len(rows)) if i not in told and i not in left}
    notes = assumed(found, again.shifts, without=out.chip)
    return document(rows, found, left, notes), written(rows, found, left, notes)


def _of_new(trials: Iterable[LeftOut]) -> dict[str, float]:
    """Scatter of chips and of models that no fit has seen: the median of what those left out showed."""
    found = {}
    for key, by in ((NEW_CHIP, "chip"), (NEW_MODEL, "model")):
        if widths := [t.scatter() for t in trials if t.out.by == by]:
            found[key] = float(np.median(widths))
    return found


def of_new_but(out: Out, left_out: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Scatter of new chips and models by what all but some showed, as a fit was told with."""
    found = {}
    for key, by in ((NEW_CHIP, "chip"), (NEW_MODEL, "model")):
        others = [g.get("scatter") for g in left_out if g["by"] == by and g["name"] not in (out.chip, out.model)]
        if widths := [x for x in others if x is not None]:
            found[key] = float(np.median(widths))
    return found


def calibrate(rows: Sequence[Mapping[str, str]], out: Path, source: str, kernels: Path | None = None) -> dict[str, Any]:
    """Fit to the lines of split ``fit``, try it on every chip and model left out, and write the files of `store`.

    A chip or a model is left out where others have lines to fit.

    Args:
        rows: lines with `COLUMNS`, and ``split``.
        out: folder of the files.
        source: said in every one of them.
        kernels: folder of the kernels' fit on which this one stands; what ships where None.

    Returns:
        the error document, with ``files``, ``numbers``, ``chip_specific_numbers`` and ``left_out``.
    """
    doubled = twins(rows)
    numbers = [i for i in range(len(rows)) if i not in doubled]
    kept = [rows[i] for i in numbers]
    points, left = place(kept)
    programs = [Program(p, kernels) for p in points]
    found = fit(programs)
    found = with_power(programs, found)
    scatter = scatter_of(programs, found)
    pairs = sorted({(str(c), p.model.name) for p in points for c in p.chips})
    outs = [
        *(Out(chip=c) for c in sorted({c for c, _ in pairs})),
        *(Out(model=m) for m in sorted({m for _, m in pairs})),
    ]
    trials = [leave_out(programs, one) for one in outs if _fitted(points, one)]
    scatter |= _of_new(trials)
    predicted = [predict(p, found, scatter) for p in programs]
    told = document(kept, predicted, left)
    out_errors = []
    for t in trials:  # the width of a new chip or model is what the others showed
        others = scatter | _of_new([x for x in trials if x is not t])
        half = t.half(programs, others)
        told_with = {"by": t.out.by, "name": t.out.name, "scatter": t.scatter()}
        out_errors.append(told_with | summary(t.log_ratio, half))
    both = [leave_out(programs, one) for c, m in pairs if _fitted(points, one := Out(c, m))]
    if both:
        together = np.concatenate([t.log_ratio for t in both])
        out_errors.append({"by": both[0].out.by, "name": f"each of {len(both)} pairs", **summary(together)})
    checks = [g for g in told["groups"] if g["by"].get("split") == "check" and len(g["by"]) == 1]
    for key in ("unplaced", "beyond_memory"):
        told[key] = [u | {"row": numbers[u["row"] - 2] + 2} for u in told[key]]
    limits = [g for g in told["groups"] if g["by"].get("split") == "check" and "limited_by" in g["by"]]
    errors = {"check": checks, "left_out": out_errors, "limits": limits}
    files = store.save(out, found, scatter, source, errors, held_back(predicted), kernels)
    return told | {
        "files": [p.name for p in files], "numbers": len(found.shifts), "left_out": out_errors,
        "chip_specific_numbers": found.shifts.chip_specific(),
    }  # fmt: skip
