r"""The hierarchical fit to serving points: most probable shifts under robust errors in log TPOT, and their covariance.

As `codesign.calibration.fit`, in log TPOT:
:math:`\sum_i \rho((\ln t_i - \ln \hat t_i)/\sigma) + \sum_j ((\theta_j - \mu_j)/s_j)^2/2`, minimised by the method
of Levenberg and Marquardt with the pseudo-Huber :math:`\rho`; Laplace's covariance at the optimum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from codesign.calibration.serving.points import Points
from codesign.calibration.serving.program import Program, lines_of
from codesign.calibration.serving.terms import Shifts, shifts_of
from codesign.errors import CodesignError
from codesign.objective.serve import board_in_server

#: Residuals beyond so many standard deviations count linearly.
DELTA = 1.5

#: Scatter that the fit expects, in log time: the same configuration on another framework differs by 12 % in the median.
SIGMA = 0.1

#: A step that gains less than this share of the cost is tried again with these dampings before the solver stops: at a
#: kink (a lane that begins to bind) the undamped step leads nowhere and a short one goes on.
ENOUGH = 1e-5
AGAIN = (0.1, 1.0, 10.0)


class Power(NamedTuple):
    """What boards draw in a server: ``max(static, awake limit) + effort x dynamic``, two numbers for all chips.

    Attributes:
        awake: share of the limit of a busy board.
        effort: dynamic energy over that of the work alone.
    """

    awake: float = 0.0
    effort: float = 1.0

    def board(self, drawn: np.ndarray, static: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Watts of boards that would draw ``drawn`` by static power and the work's energy alone."""
        return np.asarray(board_in_server(drawn, static, limit, self.awake, self.effort))


#: The work's energy alone.
ALONE = Power()

#: Deviations of what was not fitted.
UNKNOWN = Power(np.nan, np.nan)


@dataclass(frozen=True)
class Served:
    """A fit.

    Attributes:
        shifts: which numbers.
        theta: their values, (n,).
        covariance: (n, n).
        power: of boards in a server.
        power_deviation: standard deviations of its numbers, NaN where none were fitted.
    """

    shifts: Shifts
    theta: np.ndarray
    covariance: np.ndarray
    power: Power = ALONE
    power_deviation: Power = UNKNOWN


def _loss(z: np.ndarray) -> float:
    return float(np.sum(DELTA**2 * (np.sqrt(1.0 + (z / DELTA) ** 2) - 1.0)))


def fit(
    programs: Sequence[Program],
    *,
    keep: Callable[[Points], np.ndarray] | None = None,
    start: Served | None = None,
    steps: int = 60,
) -> Served:
    """Fit all shifts and overheads.

    Args:
        programs: compiled points, by model.
        keep: which lines to fit, (n,) of bool per program; those of split ``fit`` where not given.
        start: a fit with the same numbers to start from.
        steps: most steps of the solver.

    Raises:
        CodesignError: there is nothing to fit.
    """
    kept = [(p.points.splits == "fit") & np.isfinite(p.points.tpot) for p in programs]
    if keep is not None:
        kept = [k & keep(p.points) for k, p in zip(kept, programs, strict=True)]
    if not sum(int(k.sum()) for k in kept):
        raise CodesignError("no lines to fit", key="split", allowed="lines with split = fit")
    shown = (lines_of(p.points.take(k)) for p, k in zip(programs, kept, strict=True))
    shifts = shifts_of(chain.from_iterable(shown))  # what no line tells anything of has no number
    onto, sees = shifts.onto, [shifts.sees(lines_of(p.points)) for p in programs]
    measured = [np.log(p.points.tpot) for p in programs]
    theta = shifts.mean.copy() if start is None else start.theta.copy()

    def residuals(theta: np.ndarray) -> list[np.ndarray]:
        return [
            (p.predict(p.base + (s * theta) @ onto) - m)[k] / SIGMA
            for p, s, m, k in zip(programs, sees, measured, kept, strict=True)
        ]

    def cost(theta: np.ndarray, z: Sequence[np.ndarray]) -> float:
        return 0.5 * float(np.sum(((theta - shifts.mean) / shifts.spread) ** 2)) + sum(map(_loss, z))

    def curvature(theta: np.ndarray, z: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        information = np.diag(shifts.spread**-2.0)
        gradient = (theta - shifts.mean) / shifts.spread**2
        for p, s, k, r in zip(programs, sees, kept, z, strict=True):
            if not k.any():
                continue
            slopes = p.slopes(p.base + (s * theta) @ onto)
            j = ((slopes @ onto.T) * s)[k] / SIGMA
            weight = 1.0 / np.sqrt(1.0 + (r / DELTA) ** 2)
            gradient += j.T @ (weight * r)
            information += j.T @ (weight[:, None] * j)
        return information, gradient

    z = residuals(theta)
    least, damping, idle = cost(theta, z), 1.0, 0
    for _ in range(steps):
        information, gradient = curvature(theta, z)
        gained = 0.0
        while damping < 1e8:
            step = -np.linalg.solve(information + damping * np.diag(np.diag(information)), gradient)
            tried = theta + np.clip(step, -1.0, 1.0)
            found = residuals(tried)
            if (value := cost(tried, found)) < least:
                gained, theta, z, least, damping = least - value, tried, found, value, max(damping / 6.0, 1e-8)
                break
            damping *= 4.0
        idle = idle + 1 if gained <= ENOUGH * least else 0
        if idle > len(AGAIN):
            break
        damping = AGAIN[idle - 1] if idle else damping
    return Served(shifts, theta, np.linalg.inv(curvature(theta, z)[0]))


def with_power(
    programs: Sequence[Program], found: Served, *, keep: Callable[[Points], np.ndarray] | None = None
) -> Served:
    """The fit with board power fitted to measured board energy per output token of split ``fit``, robustly in its log.

    Deviations are those of least squares at the optimum, with the scatter of its residuals (1.48 times their median).
    Where no energy was measured the work alone counts.

    Args:
        programs: all points.
        found: the fit of their times.
        keep: which lines to fit besides, as in `fit`.
    """
    drawn, static, limit, rate, joules = [], [], [], [], []
    for p in programs:
        kept = (p.points.splits == "fit") & np.isfinite(p.points.joules)
        kept = kept if keep is None else kept & keep(p.points)
        if not kept.any():
            continue
        board, tokens, _ = p.watts(p.arguments(found.shifts, found.theta))
        machine = p.points.machine
        for column, values in zip(
            (drawn, static, limit, rate, joules),
            (board, machine.static_power, machine.power_limit, tokens, p.points.joules),
            strict=True,
        ):
            column.append(np.asarray(values)[kept])
    if not drawn:
        return replace(found, power=ALONE, power_deviation=UNKNOWN)
    columns = [np.concatenate(c) for c in (drawn, static, limit, rate, joules)]

    def errors(x: np.ndarray) -> np.ndarray:
        watts = Power(*x).board(*columns[:3])
        return np.log(watts / columns[3] / columns[4])

    from scipy.optimize import least_squares

    best = least_squares(errors, [0.2, 1.5], bounds=([0.0, 1.0], [0.9, 5.0]), loss="soft_l1", f_scale=0.15)
    sigma = 1.4826 * float(np.median(np.abs(errors(best.x))))
    spread = sigma * np.sqrt(np.diag(np.linalg.pinv(best.jac.T @ best.jac)))
    return replace(found, power=Power(*(float(x) for x in best.x)), power_deviation=Power(*(float(x) for x in spread)))
