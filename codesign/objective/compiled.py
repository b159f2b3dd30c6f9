"""Compiled calls over points, each with its own machine, mapping, load and target: one compilation per model.

Points are processed in blocks of one fixed shape: XLA's last bits change with the batch shape, and only so are results
the same whether a study was interrupted, resumed or distributed.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from codesign.execution import Execution
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.batch import Batch, largest_batch
from codesign.objective.gradient import Scored, scored
from codesign.objective.metrics import Load, Metrics
from codesign.objective.phases import DECODE, Phase
from codesign.precision import Precision

#: Points per compiled call of the searches, and of plain evaluations, which come by the thousand.
BLOCK = 64
WIDE = 1024

#: Directions of one derivative: the variables of a design.
DIRECTIONS = 6


def leaves(tree: Any) -> Any:
    """Every number of a pytree as a float64 array, so that Python floats do not compile anew."""
    return jax.tree.map(lambda x: np.asarray(x, dtype=float), tree)


@lru_cache
def _solving(phase: Phase) -> Callable[..., Batch]:
    """The solver of a regime; one function per regime, since programs are known by their functions."""

    def solve(model: Model, execution, precision, machine, mapping, load, tpot, least, most) -> Batch:
        return largest_batch(model, machine, execution, precision, mapping, load, tpot, least, most, phase=phase)

    return solve


@lru_cache
def _evaluating(phase: Phase) -> Callable[..., Metrics]:
    def evaluate(model: Model, execution, precision, machine, mapping, load) -> Metrics:
        return phase.evaluate(model, machine, execution, precision, mapping, load)

    return evaluate


@lru_cache
def _scoring(phase: Phase) -> Callable[..., Scored]:
    def score(model: Model, execution, precision, machine, mapping, load, found, along) -> Scored:
        return scored(model, machine, execution, precision, mapping, load, found, along, phase)

    return score


def uniform(load: Load) -> Load:
    """The load with uniform routing, known when the program is traced: the skewed law costs several times as much."""
    return eqx.tree_at(lambda x: x.skew, load, 0.0)


def _call(function: Any, model: Model, even: bool, fixed: Any, points: Any) -> Any:
    """One point; ``even`` says that its routing is uniform."""
    machine, mapping, load, *others = points
    return function(model, *fixed, machine, mapping, uniform(load) if even else load, *others)


def _point(function, model, even, fixed_tree, tree, fixed, leaves, arrays) -> Any:
    """One point from its flat numbers; ``arrays`` are its stage table and whatever else is not a scalar."""
    machine, mapping, *others = jax.tree.unflatten(tree, leaves)
    mapping = eqx.tree_at(lambda m: m.stages, mapping, arrays[0])
    points = (machine, mapping, *others, *arrays[1:])
    return _call(function, model, even, jax.tree.unflatten(fixed_tree, fixed), points)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _packed(function, model, even, fixed_tree, tree, fixed, scalars, arrays):
    """A block of points; every number of theirs comes as a row of one matrix, and so do the results.

    A call with a hundred small arrays spends more time handing them over than computing.
    """

    def one(column: jax.Array, arrays: tuple) -> list:
        found = _point(function, model, even, fixed_tree, tree, list(fixed), list(column), arrays)
        leaves, structure = jax.tree.flatten(found)
        _RESULTS[function, model, even, fixed_tree, tree] = structure, tuple(jnp.ndim(x) == 0 for x in leaves)
        return leaves

    leaves = jax.vmap(one, in_axes=(1, 0))(scalars, arrays)
    return jnp.stack([x for x in leaves if x.ndim == 1]), [x for x in leaves if x.ndim > 1]


#: Structure of one point's result and which of its leaves are scalars, by program; noted while it is traced.
_RESULTS: dict[tuple, tuple[Any, tuple[bool, ...]]] = {}


def _by_block(
    function: Any,
    model: Model,
    execution: Execution,
    precision: Precision,
    points: tuple,
    *more: np.ndarray,
    block: int = BLOCK,
) -> Any:
    """Call block by block on padded points and join, as numpy arrays over the points.

    Args:
        points: (machine, mapping, load, ...), each leaf scalar or (n,).
        more: further arrays of a point, (n, ...).
    """
    arrays = [np.asarray(points[1].stages, dtype=float), *more]
    n = len(arrays[0])
    even = not np.any(np.asarray(points[2].skew))
    size = -(-n // block) * block
    mapping = eqx.tree_at(lambda m: m.stages, points[1], 0.0)
    numbers, tree = jax.tree.flatten((points[0], mapping, *points[2:]))
    constants, fixed_tree = jax.tree.flatten((execution, precision))
    scalars = np.empty((len(numbers), size))
    for row, x in zip(scalars, numbers, strict=True):
        row[:n] = x
    scalars[:, n:] = scalars[:, n - 1 : n]
    if size > n:
        arrays = [np.concatenate([a, np.repeat(a[-1:], size - n, axis=0)]) for a in arrays]
    fixed = np.array([float(x) for x in constants])
    rows, others = [], []
    for i in range(0, size, block):
        here = slice(i, i + block)
        row, other = _packed(
            function, model, even, fixed_tree, tree, fixed, scalars[:, here], tuple(a[here] for a in arrays)
        )
        rows.append(np.asarray(row))
        others.append([np.asarray(x) for x in other])
    structure, scalar = _RESULTS[function, model, even, fixed_tree, tree]
    of_rows = iter(np.concatenate(rows, axis=1)[:, :n])
    of_others = iter([np.concatenate(x)[:n] for x in zip(*others, strict=True)])
    return jax.tree.unflatten(structure, [next(of_rows if flat else of_others) for flat in scalar])


def solve_points(
    model: Model,
    execution: Execution,
    precision: Precision,
    machine: Any,
    mapping: Mapping,
    load: Load,
    tpot: Any,
    least: Any = 1.0,
    most: Any = np.inf,
    phase: Phase = DECODE,
) -> Any:  # `Batch` of numpy arrays
    """The largest admissible batch at each point.

    Args:
        model: structure (static).
        execution, precision: shared by all points.
        machine, load, tpot, least, most: leaves scalar or (n,).
        mapping: stacked, leaves (n, ...).
        phase: regime.

    Returns:
        `Batch` of numpy arrays, (n,).
    """
    return _by_block(_solving(phase), model, execution, precision, (machine, mapping, load, tpot, least, most))


def evaluate_points(
    model: Model,
    execution: Execution,
    precision: Precision,
    machine: Any,
    mapping: Mapping,
    load: Load,
    phase: Phase = DECODE,
) -> Any:  # `Metrics` of numpy arrays
    """Each point at its own load; arguments as in `solve_points`."""
    return _by_block(_evaluating(phase), model, execution, precision, (machine, mapping, load), block=WIDE)


def score_points(
    model: Model,
    execution: Execution,
    precision: Precision,
    machine: Any,
    mapping: Mapping,
    load: Load,
    tpot: Any,
    along: np.ndarray,
    phase: Phase = DECODE,
) -> Any:  # `Scored` of numpy arrays
    """Score at each point and its derivatives along directions; arguments as in `solve_points`.

    Args:
        along: (n, fields of `Machine`, `DIRECTIONS` at most): change of each field along each direction.
    """
    found = solve_points(model, execution, precision, machine, mapping, load, tpot, phase=phase)
    n, fields, count = along.shape
    if count < DIRECTIONS:
        along = np.concatenate([along, np.zeros((n, fields, DIRECTIONS - count))], axis=2)
    scored = _by_block(_scoring(phase), model, execution, precision, (machine, mapping, load, found), along)
    return scored._replace(slopes=scored.slopes[:, :count])


def elasticities(
    model: Model, execution: Execution, precision: Precision, machine: Machine, mapping: Mapping, load: Load, tpot: Any
) -> dict[str, float]:
    """Relative change of tokens per megawatt by relative change of each number of one machine, the batch following.

    Args:
        mapping: a stack of one; the others as in `score_points`.
    """
    names = [f.name for f in fields(machine)]
    values = np.array([float(np.asarray(getattr(machine, name))) for name in names])
    found: dict[str, float] = {}
    for i in range(0, len(names), DIRECTIONS):
        along = np.zeros((1, len(names), DIRECTIONS))
        for k, j in enumerate(range(i, min(i + DIRECTIONS, len(names)))):
            along[0, j, k] = values[j]
        s = score_points(model, execution, precision, machine, mapping, load, tpot, along)
        found |= {name: float(slope) for name, slope in zip(names[i : i + DIRECTIONS], s.slopes[0], strict=False)}
    return found
