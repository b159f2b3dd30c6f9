r"""Choosing what to attend to: an indexer's scores, the best of them over chips, and this chip's share of a choice.

The indexer scores a key by :math:`\sum_h w_h\,\mathrm{relu}(q_h \cdot k)`, one key for all its heads.  Where a cache is
split by context each chip finds the best of its own range, scores and positions of these candidates are gathered
(8 bytes each), and the best of all are the same on every chip.  What is chosen is gathered by position: shapes, and
with them the counts, do not depend on the data.  Source: arXiv:2512.02556.
"""

import jax
import jax.numpy as jnp

from codesign.reference.parts import Part, gather


def index_scores(q: jax.Array, keys: jax.Array, weights: jax.Array) -> jax.Array:
    """Scores (batch, keys) of one query: (batch, heads, width), (batch, keys, width), (batch, heads)."""
    each = jnp.einsum("bkd,bnd->bkn", keys, q)
    return jnp.sum(jax.nn.relu(each) * weights[:, None], axis=-1)


def best(scores: jax.Array, count: int, part: Part) -> jax.Array:
    """Positions (..., count) of the best scores.

    Args:
        scores: (..., n); of this chip's range where ``part`` splits by context.
        count: how many are chosen, no more than there are on all chips.
        part: the split.

    Returns:
        positions in the cache as it is laid out over chips, range after range.
    """
    score, at = jax.lax.top_k(scores, min(count, scores.shape[-1]))
    if not part.context or part.tp == 1:
        return at
    at = at + jax.lax.axis_index("tp").astype(at.dtype) * scores.shape[-1]
    with jax.named_scope("index_merge"):
        score, at = gather(score, score.ndim - 1, part), gather(at, at.ndim - 1, part)
    return jnp.take_along_axis(at, jax.lax.top_k(score, count)[1], axis=-1)


def here(choice: jax.Array, size: int, room: int | None, part: Part) -> tuple[jax.Array, jax.Array | None]:
    """Which of the chosen positions (..., k) lie on this chip.

    Args:
        choice: positions as `best` gives them.
        size: positions of a chip's range.
        room: places for the chosen ones of a chip, the first ones if there are more; None for all k.
        part: the split.

    Returns:
        positions in this chip's range (..., room), and which places are filled, None for all.
    """
    if not part.context or part.tp == 1:
        return choice, None
    at = choice - jax.lax.axis_index("tp").astype(choice.dtype) * size
    mine = (at >= 0) & (at < size)
    order = jnp.argsort(~mine, axis=-1, stable=True)[..., :room]
    return jnp.clip(jnp.take_along_axis(at, order, axis=-1), 0, size - 1), jnp.take_along_axis(mine, order, axis=-1)


def picked(cache: jax.Array, at: jax.Array) -> jax.Array:
    """Entries (batch, k, width) of a cache (batch, n, width) at positions (batch, k)."""
    return jnp.take_along_axis(cache, at[..., None], axis=1)
