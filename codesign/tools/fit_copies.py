"""Fits the constants of `codesign.routing_copies.Fit` to a simulated balancer and sampled tokens.

Run ``python -m codesign.tools.fit_copies``: about ten minutes on one core; prints the constants and the errors.
Points are drawn at random over experts, top-k, ranks (many that do not divide), copies, skew and tokens.  A token
draws distinct experts with the law's inclusion probabilities (systematic sampling in random order); above 512 tokens
experts get binomial counts.  Its routes go to one of an expert's copies at random; slots lie where the
balancer put them.
"""

import sys
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from codesign.routing_copies import FIT, Fit, fullest_rank_distinct_copied, fullest_rank_routes_copied
from codesign.routing_tables import MAXIMUM_SKEW, inclusion

MODELS = ((64, 4), (64, 6), (96, 4), (128, 4), (128, 8), (160, 6), (256, 8), (320, 12), (384, 8), (512, 10), (896, 16))
RANKS = (4, 8, 12, 16, 24, 32, 36, 48, 64, 72)
#: Settings drawn for each sample of tokens.
LAYOUTS = 30


class Point(NamedTuple):
    """A setting and what was sampled there: means of the fullest rank's routes and distinct slots."""

    experts: int
    top_k: int
    tokens: int
    ranks: int
    copies: int
    skew: float
    routes: float
    distinct: float


