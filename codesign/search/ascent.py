r"""Gradient ascent from several starts at once: Adam on log variables, mappings annealed, budgets as a Lagrangian.

Each start keeps the mappings that served it best at the last screening and climbs

.. math:: \tau \ln \sum_k \exp(s_k(x)/\tau) - \frac{\rho}{2} \sum_j [g_j(x) + \lambda_j/\rho]_+^2

with the temperature :math:`\tau` falling and the penalty :math:`\rho` rising from round to round (augmented
Lagrangian, Nocedal and Wright, Numerical Optimization, 17.4; steps by `optax.adam`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
import optax

from codesign.search.problem import Problem, violation
from codesign.search.space import BUDGETS, Space


@dataclass(frozen=True)
class Settings:
    """How long and how finely to search.

    Attributes:
        starts: designs climbed at once per technology.
        kept: mappings kept between screenings.
        rounds: of temperature, penalty and step size, each after a screening.
        steps: of Adam per round.
        temperature: softmax over mappings, per round.
        penalty: of the augmented Lagrangian, per round.
        rate: Adam's step in log variables, per round.
    """

    starts: int = 4
    kept: int = 16
    rounds: int = 3
    steps: int = 20
    temperature: tuple[float, ...] = (0.1, 0.02, 0.004)
    penalty: tuple[float, ...] = (20.0, 60.0, 200.0)
    rate: tuple[float, ...] = (0.12, 0.05, 0.015)


@dataclass
class Climb:
    """Where the starts of one technology ended.

    Attributes:
        x: (starts, variables). score: hard maximum over the kept mappings, (starts,).
        overdraft: largest budget overdraft, (starts,).
        mapping: index of the best mapping, (starts,).
        history: score of each start after each step, (steps, starts). evaluations: of the model, counted.
    """

    x: np.ndarray
    score: np.ndarray
    overdraft: np.ndarray
    mapping: np.ndarray
    history: list[list[float]] = field(default_factory=list)
    violations: list[list[float]] = field(default_factory=list)
    evaluations: int = 0

    def best(self) -> int:
        """The start with the best score after its overdraft is held against it."""
        return int(np.argmax(self.score - 20.0 * self.overdraft))


def random_starts(space: Space, count: int, rng: np.random.Generator) -> np.ndarray:
    """Log-uniform designs within the bounds, (count, variables)."""
    return rng.uniform(space.lo, space.hi, size=(count, len(space.lo)))


def climb(problem: Problem, spaces: Sequence[Space], starts: Sequence[np.ndarray], settings: Settings) -> list[Climb]:
    """Climb from all starts of all technologies together.

    Args:
        problem: what is maximised.
        spaces: one per technology.
        starts: (starts, variables) per technology.
        settings: see `Settings`.
    """
    count = settings.starts
    xs = [space.clip(np.asarray(x)) for space, x in zip(spaces, starts, strict=True)]
    kept = np.zeros((len(spaces), count, settings.kept), dtype=int)
    found = [Climb(x, np.zeros(count), np.zeros(count), np.zeros(count, dtype=int)) for x in xs]
    optimiser = optax.scale_by_adam()
    multipliers = [np.zeros((count, len(BUDGETS))) for _ in spaces]
    for r in range(settings.rounds):
        state = optimiser.init(jnp.zeros((len(spaces), count, len(spaces[0].lo))))
        for t, space in enumerate(spaces):
            built = space.build(xs[t])
            for s in range(count):
                if r > 0 and s != found[t].best():
                    continue
                kept[t, s] = _best(problem.screen(built, s), settings.kept)
                found[t].evaluations += len(np.asarray(problem.mappings.pp))
        for _ in range(settings.steps):
            gradients = np.zeros((len(spaces), count, len(spaces[0].lo)))
            built = [space.build(x) for space, x in zip(spaces, xs, strict=True)]
            scores, slopes = _all_pieces(problem, built, kept)
            for t in range(len(spaces)):
                tau, rho = settings.temperature[r], settings.penalty[r]
                weight = np.exp((scores[t] - scores[t].max(axis=1, keepdims=True)) / tau)
                weight /= weight.sum(axis=1, keepdims=True)
                up = (weight[..., None] * slopes[t]).sum(axis=1)
                push = np.maximum(rho * built[t].budgets + multipliers[t], 0.0)
                gradients[t] = up - (push[..., None] * built[t].budgets_by_x).sum(axis=1)
                _note(found[t], scores[t], kept[t], violation(built[t]))
                found[t].evaluations += scores[t].size
            updates, state = optimiser.update(jnp.asarray(-gradients), state)
            moves = np.asarray(updates)
            for t, space in enumerate(spaces):
                xs[t] = space.clip(xs[t] - settings.rate[r] * moves[t])
        for t, space in enumerate(spaces):
            multipliers[t] = np.maximum(multipliers[t] + settings.penalty[r] * space.build(xs[t]).budgets, 0.0)
    built = [space.build(x) for space, x in zip(spaces, xs, strict=True)]
    scores, _ = _all_pieces(problem, built, kept)
    for t in range(len(spaces)):
        found[t].x = xs[t]
        _note(found[t], scores[t], kept[t], violation(built[t]))
    return found


def _best(score: np.ndarray, count: int) -> np.ndarray:
    order = np.argsort(-score, kind="stable")[:count]
    return np.concatenate([order, np.repeat(order[-1:], count - len(order))])


def _all_pieces(problem: Problem, built: list, kept: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores (starts, kept) and gradients (starts, kept, variables) of every technology, in one compiled call."""
    import jax

    technologies, count, k = kept.shape
    joined = jax.tree.map(lambda *x: np.concatenate(x), *built)
    points = np.repeat(np.arange(technologies * count), k)
    p = problem.pieces(joined, points, kept.reshape(-1))
    score = p.score.reshape(technologies, count, k)
    slope = p.gradient.reshape(technologies, count, k, -1)
    return list(score), list(slope)


def _note(climb: Climb, scores: np.ndarray, kept: np.ndarray, overdraft: np.ndarray) -> None:
    top = scores.argmax(axis=1)
    rows = np.arange(len(scores))
    climb.score, climb.mapping, climb.overdraft = scores[rows, top], kept[rows, top], overdraft
    climb.history.append(climb.score.tolist())
    climb.violations.append(overdraft.tolist())
