r"""One step of the end of a search: the score and the budgets around a point, as a linear programme sees them.

Gradients sampled a hair's breadth around :math:`x` stand for all pieces active there (gradient sampling, Burke, Lewis
and Overton 2005); points seen before stand for pieces further off (bundle methods, Lemaréchal 1975).  With their
values :math:`f_i` and gradients :math:`p_i` at :math:`y_i`, and the budgets' :math:`g_{ij}` and :math:`G_{ij}`, it is

.. math:: \max_{d,t,\sigma}\; t - c\,\sigma - \tfrac12 d^T H d \quad t \le f_i + p_i^T(x + d - y_i),\;
          g_{ij} + G_{ij}^T(x + d - y_i) \le \sigma,\; |d|_\infty \le r

The quadratic is the maximum of a few of its tangents along each eigenvector of :math:`H`, the curvature of the smooth
piece that :math:`x` lies on: without it steps zigzag across a valley, and variables that move nothing wander.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from codesign.search.problem import Problem
from codesign.search.space import Space

#: Weight of an overdrawn budget against the score.
PENALTY = 20.0

#: Corners of the sampled cube beside its face centres: kinks in different variables meet in corners. With ``x`` and the
#: faces they fill less than one compiled block.
CORNERS = 32

#: Least curvature of any direction [1/square of a log variable]: what moves nothing stays where it is.
FLAT = 0.01

#: Where the tangents of a quadratic touch it, as shares of the radius, on either side.
TANGENTS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.8)

#: How many radii away a point seen before still counts.
REACH = 5.0

#: A budget that is further than this from its limit stops no step.
LOOSE = -0.5


@dataclass(frozen=True)
class Samples:
    """Values and gradients at the points around ``x``; row 0 is ``x`` itself.

    Attributes:
        y: (points, variables). score: (points,). gradient: (points, variables).
        g: budgets, (points, budgets). g_by_x: (points, budgets, variables).
        by_target: elasticity of the score by the target, (points,).
    """

    y: np.ndarray
    score: np.ndarray
    gradient: np.ndarray
    g: np.ndarray
    g_by_x: np.ndarray
    by_target: np.ndarray

    @property
    def overdraft(self) -> float:
        """Largest overdraft of a budget at ``x``, at least 0."""
        return float(max(self.g[0].max(), 0.0))

    @property
    def merit(self) -> float:
        """Score at ``x`` less its weighted overdraft."""
        return float(self.score[0]) - PENALTY * self.overdraft


def sample(problem: Problem, space: Space, x: np.ndarray, mapping: int, width: float) -> Samples:
    """``x``, one step either way along each variable, and corners of the cube, inside the bounds.

    Args:
        problem, space: what and where.
        x: log variables, (variables,).
        mapping: index into ``problem.mappings``.
        width: half of the cube's edge.
    """
    n = len(x)
    corners = np.random.default_rng(0).choice([-1.0, 1.0], size=(CORNERS, n))
    y = space.clip(np.concatenate([x[None], x + width * np.concatenate([np.eye(n), -np.eye(n), corners])]))
    built = space.build(y)
    p = problem.pieces(built, np.arange(len(y)), np.full(len(y), mapping))
    return Samples(y, p.score, p.gradient, built.budgets, built.budgets_by_x, np.asarray(p.scored.by_target))


def curvature(s: Samples, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """How the score bends down around ``x``: curvatures (variables,), at least `FLAT`, and their directions in rows.

    By differences of the sampled gradients; of the two sides of a variable the one with the smaller difference, since a
    kink beside ``x`` lies on one side only.
    """
    n = s.y.shape[1]
    bend = np.zeros((n, n))
    for i in range(n):
        moved = [(row, s.y[row, i] - s.y[0, i]) for row in (1 + i, 1 + n + i)]
        sides = [(s.gradient[row] - s.gradient[0]) / by for row, by in moved if by != 0.0]
        bend[i] = min(sides, key=lambda side: float(np.abs(side).sum()), default=bend[i])
    down, directions = np.linalg.eigh(-0.5 * (bend + bend.T))
    return np.maximum(share * down, FLAT), directions.T


def step(
    s: Samples, space: Space, radius: float, seen: Sequence[Samples] = (), share: float = 1.0
) -> tuple[np.ndarray, float]:
    """The best step within ``radius``, (variables,), and the merit that it promises.

    Args:
        s: around the present point.
        space: for its bounds.
        radius: of the trust region, in log variables.
        seen: samples around earlier points; a piece of theirs that lies below the present point is left out, since the
            score need not be concave.
        share: of the curvature to believe; where kinks lie on both sides of ``x`` it is far too large.
    """
    x, n = s.y[0], s.y.shape[1]
    far = [old for old in seen if np.abs(old.y[0] - x).max() <= REACH * radius]
    beyond = [float(old.score[0] + old.gradient[0] @ (x - old.y[0]) - s.score[0]) for old in far]
    slopes = np.vstack([s.gradient, *(old.gradient[:1] for old, a in zip(far, beyond, strict=True) if a >= 0.0)])
    around = s.score + np.einsum("ij,ij->i", s.gradient, x - s.y) - s.score[0]
    ahead = np.append(around, [a for a in beyond if a >= 0.0])
    i, j = np.nonzero(s.g >= LOOSE)
    draws = s.g_by_x[i, j]
    room = -(s.g[i, j] + np.einsum("ij,ij->i", draws, x - s.y[i]))
    down, directions = curvature(s, share)
    at = radius * np.concatenate([TANGENTS, np.negative(TANGENTS)])
    touch = (down[:, None] * at).reshape(-1, 1)

    # Columns: d, t, sigma, the quadratic along each direction.
    pieces = np.hstack([-slopes, np.tile([1.0, 0.0], (len(slopes), 1)), np.zeros((len(slopes), n))])
    budgets = np.hstack([draws, np.tile([0.0, -1.0], (len(i), 1)), np.zeros((len(i), n))])
    each = np.repeat(np.arange(n), len(at))
    bends = np.hstack([touch * directions[each], np.zeros((len(each), 2)), -np.eye(n)[each]])
    found = linprog(
        np.concatenate([np.zeros(n), [-1.0, PENALTY], np.ones(n)]),
        A_ub=np.vstack([pieces, budgets, bends]),
        b_ub=np.concatenate([ahead, room, 0.5 * touch[:, 0] * np.tile(at, n)]),
        bounds=[
            *zip(np.clip(space.lo - x, -radius, 0.0), np.clip(space.hi - x, 0.0, radius), strict=True),
            (None, None), (0.0, None), *[(0.0, None)] * n,
        ],
        method="highs",
    )  # fmt: skip
    return (found.x[:n], s.score[0] - float(found.fun)) if found.status == 0 else (np.zeros(n), -np.inf)


def held(space: Space, x: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Where the step ``d`` from ``x`` leads, moved back the least that lets budgets hold, if that is little.

    Budgets are curved (two steps of Newton's method): else a step along one overdraws it by more than it gains.
    """
    moved = x + d
    for _ in range(2):
        built = space.build(moved[None])
        over = built.budgets[0] > 0.0
        if over.any():
            moved = moved - np.linalg.pinv(built.budgets_by_x[0, over]) @ built.budgets[0, over]
    return space.clip(moved if np.abs(moved - x - d).max() <= 0.5 * np.abs(d).max() else x + d)
