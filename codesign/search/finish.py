r"""The end of a search: a trust-region method on sampled gradients, and the proof that it stands at an optimum.

Optima sit on kinks (balanced regimes of power, a batch limited twice, a domain that just holds its experts), where no
single gradient vanishes; `codesign.search.step` finds the steps.  At the end the KKT residual is the least norm of a
convex combination of the sampled gradients minus the budgets' multipliers, in log variables of a log objective,
projected on the bounds.  The multipliers are the shadow prices: the relative gain in tokens per megawatt by relative
growth of a budget, an interval where the optimum is a tie.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, nnls

from codesign.search.problem import Problem
from codesign.search.space import BUDGETS, Space
from codesign.search.step import PENALTY, Samples, held, sample, step

#: Half-width of the sampled neighbourhood in log variables, at the end, and at most on the way.
NEAR, WIDE = 1e-5, 1e-3

#: KKT residual at which a search is content.
GOAL = 5e-4

#: A budget counts as active within this relative distance.
ACTIVE = 1e-4

#: Points on the way that later steps remember.
SEEN = 12


@dataclass(frozen=True)
class Finished:
    """An optimum with its proof.

    Attributes:
        x: log variables, (variables,). score: ln(tokens/s/MW). mapping: index.
        overdraft: largest budget overdraft.
        budgets: g, (budgets,).
        residual: KKT residual.
        prices: budget or ``target_tpot`` -> elasticity from below (what less costs) and from above (what more buys).
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


def _walk(
    problem: Problem, space: Space, x: np.ndarray, mapping: int, steps: int
) -> tuple[np.ndarray, list[float], int]:
    """Steps of the trust-region method from ``x``: where it ends, the scores on the way, model evaluations."""
    radius, width, share = 0.1, NEAR, 1.0
    now = sample(problem, space, x, mapping, width)
    path, seen, near, evaluations = [], [], -np.inf, len(now.y)
    for _ in range(steps):
        path.append(float(now.score[0]))
        d, promised = step(now, space, radius, seen, share)
        if promised < now.merit + 1e-9 or radius < 1e-7:
            if width <= NEAR or near == now.merit:
                break
            # Pieces a little further off hid the way: look more closely, once before each gain.
            width, radius, near = NEAR, max(radius, 1e-3), now.merit
            now = sample(problem, space, now.y[0], mapping, width)
            evaluations += len(now.y)
            continue
        width = float(np.clip(0.2 * np.abs(d).max(), NEAR, WIDE))
        trial = sample(problem, space, held(space, now.y[0], d), mapping, width)
        evaluations += len(trial.y)
        if trial.merit > now.merit + 1e-12:
            seen.append(now)
            kept = trial.merit - now.merit > 0.5 * (promised - now.merit)
            share = 0.25 * share if kept else min(4.0 * share, 1.0)
            radius = min(radius * (4.0 if np.abs(d).max() > 0.9 * radius else 1.0), 0.3)
            now = trial
        else:
            seen.append(trial)
            radius, share = 0.3 * radius, min(4.0 * share, 1.0)
            width = float(np.clip(0.2 * radius, NEAR, WIDE))
            now = sample(problem, space, now.y[0], mapping, width)
            evaluations += len(now.y)
        seen = seen[-SEEN:]
    return now.y[0], path, evaluations


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
    while True:
        walks -= 1
        x, way, spent = _walk(problem, space, x, mapping, steps)
        samples = sample(problem, space, x, mapping, NEAR)
        path, evaluations = path + way, evaluations + spent + len(samples.y)
        residual, prices = certify(samples, space)
        if residual <= GOAL or walks <= 0:
            break
    return Finished(
        x=x, score=float(samples.score[0]), mapping=mapping, overdraft=samples.overdraft, budgets=samples.g[0],
        residual=residual, prices=prices, path=path, evaluations=evaluations,
    )  # fmt: skip


def certify(s: Samples, space: Space) -> tuple[float, dict[str, tuple[float, float]]]:
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
    for i, j in active:
        moves = np.flatnonzero(s.g_by_x[i, j])
        if len(moves) == 1 and s.g_by_x[i, j, moves[0]] > 0.0:
            at_high[moves[0]] = False  # the budget of this variable alone is its bound by another name: price it there
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
    slack = max(1.5 * residual, 1e-6)
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
        prices[name] = (max(ends), min(ends))
    return residual, prices


__all__ = ["ACTIVE", "PENALTY", "Finished", "certify", "finish"]
