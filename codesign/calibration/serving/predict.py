r"""Predicted TPOT of serving points with intervals, and errors where it was measured.

The log of a TPOT has variance :math:`g^T \Sigma g + s^2` as in `codesign.calibration.predict`; a chip, a generation, a
vendor or a framework that was not fitted adds the variance of its prior, a model that was not fitted the larger scatter
that models left out showed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codesign.calibration.constants import LAWS
from codesign.calibration.predict import FEWEST, HELD, Z90
from codesign.calibration.serving.fit import Served, fit
from codesign.calibration.serving.points import Points
from codesign.calibration.serving.program import Program, lines_of
from codesign.calibration.serving.terms import (
    CHIP,
    FRAMEWORK,
    GENERATION,
    OVERHEAD_SPREAD,
    OVERHEADS,
    PLACE,
    TIED,
    VENDOR,
    Line,
    Shifts,
    generation_of,
)
from codesign.lanes import FAMILIES
from codesign.mapping import Mapping as Degrees
from codesign.objective.metrics import Load

#: Names of the scatter of models, and of chips, that were left out.
NEW_MODEL, NEW_CHIP = "model left out", "chip left out"


@dataclass(frozen=True)
class Predicted:
    """Predictions of one program's points.

    Attributes:
        points: the lines.
        tpot: predicted seconds per output token, (n,).
        half: half width of the 90 % interval in log time, (n,).
        joules: predicted board energy per output token [J], (n,).
        limited: what each goes most by, a key of `LIMITS`.
        lacks: memory that a chip lacks, 0 where the point fits [B], (n,).
    """

    points: Points
    tpot: np.ndarray
    half: np.ndarray
    joules: np.ndarray
    limited: tuple[str, ...]
    lacks: np.ndarray


#: What can limit a point, and the constants and overheads by whose rates it then goes.
LIMITS: dict[str, tuple[str, ...]] = {
    "dense weights": ("memory_gemm",),
    "expert weights": ("memory_experts",),
    "attention cache": ("memory_attention", "memory_state"),
    "activations": ("memory_elementwise", "memory_collective", "vector"),
    "arithmetic": ("tensor_bf16", "tensor_fp8", "tensor_fp4", "grouped", "attention_tensor"),
    "launches": tuple(f"launches_{family}" for family in FAMILIES),
    "collectives": ("scale_up", "exchange", "scale_out", "all_reduce", "all_to_all"),
    "host": OVERHEADS,
}


def limits_of(arguments: np.ndarray, slopes: np.ndarray) -> tuple[str, ...]:
    r"""What each line's time goes most by: of `LIMITS` the one with the largest sum of elasticities.

    Args:
        arguments: u of constants and overheads, (n, constants and overheads).
        slopes: derivatives of log TPOT by these.  A share :math:`s = \sigma(u)` has
            :math:`d \ln s/du = 1 - s`, so the elasticity is the slope over that.
    """
    shares = np.array([law.form == "share" for law in LAWS] + [False] * len(OVERHEADS))
    elastic = np.abs(slopes) / np.where(shares, 1.0 / (1.0 + np.exp(np.minimum(arguments, 500.0))), 1.0)
    place = PLACE | {name: len(LAWS) + i for i, name in enumerate(OVERHEADS)}
    by = np.stack([elastic[:, [place[name] for name in names]].sum(axis=1) for names in LIMITS.values()], axis=1)
    return tuple(list(LIMITS)[i] for i in np.argmax(by, axis=1))


#: Requests in flight up to which points scatter alike; more is a band of its own.
BANDS = (4, 16, 64)


def strata(chip: str, model: str, framework: str | None = None, flight: float = 0.0) -> tuple[str, ...]:
    """Strata of a point, finest first: servers on a chip scatter by model, framework and requests in flight.

    Args:
        chip, model: as the catalog has them.
        framework: None where the answer is of kernels alone.
        flight: requests in flight.
    """
    pair = f"{chip}|{model}"
    if framework is None:
        return pair, chip, ""
    band = next((f"to {most}" for most in BANDS if flight <= most), f"over {BANDS[-1]}")
    return f"{pair}|{framework}|{band}", f"{pair}|{framework}", pair, chip, ""


def in_flight(load: Load, degrees: Degrees) -> np.ndarray:
    """Requests in flight on all instances, shaped like the batch."""
    return np.asarray(load.batch) * np.asarray(degrees.dp) * np.asarray(degrees.microbatches)


def unseen(shifts: Shifts, program: Program, slopes: np.ndarray, without: str | None) -> np.ndarray:
    """Variance of the log TPOT by what was not fitted: chips, generations, vendors and frameworks without numbers."""
    lines = lines_of(program.points)
    return np.array(
        [unseen_variance(shifts, x, g, left_out=x.chip == without) for x, g in zip(lines, slopes, strict=True)]
    )


def unseen_variance(
    shifts: Shifts, line: Line, g: np.ndarray, *, left_out: bool = False, without_framework: bool = False
) -> float:
    """The same of one line with the slopes g, (constants and overheads,).

    Args:
        shifts: numbers of the fit.
        line: whose.
        g: derivative of the log time by each constant and overhead.
        left_out: the chip's own numbers count as not fitted.
        without_framework: the answer is of kernels alone.
    """
    known = {(s.level, s.owner) for s in shifts.shifts}
    single = sum(g[PLACE[s.what]] ** 2 for s in shifts.shifts if s.level == "all")
    out = 0.0
    if ("vendor", line.vendor) not in known:
        out += VENDOR**2 * single
    if ("generation", generation_of(line.chip)) not in known:
        out += GENERATION**2 * single
    if left_out or ("chip", line.chip) not in known:
        out += CHIP**2 * sum(sum(g[PLACE[n]] for n in names) ** 2 for names in TIED.values())
    if not without_framework and ("framework", f"{line.framework} {line.vendor}") not in known:
        out += FRAMEWORK**2 * sum(g[PLACE[n]] for n in TIED["launches"]) ** 2
        out += OVERHEAD_SPREAD**2 * float(np.sum(g[len(LAWS) :] ** 2))
    return float(out)


def arguments(program: Program, found: Served, without: str | None = None) -> np.ndarray:
    """Constants and overheads of each line; a framework that was not fitted has the mean overheads of all others."""
    w = program.arguments(found.shifts, found.theta, without=without)
    known = {s.owner for s in found.shifts.shifts if s.level == "framework"}
    for k, what in enumerate(("step", "sequence")):
        mean = np.mean([t for s, t in zip(found.shifts.shifts, found.theta, strict=True) if s.what == what])
        for i, line in enumerate(lines_of(program.points)):
            if f"{line.framework} {line.vendor}" not in known:
                w[i, len(LAWS) + k] = mean
    return w


def predict(program: Program, found: Served, scatter: Mapping[str, float], *, without: str | None = None) -> Predicted:
    """Times, intervals and energies of a program's points; of chip ``without`` only what its relatives have."""
    w = arguments(program, found, without)
    slopes = program.slopes(w)
    j = (slopes @ found.shifts.onto.T) * found.shifts.sees(lines_of(program.points), without=without)
    variance = np.einsum("ni,ij,nj->n", j, found.covariance, j) + unseen(found.shifts, program, slopes, without)
    models = {key.split("|")[1] for key in scatter if "|" in key}
    half = np.empty(len(program.points))
    model = program.points.model.name
    flight = in_flight(program.points.load, program.points.mapping)
    for i, (chip, framework) in enumerate(zip(program.points.chips, program.points.frameworks, strict=True)):
        key = next(k for k in strata(chip, model, framework, flight[i]) if k in scatter)
        half[i] = scatter[key]
        if model not in models:
            half[i] = max(half[i], scatter.get(NEW_MODEL, 0.0))
        if chip == without or chip not in scatter:
            half[i] = max(half[i], scatter.get(NEW_CHIP, 0.0))
    board, rate, lacks = program.watts(w)
    machine = program.points.machine
    watts = found.power.board(board, np.asarray(machine.static_power), np.asarray(machine.power_limit))
    half = np.sqrt(half**2 + Z90**2 * variance)
    return Predicted(program.points, np.exp(program.predict(w)), half, watts / rate, limits_of(w, slopes), lacks)


