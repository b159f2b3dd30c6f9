"""A case's machine at many mappings: `codesign.objective.compiled` with one machine for all points."""

from typing import Any

import numpy as np

from codesign.evaluation.case import Case
from codesign.mapping import Mapping
from codesign.objective.compiled import evaluate_points, leaves, solve_points
from codesign.objective.metrics import Load

__all__ = ["evaluate_all", "leaves", "solve"]


def solve(case: Case, mappings: Mapping, load: Load, tpot: Any, least: Any = 1.0, most: Any = np.inf) -> Any:
    """The largest admissible batch of each mapping, (n,); see `solve_points`."""
    return solve_points(
        case.model, case.execution, case.precision, case.machine, mappings, load, tpot, least, most, case.phase
    )


def evaluate_all(case: Case, mappings: Mapping, load: Load) -> Any:  # `Metrics` of numpy arrays
    """Each mapping at its own load, (n,); see `evaluate_points`."""
    return evaluate_points(case.model, case.execution, case.precision, case.machine, mappings, load, case.phase)
