"""Routing against published tables, combinatorics, order statistics and sampled tokens."""

import re
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from codesign.errors import CodesignError
from codesign.routing import (
    FIT,
    Fit,
    expected_distinct,
    expected_ranks,
    expected_ranks_grouped,
    fullest_rank_distinct,
    fullest_rank_routes,
    routing_law,
)
from codesign.routing_reference import fullest_distinct_reference, fullest_rank_reference
from codesign.tools import fit_routing

EP = (2, 8, 16, 32, 72, 144)


def sample(tokens, experts, top_k, ranks, skew, worlds, placements, seed):
    """Sampled means and standard errors: distinct experts, then routes and distinct experts on the fullest rank.

    Every token runs an exponential race (top-k without replacement); experts are dealt to the ranks anew each time.
    """
    rng = np.random.default_rng(seed)
    weight = np.arange(1.0, experts + 1.0) ** -skew
    sizes = [np.array([experts // r + (i < experts % r) for i in range(r)]) for r in ranks]
    edges = [np.cumsum(np.concatenate([[0], s[s > 0]]))[:-1] for s in sizes]
    distinct, routes, held = [], [[] for _ in ranks], [[] for _ in ranks]
    for _ in range(worlds):
        race = rng.exponential(size=(tokens, experts)) / weight
        counts = np.bincount(np.argpartition(race, top_k - 1, axis=1)[:, :top_k].ravel(), minlength=experts)
        distinct.append(np.count_nonzero(counts))
        for _ in range(placements):
            placed = counts[rng.permutation(experts)]
            for i, edge in enumerate(edges):
                routes[i].append(np.add.reduceat(placed, edge).max())
                held[i].append(np.add.reduceat((placed > 0).astype(int), edge).max())
    error = lambda x: np.std(x, axis=-1) / np.sqrt(worlds)  # noqa: E731  (placements of one world are not independent)
    return (np.mean(distinct), error(distinct)), (np.mean(routes, 1), error(routes)), (np.mean(held, 1), error(held))


def hit_by_one_token(weight, top_k):
    """The law: ``1 - exp(-tau w)`` with tau from its sum."""
    surplus = lambda x: -np.expm1(-np.exp(x) * weight).sum() - top_k  # noqa: E731
    return -np.expm1(-np.exp(float(brentq(surplus, -20.0, 20.0))) * weight)  # type: ignore[arg-type]


# -- distinct experts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "top_k", "published"),
    [
        (896, 16, {1: 16.0, 2: 31.7, 8: 120.3, 64: 613.2, 256: 887.1}),  # Kimi K3
        (256, 8, {1: 8.0, 16: 102.0, 64: 222.4, 128: 251.6, 512: 256.0}),  # DeepSeek V3
        (128, 4, {2: 7.9, 32: 81.7, 128: 125.8}),  # gpt-oss-120b
        (512, 22, {4: 82.5, 64: 481.2, 256: 512.0}),  # Nemotron 3 Ultra
        (8, 2, {2: 3.5, 4: 5.5, 32: 8.0}),  # Mixtral
    ],
)
def test_distinct_experts_agree_with_the_published_table(experts, top_k, published):
    found = expected_distinct(jnp.array(list(published), float), experts, top_k)
    np.testing.assert_allclose(found, list(published.values()), atol=0.051)


@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (256, 8), (128, 1), (60, 4), (8, 2)])
def test_skewed_distinct_experts_agree_with_the_sum_over_all_experts(experts, top_k):
    tokens = jnp.array([1.0, 2.0, 7.0, 30.0, 128.0, 1000.0, 3e4, 1e6])
    for skew in (0.05, 0.3, 0.7, 1.0, 1.3, 1.5):
        weight = np.arange(1.0, experts + 1.0) ** -skew
        hit = hit_by_one_token(weight, top_k)
        exact = -np.expm1(np.asarray(tokens)[:, None] * np.log1p(-hit)).sum(axis=1)
        found = expected_distinct(tokens, experts, top_k, skew)
        np.testing.assert_allclose(found, exact, rtol=8e-3)
        assert found[0] == pytest.approx(top_k, rel=5e-4)


