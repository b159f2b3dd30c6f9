r"""Block-sparse attention: per KV head an indexer chooses blocks of the cache, its own block always among them.

Each index head scores every cached token by its one index key; the best score of a block is the block's, and the best
blocks are gathered and scanned.  Tokens of the own block that are yet to come are masked: it counts in full, as in
`codesign.layers.msa`.  Split by heads, index heads go with their KV heads; split by context, each chip scores its
range for all index heads, whose queries are gathered first, and attends to the chosen blocks that lie there.
Source: MiniMax M3 in the transformers library.
"""

import jax
import jax.numpy as jnp

from codesign.layers import gqa, msa
from codesign.reference.attention import all_queries, appended, attend, own_heads, rotated
from codesign.reference.gqa import GQA
from codesign.reference.parts import ALONE, Draw, P, Part, gather, rms_norm
from codesign.reference.sparse import best, here

#: Keys and values (batch, kv heads, tokens, width), then index keys (batch, tokens, width).
Kept = tuple[jax.Array, jax.Array, jax.Array]


class MSA(GQA):
    """Executable `codesign.layers.msa.MSA`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        cached: tokens before the new ones, static.
        room: chosen blocks that a chip makes room for where the cache is split by context, or None for all of them.
    """

    def __init__(self, shape: msa.MSA, hidden: int, draw: Draw, *, cached: int, room: int | None = None):
        s = shape
        dense = gqa.GQA(s.heads, s.kv_heads, s.key_width, s.value_width, qk_norm=s.qk_norm)
        super().__init__(dense, hidden, draw, cached=cached)
        self.sparse, self.places = shape, room
        self.index_q = draw.weight(hidden, s.index_heads, s.index_width, fan=hidden)
        self.index_k = draw.weight(hidden, s.index_width, fan=hidden)
        if s.qk_norm:
            self.index_q_norm, self.index_k_norm = (draw.constant(1.0, s.index_width) for _ in range(2))

    def specs(self, part: Part) -> dict[str, P]:
        return super().specs(part) | {"index_q": P(None, "tp")}

    def index_copies(self, part: Part) -> int:
        """Chips that have the same index head."""
        return max(1, part.tp // self.sparse.index_heads)

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:
        if name == "index_q":
            return jnp.repeat(weight, self.index_copies(part), axis=1)
        return super().laid_out(name, weight, part)

    def kept_specs(self, part: Part) -> tuple[P, P, P]:
        """Partition of what is kept: by heads every chip has all index keys."""
        cache = self.cache_spec(part)
        return cache, cache, P("dp", "tp") if part.context else P("dp")

    def indexed(self, x: jax.Array, part: Part = ALONE) -> tuple[jax.Array, jax.Array]:
        """Index queries (batch, heads here, q, width) and keys (batch, q, width) of tokens (batch, q, hidden)."""
        s = self.sparse
        at = jnp.arange(self.cached, self.cached + x.shape[1], dtype=x.dtype)
        with jax.named_scope("index_qk"):
            q, key = jnp.einsum("bth,hnd->bntd", x, self.index_q[...]), x @ self.index_k[...]
            if s.qk_norm:
                q, key = rms_norm(q, self.index_q_norm[...]), rms_norm(key, self.index_k_norm[...])
            q, key = rotated(q, at), rotated(key, at)
        if not part.context or part.tp == 1:
            return q, key
        # Chips with the same head send a share of the sequences each.
        copies = self.index_copies(part)
        share = x.shape[0] // copies
        first = jax.lax.axis_index("tp") % copies * share
        some = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(q, first, share, axis=0), 1, 0)
        with jax.named_scope("context_merge"):
            everyones = gather(some, 0, part)
        return jnp.moveaxis(everyones.reshape(s.index_heads, x.shape[0], *q.shape[2:]), 0, 1), key

    def _chosen(self, q: jax.Array, keys: jax.Array, part: Part) -> jax.Array:
        """Blocks (batch, index heads, k) for the last token of those seen, (batch, heads, width) and its keys."""
        s = self.sparse
        with jax.named_scope("index"):
            scores = jnp.moveaxis(jnp.einsum("bkd,bnd->bkn", keys, q), 2, 1)
            scores = jnp.pad(scores, ((0, 0), (0, 0), (0, -keys.shape[1] % s.block)), constant_values=-jnp.inf)
            scores = jnp.max(scores.reshape(*scores.shape[:2], -1, s.block), axis=-1)
            # The last block of all is the token's own; by context only the chips of its sequence have that.
            own: jax.Array | slice = slice(None)
            if part.context and part.tp > 1:
                own = jax.lax.axis_index("tp") + part.tp * jnp.arange(q.shape[0] // part.tp)
            scores = scores.at[own, :, -1].set(jnp.inf)
            return best(scores, s.top_blocks if part.context else min(s.top_blocks, scores.shape[-1]), part)

    def __call__(  # type: ignore[override]
        self, x: jax.Array, kept: Kept, part: Part = ALONE
    ) -> tuple[jax.Array, Kept]:
        """One pass: new tokens (batch, q, hidden) behind what is kept give (batch, q, hidden) and what is kept then."""
        s, new = self.sparse, x.shape[1]
        q, k, v = self.projected(x)
        cache = self.appended(kept[:2], k, v, part)
        index_q, index_key = self.indexed(x, part)
        if part.context:
            q = all_queries(q, part)
        keys = appended(kept[2], index_key, part)
        choices = [
            self._chosen(index_q[:, :, i], keys if part.context else keys[:, : self.cached + i + 1], part)
            for i in range(new)
        ]
        with jax.named_scope("scan"):
            kv_heads, missing = cache[0].shape[1], -cache[0].shape[2] % s.block
            blocks = [jnp.pad(c, ((0, 0), (0, 0), (0, missing), (0, 0))) for c in cache]
            blocks = [c.reshape(*c.shape[:2], -1, s.block, c.shape[-1]) for c in blocks]
            grouped = q.reshape(q.shape[0], kv_heads, -1, *q.shape[2:])
            answers, sums = [], []
            for i, choice in enumerate(choices):
                at, filled = here(choice, blocks[0].shape[2], self.places, part)
                at = jnp.repeat(at, kv_heads // at.shape[1], axis=1)
                if filled is None:  # of the own block what is yet to come is not seen
                    mask = at[..., None] * s.block + jnp.arange(s.block) <= self.cached + i
                else:
                    filled = jnp.repeat(filled, kv_heads // filled.shape[1], axis=1)
                    mask = jnp.broadcast_to(filled[..., None], (*filled.shape, s.block))
                some = [jnp.take_along_axis(c, at[..., None, None], axis=2) for c in blocks]
                k_, v_ = (c.reshape(*c.shape[:2], -1, c.shape[-1]) for c in some)
                mask = mask.reshape(*mask.shape[:2], 1, 1, -1)
                answer, total = attend(grouped[:, :, :, i : i + 1], k_, v_, mask)
                answers.append(answer)
                sums.append(total)
            answer = jnp.concatenate(answers, axis=3).reshape(*q.shape[:3], -1)
            total = jnp.concatenate(sums, axis=3).reshape(q.shape[:3])
        if part.context:
            answer, total = own_heads(answer, total, part)
        return self.output(x, answer, total, part), (*cache, keys)
