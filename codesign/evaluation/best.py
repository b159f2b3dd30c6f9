"""Mappings tried at the largest batch that serves, and the best of them once batches are whole."""

from typing import Any, NamedTuple

import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case
from codesign.evaluation.request import Request
from codesign.evaluation.solve import solve
from codesign.mapping import Mapping, take
from codesign.objective.batch import Batch
from codesign.objective.compiled import BLOCK
from codesign.objective.metrics import Load


class Tried(NamedTuple):
    """Mappings of one request, each at its largest admissible batch.

    Attributes:
        mappings: stacked, (n, ...).
        load: what is served; its batch is of no account.
        goal: target time [s]; infinite where there is none.
        given: sequences per micro-batch where they are given, a number or (n,); None where they were searched.
        found: `Batch` of numpy arrays, (n,).
    """

    mappings: Mapping
    load: Load
    goal: float
    given: Any
    found: Batch

    @property
    def fits(self) -> np.ndarray:
        """Where the memory suffices, (n,)."""
        return np.asarray(self.found.full) <= 0.0

    @property
    def serves(self) -> np.ndarray:
        """Where target and memory are met, (n,)."""
        return self.fits & (np.asarray(self.found.late) <= 0.0)


def flying(mappings: Mapping, request: Request) -> Mapping:
    """Mappings on which every micro-batch has a request, where their number is given.

    Raises:
        CodesignError: there is none.
    """
    if request.concurrency is None:
        return mappings
    kept = np.flatnonzero(np.asarray(request.batches(mappings)) >= 1.0 - 1e-9)
    if not len(kept):
        least = int(np.min(np.asarray(mappings.dp) * np.asarray(mappings.microbatches)))
        raise CodesignError(
            f"{request.concurrency:g} requests leave instances without one", key="--concurrency",
            allowed=f"at least {least} with these degrees",
        )  # fmt: skip
    return take(mappings, kept)


def attempt(case: Case, request: Request, mappings: Mapping, load: Load, most: Any = np.inf) -> Tried:
    """Solve every mapping of a request.

    Args:
        case: in the request's regime.
        request: with its target, and its batch where that is given.
        mappings: stacked.
        load: as `Request.load` makes it.
        most: of a searched batch, a number or (n,) [sequences].
    """
    goal = np.inf if request.target is None else request.target
    given = request.batches(mappings)
    least, most = (1.0, most) if given is None else (given, given)
    return Tried(mappings, load, goal, given, solve(case, mappings, load, goal, least, most))


def best(case: Case, tried: Tried, among: Any = True) -> tuple[int, float] | None:
    """The mapping that serves with the most tokens per second and provisioned megawatt, and its batch.

    A batch that was searched is rounded down to whole sequences.

    Args:
        case: as in `attempt`.
        tried: its result.
        among: mappings that are looked at, (n,); all where not given.

    Returns:
        index and sequences per micro-batch; None where none of them serves.
    """
    score = np.where(tried.serves & among, tried.found.result.tokens_per_s_per_megawatt, -np.inf)
    i = int(np.argmax(score))
    if score[i] == -np.inf:
        return None
    return (i, float(tried.found.batch[i])) if tried.given is not None else _whole(case, tried, score)


def _whole(case: Case, tried: Tried, score: np.ndarray) -> tuple[int, float]:
    """The best mapping once batches are whole: the best few at real batches are tried again, rounded down.

    A root that its finder left a little above the target is rounded down once more.
    """
    order = np.argsort(-score, kind="stable")[:BLOCK]
    mappings = take(tried.mappings, order)
    whole = np.maximum(np.floor(tried.found.batch[order] * (1.0 + 1e-12)), 1.0)
    again = solve(case, mappings, tried.load, tried.goal, whole, whole)
    over = (again.late > 1e-9) & (whole > 1.0)
    if over.any():
        whole -= over
        again = solve(case, mappings, tried.load, tried.goal, whole, whole)
    rate = np.where(score[order] > -np.inf, again.result.tokens_per_s_per_megawatt, -np.inf)
    first = int(np.argmax(rate))
    return int(order[first]), float(whole[first])
