r"""Compressed attention's compressor: one entry of every r tokens, a mean gated channel by channel.

.. math:: e = \mathrm{norm}\Big(\sum_j \mathrm{softmax}_j(z_j + b_j) \odot v_j\Big)

over the r tokens j of a window, with values v and gates z projected from the residual and a bias b per place.  Where
windows overlap there are two series of both: a window's entry is made of the second series of its own tokens and the
first series of those of the window before.  All of it is elementwise.  Source: DeepSeek V4 in the transformers library.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from codesign.reference.parts import rms_norm


class Windows(NamedTuple):
    """What a compressor carries from pass to pass, values beside gates.

    Attributes:
        pending: of the tokens of the unfinished window, (batch, tokens, 2, series x width).
        before: first series of the last finished window, gates with their bias, (batch, r, 2, width); no tokens where
            there is one series only, or no finished window.
    """

    pending: jax.Array
    before: jax.Array


def compressed(
    fresh: jax.Array, windows: Windows, bias: jax.Array, scale: jax.Array, overlap: bool
) -> tuple[jax.Array, Windows]:
    """Entries that new tokens finish.

    Args:
        fresh: values and gates of new tokens, (batch, q, 2, series x width).
        windows: what came before.
        bias: (r, series x width).
        scale: of the norm, (width,).
        overlap: whether there are two series.

    Returns:
        entries (batch, finished windows, width), without rotation, and what is carried on.
    """
    ratio, width = bias.shape[0], scale.shape[0]
    tokens = jnp.concatenate([windows.pending, fresh], axis=1)
    finished = tokens.shape[1] // ratio
    pending = tokens[:, finished * ratio :]
    whole = tokens[:, : finished * ratio].reshape(tokens.shape[0], finished, ratio, *tokens.shape[2:])
    values, gates = whole[:, :, :, 0], whole[:, :, :, 1] + bias
    before = windows.before
    if overlap:
        first = jnp.stack([values[..., :width], gates[..., :width]], axis=3)
        if before.shape[1]:
            start = before[:, None]
        else:  # in front of the first window there is nothing
            start = jnp.broadcast_to(jnp.array([0.0, -jnp.inf], fresh.dtype)[:, None], (len(fresh), 1, ratio, 2, width))
        earlier = jnp.concatenate([start, first], axis=1)
        values = jnp.concatenate([earlier[:, :-1, :, 0], values[..., width:]], axis=2)
        gates = jnp.concatenate([earlier[:, :-1, :, 1], gates[..., width:]], axis=2)
        before = earlier[:, -1] if finished else before
    return rms_norm(jnp.sum(values * jax.nn.softmax(gates, axis=2), axis=2), scale), Windows(pending, before)
