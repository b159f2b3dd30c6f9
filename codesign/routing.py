r"""Where the routes of a batch fall: distinct experts, the fullest rank, the ranks a token reaches.

Each token chooses ``k`` of ``E`` experts without replacement, independently of other tokens, uniformly or with
popularity ``(e + 1)^-skew``; experts lie on the ranks at random, :math:`\lceil E/R \rceil` or
:math:`\lfloor E/R \rfloor` on each.  The pass waits for the fullest rank, so its expected routes and distinct experts
are needed, and their derivatives.  The expectation of a maximum has no closed form; what stands here is elementwise,
smooth almost everywhere (kinks: caps, and whole-number steps of ``E/R``) and was fitted by
`codesign.tools.fit_routing` to the order statistics of `codesign.routing_reference` over 0.005 to 1e5 routes per rank
on 2 to 1,152 ranks.  Uniform: median error 0.15 %, routes within 3 %, distinct experts within 3 % but for odd layouts
of three or four experts per rank (4.5 % at 896 experts on 288 ranks).  Skewed up to 1.3, against sampled tokens: median
0.5 %, 99 % of points within 3.7 %, worst 10 % (2 to 4 tokens on nearly as many ranks as experts; 8 experts on 6 ranks).

Left out: tokens of one request that route alike (real batches hit fewer distinct experts) and the correlation that
group-limited routing adds within a rank.  Copies of popular experts are in `codesign.routing_copies`, capacity factors
in `codesign.routing_capacity`.
Tokens are whole in truth; below one token the expectation is that of one token times its probability.
"""

from collections.abc import Callable
from functools import partial
from math import log
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from codesign.errors import CodesignError
from codesign.lanes import Number
from codesign.routing_tables import MAXIMUM_SKEW, NODES, Law, law, normal_maximum


class Fit(NamedTuple):
    """Constants of `_fullest`, fitted to the order statistics (see `codesign.tools.fit_routing`).

    Attributes:
        bend, bend_limit: how skewness lifts or lowers the normal maximum.
        base, slope, curve: terms of order one in the excess, by the normal maximum z.
        near_full, near_full_slope: the same where most of a rank's places are taken.
        sparse, sparse_slope, sparse_noise: the same where a rank expects less than one.
        gap_level, gap_noise, gap_half, gap_most, gap_most_half, gap_ranks, gap_uneven, gap_mean: how far a rank with
            one expert less lags behind one with more.
        pairs, triples: how much faster than Poisson a pair or a triple becomes certain, from ranks being few.
        pairs_sum, triples_sum: the same from the sum over ranks being fixed.
        start, width: maximum at which the count of levels hands over to the continuous form.
        pairs_skew, triples_skew: weight of hits on one popular expert among the pairs and triples.
        cross, cross_mean: joint part of chance and popularity where a rank expects less than one.
    """

    bend: float = 0.3001
    bend_limit: float = 0.0434
    base: float = -0.334
    slope: float = 0.2375
    curve: float = -0.2284
    near_full: float = 0.2055
    near_full_slope: float = 0.4262
    sparse: float = -0.132
    sparse_slope: float = -0.5725
    sparse_noise: float = 0.9754
    gap_level: float = 0.948
    gap_noise: float = 1.6654
    gap_half: float = 3.2331
    gap_most: float = 3.7328
    gap_most_half: float = 26.5825
    gap_ranks: float = 1.6068
    gap_uneven: float = 0.2354
    gap_mean: float = 0.1825
    pairs: float = 0.8127
    pairs_sum: float = 1.2144
    triples: float = 0.7192
    triples_sum: float = 0.1245
    start: float = 2.5025
    width: float = 0.5749
    pairs_skew: float = 1.1947
    triples_skew: float = 1.0915
    cross: float = 0.8373
    cross_mean: float = 7.8733


FIT = Fit()


class _Popularity(NamedTuple):
    """What a skewed law adds to the fullest rank, all 0 for uniform routing.

    Attributes:
        excess: routes by which the most popular rank exceeds the mean if every expert got its expectation.
        pairs, triples: expected pairs and triples of routes on one expert beyond those of uniform routing.
    """

    excess: Number
    pairs: Number
    triples: Number


