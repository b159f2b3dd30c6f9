r"""Mamba-2: a convolution over x, B and C, a step size per head, and a state that B writes and C reads.

With step :math:`\Delta_t = \mathrm{softplus}(\delta_t + b)`, per head of a group

.. math:: S_t = e^{-\Delta_t e^{A}} S_{t-1} + \Delta_t B_t x_t^T, \qquad y_t = S_t^T C_t + D x_t,

gated by :math:`\mathrm{silu}(z_t)` and normed over the channels of a group.  Split by heads, chips beyond the groups
keep copies of B and C, and the norm of a group needs one sum of squares per token from each of its chips.
Source: arXiv:2405.21060; Nemotron-H in the transformers library.
"""

import jax
import jax.numpy as jnp

from codesign.layers import mamba2
from codesign.reference.decayed import chunked, recurrent
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce, gather

#: State (batch, heads, state width, head width), then the convolution inputs (batch, kernel - 1, heads, head width) of
#: x and (batch, kernel - 1, groups, state width) of B and of C.
State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def convolved(x: jax.Array, before: jax.Array, taps: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Causal depthwise convolution and SiLU, tap by tap: elementwise operations, as the count has them.

    Args:
        x: (batch, tokens, ...).
        before: the ``kernel - 1`` inputs that came before.
        taps: (kernel, ...).
        bias: (...) or None.

    Returns:
        the activations, and the inputs that the next pass needs.
    """
    tokens = x.shape[1]
    inputs = jnp.concatenate([before, x], axis=1)
    y = sum(inputs[:, i : i + tokens] * taps[i] for i in range(taps.shape[0]))
    return jax.nn.silu(y if bias is None else y + bias), inputs[:, tokens:]


class Mamba2(Reference):
    """Executable `codesign.layers.mamba2.Mamba2`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        chunk: tokens of a chunk, or None to go token by token.
    """

    def __init__(self, shape: mamba2.Mamba2, hidden: int, draw: Draw, *, chunk: int | None = None):
        self.shape, self.chunk = shape, chunk
        s = shape
        self.z = draw.weight(hidden, s.heads, s.head_width, fan=hidden)
        self.x = draw.weight(hidden, s.heads, s.head_width, fan=hidden)
        self.b = draw.weight(hidden, s.groups, s.state_width, fan=hidden)
        self.c = draw.weight(hidden, s.groups, s.state_width, fan=hidden)
        self.step = draw.weight(hidden, s.heads, fan=hidden)
        self.x_taps = draw.weight(s.conv_kernel, s.heads, s.head_width, fan=s.conv_kernel)
        self.b_taps = draw.weight(s.conv_kernel, s.groups, s.state_width, fan=s.conv_kernel)
        self.c_taps = draw.weight(s.conv_kernel, s.groups, s.state_width, fan=s.conv_kernel)
        if s.conv_bias:
            self.x_bias = draw.weight(s.heads, s.head_width, fan=16)
            self.b_bias = draw.weight(s.groups, s.state_width, fan=16)
            self.c_bias = draw.weight(s.groups, s.state_width, fan=16)
        self.rate = draw.weight(s.heads, fan=4)  # A, the logarithm of a rate
        self.step_bias = draw.weight(s.heads, fan=4)
        self.skip = draw.weight(s.heads, fan=1)  # D
        self.scale = draw.constant(1.0, s.heads, s.head_width)
        self.out = draw.weight(s.heads, s.head_width, hidden, fan=s.heads * s.head_width)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        first, second = P("tp"), P(None, "tp")
        found: dict[str, P] = dict.fromkeys(("rate", "step_bias", "skip", "scale", "out"), first)
        found.update(dict.fromkeys(("z", "x", "b", "c", "step"), second))
        for name in ("x", "b", "c"):
            found[f"{name}_taps"], found[f"{name}_bias"] = second, first
        return found

    def copies(self, part: Part) -> int:
        """Chips that keep the same group's B and C."""
        return max(1, part.tp // self.shape.groups)

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:
        if name in ("b", "c", "b_taps", "c_taps", "b_bias", "c_bias"):
            return jnp.repeat(weight, self.copies(part), axis=0 if name.endswith("bias") else 1)
        return weight

    @staticmethod
    def state_specs() -> tuple[P, P, P, P]:
        """Partition of a `State`."""
        inputs = P("dp", None, "tp")
        return P("dp", "tp"), inputs, inputs, inputs

    def _normed(self, y: jax.Array, part: Part) -> jax.Array:
        """Norm of (batch, tokens, heads, width) over the channels of each group."""
        s, copies = self.shape, self.copies(part)
        channels = s.heads // s.groups * s.head_width
        squares = jnp.sum((y * y).reshape(*y.shape[:2], max(1, s.groups // part.tp), -1), axis=-1)
        if copies > 1:
            with jax.named_scope("norm_sums"):
                everyones = gather(squares, 2, part)
            here = jax.lax.axis_index("tp") // copies * copies
            squares = jnp.sum(jax.lax.dynamic_slice_in_dim(everyones, here, copies, axis=2), axis=2, keepdims=True)
        inverse = jax.lax.rsqrt(squares / channels + 1e-6)
        return y * jnp.repeat(inverse, y.shape[2] // inverse.shape[2], axis=2)[..., None] * self.scale[...]

    def __call__(self, x: jax.Array, state: State, part: Part = ALONE) -> tuple[jax.Array, State]:
        """One pass: tokens (batch, q, hidden) and a state give (batch, q, hidden) and the next state."""
        s, tokens = self.shape, x.shape[1]
        with jax.named_scope("qkv"):
            z = jnp.einsum("bth,hnd->btnd", x, self.z[...])
            step = jnp.einsum("bth,hn->btn", x, self.step[...])
            inputs = [jnp.einsum("bth,hnd->btnd", x, w[...]) for w in (self.x, self.b, self.c)]
        with jax.named_scope("state"):
            taps = self.x_taps, self.b_taps, self.c_taps
            biases = (self.x_bias, self.b_bias, self.c_bias) if s.conv_bias else (None,) * 3
            made, kept = [], []
            for fresh, before, tap, bias in zip(inputs, state[1:], taps, biases, strict=True):
                y, after = convolved(fresh, before, tap[...], None if bias is None else bias[...])
                made.append(jnp.moveaxis(y, 1, 2))  # (batch, heads or groups, tokens, width)
                kept.append(after)
            step = jnp.moveaxis(jax.nn.softplus(step + self.step_bias[...]), 1, 2)
            groups = made[1].shape[1]
            values = (made[0] * step[..., None]).reshape(x.shape[0], groups, -1, tokens, s.head_width)
            log_decay = (-jnp.exp(self.rate[...])[:, None] * step).reshape(values.shape[:-1])
            given = made[2], made[1], values, log_decay, state[0].reshape(*values.shape[:3], *state[0].shape[2:])
            answer, after = recurrent(*given) if self.chunk is None else chunked(*given, self.chunk)
        answer = answer.reshape(made[0].shape) + self.skip[...][:, None, None] * made[0]
        answer = self._normed(jnp.moveaxis(answer, 1, 2) * jax.nn.silu(z), part)
        with jax.named_scope("output"):
            y = jnp.einsum("btne,neh->bth", answer, self.out[...])
        return all_reduce(y, part), (after.reshape(state[0].shape), *kept)  # type: ignore[return-value]
