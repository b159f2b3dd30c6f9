"""Where a fit is kept: constants by chip and generation for people and for `evaluate`, and the whole fit beside them.

``arch/measurements/kernels.toml`` has what all chips share, ``kernels-GENERATION.toml`` what a generation does, named
by alias for its chips without measurements, ``kernels-CHIP.toml`` a measured chip's.  Each is complete.
``kernels-fit.json`` holds every fitted number with its prior, error and scatter, ``kernels-covariance.npz`` their
covariance.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from codesign.calibration.constants import (
    BY_NAME,
    DEFAULT_KERNELS,
    GENERATIONS,
    Term,
    Terms,
    generation_of,
    read,
)
from codesign.calibration.fit import Fit
from codesign.calibration.kept import load_fit, save_fit
from codesign.calibration.predict import Z90, Scatter
from codesign.errors import CodesignError
from codesign.execution import NAMES, UNITS

SCHEMA = "codesign.kernels/1"
FOLDER = "arch/measurements"


def owners(terms: Terms) -> dict[str, tuple[str | None, str | None]]:
    """File names, and whose constants they hold: (chip, generation)."""
    chips = sorted({t.owner for t in terms.terms if t.level == "chip"})
    generations = sorted({t.owner for t in terms.terms if t.level == "generation"})
    found: dict[str, tuple[str | None, str | None]] = {"kernels": (None, None)}
    found |= {f"kernels-{g}": (None, g) for g in generations}
    return found | {f"kernels-{c}": (c, generation_of(c)) for c in chips}


def _number(name: str, value: float, low: float, high: float, source: str, note: str) -> str:
    unit = f" {UNITS[name]}" if name in UNITS else ""
    text = lambda x: f'"{x:.4g}{unit}"'  # noqa: E731
    span = f"range = [{text(min(low, value))}, {text(max(high, value))}]"
    return f'{name} = {{ value = {text(value)}, kind = "fitted", source = "{source}", {span}, note = "{note}" }}'


def constants_file(name: str, fit: Fit, source: str, errors: Mapping[str, float]) -> str:
    """One file of constants as TOML."""
    chip, generation = owners(fit.terms)[name]
    kernels = DEFAULT_KERNELS.get(generation, DEFAULT_KERNELS[None])
    matrix = fit.terms.matrix(chip, kernels, generation)
    u, deviation = matrix @ fit.theta, np.sqrt(np.einsum("ij,jk,ik->i", matrix, fit.covariance, matrix))
    middle, low, high = (
        {k: float(v) for k, v in read(x).items()} for x in (u, u - Z90 * deviation, u + Z90 * deviation)
    )
    own = {t.law for t in fit.terms.terms if t.level == "chip" and t.owner == chip}
    of_generation = {t.law for t in fit.terms.terms if t.level == "generation" and t.owner == generation}
    by_kernel = {t.law: t.owner for t in fit.terms.terms if t.level == "kernel" and t.owner in kernels}
    lines = []
    for law in NAMES:
        if law not in BY_NAME:
            value = fit.terms.chosen[law]
            lines.append(f'{law} = {{ value = "{value:g}", kind = "assumption", source = "a choice, not fitted" }}')
            continue
        level = chip if law in own else f"{generation} generation" if law in of_generation else "all chips measured"
        told = f"of {level}" + (f", kernel {by_kernel[law]}" if law in by_kernel else "")
        lines.append(_number(law, middle[law], low[law], high[law], source, told))
    whose = chip or (f"the {generation} generation" if generation else "all chips measured")
    relatives = [c for c in GENERATIONS.get(generation or "", ()) if f"kernels-{c}" not in owners(fit.terms)]
    aliases = ", ".join(f'"kernels-{c}"' for c in relatives) if chip is None and generation else ""
    told = "; ".join(f"{k} {100 * v:.1f} %" for k, v in errors.items())
    note = f"median error on lines held back: {told}" if told else "no lines held back"
    head = [
        f"# Kernel constants of {whose}, fitted to measured kernel tables; written by `codesign calibrate`.",
        "# Ranges hold 90 % of the posterior; a note says whose number it is.  Chips under aliases were not measured.",
        f'name = "{name}"',
        f'title = "Kernel constants of {whose}, fitted"',
        *([f"aliases = [{aliases}]"] if aliases else []),
        f'source = "{source}"',
        f'note = "{note}"',
        "",
        "[numbers]",
    ]
    return "\n".join([*head, *lines, ""])


def fit_document(fit: Fit, scatter: Scatter, source: str, errors: Mapping[str, float]) -> dict[str, Any]:
    """The whole fit as JSON has it."""
    deviation = np.sqrt(np.diag(fit.covariance))
    numbers = [
        {
            "level": t.level, "of": t.owner, "constant": t.law, "form": BY_NAME[t.law].form,
            "u": float(x), "deviation": float(d), "prior": [float(m), float(s)],
        }
        for t, x, d, m, s in zip(fit.terms.terms, fit.theta, deviation, fit.terms.mean, fit.terms.spread, strict=True)
    ]  # fmt: skip
    return {
        "schema": SCHEMA, "source": source, "chip_specific_numbers": fit.terms.chip_specific(), "errors": dict(errors),
        "chosen": fit.terms.chosen, "numbers": numbers,
        "scatter": {
            "edges": scatter.edges,
            "half": {k: {str(p): x for p, x in v.items()} for k, v in scatter.half.items()},
        },
    }  # fmt: skip


def save(folder: Path, fit: Fit, scatter: Scatter, source: str, errors: Mapping[str, float]) -> list[Path]:
    """Write all files of a fit into a folder, or none; returns their paths."""
    texts = {f"{name}.toml": constants_file(name, fit, source, errors) for name in owners(fit.terms)}
    return save_fit(folder, "kernels", texts, fit_document(fit, scatter, source, errors), fit.covariance)


def load(folder: Path) -> tuple[Fit, Scatter]:
    """The fit that `save` wrote into a folder.

    Raises:
        CodesignError: there is none, or its files are damaged or do not belong together.
    """

    def read_document(document: dict[str, Any]) -> tuple[tuple[Terms, np.ndarray, Scatter], bool]:
        numbers = document["numbers"]
        terms = Terms(
            tuple(Term(n["level"], n["of"], n["constant"]) for n in numbers),
            np.array([n["prior"][0] for n in numbers]),
            np.array([n["prior"][1] for n in numbers]),
            dict(document["chosen"]),
        )
        theta = np.array([n["u"] for n in numbers], dtype=float)
        half = {k: {int(p): float(x) for p, x in v.items()} for k, v in document["scatter"]["half"].items()}
        edges = {k: [float(x) for x in v] for k, v in document["scatter"]["edges"].items()}
        if not np.all(np.isfinite([*theta, *terms.mean, *terms.spread])):
            raise ValueError("numbers are missing")
        return (terms, theta, Scatter(edges, half)), all(t.law in BY_NAME for t in terms.terms)

    (terms, theta, scatter), covariance = load_fit(folder, "kernels", read_document)
    return Fit(terms, theta, covariance, 0), scatter


def read_errors(folder: Path) -> dict[str, float]:
    """Median error on lines held back, by group of tables, as the fit was told with."""
    path = folder / "kernels-fit.json"
    try:
        return {k: float(v) for k, v in json.loads(path.read_text(encoding="utf-8"))["errors"].items()}
    except (OSError, ValueError, KeyError, AttributeError) as problem:
        raise CodesignError("no fit here", file=str(path), allowed="run codesign calibrate") from problem


def bundled(workspace: Any = None, name: str = "kernels") -> Path:
    """Folder of a fit, ``kernels`` or ``serving``: a workspace's which has one, else the one that ships."""
    from codesign.catalog.loader import load_measurement

    if workspace is not None and (Path(workspace) / FOLDER / f"{name}-fit.json").exists():
        return Path(workspace) / FOLDER
    return load_measurement("execution").origin.path.parent
