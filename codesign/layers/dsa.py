r"""DeepSeek sparse attention: latent attention over the k tokens that a small indexer chooses for each query.

Cached per token: the latent, ``r_kv + d_rope``, and one index key of ``d_idx`` in a dtype of its own.  The indexer
scores every cached token, ``2 a n_idx d_idx`` FLOP per new token; the scan (absorbed form) covers the mean of
``min(c + i, k)`` tokens.  A block of new tokens reads the union of its selections, or, where that costs less, scans
expanded keys and values of everything seen under a mask, as MLA's long blocks do.  Layers may share an indexer: then
one layer chooses and the following ones use its choice, without weights, keys or work of their own.
Split by heads, every chip runs the whole indexer, since one choice serves all heads; split by context, each chip scores
its range and its candidates, k or as many as it has, are gathered.  Source: arXiv:2512.02556; GLM-5 shares as in the
transformers library.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from codesign.fabric import all_gather
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.mla import HEAD_TILE, MLA, Form
from codesign.layers.spans import clipped_mean, union_read
from codesign.layers.tiles import passes, tiled, tokens_read


@dataclass(frozen=True)
class DSA:
    """Structure of a sparse latent attention layer.

    Attributes:
        heads, q_rank, kv_rank, nope, rope, value: as in `codesign.layers.mla.MLA`.
        index_heads, index_width: heads of the indexer and their width, which is also that of its one key.
        top_k: tokens that a query attends to.
        shared_index: the layer uses the choice of an earlier one.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    index_heads: int
    index_width: int
    top_k: int
    shared_index: bool = False
    norms: int = 1

    formed: ClassVar[tuple[str, ...]] = ("expand", "scan")

    @property
    def _dense(self) -> MLA:
        """The latent attention without the indexer."""
        return MLA(self.heads, self.q_rank, self.kv_rank, self.nope, self.rope, self.value, norms=self.norms)

    def _indexer(self, hidden: int) -> int:
        """Parameters of the indexer's projections: queries from the low rank, one key, a weight per head."""
        return self.q_rank * self.index_heads * self.index_width + hidden * (self.index_width + self.index_heads)

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        found = self._dense.weights(hidden)
        if self.shared_index:
            return found
        index = self._indexer(hidden) + 2 * self.index_width  # a layer norm on the key
        return *found, Weights("attention", index, index, "copy")

    def cache_elements(self) -> float:
        return self._dense.cache_elements()

    def index_elements(self) -> float:
        return 0.0 if self.shared_index else float(self.index_width)

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def context_ways(self, step: Step) -> Number:
        """Chips over which one sequence's cache is split; by heads it is kept whole on each."""
        return self._dense.context_ways(step)

    def cache_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def index_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def _index_rows(self, step: Step, hidden: int) -> list[Row]:
        p, t, ways = step.precision, step.tokens, self.context_ways(step)
        scores = t * step.attended / ways
        queries = self.index_heads * self.index_width
        read = tokens_read(step, passes(step, self.index_heads, self.index_width, 0.0))
        candidates = clipped_mean(step.cached, step.whole, self.top_k * ways)  # a range may have fewer than k
        return [
            gemm(
                "index_qk",
                self._indexer(hidden),
                t,
                self.q_rank + hidden,
                queries + self.index_width,
                "attention",
                step,
                launches=2.0,
            ),
            Row(
                "index",
                "attention",
                memory=step.batch * (read + step.new) / ways * self.index_width * p.bytes["index"]
                + t * queries * p.bytes["index"]
                + 8.0 * scores,  # scores out and back for the selection, FP32
                tensor=2.0 * scores * queries,
                dtype=p.math["index"],
                rows=step.new * self.index_heads,
                vector=scores * (3.0 * self.index_heads + 4.0),
                launches=2.0,
            ),
            all_gather("index_merge", 8.0 * t * candidates, ways, step.machine)._replace(own=True),
        ]

    def _sparse(self, step: Step, scores: Number) -> Form:
        """The absorbed scan of what was chosen."""
        p, ways, heads = step.precision, self.context_ways(step), self.heads / step.tp
        latent = self.kv_rank + self.rope
        again = passes(step, self.heads, latent, self.kv_rank)
        read = again * union_read(step.behind + step.new, self.top_k, step.new / again)
        return Form(
            tensor=2.0 * scores * (2 * self.kv_rank + self.rope),
            memory=step.batch * (read + step.new) / ways * latent * p.bytes["kv"]
            + step.tokens * heads * ways * (latent + self.kv_rank) * p.bytes["activation"],
            expanded=step.tokens,
            rows=step.new * self.heads,
            streams=tiled(step, jnp.maximum(heads / HEAD_TILE, 1.0)),
        )

    def rows(self, step: Step, hidden: int) -> list[Row]:
        dense = self._dense
        scores = step.tokens * clipped_mean(step.cached, step.whole, self.top_k) * self.heads / step.tp
        form = dense.expanded(step) if step.form else self._sparse(step, scores)
        choice = [] if self.shared_index else self._index_rows(step, hidden)
        rows: list[Row] = []
        for row in dense.rows_of(step, hidden, form):
            if row.name == "scan":
                vector = scores * (step.machine.exponential_ops + 4.0) + 8.0 * step.tokens * self.q_rank
                rows += [*choice, row if step.form else row._replace(vector=vector)]
            else:
                rows.append(row)
        return rows
