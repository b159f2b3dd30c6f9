"""What one search maximises: tokens per megawatt of a model at a target, over machines of a space and mappings."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from codesign.execution import Execution
from codesign.machine import Machine
from codesign.mapping import Mapping, take
from codesign.model import Model
from codesign.objective.compiled import score_points, solve_points
from codesign.objective.gradient import SHORTFALL, Scored
from codesign.objective.metrics import Load
from codesign.precision import Precision
from codesign.search.space import Built, Space


class Pieces(NamedTuple):
    """Scores of (design, mapping) pairs.

    Attributes:
        score: (n,).
        gradient: by the log variables, (n, variables).
        scored: everything else, leaves (n,).
    """

    score: np.ndarray
    gradient: np.ndarray
    scored: Scored


@dataclass(frozen=True)
class Problem:
    """A model, its load and target, and the mappings to try.

    Attributes:
        model, execution, precision: of the physics.
        load: context, drafts, skew.
        target: TPOT [s].
        mappings: stacked, (m, ...).
    """

    model: Model
    execution: Execution
    precision: Precision
    load: Load
    target: float
    mappings: Mapping

    def screen(self, built: Built, index: int) -> np.ndarray:
        """Score of every mapping on one built design, without derivatives, (m,)."""
        return self._rates(take(built.machine, index), self.mappings)[0]

    def _rates(self, machine: Machine, mappings: Mapping) -> tuple[np.ndarray, np.ndarray]:
        found = solve_points(self.model, self.execution, self.precision, machine, mappings, self.load, self.target)
        shortfall = found.late + found.full
        return np.log(found.result.tokens_per_s_per_megawatt) - SHORTFALL * shortfall, shortfall

    def scores(self, built: Built, point: np.ndarray, mapping: np.ndarray) -> np.ndarray:
        """Scores of pairs, as `pieces`, without derivatives, (n,)."""
        return self._rates(take(built.machine, point), take(self.mappings, mapping))[0]

    def shortfall(self, built: Built, mapping: int) -> float:
        """How far the first design of ``built`` is from serving on one mapping; 0 where it serves."""
        return float(
            self._rates(take(built.machine, slice(0, 1)), take(self.mappings, slice(mapping, mapping + 1)))[1][0]
        )

    def pieces(self, built: Built, point: np.ndarray, mapping: np.ndarray) -> Pieces:
        """Scores and gradients of pairs (point of ``built``, index of a mapping)."""
        machine = take(built.machine, point)
        s = score_points(
            self.model,
            self.execution,
            self.precision,
            machine,
            take(self.mappings, mapping),
            self.load,
            self.target,
            built.by_x[point],
        )
        return Pieces(s.score, s.slopes, s)


def violation(built: Built) -> np.ndarray:
    """Largest overdraft of any budget per point, at least 0, (n,)."""
    return np.maximum(built.budgets, 0.0).max(axis=1)


__all__ = ["Pieces", "Problem", "Space", "violation"]
