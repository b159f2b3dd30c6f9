"""Lightning attention: linear attention with one fixed decay per head, no delta rule, no convolution.

State per sequence: ``n_h d_k d_v`` elements in FP32, read and written as `codesign.layers.recurrent` tells.  The
output is normed over all heads together, which takes one sum of squares (FP32) per token from every chip, and gated
at full rank.  Source: arXiv:2501.08313 (MiniMax-01), and the
transformers library's MiniMax.
"""

from dataclasses import dataclass
from typing import ClassVar

from codesign.fabric import all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.recurrent import state_row


@dataclass(frozen=True)
class Lightning:
    """Structure of a lightning attention layer.

    Attributes:
        heads: query, key and value heads.
        key_width, value_width: per head.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    key_width: int
    value_width: int
    norms: int = 1

    formed: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def _q(self) -> int:
        return self.heads * self.key_width

    @property
    def _v(self) -> int:
        return self.heads * self.value_width

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        split = hidden * (2 * self._q + 3 * self._v) + self._v  # q, k, v, gate and output; a norm over all heads
        copied = self.norms * hidden
        return Weights("attention", split, split), Weights("attention", copied, copied, "copy")

    def cache_elements(self) -> float:
        return 0.0

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return float(self.heads * self.key_width * self.value_width), 0.0

    def cache_share(self, step: Step) -> Number:
        return 1.0 / step.tp

    def rows(self, step: Step, hidden: int) -> list[Row]:
        t, exp = step.tokens, step.machine.exponential_ops
        projected = (2 * self._q + 2 * self._v) / step.tp
        values, heads = self._v / step.tp, self.heads / step.tp
        return [
            gemm("qkv", hidden * projected, t, hidden, projected, "attention", step, launches=2.0),
            state_row(
                step,
                heads=heads,
                cells=self.state_elements()[0] / step.tp,
                conv=0.0,
                inside=heads * (self.key_width + self.value_width),
                delta=False,
                moved=projected + values,
                elementwise=(self._q + self._v) / step.tp * (exp + 2.0) + values * (exp + 6.0),
            ),
            all_reduce("norm_sums", 4.0 * t, step.tp, step.machine),
            gemm("output", values * hidden, t, values, hidden, "attention", step),
            all_reduce("all_reduce", t * hidden * step.precision.bytes["activation"], step.tp, step.machine),
        ]
