"""Where a fit to serving points is kept.

``arch/measurements/served.toml`` has the constants in a server of all chips, ``served-VENDOR.toml`` and
``served-GENERATION.toml`` those of their chips without points of their own, ``served-CHIP.toml`` a measured chip's;
each is complete.  ``frameworks.toml`` has the host's time and what a framework makes of launches.
``serving-held-back.csv`` has the points held back with their predictions.
``serving-fit.json`` and ``serving-covariance.npz`` hold every fitted number with its prior, the scatter and the errors
on what was held back.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from codesign.calibration.constants import FORMS, LAWS, published
from codesign.calibration.kept import load_fit, save_fit
from codesign.calibration.predict import Z90
from codesign.calibration.serving.fit import UNKNOWN, Power, Served
from codesign.calibration.serving.program import DECODING
from codesign.calibration.serving.terms import SERVED, TIED, Line, Shift, Shifts, generation_of, kernels_of
from codesign.errors import CodesignError
from codesign.execution import NAMES, UNITS

SCHEMA = "codesign.serving/1"

#: What is said of the error where no point was held back.
NONE_HELD = "no points held back"

#: A number tells nothing new where its deviation stays above this share of the prior's and it moved less than this.
UNTOLD, MOVED = 0.98, 0.05


def _vendors(shifts: Shifts) -> list[str]:
    return sorted({s.owner for s in shifts.shifts if s.level == "vendor"})


def _chips(shifts: Shifts) -> list[str]:
    return sorted({s.owner for s in shifts.shifts if s.level == "chip"})


def owners(shifts: Shifts) -> dict[str, Line]:
    """File names, and whose constants they hold; an empty chip is none, a generation stands in for its chips."""
    nobody = "\0"
    found = {"served": Line(nobody, nobody, nobody)}
    found |= {f"served-{v}": Line(nobody, v, nobody) for v in _vendors(shifts)}
    maker = {g: "amd" if g.startswith("cdna") else "nvidia" for g in SERVED}
    measured = {s.owner for s in shifts.shifts if s.level == "generation"}
    for generation in [g for g in SERVED if g in measured]:
        found[f"served-{generation}"] = Line(f"\0{generation}", maker[generation], nobody)
    return found | {f"served-{c}": Line(c, maker[generation_of(c)], nobody) for c in _chips(shifts)}


def _constants(
    line: Line, fit: Served, kernels: Path | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """The u of each constant, its standard deviation, whether a point told anything of it, and the file's aliases."""
    generation = line.chip[1:] if line.chip.startswith("\0") and len(line.chip) > 1 else None
    shifts = fit.shifts
    if generation:
        seen = np.array(
            [
                [
                    1.0
                    if (s.level, s.owner) in {("all", ""), ("vendor", line.vendor), ("generation", generation)}
                    else 0.0
                    for s in shifts.shifts
                ]
            ]
        )[0]
    else:
        seen = shifts.sees([line])[0]
    base = kernels_of(None if line.chip.startswith("\0") else line.chip, generation, kernels)
    onto = shifts.onto[:, : len(LAWS)]
    u = np.array(base) + (seen * fit.theta) @ onto
    spread = onto.T * seen
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", spread, fit.covariance, spread), 0.0))
    before = np.sqrt(np.einsum("ij,j->i", spread**2, shifts.spread**2))
    told = (deviation < UNTOLD * before) | (np.abs(u - base) > MOVED * before)
    aliases: tuple[str, ...] = ()
    if generation:
        aliases = tuple(f"served-{c}" for c in SERVED[generation] if c not in _chips(shifts))
    return u, deviation, told, aliases


