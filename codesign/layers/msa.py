r"""Block-sparse attention (MiniMax M3): grouped-query attention over the blocks that an indexer chooses per KV head.

Cached per token: ``n_kv (d_k + d_v)`` elements and one index key of ``d_idx`` in a dtype of its own.  The indexer
scores every cached token, ``2 a n_idx d_idx`` FLOP per new token, keeps each block's best score and chooses the top
blocks; the scan covers the mean of ``min(c + i, blocks x size)`` tokens.  A block of new tokens reads the union of its
selections.  Split by heads, index heads go with the KV heads and every chip keeps the index keys; split by context,
each chip scores its range, and index queries go around with the others.  Left out: the last block, which is partly
filled, counts in full.  Source: the transformers library's MiniMax M3.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_gather
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.gqa import GQA
from codesign.layers.spans import clipped_mean, union_read
from codesign.layers.tiles import passes, tiled, tokens_read


@dataclass(frozen=True)
class MSA:
    """Structure of a block-sparse attention layer.

    Attributes:
        heads, kv_heads, key_width, value_width, qk_norm: as in `codesign.layers.gqa.GQA`.
        index_heads, index_width: heads of the indexer, each choosing for its KV heads, and their width.
        block: tokens of a block.
        top_blocks: blocks that a query attends to, its own included.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    index_heads: int
    index_width: int
    block: int
    top_blocks: int
    qk_norm: bool = False
    norms: int = 1

    @property
    def _dense(self) -> GQA:
        """The attention without the indexer."""
        return GQA(self.heads, self.kv_heads, self.key_width, self.value_width, qk_norm=self.qk_norm, norms=self.norms)

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        queries = hidden * self.index_heads * self.index_width
        key = hidden * self.index_width + (2 * self.index_width if self.qk_norm else 0)
        return (
            *self._dense.weights(hidden),
            Weights("attention", queries, queries, "kv", self.index_heads),
            Weights("attention", key, key, "copy"),
        )

    def cache_elements(self) -> float:
        return self._dense.cache_elements()

    def index_elements(self) -> float:
        return float(self.index_width)

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def context_ways(self, step: Step) -> Number:
        """Chips over which one sequence's cache is split by context range."""
        return self._dense.context_ways(step)

    def cache_share(self, step: Step) -> Number:
        return self._dense.cache_share(step)

    def index_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def _index_rows(self, step: Step, hidden: int) -> list[Row]:
        p, t, ways = step.precision, step.tokens, self.context_ways(step)
        projected = self.index_heads / jnp.minimum(step.tp, float(self.index_heads))
        heads = jnp.where(step.context_split > 0.5, float(self.index_heads), projected)
        scores = t * step.attended / ways
        width = self.index_width
        candidates = clipped_mean(
            step.cached, step.whole, self.block * self.top_blocks * ways
        )  # a range may have fewer
        read = tokens_read(step, passes(step, self.index_heads, width, 0.0))
        return [
            gemm(
                "index_qk", hidden * width * (projected + 1.0), t, hidden, width * (projected + 1.0), "attention", step
            ),
            Row(
                "index",
                "attention",
                memory=step.batch * (read + step.new) / ways * width * p.bytes["index"]
                + t * heads * width * p.bytes["index"]
                + 8.0 * scores * heads / self.block,
                tensor=2.0 * scores * heads * width,
                dtype=p.math["index"],
                rows=step.new * self.index_heads,
                vector=scores * heads * (1.0 + 4.0 / self.block),
                launches=2.0,
            ),
            all_gather(
                "index_merge", 8.0 * t * self.index_heads * candidates / self.block, ways, step.machine
            )._replace(own=True),
        ]

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p, t, ways = step.precision, step.tokens, self.context_ways(step)
        width, heads = self.key_width + self.value_width, self.heads / step.tp
        limit = self.block * self.top_blocks
        scores = t * clipped_mean(step.cached, step.whole, limit) * heads
        again = passes(step, self.heads / self.kv_heads, self.key_width, self.value_width)
        read = again * union_read(step.behind + step.new, limit, step.new / again)
        scan = Row(
            "scan",
            "attention",
            memory=step.batch * (read + step.new) / ways * self._dense.kv_heads_here(step) * width * p.bytes["kv"]
            + t * heads * ways * width * p.bytes["activation"],
            tensor=2.0 * scores * width,
            dtype=p.math["scan"],
            rows=step.new * self.heads / self.kv_heads,
            vector=scores * (step.machine.exponential_ops + 4.0) + 8.0 * t * heads * self.key_width,
            launches=2.0,
            streams=tiled(step, self._dense.kv_heads_here(step)),
        )
        merge = self._dense.merge(step, beside=self.index_heads * self.index_width)
        replaced = {"scan": [*self._index_rows(step, hidden), scan], "context_merge": [merge]}
        return [found for row in self._dense.rows(step, hidden) for found in replaced.get(row.name, [row])]