# -- the order statistic itself -----------------------------------------------------------------------------------


def test_reference_agrees_with_what_can_be_counted_by_hand():
    # One token, two routes: they share a rank of n experts with probability (n - 1)/(E - 1).
    assert fullest_rank_reference(1, 16, 2, 4) == pytest.approx(1.0 + 3.0 / 15.0, abs=1e-9)
    # Two tokens with one route each meet on one of R ranks with probability 1/R.
    assert fullest_rank_reference(2, 128, 1, 8) == pytest.approx(1.0 + 1.0 / 8.0, abs=1e-6)
    # Three experts of four on two ranks of two: one rank is full.
    assert fullest_distinct_reference(3.0, 4, 2) == pytest.approx(2.0, abs=1e-9)
    # Two of four experts: both on one rank with probability 1/3.
    assert fullest_distinct_reference(2.0, 4, 2) == pytest.approx(4.0 / 3.0, abs=1e-9)


@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (256, 8), (512, 22), (128, 1), (160, 6)])
def test_uniform_routes_are_within_three_per_cent_of_the_order_statistic(experts, top_k):
    cases = [
        (t, r)
        for r in (2, 3, 8, 16, 36, 64, 72, 100, 125, 256, 300, 512, 871, 896)
        for t in (1, 2, 3, 5, 8, 16, 40, 128, 1000, 10**4, 10**6)
        if r <= experts and 0.02 <= t * top_k / r <= 1e5 and t * top_k > 1
    ]
    reference = np.array([fullest_rank_reference(t, experts, top_k, r) for t, r in cases])
    tokens, ranks = jnp.array(cases, float).T
    error = np.abs(np.asarray(fullest_rank_routes(tokens, experts, top_k, ranks)) / reference - 1.0)
    assert error.max() < 0.031
    assert np.median(error) < 0.005


@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (256, 8), (512, 22), (128, 1), (160, 6)])
def test_distinct_on_the_fullest_rank_is_within_three_per_cent_of_the_order_statistic(experts, top_k):
    cases = [(t, r) for r in (2, 3, 8, 16, 36, 64, 72, 100, 256) for t in (1, 2, 4, 8, 30, 100, 400) if r <= experts]
    hit = [experts * (1.0 - (1.0 - top_k / experts) ** t) for t, _ in cases]
    reference = np.array([fullest_distinct_reference(d, experts, r) for d, (_, r) in zip(hit, cases, strict=True)])
    tokens, ranks = jnp.array(cases, float).T
    error = np.abs(np.asarray(fullest_rank_distinct(tokens, experts, top_k, ranks)) / reference - 1.0)
    assert error.max() < 0.031
    assert np.median(error) < 0.005


# -- sampled tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "worlds"),
    [(896, 16, 1, 500), (896, 16, 8, 400), (896, 16, 128, 60), (256, 8, 4, 500), (256, 8, 64, 250), (128, 4, 16, 400)],
)
def test_closed_forms_agree_with_sampled_tokens(experts, top_k, tokens, worlds, skew):
    ranks = jnp.array(EP)
    distinct, routes, held = sample(tokens, experts, top_k, EP, skew, worlds, 8, seed=experts + tokens)
    # 1.6 % of the skewed law's own, besides the 3 % of the closed forms.
    allowed = 0.03 if skew == 0.0 else 0.045
    found = expected_distinct(tokens, experts, top_k, skew)
    assert abs(found - distinct[0]) < 3 * distinct[1] + (0.001 if skew == 0.0 else 0.02) * distinct[0]
    for function, (mean, error) in ((fullest_rank_routes, routes), (fullest_rank_distinct, held)):
        found = np.asarray(function(float(tokens), experts, top_k, ranks, skew))
        assert np.all(np.abs(found - mean) < 3 * error + allowed * mean), function.__name__