def constants_file(
    name: str, line: Line, fit: Served, source: str, kernels: Path | None = None, note: str = NONE_HELD
) -> str:
    """One file of constants as TOML; what no point tells anything of stands as the kernels have it, and says so.

    Args:
        name, line: of the file, and whose constants they are.
        fit, source, kernels: as in `save`.
        note: the error on what was held back, in words.
    """
    u, deviation, told, aliases = _constants(line, fit, kernels)
    estimates = published()
    whose = name.removeprefix("served").removeprefix("-") or "all chips measured"
    lines = [
        f"# Kernel constants of {whose} inside a server, fitted to serving points; written by `codesign calibrate`.",
        "# Ranges hold 90 % of the posterior of what serving adds to the kernels' own constants.",
        f'name = "{name}"',
        f'title = "Kernel constants of {whose} in a server, fitted"',
        *([f"aliases = [{', '.join(chr(34) + a + chr(34) for a in aliases)}]"] if aliases else []),
        f'source = "{source}"',
        f'note = "{note}"',
        "",
        "[numbers]",
    ]
    place = {law.name: i for i, law in enumerate(LAWS)}
    for constant in NAMES:
        if constant not in place:
            value = estimates(constant)
            lines.append(
                f'{constant} = {{ value = "{value:g}", kind = "assumption", source = "a choice, not fitted" }}'
            )
            continue
        i = place[constant]
        unit = f" {UNITS[constant]}" if constant in UNITS else ""
        read = FORMS[LAWS[i].form].read
        value, low, high = (float(read(x)) for x in (u[i], u[i] - Z90 * deviation[i], u[i] + Z90 * deviation[i]))
        span = f', range = ["{low:.4g}{unit}", "{high:.4g}{unit}"]' if deviation[i] > 0.0 else ""
        kind, whence = "fitted", source
        if not told[i]:
            kind, whence = "assumption", "as the kernels' fit or its prior has it; no serving point goes by it"
        lines.append(f'{constant} = {{ value = "{value:.4g}{unit}", kind = "{kind}", source = "{whence}"{span} }}')
    return "\n".join([*lines, ""])


def frameworks_file(fit: Served, source: str) -> str:
    """Overheads by framework and vendor as TOML."""
    lines = [
        "# Host time that serving frameworks add to each step, fitted to serving points by `codesign calibrate`.",
        'name = "frameworks"',
        'title = "Serving frameworks: host overhead per step, and launches over those of all frameworks"',
        "",
        "[numbers]",
        f'decoding = {{ value = "{DECODING}", kind = "estimate", '
        'source = "closed-loop serving of InferenceX: about 0.96 of the concurrency decodes at any time" }',
    ]
    for (name, value), d in zip(fit.power._asdict().items(), fit.power_deviation, strict=True):
        span = f', range = ["{max(value - Z90 * d, 0.0):.4g}", "{value + Z90 * d:.4g}"]' if np.isfinite(d) else ""
        kind, whence = ("fitted", source) if span else ("assumption", "the work's energy alone; none was measured")
        lines.append(f'{name} = {{ value = "{value:.4g}", kind = "{kind}", source = "{whence}"{span} }}')
    deviations = np.sqrt(np.diag(fit.covariance))
    for s, x, d in zip(fit.shifts.shifts, fit.theta, deviations, strict=True):
        if s.level == "framework":
            unit = " s" if s.what != "launches" else ""
            value, low, high = (float(np.exp(v)) for v in (x, x - Z90 * d, x + Z90 * d))
            lines.append(
                f'{s.what}_{s.owner.replace(" ", "_")} = {{ value = "{value:.3g}{unit}", kind = "fitted", '
                f'source = "{source}", range = ["{low:.3g}{unit}", "{high:.3g}{unit}"] }}'
            )
    return "\n".join([*lines, ""])


def fit_document(fit: Served, scatter: Mapping[str, float], source: str, errors: Mapping[str, Any]) -> dict[str, Any]:
    """The whole fit as JSON has it."""
    shifts, deviations = fit.shifts, np.sqrt(np.diag(fit.covariance))
    numbers = [
        {
            "level": s.level, "of": s.owner, "shift": s.what,
            "u": float(x), "deviation": float(d), "prior": [float(m), float(p)],
        }
        for s, x, d, m, p in zip(shifts.shifts, fit.theta, deviations, shifts.mean, shifts.spread, strict=True)
    ]  # fmt: skip
    return {
        "schema": SCHEMA, "source": source, "chip_specific_numbers": shifts.chip_specific(), "errors": dict(errors),
        "scatter": dict(scatter), "power": fit.power._asdict(), "numbers": numbers,
        "power_deviation": fit.power_deviation._asdict() if np.all(np.isfinite(fit.power_deviation)) else None,
    }  # fmt: skip


