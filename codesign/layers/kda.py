"""Kimi Delta Attention: a gated delta rule with per-channel decay, a state instead of a cache.

State per sequence: ``n_v d_k d_v`` elements in FP32 and ``(kernel - 1)`` columns of the short convolutions in BF16,
read and written as `codesign.layers.recurrent` tells.  Decode costs ``4 n_v d_k d_v`` matrix and ``3 n_v d_k d_v``
elementwise operations per token.
"""

from dataclasses import dataclass
from typing import ClassVar

from codesign.fabric import all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.recurrent import state_row


@dataclass(frozen=True)
class KDA:
    """Structure of a KDA layer.

    Attributes:
        heads: query and key heads.
        value_heads: value heads.
        key_width, value_width: per head.
        conv_kernel: taps of the short convolutions on queries, keys and values.
        decay_rank: width of the low-rank path of the decay gate.
        gate_rank: width of the output gate's low-rank path, or None where the gate has full rank.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    value_heads: int
    key_width: int
    value_width: int
    conv_kernel: int = 4
    decay_rank: int = 128
    gate_rank: int | None = None
    norms: int = 1

    formed: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def _q(self) -> int:
        return self.heads * self.key_width

    @property
    def _v(self) -> int:
        return self.value_heads * self.value_width

    def _split(self, hidden: int) -> int:
        """Parameters divided by heads, without the output projection."""
        gate = hidden * self._v if self.gate_rank is None else self.gate_rank * self._v
        conv = self.conv_kernel * (2 * self._q + self._v)
        return hidden * (2 * self._q + self._v) + gate + self.decay_rank * self._q + hidden * self.value_heads + conv

    def _copied(self, hidden: int) -> int:
        return hidden * self.decay_rank + (hidden * self.gate_rank if self.gate_rank is not None else 0)

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        split = self._split(hidden) + self._v * hidden + self.heads + self._q  # decay: A_log per head, bias per channel
        copied = self._copied(hidden) + self.norms * hidden + self.value_width
        return Weights("attention", split, split), Weights("attention", copied, copied, "copy")

    def cache_elements(self) -> float:
        return 0.0

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        channels = 2 * self._q + self._v
        return float(self.value_heads * self.key_width * self.value_width), float((self.conv_kernel - 1) * channels)

    def cache_share(self, step: Step) -> Number:
        return 1.0 / step.tp

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p, t = step.precision, step.tokens
        state, conv = self.state_elements()
        cells = state / step.tp
        projected = self._copied(hidden) + self._split(hidden) / step.tp
        inner = (3 * self._q + 2 * self._v) / step.tp
        rows = [
            gemm("qkv", projected, t, hidden, inner, "attention", step, launches=3.0),
            state_row(
                step,
                heads=self.value_heads / step.tp,
                cells=cells,
                conv=conv / step.tp,
                inside=self.value_heads / step.tp * (2 * self.key_width + self.value_width),
                delta=True,
                moved=inner,
                elementwise=(self._q * (step.machine.exponential_ops + 4.0) + 2.0 * conv) / step.tp,
            ),
            gemm("output", self._v * hidden / step.tp, t, self._v / step.tp, hidden, "attention", step, launches=2.0),
            all_reduce("all_reduce", t * hidden * p.bytes["activation"], step.tp, step.machine),
        ]
        return rows
