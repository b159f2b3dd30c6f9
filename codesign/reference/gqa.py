"""Grouped-query attention against a cache, full, windowed or in chunks; decode and causal prefill are one call.

Split by heads, chips beyond ``n_kv`` keep copies of a key head.  Split by context, the cache of every sequence lies in
equal ranges on the chips of its instance; the last range of sequence b, which has room for the new token, on chip
``b mod tp``, so that chips own as many new tokens each.  New keys and values, projected by heads, first go there.
"""

import jax
import jax.numpy as jnp

from codesign.layers import gqa
from codesign.reference.attention import all_queries, own_heads, rotated, scaled, scan, with_sink
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce, exchange, rms_norm

#: Keys (batch, kv heads, tokens, width) and values of cached tokens.
Cache = tuple[jax.Array, jax.Array]


class GQA(Reference):
    """Executable `codesign.layers.gqa.GQA`.

    Args:
        shape: the structure; ``tied_values`` and ``q_rank`` included.
        hidden: residual width.
        draw: of the random weights.
        cached: tokens before the new ones, static.
        tile: queries that the scan takes at a time.
        room: the cache has places for the new tokens at its end, which are filled where it lies.
    """

    def __init__(self, shape: gqa.GQA, hidden: int, draw: Draw, *, cached: int, tile: int = 1, room: bool = False):
        self.shape, self.cached, self.tile, self.room = shape, cached, tile, room
        s = shape
        rank = s.q_rank or hidden
        self.q = draw.weight(rank, s.heads, s.key_width, fan=rank)
        self.k = draw.weight(hidden, s.kv_heads, s.key_width, fan=hidden)
        self.out = draw.weight(s.heads, s.value_width, hidden, fan=s.heads * s.value_width)
        if not s.tied_values:
            self.v = draw.weight(hidden, s.kv_heads, s.value_width, fan=hidden)
        if s.q_rank:
            self.q_down = draw.weight(hidden, s.q_rank, fan=hidden)
            self.q_scale = draw.constant(1.0, s.q_rank)
        if s.bias or s.qkv_bias:
            self.q_bias = draw.weight(s.heads, s.key_width, fan=16)
            self.k_bias = draw.weight(s.kv_heads, s.key_width, fan=16)
            self.v_bias = draw.weight(s.kv_heads, s.value_width, fan=16)
        if s.bias:
            self.out_bias = draw.weight(hidden, fan=16)
        if s.sinks:
            self.sink = draw.weight(s.heads, fan=1)
        if s.qk_norm:
            self.q_norm, self.k_norm = draw.constant(1.0, s.key_width), draw.constant(1.0, s.key_width)
        if s.gate:
            self.gate = draw.weight(hidden, s.heads, s.value_width, fan=hidden)
        if s.head_gate:
            self.head_gate = draw.weight(hidden, s.heads, fan=hidden)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        heads, second = P("tp"), P(None, "tp")
        return {
            "q": second, "k": second, "v": second, "out": heads, "q_bias": heads, "k_bias": heads, "v_bias": heads,
            "sink": heads, "gate": second, "head_gate": second,
        }  # fmt: skip

    def copies(self, part: Part) -> int:
        """Chips that keep the same key head."""
        return max(1, part.tp // self.shape.kv_heads)

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:
        if name in ("k", "v", "k_bias", "v_bias"):
            return jnp.repeat(weight, self.copies(part), axis=1 if name in ("k", "v") else 0)
        return weight

    def cache_spec(self, part: Part) -> P:
        """Partition of cached keys and values."""
        return P("dp", None, "tp") if part.context else P("dp", "tp")

    def projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values of this chip's heads, (batch, heads, tokens, width)."""
        s = self.shape
        with jax.named_scope("qkv"):
            low = rms_norm(x @ self.q_down[...], self.q_scale[...]) if s.q_rank else x
            q = jnp.einsum("bth,hnd->bntd", low, self.q[...])
            k = jnp.einsum("bth,hnd->bntd", x, self.k[...])
            v = k if s.tied_values else jnp.einsum("bth,hnd->bntd", x, self.v[...])
            if s.bias or s.qkv_bias:
                q, k = q + self.q_bias[...][:, None], k + self.k_bias[...][:, None]
                v = v + self.v_bias[...][:, None]
            if s.qk_norm:
                q, k = rms_norm(q, self.q_norm[...]), rms_norm(k, self.k_norm[...])
            at = jnp.arange(self.cached, self.cached + x.shape[1], dtype=x.dtype)
            return scaled(rotated(q, at), s.key_width), rotated(k, at), v

    def appended(self, cache: Cache, k: jax.Array, v: jax.Array, part: Part) -> Cache:
        """The cache with new keys and values; by context these first go from their heads' chips to their place."""
        new = k.shape[2]
        if not part.context:
            if self.room:
                at = (0, 0, cache[0].shape[2] - new, 0)
                update = jax.lax.dynamic_update_slice
                return update(cache[0], k, at), update(cache[1], v, at)
            return jnp.concatenate([cache[0], k], axis=2), jnp.concatenate([cache[1], v], axis=2)
        own = jax.lax.axis_index("tp") + part.tp * jnp.arange(k.shape[0] // part.tp)

        def placed(old: jax.Array, here: jax.Array) -> jax.Array:
            by_owner = jnp.moveaxis(here.reshape(-1, part.tp, *here.shape[1:]), 1, 0)
            with jax.named_scope("context_merge"):
                arrived = exchange(by_owner, "tp")[:: self.copies(part)]
            heads = jnp.moveaxis(arrived, 0, 1).reshape(len(own), -1, *here.shape[2:])
            return old.at[own, :, -new:].set(heads)

        return placed(cache[0], k), placed(cache[1], v)

    def output(self, x: jax.Array, answer: jax.Array, total: jax.Array, part: Part) -> jax.Array:
        """Sink, gates and projection of answers (batch, heads, q, width) with their sums, added up over the chips."""
        s = self.shape
        answer = with_sink(answer, total, self.sink[...][:, None] if s.sinks else None)
        with jax.named_scope("qkv"):
            if s.gate:
                answer = answer * jax.nn.sigmoid(jnp.einsum("bth,hnd->bntd", x, self.gate[...]))
            if s.head_gate:
                answer = answer * jax.nn.sigmoid(jnp.einsum("bth,hn->bnt", x, self.head_gate[...]))[..., None]
        with jax.named_scope("output"):
            y = jnp.einsum("bntd,ndh->bth", answer, self.out[...])
        y = all_reduce(y, part)
        return y + self.out_bias[...] if s.bias else y

    def __call__(self, x: jax.Array, cache: Cache, part: Part = ALONE) -> tuple[jax.Array, Cache]:
        """One pass: new tokens (batch, q, hidden) behind a cache give (batch, q, hidden) and the longer cache."""
        s, new = self.shape, x.shape[1]
        q, k, v = self.projected(x)
        cache = self.appended(cache, k, v, part)
        reach, chunk, tile = s.window, s.chunk, self.tile
        if part.context:  # what a chip keeps is what is seen
            q, reach, chunk, tile = all_queries(q, part), None, None, new
        with jax.named_scope("scan"):
            grouped = q.reshape(q.shape[0], cache[0].shape[1], -1, *q.shape[2:])
            behind = cache[0].shape[2] - new
            answer, total = scan(grouped, *cache, cached=behind, reach=reach, chunk=chunk, tile=tile)
            answer, total = answer.reshape(*q.shape[:3], -1), total.reshape(q.shape[:3])
        if part.context:
            answer, total = own_heads(answer, total, part)
        return self.output(x, answer, total, part), cache