def balance(p: np.ndarray, copies: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """A balancer: a copy goes to the expert with most load per copy, a slot to the emptiest rank, heaviest first.

    Returns:
        copies of each expert (E,), and the rank of each slot (S,), slots of an expert side by side.
    """
    n = np.ones(len(p), int)
    heap = [(-float(x), e) for e, x in enumerate(p)]
    heapify(heap)
    for _ in range(copies):
        e = heap[0][1]
        n[e] += 1
        heapreplace(heap, (-float(p[e]) / int(n[e]), e))
    load = np.repeat(p / n, n)
    low, more = divmod(len(load), ranks)
    held, where, longer = np.zeros(ranks, int), np.zeros(len(load), int), 0
    open_ranks = [(0.0, r) for r in range(ranks)]
    for slot in np.argsort(-load, kind="stable"):
        total, rank = heappop(open_ranks)
        while longer >= more and held[rank] >= low:
            total, rank = heappop(open_ranks)
        where[slot], held[rank] = rank, held[rank] + 1
        longer += held[rank] > low
        if held[rank] <= low:
            heappush(open_ranks, (total + float(load[slot]), rank))
    return n, where


def draw(p: np.ndarray, tokens: int, worlds: int, rng: np.random.Generator) -> np.ndarray:
    """Routes of each expert (worlds, E)."""
    experts = len(p)
    if tokens > 512:
        return rng.binomial(tokens, p, size=(worlds, experts))
    counts = np.empty((worlds, experts), int)
    step = max(1, 400_000 // (tokens * experts))
    for first in range(0, worlds, step):
        size = min(step, worlds - first)
        order = np.argsort(rng.random((size * tokens, experts), dtype=np.float32), axis=1)
        reached = np.floor(np.cumsum(p[order], axis=1) * (1.0 - 1e-12) + rng.random((size * tokens, 1)))
        token, place = np.nonzero(np.diff(reached, axis=1, prepend=0.0) > 0.0)
        at = (token // tokens) * experts + order[token, place]
        counts[first : first + size] = np.bincount(at, minlength=size * experts).reshape(size, experts)
    return counts


def observe(counts: np.ndarray, n: np.ndarray, where: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Means of the fullest rank's routes and distinct slots, the routes of an expert shared out among its copies."""
    first, slots = np.cumsum(n) - n, np.empty((len(counts), len(where)), int)
    for m in np.unique(n):
        which = np.flatnonzero(n == m)
        shared = rng.multinomial(counts[:, which].ravel(), np.full(m, 1.0 / m)).reshape(len(counts), -1)
        slots[:, (first[which][:, None] + np.arange(m)).ravel()] = shared
    order = np.argsort(where, kind="stable")
    edges = np.unique(where[order], return_index=True)[1]
    most = [np.add.reduceat(x[:, order], edges, axis=1).max(axis=1).mean() for x in (slots, (slots > 0).astype(int))]
    return float(most[0]), float(most[1])


def points(samples: int = 200, seed: int = 7) -> Iterator[Point]:
    """Settings at random, each with what was sampled there (standard error 0.2 %, 0.5 % for few tokens)."""
    rng = np.random.default_rng(seed)
    for _ in range(samples):
        experts, top_k = MODELS[rng.integers(len(MODELS))]
        skew = float(rng.choice([0.0, rng.uniform(0.0, MAXIMUM_SKEW), rng.uniform(0.0, MAXIMUM_SKEW)]))
        tokens = round(10 ** rng.uniform(0.0, 5.0))
        worlds = next(w for most, w in ((8, 3000), (64, 1500), (512, 600), (10**6, 300)) if tokens <= most)
        p = inclusion(experts, top_k, skew)
        counts = draw(p, tokens, worlds, rng)
        for _ in range(LAYOUTS):
            ranks = int(rng.choice(RANKS) if rng.random() < 0.6 else rng.integers(4, 73))
            copies = (
                round(np.exp(rng.uniform(0.0, np.log(experts)))),
                ranks * rng.integers(1, max(2, experts // ranks + 1)),
                -experts % ranks + ranks * rng.integers(0, max(1, experts // ranks)),
            )[rng.integers(3)]
            copies = int(np.clip(copies, 1, experts))
            yield Point(
                experts, top_k, tokens, ranks, copies, skew, *observe(counts, *balance(p, copies, ranks), rng)
            )  # fmt: skip


def errors(found: list[Point], fit: Fit = FIT) -> np.ndarray:
    """Log errors of routes and distinct slots, (points, 2)."""
    off = np.zeros((len(found), 2))
    for experts, top_k, even in {(p.experts, p.top_k, p.skew == 0.0) for p in found}:
        here = [i for i, p in enumerate(found) if (p.experts, p.top_k, p.skew == 0.0) == (experts, top_k, even)]
        rows = np.array([found[i][2:] for i in here], float)
        value = _compiled(experts, top_k, even)(rows[:, :4], jnp.array(fit))
        off[here] = np.log(np.asarray(value) / rows[:, 4:])
    return off


_PROGRAMS: dict = {}


def _compiled(experts: int, top_k: int, even: bool):
    def both(row: jax.Array, values: jax.Array) -> jax.Array:
        tokens, ranks, copies, skew = row
        setting = (tokens, experts, top_k, ranks, copies, 0.0 if even else skew)
        routes = fullest_rank_routes_copied(*setting, Fit(*values))
        return jnp.stack([routes, fullest_rank_distinct_copied(*setting)])

    key = experts, top_k, even
    if key not in _PROGRAMS:
        _PROGRAMS[key] = jax.jit(jax.vmap(both, in_axes=(0, None)))
    return _PROGRAMS[key]


def fit(found: list[Point], start: Fit = FIT, steps: int = 150) -> Fit:
    """Least mean of the errors of routes to the power 1.5, by the simplex of Nelder and Mead."""

    def miss(values: np.ndarray) -> float:
        return float(np.mean(np.abs(errors(found, Fit(*values))[:, 0]) ** 1.5))

    return Fit(
        *np.round(minimize(miss, np.array(start), method="Nelder-Mead", options={"maxfev": steps}).x, 3).tolist()
    )


def main() -> None:
    """Fits the constants and prints them with their errors."""
    jax.config.update("jax_enable_x64", True)
    found = list(points())
    best = fit(found)
    off = np.abs(errors(found, best))
    whole = np.array([(p.experts + p.copies) % p.ranks == 0 for p in found])
    for what, column in (("routes", 0), ("distinct", 1)):
        for where, some in (("all", whole | True), ("as many slots on every rank", whole)):
            e = off[some, column]
            sys.stdout.write(
                f"{what}, {where}: {len(e)} points, median {np.median(e):.4f}, 95 % {np.quantile(e, 0.95):.4f}, "
                f"99 % {np.quantile(e, 0.99):.4f}, worst {e.max():.4f}, {np.mean(e > 0.03):.2%} above 3 %\n"
            )
    sys.stdout.write("".join(f"    {name}: float = {value:g}\n" for name, value in best._asdict().items()))


if __name__ == "__main__":
    main()