def scatter_of(programs: Sequence[Program], found: Served) -> dict[str, float]:
    """Half width of 90 % of what is left between fit and measurement, by stratum, of the lines that were fitted."""
    errors: dict[str, list[float]] = {}
    for p in programs:
        left = np.abs(p.predict(arguments(p, found)) - np.log(p.points.tpot))
        flight = in_flight(p.points.load, p.points.mapping)
        for i in np.flatnonzero((p.points.splits == "fit") & np.isfinite(left)):
            for key in strata(p.points.chips[i], p.points.model.name, p.points.frameworks[i], flight[i]):
                errors.setdefault(key, []).append(float(left[i]))
    return {k: float(np.quantile(v, HELD)) for k, v in errors.items() if len(v) >= FEWEST or not k}


@dataclass(frozen=True)
class Out:
    """A chip, a model, or both that a fit is not shown; as the catalog has them.

    Attributes:
        chip, model: None where all are shown.
    """

    chip: str | None = None
    model: str | None = None

    @property
    def by(self) -> str:
        """``chip`` | ``model`` | ``chip and model``."""
        return " and ".join(kind for kind in ("chip", "model") if getattr(self, kind) is not None)

    @property
    def name(self) -> str:
        """Of what is left out."""
        return " ".join(name for name in (self.chip, self.model) if name is not None)

    def _of(self, points: Points) -> list[np.ndarray]:
        """For each of the two that is left out, which points it has, (n,)."""
        found = [] if self.chip is None else [points.chips == self.chip]
        return found if self.model is None else [*found, np.full(len(points), points.model.name == self.model)]

    def shown(self, points: Points) -> np.ndarray:
        """Points that have none of them, (n,): what is fitted."""
        return ~np.any(self._of(points), axis=0)

    def predicted(self, points: Points) -> np.ndarray:
        """Points that have all of them, (n,): what is predicted."""
        return np.all(self._of(points), axis=0)


