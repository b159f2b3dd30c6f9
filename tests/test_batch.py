"""The largest batch within a target and the memory: against integer scans, its own equation, and order."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from cases import case, changed
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.evaluation.case import Case, Degrees
from codesign.mapping import take
from codesign.objective.compiled import solve_points
from codesign.objective.metrics import Load

CASES = [("gb200-nvl72", "kimi-k3"), ("b200", "llama3.1-70b")]


@lru_cache
def mappings(arch: str, model: str) -> Any:
    return case(arch, model).mappings(Degrees())


def loads(n: int, context: Any) -> Load:
    columns: Any = np.ones(n), np.broadcast_to(np.asarray(context, float), n), np.zeros(n), np.zeros(n), np.full(n, 1e3)
    return Load(*columns)


def solve(of: Case, where: Any, context: Any, target: Any, on: Any = None, **bounds: Any) -> Any:
    n = len(where.pp)
    return solve_points(
        of.model, of.execution, of.precision, on or of.machine, where, loads(n, context), target, **bounds
    )


def at(of: Case, where: Any, context: Any, batch: Any, on: Any = None) -> Any:
    """The pass at given batches."""
    return solve(of, where, context, np.inf, on, least=batch, most=batch).result


@pytest.mark.parametrize(("arch", "model"), CASES)
@pytest.mark.parametrize("context", [8192.0, 131072.0])
@pytest.mark.parametrize("ms", [5.0, 10.0, 20.0, 50.0])
def test_root_meets_the_target(arch: str, model: str, context: float, ms: float) -> None:
    c, where, goal = case(arch, model), mappings(arch, model), ms / 1e3
    found = solve(c, where, context, goal)
    serves = np.asarray(found.feasible)
    timed = serves & (found.limited_by_time > 0.5)
    stored = serves & (found.limited_by_time < 0.5)
    assert serves.any()
    np.testing.assert_allclose(found.result.tpot_s[timed], goal, rtol=1e-12)
    # Where memory limits, it is full and there is time left.
    np.testing.assert_allclose(found.batch[stored], found.by_memory[stored], rtol=1e-12)
    memory = found.result.memory
    needed = memory.fixed + found.batch * memory.per_sequence
    np.testing.assert_allclose(needed[stored], memory.capacity[stored], rtol=1e-12)
    assert np.all(found.result.tpot_s[stored] <= goal)
    assert np.all(needed[timed] <= memory.capacity[timed] * (1 + 1e-12))
    assert np.all(found.batch[serves] >= 1.0)
    # The result is that of the batch, and of no other.
    again = at(c, where, context, found.batch)
    for name in ("tpot_s", "tokens_per_s_per_megawatt", "board_power_w"):
        np.testing.assert_allclose(getattr(found.result, name), getattr(again, name), rtol=1e-12)


@pytest.mark.parametrize("context", [1024.0, 8192.0])
def test_root_far_below_what_memory_holds(context: float) -> None:
    """Eight experts saturate at a few sequences, where memory holds thousands: a hard bracket for secants."""
    c, where = case("h100", "mixtral-8x7b"), mappings("h100", "mixtral-8x7b")
    for goal in (0.005, 0.01, 0.02):
        found = solve(c, where, context, goal)
        timed = np.asarray(found.feasible) & (found.limited_by_time > 0.5)
        error = np.abs(found.result.tpot_s[timed] / goal - 1.0)
        assert timed.sum() > 200
        assert (error > 1e-12).mean() < 0.05
        assert error.max() < 1e-3


@pytest.mark.parametrize(("arch", "model"), CASES)
def test_flags_of_what_cannot_serve(arch: str, model: str) -> None:
    c, where = case(arch, model), mappings(arch, model)
    goal = 0.008 if model == "kimi-k3" else 0.005
    found = solve(c, where, 131072.0, goal)
    one = at(c, where, 131072.0, np.ones(len(where.pp)))
    needed = one.memory.fixed + one.memory.per_sequence
    late, full = one.tpot_s > goal, needed > one.memory.capacity
    np.testing.assert_array_equal(found.late > 0, late)
    np.testing.assert_array_equal(found.full > 0, full)
    np.testing.assert_array_equal(np.asarray(found.feasible), ~late & ~full)
    assert late.any()
    assert full.any()
    assert (~late & ~full).any()
    np.testing.assert_allclose(found.late[late], np.log(one.tpot_s / goal)[late], rtol=1e-12)
    np.testing.assert_allclose(found.full[full], np.log(needed / one.memory.capacity)[full], rtol=1e-12)
    np.testing.assert_array_equal(found.batch[late | full], 1.0)


@pytest.mark.parametrize(("arch", "model"), CASES)
def test_whole_batches_by_trying_each(arch: str, model: str) -> None:
    """The largest whole batch that is in time and fits, among all from 1 to two beyond the root."""
    c, all_ = case(arch, model), mappings(arch, model)
    rng = np.random.default_rng(5)
    n = 24
    where = take(all_, rng.integers(0, len(all_.pp), n))
    context = 8192.0 * np.exp2(rng.uniform(0, 5, n))
    goal = np.exp(rng.uniform(np.log(0.006), np.log(0.06), n))
    found = solve(c, where, context, goal)
    tries = [np.arange(1.0, np.ceil(b) + 3.0) for b in found.batch]
    index = np.repeat(np.arange(n), [len(t) for t in tries])
    sizes = np.concatenate(tries)
    passes = at(c, take(where, index), context[index], sizes)
    memory = passes.memory
    good = (passes.tpot_s <= goal[index]) & (memory.fixed + sizes * memory.per_sequence <= memory.capacity)
    served = 0
    for i in range(n):
        mine = good[index == i]
        assert np.all(np.diff(mine.astype(int)) <= 0)  # once a batch is too large, all larger ones are
        want = int(mine.sum())
        assert want == (int(found.batch[i]) if found.feasible[i] else 0)
        served += want > 0
    assert served > n // 3


def test_bounds_on_the_batch() -> None:
    c, where = case("b200", "llama3.1-70b"), mappings("b200", "llama3.1-70b")
    free = solve(c, where, 8192.0, 0.03)
    capped = solve(c, where, 8192.0, 0.03, most=np.full(len(where.pp), 5.0))
    ok = np.asarray(free.feasible)
    np.testing.assert_allclose(capped.batch[ok], np.minimum(free.batch, 5.0)[ok], rtol=1e-12)
    assert np.all(capped.limited_by_time[ok & (free.batch > 5.0)] == 0.0)
    # A given batch is evaluated as it is, and flagged where it is too much.
    fixed = solve(c, where, 8192.0, 0.03, least=np.full(len(where.pp), 64.0), most=np.full(len(where.pp), 64.0))
    np.testing.assert_array_equal(fixed.batch, 64.0)
    np.testing.assert_array_equal(np.asarray(fixed.feasible), ok & (free.batch >= 64.0))


def test_without_a_target_memory_decides() -> None:
    for arch, model in CASES:
        c, where = case(arch, model), mappings(arch, model)
        found = solve(c, where, 32768.0, np.inf)
        fits = found.by_memory >= 1.0
        assert np.all(found.limited_by_time == 0.0)
        assert np.all(found.late == 0.0)
        np.testing.assert_array_equal(found.full > 0.0, ~fits)
        np.testing.assert_allclose(found.batch[fits], found.by_memory[fits])


ratios = st.floats(1.001, 8.0)
samples = st.lists(
    st.tuples(st.integers(0, 10_000), st.floats(1.0, 400.0), st.floats(512.0, 600_000.0), ratios),
    min_size=12,
    max_size=12,
)


@given(st.sampled_from(CASES), samples)
@settings(max_examples=40)
def test_more_work_takes_longer(which: tuple[str, str], drawn: list) -> None:
    c, all_ = case(*which), mappings(*which)
    index, batch, context, ratio = (np.array(x) for x in zip(*drawn, strict=True))
    where = take(all_, index % len(all_.pp))
    base = at(c, where, context, batch)
    # A larger batch slows each user and, decode being a matter of sharing what is read, serves more tokens.
    larger = at(c, where, context, batch * ratio)
    assert np.all(larger.tpot_s >= base.tpot_s * (1 - 1e-12))
    assert np.all(larger.tokens_per_s >= base.tokens_per_s * (1 - 1e-12))
    # A longer context slows.
    longer = at(c, where, context * ratio, batch)
    assert np.all(longer.tpot_s > base.tpot_s)
    assert np.all(longer.tokens_per_s_per_megawatt < base.tokens_per_s_per_megawatt)


@given(
    st.sampled_from(CASES),
    samples,
    st.sampled_from(["memory_bandwidth", "scale_up_bandwidth", "tensor_bf16", "vector_rate"]),
)
@settings(max_examples=40)
def test_a_faster_machine_is_no_slower(which: tuple[str, str], drawn: list, field: str) -> None:
    c, all_ = case(*which), mappings(*which)
    index, batch, context, ratio = (np.array(x) for x in zip(*drawn, strict=True))
    where, n = take(all_, index % len(all_.pp)), len(drawn)
    whole: Any = jax.tree.map(lambda x: np.full(n, float(x)), c.machine)
    faster = changed(whole, **{field: getattr(whole, field) * ratio})
    base, better = at(c, where, context, batch, whole), at(c, where, context, batch, faster)
    assert np.all(better.tpot_s <= base.tpot_s * (1 + 1e-12))
    assert np.all(better.tokens_per_s_per_megawatt >= base.tokens_per_s_per_megawatt * (1 - 1e-12))
    # The largest batch within a target grows along.
    goal = base.tpot_s * 1.2
    slow, fast = (solve(c, where, context, goal, m) for m in (whole, faster))
    both = np.asarray(slow.feasible)
    assert np.all(np.asarray(fast.feasible)[both])
    assert np.all(fast.batch[both] >= slow.batch[both] * (1 - 1e-9))


def test_a_looser_target_serves_no_less() -> None:
    for which in CASES:
        c, where = case(*which), mappings(*which)
        targets = (0.006, 0.01, 0.02, 0.04)
        found = [solve(c, where, 65536.0, t) for t in targets]
        for tight, loose in pairwise(found):
            ok = np.asarray(tight.feasible)
            assert np.all(np.asarray(loose.feasible)[ok])
            assert np.all(loose.batch[ok] >= tight.batch[ok] * (1 - 1e-12))
