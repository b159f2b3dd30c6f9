r"""Multi-head latent attention, absorbed and expanded: one latent of width r per token for all heads.

Absorbed, the up-projections are multiplied into queries and answers, and every head scans the latent itself:
:math:`(q W_{uk}^T)\,c` and :math:`(\sum_j p_j c_j) W_{uv}`.  Expanded, keys and values of every head are made from the
latent first.  Both are the same bilinear form and give the same numbers; the count of `codesign.layers.mla` is that of
the absorbed form.  Source: arXiv:2405.04434.
"""

from typing import Any

import jax
import jax.numpy as jnp

from codesign.layers import mla
from codesign.reference.attention import all_queries, appended, own_heads, rotated, scaled, scan
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

    def projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Of tokens (batch, q, hidden): what queries are made of, their parts without and with rotation, the latent.

        Queries are (batch, heads, q, width); latents (batch, q, r + rope), rotated and normed.
        """
        s = self.shape
        at = jnp.arange(self.cached, self.cached + x.shape[1], dtype=x.dtype)
        with jax.named_scope("qkv"):
            low = rms_norm(x @ self.q_down[...], self.q_scale[...]) if s.q_rank else x
            q = scaled(jnp.einsum("bth,hnd->bntd", low, self.q[...]), s.nope + s.rope)
            latent = x @ self.down[...]
            normed = rms_norm(latent[..., : s.kv_rank], self.scale[...])
            latent = jnp.concatenate([normed, rotated(latent[..., s.kv_rank :], at)], axis=-1)
            return low, q[..., : s.nope], rotated(q[..., s.nope :], at), latent

    def absorbing(self, plain: jax.Array, turned: jax.Array) -> jax.Array:
        """Queries (batch, heads, q, r + rope) that score latents."""
        with jax.named_scope("qkv"):
            return jnp.concatenate([jnp.einsum("bntd,rnd->bntr", plain, self.up_k[...]), turned], axis=-1)

    def values(self, answer: jax.Array) -> jax.Array:
        """Answers (batch, heads, q, value) of sums of latents (batch, heads, q, r)."""
        with jax.named_scope("qkv"):
            return jnp.einsum("bntr,rnv->bntv", answer, self.up_v[...])

    def expanding(self, cache: jax.Array, new: int) -> tuple[jax.Array, jax.Array]:
        """Keys (batch, heads, tokens, nope + rope) and values of every head; the last ``new`` tokens are new."""
        s = self.shape
        latent, shared = cache[..., : s.kv_rank], cache[..., s.kv_rank :]
        before = latent.shape[1] - new

        def made(part: jax.Array) -> tuple[jax.Array, jax.Array]:
            k = jnp.einsum("bkr,rnd->bnkd", part, self.up_k[...])
            return k, jnp.einsum("bkr,rnv->bnkv", part, self.up_v[...])

        with jax.named_scope("expand"):
            old = made(latent[:, :before])
        with jax.named_scope("qkv"):
            k, v = (jnp.concatenate(pair, axis=2) for pair in zip(old, made(latent[:, before:]), strict=True))
            return jnp.concatenate([k, jnp.broadcast_to(shared[:, None], (*k.shape[:3], s.rope))], axis=-1), v

    def output(self, x: jax.Array, answer: jax.Array, part: Part) -> jax.Array:
        """Gate and project answers (batch, heads, q, value), and sum them over the chips."""
        with jax.named_scope("qkv"):
            if self.shape.gate:
                answer = answer * jax.nn.sigmoid(jnp.einsum("bth,hnv->bntv", x, self.gate[...]))
        with jax.named_scope("output"):
            y = jnp.einsum("bntv,nvh->bth", answer, self.out[...])
        return all_reduce(y, part)

    def __call__(self, x: jax.Array, cache: jax.Array, part: Part = ALONE) -> tuple[jax.Array, jax.Array]:
        """One pass: new tokens (batch, q, hidden) behind latents (batch, tokens, r + rope)."""
        s, new = self.shape, x.shape[1]
        _, plain, turned, latent = self.projected(x)
        cache = appended(cache, latent, part)
        within: dict[str, Any] = {"cached": cache.shape[1] - new, "reach": None, "chunk": None}
        if self.expanded:
            k, v = self.expanding(cache, new)
            with jax.named_scope("scan"):
                q = jnp.concatenate([plain, turned], axis=-1)[:, :, None]
                answer = scan(q, k, v, tile=self.tile, **within)[0][:, :, 0]
        else:
            q = self.absorbing(plain, turned)
            everything, tile = (all_queries(q, part), new) if part.context else (q, self.tile)
            with jax.named_scope("scan"):
                keys = cache[:, None]
                answer, total = scan(everything[:, None], keys, keys[..., : s.kv_rank], tile=tile, **within)
            answer = answer[:, 0]
            if part.context:
                answer, _ = own_heads(answer, total[:, 0], part)
            answer = self.values(answer)
        return self.output(x, answer, part), cache