@dataclass(frozen=True)
class LeftOut:
    """Errors of points whose chip, model or both were left out of the fit.

    Attributes:
        out: what was.
        fit: to the others.
        log_ratio: predicted over measured, (n,).
        held_back: whether a point is not of split ``fit``, (n,).
    """

    out: Out
    fit: Served
    log_ratio: np.ndarray
    held_back: np.ndarray

    def scatter(self) -> float:
        """Half width of what holds `HELD` of its points of split ``fit``, of all where there are none [log]."""
        errors = np.abs(self.log_ratio)
        return float(np.quantile(errors if self.held_back.all() else errors[~self.held_back], HELD))

    def half(self, programs: Sequence[Program], scatter: Mapping[str, float]) -> np.ndarray:
        """Half widths of the intervals of its points, (n,), as of a chip or a model that no fit has seen.

        Args:
            programs: as in `leave_out`.
            scatter: of the whole fit; strata of what was left out are not looked at.
        """
        wider = scatter_without(scatter, self.out)
        halves = []
        for p in programs:
            chosen = self.out.predicted(p.points) & np.isfinite(p.points.tpot)
            if chosen.any():
                halves.append(predict(p, self.fit, wider, without=self.out.chip).half[chosen])
        return np.concatenate(halves)


def scatter_without(scatter: Mapping[str, float], out: Out) -> dict[str, float]:
    """Scatter of the strata that have nothing of what is left out."""
    return {k: v for k, v in scatter.items() if not {out.chip, out.model} & set(k.split("|"))}


def leave_out(programs: Sequence[Program], out: Out) -> LeftOut:
    """Fit anew without a chip, a model or both and predict the points of it, or of the two together.

    The fit starts from the priors: one that starts from the whole fit has seen what it leaves out.

    Args:
        programs: all points.
        out: what is left out.
    """
    again = fit(programs, keep=out.shown)
    ratios, held_back = [], []
    for p in programs:
        chosen = out.predicted(p.points) & np.isfinite(p.points.tpot)
        if chosen.any():
            w = arguments(p, again, out.chip)
            ratios.append((p.predict(w) - np.log(p.points.tpot))[chosen])
            held_back.append(p.points.splits[chosen] != "fit")
    return LeftOut(out, again, np.concatenate(ratios), np.concatenate(held_back).astype(bool))


def summary(log_ratio: np.ndarray, half: np.ndarray | None = None) -> dict[str, Any]:
    """Count, median, mean and 90th percentile of the absolute relative error, median error, coverage, half width."""
    ratio = np.exp(log_ratio)
    error = np.abs(ratio - 1.0)
    found: dict[str, Any] = {
        "n": len(ratio), "median_ape": float(np.median(error)), "mean_ape": float(error.mean()),
        "p90_ape": float(np.quantile(error, 0.9)), "bias": float(np.median(ratio - 1.0)),
    }  # fmt: skip
    if half is not None:
        found["coverage_90"] = float(np.mean(np.abs(log_ratio) <= half))
        found["median_half_width"] = float(np.median(np.expm1(half)))
    return found
