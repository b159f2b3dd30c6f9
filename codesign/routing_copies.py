r"""Redundant copies of popular experts (EPLB): what the fullest rank gets and reads when c copies flatten the load.

``c`` copies beside the E experts make ``S = E + c`` slots.  Copies go to the experts with the most load per copy, a
route takes one of its expert's copies at random, and slots are packed on ranks by their expected load, heaviest first,
each to the emptiest rank that may hold one more (as the expert-parallel load balancer of DeepSeek,
github.com/deepseek-ai/EPLB, does; it asks for S a multiple of R, here some ranks hold one slot more than others).

The loads ``a`` of the slots are those of the balancer: after c copies the most loaded one is the c-th in order of all
:math:`p_e/n`, n = 1, 2, ...  What packing leaves over follows from them:

- of the ``j R + m`` heaviest slots m ranks have at least ``j + 1``, so the m-th fullest has no less than
  :math:`(j+1)\,a_{jR+m}` and the lightest slots on its other places;
- ranks with one slot more than others hold the lightest slots at best;
- where ranks differ by a slot, or all slots are alike, some have the lightest slot :math:`a_{min}` above the others.

Around these levels counts scatter as with uniform routing; the expected maximum is that of normals, an integral.
Without copies experts lie at random (`codesign.routing`); between none and one copy the two are interpolated.

Held against a simulated balancer and sampled tokens (64 to 896 experts, 4 to 72 ranks, 1 to E copies, exponents to 1.5,
1 to 1e5 tokens; `codesign.tools.fit_copies`), where every rank has as many slots: routes within 3 % on 99.4 % of
points (median 0.15 %, 95 % within 1.4 %, worst 7 %), distinct experts on 99.0 % (median 0, 95 % within 1.5 %, worst
10 %).  Where some ranks have one slot more: routes within 3 % on 97.5 % (95 % within 2.1 %), distinct experts on 96 %
(95 % within 2.5 %); worst 21 % and 22 %: a token or two, or fewer than five copies at an exponent above 0.9.

Left out: loads that drift away from those the copies were made for, and copies chosen by distance.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from codesign.lanes import Number
from codesign.routing import (
    _by_forward_mode,
    _check,
    _fullest,
    _is_uniform,
    _most_held,
    _real,
    _tau,
    _whole,
    fullest_rank_distinct,
    fullest_rank_routes,
)
from codesign.routing_tables import law, normal_maximum

#: Most popular experts that are counted one by one, and blocks in which the others are: for sums, and for slots.
COARSE, FINE = (12, 14), (32, 48)

#: Heaviest slots that may share a rank, counted in the pigeonhole; more of them average out.
SHARING = 8

#: Levels of the fullest ranks: at 1, R^(1/5), ... R^(4/5) ranks from the top; the others share what is left.
LEVELS = 5

#: Halvings of the bracket of a load, a factor of two; points of the integral over the maximum.
HALVINGS, POINTS = 30, 12


class Fit(NamedTuple):
    """Constants fitted by `codesign.tools.fit_copies` to a simulated balancer and sampled tokens.

    Attributes:
        room, room_few, room_power: lightest slots by which a rank with one slot more stands out.
        alike, alike_slots: exponent of popularity up to which slots count as alike, and its power of slots per rank.
        spread: power of a level in its spread.
        between: weight of the upper of two neighbouring levels.
    """

    room: float = 0.976
    room_few: float = 0.253
    room_power: float = 0.799
    alike: float = 0.093
    alike_slots: float = 0.131
    spread: float = 0.347
    between: float = 0.305


FIT = Fit()


@lru_cache(maxsize=64)
def _places(experts: int, kept: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of popularity, the first ones one by one, then in blocks; and how many experts each stands for."""
    single, blocks = kept
    edges = [*range(min(experts, single)), *np.geomspace(min(experts, single), experts, blocks + 1)]
    edges = np.unique(np.round(edges))
    count = np.diff(edges)
    middle = np.sqrt((edges[:-1] + 0.5) * (edges[1:] - 0.5)) if kept == COARSE else (edges[:-1] + edges[1:] - 1) / 2.0
    return np.where(count > 1, middle, edges[:-1]), count


def hit_probabilities(
    experts: int, top_k: int, skew: Number, kept: tuple[int, int] = COARSE
) -> tuple[jax.Array, np.ndarray]:
    """Probability that a token visits an expert, at places of popularity, most popular first, and their weights.

    Returns:
        p, (places,), and how many experts each stands for; ``sum p = k``.
    """
    at, count = _places(experts, kept)
    if top_k == experts or _is_uniform(skew):
        p = jnp.full(len(at), top_k / experts)
    else:
        skew = _real(skew)
        p = -jnp.expm1(-_tau(law(experts, top_k), skew) * jnp.exp(-skew * np.log(at + 1.0)))
    return p * (top_k / jnp.sum(p * count)), count


