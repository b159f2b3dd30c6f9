"""One problem searched over several technologies: climb, finish, certify on all mappings, round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codesign.buildable import DOMAINS
from codesign.search.ascent import Climb, Settings, climb, random_starts
from codesign.search.finish import PENALTY, Finished, finish
from codesign.search.problem import Problem, violation
from codesign.search.rounding import Rounded, round_optimum
from codesign.search.space import VARIABLES, Space

#: Mappings tried with every domain.
KEPT = 16


@dataclass(frozen=True)
class Optimum:
    """What the search found for one technology.

    Attributes:
        space: technology and budgets.
        finished: the relaxed optimum with its proof.
        serves: whether it meets the target and the budgets.
        rounded: the buildable design, None where none serves.
        climb: the starts and their history.
        evaluations: of the model, all starts counted.
    """

    space: Space
    finished: Finished
    serves: bool
    rounded: Rounded | None
    climb: Climb
    evaluations: int


def find_optima(
    problem: Problem,
    spaces: Sequence[Space],
    first: Sequence[Sequence[np.ndarray]],
    rng: np.random.Generator,
    settings: Settings | None = None,
) -> list[Optimum]:
    """Search every technology from the given starts and from random ones.

    Args:
        problem: what is maximised.
        spaces: one per technology.
        first: starts to include, per technology (an existing part, the optimum of the neighbouring target).
        rng: draws the other starts.
        settings: length of the search.
    """
    settings = settings or Settings()
    starts = []
    for space, given in zip(spaces, first, strict=True):
        known = [space.clip(x) for x in given][: settings.starts]
        drawn = random_starts(space, settings.starts, rng)
        starts.append(np.concatenate([np.reshape(known, (-1, drawn.shape[1])), drawn])[: settings.starts])
    climbs = climb(problem, spaces, starts, settings)
    return [
        _finish(problem, space, c, [space.clip(x) for x in given])
        for space, c, given in zip(spaces, climbs, first, strict=True)
    ]


def _snap(problem: Problem, space: Space, x: np.ndarray, mapping: int) -> tuple[np.ndarray, int]:
    """Try the domains that exist: what a domain just holds is a step that no gradient sees from one chip below."""
    order = np.argsort(-problem.screen(space.build(x[None]), 0), kind="stable")[:KEPT]
    order = np.unique(np.append(order, mapping))
    i = VARIABLES.index("scale_up_domain")
    tries = np.repeat(x[None], len(DOMAINS) + 1, axis=0)
    tries[1:, i] = np.log(DOMAINS)
    tries = space.clip(tries)
    built = space.build(tries)
    points, choices = np.repeat(np.arange(len(tries)), len(order)), np.tile(order, len(tries))
    merit = problem.scores(built, points, choices) - PENALTY * violation(built)[points]
    best = int(np.argmax(merit))
    return tries[points[best]], int(choices[best])


def _certified(problem: Problem, space: Space, x: np.ndarray, mapping: int) -> tuple[Finished, int]:
    """Finish, and where another mapping turns out better on the finished machine, finish on that one."""
    end = finish(problem, space, x, mapping)
    evaluations = end.evaluations
    for _ in range(3):
        score = problem.screen(space.build(end.x[None]), 0)
        evaluations += len(score)
        other = int(np.argmax(score))
        if score[other] <= end.score + 1e-9:
            break
        again = finish(problem, space, end.x, other)
        evaluations += again.evaluations
        if again.score - PENALTY * again.overdraft <= end.score - PENALTY * end.overdraft:
            break
        end = again
    return end, evaluations


def _from(problem: Problem, space: Space, found: Climb, known: Sequence[np.ndarray]) -> tuple[np.ndarray, int, int]:
    """Where to finish, and what finding it cost: the best start as it climbed, or a given one as it was, if better.

    Where a part barely meets the target, a climb that steps over the edge finds no way back: given starts are tried
    where the climb does not serve.
    """
    b = found.best()
    at, mapping = found.x[b], int(found.mapping[b])
    if problem.shortfall(space.build(at[None]), mapping) <= 0.0:
        return at, mapping, 1
    merit, spent = found.score[b] - PENALTY * found.overdraft[b], 1
    for x in known:
        built = space.build(x[None])
        score = problem.screen(built, 0)
        spent += len(score)
        if (here := score.max() - PENALTY * violation(built)[0]) > merit:
            at, mapping, merit = x, int(np.argmax(score)), here
    return at, mapping, spent


def _finish(problem: Problem, space: Space, found: Climb, known: Sequence[np.ndarray]) -> Optimum:
    """Finish the best start; where rounding finds a better neighbour, finish from there."""
    x, mapping, screened = _from(problem, space, found, known)
    end, spent = _certified(problem, space, *_snap(problem, space, x, mapping))
    evaluations = found.evaluations + screened + spent
    rounded, serves = None, False
    for _ in range(3):
        shortfall = problem.shortfall(space.build(end.x[None]), end.mapping)
        serves = bool(shortfall <= 1e-9 and end.overdraft <= 1e-6)
        if not serves:
            break
        rounded = round_optimum(problem, space, end.x, float(np.exp(end.score)))
        if rounded is None or rounded.loss > -1e-6:
            break
        x = space.clip(np.log([rounded.design[name] for name in VARIABLES]))
        again, spent = _certified(problem, space, x, rounded.mapping)
        evaluations += spent
        if again.score <= end.score:
            break
        end = again
    return Optimum(space, end, serves, rounded, found, evaluations)
