"""Fits the constants of `codesign.routing.Fit` to order statistics and to sampled skewed routing.

Run ``python -m codesign.tools.fit_routing``: about ten minutes on one core; prints the constants and the errors.
Uniform points: routes and distinct experts over many (E, k), ranks and tokens from `codesign.routing_reference`.
Skewed points: tokens choose by the exponential race (top-k without replacement) or, above 64 tokens, experts get
binomial counts with the law's inclusion probabilities; experts lie on the ranks at random.
"""

import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

from codesign.routing import FIT, Fit, fullest_rank_distinct, fullest_rank_routes
from codesign.routing_reference import fullest_distinct_reference, fullest_rank_reference, rank_sizes
from codesign.routing_tables import inclusion

UNIFORM = (
    (896, 16),
    (384, 8),
    (256, 8),
    (384, 6),
    (256, 6),
    (512, 10),
    (128, 8),
    (128, 4),
    (512, 22),
    (8, 2),
    (128, 1),
    (160, 6),
    (64, 6),
    (16, 1),
    (16, 4),
    (1024, 8),
    (60, 4),
    (144, 5),
    (320, 10),
    (72, 2),
)
SKEWED = ((896, 16), (384, 8), (256, 8), (512, 22), (128, 8), (128, 4), (64, 6), (8, 2))
RANKS = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    12,
    16,
    18,
    20,
    24,
    32,
    36,
    40,
    48,
    60,
    64,
    72,
    96,
    100,
    128,
    144,
    192,
    256,
    288,
    320,
    384,
    448,
    512,
    576,
    768,
    896,
    1152,
)
#: And numbers of ranks at which a few of them hold one expert more than the others, as shares of the experts.
UNEVEN = (0.98, 0.9, 0.75, 0.6, 0.52, 0.49, 0.36, 0.26, 0.21, 0.15)
TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 16384, 65536)
SKEWS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25)
#: Constants that only skewed routing sees.
SKEW_ONLY = ("pairs_skew", "triples_skew", "cross", "cross_mean")

Group = tuple[Callable[..., jax.Array], int, int, np.ndarray]
Errors = Callable[[np.ndarray, Fit], tuple[np.ndarray, np.ndarray]]


def _distinct(tokens: int, experts: int, top_k: int, ranks: int) -> float:
    """Reference for distinct experts, over the spread of their number (normal, three Hermite points)."""
    miss = 1.0 - top_k / experts
    hit = -np.expm1(tokens * np.log(miss))
    both = 1.0 - 2.0 * miss**tokens + (miss * (experts - top_k - 1) / (experts - 1)) ** tokens
    variance = experts * hit * (1.0 - hit) + experts * (experts - 1) * (both - hit * hit)
    mean, deviation = experts * hit, np.sqrt(max(variance, 0.0))
    offsets = (-np.sqrt(3.0), 0.0, np.sqrt(3.0)) if tokens > 1 else (0.0,)
    at = [
        fullest_distinct_reference(float(np.clip(mean + o * deviation, top_k, experts)), experts, ranks)
        for o in offsets
    ]
    return float(np.dot(at, (1 / 6, 2 / 3, 1 / 6))) if tokens > 1 else at[0]


def uniform_points() -> list[Group]:
    """(function, E, k, rows of tokens, ranks, skew, expected) for uniform routing."""
    groups: list[Group] = []
    for experts, k in UNIFORM:
        routes, distinct = [], []
        for ranks in sorted({*RANKS, *(round(experts * share) for share in UNEVEN)}):
            if not 2 <= ranks <= experts:
                continue
            for tokens in (*TOKENS, int(1e5 * ranks / k)):
                if not 0.005 <= tokens * k / ranks <= 1.01e5 or tokens * k < 2:
                    continue
                routes.append((tokens, ranks, 0.0, fullest_rank_reference(tokens, experts, k, ranks)))
                if (1.0 - k / experts) ** tokens > 1e-6:
                    distinct.append((tokens, ranks, 0.0, _distinct(tokens, experts, k, ranks)))
        groups.append((fullest_rank_routes, experts, k, np.array(routes)))
        groups.append((fullest_rank_distinct, experts, k, np.array(distinct)))
    return groups