def _sums(x: Any, width: int = 16) -> jax.Array:
    """Running sums, as products with triangles: compiled in less time than a scan."""
    x = jnp.asarray(x)
    rows = -(-x.shape[0] // width)
    inside = jnp.pad(x, (0, rows * width - x.shape[0])).reshape(rows, width) @ np.tri(width).T
    return (inside + (np.tri(rows, k=-1) @ inside[:, -1])[:, None]).reshape(-1)[: x.shape[0]]


def copied_level(copies: Number, experts: int, top_k: int, skew: Number = 0.0) -> jax.Array:
    r"""Expected routes of a token to one copy of the most popular experts if copies were divisible: between 0 and 1.

    The level h of :math:`\sum_e \max(1, p_e/h) = E + c`; with popularity falling,
    :math:`h = \max_m \sum_{e<m} p_e / (c + m)`.
    """
    p, count = hit_probabilities(experts, top_k, skew)
    return jnp.max(_sums(count * p) / (copies + np.cumsum(count)))


class Slots(NamedTuple):
    """The slots of a balanced bank, heaviest first.

    Attributes:
        load: routes of a token to one slot, (kinds,).
        number: slots of each kind, (kinds,).
        total: S, slots in all.
    """

    load: jax.Array
    number: jax.Array
    total: jax.Array


def balanced_slots(copies: Number, experts: int, top_k: int, skew: Number = 0.0) -> Slots:
    """Slots as the balancer makes them, one copy after the other to the expert with the most load per copy.

    Exact for the 32 most popular experts, and where routing is uniform; beyond, experts next to each other in
    popularity are alike (loads within 2 %, 4 % at the exponent 1.5).  Part of a copy is shared out as a whole one.
    """
    copies = _real(copies)
    if top_k == experts or _is_uniform(skew):
        each = jnp.floor((experts + copies) / experts + 1e-9)
        more = experts + copies - each * experts
        load = jnp.stack([top_k / (experts * each), top_k / (experts * (each + 1.0))])
        return Slots(load, jnp.stack([(experts - more) * each, more * (each + 1.0)]), experts + copies)
    p, count = hit_probabilities(experts, top_k, skew, FINE)
    known, c = jax.lax.stop_gradient(p), jax.lax.stop_gradient(copies)
    # Loads at or above x are sum floor(p/x); at the divisible level more than c, at twice it no more than c.
    low = jnp.max(_sums(count * known) / (c + np.cumsum(count))) * (1.0 - 1e-9)

    def halve(_: int, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = 0.5 * (bracket[0] + bracket[1])
        more = jnp.sum(count * jnp.floor(known / middle)) > jnp.floor(c) + 0.5
        return jnp.where(more, middle, bracket[0]), jnp.where(more, bracket[1], middle)

    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (low, 2.0 * low))
    n = jnp.maximum(jnp.ceil(known / high - 1e-12), 1.0)
    alike = jnp.where(known >= n * low * (1.0 - 1e-12), count, 0.0)  # next in turn, the first of them first
    n = n + jnp.clip(copies + experts - jnp.sum(count * n) - (_sums(alike) - alike), 0.0, alike) / count
    load, number = jax.lax.sort((-p / n, jnp.asarray(count * n)), num_keys=1)
    return Slots(-load, number, experts + copies)


class Packing(NamedTuple):
    """Expected loads of the fullest ranks, packed.

    Attributes:
        ranks: R, no more than slots.
        mean: routes of a token to a rank.
        slots: on a rank, the lower whole number.
        more: ranks with one slot more.
        place: ranks at least as full as each level, (LEVELS,).
        level: load over the mean, less 1, (LEVELS,), falling.
    """

    ranks: jax.Array
    mean: jax.Array
    slots: jax.Array
    more: jax.Array
    place: jax.Array
    level: jax.Array


def _packed(found: Slots, experts: int, top_k: int, ranks: Number, skew: Number, fit: Fit = FIT) -> Packing:
    load, number, total = found
    start = _sums(number) - number

    def heaviest(x: Any) -> jax.Array:
        """Load of the x heaviest slots."""
        return jnp.sum(jnp.clip(x[..., None] - start, 0.0, number) * load, axis=-1)

    held = jnp.minimum(_real(ranks), total)
    mean = top_k / held
    slots = jnp.floor(total / held + 1e-9)
    more = jnp.maximum(total - slots * held, 0.0)
    some, share = jnp.clip(more, 0.0, 1.0), more / held

    # The pigeonhole; its last place is the first rank that must hold one slot more.
    place = jnp.exp(jnp.log(held) * np.arange(LEVELS) / LEVELS)
    m = jnp.append(place, held - more + 1.0)
    j = np.arange(SHARING)[:, None]
    at = j * held + m - 1.0
    other = jnp.maximum(slots - j - 1.0 + some * jnp.clip(m - held + more, 0.0, 1.0), 0.0)
    wide = jnp.append(place, 1.0)
    lightest = (top_k - heaviest(total - wide * other)) / wide
    loads = (j + 1.0) * (heaviest(at + 1.0) - heaviest(at)) + lightest
    level = jnp.max(jnp.clip(total - at, 0.0, 1.0) * loads, axis=0) / mean - 1.0

    # Ranks with a slot more, at best and as the balancer leaves them; slots that are alike.
    extra = (top_k - heaviest((total - more * (slots + 1.0))[None])[0]) / jnp.maximum(more, 1e-9) / mean - 1.0
    least = (top_k - heaviest((total - 1.0)[None])[0]) / mean
    even = _is_uniform(skew) or top_k == experts
    units = 1.0 / least if even else 2.0 * experts / held
    part = units - jnp.floor(units + 1e-9)
    alike = 1.0 if even else jnp.exp(-jnp.square(_real(skew) * slots**fit.alike_slots / fit.alike))
    above = some * fit.room * jnp.maximum(1.0 - share, 1e-12) ** fit.room_power * (1.0 - fit.room_few / slots)
    stands = alike * jnp.clip(part * held, 0.0, 1.0) * (1.0 - part) + (1.0 - alike) * above
    wide = held * (alike * jnp.maximum(part, 0.0) + (1.0 - alike) * share)
    room = least * stands * jnp.clip(wide - place + 1.0, 0.0, 1.0)
    first = np.arange(LEVELS) == 0
    room = jnp.where(first, jnp.maximum(jnp.maximum(least * stands, some * level[-1]), some * extra), room)
    return Packing(held, mean, slots, more, place, jnp.maximum(jnp.maximum(level[:-1], room), 0.0))


def packing_excess(copies: Number, experts: int, top_k: int, ranks: Number, skew: Number = 0.0) -> jax.Array:
    """Expected load of the fullest rank over the mean, less 1, of balanced slots: 0 where packing is perfect."""
    _check(experts, top_k)
    return _packed(balanced_slots(copies, experts, top_k, skew), experts, top_k, ranks, skew).level[0]


def _highest(packing: Packing, even: Number, fit: Fit = FIT) -> jax.Array:
    r"""Expected maximum over ranks with the levels of ``packing`` and chance around them, over the mean, less 1.

    :math:`\int 1 - \prod_g \Phi((x - \ell_g)/\sigma_g)^{n_g}\,dx` over groups of ranks, by the midpoint rule.

    Args:
        packing: levels.
        even: what chance alone makes of equal ranks, the same way.
        fit: the constants.
    """
    between = fit.between * packing.level[:-1] + (1.0 - fit.between) * packing.level[1:]
    width, level = jnp.diff(packing.place, prepend=0.0), jnp.append(packing.level[:1], between)
    rest = jnp.maximum(packing.ranks - packing.place[-1], 1e-9)
    level = jnp.append(level, jnp.maximum(-jnp.sum(width * level) / rest, -0.9))
    width = jnp.append(width, rest)
    sigma = even / normal_maximum(jnp.log(jnp.maximum(packing.ranks, 1.0 + 1e-6)))
    sigma = jnp.maximum(sigma * (1.0 + level) ** fit.spread, 1e-9)
    high = jnp.max(level + sigma * (normal_maximum(jnp.log(jnp.maximum(width, 1.0))) + 4.5))
    low = jnp.max(level - 4.0 * sigma)
    at = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    below = ndtr((at[:, None] - level) / sigma)
    below = jnp.exp(jnp.sum(width * jnp.log(jnp.maximum(below, 1e-30)), axis=-1))
    return jnp.maximum(low + (high - low) * jnp.mean(1.0 - below), 0.0)


def copied_distinct(tokens: Number, experts: int, top_k: int, copies: Number, skew: Number = 0.0) -> jax.Array:
    r"""Expected distinct slots that ``tokens`` tokens hit, :math:`\sum_s [1 - (1 - a_s)^T]`, a_s a slot's load.

    Args:
        tokens, experts, top_k, copies, skew: as in `fullest_rank_routes_copied`.
    """
    _check(experts, top_k)
    return _hits(_real(tokens), balanced_slots(copies, experts, top_k, skew), top_k)[0]


def _hits(tokens: Number, slots: Slots, top_k: int) -> tuple[jax.Array, jax.Array]:
    """Sums over the slots of the probability that one of ``tokens`` tokens hits it, and of its square."""
    batch = _whole(tokens, 1.0)
    hit = -jnp.expm1(batch * jnp.log1p(-jnp.minimum(slots.load, 1.0 - 1e-12)))
    part = tokens / batch
    once = jnp.minimum(jnp.sum(slots.number * hit), batch * top_k)
    return part * once, part * part * jnp.sum(slots.number * hit * hit)


def _dispersion(once: Number, twice: Number, slots: Number) -> jax.Array:
    """Variance over mean of what ranks of balanced slots get, as `_fullest` takes it: ``1 - sum h^2/sum h``."""
    return jnp.clip((1.0 - twice / once) * slots / (slots - 1.0), 0.0, 1.0 - 1e-9)


def fullest_rank_routes_copied(
    tokens: Number, experts: int, top_k: int, ranks: Number, copies: Number, skew: Number = 0.0, fit: Fit = FIT
) -> jax.Array:
    """Expected routes on the fullest rank with ``copies`` redundant experts; `fullest_rank_routes` for none.

    Args:
        tokens: T of all instances that share the bank [s].
        experts, top_k: E and k, static.
        ranks: R.
        copies: c per layer, 0 to E, whole in truth.
        skew: exponent of popularity, 0 to 1.5.
        fit: the constants, for those who fit them.
    """
    without = fullest_rank_routes(tokens, experts, top_k, ranks, skew)
    return _joined(partial(_routes, experts, top_k, fit), without, tokens, ranks, copies, skew, fit is not FIT)


def _joined(
    function: Any, without: jax.Array, tokens: Number, ranks: Number, copies: Number, skew: Number, fitted: bool = False
) -> jax.Array:
    """What ``function`` gives from one copy on, ``without`` for none, and a line between.

    Where its constants are ``fitted`` they are differentiated as they stand.
    """
    popular = () if _is_uniform(skew) else (_real(skew),)
    copies = _real(copies)
    beside = function if fitted else _by_forward_mode(function)
    found = beside(_real(tokens), _real(ranks), jnp.maximum(copies, 1.0), *popular)
    return without + jnp.clip(copies, 0.0, 1.0) * (found - without)


def _routes(
    experts: int, top_k: int, fit: Fit, tokens: jax.Array, ranks: jax.Array, copies: jax.Array, skew: Number = 0.0
) -> jax.Array:
    """Routes on the fullest rank of balanced slots."""
    slots = balanced_slots(copies, experts, top_k, skew)
    packing = _packed(slots, experts, top_k, ranks, skew, fit)
    batch = _whole(tokens, 1.0)
    draws, held = batch * top_k, packing.ranks
    d = _dispersion(top_k, jnp.sum(slots.number * slots.load * slots.load), slots.total)
    per_cell = (1.0 - d) / jnp.maximum(draws - d, 1e-9)
    cap = batch * jnp.minimum(float(top_k), _most_held(slots.total, ranks))
    mean = draws / held
    even = _fullest(draws, d, per_cell, cap, jnp.maximum(packing.slots, 1.0) * held, held)
    found = mean * (1.0 + _highest(packing, jnp.maximum(even / mean - 1.0, 0.0), fit))
    return tokens / batch * jnp.minimum(found, cap)


def fullest_rank_distinct_copied(
    tokens: Number, experts: int, top_k: int, ranks: Number, copies: Number, skew: Number = 0.0
) -> jax.Array:
    """Expected distinct experts, copies counted apart, on the rank that has most of them to read.

    Arguments as in `fullest_rank_routes_copied`.
    """
    without = fullest_rank_distinct(tokens, experts, top_k, ranks, skew)
    return _joined(partial(_distinct, experts, top_k), without, tokens, ranks, copies, skew)


def _distinct(
    experts: int, top_k: int, tokens: jax.Array, ranks: jax.Array, copies: jax.Array, skew: Number = 0.0
) -> jax.Array:
    """Distinct slots on the fullest rank of balanced ones."""
    found = balanced_slots(copies, experts, top_k, skew)
    slots = found.total
    distinct, twice = _hits(_real(tokens), found, top_k)
    draws = _whole(distinct, float(top_k))
    at_random = jnp.clip((slots - draws) / (slots - 1.0), 0.0, 1.0 - 1e-9)
    d = (_dispersion(distinct, twice, slots) + at_random) / 2.0
    cap = jnp.minimum(draws, _most_held(slots, ranks))
    return distinct / draws * _fullest(draws, d, (1.0 - d) / jnp.maximum(draws - d, 1e-9), cap, slots, ranks)
