"""Multi-head latent attention, absorbed form (decode).

Cached per token: ``r_kv + d_rope`` elements, one head.  Absorbed, every query head scans the latent:
``2 a n_q (2 r_kv + d_rope)`` FLOP per new token; projections stay ``2 T params`` because the up-projections are
multiplied into queries and outputs.  Split by heads, every chip keeps and reads the whole latent; split by context
range, each chip reads its share and ``n_q (2 r_kv + d_rope)`` elements per token are exchanged.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_reduce, gather_scatter
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm


@dataclass(frozen=True)
class MLA:
    """Structure of a latent attention layer.

    Attributes:
        heads: query heads.
        q_rank: width of the query's low-rank path, or None where queries are projected at once.
        kv_rank: width r_kv of the cached latent.
        nope, rope: widths of a head's keys without and with rotation; ``rope`` elements are cached once for all heads.
        value: width of a head's values.
        gate: a full-rank output gate ``hidden -> heads x value``.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    gate: bool = False
    norms: int = 1

    def _split(self, hidden: int) -> int:
        """Parameters that are divided by heads."""
        q = (self.q_rank or hidden) * self.heads * (self.nope + self.rope)
        up = self.kv_rank * self.heads * (self.nope + self.value)
        out = self.heads * self.value * hidden
        return q + up + out + (hidden * self.heads * self.value if self.gate else 0)

    def _copied(self, hidden: int) -> int:
        """Down-projections, which every chip of the TP group keeps."""
        return hidden * ((self.q_rank or 0) + self.kv_rank + self.rope)

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        norms = self.norms * hidden + (self.q_rank or 0) + self.kv_rank
        split, copied = self._split(hidden), self._copied(hidden) + norms
        return Weights("attention", split, split), Weights("attention", copied, copied, "copy")

    def cache_elements(self) -> float:
        return float(self.kv_rank + self.rope)

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def context_ways(self, step: Step) -> Number:
        """Chips over which one sequence's cache is split; by heads it is kept whole on each."""
        return jnp.where(step.context_split > 0.5, step.tp, 1.0)

    def cache_share(self, step: Step) -> Number:
        return 1.0 / self.context_ways(step)

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p = step.precision
        t, heads = step.tokens, self.heads / step.tp
        latent = self.kv_rank + self.rope
        ways = self.context_ways(step)
        scores = t * step.attended * heads
        projected = self._copied(hidden) + (self._split(hidden) - self.heads * self.value * hidden) / step.tp
        rows = [
            gemm("qkv", projected, t, hidden, heads * (latent + self.value), "attention", step, launches=4.0),
            Row(
                "scan",
                "attention",
                memory=step.batch * (step.cached + 2.0 * step.new) / ways * latent * p.bytes["kv"]
                + t * heads * ways * (latent + self.kv_rank) * p.bytes["activation"],
                tensor=2.0 * scores * (2 * self.kv_rank + self.rope),
                dtype=p.math["scan"],
                rows=step.new * self.heads,
                vector=scores * (step.machine.exponential_ops + 4.0) + 8.0 * t * (self.q_rank or hidden),
                launches=2.0,
            ),
            gather_scatter(
                "context_merge",
                step.context_split * t * self.heads * (2 * self.kv_rank + self.rope) * p.bytes["activation"],
                jnp.where(step.context_split > 0.5, step.tp, 1.0),
                step.machine,
            ),
            gemm(
                "output", self.heads * self.value * hidden / step.tp, t, heads * self.value, hidden, "attention", step
            ),
            all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine),
        ]
        return rows
