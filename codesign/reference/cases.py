"""The executed cases of a block: which degrees, how many tokens, and what the count says of them.

A case is chosen so that what is counted as an expectation or a mean comes about exactly.  Attention decodes one token
behind a cache, or a few of a prompt one by one, so that no product is masked; a window is full.  A mixture's tokens are
every choice of experts that uniform routing gives the same chance, each once (`codesign.reference.moe.design`): each
expert then has its mean share of routes, each token on average its expected number of ranks, and every chip is the
*mean* chip, whose work is the count's row of the fullest chip times that row's ``share``.  Expert biases are additions,
not products: the mixture is counted without them.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from codesign.lanes import Row
from codesign.layers import gdn, gqa, kda, mla, mlp, moe
from codesign.layers.base import Step
from codesign.layers.recurrent import CHUNK
from codesign.machine import Machine
from codesign.model import Model
from codesign.precision import MOVING_CLASSES, WEIGHT_CLASSES, Precision
from codesign.reference.delta import Delta
from codesign.reference.ends import Head, Pipeline
from codesign.reference.gqa import GQA
from codesign.reference.mla import MLA
from codesign.reference.mlp import MLP
from codesign.reference.moe import MoE, design, routed_tokens
from codesign.reference.parts import ALONE, Draw, P, Part, Reference, sharded
from codesign.reference.programs import QUICK
from codesign.work import pass_rows

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


def step_of(
    part: Part, *, batch: float, new: int = 1, cached: int = 0, block: bool = False, machine: Machine | None = None
) -> Step:
    """A pass as a layer's count takes it; ``block`` for prompts, where the count chooses between forms."""
    return Step(
        float(batch), float(new), float(cached), float(part.tp), float(part.dp), float(part.ep), float(part.context),
        0.0, machine or round_machine(), FP32, block=block,
    )  # fmt: skip


def counted(layer: Any, step: Step, hidden: int) -> tuple[Row, ...]:
    """The count's rows; biases of experts are left to the elementwise operations that they are."""
    if isinstance(layer, moe.MoE):
        layer = replace(layer, bias=False)
    return tuple(layer.rows(step, hidden))


def _random(seed: int, *shape: int) -> jax.Array:
    return Draw(seed).normal(*shape)


def _in_ranges(cache: jax.Array, axis: int, new: int, part: Part) -> jax.Array:
    """A cache with room for new tokens at its end, turned by ranges: sequence b's last one to chip ``b mod TP``."""
    room = [(0, 0)] * cache.ndim
    room[axis] = (0, new)
    whole = np.pad(np.asarray(cache), room)
    size = whole.shape[axis] // part.tp
    return jnp.asarray(np.stack([np.roll(one, (b % BATCH + 1) * size, axis - 1) for b, one in enumerate(whole)]))


def _case(
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
        graph, state = nnx.split(whole or module)
        given = inputs if alone is None else alone
        call = jax.jit(lambda state, *args: nnx.merge(graph, state)(*args, part=ALONE), compiler_options=QUICK)
        return pick(call(state, *given))

    rows = counted(layer, step, hidden) if rows is None else rows
    return Case(layer, part, step, rows, program, (weights, *inputs), run_alone, pick)


def gqa_case(layer: gqa.GQA, hidden: int, part: Part, new: int = 1) -> Case:
    """The last ``new`` tokens up to `CONTEXT`; decode of one, a prompt's block of more."""
    cached, batch = CONTEXT - new, BATCH * part.dp
    module = GQA(layer, hidden, Draw(0), cached=cached)
    # Split by context, what a window no longer sees is not kept.
    kept = min(cached, layer.window - 1) if part.context and layer.window else cached
    widths = ((2, layer.key_width), (3, layer.value_width))
    cache = tuple(_random(seed, batch, layer.kv_heads, kept, width) for seed, width in widths)
    if part.context:
        given = tuple(_in_ranges(c, 2, new, part) for c in cache)
    else:
        given = tuple(jnp.repeat(c, module.copies(part), axis=1) for c in cache)
    specs = (module.cache_spec(part),) * 2
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1)
    x = _random(1, batch, new, hidden)
    return _case(module, layer, hidden, part, step, (x, given), (P("dp"), specs), state_specs=specs, alone=(x, cache))


def mla_case(layer: mla.MLA, hidden: int, part: Part, new: int = 1, *, expanded: bool = False) -> Case:
    """The same for latent attention; ``expanded`` is a prompt behind one token, where the count takes that form.

    (One product of one query with one key is no product to the compiler, hence the one token.)
    """
    cached, batch = 1 if expanded else CONTEXT - new, BATCH * part.dp
    module = MLA(layer, hidden, Draw(0), cached=cached, expanded=expanded)
    cache = _random(2, batch, cached, layer.kv_rank + layer.rope)
    given = _in_ranges(cache, 1, new, part) if part.context else cache
    specs = module.cache_spec(part)
    # Arithmetic alone decides between the forms.
    fast = round_machine(memory_bandwidth=1e9)
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1, machine=fast)
    x = _random(1, batch, new, hidden)
    return _case(module, layer, hidden, part, step, (x, given), (P("dp"), specs), state_specs=specs, alone=(x, cache))


