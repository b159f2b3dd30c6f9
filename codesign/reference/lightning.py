r"""Lightning attention: activated queries, keys and values, a fixed decay per head, one norm over all heads.

Head h of n decays by :math:`e^{-2^{-8 (h + 1) / n}}` per token (a model scales that by the layer's place in the stack,
which is left out).  Split by heads, the norm needs one sum of squares per token over the chips of an instance.
Source: MiniMax in the transformers library; arXiv:2501.08313.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from codesign.layers import lightning
from codesign.reference.decayed import chunked, recurrent
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce


class Lightning(Reference):
    """Executable `codesign.layers.lightning.Lightning`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        chunk: tokens of a chunk, or None to go token by token.
    """

    def __init__(self, shape: lightning.Lightning, hidden: int, draw: Draw, *, chunk: int | None = None):
        self.shape, self.chunk = shape, chunk
        s = shape
        self.q = draw.weight(hidden, s.heads, s.key_width, fan=hidden)
        self.k = draw.weight(hidden, s.heads, s.key_width, fan=hidden)
        self.v = draw.weight(hidden, s.heads, s.value_width, fan=hidden)
        self.gate = draw.weight(hidden, s.heads, s.value_width, fan=hidden)
        self.slope = nnx.Variable(jnp.asarray(2.0 ** (-8.0 * (np.arange(s.heads) + 1.0) / s.heads), draw.dtype))
        self.scale = draw.constant(1.0, s.heads, s.value_width)
        self.out = draw.weight(s.heads, s.value_width, hidden, fan=s.heads * s.value_width)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        first, second = P("tp"), P(None, "tp")
        return {"q": second, "k": second, "v": second, "gate": second, "slope": first, "scale": first, "out": first}

    @staticmethod
    def state_specs() -> P:
        """Partition of the state (batch, heads, key width, value width)."""
        return P("dp", "tp")

    def __call__(self, x: jax.Array, state: jax.Array, part: Part = ALONE) -> tuple[jax.Array, jax.Array]:
        """One pass: tokens (batch, q, hidden) and a state give (batch, q, hidden) and the next state."""
        s = self.shape
        with jax.named_scope("qkv"):
            q, k, v = (jax.nn.silu(jnp.einsum("bth,hnd->bntd", x, w[...])) for w in (self.q, self.k, self.v))
            gate = jax.nn.sigmoid(jnp.einsum("bth,hnd->bntd", x, self.gate[...]))
        with jax.named_scope("state"):
            # Every head is a group of its own.
            log_decay = jnp.broadcast_to(-self.slope[...][:, None, None], (*v.shape[:2], 1, v.shape[2]))
            given = q, k, v[:, :, None], log_decay, state[:, :, None]
            answer, after = recurrent(*given) if self.chunk is None else chunked(*given, self.chunk)
            answer, after = answer[:, :, 0], after[:, :, 0]
        squares = jnp.sum(answer * answer, axis=(1, 3))
        if part.tp > 1:
            with jax.named_scope("norm_sums"):
                squares = jax.lax.psum(squares, "tp")
        squares = squares[:, None, :, None]
        answer = answer * jax.lax.rsqrt(squares / (s.heads * s.value_width) + 1e-6) * self.scale[...][:, None] * gate
        with jax.named_scope("output"):
            y = jnp.einsum("bnte,neh->bth", answer, self.out[...])
        return all_reduce(y, part), after
