"""A dense feed-forward layer: gate, up and down, split by tensor over TP."""

from dataclasses import dataclass

from codesign.fabric import all_reduce
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm


@dataclass(frozen=True)
class MLP:
    """Structure of a dense feed-forward layer: ``matrices x hidden x inner`` parameters (3 where gated, else 2)."""

    inner: int
    gated: bool = True
    norms: int = 1

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        count = (3 if self.gated else 2) * hidden * self.inner
        return Weights("dense", count, count), Weights("dense", self.norms * hidden, self.norms * hidden, "copy")

    def cache_elements(self) -> float:
        return 0.0

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def cache_share(self, step: Step) -> Number:  # noqa: ARG002 - the protocol's argument
        return 0.0

    def rows(self, step: Step, hidden: int) -> list[Row]:
        t, inner = step.tokens, self.inner / step.tp
        wide = (2 if self.gated else 1) * inner
        return [
            gemm("up", wide * hidden, t, hidden, wide, "dense", step)._replace(
                vector=t * inner * (step.machine.exponential_ops + 3.0)
            ),
            gemm("down", inner * hidden, t, inner, hidden, "dense", step),
            all_reduce("all_reduce", t * hidden * step.precision.bytes["activation"], step.tp, step.machine),
        ]