def test_max_over_mean_of_kimi_k3_on_72_ranks():
    mean = 4096 * 16 / 72
    assert float(fullest_rank_routes(4096.0, 896, 16, 72.0)) / mean == pytest.approx(1.12, abs=0.011)
    zipf = float(fullest_rank_routes(4096.0, 896, 16, 72.0, 1.0)) / mean
    assert 4.0 < zipf < 5.5
    assert zipf == pytest.approx(fullest_rank_reference(4096, 896, 16, 72, 1.0, placements=200) / mean, rel=0.04)


@pytest.mark.parametrize("skew", [0.3, 0.8, 1.2])
def test_a_large_skewed_batch_waits_for_the_most_popular_rank(skew):
    # Experts' expectations alone, dealt at random: what remains when chance has averaged out.
    rng = np.random.default_rng(11)
    weight = np.arange(1.0, 257.0) ** -skew
    p = hit_by_one_token(weight, 8)
    for ranks in (4, 16, 32, 64):
        loads = [p[rng.permutation(256)].reshape(ranks, -1).sum(axis=1).max() for _ in range(3000)]
        found = float(fullest_rank_routes(1e7, 256, 8, float(ranks), skew)) / 1e7
        assert found == pytest.approx(np.mean(loads), rel=0.03)


# -- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.4])
def test_one_rank_gets_everything(skew):
    tokens = jnp.array([0.01, 0.5, 1.0, 3.0, 100.0, 1e6])
    np.testing.assert_allclose(fullest_rank_routes(tokens, 256, 8, 1.0, skew), tokens * 8, rtol=1e-12)
    np.testing.assert_allclose(
        fullest_rank_distinct(tokens, 256, 8, 1.0, skew), expected_distinct(tokens, 256, 8, skew), rtol=1e-12
    )


def test_few_and_many_tokens():
    # One token on one expert per rank: every route stands alone.  So do ranks beyond the number of experts.
    assert float(fullest_rank_routes(1.0, 256, 8, 256.0)) == pytest.approx(1.0, abs=1e-9)
    assert float(fullest_rank_distinct(50.0, 256, 8, 256.0)) == pytest.approx(1.0, abs=1e-9)
    assert float(fullest_rank_routes(7.0, 256, 8, 1152.0)) == float(fullest_rank_routes(7.0, 256, 8, 256.0))
    # A hundredth of a token is a token with probability 1/100.
    for skew in (0.0, 0.9):
        one = float(fullest_rank_routes(1.0, 256, 8, 32.0, skew))
        assert float(fullest_rank_routes(0.001, 256, 8, 32.0, skew)) == pytest.approx(0.001 * one, rel=0.01)
    # Chance averages out: the rank with 13 of 896 experts keeps its share.
    share = float(fullest_rank_routes(1e9, 896, 16, 72.0)) / 16e9
    assert share == pytest.approx(13 / 896, rel=1e-3)
    # Every expert is hit: the rank with most experts reads them all.
    assert float(fullest_rank_distinct(1e5, 896, 16, 72.0)) == pytest.approx(13.0, rel=1e-9)
    # With one token the routes are the distinct experts, whatever their popularity.
    ranks = jnp.array(EP, float)
    for skew in (0.0, 1.0):
        routes, held = fullest_rank_routes(1.0, 256, 8, ranks, skew), fullest_rank_distinct(1.0, 256, 8, ranks, skew)
        np.testing.assert_allclose(routes, held, rtol=1e-3)


def test_a_skew_of_zero_is_the_uniform_form():
    tokens, ranks = jnp.geomspace(0.1, 1e5, 40)[:, None], jnp.array([1.0, 4.0, 7.0, 72.0, 300.0])
    zero = jnp.zeros(())
    for experts, top_k in ((896, 16), (128, 1)):
        for function in (fullest_rank_routes, fullest_rank_distinct):
            np.testing.assert_allclose(
                function(tokens, experts, top_k, ranks, zero), function(tokens, experts, top_k, ranks), rtol=1e-10
            )
        np.testing.assert_allclose(
            expected_distinct(tokens, experts, top_k, zero), expected_distinct(tokens, experts, top_k), rtol=1e-12
        )


