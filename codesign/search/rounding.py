"""From the relaxed optimum to what can be built: whole stacks, layers, lanes and sequences, domains that exist.

Every buildable neighbour is tried.  Where rounding up overdraws a budget, memory and arithmetic are clocked down
together until it holds; the neighbour that then serves most is evaluated exactly, and the loss told.
"""

from dataclasses import dataclass

import equinox as eqx
import numpy as np

from codesign.buildable import roundings
from codesign.design import Design
from codesign.machine import Machine
from codesign.mapping import take
from codesign.objective.batch import Batch
from codesign.objective.compiled import BLOCK, solve_points
from codesign.search.problem import Problem, violation
from codesign.search.space import VARIABLES, Space, design_of

#: Clock-downs tried, as shares of memory and arithmetic rate.
CLOCKS = np.linspace(1.0, 0.6, 41)

#: An overdraft that counts as holding (published ratings have two or three digits).
HOLDS = 1e-6


@dataclass(frozen=True)
class Rounded:
    """A buildable design at whole sequences.

    Attributes:
        design: SI, by variable.
        machine: what it makes.
        mapping: index into the problem's mappings.
        batch: whole sequences.
        rate: tokens per second and megawatt.
        loss: share of the relaxed optimum's that is lost.
        clock: share of the rounded memory and arithmetic rates that the budgets leave.
    """

    design: dict[str, float]
    machine: Machine
    mapping: int
    batch: float
    rate: float
    loss: float
    clock: float


def _clocked(design: Design, space: Space) -> tuple[np.ndarray, float] | None:
    """Log variables of the fastest clock at which all budgets hold, or None."""
    slow = [
        eqx.tree_at(lambda d: (d.memory_bandwidth, d.tensor_fp4), design,
                    (design.memory_bandwidth * c, design.tensor_fp4 * c))
        for c in CLOCKS
    ]  # fmt: skip
    x = np.log([[float(getattr(d, name)) for name in VARIABLES] for d in slow])
    held = np.flatnonzero(violation(space.build(x)) <= HOLDS)
    return (x[held[0]], float(CLOCKS[held[0]])) if len(held) else None


def whole_batches(problem: Problem, machine: Machine, mappings: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Solve the given mappings on one machine, round batches down and evaluate again; rates are 0 where none serves."""
    few = take(problem.mappings, mappings)
    fixed = (problem.model, problem.execution, problem.precision, machine, few, problem.load)
    found = solve_points(*fixed, problem.target)
    batch = np.maximum(np.floor(found.batch * (1.0 + 1e-12)), 1.0)
    again = solve_points(*fixed, problem.target, batch, batch)
    serves = (found.late <= 0.0) & (found.full <= 0.0)
    return again, np.where(serves, again.result.tokens_per_s_per_megawatt, 0.0)


def round_optimum(problem: Problem, space: Space, x: np.ndarray, relaxed: float) -> Rounded | None:
    """The best buildable neighbour of ``x``; None where no neighbour holds the budgets and serves.

    Args:
        x: log variables of the relaxed optimum.
        relaxed: its tokens per second and megawatt.
    """
    order = np.argsort(-problem.screen(space.build(x[None]), 0), kind="stable")[:BLOCK]
    best: Rounded | None = None
    for neighbour in roundings(design_of(x), space.technology, space.package):
        clocked = _clocked(neighbour, space)
        if clocked is None:
            continue
        machine = take(space.build(clocked[0][None]).machine, 0)
        found, rate = whole_batches(problem, machine, order)
        i = int(np.argmax(rate))
        if rate[i] > (best.rate if best else 0.0):
            best = Rounded(
                design=dict(zip(VARIABLES, np.exp(clocked[0]).tolist(), strict=True)), machine=machine,
                mapping=int(order[i]), batch=float(found.batch[i]), rate=float(rate[i]),
                loss=1.0 - float(rate[i]) / relaxed, clock=clocked[1],
            )  # fmt: skip
    return best
