r"""DeepSeek sparse attention: an indexer chooses k cached tokens for each query, and latent attention scans those.

The indexer's queries come from the low rank of the main ones, its one key per token through a layer norm; both are
rotated in their first channels.  Absorbed, every query gathers its chosen latents; expanded, keys and values of
everything seen are made and scanned under the mask of the choice, with the same answer.  A layer that shares an indexer
is given the choice of an earlier one.  Split by heads every chip runs the whole indexer; split by context each chip
scores its range and attends to the chosen tokens that lie there.
Source: arXiv:2512.02556; DeepSeek V3.2 and GLM-5 in the transformers library.
"""

import jax
import jax.numpy as jnp

from codesign.layers import dsa, mla
from codesign.reference.attention import all_queries, appended, attend, own_heads, rotated
from codesign.reference.mla import MLA
from codesign.reference.parts import ALONE, Draw, P, Part
from codesign.reference.sparse import best, here, index_scores, picked

#: Latents (batch, tokens, r + rope), then index keys (batch, tokens, width) or, where another layer chooses, positions
#: (batch, new tokens, k) of the chosen ones.
Kept = tuple[jax.Array, jax.Array]


class DSA(MLA):
    """Executable `codesign.layers.dsa.DSA`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        cached: tokens before the new ones, static.
        expanded: make every head's keys and values and mask them, instead of gathering latents.
        room: chosen tokens that a chip makes room for where the cache is split by context, or None for all of them.
    """

    def __init__(
        self, shape: dsa.DSA, hidden: int, draw: Draw, *, cached: int, expanded: bool = False, room: int | None = None
    ):
        s = shape
        dense = mla.MLA(s.heads, s.q_rank, s.kv_rank, s.nope, s.rope, s.value)
        super().__init__(dense, hidden, draw, cached=cached, expanded=expanded)
        self.sparse, self.room = shape, room
        if not s.shared_index:
            self.index_q = draw.weight(s.q_rank, s.index_heads, s.index_width, fan=s.q_rank)
            self.index_k = draw.weight(hidden, s.index_width, fan=hidden)
            self.index_weights = draw.weight(hidden, s.index_heads, fan=hidden)
            self.index_scale, self.index_bias = draw.constant(1.0, s.index_width), draw.constant(0.0, s.index_width)

    def kept_specs(self, part: Part) -> tuple[P, P]:
        """Partition of what is kept: latents, and index keys or a choice, which every chip has."""
        cache = self.cache_spec(part)
        return cache, P("dp") if self.sparse.shared_index else cache

    def returned_specs(self, part: Part) -> tuple[P, ...]:
        """Partition of what is kept after: as before, and the choice where it is made here."""
        return self.kept_specs(part) if self.sparse.shared_index else (*self.kept_specs(part), P("dp"))

    def _indexed(self, x: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Index queries (batch, heads, q, width), keys (batch, q, width) and weights (batch, q, heads)."""
        s = self.sparse
        at = jnp.arange(self.cached, self.cached + x.shape[1], dtype=x.dtype)

        def turned(y: jax.Array) -> jax.Array:
            return jnp.concatenate([rotated(y[..., : s.rope], at), y[..., s.rope :]], axis=-1)

        with jax.named_scope("index_qk"):
            q = turned(jnp.einsum("btr,rnd->bntd", low, self.index_q[...]))
            key = x @ self.index_k[...]
            key = key - jnp.mean(key, axis=-1, keepdims=True)
            key = key * jax.lax.rsqrt(jnp.mean(key * key, axis=-1, keepdims=True) + 1e-6)
            weights = x @ self.index_weights[...] * (s.index_heads * s.index_width) ** -0.5
            return q, turned(key * self.index_scale[...] + self.index_bias[...]), weights

    def __call__(  # type: ignore[override]
        self, x: jax.Array, kept: Kept, part: Part = ALONE
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """One pass: new tokens (batch, q, hidden) behind what is kept give (batch, q, hidden) and what is kept then.

        Where the choice is made here it is returned too: positions (batch, q, k), -1 for those that a token lacks.
        """
        s, new = self.sparse, x.shape[1]
        low, plain, turned, latent = self.projected(x)
        cache = appended(kept[0], latent, part)
        seen = [min(s.top_k, self.cached + i + 1) for i in range(new)]
        if s.shared_index:
            choice = kept[1]
            after = cache, choice
        else:
            q, key, weights = self._indexed(x, low)
            keys = appended(kept[1], key, part)
            with jax.named_scope("index"):
                found = []
                for i, count in enumerate(seen):
                    some = keys if part.context else keys[:, : self.cached + i + 1]
                    at = best(index_scores(q[:, :, i], some, weights[:, i]), count, part)
                    found.append(jnp.pad(at, ((0, 0), (0, seen[-1] - count)), constant_values=-1))
                choice = jnp.stack(found, axis=1)
            after = cache, keys, choice
        scan_all = self._masked if self.expanded else self._gathered
        answer = scan_all(plain, turned, cache, [choice[:, i, :n] for i, n in enumerate(seen)], part)
        return self.output(x, answer, part), after

    def _gathered(
        self, plain: jax.Array, turned: jax.Array, cache: jax.Array, choices: list[jax.Array], part: Part
    ) -> jax.Array:
        """Every query scans the latents that are chosen for it."""
        q = self.absorbing(plain, turned)
        if part.context:
            q = all_queries(q, part)
        answers, sums = [], []
        with jax.named_scope("scan"):
            for i, choice in enumerate(choices):
                at, filled = here(choice, cache.shape[1], self.room, part)
                keys = picked(cache, at)[:, None]
                mask = None if filled is None else filled[:, None, None, None]
                answer, total = attend(q[:, None, :, i : i + 1], keys, keys[..., : self.shape.kv_rank], mask)
                answers.append(answer[:, 0])
                sums.append(total[:, 0])
            answer, total = jnp.concatenate(answers, axis=2), jnp.concatenate(sums, axis=2)
        return self.values(own_heads(answer, total, part)[0] if part.context else answer)

    def _masked(
        self, plain: jax.Array, turned: jax.Array, cache: jax.Array, choices: list[jax.Array], _: Part
    ) -> jax.Array:
        """Every query scans the keys of everything it sees, all but the chosen ones masked."""
        k, v = self.expanding(cache, len(choices))
        q = jnp.concatenate([plain, turned], axis=-1)
        answers = []
        with jax.named_scope("scan"):
            for i, choice in enumerate(choices):
                high = self.cached + i + 1
                rows = jnp.arange(cache.shape[0])[:, None]
                chosen = jnp.zeros((cache.shape[0], high), dtype=bool).at[rows, choice].set(True)
                mask = chosen[:, None, None, None]
                answers.append(attend(q[:, :, None, i : i + 1], k[:, :, :high], v[:, :, :high], mask)[0][:, :, 0])
            return jnp.concatenate(answers, axis=2)