def _check(experts: int, top_k: int) -> None:
    if not 1 <= top_k <= experts:
        raise CodesignError(f"top_k = {top_k} of {experts} experts", key="top_k", allowed=f"1 to {experts}")


def _is_uniform(skew: Number) -> bool:
    """Whether the law is known to be uniform when traced; refuses a known skew that the law is not fitted for."""
    if not isinstance(skew, (int, float)):
        return False
    if not 0.0 <= skew <= MAXIMUM_SKEW:
        raise CodesignError(f"a popularity exponent of {skew:g}", key="skew", allowed=f"0 to {MAXIMUM_SKEW:g}")
    return skew == 0


def _horner(coefficients: tuple, x: Number) -> Number:
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def _real(x: Number) -> jax.Array:
    return jnp.asarray(x, dtype=float)


def _most_held(experts: Number, ranks: Number) -> jax.Array:
    """Experts on the rank that holds most, ``ceil(E/R)``; linear between whole numbers of experts."""
    held = jnp.minimum(ranks, experts * 1.0)
    low = jnp.floor(experts / held)
    return low + jnp.minimum(experts - held * low, 1.0)


def _whole(amount: Number, least: float) -> jax.Array:
    """``amount`` where it is at least ``least``; below, it returns smoothly to ``least``, with one derivative."""
    share = jnp.minimum(amount / least, 1.0)
    return jnp.maximum(amount, least) - least * share * (1.0 - share)


