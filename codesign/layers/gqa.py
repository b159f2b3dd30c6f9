"""Grouped-query attention, full, over a sliding window or inside chunks; also multi-matrix factorised attention.

Cached per token: ``n_kv (d_k + d_v)`` elements, for at most ``w`` tokens under a window or in a chunk.  The scan costs
``2 a n_q (d_k + d_v)`` FLOP per new token, ``a`` the mean attended length.  By heads it splits over TP up to
``n_kv`` and is replicated beyond; by context it splits over all of TP and partial results are exchanged.
Multi-matrix factorised attention (Step-3, arXiv:2507.19427) is one key and value head under queries from a low rank.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_reduce, gather_scatter
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.spans import chunk_mean, clipped_mean
from codesign.layers.tiles import chunk_tokens_read, passes, tiled, tokens_read


@dataclass(frozen=True)
class GQA:
    """Structure of a grouped-query attention layer.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads.
        key_width, value_width: per head.
        window: tokens a sliding window keeps, or None for full attention.
        bias: projections carry biases.
        sinks: one learned sink per query head.
        qk_norm: RMS norms on queries and keys (2 x key_width parameters).
        norms: parameters of the norms around the layer, in units of the residual width.
        chunk: tokens of the chunks inside which a token attends, or None; not with a window.
        qkv_bias: queries, keys and values carry biases, the output does not; ``bias`` gives it one too.
        gate: a full-rank output gate ``hidden -> heads x value_width``.
        head_gate: an output gate with one value per head.
        tied_values: values are the projected keys: no projection of their own, but a place in the cache.
        q_rank: width of the query's low-rank path, which every chip of the TP group keeps, or None.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    bias: bool = False
    sinks: bool = False
    qk_norm: bool = False
    norms: int = 1
    chunk: int | None = None
    qkv_bias: bool = False
    gate: bool = False
    head_gate: bool = False
    tied_values: bool = False
    q_rank: int | None = None

    @property
    def _projected_kv(self) -> int:
        """Width that a key head's projection makes, values included."""
        return self.key_width + (0 if self.tied_values else self.value_width)

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        q = self.heads * self.key_width
        kv = self.kv_heads * self._projected_kv
        out = self.heads * self.value_width
        split = (self.q_rank or hidden) * q + hidden * out
        narrow = hidden * kv
        if self.bias:
            split += q + hidden
            narrow += kv
        elif self.qkv_bias:
            split += q
            narrow += kv
        if self.gate:
            split += hidden * out
        if self.head_gate:
            split += hidden * self.heads
        extra = self.norms * hidden + (self.heads if self.sinks else 0) + (2 * self.key_width if self.qk_norm else 0)
        if self.q_rank:
            extra += hidden * self.q_rank + self.q_rank
        return (
            Weights("attention", split, split),
            Weights("attention", narrow, narrow, "kv", self.kv_heads),
            Weights("attention", extra, extra, "copy"),
        )

    def cache_elements(self) -> float:
        return 0.0 if self._bound else float(self.kv_heads * (self.key_width + self.value_width))

    def window_elements(self) -> float:
        return float(self._bound * self.kv_heads * (self.key_width + self.value_width)) if self._bound else 0.0

    @property
    def _bound(self) -> int:
        """Tokens at most that are kept, 0 for no bound."""
        return self.window or self.chunk or 0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def kv_heads_here(self, step: Step) -> Number:
        """Key and value heads on one chip: split by heads up to ``n_kv``, all of them when split by context."""
        by_heads = self.kv_heads / jnp.minimum(step.tp, float(self.kv_heads))
        return jnp.where(step.context_split > 0.5, float(self.kv_heads), by_heads)

    def context_ways(self, step: Step) -> Number:
        """Chips over which one sequence's cache is split by context range."""
        return jnp.where(step.context_split > 0.5, step.tp, 1.0)

    def cache_share(self, step: Step) -> Number:
        return self.kv_heads_here(step) / self.kv_heads / self.context_ways(step)

    def attended(self, step: Step) -> Number:
        r"""Mean attended length of a new token.

        Under a window of w it is the mean over the q new tokens of :math:`\min(c+i, w)`: with
        :math:`n = \mathrm{clip}(w-c, 0, q)` tokens still inside, :math:`(n c + n(n+1)/2 + (q-n) w)/q`.
        In chunks of w it is that of :math:`1 + ((c+i-1) \bmod w)`.
        """
        if self.chunk is not None:
            return chunk_mean(step.cached, step.whole, self.chunk)
        if self.window is None:
            return step.attended
        return clipped_mean(step.cached, step.whole, self.window)

    def tokens_read(self, step: Step) -> Number:
        """Cached and new tokens whose keys and values one sequence reads: ``min(c + q, w + q - 1)`` in one pass.

        In chunks, those since the start of the chunk of the first new token.
        """
        again = passes(step, self.heads / self.kv_heads, self.key_width, self.value_width)
        if self.chunk is not None:
            return chunk_tokens_read(step, again, self.chunk)
        return tokens_read(step, again, self.window)

    def merge(self, step: Step, beside: Number = 0.0) -> Row:
        """What goes around where a scan is split by context, nothing where it is by heads.

        Queries and partial results of all heads, one sum of a softmax (FP32) with each result, and new keys and values
        from the chips that project them to the one that keeps them.

        Args:
            step: the pass.
            beside: further elements per token that go around with the queries.
        """
        p, width = step.precision, self.key_width + self.value_width
        here = self.kv_heads / jnp.minimum(step.tp, float(self.kv_heads))
        moved = (self.heads * width + beside) * p.bytes["activation"] + 4.0 * self.heads
        return gather_scatter(
            "context_merge",
            step.context_split * step.tokens * (moved + here * width * p.bytes["kv"]),
            self.context_ways(step),
            step.machine,
        )

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p = step.precision
        width = self.key_width + self.value_width
        heads = self.heads / step.tp
        kv = self.kv_heads_here(step)
        ways = self.context_ways(step)
        attended = self.attended(step)
        weight_kv = self.kv_heads / jnp.minimum(step.tp, float(self.kv_heads))
        t = step.tokens
        scores = t * attended * heads
        gates = 0.0
        vector = scores * (step.machine.exponential_ops + 4.0) + 8.0 * t * heads * self.key_width
        if self.gate or self.head_gate:
            gates = heads * ((self.value_width if self.gate else 0) + (1 if self.head_gate else 0))
            vector += t * gates * (step.machine.exponential_ops + 2.0)
        others = weight_kv * self._projected_kv + gates + (self.q_rank or 0)
        parameters = (self.q_rank or hidden) * (heads * self.key_width) + hidden * others
        projected = heads * self.key_width + others + (self.q_rank or 0)
        rows = [
            gemm("qkv", parameters, t, hidden, projected, "attention", step, launches=2.0 if self.q_rank else 1.0),
            Row(
                "scan",
                "attention",
                memory=step.batch * (self.tokens_read(step) / ways + step.new / ways) * kv * width * p.bytes["kv"]
                + t * heads * ways * width * p.bytes["activation"],
                tensor=2.0 * scores * width,
                dtype=p.math["scan"],
                rows=step.new * self.heads / self.kv_heads,
                vector=vector,
                launches=2.0,
                streams=tiled(step, kv),
            ),
        ]
        rows.append(self.merge(step))
        rows.append(
            gemm("output", hidden * heads * self.value_width, t, heads * self.value_width, hidden, "attention", step)
        )
        rows.append(all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine))
        return rows
