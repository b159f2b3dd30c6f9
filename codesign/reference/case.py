"""One executed case of a block: its program over the chips, its arguments, what the count says of it.

Everything that the cases of all kinds share: a machine on which counts are plain numbers, the pass as the count takes
it, caches laid out by context range, and the program with its inputs put together.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from codesign.lanes import Row
from codesign.layers import moe
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.precision import MOVING_CLASSES, WEIGHT_CLASSES, Precision
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, sharded
from codesign.reference.programs import QUICK

#: Sequences of an instance, and tokens of the context, in the executed cases.
BATCH, CONTEXT = 8, 64

#: Every tensor class in 4 bytes, as the executed layers are.
FP32 = Precision.from_names(dict.fromkeys((*WEIGHT_CLASSES, *MOVING_CLASSES), "fp32"))


def round_machine(**changes: float) -> Machine:
    """A machine on which a byte is a byte: rings instead of reduction in the switch, one domain, one per operation."""
    one = {field.name: 1.0 for field in fields(Machine) if field.init and field.default is MISSING}
    domains = {"scale_up_domain": 1024.0, "scale_out_domain": 1024.0, "in_switch_reduction": 0.0, "sram": 1e9}
    return Machine(**(one | domains | changes))


class Case(NamedTuple):
    """A block to be executed in one split.

    Attributes:
        layer: its structure.
        part: the split.
        step: the pass as the count sees it.
        rows: the count.
        program: one chip's part over the mesh, to be compiled.
        arguments: weights and inputs of the program.
        alone: the same numbers from the whole layer on one device.
        output: picks the layer's output out of what a program returns.
    """

    layer: Any
    part: Part
    step: Step
    rows: tuple[Row, ...]
    program: Callable[..., Any]
    arguments: tuple[Any, ...]
    alone: Callable[[], jax.Array]
    output: Callable[[Any], jax.Array]

    def words(self) -> str:
        """The split in words."""
        part = self.part
        words = f"TP {part.tp}"
        if part.dp > 1:
            words += f" × DP {part.dp}"
        if "hand_off" in {row.name for row in self.rows}:
            return f"TP {part.tp} × PP {part.dp}"
        if isinstance(self.layer, moe.MoE):
            words += f", EP {part.ep}" + (f", expert TP {part.moe_tp}" if part.moe_tp > 1 else "")
        elif part.context:
            words += ", by context"
        new = int(self.step.new)
        return words + (f", {new} new tokens" if new > 1 else "")


def step_of(part: Part, *, batch: float, new: int = 1, cached: int = 0, block: bool = False, form: int = 0) -> Step:
    """A pass as a layer's count takes it; ``block`` for prompts."""
    return Step(
        float(batch), float(new), float(cached), float(part.tp), float(part.dp), float(part.ep), float(part.context),
        0.0, round_machine(), FP32, block=block, form=form,
    )  # fmt: skip


def counted(layer: Any, step: Step, hidden: int) -> tuple[Row, ...]:
    """The count's rows; biases of experts are left to the elementwise operations that they are."""
    if isinstance(layer, moe.MoE):
        layer = replace(layer, bias=False)
    return tuple(layer.rows(step, hidden))


def random_numbers(seed: int, *shape: int) -> jax.Array:
    """Standard normal numbers in float32."""
    return Draw(seed).normal(*shape)


def in_ranges(cache: jax.Array, axis: int, new: int, part: Part) -> jax.Array:
    """A cache with room for new tokens at its end, turned by ranges: sequence b's last one to chip ``b mod TP``."""
    room = [(0, 0)] * cache.ndim
    room[axis] = (0, new)
    whole = np.pad(np.asarray(cache), room)
    size = whole.shape[axis] // part.tp
    return jnp.asarray(np.stack([np.roll(one, (b % BATCH + 1) * size, axis - 1) for b, one in enumerate(whole)]))


def answer_alone(module: Reference, *inputs: Any, method: str = "__call__") -> Any:
    """What a whole layer, or a method of it, returns on one device."""
    graph, state = nnx.split(module)

    def answer(state: Any, *inputs: Any) -> Any:
        return getattr(nnx.merge(graph, state), method)(*inputs, part=ALONE)

    return jax.jit(answer, compiler_options=QUICK)(state, *inputs)


def case_of(
    module: Reference, layer: Any, hidden: int, part: Part, step: Step, inputs: tuple[Any, ...], specs: tuple[Any, ...],
    *, whole: Reference | None = None, state_specs: Any = None, rows: tuple[Row, ...] | None = None,
    alone: tuple[Any, ...] | None = None,
) -> Case:  # fmt: skip
    """Put a module, its inputs and their partitions together.

    Args:
        whole: the module on one device where it is another.
        state_specs: partition of what the layer returns beside its output, or None.
        rows: the count where it is not the layer's.
        alone: inputs of the whole layer where they are laid out otherwise.
    """
    out = P("dp") if state_specs is None else (P("dp"), state_specs)
    program, weights = sharded(module, part, specs, out)
    pick = (lambda found: found) if state_specs is None else (lambda found: found[0])

    def run_alone() -> jax.Array:
        return pick(answer_alone(whole or module, *(inputs if alone is None else alone)))

    rows = counted(layer, step, hidden) if rows is None else rows
    return Case(layer, part, step, rows, program, (weights, *inputs), run_alone, pick)
