"""Grouped-query attention, full or over a sliding window.

Cached per token: ``n_kv (d_k + d_v)`` elements, for at most ``w`` tokens under a window.  The scan costs
``2 a n_q (d_k + d_v)`` FLOP per new token, ``a`` the mean attended length.  By heads it splits over TP up to
``n_kv`` and is replicated beyond; by context it splits over all of TP and partial results are exchanged.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm


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

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        q = self.heads * self.key_width
        kv = self.kv_heads * (self.key_width + self.value_width)
        out = self.heads * self.value_width
        split = hidden * (q + out)
        narrow = hidden * kv
        if self.bias:
            split += q + hidden
            narrow += kv
        extra = self.norms * hidden + (self.heads if self.sinks else 0) + (2 * self.key_width if self.qk_norm else 0)
        return (
            Weights("attention", split, split),
            Weights("attention", narrow, narrow, "kv", self.kv_heads),
            Weights("attention", extra, extra, "copy"),
        )

    def cache_elements(self) -> float:
        return 0.0 if self.window else float(self.kv_heads * (self.key_width + self.value_width))

    def window_elements(self) -> float:
        return float(self.window * self.kv_heads * (self.key_width + self.value_width)) if self.window else 0.0

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
        """
        if self.window is None:
            return step.attended
        inside = jnp.clip(self.window - step.cached, 0.0, step.new)
        total = inside * step.cached + inside * (inside + 1.0) / 2.0 + (step.new - inside) * self.window
        return total / step.new

    def tokens_read(self, step: Step) -> Number:
        """Cached and new tokens whose keys and values one sequence reads: ``min(c + q, w + q - 1)``."""
        seen = step.cached + step.new
        return seen if self.window is None else jnp.minimum(seen, self.window + step.new - 1.0)

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
        rows = [
            gemm(
                "qkv", hidden * (heads * self.key_width + weight_kv * width), t, hidden,
                heads * self.key_width + weight_kv * width, "attention", step,
            ),
            Row(
                "scan", "attention",
                memory=step.batch * (self.tokens_read(step) / ways + step.new / ways) * kv * width * p.bytes["kv"]
                + t * heads * width * p.bytes["activation"],
                tensor=2.0 * scores * width,
                dtype=p.math["scan"],
                rows=step.new * self.heads / self.kv_heads,
                vector=scores * (step.machine.exponential_ops + 4.0) + 8.0 * t * heads * self.key_width,
                launches=2.0,
            ),
        ]
        rows.append(
            all_reduce("context_merge", step.context_split * t * self.heads * width * p.bytes["activation"],
                       jnp.where(step.context_split > 0.5, step.tp, 1.0), step.machine)
        )
        rows.append(gemm("output", hidden * heads * self.value_width, t, heads * self.value_width, hidden,
                         "attention", step))
        rows.append(all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine))
        return rows
