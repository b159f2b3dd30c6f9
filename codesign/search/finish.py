r"""The end of a search: a trust-region method on sampled gradients, and the proof that it stands at an optimum.

Optima sit on kinks (balanced regimes of power, a batch limited twice, a domain that just holds its experts), where no
single gradient vanishes.  Gradients sampled a hair's breadth around the point stand for all pieces active there
(gradient sampling, Burke, Lewis and Overton 2005).  Each step solves the linear programme

.. math:: \max_{d,t}\; t - c\,\sigma - \tfrac12 d^T H d \quad t \le f_i + p_i^T(x + d - y_i),\;
          g_{ij} + G_{ij}^T(x + d - y_i) \le \sigma,\; |d|_\infty \le r

with the quadratic as the maximum of a few of its tangents along each eigenvector of :math:`H`, the curvature of the
smooth piece: without it the steps zigzag across a valley, and variables that move nothing wander.

At the end the KKT residual is the least norm of a convex combination of the sampled gradients minus the budgets'
multipliers, in log variables of a log objective, projected on the bounds.  The multipliers are the shadow prices: the
relative gain in tokens per megawatt by relative growth of a budget, an interval where the optimum is a tie.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, nnls

from codesign.search.problem import Problem
from codesign.search.space import BUDGETS, Space

#: Weight of an overdrawn budget against the score.
PENALTY = 20.0

#: Half-width of the sampled neighbourhood in log variables, at the end.
NEAR = 1e-5

#: KKT residual at which a search is content.
GOAL = 5e-4

#: Least curvature of any direction, by squares of log variables: what moves nothing stays where it is.
FLAT = 0.01

#: Where the tangents of a quadratic touch it, as shares of the radius, on either side.
TANGENTS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.8)

#: A budget counts as active within this relative distance.
ACTIVE = 1e-4


@dataclass
class Finished:
    """An optimum with its proof.

    Attributes:
        x: log variables, (variables,). score: ln(tokens/s/MW). mapping: index.
        overdraft: largest budget overdraft.
        budgets: g, (budgets,).
        residual: KKT residual.
        prices: budget or ``target_tpot`` -> (left, right) elasticity.
        path: score after each step. evaluations: of the model, counted.
    """

    x: np.ndarray
    score: float
    mapping: int
    overdraft: float
    budgets: np.ndarray
    residual: float
    prices: dict[str, tuple[float, float]]
    path: list[float]
    evaluations: int


@dataclass
class _Samples:
    """Values and gradients at the points around ``x``; row 0 is ``x`` itself."""

    y: np.ndarray
    score: np.ndarray
    gradient: np.ndarray
    g: np.ndarray
    g_by_x: np.ndarray
    by_target: np.ndarray


#: Corners of the sampled cube beside its face centres: kinks in different variables meet in corners. With ``x`` and the
#: faces they fill less than one compiled block.
CORNERS = 32


def _around(space: Space, x: np.ndarray, width: float) -> np.ndarray:
    """``x``, one step either way along each variable, and corners of the cube, inside the bounds."""
    corners = np.random.default_rng(0).choice([-1.0, 1.0], size=(CORNERS, len(x)))
    steps = np.concatenate([np.eye(len(x)), -np.eye(len(x)), corners]) * width
    return space.clip(np.concatenate([x[None], x + steps]))


def _sample(problem: Problem, space: Space, x: np.ndarray, mapping: int, width: float) -> _Samples:
    y = _around(space, x, width)
    built = space.build(y)
    p = problem.pieces(built, np.arange(len(y)), np.full(len(y), mapping))
    return _Samples(y, p.score, p.gradient, built.budgets, built.budgets_by_x, np.asarray(p.scored.by_target))


def _curvature(s: _Samples) -> tuple[np.ndarray, np.ndarray]:
    """How the score bends down around ``x``: curvatures (variables,), at least `FLAT`, and their directions in rows.

    By differences of the sampled gradients; of the two sides of a variable the one with the smaller difference, since a
    kink lies on one side at most of a point that is not on it.
    """
    x, n = s.y[0], s.y.shape[1]
    bend = np.zeros((n, n))
    for i in range(n):
        moved = [(row, s.y[row, i] - x[i]) for row in (1 + i, 1 + n + i)]
        sides = [(s.gradient[row] - s.gradient[0]) / by for row, by in moved if by != 0.0]
        bend[i] = min(sides, key=lambda side: float(np.abs(side).sum()), default=bend[i])
    down, directions = np.linalg.eigh(-0.5 * (bend + bend.T))
    return np.maximum(down, FLAT), directions.T


def _step(s: _Samples, space: Space, radius: float) -> tuple[np.ndarray, float]:
    """The best step by the linear programme over (d, t, sigma, one quadratic per direction), and what it promises."""
    x, n = s.y[0], s.y.shape[1]
    down, directions = _curvature(s)
    pieces = np.hstack([-s.gradient, np.tile([1.0, 0.0], (len(s.y), 1)), np.zeros((len(s.y), n))])
    ahead = s.score + np.einsum("ij,ij->i", s.gradient, x - s.y) - s.score[0]
    i, j = np.nonzero(s.g >= -0.5)
    slopes = s.g_by_x[i, j]
    budgets = np.hstack([slopes, np.tile([0.0, -1.0], (len(i), 1)), np.zeros((len(i), n))])
    room = -(s.g[i, j] + np.einsum("ij,ij->i", slopes, x - s.y[i]))
    at = radius * np.concatenate([TANGENTS, -np.array(TANGENTS)])
    bends = [
        np.concatenate([h * d * v, [0.0, 0.0], -e])
        for h, v, e in zip(down, directions, np.eye(n), strict=True)
        for d in at
    ]
    touch = [0.5 * h * d * d for h in down for d in at]
    low, high = np.maximum(space.lo - x, -radius), np.minimum(space.hi - x, radius)
    box = [*zip(low, np.maximum(high, low), strict=True), (None, None), (0.0, None), *[(0.0, None)] * n]
    cost = np.concatenate([np.zeros(n), [-1.0, PENALTY], np.ones(n)])
    rows, right = np.vstack([pieces, budgets, *bends]), np.concatenate([ahead, room, touch])
    found = linprog(cost, A_ub=rows, b_ub=right, bounds=box, method="highs")
    return (found.x[:n], s.score[0] - float(found.fun)) if found.status == 0 else (np.zeros(n), -np.inf)


def _merit(score: float, overdraft: float) -> float:
    return score - PENALTY * overdraft


def _walk(
    problem: Problem, space: Space, x: np.ndarray, mapping: int, steps: int
) -> tuple[np.ndarray, list[float], int]:
    """Steps of the trust-region method from ``x``: where it ends, the scores on the way, model evaluations."""
    radius, width, path, evaluations = 0.1, NEAR, [], 0
    samples = _sample(problem, space, x, mapping, width)
    value = _merit(samples.score[0], max(samples.g[0].max(), 0.0))
    for _ in range(steps):
        evaluations += len(samples.y)
        path.append(float(samples.score[0]))
        d, promised = _step(samples, space, radius)
        if promised < value + 1e-9 or radius < 1e-7:
            if width <= NEAR:
                break
            width, radius = NEAR, max(radius, 1e-3)  # pieces a little further off hid the way
            samples = _sample(problem, space, x, mapping, width)
            continue
        width = float(np.clip(np.abs(d).max() * 0.2, NEAR, 1e-3))
        trial = _sample(problem, space, x + d, mapping, width)
        new = _merit(trial.score[0], max(trial.g[0].max(), 0.0))
        evaluations += len(trial.y)
        if new > value + 1e-12:
            radius = min(radius * (4.0 if np.abs(d).max() > 0.9 * radius else 1.0), 0.3)
            x, value, samples = trial.y[0], new, trial
        else:
            radius *= 0.3
            width = float(np.clip(radius * 0.2, NEAR, 1e-3))
            samples = _sample(problem, space, x, mapping, width)
    return x, path, evaluations


def finish(problem: Problem, space: Space, x: np.ndarray, mapping: int, steps: int = 90, walks: int = 3) -> Finished:
    """Walk from ``x`` on one mapping to a point of small KKT residual.

    Args:
        problem, space: what and where.
        x: log variables, (variables,).
        mapping: index into ``problem.mappings``.
        steps: most linear programmes of one walk.
        walks: most walks, each from where the last one stopped, until the residual is below `GOAL`.
    """
    x, path, evaluations = space.clip(x), [], 0
    for _ in range(walks):
        x, way, spent = _walk(problem, space, x, mapping, steps)
        samples = _sample(problem, space, x, mapping, NEAR)
        path, evaluations = path + way, evaluations + spent + len(samples.y)
        residual, prices = certify(samples, space)
        if residual <= GOAL:
            break
    return Finished(
        x=x, score=float(samples.score[0]), mapping=mapping, overdraft=float(max(samples.g[0].max(), 0.0)),
        budgets=samples.g[0], residual=residual, prices=prices, path=path, evaluations=evaluations,
    )  # fmt: skip


def certify(s: _Samples, space: Space) -> tuple[float, dict[str, tuple[float, float]]]:
    r"""KKT residual and shadow prices from the sampled pieces.

    .. math:: \min_{w \in \Delta,\, \lambda, \nu \ge 0}
              \left\| \sum_i w_i p_i - \sum_j \lambda_j G_j + \nu_{lo} - \nu_{hi} \right\|_2
    """
    x = s.y[0]
    n, k = len(x), len(s.y)
    pieces = s.gradient
    active = [(i, j) for i in range(k) for j in range(s.g.shape[1]) if s.g[i, j] > -ACTIVE]
    columns = [pieces.T]
    if active:
        columns.append(-np.stack([s.g_by_x[i, j] for i, j in active], axis=1))
    at_low, at_high = x <= space.lo + 1e-9, x >= space.hi - 1e-9
    columns.append(np.eye(n)[:, at_low])
    columns.append(-np.eye(n)[:, at_high])
    a = np.concatenate(columns, axis=1)
    weights = np.zeros(a.shape[1])
    weights[: len(pieces)] = 1.0
    heavy = 1e4
    solution, _ = nnls(np.vstack([a, heavy * weights]), np.concatenate([np.zeros(n), [heavy]]), maxiter=50 * a.shape[1])
    solution /= max(solution[: len(pieces)].sum(), 1e-12)
    residual = float(np.linalg.norm(a @ solution))

    prices: dict[str, tuple[float, float]] = {}
    slack = max(residual, 1e-4) * 1.5
    a_ub = np.vstack([a, -a])
    b_ub = np.full(2 * n, slack)
    index = {j: [c for c, (_, b) in enumerate(active, start=len(pieces)) if b == j] for j in range(len(BUDGETS))}
    objectives = {BUDGETS[j]: cs for j, cs in index.items() if cs}
    costs = {name: np.bincount(cs, minlength=a.shape[1]).astype(float) for name, cs in objectives.items()}
    target = np.zeros(a.shape[1])
    target[: len(pieces)] = s.by_target
    costs["target_tpot"] = target
    for name, cost in costs.items():
        ends = []
        for sign in (1.0, -1.0):
            found = linprog(
                sign * cost, A_ub=a_ub, b_ub=b_ub, A_eq=weights[None], b_eq=[1.0], bounds=[(0.0, None)] * a.shape[1],
                method="highs",
            )  # fmt: skip
            ends.append(float(cost @ (found.x if found.status == 0 else solution)))
        prices[name] = (min(ends), max(ends))
    return residual, prices


__all__ = ["ACTIVE", "Finished", "certify", "finish"]
