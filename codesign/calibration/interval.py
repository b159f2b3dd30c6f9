r"""How wide an answer of `codesign evaluate` is: the 90 % interval of its time, by what the constants are known.

The log of a time has variance :math:`g^T \Sigma g + v + s^2`: g its derivative by the numbers of the fit to serving
points, Sigma their covariance, v what a chip, a generation or a vendor without points of its own may differ by, and s
the scatter of measured points about the fit.  The derivatives are one-sided differences at the answer's mapping and
batch through the compiled program that gave it.  Left out: numbers of the machine that are estimates (a study moves
those over their ranges), the law of routing, what a model's file assumes.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from codesign.calibration import store as kernels
from codesign.calibration.constants import FORMS, LAWS
from codesign.calibration.predict import Z90
from codesign.calibration.serving import store
from codesign.calibration.serving.predict import NEW_CHIP, NEW_MODEL, in_flight, strata, unseen_variance
from codesign.calibration.serving.terms import OVERHEADS, Line
from codesign.evaluation.case import GPU_VENDORS, OWN_LATENCIES, Case
from codesign.evaluation.solve import solve
from codesign.execution import execution_from
from codesign.mapping import Mapping
from codesign.objective.metrics import Load

#: Metrics that have the interval of the time, or of its inverse.
SPREAD = ("tpot_s", "ttft_s", "tokens_per_s", "tokens_per_s_per_megawatt")

#: Step of the differences, in u.
STEP = 1e-4


def slopes(case: Case, mapping: Mapping, load: Load) -> np.ndarray:
    """Derivative of the log time by every constant, in the u of its form, and by the log of the host's overheads.

    Args:
        case: as the request had it, at the constants where it is asked.
        mapping: of scalars.
        load: with its batch.

    Returns:
        (constants and overheads,).
    """
    single = jax.tree.map(lambda x: np.asarray(x)[None], mapping)
    fixed = () if case.vendor in GPU_VENDORS else OWN_LATENCIES
    values = case.execution.values()

    def log_time(load: Load, changed: dict[str, float] | None = None) -> float:
        here = values | (changed or {})
        execution = execution_from(lambda n: here[n], calibrated=case.execution.calibrated)
        found = solve(replace(case, execution=execution), single, load, np.inf, load.batch, load.batch)
        return float(np.log(found.result.time_s[0]))

    at, out = log_time(load), np.zeros(len(LAWS) + len(OVERHEADS))
    for i, law in enumerate(LAWS):
        form, value = FORMS[law.form], values[law.name]
        if law.name not in fixed and not (law.form == "share" and value >= 1.0):
            out[i] = (log_time(load, {law.name: float(form.read(form.write(value) + STEP))}) - at) / STEP
    for k, name in enumerate(OVERHEADS):
        field = f"{name}_overhead"
        if seconds := float(getattr(load.framework, field)):
            longer = replace(load.framework, **{field: seconds * np.exp(STEP)})
            out[len(LAWS) + k] = (log_time(replace(load, framework=longer)) - at) / STEP
    return out


@lru_cache(maxsize=4)
def _kept(folder: Path, written: int) -> Any:  # noqa: ARG001 - another file is another fit
    return store.load(folder)


def half_width(case: Case, mapping: Mapping, load: Load, framework: str | None, folder: Path) -> tuple[float, str]:
    """Half width of the 90 % interval of the log time, and in words what it holds; arguments as in `slopes`.

    Args:
        framework: of the request.
        folder: of the fit, see `codesign.calibration.store.bundled`.

    Raises:
        CodesignError: the fit's files are damaged.
    """
    file = folder / "serving-fit.json"
    fit, scatter, _ = _kept(folder, file.stat().st_mtime_ns if file.exists() else 0)
    chip = case.system.accelerator.name
    line = Line(chip, case.vendor, framework or "")
    g = slopes(case, mapping, load)
    j = (fit.shifts.onto @ g) * fit.shifts.sees([line])[0]
    variance = j @ fit.covariance @ j + unseen_variance(fit.shifts, line, g, without_framework=framework is None)
    known = {key.split("|")[1] for key in scatter if "|" in key}
    flight = float(in_flight(load, mapping))
    wide = scatter[next(k for k in strata(chip, case.model.name, framework, flight) if k in scatter)]
    words = ["constants", "scatter of measured points"]
    if chip not in scatter:
        wide, words = max(wide, scatter.get(NEW_CHIP, 0.0)), [*words, "what chips without points differ by"]
    if case.model.name not in known:
        wide, words = max(wide, scatter.get(NEW_MODEL, 0.0)), [*words, "what models without points differ by"]
    return float(np.sqrt(wide**2 + Z90**2 * variance)), "; ".join(words)


def interval_document(
    case: Case, mapping: Mapping, load: Load, metrics: dict[str, Any], framework: str | None, workspace: Any = None
) -> dict[str, Any]:
    """The 90 % interval of an answer's time and of what goes with its inverse, as ``evaluate --json`` has it."""
    half, words = half_width(case, mapping, load, framework, kernels.bundled(workspace, "serving"))
    low, high = float(np.exp(-half)), float(np.exp(half))
    found = {k: [metrics[k] * low, metrics[k] * high] for k in SPREAD if metrics.get(k)}
    return {"share": 0.9, "half_width": half, "holds": words, **found}