#: Columns of the points held back, as they are kept beside a fit.
HELD_BACK = ("chip", "model", "framework", "concurrency", "measured_s", "predicted_s", "half_width")


def held_back_file(points: Iterable[Mapping[str, Any]]) -> str:
    """Points held back of the fit with their predictions as CSV, columns `HELD_BACK`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HELD_BACK)
    for point in points:
        writer.writerow([f"{x:.4g}" if isinstance(x, float) else x for x in (point[k] for k in HELD_BACK)])
    return text.getvalue()


def held_back(folder: Path) -> list[dict[str, Any]]:
    """Points held back of the fit in a folder, with their predictions; none where they were not kept."""
    path = folder / "serving-held-back.csv"
    if not path.exists():
        return []
    words = HELD_BACK[:3]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{k: row[k] if k in words else float(row[k]) for k in HELD_BACK} for row in csv.DictReader(file)]
    except (KeyError, ValueError, TypeError) as problem:
        raise CodesignError("damaged; run codesign calibrate again", file=str(path)) from problem


def save(
    folder: Path,
    fit: Served,
    scatter: Mapping[str, float],
    source: str,
    errors: Mapping[str, Any],
    points: Iterable[Mapping[str, Any]] = (),
    kernels: Path | None = None,
) -> list[Path]:
    """Write all files of a fit into a folder, or none; returns their paths.

    Args:
        folder, fit, scatter: where, what, and what is left between fit and measurement.
        source: of the numbers, for their files.
        errors: on what was held back and left out.
        points: held back, with `HELD_BACK` as keys.
        kernels: folder of the kernels' fit on which this one stands.
    """
    named = owners(fit.shifts).items()
    held = next((g for g in errors.get("check", ()) if g["quantity"] == "tpot_s"), None)
    note = f"median error on {held['n']} points held back: {100 * held['median_ape']:.1f} %" if held else NONE_HELD
    texts = {f"{name}.toml": constants_file(name, line, fit, source, kernels, note) for name, line in named}
    texts["frameworks.toml"] = frameworks_file(fit, source)
    texts["serving-held-back.csv"] = held_back_file(points)
    return save_fit(folder, "serving", texts, fit_document(fit, scatter, source, errors), fit.covariance)


def load(folder: Path) -> tuple[Served, dict[str, float], dict[str, Any]]:
    """The fit that `save` wrote into a folder, the scatter, and the errors told with it.

    Raises:
        CodesignError: there is none, or its files are damaged or do not belong together.
    """
    known = {law.name for law in LAWS} | set(TIED) | {"step", "sequence"}

    def read_document(document: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
        numbers = document["numbers"]
        shifts = Shifts(
            tuple(Shift(n["level"], n["of"], n["shift"]) for n in numbers),
            np.array([n["prior"][0] for n in numbers]),
            np.array([n["prior"][1] for n in numbers]),
        )
        theta = np.array([n["u"] for n in numbers], dtype=float)
        scatter = {k: float(v) for k, v in document["scatter"].items()}
        if "" not in scatter or not np.all(np.isfinite([*theta, *shifts.mean, *shifts.spread, *scatter.values()])):
            raise ValueError("numbers are missing")
        power = Power(**document["power"]), Power(**(document.get("power_deviation") or UNKNOWN._asdict()))
        found = shifts, theta, power, scatter, dict(document["errors"])
        return found, all(s.what in known for s in shifts.shifts)

    (shifts, theta, power, scatter, errors), covariance = load_fit(folder, "serving", read_document)
    return Served(shifts, theta, covariance, *power), scatter, errors