def delta_case(layer: kda.KDA | gdn.GDN, hidden: int, part: Part, new: int = 1) -> Case:
    """A pass of ``new`` tokens: one by one, or, of one sequence, in whole chunks where there are more than one has."""
    chunk, batch = (CHUNK, 1) if new > CHUNK else (None, BATCH)
    module = Delta(layer, hidden, Draw(0), chunk=chunk)
    step_batch, batch = batch, batch * part.dp
    widths = (layer.heads * layer.key_width,) * 2 + (layer.value_heads * layer.value_width,)
    state = (
        _random(2, batch, layer.value_heads, layer.key_width, layer.value_width),
        *(_random(3 + i, batch, layer.conv_kernel - 1, width) for i, width in enumerate(widths)),
    )
    specs = module.state_specs()
    # Where the vector units are slow, chunks cost less than tokens one by one.
    machine = round_machine(vector_rate=1e-3, memory_bandwidth=1e9)
    step = step_of(part, batch=step_batch, new=new, block=chunk is not None, machine=machine)
    inputs = (_random(1, batch, new, hidden), state)
    return _case(module, layer, hidden, part, step, inputs, (P("dp"), specs), state_specs=specs)


def mlp_case(layer: mlp.MLP, hidden: int, part: Part) -> Case:
    """A batch of tokens."""
    module = MLP(layer, hidden, Draw(0))
    return _case(
        module, layer, hidden, part, step_of(part, batch=BATCH), (_random(1, BATCH * part.dp, hidden),), (P("dp"),)
    )


@lru_cache
def _choices(layer: moe.MoE) -> tuple[np.ndarray, np.ndarray]:
    return design(layer)


def moe_case(layer: moe.MoE, hidden: int, part: Part) -> Case:
    """Every choice of experts once per chip that sends tokens."""
    wanted, picked = _choices(layer)
    senders = part.chips if part.dp > 1 else 1
    bank = len(wanted) * senders
    # The same tokens reach every rank equally often: the design is symmetric in the experts.
    ranks = picked.reshape(len(picked), part.ep, -1).any(axis=2).sum(axis=0)
    routes = bank * layer.top_k
    full = MoE(layer, hidden, Draw(0), routes=routes)
    module = MoE(layer, hidden, Draw(0), capacity=int(ranks.max()), routes=routes // part.ep)
    tokens = jnp.asarray(np.tile(routed_tokens(full.router[...], wanted), (senders, 1)), jnp.float32)
    step = step_of(part, batch=bank / part.dp)
    return _case(module, layer, hidden, part, step, (tokens,), (P("dp"),), whole=full)


def head_case(model: Model, part: Part) -> Case:
    """Output head and greedy sampling."""
    step = step_of(part, batch=BATCH)
    module = Head(model.hidden, model.vocab, Draw(0))
    rows = tuple(row for row in pass_rows(model, step, 1.0).head if row.name != "embed")
    inputs = (_random(1, BATCH * part.dp, model.hidden),)
    return _case(module, None, model.hidden, part, step, inputs, (P("dp"),), rows=rows)


def pipeline_case(model: Model, stages: int = 4, tp: int = 2) -> Case:
    """Feed-forward stages with the hand-offs of one pass; every chip runs all stages, so many times one's rows."""
    layer = mlp.MLP(inner=4 * model.hidden)
    part = Part(tp=tp, dp=stages)
    step = step_of(Part(tp=tp), batch=BATCH)
    module = Pipeline(layer, model.hidden, stages, model.streams, Draw(0))
    times = {"tensor": stages, "scale_up": stages}
    each = counted(layer, step, model.hidden)
    rows = tuple(row._replace(**{lane: getattr(row, lane) * n for lane, n in times.items()}) for row in each)
    x = _random(1, BATCH, model.streams, model.hidden)
    hand_off = pass_rows(model, step, float(stages)).hand_off
    found = _case(module, layer, model.hidden, part, step, (x,), (P(),), rows=(*rows, hand_off))
    return found._replace(output=lambda y: y[-BATCH:])


def cases_of(layer: Any, hidden: int) -> list[Case]:
    """The cases that ``codesign verify`` runs of a block."""
    whole, mixed = Part(tp=8), Part(tp=2, dp=4)
    if isinstance(layer, gqa.GQA):
        parts = [whole, mixed] if layer.chunk else [whole, Part(tp=8, context=True), mixed]
        return [*(gqa_case(layer, hidden, part) for part in parts), gqa_case(layer, hidden, whole, new=4)]
    if isinstance(layer, mla.MLA):
        parts = (whole, Part(tp=8, context=True), mixed)
        return [*(mla_case(layer, hidden, part) for part in parts), mla_case(layer, hidden, whole, 7, expanded=True)]
    if isinstance(layer, (kda.KDA, gdn.GDN)):
        return [delta_case(layer, hidden, part, new) for part, new in ((whole, 1), (mixed, 1), (whole, 2 * CHUNK))]
    if isinstance(layer, mlp.MLP):
        return [mlp_case(layer, hidden, part) for part in (whole, mixed)]
    return [moe_case(layer, hidden, part) for part in moe_parts(layer)]


def moe_parts(layer: moe.MoE) -> list[Part]:
    """Splits of a mixture: by expert over instances, inside one TP group by expert and by tensor, and both."""
    parts = [Part(tp=1, dp=8, ep=8), Part(tp=8, ep=8), Part(tp=8, ep=2)]
    if layer.shared_inner:
        parts += [Part(tp=2, dp=4, ep=8), Part(tp=2, dp=4, ep=4)]
    return parts


def ends_of(model: Model) -> list[tuple[str, Case]]:
    """The cases beside the blocks."""
    return [("head", head_case(model, Part(tp=8))), ("pipeline", pipeline_case(model))]