def _by_forward_mode(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An elementwise function whose derivatives are formed beside its value, one per argument that has a tangent.

    Reverse mode through some 200 elementwise steps would keep and reread them all; most callers only need the
    derivative by tokens, which this gives for a third of the cost of the value.
    """
    wrapped = jax.custom_jvp(function)

    @partial(wrapped.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        value, total = None, None
        for i, tangent in enumerate(tangents):
            if isinstance(tangent, SymbolicZero):
                continue
            alone = lambda x, i=i: function(*primals[:i], x, *primals[i + 1 :])  # noqa: E731
            value, slope = jax.jvp(alone, (primals[i],), (jnp.ones_like(primals[i]),))
            total = slope * tangent if total is None else total + slope * tangent
        if value is None:
            value = function(*primals)
        return value, jnp.zeros_like(value) if total is None else total

    return wrapped


def _fullest(
    draws: Number,
    dispersion: Number,
    per_cell: Number,
    cap: Number,
    experts: Number,
    ranks: Number,
    popularity: _Popularity | None = None,
    fit: Fit = FIT,
) -> jax.Array:
    r"""Expected maximum over ranks of a multivariate hypergeometric draw.

    Small maxima are counted level by level, :math:`1 + (1 - e^{-\lambda_2}) + (1 - e^{-\lambda_3})` with
    :math:`\lambda_x` the expected number of x-fold coincidences on one rank.  Large ones are
    :math:`\mu + \sigma z \psi + c`: ``mu`` the mean of a rank that holds the most experts, ``z`` the maximum of
    :math:`R_e` normals, :math:`\psi` the bend of a skewed distribution, ``c`` terms of order one.
    :math:`R_e = A + B w` counts the B ranks with one expert less by their chance ``w`` to stand as high.
    Popularity adds its own excess in quadrature, and coincidences on one expert.

    Args:
        draws: routes, or distinct experts, N [s].
        dispersion: variance of a rank's count over its mean, in the form whose maximum over independent ranks is that
            of ranks with a fixed sum: ``(E - k)/(E - 1)`` for routes.
        per_cell: 1/C with C the places in all, ``(1 - d)/(N - d)``; 0 for draws with replacement.
        cap: the most that one rank can get.
        experts: E.
        ranks: R.
        popularity: what a skewed law adds.
        fit: the constants.
    """
    held = jnp.minimum(_real(ranks), experts * 1.0)
    low = jnp.floor(experts / held)
    more = experts - held * low  # ranks with one expert more than the others
    high = low + jnp.minimum(more, 1.0)
    f_high, f_low, less = high / experts, low / experts, held - more
    mean = draws * f_high
    uneven = 1.0 - low / high

    # How far a smaller rank lags, and the number of ranks that take part.
    spread, popular = dispersion, 0.0
    if popularity is not None:
        popular = popularity.excess / jnp.maximum(normal_maximum(jnp.log(held)), 1e-6)
        spread = dispersion + popular * popular / mean
    few = (held - 1.0) / (held + fit.gap_half)
    most = jnp.maximum(more - 1.0, 0.0)
    noise = fit.gap_noise * few + fit.gap_most * most / (most + fit.gap_most_half)
    lag = noise * jnp.sqrt(mean * spread + 1e-9) + fit.gap_level * (1.0 + fit.gap_uneven * uneven)
    lag = uneven * (lag + fit.gap_ranks * few + fit.gap_mean * uneven * mean) / (spread + 0.03)
    z = normal_maximum(jnp.log(jnp.maximum(more + less * jnp.exp(-lag), 1.0)))

    # The continuous form.
    sigma = jnp.sqrt(mean * dispersion + 0.01)
    skewness = (2.0 * dispersion - 1.0) * z / sigma
    bend = fit.bend * skewness / (1.0 + fit.bend_limit * jnp.abs(skewness))
    excess = sigma * z * (bend + jnp.sqrt(bend * bend + 1.0))
    excess += dispersion * (fit.base + z * (fit.slope + fit.curve * z))
    excess += dispersion * (1.0 - dispersion) * (fit.near_full + fit.near_full_slope * z)
    excess += dispersion * (fit.sparse + fit.sparse_slope * z + fit.sparse_noise * dispersion) / (1.0 + mean)
    excess = jnp.maximum(excess, 0.0)
    if popularity is not None:
        own = popular * z
        damp = 1.0 + fit.cross_mean * mean
        excess = jnp.sqrt(excess * excess + own * own + fit.cross * excess * own / (damp * damp) + 1e-24)
    smooth = mean + excess

    # The levels: a second and a third route on some rank.
    def places(f: Number, x: int) -> Number:
        taken = f
        for i in range(1, x):
            taken = taken * jnp.maximum(f - i * per_cell, 0.0) / jnp.maximum(1.0 - i * per_cell, 1e-3)
        return taken

    twos = 0.5 * draws * jnp.maximum(draws - 1.0, 0.0)
    threes = twos * jnp.maximum(draws - 2.0, 0.0) / 3.0
    two_high, two_low = twos * places(f_high, 2), twos * places(f_low, 2)
    three_high, three_low = threes * places(f_high, 3), threes * places(f_low, 3)
    two, three = more * two_high + less * two_low, more * three_high + less * three_low
    pairs = fit.pairs * (more * two_high * two_high + less * two_low * two_low)
    triples = fit.triples * (more * three_high * three_high + less * three_low * three_low)
    if popularity is not None:
        together = (experts / held - 1.0) / jnp.maximum(experts - 1.0, 1.0)
        apart = 1.0 - together
        two = two + fit.pairs_skew * popularity.pairs * apart
        other = popularity.pairs * jnp.maximum(draws - 2.0, 0.0) * together
        three = three + fit.triples_skew * apart * (other + popularity.triples * apart)
    pairs += two * (1.0 + fit.pairs_sum * two / held)
    triples += three * (1.0 + fit.triples_sum * three / held)
    counted = 3.0 - jnp.exp(-pairs) - jnp.exp(-triples)

    # A rank of three places needs no more than the levels.
    hand_over = jnp.clip((smooth - fit.start) / fit.width, 0.0, 1.0)
    hand_over = hand_over * jnp.clip((f_high - 3.0 * per_cell) / jnp.maximum(per_cell, 1e-12), 0.0, 1.0)
    hand_over = hand_over * hand_over * (3.0 - 2.0 * hand_over)
    found = counted + hand_over * (smooth - counted)
    return jnp.minimum(jnp.maximum(found, mean), cap)


def _tau(fitted: Law, skew: Number) -> jax.Array:
    return jnp.exp(fitted.log_tau0 + skew * _horner(fitted.log_tau, skew))


def expected_distinct(tokens: Number, experts: int, top_k: int, skew: Number = 0.0) -> jax.Array:
    r"""Expected distinct experts that ``tokens`` tokens hit, :math:`\sum_e [1 - (1 - p_e)^T]`.

    Uniform routing: :math:`E (1 - (1 - k/E)^T)`, exactly.  Skewed: :math:`p_e = 1 - e^{-\tau w_e}` makes it
    :math:`\sum_e [1 - e^{-\tau T w_e}]`, taken by a quadrature over popularity within 0.7 % of the sum; one token
    hits k.  Where every token visits every expert the answer is E, or T E below one token.

    Args:
        tokens: T of all instances that share the bank [s].
        experts: E, static.
        top_k: k, static.
        skew: exponent of popularity, 0 to 1.5; the Python number 0 leaves only the uniform form.
    """
    _check(experts, top_k)
    tokens = _real(tokens)
    if top_k == experts:
        return experts * jnp.minimum(tokens, 1.0)
    fitted = None if _is_uniform(skew) else law(experts, top_k)
    if fitted is None:
        return -experts * jnp.expm1(tokens * jnp.log1p(-top_k / experts))
    skew = _real(skew)
    hits = _tau(fitted, skew) * tokens
    ratio = jnp.exp(-skew * fitted.step)
    total = 0.0
    for j in range(NODES):
        total = total - fitted.weights[j] * jnp.expm1(-hits)
        hits = hits * ratio
    return jnp.asarray(total)


def _popularity(tokens: Number, experts: int, top_k: int, ranks: Number, skew: Number) -> _Popularity:
    """What the power law adds for ``tokens`` of at least one: nothing for one token, whose experts are distinct."""
    fitted = law(experts, top_k)
    square = skew * skew
    second = square * jnp.exp(_horner(fitted.second, skew))
    third = square * jnp.exp(_horner(fitted.third, skew))
    log_ranks = jnp.log(jnp.minimum(ranks, float(experts)))
    place = log_ranks * (2.0 / log(experts)) - 1.0
    inner = skew / 0.75 - 1.0
    shape = _horner(tuple(_horner(row, inner) for row in fitted.spread), place)
    share = skew * normal_maximum(log_ranks) * jnp.exp(shape)
    again = jnp.maximum(tokens - 1.0, 0.0)
    return _Popularity(
        excess=top_k * share * jnp.sqrt(tokens * again + 1e-24),
        pairs=0.5 * tokens * again * second,
        triples=tokens * again * jnp.maximum(tokens - 2.0, 0.0) * third / 6.0,
    )


def fullest_rank_routes(
    tokens: Number, experts: int, top_k: int, ranks: Number, skew: Number = 0.0, fit: Fit = FIT
) -> jax.Array:
    r"""Expected routes (token, expert) on the fullest of ``ranks`` ranks, of ``T k`` in all.

    The count of a rank has variance over mean ``(E - k)/(E - 1)``, since a token's routes are distinct.  With a
    skewed law experts differ in popularity and lie at random: the fullest rank's excess then grows with T, not with
    its root.  Never below the mean share of the rank with the most experts, never above ``T min(k, experts held)``;
    all ``T k`` on one rank.

    Args:
        tokens: T of all instances that share the bank [s].
        experts, top_k: E and k, static.
        ranks: R, whole in truth; more than E are as good as E.
        skew: exponent of popularity, 0 to 1.5; the Python number 0 leaves only the uniform form.
        fit: the constants, for those who fit them.
    """
    _check(experts, top_k)
    uniform = _is_uniform(skew) or top_k == experts

    def routes(tokens, ranks, *skew):
        batch = _whole(tokens, 1.0)
        draws = batch * top_k
        d = (experts - top_k) / max(experts - 1.0, 1.0)
        per_cell = 0.0 if top_k == 1 else (1.0 - d) / (draws - d)
        popularity = _popularity(batch, experts, top_k, ranks, *skew) if skew else None
        cap = batch * jnp.minimum(float(top_k), _most_held(experts, ranks))
        return tokens / batch * _fullest(draws, d, per_cell, cap, experts, ranks, popularity, fit)

    popular = () if uniform else (_real(skew),)
    return (_by_forward_mode(routes) if fit is FIT else routes)(_real(tokens), _real(ranks), *popular)


def fullest_rank_distinct(
    tokens: Number, experts: int, top_k: int, ranks: Number, skew: Number = 0.0, fit: Fit = FIT
) -> jax.Array:
    r"""Expected distinct experts on the rank that has most of them to read.

    Given the number D of distinct experts that are hit, their places are as good as drawn at random from the E places
    of all ranks, whatever their popularity, since experts lie on the ranks at random: the same order statistic with D
    draws, dispersion ``(E - D)/(E - 1)`` and at most :math:`\lceil E/R \rceil` on a rank.  D is its expectation.

    Args:
        tokens: T of all instances that share the bank [s].
        experts, top_k: E and k, static.
        ranks: R, whole in truth; more than E are as good as E.
        skew: exponent of popularity, 0 to 1.5; the Python number 0 leaves only the uniform form.
        fit: the constants, for those who fit them.
    """
    distinct = expected_distinct(tokens, experts, top_k, skew)

    def on_rank(distinct, ranks):
        draws = _whole(distinct, float(top_k))
        d = (experts - draws) / max(experts - 1.0, 1.0)
        cap = jnp.minimum(draws, _most_held(experts, ranks))
        return distinct / draws * _fullest(draws, d, 1.0 / experts, cap, experts, ranks, None, fit)

    return (_by_forward_mode(on_rank) if fit is FIT else on_rank)(distinct, _real(ranks))


def expected_ranks(experts: int, top_k: int, ranks: Number) -> jax.Array:
    r"""Expected distinct ranks that one token's k routes reach, uniform routing.

    :math:`R\,[1 - \prod_{i<k} (1 - n/(E - i))]` with ``n = E/R`` experts per rank, real where R does not divide E;
    1 for one rank, k for one expert per rank.

    Args:
        experts, top_k: E and k, static.
        ranks: R [s].
    """
    _check(experts, top_k)
    held = jnp.minimum(_real(ranks), float(experts))
    each = experts / held
    missed = 1.0
    for i in range(top_k):
        missed = missed * jnp.maximum(1.0 - each * (1.0 / (experts - i)), 0.0)
    return held * (1.0 - missed)


def expected_ranks_grouped(experts: int, top_k: int, ranks: Number, groups: int = 1, top_groups: int = 1) -> jax.Array:
    r"""Expected distinct ranks of one token when its experts come from ``top_groups`` of ``groups`` equal groups.

    The chosen groups are taken as a random draw, and the k experts as a random draw from their
    :math:`M = E G_t/G` experts.  Where a group spans several ranks the token sees :math:`R G_t/G` of them; where a
    rank holds ``g = G/R`` groups the number j of chosen ones among them is hypergeometric and the rank is missed with
    :math:`\binom{M - jE/G}{k} / \binom{M}{k}`.

    Args:
        experts, top_k: E and k, static.
        ranks: R [s].
        groups, top_groups: G and G_t, static; no limit where they are equal.
    """
    _check(experts, top_k)
    if top_groups >= groups:
        return expected_ranks(experts, top_k, ranks)
    ranks = _real(ranks)
    size = experts / groups
    chosen = size * top_groups
    if not top_groups >= 1 or top_k > chosen:
        raise CodesignError(
            f"{top_k} experts out of {top_groups} groups of {size:g}", key="top_groups", allowed=f"1 to {groups}"
        )
    wide = expected_ranks(round(chosen), top_k, jnp.maximum(ranks, float(groups)) * top_groups / groups)
    held = groups / jnp.clip(ranks, 1.0, float(groups))
    hit = 0.0
    for j in range(1, top_groups + 1):
        chance = 1.0  # of exactly j chosen groups on this rank: C(g, j) C(G - g, G_t - j) / C(G, G_t)
        for i in range(j):
            chance = chance * jnp.maximum(held - i, 0.0) / (i + 1.0)
        for i in range(top_groups - j):
            chance = chance * jnp.maximum(groups - held - i, 0.0) / (i + 1.0)
        for i in range(top_groups):
            chance = chance * (i + 1.0) / (groups - i)
        missed = 1.0
        for i in range(top_k):
            missed *= max(1.0 - j * size / (chosen - i), 0.0)
        hit = hit + chance * (1.0 - missed)
    return jnp.where(ranks >= groups, wide, jnp.clip(ranks, 1.0, float(groups)) * hit)


def routing_law(skew: Number) -> str:
    """Name of the law by which experts are chosen, as results state it."""
    value = float(skew)
    return "uniform" if value == 0.0 else f"power law, exponent {value:g}"
