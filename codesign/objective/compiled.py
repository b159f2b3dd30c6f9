"""Compiled calls over points, each with its own machine, mapping, load and target: one compilation per model.

Points are processed in blocks of one fixed shape: XLA's last bits change with the batch shape, and only so are results
the same whether a study was interrupted, resumed or distributed.
"""

from dataclasses import fields
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
from codesign.programs import begin, run

#: Points per compiled call of the searches, and of plain evaluations, which come by the thousand.
BLOCK = 64
WIDE = 1024

#: Directions of one derivative: the variables of a design.
DIRECTIONS = 6


def leaves(tree: Any) -> Any:
    """Every number of a pytree as a float64 array, so that Python floats do not compile anew."""
    return jax.tree.map(lambda x: np.asarray(x, dtype=float), tree)


def _solve(phase: Phase, model: Model, execution, precision, machine, mapping, load, tpot, least, most) -> Batch:
    return largest_batch(model, machine, execution, precision, mapping, load, tpot, least, most, phase=phase)


def _evaluate(phase: Phase, model: Model, execution, precision, machine, mapping, load) -> Metrics:
    return phase.evaluate(model, machine, execution, precision, mapping, load)


def _score(phase: Phase, model: Model, execution, precision, machine, mapping, load, found, along) -> Scored:
    return scored(model, machine, execution, precision, mapping, load, found, along, phase)


def uniform(load: Load) -> Load:
    """The load with uniform routing, known when the program is traced: the skewed law costs several times as much."""
    return eqx.tree_at(lambda x: x.skew, load, 0.0)


def _packed(function, phase, model, even, fixed_tree, tree, fixed, scalars, arrays) -> tuple[Any, Any]:
    """A block of points; every number of theirs comes as a row of one matrix, and so do the results.

    A call with a hundred small arrays spends more time handing them over than computing.

    Args:
        function, phase, model: what is asked of each point.
        even: routing is uniform.
        fixed_tree, fixed: structure and numbers of what all points share.
        tree, scalars: structure of a point, and its numbers, (numbers, points).
        arrays: a point's stage table and whatever else is not a scalar, (points, ...).

    Returns:
        the results that are scalars, (results, points), and the others; beside them one point's result with its leaves
        counted, and which of these are scalars.
    """
    notes: list[Any] = []

    def one(column: jax.Array, arrays: tuple) -> list:
        machine, mapping, load, *others = jax.tree.unflatten(tree, list(column))
        mapping = eqx.tree_at(lambda m: m.stages, mapping, arrays[0])
        shared = jax.tree.unflatten(fixed_tree, list(fixed))
        load = uniform(load) if even else load
        leaves, structure = jax.tree.flatten(
            function(phase, model, *shared, machine, mapping, load, *others, *arrays[1:])
        )
        counted = jax.tree.unflatten(structure, range(len(leaves)))
        notes.append((counted, tuple(jnp.ndim(x) == 0 for x in leaves)))
        return leaves

    leaves = jax.vmap(one, in_axes=(1, 0))(scalars, arrays)
    return (jnp.stack([x for x in leaves if x.ndim == 1]), [x for x in leaves if x.ndim > 1]), notes[-1]


def _by_block(
    function: Any,
    phase: Phase,
    model: Model,
    execution: Execution,
    precision: Precision,
    points: tuple,
    *more: np.ndarray,
    block: int = BLOCK,
    ahead: bool = False,
) -> Any:
    """Call block by block on padded points and join, as numpy arrays over the points.

    Args:
        points: (machine, mapping, load, ...), each leaf scalar or (n,).
        more: further arrays of a point, (n, ...).
        block: points per call.
        ahead: only have the program made ready in the background.
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
    static = (function, phase, model, even, fixed_tree, tree)
    if ahead:
        begin(_packed, static, fixed, scalars[:, :block], tuple(a[:block] for a in arrays))
        return None
    rows, others, note = [], [], (None, ())
    for i in range(0, size, block):
        here = slice(i, i + block)
        (row, other), note = run(_packed, static, fixed, scalars[:, here], tuple(a[here] for a in arrays))
        rows.append(np.asarray(row))
        others.append([np.asarray(x) for x in other])
    counted, scalar = note
    of_rows = iter(np.concatenate(rows, axis=1)[:, :n])
    of_others = iter([np.concatenate(x)[:n] for x in zip(*others, strict=True)])
    leaves = [next(of_rows if flat else of_others) for flat in scalar]
    return jax.tree.map(lambda i: leaves[i], counted)


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
    return _by_block(_solve, phase, model, execution, precision, (machine, mapping, load, tpot, least, most))


def evaluate_points(
    model: Model,
    execution: Execution,
    precision: Precision,
    machine: Any,
    mapping: Mapping,
    load: Load,
    phase: Phase = DECODE,
    ahead: bool = False,
) -> Any:  # `Metrics` of numpy arrays
    """Each point at its own load; arguments as in `solve_points`, ``ahead`` as in `_by_block`."""
    points = (machine, mapping, load)
    return _by_block(_evaluate, phase, model, execution, precision, points, block=WIDE, ahead=ahead)


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
    scored = _by_block(_score, phase, model, execution, precision, (machine, mapping, load, found), along)
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
