"""Smooth primitives shared by the whole model: the maximum that real kernels take, and safe shares.

The exact path (`--ideal`) uses the same functions with ``hard=True``.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from codesign.lanes import Number

_LEAST_RATIO = 1e-30


def _pair(a: Number, b: Number, p: Number) -> tuple[Number, ...]:
    """``(a^p + b^p)^(1/p)`` and the parts that its derivative needs."""
    top = jnp.maximum(a, b)
    ratio = jnp.maximum(jnp.minimum(a, b) / (top + 1e-300), _LEAST_RATIO)
    log_ratio = jnp.log(ratio)
    power = jnp.exp(p * log_ratio)
    log_sum = jnp.log1p(power)
    stretch = jnp.exp(log_sum / p)
    return top * stretch, ratio, log_ratio, power, log_sum, stretch


@jax.custom_jvp
def _smooth_pair(a: Number, b: Number, p: Number) -> Number:
    return _pair(a, b, p)[0]


@_smooth_pair.defjvp
def _smooth_pair_jvp(primals, tangents):
    a, b, p = primals
    d_a, d_b, d_p = tangents
    out, ratio, log_ratio, power, log_sum, stretch = _pair(a, b, p)
    larger = jnp.where(out > 0.0, stretch / (1.0 + power), 0.0)  # d out / d max
    smaller = larger * power / ratio  # d out / d min
    by_a, by_b = jnp.where(a >= b, larger, smaller), jnp.where(a >= b, smaller, larger)
    by_p = out * (power * log_ratio / (1.0 + power) - log_sum / p) / p
    return out, by_a * d_a + by_b * d_b + by_p * d_p


def smooth_maximum(values: Sequence[Number], p: Number, *, hard: bool = False) -> Number:
    r"""The p-norm of non-negative lane times, normalised by the largest so that it neither over- nor underflows.

    .. math:: \max_i x_i \cdot \left(\sum_i (x_i / \max_j x_j)^p\right)^{1/p}

    It is never below the largest lane, is homogeneous of degree one (doubling every rate halves it), tends to the sum
    for p = 1 and to the maximum as p grows.  Where several lanes are zero, value and gradient are zero; a single lane
    is handed through.

    Args:
        values: scalars or arrays of one shape [s].
        p: the overlap exponent, at least 1.
        hard: the exact maximum instead.
    """
    present = [v for v in values if not (isinstance(v, float) and v == 0.0)]
    if not present:
        return 0.0
    if len(present) == 1:
        return present[0]
    if hard:
        top = present[0]
        for v in present[1:]:
            top = jnp.maximum(top, v)
        return top
    out = present[0]
    for v in present[1:]:  # the p-norm is associative
        out = _smooth_pair(out, v, p)
    return out


def larger(a: Number, b: Number) -> Number:
    """The larger of two that may be equal by construction, with the slope of one of them.

    A pipeline of one stage has its longest stage for its total.  The slope of ``jnp.maximum`` shares out a tie by
    comparing each argument with the result; where a compiler rounds an argument differently in value and in
    comparison, one of two shares can be a half while the other is whole.
    """
    return jnp.where(a >= b, a, b)


def share_above(value: Number, limit: Number) -> Number:
    """How far ``value`` exceeds ``limit``, as a ramp from 0 at the limit to 1 one unit above it."""
    return jnp.clip(value - limit, 0.0, 1.0)
