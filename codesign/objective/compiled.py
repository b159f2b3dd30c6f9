"""Compiled calls over points, each with its own machine, mapping, load and target: one compilation per model.

Points are processed in blocks of one fixed shape: XLA's last bits change with the batch shape, and only so are results
the same whether a study was interrupted, resumed or distributed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codesign.execution import Execution
from codesign.mapping import Mapping, take
from codesign.model import Model
from codesign.objective.batch import Batch, largest_batch
from codesign.objective.decode import Decode, Load, decode
from codesign.objective.gradient import Scored, scored
from codesign.precision import Precision

#: Points per compiled call.
BLOCK = 256


def leaves(tree: Any) -> Any:
    """Every number of a pytree as a float64 array, so that Python floats do not compile anew."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=float), tree)


@partial(jax.jit, static_argnums=0)
def _solve(model: Model, execution, precision, machine, mapping, load, tpot, least, most) -> Batch:
    def one(machine, mapping, load, tpot, least, most) -> Batch:
        return largest_batch(model, machine, execution, precision, mapping, load, tpot, least, most)

    return jax.vmap(one)(machine, mapping, load, tpot, least, most)


@partial(jax.jit, static_argnums=0)
def _decode(model: Model, execution, precision, machine, mapping, load) -> Decode:
    return jax.vmap(lambda a, m, x: decode(model, a, execution, precision, m, x))(machine, mapping, load)


@partial(jax.jit, static_argnums=0)
def _score(model: Model, execution, precision, machine, mapping, load, found) -> Scored:
    return jax.vmap(lambda a, m, x, f: scored(model, a, execution, precision, m, x, f))(machine, mapping, load, found)


def _by_block(function: Any, model: Model, execution: Execution, precision: Precision, n: int, points: Any) -> Any:
    """Call block by block on padded points and join, as numpy arrays over the points."""
    size = -(-n // BLOCK) * BLOCK

    def widen(x: Any) -> np.ndarray:
        x = np.asarray(x, dtype=float)
        if x.ndim == 0:
            return np.broadcast_to(x, (size,))
        return np.concatenate([x, np.repeat(x[-1:], size - n, axis=0)]) if size > n else x

    points = jax.tree.map(widen, points)
    fixed = leaves((execution, precision))
    parts = [
        jax.tree.map(np.asarray, function(model, *fixed, *take(points, slice(start, start + BLOCK))))
        for start in range(0, size, BLOCK)
    ]
    return jax.tree.map(lambda *xs: np.concatenate(xs)[:n], *parts)


def solve_points(
    model: Model, execution: Execution, precision: Precision, machine: Any, mapping: Mapping, load: Load, tpot: Any,
    least: Any = 1.0, most: Any = np.inf,
) -> Batch:
    """The largest admissible batch at each point.

    Args:
        model: structure (static).
        execution, precision: shared by all points.
        machine, load, tpot, least, most: leaves scalar or (n,).
        mapping: stacked, leaves (n, ...).

    Returns:
        `Batch` of numpy arrays, (n,).
    """
    n = len(np.asarray(mapping.pp))
    return _by_block(_solve, model, execution, precision, n, (machine, mapping, load, tpot, least, most))


def decode_points(
    model: Model, execution: Execution, precision: Precision, machine: Any, mapping: Mapping, load: Load
) -> Decode:
    """Each point at its own load; arguments as in `solve_points`."""
    return _by_block(_decode, model, execution, precision, len(np.asarray(mapping.pp)), (machine, mapping, load))


def score_points(
    model: Model, execution: Execution, precision: Precision, machine: Any, mapping: Mapping, load: Load, tpot: Any
) -> Scored:
    """Score and derivatives at each point; arguments as in `solve_points`."""
    found = solve_points(model, execution, precision, machine, mapping, load, tpot)
    n = len(np.asarray(mapping.pp))
    return _by_block(_score, model, execution, precision, n, (machine, mapping, load, found))
