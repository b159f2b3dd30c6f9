"""The smooth maximum against the p-norm in exact arithmetic, its limits, and its derivative against differences."""

from decimal import Decimal, getcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.numerics import larger, share_above, smooth_maximum

getcontext().prec = 60

times = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e3)), min_size=2, max_size=5)
exponents = st.floats(1.0, 30.0)


def smooth(values: list[float], p: float, *, hard: bool = False) -> float:
    """As traced code calls it: no lane is known to be absent."""
    return float(smooth_maximum([jnp.asarray(v) for v in values], jnp.asarray(p), hard=hard))


def exact(values: list[Decimal], p: Decimal) -> Decimal:
    """The p-norm in 60 digits."""
    return sum((v**p for v in values if v), Decimal(0)) ** (1 / p) if any(values) else Decimal(0)


def norm(values: list[float], p: float) -> float:
    return float(exact([Decimal(float(v)) for v in values], Decimal(p)))


@given(times, exponents)
@settings(max_examples=60)
def test_is_the_p_norm(values: list[float], p: float) -> None:
    assert smooth(values, p) == pytest.approx(norm(values, p), rel=1e-13, abs=0.0)


@given(times, exponents)
@settings(max_examples=60)
def test_lies_between_the_largest_and_the_sum(values: list[float], p: float) -> None:
    found = smooth(values, p)
    assert max(values) <= found
    assert found <= sum(values) * (1.0 + 1e-13)
    assert smooth(values, p, hard=True) == max(values)


@given(times, exponents, st.integers(-40, 40))
@settings(max_examples=60)
def test_halving_every_time_halves_it_to_the_last_bit(values: list[float], p: float, power: int) -> None:
    scale = 2.0**power
    assert smooth([v * scale for v in values], p) == smooth(values, p) * scale


def test_limits_of_the_exponent() -> None:
    values = [3.0, 1.0, 0.0, 2.5]
    assert smooth(values, 1.0) == pytest.approx(6.5, rel=1e-14)
    assert smooth(values, 2.0) == pytest.approx(np.sqrt(9.0 + 1.0 + 6.25), rel=1e-14)
    assert smooth(values, 1000.0) == pytest.approx(3.0, rel=1e-14)
    falling = [smooth(values, p) for p in (1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0)]
    assert falling == sorted(falling, reverse=True)


def test_equal_lanes_add_by_the_root_of_their_number() -> None:
    for n in (2, 3, 5):
        assert smooth([7.0] * n, 4.0) == pytest.approx(7.0 * n**0.25, rel=1e-14)


def test_no_overflow_far_from_one() -> None:
    assert smooth([1e-200, 1e-200], 30.0) == pytest.approx(1e-200 * 2 ** (1 / 30), rel=1e-13)
    assert smooth([1e200, 1e-200], 30.0) == 1e200


def test_absent_lanes_cost_nothing() -> None:
    assert smooth_maximum([0.0, 0.0], 3.0) == 0.0
    assert smooth_maximum([0.0, 5.0, 0.0], 3.0) == 5.0
    assert smooth_maximum([], 3.0) == 0.0


def difference(values: list[float], p: float, i: int) -> float:
    """Central difference in 60 digits by one lane, or by the exponent where ``i`` is the number of lanes."""
    h, ends = Decimal("1e-15"), []
    for sign in (1, -1):
        moved = [Decimal(v) for v in (*values, p)]
        moved[i] += sign * h
        ends.append(exact(moved[:-1], moved[-1]))
    return float((ends[0] - ends[1]) / (2 * h))


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=4), st.floats(1.0, 12.0))
@settings(max_examples=30)
def test_gradient_against_differences(values: list[float], p: float) -> None:
    by_lanes, by_p = jax.grad(lambda v, q: smooth_maximum(list(v), q), argnums=(0, 1))(jnp.asarray(values), p)
    for i, slope in enumerate(by_lanes):
        assert float(slope) == pytest.approx(difference(values, p, i), rel=1e-11, abs=1e-14)
    assert float(by_p) == pytest.approx(difference(values, p, len(values)), rel=1e-10, abs=1e-14 * max(values))


def gradient(values: list[float], p: float) -> np.ndarray:
    return np.asarray(jax.grad(lambda v: smooth_maximum(list(v), p))(jnp.asarray(values)))


def test_gradient_at_ties_is_shared() -> None:
    # d/dx (x^p + y^p)^(1/p) at x = y is 2^(1/p - 1) for each.
    for p in (1.0, 2.0, 5.0, 8.0):
        np.testing.assert_allclose(gradient([4.0, 4.0], p), 2 ** (1 / p - 1), rtol=1e-13)


def test_gradient_by_an_idle_lane() -> None:
    # With p > 1 the first step of an idle lane costs nothing; with p = 1 it costs itself.
    np.testing.assert_allclose(gradient([2.0, 0.0, 0.0], 5.0), [1.0, 0.0, 0.0], atol=1e-30)
    np.testing.assert_allclose(gradient([0.0, 2.0], 1.0), [1.0, 1.0])


def test_nothing_to_do_has_no_time_and_no_gradient() -> None:
    assert smooth([0.0, 0.0, 0.0], 5.0) == 0.0
    np.testing.assert_array_equal(gradient([0.0, 0.0, 0.0], 5.0), 0.0)
    assert float(jax.grad(lambda p: smooth_maximum([jnp.zeros(()), jnp.zeros(())], p))(5.0)) == 0.0


def test_euler_identity() -> None:
    # Homogeneous of degree one: the lanes times their derivatives add up to the whole.
    values = [0.3, 2.0, 1.9, 1e-9]
    assert np.dot(gradient(values, 3.7), values) == pytest.approx(smooth(values, 3.7), rel=1e-13)


def test_arrays_are_taken_point_by_point() -> None:
    a, b = np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 3.0])
    found = np.asarray(jax.jit(lambda x, y: smooth_maximum([x, y], 4.0))(a, b))
    np.testing.assert_allclose(found, [norm([x, y], 4.0) for x, y in zip(a, b, strict=True)], rtol=1e-14)


def test_the_larger_of_two_that_are_equal_has_the_slope_of_one() -> None:
    for x in (0.1, 1.0 / 3.0, 7.7):
        value, slope = jax.jit(jax.value_and_grad(lambda v: larger(3.0 * v + v, 4.0 * v)))(x)
        assert float(value) == pytest.approx(4.0 * x, rel=1e-15) and float(slope) == pytest.approx(4.0, rel=1e-15)
    assert [float(larger(1.0, 2.0)), float(larger(2.0, 1.0))] == [2.0, 2.0]


def test_ramp() -> None:
    assert [float(share_above(x, 8.0)) for x in (1.0, 8.0, 8.25, 9.0, 72.0)] == [0.0, 0.0, 0.25, 1.0, 1.0]
