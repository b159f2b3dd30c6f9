"""Gated DeltaNet: a gated delta rule with one decay per head, fewer key heads than value heads.

State per sequence: ``n_v d_k d_v`` elements in FP32 and ``(kernel - 1)`` columns of the short convolutions, read and
written as `codesign.layers.recurrent` tells.  Key heads are shared by groups of value heads; the output is gated at
full rank and normed per head.  Source: arXiv:2412.06464; Qwen3-Next and Qwen3.5 as in the transformers library.
"""

from dataclasses import dataclass
from typing import ClassVar

from codesign.fabric import all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.recurrent import state_row


@dataclass(frozen=True)
class GDN:
    """Structure of a gated DeltaNet layer.

    Attributes:
        heads: query and key heads.
        value_heads: value heads, a multiple of ``heads``.
        key_width, value_width: per head.
        conv_kernel: taps of the short convolutions on queries, keys and values.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    value_heads: int
    key_width: int
    value_width: int
    conv_kernel: int = 4
    norms: int = 1

    formed: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def _q(self) -> int:
        return self.heads * self.key_width

    @property
    def _v(self) -> int:
        return self.value_heads * self.value_width

    def _split(self, hidden: int) -> int:
        """Parameters divided by heads, without the output projection: q, k, v, output gate, beta, decay, taps."""
        channels = 2 * self._q + self._v
        return hidden * (channels + self._v + 2 * self.value_heads) + self.conv_kernel * channels

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        split = self._split(hidden) + self._v * hidden + 2 * self.value_heads  # A_log and a bias per head
        copied = self.norms * hidden + self.value_width
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
        t, exp = step.tokens, step.machine.exponential_ops
        state, conv = (x / step.tp for x in self.state_elements())
        projected = (2 * self._q + 2 * self._v + 2 * self.value_heads) / step.tp
        heads = self.value_heads / step.tp
        gates = heads * (3.0 * exp + 6.0) + self._v / step.tp * (exp + 6.0)
        return [
            gemm("qkv", self._split(hidden) / step.tp, t, hidden, projected, "attention", step, launches=3.0),
            state_row(
                step,
                heads=heads,
                cells=state,
                conv=conv,
                inside=heads * (2 * self.key_width + self.value_width),
                delta=True,
                moved=projected + self._v / step.tp,
                elementwise=gates + 2.0 * conv,
            ),
            gemm("output", self._v * hidden / step.tp, t, self._v / step.tp, hidden, "attention", step),
            all_reduce("all_reduce", t * hidden * step.precision.bytes["activation"], step.tp, step.machine),
        ]
