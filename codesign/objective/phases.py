"""The regimes of inference by name: what evaluates each, and the pass whose bytes must fit."""

from collections.abc import Callable
from typing import NamedTuple

from codesign.layers.base import Step
from codesign.objective.decode import decode
from codesign.objective.metrics import Metrics
from codesign.objective.prefill import prefill, prompt_step
from codesign.objective.serve import decode_step, serve
from codesign.objective.timing import step_of


class Phase(NamedTuple):
    """A regime; static under JAX.

    Attributes:
        name: for results.
        evaluate: (model, machine, execution, precision, mapping, load) to `Metrics`.
        step: (machine, precision, mapping, load) to the `Step` that memory is counted for.
    """

    name: str
    evaluate: Callable[..., Metrics]
    step: Callable[..., Step]

    def __repr__(self) -> str:
        return self.name


DECODE = Phase("decode", decode, step_of)
PREFILL = Phase("prefill", prefill, prompt_step)
MIDFILL = Phase("midfill", prefill, prompt_step)
SERVE = Phase("serve", serve, decode_step)

PHASES = {phase.name: phase for phase in (PREFILL, MIDFILL, DECODE, SERVE)}
