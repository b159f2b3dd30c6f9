r"""Predicted times of placed lines with their intervals.

The log of a time has variance :math:`g^T \Sigma g + s^2`: g its derivative by the fitted numbers, taken by forward
mode, Sigma the covariance of the fit, and s the scatter about the fit of lines of its stratum: operation and system,
by predicted time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from codesign.calibration.constants import LAWS, generation_of
from codesign.calibration.fit import Fit
from codesign.calibration.model import Program
from codesign.calibration.tables.base import Sample

#: Standard deviations of a normal distribution that hold 90 %.
Z90 = 1.6448536269514722

#: Lines are told apart by the quantiles of predicted time between which they lie.
QUANTILES = (1 / 3, 2 / 3)

#: Share of the fitted lines that the scatter holds.  Errors of one stratum are near normal, whose 90 % lie within 2.4
#: times their median: the share is set below 0.9 so that intervals stay near twice the median error.
HELD = 0.85

#: Fewest lines from which a scatter is taken.
FEWEST = 12


@dataclass(frozen=True)
class Scatter:
    """What is left between fit and measurement, as the half width of 90 % of the log ratios.

    Attributes:
        edges: by stratum, predicted log seconds between its parts.
        half: by stratum and part; the part -1 holds all.
    """

    edges: dict[str, list[float]] = field(default_factory=dict)
    half: dict[str, dict[int, float]] = field(default_factory=dict)

    def of(self, strata: Sequence[tuple[str, ...]], log_seconds: np.ndarray) -> np.ndarray:
        """Half width for lines given by their strata, finest first; the coarsest there is where none is known."""
        fallback = max((h[-1] for h in self.half.values()), default=np.log(2.0))
        out = np.empty(len(log_seconds))
        for i, (keys, value) in enumerate(zip(strata, log_seconds, strict=True)):
            key = next((k for k in keys if k in self.half), None)
            if key is None:
                out[i] = fallback
                continue
            part = int(np.searchsorted(self.edges.get(key, []), value))
            out[i] = self.half[key].get(part, self.half[key][-1])
        return out


def strata_of(sample: Sample) -> list[tuple[str, ...]]:
    """Strata of each line, finest first."""
    return [
        (f"{sample.kind.name}|{o}|{s}", f"{sample.kind.name}|{o}", sample.kind.name)
        for o, s in zip(sample.operations, sample.systems, strict=True)
    ]


def scatter_of(samples: Sequence[Sample], fit: Fit) -> Scatter:
    """Scatter of the lines that were fitted, about the fit."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        program = Program(sample, fit.terms)
        predicted = program.predict(fit.theta)
        for keys, p, e in zip(strata_of(sample), predicted, np.abs(predicted - program.log_measured), strict=True):
            for key in keys:
                lines.setdefault(key, []).append((float(p), float(e)))
    found = Scatter()
    for key, pairs in lines.items():
        p, e = np.array(pairs).T
        if len(e) < FEWEST and key.count("|"):
            continue
        found.half[key] = {-1: float(np.quantile(e, HELD))}
        edges = [float(x) for x in np.quantile(p, QUANTILES)]
        parts = np.searchsorted(edges, p)
        if min((parts == k).sum() for k in range(len(QUANTILES) + 1)) >= FEWEST:
            found.edges[key] = edges
            found.half[key] |= {k: float(np.quantile(e[parts == k], HELD)) for k in range(len(QUANTILES) + 1)}
    return found


@dataclass(frozen=True)
class Predicted:
    """Predictions of one sample.

    Attributes:
        sample: the lines.
        seconds: predicted, (n,).
        half: half width of the 90 % interval in log time, (n,).
    """

    sample: Sample
    seconds: np.ndarray
    half: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """Predicted over measured, less one."""
        return self.seconds / self.sample.seconds - 1.0

    @property
    def covered(self) -> np.ndarray:
        """Whether the measured time lies inside the interval."""
        return np.abs(np.log(self.seconds / self.sample.seconds)) <= self.half


def predict(sample: Sample, fit: Fit, scatter: Scatter, *, without: str | None = None) -> Predicted:
    """Times and intervals of a sample's lines; of chip ``without`` only what its relatives have."""
    program = Program(sample, fit.terms, without=without)
    log_seconds = program.predict(fit.theta)
    gradient = program.jacobian(fit.theta)
    variance = np.einsum("ni,ij,nj->n", gradient, fit.covariance, gradient)
    if without is not None:  # what a relative may differ by
        variance = variance + unknown_chip(program, fit)
    half = np.sqrt(scatter.of(strata_of(sample), log_seconds) ** 2 + Z90**2 * variance)
    return Predicted(sample, np.exp(log_seconds), half)


def unknown_chip(program: Program, fit: Fit) -> np.ndarray:
    """Variance that the terms of chips without measurements add to log times, by their prior, (n,)."""
    slopes = program.slopes(fit.theta) ** 2
    return np.array([s @ _unknown(c, fit) for s, c in zip(slopes, program.sample.chips, strict=True)])


def _unknown(chip: str, fit: Fit) -> np.ndarray:
    """Variance of each constant's u that a chip without measurements adds, and its generation where that has none."""
    known = generation_of(chip) in {t.owner for t in fit.terms.terms if t.level == "generation"}
    return np.array([law.chip**2 + (0.0 if known else law.generation**2) for law in LAWS])