def test_every_token_on_every_expert():
    assert float(expected_distinct(5.0, 4, 4)) == 4.0
    assert float(fullest_rank_routes(5.0, 4, 4, 2.0, 0.7)) == pytest.approx(10.0)
    assert float(fullest_rank_distinct(5.0, 4, 4, 2.0, 0.7)) == pytest.approx(2.0)
    assert float(expected_ranks(4, 4, 2.0)) == pytest.approx(2.0)


# -- properties ---------------------------------------------------------------------------------------------------

_compiled = {
    (function, e, k): jax.jit(lambda t, r, s, f=function, e=e, k=k: f(t, e, k, r, s))
    for function in (fullest_rank_routes, fullest_rank_distinct)
    for e, k in ((896, 16), (128, 4), (60, 6))
}


@settings(max_examples=150)
@given(
    model=st.sampled_from(((896, 16), (128, 4), (60, 6))),
    tokens=st.floats(0.01, 1e6),
    growth=st.floats(1.0, 3.0),
    ranks=st.integers(1, 1152),
    skew=st.floats(0.0, 1.5),
)
def test_more_tokens_never_lighten_the_fullest_rank(model, tokens, growth, ranks, skew):
    experts, top_k = model
    for function in (fullest_rank_routes, fullest_rank_distinct):
        small, large = (float(_compiled[function, *model](t, float(ranks), skew)) for t in (tokens, tokens * growth))
        assert large >= small * (1.0 - 1e-9)
        total = tokens * top_k
        if function is fullest_rank_distinct:
            total = float(expected_distinct(tokens, experts, top_k, skew))
            assert small <= -(-experts // ranks) * (1.0 + 1e-9)
        assert total / ranks * (1.0 - 1e-9) <= small <= total * (1.0 + 1e-9)


# -- derivatives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [fullest_rank_routes, fullest_rank_distinct])
def test_derivatives_agree_with_central_differences(function):
    rng = np.random.default_rng(3)
    tokens = np.exp(rng.uniform(np.log(0.02), np.log(1e5), 400))
    ranks = jnp.asarray(rng.choice(np.array(EP, float), 400))
    skew = rng.uniform(0.05, 1.45, 400)
    value = jax.jit(lambda t, s: function(t, 896, 16, ranks, s))
    slopes = jax.jit(jax.grad(lambda t, s: function(t, 896, 16, ranks, s).sum(), argnums=(0, 1)))(tokens, skew)
    at = np.asarray(value(tokens, skew))
    for i, step in enumerate((1e-6 * tokens, np.full(400, 1e-6))):
        moves = [(tokens + h, skew) if i == 0 else (tokens, skew + h) for h in (step, -step)]
        up, down = (np.asarray(value(*m)) for m in moves)
        near_a_kink = np.abs(up - 2 * at + down) > 1e-3 * np.abs(up - down) + 1e-13 * at
        difference = (up - down) / (2 * step)
        error = np.abs(np.asarray(slopes[i]) - difference) / (np.abs(difference) + at / (tokens if i == 0 else 1.0))
        assert near_a_kink.mean() < 0.02
        assert error[~near_a_kink].max() < 1e-6


def test_derivatives_are_finite_at_the_edges():
    tokens, ranks, skew = (
        jnp.asarray(x).ravel()
        for x in np.meshgrid(
            [0.01, 0.5, 1.0, 1.0 + 1e-9, 2.0, 100.0, 1e7], [1.0, 1.5, 2.0, 63.9, 64.0, 256.0, 1152.0], [0.0, 1e-9, 1.5]
        )
    )
    cases = ((fullest_rank_routes, 256, 8), (fullest_rank_routes, 128, 1), (fullest_rank_distinct, 256, 8))
    for function, experts, top_k in cases:
        total = lambda t, r, s, f=function, e=experts, k=top_k: f(t, e, k, r, s).sum()  # noqa: E731
        for slope in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(tokens, ranks, skew):
            assert np.isfinite(slope).all()


def test_derivatives_beside_the_value_are_those_of_reverse_mode():
    tokens, ranks = jnp.geomspace(0.3, 3e4, 50), jnp.linspace(1.3, 300.0, 50)
    same = Fit(*FIT)  # constants given by the caller are differentiated as they stand
    beside, plain = (
        jax.jit(jax.grad(lambda t, r, x=fit: fullest_rank_routes(t, 256, 8, r, 0.0, x).sum(), (0, 1)))(tokens, ranks)
        for fit in (FIT, same)
    )
    for a, b in zip(beside, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_everything_is_elementwise():
    def everything(t, r, s):
        found = fullest_rank_routes(t, 256, 8, r, s) + fullest_rank_distinct(t, 256, 8, r, s)
        return found + expected_ranks(256, 8, r) + expected_ranks_grouped(256, 8, r, 8, 4)

    used = set(re.findall(r"= ([a-z_0-9]+)", str(jax.make_jaxpr(everything)(4.0, 16.0, 0.5))))
    assert "exp" in used
    assert not used & {"gather", "while", "scan", "cond", "sort", "dot_general", "dynamic_slice"}


# -- ranks that a token reaches -----------------------------------------------------------------------------------


def test_expected_ranks_of_a_token():
    for experts, top_k in ((896, 16), (256, 8), (8, 2)):
        for ranks in (r for r in (1, 2, 4, 8, 32, 64, 256) if experts % r == 0):
            n = experts // ranks
            exact = ranks * (1.0 - comb(experts - n, top_k) / comb(experts, top_k))
            assert float(expected_ranks(experts, top_k, float(ranks))) == pytest.approx(exact, rel=1e-12)
    assert float(expected_ranks(256, 8, 1152.0)) == pytest.approx(8.0)
    # 12 or 13 experts on each of 72 ranks.
    exact = sum(m * (1.0 - comb(896 - n, 16) / comb(896, 16)) for n, m in ((13, 32), (12, 40)))
    assert float(expected_ranks(896, 16, 72.0)) == pytest.approx(exact, rel=1e-3)


def test_group_limited_routing_reaches_fewer_ranks():
    rng = np.random.default_rng(2)
    ranks = np.array([1, 2, 4, 8, 16, 32, 64, 256])
    found = np.asarray(expected_ranks_grouped(256, 8, jnp.asarray(ranks, float), 8, 4))
    reached = np.zeros(len(ranks))
    trials = 4000
    for _ in range(trials):
        groups = rng.permutation(8)[:4]
        experts = (groups[:, None] * 32 + np.arange(32)).ravel()[rng.permutation(128)[:8]]
        reached += [len(set(experts * r // 256)) for r in ranks]
    np.testing.assert_allclose(found, reached / trials, rtol=0.01)
    # With a rank per group a token reaches four ranks at most; without the limit it reaches more.
    assert found[3] < 4.0 < float(expected_ranks(256, 8, 8.0))
    assert float(expected_ranks_grouped(256, 8, 32.0, 8, 8)) == float(expected_ranks(256, 8, 32.0))


# -- the rest -----------------------------------------------------------------------------------------------------


def test_names_of_the_law():
    assert routing_law(0.0) == "uniform"
    assert routing_law(0.8) == "power law, exponent 0.8"


def test_impossible_routing_is_refused():
    with pytest.raises(CodesignError, match="1 to 8"):
        expected_distinct(4.0, 8, 9)
    with pytest.raises(CodesignError, match="top_groups"):
        expected_ranks_grouped(256, 40, 8.0, 8, 1)
    with pytest.raises(CodesignError, match=r"0 to 1\.5"):
        fullest_rank_routes(4.0, 256, 8, 8.0, 2.0)


def test_the_fit_finds_its_way_back():
    cases = [(t, r, 0.0, fullest_rank_reference(t, 256, 8, r)) for t in (1, 4, 16, 64, 1024) for r in (4, 16, 72)]
    group = (fullest_rank_routes, 256, 8, np.array(cases))
    spoilt = FIT._replace(base=0.6, curve=-0.3)
    found, errors = fit_routing.fit([group], ("base", "curve"), spoilt)
    assert np.abs(errors).max() < 0.03
    assert abs(found.curve - FIT.curve) < abs(spoilt.curve - FIT.curve)
