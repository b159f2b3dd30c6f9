"""Numbers behind the routing law that are worked out once per (experts, top-k), with numpy, when a model is traced.

Popularity is a power law, ``w_e = (e + 1)^-skew``; top-k without replacement under these weights has inclusion
probabilities near ``p_e = 1 - exp(-tau w_e)`` with ``tau`` from ``sum_e p_e = k`` (within 1.6 % of Monte Carlo up to
skew 1 for k of 4 and more).  The experts lie on the ranks at random: popularity has nothing to do with an expert's
number.  From this law follow a short quadrature over popularity, the second and third moments of ``p``, and how far
the fullest of the ranks stands out when every rank gets exactly its expected routes; each is kept as a polynomial.

The numpy references at the end give the expectations that `codesign.routing` approximates in closed form.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

MAXIMUM_SKEW = 1.5
NODES = 10
_DEGREE = 7
_PLACEMENTS = 512


def normal_maximum(log_ranks):
    """Expected maximum of R standard normals by ln R, as a rational function within 0.3 % for R up to 3,000."""
    return log_ranks * (0.9051 + 0.0325 * log_ranks) / (1.0 + 0.2022 * log_ranks)


def _solve_tau(weight: np.ndarray, popularity: np.ndarray, top_k: int) -> float:
    """``tau`` of ``sum_j weight_j (1 - exp(-tau w_j)) = k`` by bisection on its logarithm."""
    low, high = -30.0, 60.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if float(np.sum(weight * -np.expm1(-np.exp(middle) * popularity))) < top_k:
            low = middle
        else:
            high = middle
    return float(np.exp(0.5 * (low + high)))


def inclusion(experts: int, top_k: int, skew: float) -> np.ndarray:
    """Inclusion probability ``p_e = 1 - exp(-tau (e + 1)^-skew)`` of every expert [experts], ``sum p = top_k``."""
    if top_k >= experts:
        return np.ones(experts)
    if skew == 0.0:
        return np.full(experts, top_k / experts)
    popularity = np.arange(1.0, experts + 1.0) ** -skew
    return -np.expm1(-_solve_tau(np.ones(experts), popularity, top_k) * popularity)


def _quadrature(experts: int) -> np.ndarray:
    """Weights [NODES] for expert ranks ``E^(j/(NODES - 1))`` so that they stand for the sum over all experts.

    Least squares on ``sum_e [1 - exp(-u (e + 1)^-s)]`` over u and s, drawn to the trapezoid rule in ln(rank) where the
    data do not decide, with ``sum = E`` kept.  Within 0.7 % over all u, s up to 1.5 and E up to 1,024.
    """
    rank = experts ** (np.arange(NODES) / (NODES - 1))
    prior = rank * np.log(experts) / (NODES - 1)
    prior[-1] *= 0.5
    prior[0] = 0.5 + 0.5 * prior[0]
    prior *= experts / prior.sum()
    u = np.geomspace(1e-3, 1e7, 60)[:, None]
    rows = []
    for s in np.linspace(0.0, MAXIMUM_SKEW, 11):
        exact = -np.expm1(-u * np.arange(1.0, experts + 1.0) ** -s).sum(axis=1, keepdims=True)
        keep = exact[:, 0] > 0.3
        rows.append(((1.0 - np.exp(-u * rank**-s)) / exact)[keep])
    matrix = np.vstack(rows) * prior
    emphasis, draw = np.ones(len(matrix)), 1e-3 * np.sqrt(len(matrix))
    factor = np.ones(NODES)
    for _ in range(6):
        left = np.vstack([matrix * emphasis[:, None], draw * np.eye(NODES), 1e4 * prior / experts])
        right = np.concatenate([emphasis, np.full(NODES, draw), [1e4]])
        factor = np.linalg.lstsq(left, right, rcond=None)[0]
        miss = np.abs(matrix @ factor - 1.0)
        emphasis = emphasis * np.sqrt(0.2 + miss / miss.max())
        emphasis /= np.sqrt(np.mean(emphasis**2))
    weight = np.maximum(factor, 0.0) * prior
    return weight * experts / weight.sum()


class Law(NamedTuple):
    """What the power law of one (experts, top-k) needs at run time; polynomials in skew, lowest power first.

    Attributes:
        weights: quadrature weights of the popularity nodes ``exp(-skew j step)``, j = 0 ... NODES - 1.
        step: distance of the nodes in ln(expert rank).
        log_tau0: ln tau of uniform routing, ``ln(-ln(1 - k/E))``.
        log_tau: ``(ln tau - log_tau0)/skew``.
        second: ``ln((sum p^2 - k^2/E)/skew^2)``.
        third: ``ln((sum p^3 - k^3/E^2)/skew^2)``.
        spread: [power of ``2 ln R/ln E - 1``, power of ``skew/0.75 - 1``]: ``ln(e/(skew m(R)))`` with ``e`` the share
            of all routes by which the fullest of R equal ranks exceeds the mean, ``m`` `normal_maximum`.
    """

    weights: tuple[float, ...]
    step: float
    log_tau0: float
    log_tau: tuple[float, ...]
    second: tuple[float, ...]
    third: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...]


def _polynomial(x: np.ndarray, y: np.ndarray) -> tuple[float, ...]:
    fit = np.polynomial.Chebyshev.fit(x, y, _DEGREE, domain=[0.0, MAXIMUM_SKEW])
    return tuple(float(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef)


def _spread(experts: int, top_k: int) -> tuple[tuple[float, ...], ...]:
    """Simulates `Law.spread`: random placements (fixed seed), equal ranks of n experts, the fullest one's excess."""
    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(experts), (_PLACEMENTS, 1)), axis=1)
    sizes = np.unique(np.round(np.geomspace(1, max(experts // 2, 1), 14)).astype(int))
    points = []
    for skew in (0.02, 0.1, 0.25, 0.45, 0.65, 0.85, 1.05, 1.3, 1.5):
        total = np.zeros((_PLACEMENTS, experts + 1))
        np.cumsum(inclusion(experts, top_k, skew)[order], axis=1, out=total[:, 1:])
        for n in sizes:
            ranks = experts // n
            loads = total[:, n : ranks * n + 1 : n] - total[:, 0 : (ranks - 1) * n + 1 : n]
            points.append((skew, ranks, loads.max(axis=1).mean() / top_k - n / experts))
    skew, ranks, excess = np.array(points).T
    x = 2.0 * np.log(ranks) / np.log(experts) - 1.0
    y = np.log(np.maximum(excess, 1e-12) / (skew * normal_maximum(np.log(ranks))))
    degree = min(4, len(np.unique(ranks)) - 1)
    basis = np.polynomial.polynomial.polyvander2d(x, skew / 0.75 - 1.0, [degree, 4])
    fit = np.linalg.lstsq(basis, y, rcond=None)[0].reshape(degree + 1, 5)
    return tuple(tuple(float(c) for c in row) for row in fit)


@lru_cache(maxsize=64)
def law(experts: int, top_k: int) -> Law:
    """The power law of ``experts`` and ``top_k`` (``1 <= top_k < experts``), fitted for skews from 0 to 1.5.

    Deterministic; a few tenths of a second for 896 experts.
    """
    weights = _quadrature(experts)
    rank = experts ** (np.arange(NODES) / (NODES - 1))
    log_tau0 = float(np.log(-np.log1p(-top_k / experts)))
    skews = 0.5 * MAXIMUM_SKEW * (1.0 - np.cos(np.pi * (np.arange(24) + 0.5) / 24))
    log_tau, second, third = [], [], []
    for s in skews:
        log_tau.append((np.log(_solve_tau(weights, rank**-s, top_k)) - log_tau0) / s)
        p = inclusion(experts, top_k, float(s))
        second.append(np.log((np.sum(p**2) - top_k**2 / experts) / s**2))
        third.append(np.log((np.sum(p**3) - top_k**3 / experts**2) / s**2))
    return Law(
        weights=tuple(float(w) for w in weights),
        step=float(np.log(experts) / (NODES - 1)),
        log_tau0=log_tau0,
        log_tau=_polynomial(skews, np.array(log_tau)),
        second=_polynomial(skews, np.array(second)),
        third=_polynomial(skews, np.array(third)),
        spread=_spread(experts, top_k),
    )
