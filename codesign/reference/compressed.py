r"""Compressed attention: a window of plain entries and, beyond, entries that stand for several tokens each.

One head of keys that are also the values, under many query heads with a sink each.  Keys, queries and entries are
rotated in their last channels (an eighth of a head, half of an index head), an entry at the place of its first token;
answers are turned back, so that values count by distance too.  A token sees the window and the finished entries, or
those of them that an indexer with a compressor of its own chooses.  The output goes through a rank per group of heads.
Split by heads every chip keeps all entries and runs the whole indexer; split by context each chip keeps a range of the
window and of the entries.  Source: DeepSeek V4 in the transformers library.
"""

import jax
import jax.numpy as jnp

from codesign.layers import compressed as layers
from codesign.reference.attention import all_queries, appended, attend, own_heads, rotated, scaled, with_sink
from codesign.reference.compressor import Windows, compressed
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce, rms_norm
from codesign.reference.sparse import best, here, index_scores, picked

#: What is kept, by name: the ``window`` (batch, tokens, width), ``entries`` (batch, n, width) with the compressor's
#: ``windows``, and ``index`` entries (batch, n, index width) with ``index_windows``.
Kept = dict[str, jax.Array | Windows]


def turned(x: jax.Array, channels: int, at: jax.Array) -> jax.Array:
    """Rotate the last channels of (..., tokens, width)."""
    return jnp.concatenate([x[..., :-channels], rotated(x[..., -channels:], at)], axis=-1)


