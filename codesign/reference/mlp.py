"""A dense feed-forward layer, split by tensor: ``(silu(x W_g) * x W_u) W_d``; without a gate ``relu(x W_u)^2 W_d``."""

import jax
import jax.numpy as jnp

from codesign.layers import mlp
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, all_reduce


def activated(x: jax.Array, gated: bool) -> jax.Array:
    """The inner activation of ``(..., matrices, inner)``: gate and up side by side, or up alone squared."""
    return jax.nn.silu(x[..., 0, :]) * x[..., 1, :] if gated else jnp.square(jax.nn.relu(x[..., 0, :]))


def feed_forward(x: jax.Array, up: jax.Array, down: jax.Array, gated: bool, part: Part) -> jax.Array:
    """Tokens (T, hidden) through ``up`` (hidden, matrices, inner) and ``down`` (inner, hidden)."""
    with jax.named_scope("up"):
        inner = jnp.einsum("th,hmi->tmi", x, up)
    inner = activated(inner, gated)
    with jax.named_scope("down"):
        y = jnp.einsum("ti,ih->th", inner, down)
    return all_reduce(y, part)


class MLP(Reference):
    """Executable `codesign.layers.mlp.MLP`."""

    def __init__(self, shape: mlp.MLP, hidden: int, draw: Draw):
        self.shape = shape
        self.up = draw.weight(hidden, 2 if shape.gated else 1, shape.inner, fan=hidden)
        self.down = draw.weight(shape.inner, hidden, fan=shape.inner)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        return {"up": P(None, None, "tp"), "down": P("tp")}

    def __call__(self, x: jax.Array, part: Part = ALONE) -> jax.Array:
        """Map tokens (T, hidden) to (T, hidden)."""
        return feed_forward(x, self.up[...], self.down[...], self.shape.gated, part)
