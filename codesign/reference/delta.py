"""KDA and gated DeltaNet: projections, short convolutions, gates and a delta-rule state, split by heads.

KDA decays every key channel by its own gate, which comes through a low rank; gated DeltaNet decays a head as a whole
and shares a key head among several value heads.  Both norm each head's answer and gate it.
"""

import jax
import jax.numpy as jnp

from codesign.layers import gdn, kda
from codesign.reference.linear import chunked, recurrent, short_convolution, unit
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce, rms_norm

#: State (batch, value heads, key width, value width), then the convolution inputs of queries, keys and values,
#: each (batch, kernel - 1, channels).
State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class Delta(Reference):
    """Executable `codesign.layers.kda.KDA` and `codesign.layers.gdn.GDN`.

    Args:
        shape: the structure of either kind.
        hidden: residual width.
        draw: of the random weights.
        chunk: tokens of a chunk, or None to go token by token.
    """

    def __init__(self, shape: kda.KDA | gdn.GDN, hidden: int, draw: Draw, *, chunk: int | None = None):
        self.shape, self.chunk = shape, chunk
        s, fine = shape, isinstance(shape, kda.KDA)
        self.q = draw.weight(hidden, s.heads, s.key_width, fan=hidden)
        self.k = draw.weight(hidden, s.heads, s.key_width, fan=hidden)
        self.v = draw.weight(hidden, s.value_heads, s.value_width, fan=hidden)
        self.beta = draw.weight(hidden, s.value_heads, fan=hidden)
        self.q_taps = draw.weight(s.conv_kernel, s.heads, s.key_width, fan=s.conv_kernel)
        self.k_taps = draw.weight(s.conv_kernel, s.heads, s.key_width, fan=s.conv_kernel)
        self.v_taps = draw.weight(s.conv_kernel, s.value_heads, s.value_width, fan=s.conv_kernel)
        self.rate = draw.constant(-3.0, s.heads if fine else s.value_heads)
        if isinstance(shape, kda.KDA):
            self.decay_down = draw.weight(hidden, shape.decay_rank, fan=hidden)
            self.decay = draw.weight(shape.decay_rank, s.heads, s.key_width, fan=shape.decay_rank)
            self.decay_bias = draw.constant(0.5, s.heads, s.key_width)
        else:
            self.decay = draw.weight(hidden, s.value_heads, fan=hidden)
            self.decay_bias = draw.constant(0.5, s.value_heads)
        rank = shape.gate_rank if isinstance(shape, kda.KDA) else None
        if rank is not None:
            self.gate_down = draw.weight(hidden, rank, fan=hidden)
        self.gate = draw.weight(rank or hidden, s.value_heads, s.value_width, fan=rank or hidden)
        self.scale = draw.constant(1.0, s.value_width)
        self.out = draw.weight(s.value_heads, s.value_width, hidden, fan=s.value_heads * s.value_width)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        first, second = P("tp"), P(None, "tp")
        found = {"rate": first, "decay_bias": first, "out": first}
        for name in ("q", "k", "v", "beta", "q_taps", "k_taps", "v_taps", "decay", "gate"):
            found[name] = second
        return found

    @staticmethod
    def state_specs() -> tuple[P, P, P, P]:
        """Partition of a `State`."""
        inputs = P("dp", None, "tp")
        return P("dp", "tp"), inputs, inputs, inputs

    def _log_decay(self, x: jax.Array) -> jax.Array:
        """Logarithm of the decay, (batch, heads, tokens, key width or 1); never positive."""
        rate = -jnp.exp(self.rate[...])
        if isinstance(self.shape, kda.KDA):
            gate = jnp.einsum("btr,rnd->bntd", x @ self.decay_down[...], self.decay[...])
            return rate[:, None, None] * jax.nn.softplus(gate + self.decay_bias[...][:, None])
        gate = jnp.einsum("bth,hn->bnt", x, self.decay[...]) + self.decay_bias[...][:, None]
        return (rate[:, None] * jax.nn.softplus(gate))[..., None]

    def __call__(self, x: jax.Array, state: State, part: Part = ALONE) -> tuple[jax.Array, State]:
        """One pass: tokens (batch, q, hidden) and a state give (batch, q, hidden) and the next state."""
        s = self.shape
        kept, made = [], []
        with jax.named_scope("qkv"):
            pairs = ((self.q, self.q_taps), (self.k, self.k_taps), (self.v, self.v_taps))
            for (projection, taps), before in zip(pairs, state[1:], strict=True):
                width = projection.shape[-1]
                flat = jnp.einsum("bth,hc->btc", x, projection[...].reshape(x.shape[-1], -1))
                y, after = short_convolution(flat, before, taps[...].reshape(s.conv_kernel, -1))
                made.append(jnp.moveaxis(y.reshape(*y.shape[:2], -1, width), 1, 2))
                kept.append(after)
            log_decay = self._log_decay(x)
            beta = jax.nn.sigmoid(jnp.einsum("bth,hn->bnt", x, self.beta[...]))
            low = x @ self.gate_down[...] if hasattr(self, "gate_down") else x
            gate = jax.nn.sigmoid(jnp.einsum("bth,hnd->bntd", low, self.gate[...]))
        with jax.named_scope("state"):
            q, k = unit(made[0]) * s.key_width**-0.5, unit(made[1])
            shared = s.value_heads // s.heads
            q, k = jnp.repeat(q, shared, axis=1), jnp.repeat(k, shared, axis=1)
            if isinstance(s, kda.KDA):
                log_decay = jnp.repeat(log_decay, shared, axis=1)
            log_decay = jnp.broadcast_to(log_decay, k.shape)
            if self.chunk is None:
                answer, after = recurrent(q, k, made[2], log_decay, beta, state[0])
            else:
                answer, after = chunked(q, k, made[2], log_decay, beta, state[0], self.chunk)
        answer = rms_norm(answer, self.scale[...]) * gate
        with jax.named_scope("output"):
            y = jnp.einsum("bnte,neh->bth", answer, self.out[...])
        return all_reduce(y, part), (after, *kept)  # type: ignore[return-value]
