"""Predicted seconds of placed lines as a function of the fitted numbers, and their derivatives by forward mode."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from codesign.calibration.constants import LAWS, Terms, generation_of, read
from codesign.calibration.tables.base import SETUPS, Sample
from codesign.execution import execution_from, time_of
from codesign.lanes import Number, Row
from codesign.machine import Machine


class Lines(eqx.Module):
    """A sample as compiled functions take it.

    Attributes:
        rows, setups, machine: as in `Sample`, leaves (n,) or Python zeros.
        matrices: (groups, laws, terms), which numbers each group of lines sees; ``group`` the group of each line, (n,).
        member: (groups, terms), whether a number is seen; ``law`` the constant that each number shifts, (terms,).
        chosen: constants that are not fitted.
    """

    rows: tuple[Row, ...]
    setups: tuple[dict[str, Any], ...]
    machine: Machine
    matrices: Any
    group: Any
    member: Any
    law: Any
    chosen: dict[str, float]


def lines_of(sample: Sample, terms: Terms, *, without: str | None = None) -> Lines:
    """A sample and the numbers that its lines see; of chip ``without`` only what its relatives share."""
    found: dict[tuple, int] = {}
    keys = zip(sample.chips, sample.kernels, strict=True)
    group = np.array([found.setdefault(key, len(found)) for key in keys])
    matrices = np.stack([terms.matrix(None if c == without else c, k, generation_of(c)) for c, k in found])
    names = [law.name for law in LAWS]
    return Lines(
        rows=sample.rows,
        setups=sample.setups,
        machine=sample.machine,
        matrices=matrices,
        group=group,
        member=matrices.sum(axis=1),
        law=np.array([names.index(t.law) for t in terms.terms]),
        chosen=terms.chosen,
    )


def _log_seconds(u: Any, lines: Lines) -> Number:
    """Log seconds of lines whose constants have the given u, (n, laws)."""
    constants = read(u)
    execution = execution_from(lambda name: constants[name] if name in constants else lines.chosen[name])
    total: Number = 0.0
    for row, setup in zip(lines.rows, lines.setups, strict=True):
        software = sum(setup[s] * getattr(execution, s) for s in SETUPS)
        total = total + time_of(row._replace(latency=row.latency + software), lines.machine, execution).time
    return jnp.log(total)


def _u(theta: Any, lines: Lines) -> Any:
    return (jnp.asarray(lines.matrices) @ theta)[lines.group]


def slopes(theta: Any, lines: Lines) -> Any:
    """Derivative of log seconds by the u of each constant, (n, laws).

    A line's time depends on its own constants only, so one push forward per constant is the whole Jacobian.
    """
    u = _u(theta, lines)
    push = lambda v: jax.jvp(lambda x: _log_seconds(x, lines), (u,), (jnp.broadcast_to(v, u.shape),))[1]  # noqa: E731
    return jax.vmap(push, out_axes=1)(jnp.eye(u.shape[-1]))


def jacobian(theta: Any, lines: Lines) -> Any:
    """Derivative of log seconds by every fitted number, (n, terms)."""
    return slopes(theta, lines)[:, lines.law] * jnp.asarray(lines.member)[lines.group]


@eqx.filter_custom_jvp
def log_seconds(theta: Any, lines: Lines) -> Any:
    """Predicted log seconds, (n,)."""
    return _log_seconds(_u(theta, lines), lines)


@log_seconds.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    # The Jacobian is formed once, however many directions the solver asks for.
    return log_seconds(*primals), jacobian(*primals) @ tangents[0]


_VALUE, _JACOBIAN, _SLOPES = eqx.filter_jit(log_seconds), eqx.filter_jit(jacobian), eqx.filter_jit(slopes)


class Program:
    """The compiled functions of one sample."""

    def __init__(self, sample: Sample, terms: Terms, *, without: str | None = None) -> None:
        self.sample, self.terms = sample, terms
        self.lines = lines_of(sample, terms, without=without)
        self.log_measured = np.log(sample.seconds)

    def predict(self, theta: np.ndarray) -> np.ndarray:
        """Log seconds, (n,)."""
        return np.asarray(_VALUE(theta, self.lines))

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Derivative of log seconds by every fitted number, (n, terms)."""
        return np.asarray(_JACOBIAN(theta, self.lines))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Derivative of log seconds by the u of each constant, (n, laws)."""
        return np.asarray(_SLOPES(theta, self.lines))
