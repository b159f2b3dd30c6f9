r"""Compressed attention (DeepSeek V4): a short window of plain entries, beyond it entries for several tokens each.

One key that is also the value, width d, under many query heads.  Every layer sees the last w tokens; a compressor makes
one entry of every r tokens by a gated mean, over two overlapping series where ``overlap`` (CSA, r = 4) or one (HCA,
r = 128).  With an indexer a query attends to the top k entries, else to all: the mean of ``min((c + i)/r, k)``.
Cached per token: ``d/r`` elements and ``d_idx/r`` of index keys; per sequence ``w d``.  The output goes through a rank
per group of heads.  Split by heads, every chip keeps all entries and runs the whole indexer; split by context each
chip keeps its range and ``2 n_q d`` elements per token are exchanged.
Left out: tokens of the window that is still being filled, at most 2 r per series, and the entry they will make.
Source: DeepSeek V4 as in the transformers library.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_gather, all_reduce, gather_scatter
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.mla import HEAD_TILE
from codesign.layers.spans import clipped_mean, union_read
from codesign.layers.tiles import passes, tiled, tokens_read


@dataclass(frozen=True)
class Compressed:
    """Structure of a compressed attention layer.

    Attributes:
        heads: query heads.
        width: of a head, and of the one cached entry.
        q_rank: width of the query's low-rank path.
        window: tokens that are kept uncompressed.
        out_groups, out_rank: groups of heads and the width to which each is projected before the output.
        ratio: tokens that one entry stands for, 0 for a layer with its window only.
        overlap: an entry is made of two series, the other one shifted by a window.
        index_heads, index_width, top_k: the indexer over entries, 0 for none.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    width: int
    q_rank: int
    window: int
    out_groups: int
    out_rank: int
    ratio: int = 0
    overlap: bool = False
    index_heads: int = 0
    index_width: int = 0
    top_k: int = 0
    norms: int = 1

    @property
    def _series(self) -> int:
        """Series of values and gates that the compressor projects to."""
        return (2 if self.overlap else 1) if self.ratio else 0

    def _compressor(self, hidden: int, width: int) -> int:
        """Projections of values and gates to entries of a width."""
        return 2 * hidden * self._series * width

    def _copied(self, hidden: int) -> int:
        """Projections that every chip of the TP group keeps: query's low rank, key, compressor."""
        return hidden * (self.q_rank + self.width) + self._compressor(hidden, self.width)

    def _indexer(self, hidden: int) -> int:
        """Projections of the indexer, with a compressor of its own."""
        queries = self.q_rank * self.index_heads * self.index_width + hidden * self.index_heads
        return self._compressor(hidden, self.index_width) + queries

    def _extras(self, width: int) -> int:
        """Positions' biases and norm of a compressor."""
        return self._series * self.ratio * width + width if self._series else 0

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        split = self.q_rank * self.heads * self.width + self.heads * self.width * self.out_rank + self.heads
        grouped = self.out_groups * self.out_rank * hidden
        copied = self._copied(hidden) + self.norms * hidden + self.q_rank + self.width + self._extras(self.width)
        if self.index_heads:
            copied += self._indexer(hidden) + self._extras(self.index_width)
        return (
            Weights("attention", split, split),
            Weights("attention", grouped, grouped, "kv", self.out_groups),
            Weights("attention", copied, copied, "copy"),
        )

    def cache_elements(self) -> float:
        return self.width / self.ratio if self.ratio else 0.0

    def index_elements(self) -> float:
        return self.index_width / self.ratio if self.index_heads else 0.0

    def window_elements(self) -> float:
        return float(self.window * self.width)

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def context_ways(self, step: Step) -> Number:
        """Chips over which one sequence's entries are split; by heads they are kept whole on each."""
        return jnp.where(step.context_split > 0.5, step.tp, 1.0)

    def cache_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def index_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def attended_entries(self, step: Step) -> Number:
        """Mean number of compressed entries that a new token attends to."""
        if not self.ratio:
            return 0.0
        if not self.top_k:
            return step.attended / self.ratio
        return clipped_mean(step.cached, step.whole, self.top_k * self.ratio) / self.ratio

    def entries_read(self, step: Step) -> Number:
        """Compressed entries that one sequence reads: all of them, or the union of what its new tokens select."""
        if not self.ratio:
            return 0.0
        again = passes(step, self.heads, self.width, self.width)
        if not self.top_k:
            return tokens_read(step, again) / self.ratio
        return again * union_read((step.behind + step.new) / self.ratio, self.top_k, step.new / again)

    def _index_rows(self, step: Step, hidden: int) -> list[Row]:
        p, t, ways = step.precision, step.tokens, self.context_ways(step)
        scores = t * step.attended / self.ratio / ways
        queries = self.index_heads * self.index_width
        made = 2 * self._series * self.index_width
        read = tokens_read(step, passes(step, self.index_heads, self.index_width, 0.0))
        entries = (read + step.new) / self.ratio / ways
        candidates = clipped_mean(step.cached, step.whole, self.top_k * self.ratio * ways)  # a range may have fewer
        return [
            gemm(
                "index_qk",
                self._indexer(hidden),
                t,
                self.q_rank + hidden,
                queries + made,
                "attention",
                step,
                launches=2.0,
            ),
            Row(
                "index",
                "attention",
                memory=step.batch * entries * self.index_width * p.bytes["index"]
                + t * queries * p.bytes["index"]
                + t * made * p.bytes["activation"]
                + 8.0 * scores,  # scores out and back, FP32
                tensor=2.0 * scores * queries,
                dtype=p.math["index"],
                rows=step.new * self.index_heads,
                vector=scores * (3.0 * self.index_heads + 4.0) + t * made * (step.machine.exponential_ops + 4.0),
                launches=2.0,
            ),
            all_gather("index_merge", 8.0 * t * candidates / self.ratio, ways, step.machine)._replace(own=True),
        ]

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p, t, ways = step.precision, step.tokens, self.context_ways(step)
        exp = step.machine.exponential_ops
        heads, split = self.heads / step.tp, step.context_split > 0.5
        queries = heads * self.width
        made = 2 * self._series * self.width
        window = clipped_mean(step.cached, step.whole, self.window)
        scores = t * (window + self.attended_entries(step)) * heads
        again = passes(step, self.heads, self.width, self.width)
        read = tokens_read(step, again, self.window) + self.entries_read(step)
        written = step.new * (1.0 + (1.0 / self.ratio if self.ratio else 0.0))
        groups = self.out_groups / jnp.minimum(step.tp, float(self.out_groups))
        ranks = groups * self.out_rank
        rows = [
            gemm(
                "qkv",
                self._copied(hidden) + self.q_rank * queries,
                t,
                hidden,
                2.0 * self.q_rank + self.width + made + queries,
                "attention",
                step,
                launches=3.0,
            ),
        ]
        if self.index_heads:
            rows += self._index_rows(step, hidden)
        rows += [
            Row(
                "scan",
                "attention",
                memory=step.batch * (read + written) / ways * self.width * p.bytes["kv"]
                + t * (2.0 * queries * ways + made) * p.bytes["activation"],
                tensor=4.0 * scores * self.width,
                dtype=p.math["scan"],
                rows=step.new * self.heads,
                vector=scores * (exp + 4.0) + 16.0 * t * queries + t * made * (exp + 4.0),
                launches=3.0 if self.ratio else 2.0,
                streams=tiled(step, jnp.maximum(heads / HEAD_TILE, 1.0)),
            ),
            gather_scatter(
                "context_merge",
                step.context_split * t * self.heads * (2.0 * self.width * p.bytes["activation"] + 4.0),
                jnp.where(split, step.tp, 1.0),
                step.machine,
            ),
            gemm(
                "output",
                queries * self.out_rank + ranks * hidden,
                t,
                queries,
                2.0 * ranks + hidden,
                "attention",
                step,
                launches=2.0,
            ),
            all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine),
        ]
        return rows
