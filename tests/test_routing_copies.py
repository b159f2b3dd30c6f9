"""Redundant experts and capacities against a simulated balancer, sampled tokens, and what is known of both ends."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from codesign.errors import CodesignError
from codesign.routing import expected_distinct, fullest_rank_distinct, fullest_rank_routes
from codesign.routing_capacity import capped_routes, overflow
from codesign.routing_choices import Routing, fullest, named_law, routing_of
from codesign.routing_copies import (
    balanced_slots,
    copied_distinct,
    copied_level,
    fullest_rank_distinct_copied,
    fullest_rank_routes_copied,
    packing_excess,
)
from codesign.routing_tables import inclusion
from codesign.tools import fit_copies


@lru_cache
def balanced(experts: int, top_k: int, ranks: int, copies: int, skew: float) -> tuple[Any, Any, Any]:
    """A balancer: copies go to the experts with the most load per copy, slots to the emptiest rank, heaviest first.

    Returns:
        copies of each expert, the rank of each slot (slots of an expert side by side), load of each rank per token.
    """
    p = inclusion(experts, top_k, skew)
    n = np.ones(experts, int)
    for _ in range(copies):
        n[np.argmax(p / n)] += 1
    load = np.repeat(p / n, n)
    low, more = divmod(len(load), ranks)
    total, count, where = np.zeros(ranks), np.zeros(ranks, int), np.zeros(len(load), int)
    for slot in np.argsort(-load, kind="stable"):
        most = low + ((count > low).sum() < more)
        rank = int(np.argmin(np.where(count < most, total, np.inf)))
        where[slot], total[rank], count[rank] = rank, total[rank] + load[slot], count[rank] + 1
    return n, where, total


def sampled(experts, top_k, ranks, copies, skew, tokens, worlds, seed=0):
    """Sampled means: routes and slots to read on the fullest rank, slots to read in all; and their standard errors."""
    rng = np.random.default_rng(seed)
    weight = np.arange(1.0, experts + 1.0) ** -skew
    n, where, _ = balanced(experts, top_k, ranks, copies, skew)
    first = np.cumsum(n) - n
    found = []
    for _ in range(worlds):
        race = rng.exponential(size=(tokens, experts)) / weight
        chosen = np.argpartition(race, top_k - 1, axis=1)[:, :top_k].ravel()
        slot = first[chosen] + (rng.random(len(chosen)) * n[chosen]).astype(int)
        count = np.bincount(slot, minlength=len(where))
        ranked = np.bincount(where, count, minlength=ranks), np.bincount(where, count > 0, minlength=ranks)
        found.append((ranked[0].max(), ranked[1].max(), np.count_nonzero(count)))
    return np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(worlds)


# -- copies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "copies", "skew", "tokens", "worlds"),
    [
        (256, 8, 32, 32, 1.0, 512, 60), (256, 8, 32, 32, 0.8, 64, 200), (256, 8, 72, 32, 0.8, 512, 60),
        (256, 8, 64, 64, 1.0, 1024, 30), (256, 8, 144, 32, 0.8, 1024, 40), (256, 8, 144, 32, 0.0, 1024, 40),
        (256, 8, 8, 8, 0.5, 128, 100), (256, 8, 32, 32, 1.4, 1024, 30), (896, 16, 72, 40, 0.8, 32, 60),
        (896, 16, 16, 16, 0.3, 512, 30), (128, 4, 16, 16, 1.0, 256, 100), (128, 4, 16, 4, 1.0, 256, 100),
        (60, 4, 12, 6, 0.9, 64, 200), (256, 8, 72, 32, 1.2, 8, 300), (320, 12, 32, 320, 0.14, 1000, 30),
        (896, 16, 4, 844, 0.18, 53, 40), (64, 4, 57, 2, 0.0, 2000, 30), (256, 8, 32, 256, 0.18, 512, 30),
        (64, 4, 60, 60, 0.0, 112, 100), (384, 8, 64, 320, 0.11, 256, 40), (128, 8, 72, 15, 0.76, 256, 60),
    ],
)  # fmt: skip
def test_copies_against_a_balancer_and_sampled_tokens(experts, top_k, ranks, copies, skew, tokens, worlds) -> None:
    (routes, held, layer), error = sampled(experts, top_k, ranks, copies, skew, tokens, worlds)
    bank = (float(tokens), experts, top_k)
    assert float(fullest_rank_routes_copied(*bank, float(ranks), float(copies), skew)) == pytest.approx(
        routes, abs=3 * error[0] + 0.03 * routes
    )
    assert float(fullest_rank_distinct_copied(*bank, float(ranks), float(copies), skew)) == pytest.approx(
        held, abs=3 * error[1] + 0.04 * held
    )
    assert float(copied_distinct(*bank, float(copies), skew)) == pytest.approx(layer, abs=3 * error[2] + 0.01 * layer)


def test_published_loads_before_and_after_balancing() -> None:
    # DeepSeek R1 on 32 ranks: 2.56 without, 1.11 with 32 copies; Kimi K3 on 16: 1.07 and 1.01.  Neither skew nor batch
    # is published: the skew is that which gives the first number, the batch that whose scatter is the second's.
    for experts, top_k, ranks, copies, before, after, tokens in (
        (256, 8, 32.0, 32.0, 2.56, 1.11, 1500.0), (896, 16, 16.0, 16.0, 1.07, 1.01, 30000.0),
    ):  # fmt: skip
        mean = tokens * top_k / ranks

        def excess(skew: float, t=tokens, e=experts, k=top_k, r=ranks, mean=mean, before=before) -> float:
            return float(fullest_rank_routes(t, e, k, r, skew)) / mean - before

        skew = float(brentq(excess, 1e-3, 1.4, xtol=1e-4))  # type: ignore[arg-type]
        found = float(fullest_rank_routes_copied(tokens, experts, top_k, ranks, copies, skew)) / mean
        assert found == pytest.approx(after, abs=0.006)


@pytest.mark.parametrize("skew", [0.0, 0.4, 0.8, 1.2])
def test_packing_leaves_over_what_a_balancer_does(skew: float) -> None:
    for experts, top_k, ranks, copies in (
        (256, 8, 32, 32), (256, 8, 144, 32), (256, 8, 96, 32), (128, 4, 16, 16), (896, 16, 72, 40), (256, 8, 32, 256),
        (256, 8, 60, 14), (160, 6, 48, 1), (128, 4, 24, 50),
    ):  # fmt: skip
        *_, total = balanced(experts, top_k, ranks, copies, skew)
        found = 1.0 + float(packing_excess(float(copies), experts, top_k, float(ranks), skew))
        assert found == pytest.approx(total.max() * ranks / top_k, rel=0.05)


@pytest.mark.parametrize("skew", [0.0, 0.3, 0.9, 1.4])
def test_slots_are_those_of_the_balancer(skew: float) -> None:
    for experts, top_k, copies in ((60, 4, 7), (64, 6, 64), (256, 8, 32), (896, 16, 300)):
        n, *_ = balanced(experts, top_k, 4, copies, skew)
        truth = np.sort(np.repeat(inclusion(experts, top_k, skew) / n, n))[::-1]
        slots = balanced_slots(float(copies), experts, top_k, skew)
        assert float(jnp.sum(slots.number)) == pytest.approx(experts + copies, abs=1e-6)
        assert float(jnp.sum(slots.number * slots.load)) == pytest.approx(top_k, rel=1e-9)
        assert float(slots.load[0]) == pytest.approx(truth[0], rel=0.02)
        # Load of the x heaviest slots.
        end = np.cumsum(np.asarray(slots.number))
        found = np.interp(np.arange(1, len(truth) + 1), end, np.cumsum(np.asarray(slots.number * slots.load)), left=0.0)
        first = int(np.ceil(end[0]))
        np.testing.assert_allclose(found[first:], np.cumsum(truth)[first:], rtol=0.02)


def test_copies_that_leave_as_many_slots_on_every_rank_never_fill_one_further() -> None:
    copies = jnp.array([0.0, 32.0, 64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 256.0])
    for tokens in (16.0, 512.0, 65536.0):
        for skew in (0.5, 0.9, 1.3):
            load = np.asarray(
                jax.vmap(lambda c, t=tokens, s=skew: fullest_rank_routes_copied(t, 256, 8, 32.0, c, s))(copies)
            )
            assert load[0] > 1.1 * load[-1]
            # Once level, chance is left: with more copies it grows a little (sampled: 8.43, 8.51, 8.57, 8.61 routes
            # of 16 tokens at the exponent 1.3 with 32, 64, 128, 256 copies).
            assert (np.diff(load) <= 0.015 * load[1:]).all()


def test_a_skew_that_tends_to_zero_is_the_uniform_form_with_copies() -> None:
    for copied in (fullest_rank_routes_copied, fullest_rank_distinct_copied):
        for ranks, c in ((32.0, 32.0), (72.0, 40.0), (60.0, 256.0)):
            near = float(copied(300.0, 256, 8, ranks, c, jnp.asarray(1e-6)))
            assert near == pytest.approx(float(copied(300.0, 256, 8, ranks, c)), rel=0.005)


def test_the_tool_measures_what_the_form_is_good_for() -> None:
    n, where = fit_copies.balance(inclusion(96, 4, 0.8), 12, 9)
    expected, place, _ = balanced(96, 4, 9, 12, 0.8)
    np.testing.assert_array_equal(n, expected)
    np.testing.assert_array_equal(where, place)
    rng = np.random.default_rng(1)
    counts = fit_copies.draw(inclusion(96, 4, 0.8), 50, 400, rng)
    assert (counts.sum(axis=1) == 200).all()
    np.testing.assert_allclose(counts.mean(axis=0), 50 * inclusion(96, 4, 0.8), rtol=0.25, atol=0.1)
    routes, held = fit_copies.observe(counts, n, where, rng)
    point = fit_copies.Point(96, 4, 50, 9, 12, 0.8, routes, held)
    assert np.abs(fit_copies.errors([point])).max() < 0.03
    assert np.abs(fit_copies.errors([point], fit_copies.FIT._replace(spread=3.0))).max() > 1e-4


def test_levels_by_hand() -> None:
    # As many copies as experts halve uniform routing; one copy halves the most popular expert or leaves the second.
    assert float(copied_level(256.0, 256, 8)) == pytest.approx(8 / 512)
    p = inclusion(256, 8, 1.0)
    assert float(copied_level(0.0, 256, 8, 1.0)) == pytest.approx(p[0], rel=0.02)
    assert float(copied_level(1.0, 256, 8, 1.0)) == pytest.approx(max(p[0] / 2, (p[0] + p[1]) / 3), rel=0.02)
    # 224 single slots and 64 halves on 144 ranks of two: some rank has two singles, 2 p of 256 p/144 in the mean.
    assert float(packing_excess(32.0, 256, 8, 144.0)) == pytest.approx(2 * 144 / 256 - 1)
    # All slots hit by a large batch; each token hits k.
    assert float(copied_distinct(1e6, 256, 8, 32.0, 0.8)) == pytest.approx(288.0, rel=1e-3)
    assert float(copied_distinct(1.0, 256, 8, 32.0, 0.8)) == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize("skew", [0.0, 0.7])
def test_no_copies_are_the_law_itself_and_copies_join_on(skew: float) -> None:
    points = jnp.array([0.3, 4.0, 300.0]), jnp.array([8.0, 32.0, 72.0])
    pairs: Any = (
        (fullest_rank_routes_copied, fullest_rank_routes), (fullest_rank_distinct_copied, fullest_rank_distinct)
    )  # fmt: skip
    for copied, plain in pairs:
        at = jax.jit(jax.vmap(lambda t, r, c, f=copied: f(t, 256, 8, r, c, skew), in_axes=(0, 0, None)))
        law = jax.jit(jax.vmap(lambda t, r, f=plain: f(t, 256, 8, r, skew)))
        np.testing.assert_array_equal(at(*points, 0.0), law(*points))
        for c in (1e-6, 1.0, 8.0, 31.5, 32.0, 255.9):
            a, b = (np.asarray(at(*points, c + d)) for d in (-1e-7, 1e-7))
            np.testing.assert_allclose(a, b, rtol=1e-4)
    # More copies never leave a rank fuller by more than what the closed form is good for.
    load = [float(fullest_rank_routes_copied(4096.0, 256, 8, 32.0, float(c), 0.9)) for c in (0, 1, 8, 16, 32, 64, 128)]
    assert load[0] > 1.5 * load[2] > load[4]
    assert all(b < a * 1.01 for a, b in pairwise(load))


@pytest.mark.slow
def test_derivatives_of_copies_and_capacity_agree_with_differences() -> None:
    def total(x: jax.Array) -> jax.Array:
        tokens, ranks, copies, skew, factor = x
        found = fullest(tokens, 256, 8, ranks, skew, Routing(copies, factor, 0.0, 0.0))
        return found.routes / tokens + found.distinct + found.layer / 100.0 + found.beyond

    rng = np.random.default_rng(5)
    slope, f = jax.jit(lambda x, d: jax.jvp(total, (x,), (d,))[1]), jax.jit(total)
    bad = 0
    for _ in range(40):
        x = np.array([np.exp(rng.uniform(1, 7)), rng.uniform(4, 100), rng.uniform(1, 100), rng.uniform(0.1, 1.3),
                      rng.uniform(1.05, 4.0)])  # fmt: skip
        direction = rng.normal(size=5) * x
        step = 1e-6
        want = float(f(x + step * direction) - f(x - step * direction)) / (2 * step)
        got = float(slope(x, direction))
        assert np.isfinite(got)
        bad += abs(got - want) > 1e-4 * (abs(want) + 1.0)
    assert bad <= 4  # caps, levels and whole numbers of slots are kinks


# -- capacity -----------------------------------------------------------------------------------------------------


def routed(experts, top_k, ranks, skew, tokens, factor, worlds=60):
    """Sampled: share beyond capacity, fullest rank where it is dropped, and where it fills the room of others."""
    rng = np.random.default_rng(experts + tokens)
    weight, most = np.arange(1.0, experts + 1.0) ** -skew, factor * tokens * top_k / experts
    edges = np.linspace(0, experts, ranks + 1).astype(int)[:-1]
    found = []
    for _ in range(worlds):
        race = rng.exponential(size=(tokens, experts)) / weight
        count = np.bincount(np.argpartition(race, top_k - 1, axis=1)[:, :top_k].ravel(), minlength=experts)
        count = count[rng.permutation(experts)].astype(float)
        kept = np.minimum(count, most)
        over = (count - kept).sum()
        moved = kept + (most - kept) * (over / max((most - kept).sum(), over, 1e-9))
        ranked = [np.add.reduceat(x, edges).max() for x in (kept, moved)]
        found.append((over / (tokens * top_k), *ranked))
    return np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(worlds)


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks", "skew", "tokens", "factor"),
    [
        (256, 8, 32, 0.0, 512, 1.25), (256, 8, 32, 0.0, 64, 2.0), (256, 8, 32, 0.8, 512, 1.25),
        (256, 8, 32, 0.8, 512, 2.0), (256, 8, 8, 0.5, 512, 1.5), (896, 16, 72, 0.5, 1024, 1.5),
        (128, 4, 128, 0.6, 256, 1.5), (256, 8, 32, 1.2, 1024, 1.25),
    ],
)  # fmt: skip
def test_overflow_and_the_fullest_rank_against_sampled_tokens(experts, top_k, ranks, skew, tokens, factor) -> None:
    (over, dropped, moved), error = routed(experts, top_k, ranks, skew, tokens, factor)
    bank = (float(tokens), experts, top_k)
    found = overflow(*bank, factor, 0.0, skew)
    assert float(found.share) == pytest.approx(over, abs=3 * error[0] + 0.02 * over + 0.002)
    routes = fullest_rank_routes(*bank, float(ranks), skew)
    for rerouted, want, spread in ((0.0, dropped, error[1]), (1.0, moved, error[2])):
        here = float(capped_routes(routes, *bank, float(ranks), found, 0.0, rerouted))
        assert here == pytest.approx(want, abs=3 * spread + 0.06 * want)


def test_overflow_of_one_expert_is_the_binomial_tail() -> None:
    # One rank, uniform routing: each expert's count is binomial; C = 1.5 x 64 x 8/64 = 12 routes.
    n = np.arange(65)
    tail = np.sum(np.maximum(n - 12, 0) * binom.pmf(n, 64, 8 / 64)) / 8.0
    assert float(overflow(64.0, 64, 8, 1.5).share) == pytest.approx(tail, rel=0.06)


@pytest.mark.parametrize("skew", [0.0, 0.8])
@pytest.mark.parametrize("copies", [0.0, 32.0])
def test_a_capacity_that_never_binds_changes_nothing(skew: float, copies: float) -> None:
    bank = (512.0, 256, 8, 32.0, skew)
    plain, ample = (fullest(*bank, Routing(copies, f, 0.0, 0.0)) for f in (None, 1e3))
    for a, b in zip(plain, ample, strict=True):
        assert float(b) == pytest.approx(float(a), rel=1e-12, abs=1e-12)
    share = [float(fullest(*bank, Routing(copies, f, 0.0, 0.0)).beyond) for f in (1.0, 1.2, 1.5, 2.0, 4.0, 8.0)]
    assert all(a >= b >= 0.0 for a, b in pairwise(share))
    assert float(fullest(*bank, Routing(copies, 1.0, 1.0, 0.0)).kept) == 1.0


# -- the choices --------------------------------------------------------------------------------------------------


def test_plain_routing_is_none_and_bad_choices_are_refused() -> None:
    assert routing_of() is None
    assert routing_of(0.0, float("inf"), "token") is None
    assert fullest(64.0, 256, 8, 8.0, 0.0).layer == expected_distinct(64.0, 256, 8)
    chosen = routing_of(32, 1.5, "route", "reroute")
    assert chosen is not None
    assert (chosen.copies, chosen.capacity, chosen.rerouted, chosen.per_route) == (32.0, 1.5, 1.0, 1.0)
    # Without copies the program has nothing of them in it, and the answer is the same.
    limited = routing_of(capacity_factor=1.25)
    assert limited is not None
    assert not limited.copied
    bank = (512.0, 256, 8, 32.0, 0.8)
    for a, b in zip(fullest(*bank, limited), fullest(*bank, Routing(0.0, 1.25)), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-9)
    text = str(jax.make_jaxpr(lambda t: fullest(t, 256, 8, 32.0, 0.8, limited))(512.0))
    assert "sort" not in text
    assert "sort" in str(jax.make_jaxpr(lambda t: fullest(t, 256, 8, 32.0, 0.8, chosen))(512.0))
    told = named_law(0.8, chosen)
    for words in ("power law, exponent 0.8", "32 redundant", "factor 1.5", "re-routed", "per route"):
        assert words in told
    refused: Any = (
        ({"copies": -1}, "--copies"), ({"capacity_factor": 0.5}, "--capacity-factor"),
        ({"dispatch": "x"}, "--dispatch"), ({"overflow": "x"}, "--overflow"), ({"overflow": "reroute"}, "--overflow"),
    )  # fmt: skip
    for bad, key in refused:
        with pytest.raises(CodesignError) as problem:
            routing_of(**bad)
        assert problem.value.key == key
