r"""The hierarchical fit: most probable numbers under robust errors in log time, and their covariance.

Minimised is :math:`\sum_i \rho((\ln t_i - \ln \hat t_i)/\sigma) + \sum_j ((\theta_j - \mu_j)/s_j)^2/2` by Levenberg
and Marquardt, with the pseudo-Huber :math:`\rho(z) = \delta^2(\sqrt{1 + (z/\delta)^2} - 1)` and one expected scatter
sigma.  The covariance is Laplace's: the inverse of the Gauss-Newton matrix at the optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codesign.calibration.constants import Terms, published, terms_of
from codesign.calibration.model import Program, log_seconds
from codesign.calibration.tables.base import Sample
from codesign.errors import CodesignError

#: Residuals beyond so many standard deviations count linearly.
DELTA = 1.5

#: Scatter that the fit expects, in log time.
SIGMA = 0.12


@dataclass(frozen=True)
class Fit:
    """A fit.

    Attributes:
        terms: which numbers.
        theta: their values, (n,).
        covariance: (n, n).
        steps: of the solver.
    """

    terms: Terms
    theta: np.ndarray
    covariance: np.ndarray
    steps: int


def subset(sample: Sample, keep: np.ndarray) -> Sample:
    """Some lines of a sample."""

    def cut(x: Any) -> Any:
        return x[keep] if isinstance(x, np.ndarray) else x

    chosen = np.arange(len(sample))[keep]
    return replace(
        sample,
        lines=sample.lines[keep], systems=sample.systems[keep], operations=sample.operations[keep],
        splits=sample.splits[keep], chips=tuple(sample.chips[i] for i in chosen),
        kernels=tuple(sample.kernels[i] for i in chosen), machine=jax.tree.map(cut, sample.machine),
        rows=tuple(row._replace(**{f: cut(v) for f, v in row._asdict().items()}) for row in sample.rows),
        setups=tuple({k: cut(v) for k, v in s.items()} for s in sample.setups), seconds=sample.seconds[keep],
    )  # fmt: skip


def fitted_lines(samples: Sequence[Sample], without: str | None = None) -> list[Sample]:
    """The lines to fit: split ``fit``, and not of the chip left out."""
    found = [subset(s, (s.splits == "fit") & (np.array(s.chips) != without)) for s in samples]
    return [s for s in found if len(s)]


def _robust(z: Any) -> Any:
    """Residual whose square is twice the pseudo-Huber loss."""
    root = jnp.sqrt(1.0 + (z / DELTA) ** 2)
    return z * jnp.sqrt(2.0 / (1.0 + root))


def fit(samples: Sequence[Sample], *, without: str | None = None, steps: int = 100, workspace: Any = None) -> Fit:
    """Fit all numbers to the lines of split ``fit``.

    Args:
        samples: placed tables.
        without: a chip to leave out.
        steps: most steps of the solver.
        workspace: where the published estimates are looked up first.

    Raises:
        CodesignError: there is nothing to fit.
    """
    used = fitted_lines(samples, without)
    if not used:
        raise CodesignError("no lines to fit", key="split", allowed="lines with split = fit")
    chips = {c for s in used for c in s.chips}
    kernels = {k for s in used for ks in s.kernels for k in ks}
    terms = terms_of(published(workspace), chips, kernels)
    programs = [Program(s, terms) for s in used]
    data = [(p.lines, p.log_measured) for p in programs]
    mean, spread = terms.mean, terms.spread

    def residuals(theta: Any, data: Any) -> Any:
        told = [_robust((log_seconds(theta, lines) - measured) / SIGMA) for lines, measured in data]
        return jnp.concatenate([*told, (theta - mean) / spread])

    import lineax
    import optimistix

    linear = lineax.Normal(lineax.Cholesky())
    solver = optimistix.LevenbergMarquardt(rtol=1e-3, atol=1e-3, linear_solver=linear)
    found = optimistix.least_squares(residuals, solver, jnp.asarray(mean), args=data, max_steps=steps, throw=False)
    theta = np.asarray(found.value)
    return Fit(terms, theta, covariance(programs, terms, theta), int(found.stats["num_steps"]))


def covariance(programs: Sequence[Program], terms: Terms, theta: np.ndarray) -> np.ndarray:
    """Inverse of the Gauss-Newton matrix, lines weighted as the robust loss curves."""
    information = np.diag(terms.spread**-2.0)
    for p in programs:
        z = (p.predict(theta) - p.log_measured) / SIGMA
        weight = 1.0 / (SIGMA**2 * np.sqrt(1.0 + (z / DELTA) ** 2))
        j = p.jacobian(theta)
        information += j.T @ (weight[:, None] * j)
    return np.linalg.inv(information)
