r"""Multi-head latent attention, absorbed and expanded: one latent of width r per token for all heads.

Absorbed, the up-projections are multiplied into queries and answers, and every head scans the latent itself:
:math:`(q W_{uk}^T)\,c` and :math:`(\sum_j p_j c_j) W_{uv}`.  Expanded, keys and values of every head are made from the
latent first.  Both are the same bilinear form and give the same numbers; the count of `codesign.layers.mla` is that of
the absorbed form.  Source: arXiv:2405.04434.
"""

import jax
import jax.numpy as jnp

from codesign.layers import mla
from codesign.reference.attention import all_queries, own_heads, rotated, scaled, scan
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce, rms_norm


class MLA(Reference):
    """Executable `codesign.layers.mla.MLA`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        cached: tokens before the new ones, static.
        tile: queries that the scan takes at a time.
        expanded: make every head's keys and values instead of absorbing their projections.
    """

    def __init__(self, shape: mla.MLA, hidden: int, draw: Draw, *, cached: int, tile: int = 1, expanded: bool = False):
        self.shape, self.cached, self.tile, self.expanded = shape, cached, tile, expanded
        s = shape
        rank = s.q_rank or hidden
        self.q = draw.weight(rank, s.heads, s.nope + s.rope, fan=rank)
        self.down = draw.weight(hidden, s.kv_rank + s.rope, fan=hidden)
        self.scale = draw.constant(1.0, s.kv_rank)
        self.up_k = draw.weight(s.kv_rank, s.heads, s.nope, fan=s.kv_rank)
        self.up_v = draw.weight(s.kv_rank, s.heads, s.value, fan=s.kv_rank)
        self.out = draw.weight(s.heads, s.value, hidden, fan=s.heads * s.value)
        if s.q_rank:
            self.q_down = draw.weight(hidden, s.q_rank, fan=hidden)
            self.q_scale = draw.constant(1.0, s.q_rank)
        if s.gate:
            self.gate = draw.weight(hidden, s.heads, s.value, fan=hidden)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        second = P(None, "tp")
        return {"q": second, "up_k": second, "up_v": second, "gate": second, "out": P("tp")}

    def cache_spec(self, part: Part) -> P:
        """Partition of the cached latents: by heads every chip of an instance keeps all of them."""
        return P("dp", "tp") if part.context else P("dp")

    def __call__(self, x: jax.Array, cache: jax.Array, part: Part = ALONE) -> tuple[jax.Array, jax.Array]:
        """One pass: new tokens (batch, q, hidden) behind latents (batch, tokens, r + rope)."""
        s, new = self.shape, x.shape[1]
        at = jnp.arange(self.cached, self.cached + new, dtype=x.dtype)
        with jax.named_scope("qkv"):
            low = rms_norm(x @ self.q_down[...], self.q_scale[...]) if s.q_rank else x
            q = scaled(jnp.einsum("bth,hnd->bntd", low, self.q[...]), s.nope + s.rope)
            plain, turned = q[..., : s.nope], rotated(q[..., s.nope :], at)
            latent = x @ self.down[...]
            latent = jnp.concatenate(
                [rms_norm(latent[..., : s.kv_rank], self.scale[...]), rotated(latent[..., s.kv_rank :], at)], axis=-1
            )
        if self.expanded:
            answer, cache = self._expanded(plain, turned, jnp.concatenate([cache, latent], axis=1))
        else:
            with jax.named_scope("qkv"):
                q = jnp.concatenate([jnp.einsum("bntd,rnd->bntr", plain, self.up_k[...]), turned], axis=-1)
            if part.context:
                own = jax.lax.axis_index("tp") + part.tp * jnp.arange(x.shape[0] // part.tp)
                cache = cache.at[own, -new:].set(latent[own])
                everything, tile = all_queries(q, part), new
            else:
                cache, everything, tile = jnp.concatenate([cache, latent], axis=1), q, self.tile
            with jax.named_scope("scan"):
                keys = cache[:, None]
                answer, total = scan(
                    everything[:, None], keys, keys[..., : s.kv_rank],
                    cached=cache.shape[1] - new, reach=None, chunk=None, tile=tile,
                )  # fmt: skip
            answer = answer[:, 0]
            if part.context:
                answer, _ = own_heads(answer, total[:, 0], part)
            with jax.named_scope("qkv"):
                answer = jnp.einsum("bntr,rnv->bntv", answer, self.up_v[...])
        with jax.named_scope("qkv"):
            if s.gate:
                answer = answer * jax.nn.sigmoid(jnp.einsum("bth,hnv->bntv", x, self.gate[...]))
        with jax.named_scope("output"):
            y = jnp.einsum("bntv,nvh->bth", answer, self.out[...])
        return all_reduce(y, part), cache

    def _expanded(self, plain: jax.Array, turned: jax.Array, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of every head, then attention as with as many key heads as query heads."""
        s = self.shape
        latent, shared = cache[..., : s.kv_rank], cache[..., s.kv_rank :]
        with jax.named_scope("qkv"):
            k = jnp.einsum("bkr,rnd->bnkd", latent, self.up_k[...])
            v = jnp.einsum("bkr,rnv->bnkv", latent, self.up_v[...])
        with jax.named_scope("scan"):
            k = jnp.concatenate([k, jnp.broadcast_to(shared[:, None], (*k.shape[:3], s.rope))], axis=-1)
            q = jnp.concatenate([plain, turned], axis=-1)[:, :, None]
            answer, _ = scan(
                q, k, v, cached=k.shape[2] - q.shape[3], reach=None, chunk=None, tile=self.tile
            )  # fmt: skip
        return answer[:, :, 0], cache