def skewed_points(worlds: int = 250, placements: int = 12) -> list[Group]:
    """(function, E, k, rows of tokens, ranks, skew, sampled mean) for the power law."""
    rng = np.random.default_rng(5)
    groups: list[Group] = []
    for experts, k in SKEWED:
        ranks = [r for r in RANKS if r <= experts]
        edges = [np.cumsum([0] + [n for n, c in rank_sizes(experts, r) for _ in range(c)])[:-1] for r in ranks]
        rows = []
        for skew in SKEWS:
            popularity, p = np.arange(1.0, experts + 1.0) ** -skew, inclusion(experts, k, skew)
            for tokens in (2, 3, 4, 8, 16, 32, 64, 256, 1024, 8192, 65536):
                total = np.zeros(len(ranks))
                for _ in range(worlds):
                    if tokens <= 64:
                        race = rng.exponential(size=(tokens, experts)) / popularity
                        counts = np.bincount(np.argpartition(race, k - 1, axis=1)[:, :k].ravel(), minlength=experts)
                    else:
                        counts = rng.binomial(tokens, p)
                    for _ in range(placements):
                        placed = counts[rng.permutation(experts)]
                        total += [np.add.reduceat(placed, e).max() for e in edges]
                rows += [(tokens, r, skew, t) for r, t in zip(ranks, total / (worlds * placements), strict=True)]
        groups.append((fullest_rank_routes, experts, k, np.array(rows)))
    return groups


def _errors(groups: list[Group], free: tuple[str, ...]) -> Errors:
    """Log errors and their derivatives by the free constants, over all groups."""

    def one(function, experts, k, rows):
        tokens, ranks, skews, expected = (jnp.asarray(c) for c in rows.T)
        skew = 0.0 if not rows[:, 2].any() else skews

        def error(values, rest):
            fit = rest._replace(**dict(zip(free, values, strict=True)))
            return jnp.log(function(tokens, experts, k, ranks, skew, fit) / expected)

        return jax.jit(lambda v, rest: (error(v, rest), jax.jacfwd(error)(v, rest)))

    compiled = [one(*group) for group in groups]

    def all_of_them(values: np.ndarray, rest: Fit) -> tuple[np.ndarray, np.ndarray]:
        found = [f(jnp.asarray(values), rest) for f in compiled]
        return np.concatenate([e for e, _ in found]), np.concatenate([j for _, j in found])

    return all_of_them


def _weighed(errors: Errors, start: Fit, heavy: float, values: np.ndarray) -> np.ndarray:
    e = 100.0 * errors(values, start)[0]
    return e * (1.0 + heavy * e * e)


def _slopes(errors: Errors, start: Fit, heavy: float, values: np.ndarray) -> np.ndarray:
    e, slopes = errors(values, start)
    return (1.0 + 3e4 * heavy * e * e)[:, None] * 100.0 * slopes


def fit(groups: list[Group], free: tuple[str, ...], start: Fit) -> tuple[Fit, np.ndarray]:
    """Least squares of ``e (1 + q e^2)``, e the error in per cent, q raised step by step so that the worst count."""
    errors = _errors(groups, free)
    values = np.array([getattr(start, name) for name in free])
    for heavy in (0.0, 0.02, 0.1, 0.5, 2.0):
        values = least_squares(
            partial(_weighed, errors, start, heavy),
            values,
            jac=partial(_slopes, errors, start, heavy),  # type: ignore
            x_scale="jac",
            max_nfev=200,
        ).x
    values = np.round(values, 4)
    return start._replace(**dict(zip(free, map(float, values), strict=True))), errors(values, start)[0]


def main() -> None:
    """Fits the uniform constants first, the skewed ones on top, and prints both with their errors."""
    jax.config.update("jax_enable_x64", True)
    uniform_names = tuple(name for name in Fit._fields if name not in SKEW_ONLY)
    found, errors = FIT, np.zeros(0)
    for what, points, free in (("uniform", uniform_points, uniform_names), ("skewed", skewed_points, SKEW_ONLY)):
        found, errors = fit(points(), free, found)
        size = np.abs(errors)
        sys.stdout.write(
            f"{what}: {len(size)} points, median {np.median(size):.4f}, 99 % {np.quantile(size, 0.99):.4f}, "
            f"worst {size.max():.4f}, {np.sum(size > 0.03)} above 3 %\n"
        )
    sys.stdout.write("".join(f"    {name}: float = {value:g}\n" for name, value in found._asdict().items()))


if __name__ == "__main__":
    main()
