r"""Softmax attention over a cache: the scan that GQA and MLA share, with its merge where it is split by context.

A chip that holds a range R of the context gives, per head, its share of the answer and the logarithm of its sum,

.. math:: o_R = \sum_{j \in R} e^{s_j - l_R} v_j, \qquad l_R = \ln \sum_{j \in R} e^{s_j},

and the answer is :math:`\sum_R e^{l_R - l} o_R` with :math:`l = \ln \sum_R e^{l_R}`, a sink among the terms if there is
one.  Before, every chip needs the queries of all heads (an all-gather); after, each head's shares go to the chip that
owns the head (an all-to-all, which sends what a reduce-scatter would) with one logarithm per head and token beside.
"""

import math

import jax
import jax.numpy as jnp

from codesign.reference.parts import Part, exchange, gather


def rotated(x: jax.Array, positions: jax.Array, base: float = 10000.0) -> jax.Array:
    """Rotate pairs ``(x_i, x_{i + d/2})`` of the last axis by ``position base^(-2i/d)``."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-jnp.arange(half, dtype=x.dtype) / half)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Answer and logarithm of the sum, per head and query.

    Args:
        q: (batch, kv heads, heads per kv head, queries, width), scaled.
        k, v: (batch, kv heads, keys, width).
        seen: (queries, keys) that are not masked, None for all.
    """
    # Keys on the left: with keys on the right XLA's CPU backend would first turn the whole cache.
    scores = jnp.moveaxis(jnp.einsum("bgkd,bgnqd->bgknq", k, q), 2, 4)
    if seen is not None:
        scores = jnp.where(seen, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    answer = jnp.einsum("bgnqk,bgkd->bgnqd", weights, v) / jnp.maximum(total, 1e-30)
    return answer, (jnp.log(total) + top)[..., 0]


def scan(
    q: jax.Array, k: jax.Array, v: jax.Array, *, cached: int, reach: int | None, chunk: int | None, tile: int
) -> tuple[jax.Array, jax.Array]:
    """Causal attention of the last ``q.shape[3]`` positions over all keys, by tiles of queries.

    A tile reads the keys that its tokens can see and masks inside that rectangle; with tiles of one token nothing is
    masked and the products are those that the count has: ``min(c + i, w)`` keys for new token i.

    Args:
        q, k, v: as for `attend`; keys are those of ``cached`` tokens and of the new ones.
        cached: tokens before the new ones among the keys.
        reach: sliding window, itself included, or None.
        chunk: length of the chunks inside which a token attends, or None.
        tile: queries at a time.
    """
    new = q.shape[3]
    answers, sums = [], []
    for start in range(0, new, tile):
        stop = min(start + tile, new)
        high, low = cached + stop, 0
        if reach is not None:
            low = max(0, cached + start + 1 - reach)
        elif chunk is not None:
            low = (cached + start) // chunk * chunk
        seen = None
        if stop - start > 1:
            at = cached + jnp.arange(start, stop)[:, None]
            key = jnp.arange(low, high)[None, :]
            seen = key <= at
            if reach is not None:
                seen &= key > at - reach
            elif chunk is not None:
                seen &= key >= at // chunk * chunk
        answer, total = attend(q[:, :, :, start:stop], k[:, :, low:high], v[:, :, low:high], seen)
        answers.append(answer)
        sums.append(total)
    return jnp.concatenate(answers, axis=3), jnp.concatenate(sums, axis=3)


def appended(cache: jax.Array, fresh: jax.Array, part: Part) -> jax.Array:
    """A cache (batch, tokens, width) of one head with new entries, which every chip has made.

    By context they fill places at the end of the last range: that of sequence b is with chip ``b mod tp``.
    """
    if not part.context:
        return jnp.concatenate([cache, fresh], axis=1)
    if not fresh.shape[1]:
        return cache
    own = jax.lax.axis_index("tp") + part.tp * jnp.arange(cache.shape[0] // part.tp)
    return cache.at[own, -fresh.shape[1] :].set(fresh[own])


def with_sink(answer: jax.Array, total: jax.Array, sink: jax.Array | None) -> jax.Array:
    """Scale an answer for a sink of logit ``sink``, shaped like ``total``, that takes weight and gives nothing."""
    if sink is None:
        return answer
    return answer * jax.nn.sigmoid(total - sink)[..., None]


def all_queries(q: jax.Array, part: Part) -> jax.Array:
    """Queries (batch, heads, queries, width) of all heads of the instance."""
    with jax.named_scope("context_merge"):
        return gather(q, 1, part)


def own_heads(answer: jax.Array, total: jax.Array, part: Part) -> tuple[jax.Array, jax.Array]:
    """Merge shares (batch, all heads, queries, width) and their sums into those of this chip's heads."""
    if part.tp == 1:
        return answer, total

    def by_owner(x: jax.Array) -> jax.Array:
        heads = x.reshape(x.shape[0], part.tp, x.shape[1] // part.tp, *x.shape[2:])
        return exchange(jnp.moveaxis(heads, 1, 0), "tp")

    with jax.named_scope("context_merge"):
        answers, totals = by_owner(answer), by_owner(total)
    merged = jax.nn.logsumexp(totals, axis=0)
    return jnp.sum(jnp.exp(totals - merged)[..., None] * answers, axis=0), merged


def scaled(q: jax.Array, width: int) -> jax.Array:
    """Queries over the root of their width."""
    return q / math.sqrt(width)
