"""The fullest rank as an order statistic, in numpy: what the closed forms of `codesign.routing` are held against.

``E[max] = sum_x [1 - P(max <= x)]``.  Ranks are independent variance-matched binomials with distribution functions
``F_r``; their counts are then conditioned on the known total, ``P(max <= x) = prod_r F_r(x) P(sum = N | all <= x) /
P(sum = N)``, by a Fourier sum, up to 1,500 routes; beyond, the product of ``F_r`` alone (they differ by 0.03 %).
For uniform routing and one token this is exact (a multivariate hypergeometric draw).  Slow, and without derivatives.
"""

import numpy as np
from scipy.special import betainc, gammaln

from codesign.routing_tables import inclusion

_CONDITIONED = 1500


def rank_sizes(experts: int, ranks: int) -> list[tuple[int, int]]:
    """(experts held, how many ranks hold so many), larger first, ranks without experts left out."""
    low, more = divmod(experts, ranks)
    return [(n, count) for n, count in ((low + 1, more), (low, ranks - more)) if n and count]


def _maximum(places: np.ndarray, chance: np.ndarray, count: np.ndarray, total: int) -> float:
    """Expected maximum of binomials (``places``, ``chance``), each ``count`` times, given their sum ``total``."""
    mean = places * chance
    deviation = np.sqrt(mean * (1.0 - chance))
    first = int(max(0.0, np.floor((mean - 2.0 * deviation).max()) - 2))
    last = int(min(total, np.ceil((mean + 9.0 * deviation).max()) + 12))
    if last <= first:
        return float(last)
    if total > _CONDITIONED:
        x = np.arange(first, last + 1.0)
        left = places[:, None] - x
        below = np.where(left > 1e-9, betainc(np.maximum(left, 1e-9), x + 1.0, 1.0 - chance[:, None]), 1.0)
        return first + float(np.sum(1.0 - np.exp(count @ np.log(np.maximum(below, 1e-300)))))
    x = np.arange(last + 1.0)
    left = places[:, None] - x
    safe = np.maximum(left, -0.999999)
    logs = gammaln(places + 1.0)[:, None] - gammaln(x + 1.0) - gammaln(safe + 1.0)
    logs += x * np.log(chance)[:, None] + left * np.log1p(-chance)[:, None]
    mass = np.where(left > -1e-9, np.exp(logs), 0.0)
    points = 1 << int(np.ceil(np.log2(max(2.5 * total, 64.0))))
    turn = np.exp(-2j * np.pi * np.arange(points) / points)
    transform, phase = np.zeros((len(places), points), complex), np.ones(points, complex)
    back, found = np.conj(turn) ** total, []
    for level in range(last + 1):
        transform += mass[:, level : level + 1] * phase
        phase = phase * turn
        if level >= first:
            found.append(float(np.real(np.sum(np.prod(transform ** count[:, None], axis=0) * back))))
    return first + float(np.sum(1.0 - np.clip(np.array(found) / found[-1], 0.0, 1.0)))


def _uniform(draws: int, dispersion: float, experts: int, ranks: int) -> float:
    sizes = rank_sizes(experts, ranks)
    if draws <= 1 or ranks == 1:
        return float(draws)
    if dispersion <= 0.0:
        return float(sizes[0][0])
    d = min(dispersion, 1.0 - 1e-9)
    cells = (draws - d) / (1.0 - d)
    held, count = np.array(sizes, float).T
    return _maximum(cells * held / experts, np.full(len(held), draws / cells), count, draws)


def fullest_rank_reference(
    tokens: int, experts: int, top_k: int, ranks: int, skew: float = 0.0, placements: int = 64, seed: int = 0
) -> float:
    """Expected routes on the fullest rank for whole ``tokens`` and ``ranks``.

    Uniform: places ``C`` so that ``(C - N)/(C - 1) = (E - k)/(E - 1)``.  Skewed: mean over random ``placements`` of
    the order statistic with mean ``T sum p`` and variance ``T sum p (1 - p)`` per rank; too high by up to 13 % for one
    token and skew above 1, whose experts are distinct, within 1 % of sampling from 32 tokens up.
    """
    draws = tokens * top_k
    if skew == 0.0:
        return _uniform(draws, (experts - top_k) / max(experts - 1, 1), experts, ranks)
    if ranks == 1:
        return float(draws)
    p = inclusion(experts, top_k, skew)
    rng = np.random.default_rng(seed)
    edges = np.cumsum([0] + [n for n, count in rank_sizes(experts, ranks) for _ in range(count)])[:-1]
    found = []
    for _ in range(placements):
        placed = p[rng.permutation(experts)]
        mean = tokens * np.add.reduceat(placed, edges)
        variance = tokens * np.add.reduceat(placed * (1.0 - placed), edges)
        chance = np.clip(1.0 - variance / mean, 1e-9, 1.0 - 1e-9)
        found.append(_maximum(mean / chance, chance, np.ones(len(mean)), draws))
    return float(np.mean(found))


def fullest_distinct_reference(distinct: float, experts: int, ranks: int) -> float:
    """Expected maximum over ranks of hit experts when ``distinct`` of ``experts`` are hit, placed at random.

    Exact for whole ``distinct`` (multivariate hypergeometric), linear between.
    """
    low = int(np.floor(distinct))
    at = [_uniform(n, (experts - n) / max(experts - 1, 1), experts, ranks) for n in (low, min(low + 1, experts))]
    return at[0] + (distinct - low) * (at[1] - at[0])
