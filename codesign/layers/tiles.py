r"""Flash-style tiling of the attention scan: how often a block of tokens reads the cache, by what the chip can hold.

The queries of a block and their running sums stay on the chip while keys and values stream by.  Rows that do not fit
wait for the next pass over the cache: :math:`P = \max(1, q\,g/R)` passes for q new tokens of g query heads per key
head, with :math:`R` the rows that half of the on-chip memory holds; the other half is for the streaming tiles.
Passes are real numbers here; tiles are whole in hardware.  In decode one pass is enough on every part known.
"""

import jax.numpy as jnp

from codesign.lanes import Number
from codesign.layers.base import Step
from codesign.layers.spans import chunk_mean, chunk_read, grid_mean

#: New tokens of one query tile of a scan over expanded or grouped keys.
QUERY_TILE = 128.0

#: Share of the on-chip memory that holds queries and sums (assumption: the other half double-buffers KV tiles).
RESIDENT_SHARE = 0.5


def row_bytes(step: Step, key: float, value: float) -> Number:
    """On-chip bytes of one query row: the query as an activation; output, maximum and sum in FP32."""
    return key * step.precision.bytes["activation"] + 4.0 * (value + 2.0)


def tiled(step: Step, heads: Number) -> Number:
    """Independent pieces of a scan: sequences x heads of keys, and of long blocks each query tile of them."""
    pieces = step.batch * heads
    return pieces * ((step.new - 1.0) / QUERY_TILE + 1.0) if step.block else pieces


def passes(step: Step, group: float, key: float, value: float) -> Number:
    """Passes over the cache of one key head, at least 1.

    Args:
        step: the pass; 1 unless long blocks may come (``step.block``).
        group: query heads that share a key head.
        key, value: widths of a query and of an output [element].
    """
    if not step.block:
        return 1.0
    resident = RESIDENT_SHARE * step.machine.sram / row_bytes(step, key, value)
    return jnp.maximum(1.0, step.new * group / resident)


def tokens_read(step: Step, again: Number, window: float | None = None) -> Number:
    r"""Cached and new tokens that one sequence reads per chunk, in ``again`` passes of which each sees its causal part.

    Pass j of P holds the queries from :math:`j q/P` on and reads what is cached before them (at most ``w - 1`` tokens
    under a window) and themselves; for one pass without a window it is :math:`c + q`.
    """
    if not step.block:
        seen = step.cached + step.new
        return seen if window is None else jnp.minimum(seen, window + step.new - 1.0)
    if window is None:
        return again * step.behind + step.new * (again + 1.0) / 2.0
    return again * grid_mean(step.cached, step.new / again, step.chunks * again, window - 1.0) + step.new


def chunk_tokens_read(step: Step, again: Number, chunk: int) -> Number:
    """As `tokens_read`, where a token sees its own chunk of attention only (Llama 4).

    A block starts inside a chunk of attention as far as its tokens do in the mean, less half its own length; for a
    single block that is exact.
    """
    whole = chunk_read(step.cached, step.new, chunk)
    if not step.block:
        return whole
    tile = step.new / again
    offset = jnp.maximum(chunk_mean(step.cached, step.whole, chunk) - (tile + 1.0) / 2.0, 0.0)
    return jnp.where(again * step.chunks > 1.5, again * offset + step.new, whole)