class Compressed(Reference):
    """Executable `codesign.layers.compressed.Compressed`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        cached: tokens before the new ones, static.
        room: chosen entries that a chip makes room for where the cache is split by context, or None for all of them.
    """

    def __init__(self, shape: layers.Compressed, hidden: int, draw: Draw, *, cached: int, room: int | None = None):
        self.shape, self.cached, self.room = shape, cached, room
        s = shape
        series = 2 if s.overlap else 1
        self.q_down = draw.weight(hidden, s.q_rank, fan=hidden)
        self.q_scale = draw.constant(1.0, s.q_rank)
        self.q = draw.weight(s.q_rank, s.heads, s.width, fan=s.q_rank)
        self.key = draw.weight(hidden, s.width, fan=hidden)
        self.key_scale = draw.constant(1.0, s.width)
        self.sink = draw.weight(s.heads, fan=1)
        self.out_down = draw.weight(s.heads, s.width, s.out_rank, fan=s.heads // s.out_groups * s.width)
        self.out_up = draw.weight(s.out_groups, s.out_rank, hidden, fan=s.out_groups * s.out_rank)
        if s.ratio:
            self.made = draw.weight(hidden, 2, series * s.width, fan=hidden)  # values, then gates
            self.bias = draw.weight(s.ratio, series * s.width, fan=1)
            self.scale = draw.constant(1.0, s.width)
        if s.index_heads:
            self.index_q = draw.weight(s.q_rank, s.index_heads, s.index_width, fan=s.q_rank)
            self.index_weights = draw.weight(hidden, s.index_heads, fan=hidden)
            self.index_made = draw.weight(hidden, 2, series * s.index_width, fan=hidden)
            self.index_bias = draw.weight(s.ratio, series * s.index_width, fan=1)
            self.index_scale = draw.constant(1.0, s.index_width)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        first = P("tp")
        return {"q": P(None, "tp"), "sink": first, "out_down": first, "out_up": first}

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:
        if name == "out_up":
            return jnp.repeat(weight, max(1, part.tp // self.shape.out_groups), axis=0)
        return weight

    def kept_specs(self, part: Part) -> dict[str, P]:
        """Partition of what is kept; what a compressor carries on is with every chip."""
        cache, everyone = P("dp", "tp") if part.context else P("dp"), P("dp")
        found = {"window": cache}
        if self.shape.ratio:
            found |= {"entries": cache, "windows": everyone}
        if self.shape.index_heads:
            found |= {"index": cache, "index_windows": everyone}
        return found

    def _positions(self, x: jax.Array) -> jax.Array:
        return jnp.arange(self.cached, self.cached + x.shape[1], dtype=x.dtype)

    def _entries(self, fresh: jax.Array, kept: Kept, part: Part, prefix: str = "") -> tuple[jax.Array, Windows]:
        """Entries with those that values and gates (batch, q, 2, series x width) of new tokens finish."""
        s, index = self.shape, bool(prefix)
        bias, scale = (self.index_bias, self.index_scale) if index else (self.bias, self.scale)
        windows = kept[f"{prefix}windows"]
        made, after = compressed(fresh, Windows(*windows), bias[...], scale[...], s.overlap)
        first = self.cached // s.ratio
        at = s.ratio * jnp.arange(first, first + made.shape[1], dtype=fresh.dtype)
        made = turned(made, s.index_width // 2 if index else s.width // 8, at)
        old = kept["index" if index else "entries"]
        return appended(jnp.asarray(old), made, part), after

    def _indexed(
        self, x: jax.Array, low: jax.Array, kept: Kept, part: Part
    ) -> tuple[list[jax.Array | None], dict[str, jax.Array | Windows]]:
        """What each new token chooses among the entries, (batch, k) or None for nothing, and the index entries kept."""
        s = self.shape
        with jax.named_scope("index_qk"):
            q = turned(jnp.einsum("btr,rnd->bntd", low, self.index_q[...]), s.index_width // 2, self._positions(x))
            weights = x @ self.index_weights[...] * (s.index_heads * s.index_width) ** -0.5
            fresh = jnp.einsum("bth,hmc->btmc", x, self.index_made[...])
        with jax.named_scope("index"):
            entries, windows = self._entries(fresh, kept, part, "index_")
            found: list[jax.Array | None] = []
            for i in range(x.shape[1]):
                seen = (self.cached + i + 1) // s.ratio
                some = entries if part.context else entries[:, :seen]
                scores = index_scores(q[:, :, i], some, weights[:, i]) if seen else None
                found.append(None if scores is None else best(scores, min(s.top_k, seen), part))
        return found, {"index": entries, "index_windows": windows}

    def _low(self, x: jax.Array) -> jax.Array:
        """The low rank that queries and index queries are made of."""
        with jax.named_scope("qkv"):
            return rms_norm(x @ self.q_down[...], self.q_scale[...])

    def chosen(self, x: jax.Array, kept: Kept, part: Part = ALONE) -> list[jax.Array | None]:
        """Which entries each new token chooses, as `__call__` does."""
        return self._indexed(x, self._low(x), kept, part)[0]

    def __call__(self, x: jax.Array, kept: Kept, part: Part = ALONE) -> tuple[jax.Array, Kept]:
        """One pass: new tokens (batch, q, hidden) behind what is kept give (batch, q, hidden) and what is kept then."""
        s, new, at = self.shape, x.shape[1], self._positions(x)
        low = self._low(x)
        with jax.named_scope("qkv"):
            q = jnp.einsum("btr,rnd->bntd", low, self.q[...])
            q = q * jax.lax.rsqrt(jnp.mean(q * q, axis=-1, keepdims=True) + 1e-6)
            q = scaled(turned(q, s.width // 8, at), s.width)
            key = turned(rms_norm(x @ self.key[...], self.key_scale[...]), s.width // 8, at)
            fresh = jnp.einsum("bth,hmc->btmc", x, self.made[...]) if s.ratio else None
        choices: list[jax.Array | None] = [None] * new
        after: Kept = {}
        if s.index_heads:
            choices, after = self._indexed(x, low, kept, part)
        window = appended(jnp.asarray(kept["window"]), key, part)
        after["window"] = window if part.context else window[:, -min(s.window - 1, self.cached + new) :]
        if part.context:
            q = all_queries(q, part)
        answers, sums = [], []
        with jax.named_scope("scan"):
            if fresh is not None:
                after["entries"], after["windows"] = self._entries(fresh, kept, part)
            for i, choice in enumerate(choices):
                keys, mask = self._seen(window, after.get("entries"), i, choice, new, part)
                answer, total = attend(q[:, None, :, i : i + 1], keys[:, None], keys[:, None], mask)
                answers.append(answer[:, 0])
                sums.append(total[:, 0])
            answer, total = jnp.concatenate(answers, axis=2), jnp.concatenate(sums, axis=2)
        if part.context:
            answer, total = own_heads(answer, total, part)
        answer = turned(with_sink(answer, total, self.sink[...][:, None]), s.width // 8, -at)
        with jax.named_scope("output"):
            up = self.out_up[...]
            grouped = answer.reshape(answer.shape[0], up.shape[0], -1, *answer.shape[2:])
            down = self.out_down[...].reshape(*grouped.shape[1:3], s.width, s.out_rank)
            y = jnp.einsum("btgr,grh->bth", jnp.einsum("bgntd,gndr->btgr", grouped, down), up)
        return all_reduce(y, part), after

    def _seen(
        self, window: jax.Array, entries: jax.Array | Windows | None, i: int, choice: jax.Array | None, new: int,
        part: Part,
    ) -> tuple[jax.Array, jax.Array | None]:  # fmt: skip
        """Keys (batch, n, width) that new token i sees on this chip, and which of them count."""
        s, mask = self.shape, None
        if not part.context:
            stop = window.shape[1] - new + i + 1
            window = window[:, max(0, stop - s.window) : stop]
        if not isinstance(entries, jax.Array):
            return window, None
        if choice is not None:
            at, filled = here(choice, entries.shape[1], self.room, part)
            some = picked(entries, at)
            if filled is not None:
                mask = jnp.pad(filled, ((0, 0), (window.shape[1], 0)), constant_values=True)[:, None, None, None]
        else:
            some = entries if part.context else entries[:, : (self.cached + i + 1) // s.ratio]
        return jnp.concatenate([window, some], axis=1), mask
