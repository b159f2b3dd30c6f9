r"""Multi-head latent attention, absorbed and expanded.

Cached per token: ``r_kv + d_rope`` elements, one head.  Absorbed (decode), every query head scans the latent:
``2 a n_q (2 r_kv + d_rope)`` FLOP per new token; projections stay ``2 T params`` because the up-projections are
multiplied into queries and outputs.  Expanded (prefill), keys and values of all heads are made from the latents of
every token seen, written and scanned: ``2 a n_q (d_nope + d_rope + d_v)`` FLOP, projections
``2 T (params - kv_b) + 2 B (c + q) kv_b`` with ``kv_b = r_kv n_q (d_nope + d_v)``.  A long block takes the form that
needs less time.  Split by heads, every chip keeps and reads the whole latent; split by context range, each chip reads
its share and ``n_q (2 r_kv + d_rope)`` elements per token are exchanged, with one sum of a softmax (FP32) per head.
Left out: the memory that expanded keys and values take (kernels work through them piece by piece).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from codesign.fabric import all_reduce, gather_scatter
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.tiles import QUERY_TILE, passes, tiled, tokens_read

#: Query heads that one piece of an absorbed scan takes.
HEAD_TILE = 64.0


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

    formed: ClassVar[tuple[str, ...]] = ("expand", "scan")

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

    @property
    def up(self) -> int:
        """Parameters that expand a latent to the keys and values of all heads."""
        return self.kv_rank * self.heads * (self.nope + self.value)

    def scores(self, step: Step) -> Number:
        """Query-key pairs per chip and layer, one score each."""
        return step.tokens * step.attended * self.heads / step.tp

    def absorbed(self, step: Step) -> "Form":
        """The form of decode: every head scans the latents themselves."""
        p, heads, ways = step.precision, self.heads / step.tp, self.context_ways(step)
        latent = self.kv_rank + self.rope
        again = passes(step, self.heads, latent, self.kv_rank)
        return Form(
            tensor=2.0 * self.scores(step) * (2 * self.kv_rank + self.rope),
            memory=step.batch * (tokens_read(step, again) + step.new) / ways * latent * p.bytes["kv"]
            + step.tokens * heads * ways * (latent + self.kv_rank) * p.bytes["activation"],
            expanded=step.tokens,
            rows=step.new * self.heads,
            streams=tiled(step, jnp.maximum(heads / HEAD_TILE, 1.0)),
        )

    def expanded(self, step: Step) -> "Form":
        """The form of long blocks: keys and values of all heads are made from the latents, written and scanned."""
        p, heads, ways = step.precision, self.heads / step.tp, self.context_ways(step)
        latent, made = self.kv_rank + self.rope, self.nope + self.value
        again = passes(step, 1.0, self.nope + self.rope, self.value)
        seen = step.behind + step.new
        read = (seen + tokens_read(step, again)) * heads * made * p.bytes["activation"]
        return Form(
            tensor=2.0 * self.scores(step) * (made + self.rope),
            memory=step.batch * (read + (seen + step.new) / ways * latent * p.bytes["kv"])
            + step.tokens * heads * ways * (made + self.rope) * p.bytes["activation"],
            expanded=step.batch * seen,
            rows=step.new,
            streams=step.batch * heads * (step.new / QUERY_TILE + 1.0),
        )

    def _expand(self, step: Step, form: "Form") -> Row:
        """Keys and values of the cached tokens out of their latents; those of new tokens are among ``qkv``.

        A sequence's own work; its launch is one of the projections'.
        """
        return Row(
            "expand",
            "gemm",
            tensor=2.0 * (form.expanded - step.tokens) * self.up / step.tp,
            dtype=step.precision.math["attention"],
            rows=form.expanded,
            width=self.heads / step.tp * (self.nope + self.value),
            own=True,
        )

    def rows(self, step: Step, hidden: int) -> list[Row]:
        return self.rows_of(step, hidden, self.expanded(step) if step.form else self.absorbed(step))

    def rows_of(self, step: Step, hidden: int, form: "Form") -> list[Row]:
        """The work of one layer in a given form."""
        p = step.precision
        t, heads = step.tokens, self.heads / step.tp
        latent = self.kv_rank + self.rope
        projected = self._copied(hidden) + (self._split(hidden) - self.heads * self.value * hidden) / step.tp
        return [
            gemm("qkv", projected, t, hidden, heads * (latent + self.value), "attention", step, launches=4.0),
            *([self._expand(step, form)] if step.block or step.form else []),
            Row(
                "scan",
                "attention",
                memory=form.memory,
                tensor=form.tensor,
                dtype=p.math["scan"],
                rows=form.rows,
                vector=self.scores(step) * (step.machine.exponential_ops + 4.0) + 8.0 * t * (self.q_rank or hidden),
                launches=2.0,
                streams=form.streams,
            ),
            gather_scatter(
                "context_merge",
                step.context_split * t * self.heads * ((2 * self.kv_rank + self.rope) * p.bytes["activation"] + 4.0),
                jnp.where(step.context_split > 0.5, step.tp, 1.0),
                step.machine,
            ),
            gemm(
                "output", self.heads * self.value * hidden / step.tp, t, heads * self.value, hidden, "attention", step
            ),
            all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine),
        ]


class Form(NamedTuple):
    """What one of the two forms of latent attention spends in the scan of one layer, on one chip.

    Attributes:
        tensor: matrix arithmetic [FLOP].
        memory: [B].
        expanded: tokens that go through the projection from the latent up, of all the instance's sequences.
        rows: rows of the matrix products per sequence and key head.
        streams: independent pieces of the scan.
    """

    tensor: Number
    memory: Number
    expanded: Number
    rows: Number
    streams: Number
