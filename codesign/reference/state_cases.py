"""The executed cases of layers that keep a state: delta rules, lightning attention, Mamba-2."""

from typing import Any

import jax
import jax.numpy as jnp

from codesign.layers import gdn, kda, lightning, mamba2
from codesign.layers.recurrent import CHUNK
from codesign.reference.case import BATCH, Case, case_of, random_numbers, step_of
from codesign.reference.delta import Delta
from codesign.reference.lightning import Lightning
from codesign.reference.mamba2 import Mamba2
from codesign.reference.parts import Draw, P, Part

#: Kinds of layers that keep a state.
KINDS = (kda.KDA, gdn.GDN, lightning.Lightning, mamba2.Mamba2)


def _module(layer: Any, hidden: int, chunk: int | None) -> Any:
    if isinstance(layer, lightning.Lightning):
        return Lightning(layer, hidden, Draw(0), chunk=chunk)
    if isinstance(layer, mamba2.Mamba2):
        return Mamba2(layer, hidden, Draw(0), chunk=chunk)
    return Delta(layer, hidden, Draw(0), chunk=chunk)


def _state(layer: Any, batch: int) -> Any:
    """A random state of so many sequences."""
    if isinstance(layer, lightning.Lightning):
        return random_numbers(2, batch, layer.heads, layer.key_width, layer.value_width)
    if isinstance(layer, mamba2.Mamba2):
        widths = (layer.heads, layer.head_width), *((layer.groups, layer.state_width),) * 2
        state = random_numbers(2, batch, layer.heads, layer.state_width, layer.head_width)
    else:
        widths = *((layer.heads * layer.key_width,),) * 2, (layer.value_heads * layer.value_width,)
        state = random_numbers(2, batch, layer.value_heads, layer.key_width, layer.value_width)
    kept = layer.conv_kernel - 1
    return state, *(random_numbers(3 + i, batch, kept, *width) for i, width in enumerate(widths))


def _laid_out(layer: Any, module: Any, state: Any, part: Part) -> Any:
    """The state as chips take it: where they keep copies of B and C, so of their convolution inputs."""
    if not isinstance(layer, mamba2.Mamba2):
        return state
    copied: list[jax.Array] = [jnp.repeat(one, module.copies(part), axis=2) for one in state[2:]]
    return *state[:2], *copied


def state_case(layer: Any, hidden: int, part: Part, new: int = 1) -> Case:
    """A pass of ``new`` tokens: one by one, or, of one sequence, in whole chunks where there are more than one has."""
    chunk, each = (CHUNK, 1) if new > CHUNK else (None, BATCH)
    batch = each * part.dp
    module, state = _module(layer, hidden, chunk), _state(layer, batch)
    specs = module.state_specs()
    step = step_of(part, batch=each, new=new, block=chunk is not None, form=int(chunk is not None))
    x = random_numbers(1, batch, new, hidden)
    return case_of(
        module, layer, hidden, part, step, (x, _laid_out(layer, module, state, part)), (P("dp"), specs),
        state_specs=specs, alone=(x, state),
    )  # fmt: skip
