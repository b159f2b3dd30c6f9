"""Mamba-2: a state-space layer with one decay per head, whose keys and queries (B and C) are shared by head groups.

State per sequence: ``heads x state x head_width`` elements in FP32 and ``(kernel - 1)`` columns of the convolution over
x, B and C, read and written as `codesign.layers.recurrent` tells.  Over TP heads are divided; the projections of B and
C split no further than there are groups, and beyond that the norm of a group takes a sum of squares (FP32) per token
from every chip.  Source: arXiv:2405.21060; Nemotron-H as in the transformers library.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from codesign.fabric import all_gather, all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.layers.recurrent import state_row


@dataclass(frozen=True)
class Mamba2:
    """Structure of a Mamba-2 layer.

    Attributes:
        heads: heads of the state-space layer.
        head_width: channels of a head.
        state_width: width of a channel's state.
        groups: groups of heads that share B and C.
        conv_kernel: taps of the convolution on x, B and C.
        conv_bias: the convolution has a bias per channel.
        norms: norms around the layer, in units of the residual width.
    """

    heads: int
    head_width: int
    state_width: int
    groups: int = 1
    conv_kernel: int = 4
    conv_bias: bool = True
    norms: int = 1

    formed: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def _inner(self) -> int:
        return self.heads * self.head_width

    @property
    def _shared(self) -> int:
        """Width of B and C together."""
        return 2 * self.groups * self.state_width

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        taps = self.conv_kernel + (1 if self.conv_bias else 0)
        # z, x and the step size in, the layer out; A_log, D and the step's bias per head; a gated norm.
        split = hidden * (3 * self._inner + self.heads) + taps * self._inner + 3 * self.heads + self._inner
        grouped = (hidden + taps) * self._shared
        copied = self.norms * hidden
        return (
            Weights("attention", split, split),
            Weights("attention", grouped, grouped, "kv", self.groups),
            Weights("attention", copied, copied, "copy"),
        )

    def cache_elements(self) -> float:
        return 0.0

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        cells = self._inner * self.state_width
        return float(cells), float((self.conv_kernel - 1) * (self._inner + self._shared))

    def cache_share(self, step: Step) -> Number:
        return 1.0 / step.tp

    def rows(self, step: Step, hidden: int) -> list[Row]:
        t, exp = step.tokens, step.machine.exponential_ops
        groups = self.groups / jnp.minimum(step.tp, float(self.groups))
        inner, heads = self._inner / step.tp, self.heads / step.tp
        shared = 2.0 * groups * self.state_width
        projected = 2.0 * inner + shared + heads
        conv = (self.conv_kernel - 1) * (inner + shared)
        return [
            gemm("qkv", hidden * projected, t, hidden, projected, "attention", step),
            state_row(
                step,
                heads=heads,
                cells=self.state_elements()[0] / step.tp,
                conv=conv,
                inside=groups * self.state_width + inner,
                delta=False,
                moved=projected + inner,
                elementwise=2.0 * conv
                + (inner + shared) * (exp + 2.0)
                + inner * (exp + 8.0)
                + heads * (2.0 * exp + 4.0),
            ),
            all_gather("norm_sums", 4.0 * t * step.tp, jnp.where(step.tp > self.groups, step.tp, 1.0), step.machine),
            gemm("output", inner * hidden, t, inner, hidden, "attention", step),
            all_reduce("all_reduce", t * hidden * step.precision.bytes["activation"], step.tp, step.machine),
        ]
