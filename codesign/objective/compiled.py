"""Compiled calls over points, each with its own machine, mapping, load and target: one compilation per model.

Points are processed in blocks of one fixed shape: XLA's last bits change with the batch shape, and only so are results
the same whether a study was interrupted, resumed or distributed.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.execution import Execution
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.batch import Batch, largest_batch
from codesign.objective.decode import Decode, Load, decode
from codesign.objective.gradient import Scored, scored
from codesign.precision import Precision

#: Points per compiled call of the searches, and of plain evaluations, which come by the thousand.
BLOCK = 64
WIDE = 1024


def leaves(tree: Any) -> Any:
    """Every number of a pytree as a float64 array, so that Python floats do not compile anew."""
    return jax.tree.map(lambda x: np.asarray(x, dtype=float), tree)


def _law(load: Load, uniform: bool) -> Load:
    """The load with uniform routing known when the program is traced: the skewed law costs several times as much."""
    return eqx.tree_at(lambda x: x.skew, load, 0.0) if uniform else load


@partial(jax.jit, static_argnums=(0, 1))
def _solve(model: Model, uniform: bool, execution, precision, machine, mapping, load, tpot, least, most) -> Batch:
    def one(machine, mapping, load, tpot, least, most) -> Batch:
        load = _law(load, uniform)
        return largest_batch(model, machine, execution, precision, mapping, load, tpot, least, most)

    return jax.vmap(one)(machine, mapping, load, tpot, least, most)


@partial(jax.jit, static_argnums=(0, 1))
def _decode(model: Model, uniform: bool, execution, precision, machine, mapping, load) -> Decode:
    def one(machine, mapping, load) -> Decode:
        return decode(model, machine, execution, precision, mapping, _law(load, uniform))

    return jax.vmap(one)(machine, mapping, load)


@partial(jax.jit, static_argnums=(0, 1))
def _score(model: Model, uniform: bool, execution, precision, machine, mapping, load, found) -> Scored:
    def one(machine, mapping, load, found) -> Scored:
        return scored(model, machine, execution, precision, mapping, _law(load, uniform), found)

    return jax.vmap(one)(machine, mapping, load, found)


def _by_block(
    function: Any, model: Model, execution: Execution, precision: Precision, points: tuple, block: int = BLOCK
) -> Any:
    """Call block by block on padded points and join, as numpy arrays over the points.

    ``points`` is (machine, mapping, load, ...), each leaf scalar or (n,).
    """
    n = len(np.asarray(points[1].pp))
    uniform = not np.any(np.asarray(points[2].skew))
    size = -(-n // block) * block

    def widen(x: Any) -> np.ndarray:
        x = np.asarray(x, dtype=float)
        if x.ndim == 0:
            return np.broadcast_to(x, (size,))
        return np.concatenate([x, np.repeat(x[-1:], size - n, axis=0)]) if size > n else x

    columns, shape = jax.tree.flatten(points)
    columns = [widen(x) for x in columns]
    fixed = leaves((execution, precision))
    parts = []
    for start in range(0, size, block):
        here = jax.tree.unflatten(shape, [x[start : start + block] for x in columns])
        parts.append(jax.tree.flatten(function(model, uniform, *fixed, *here)))
    joined = [np.concatenate([np.asarray(x) for x in xs])[:n] for xs in zip(*(p[0] for p in parts), strict=True)]
    return jax.tree.unflatten(parts[0][1], joined)


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
    return _by_block(_solve, model, execution, precision, (machine, mapping, load, tpot, least, most))


def decode_points(
    model: Model, execution: Execution, precision: Precision, machine: Any, mapping: Mapping, load: Load
) -> Decode:
    """Each point at its own load; arguments as in `solve_points`."""
    return _by_block(_decode, model, execution, precision, (machine, mapping, load), WIDE)


def score_points(
    model: Model, execution: Execution, precision: Precision, machine: Any, mapping: Mapping, load: Load, tpot: Any
) -> Scored:
    """Score and derivatives at each point; arguments as in `solve_points`."""
    found = solve_points(model, execution, precision, machine, mapping, load, tpot)
    return _by_block(_score, model, execution, precision, (machine, mapping, load, found))
