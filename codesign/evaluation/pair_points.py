"""Pairs of pools by the table, all evaluated by one compiled program, and each at its largest batch."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.request import MOST, Request
from codesign.mapping import stack, take
from codesign.objective.compiled import leaves, uniform
from codesign.objective.metrics import Framework, Load
from codesign.objective.pools import Link, Pair, Pool, decode_pair, halves
from codesign.programs import run

#: Points per compiled call; fewer are filled up, so that one program serves all.
BLOCK = 1024


class PairCase(NamedTuple):
    """What is asked of a pair.

    Attributes:
        attention: attention pool, model and precisions.
        experts: the expert pool's machine.
        request: of decode.
        link: between the pools.
    """

    attention: Case
    experts: Case
    request: Request
    link: Link

    @property
    def load(self) -> Load:
        """What is served; its batch is of no account."""
        return self.request.load(Framework())


class PairPoints(NamedTuple):
    """Evaluated pairs.

    Attributes:
        table: tp, dp, expert chips, ep, micro-batches and batch, (n, 6).
        found: `Pair` of numpy arrays, (n,).
        goal: TPOT that must be met [s]; infinite where none is asked for.
    """

    table: np.ndarray
    found: Pair
    goal: float

    @property
    def rooms(self) -> np.ndarray:
        """Bytes left on a chip of the attention pool and of the expert pool, (n, 2)."""
        return np.stack([m.capacity - m.total for m in (self.found.attention_memory, self.found.expert_memory)], axis=1)

    @property
    def room(self) -> np.ndarray:
        """Bytes left on a chip of the fuller pool, (n,)."""
        return np.min(self.rooms, axis=1)

    @property
    def least_lacking(self) -> np.ndarray:
        """Order by what a chip of the fuller pool lacks, then of the other, then by expert chips; indices, (n,)."""
        other = np.minimum(np.max(self.rooms, axis=1), 0.0)
        return np.lexsort((self.table[:, 2], -other, -self.room))

    @property
    def fits(self) -> np.ndarray:
        """Where both pools hold what they must, (n,)."""
        return self.room >= 0.0

    @property
    def serves(self) -> np.ndarray:
        """Where target and memory are met, (n,)."""
        return self.fits & (self.time <= self.goal)

    @property
    def time(self) -> np.ndarray:
        """TPOT [s], (n,)."""
        return np.asarray(self.found.tpot_s)

    @property
    def rate(self) -> np.ndarray:
        """Tokens per second and provisioned megawatt, (n,)."""
        return np.asarray(self.found.tokens_per_s_per_megawatt)

    @property
    def chips(self) -> np.ndarray:
        """Chips of the attention pool and of the expert pool, (n, 2)."""
        return np.stack([self.table[:, 0] * self.table[:, 1], self.table[:, 2]], axis=1)


def at_batches(rows: np.ndarray, batches: Iterable[float]) -> np.ndarray:
    """Every row of degrees at each of some batches, (rows x batches, 6)."""
    sizes = np.asarray(list(batches), dtype=float)
    repeated = np.repeat(rows, len(sizes), axis=0)
    return np.column_stack([repeated, np.tile(sizes, len(rows))])


def _evaluated(model: Any, even: bool, fixed: Any, mappings: Any, loads: Any) -> tuple[Any, Any]:
    machine, execution, on, execution_there, precision, link = fixed

    def one(mappings: Any, load: Any) -> Pair:
        pools = Pool(machine, execution, mappings[0]), Pool(on, execution_there, mappings[1])
        return decode_pair(model, *pools, precision, uniform(load) if even else load, link)

    leaves, structure = jax.tree.flatten(jax.vmap(one)(mappings, loads))
    return leaves, jax.tree.unflatten(structure, range(len(leaves)))


def solve_pairs(pair: PairCase, table: np.ndarray) -> PairPoints:
    """Evaluate every row of ``table``, (n, 6) as in `PairPoints`."""
    case, experts = pair.attention, pair.experts
    first, second = halves(case.model)
    load, n = pair.load, len(table)
    filled = np.concatenate([table, np.repeat(table[-1:], -n % BLOCK, axis=0)])
    fixed = leaves((case.machine, case.execution, experts.machine, experts.execution, case.precision, pair.link))
    even = not np.any(np.asarray(load.skew))
    found, counted = [], None
    for i in range(0, len(filled), BLOCK):
        rows = filled[i : i + BLOCK]
        t, d, chips, e, m, batch = rows.T
        ones, none = np.ones(len(rows)), np.zeros(len(rows))
        mappings = (
            stack(first, list(zip(ones, t, d, ones, none, m, strict=True))),
            stack(second, list(zip(ones, ones, chips, e, none, ones, strict=True))),
        )
        loads = jax.tree.map(lambda x, like=none: np.full_like(like, float(x)), load)
        loads = eqx.tree_at(lambda x: x.batch, loads, batch)
        numbers, counted = run(_evaluated, (case.model, even), fixed, mappings, loads)
        found.append([np.asarray(x) for x in numbers])
    joined = [np.concatenate(x)[:n] for x in zip(*found, strict=True)]
    goal = np.inf if pair.request.tpot is None else pair.request.tpot
    return PairPoints(table, jax.tree.map(lambda i: joined[i], counted), goal)


def chosen(points: PairPoints, index: Any) -> PairPoints:
    """Some of the points, in the order of ``index``."""
    return PairPoints(points.table[index], take(points.found, index), points.goal)


def largest(pair: PairCase, rows: np.ndarray, most: float | None = None) -> PairPoints:
    """Each pair at its largest whole batch that meets the target and fits, by halving.

    Args:
        pair: what is asked.
        rows: degrees that serve one sequence, (n, 5).
        most: of the batch; as many as a request may ask for where not given.
    """
    least = np.ones(len(rows))
    beyond = np.full(len(rows), np.floor(MOST["batch"] if most is None else most) + 1.0)
    while np.any(beyond - least > 1.0):
        middle = np.floor((least + beyond) / 2.0)
        serves = solve_pairs(pair, np.column_stack([rows, middle])).serves
        # Where the two have met the middle is the least itself, and stays.
        least, beyond = np.where(serves, middle, least), np.where(serves, beyond, np.maximum(middle, least + 1.0))
    return solve_pairs(pair, np.column_stack([rows, least]))
