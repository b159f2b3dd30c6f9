"""The executed cases of a block: which degrees, how many tokens, and what the count says of them.

A case is chosen so that what is counted as an expectation or a mean comes about exactly.  Attention decodes one token
behind a cache, or a few of a prompt one by one, so that no product is masked; a window is full.  A mixture's tokens are
every choice of experts that uniform routing gives the same chance, each once (`codesign.reference.moe.design`): each
expert then has its mean share of routes, each token on average its expected number of ranks, and every chip is the
*mean* chip, whose work is the count's row of the fullest chip times that row's ``share``.  Expert biases are additions,
not products: the mixture is counted without them.
"""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from codesign.layers import compressed, dsa, gqa, mla, mlp, moe, msa
from codesign.layers.recurrent import CHUNK
from codesign.model import Model
from codesign.reference.case import (
    BATCH,
    CONTEXT,
    Case,
    case_of,
    counted,
    in_ranges,
    random_numbers,
    step_of,
)
from codesign.reference.ends import Embedding, Head, Pipeline
from codesign.reference.gqa import GQA
from codesign.reference.mla import MLA
from codesign.reference.mlp import MLP
from codesign.reference.moe import MoE, design, routed_tokens
from codesign.reference.parts import Draw, P, Part
from codesign.reference.sparse_cases import compressed_case, dsa_case, msa_case
from codesign.reference.state_cases import KINDS as STATE_KINDS
from codesign.reference.state_cases import state_case
from codesign.work import pass_rows


def gqa_case(layer: gqa.GQA, hidden: int, part: Part, new: int = 1) -> Case:
    """The last ``new`` tokens up to `CONTEXT`; decode of one, a prompt's block of more."""
    cached, batch = CONTEXT - new, BATCH * part.dp
    module = GQA(layer, hidden, Draw(0), cached=cached)
    # Split by context, what a window no longer sees is not kept.
    kept = min(cached, layer.window - 1) if part.context and layer.window else cached
    widths = ((2, layer.key_width), (3, layer.value_width))
    cache = tuple(random_numbers(seed, batch, layer.kv_heads, kept, width) for seed, width in widths)
    if part.context:
        given = tuple(in_ranges(c, 2, new, part) for c in cache)
    else:
        given = tuple(jnp.repeat(c, module.copies(part), axis=1) for c in cache)
    specs = (module.cache_spec(part),) * 2
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1)
    x = random_numbers(1, batch, new, hidden)
    return case_of(module, layer, hidden, part, step, (x, given), (P("dp"), specs), state_specs=specs, alone=(x, cache))


def mla_case(layer: mla.MLA, hidden: int, part: Part, new: int = 1, *, expanded: bool = False) -> Case:
    """The same for latent attention; ``expanded`` is a prompt behind one token, in that form.

    (One product of one query with one key is no product to the compiler, hence the one token.)
    """
    cached, batch = 1 if expanded else CONTEXT - new, BATCH * part.dp
    module = MLA(layer, hidden, Draw(0), cached=cached, expanded=expanded)
    cache = random_numbers(2, batch, cached, layer.kv_rank + layer.rope)
    given = in_ranges(cache, 1, new, part) if part.context else cache
    specs = module.cache_spec(part)
    step = step_of(part, batch=BATCH, new=new, cached=cached, block=new > 1, form=int(expanded))
    x = random_numbers(1, batch, new, hidden)
    return case_of(module, layer, hidden, part, step, (x, given), (P("dp"), specs), state_specs=specs, alone=(x, cache))


def mlp_case(layer: mlp.MLP, hidden: int, part: Part) -> Case:
    """A batch of tokens."""
    module = MLP(layer, hidden, Draw(0))
    return case_of(
        module,
        layer,
        hidden,
        part,
        step_of(part, batch=BATCH),
        (random_numbers(1, BATCH * part.dp, hidden),),
        (P("dp"),),
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
    return case_of(module, layer, hidden, part, step, (tokens,), (P("dp"),), whole=full)


def embedding_case(model: Model, part: Part) -> Case:
    """Embedding, every chip with a share of the words."""
    step = step_of(part, batch=BATCH)
    module = Embedding(model.hidden, model.vocab, Draw(0))
    rows = pass_rows(model, step, 1.0).embed
    words = np.random.default_rng(1).integers(0, model.vocab, BATCH * part.dp)
    return case_of(module, None, model.hidden, part, step, (jnp.asarray(words, jnp.int32),), (P("dp"),), rows=rows)


def head_case(model: Model, part: Part) -> Case:
    """Output head and greedy sampling."""
    step = step_of(part, batch=BATCH)
    module = Head(model.hidden, model.vocab, Draw(0))
    rows = pass_rows(model, step, 1.0).head
    inputs = (random_numbers(1, BATCH * part.dp, model.hidden),)
    return case_of(module, None, model.hidden, part, step, inputs, (P("dp"),), rows=rows)


def pipeline_case(model: Model, stages: int = 4, tp: int = 2) -> Case:
    """Feed-forward stages with the hand-offs of one pass; every chip runs all stages, so many times one's rows."""
    layer = mlp.MLP(inner=4 * model.hidden)
    part = Part(tp=tp, dp=stages)
    step = step_of(Part(tp=tp), batch=BATCH)
    module = Pipeline(layer, model.hidden, stages, round(model.handed), Draw(0))
    times = {"tensor": stages, "scale_up": stages}
    each = counted(layer, step, model.hidden)
    rows = tuple(row._replace(**{lane: getattr(row, lane) * n for lane, n in times.items()}) for row in each)
    x = random_numbers(1, BATCH, round(model.handed), model.hidden)
    hand_off = pass_rows(model, step, float(stages)).hand_off
    found = case_of(module, layer, model.hidden, part, step, (x,), (P(),), rows=(*rows, hand_off))
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
    if isinstance(layer, STATE_KINDS):
        return [state_case(layer, hidden, part, new) for part, new in ((whole, 1), (mixed, 1), (whole, 2 * CHUNK))]
    if isinstance(layer, dsa.DSA):
        cases = [dsa_case(layer, hidden, part) for part in (whole, Part(tp=8, context=True), mixed)]
        if layer.shared_index:
            return cases
        several, prompt = (
            dsa_case(layer, hidden, whole, 4),
            dsa_case(layer, hidden, whole, layer.top_k + 3, expanded=True),
        )
        return [*cases, several, prompt]
    if isinstance(layer, msa.MSA):
        parts = (whole, Part(tp=8, context=True), mixed)
        return [*(msa_case(layer, hidden, part) for part in parts), msa_case(layer, hidden, whole, layer.block)]
    if isinstance(layer, compressed.Compressed):
        return [compressed_case(layer, hidden, part) for part in (whole, Part(tp=8, context=True), mixed)]
    if isinstance(layer, mlp.MLP):
        return [mlp_case(layer, hidden, part) for part in (whole, mixed)]
    return [moe_case(layer, hidden, part) for part in moe_parts()]


def moe_parts() -> list[Part]:
    """Splits of a mixture: by expert over instances, inside one TP group by expert and by tensor, and both."""
    apart = [Part(tp=1, dp=8, ep=8), Part(tp=2, dp=4, ep=8), Part(tp=2, dp=4, ep=4)]
    return [*apart, Part(tp=8, ep=8), Part(tp=8, ep=2)]


def ends_of(model: Model) -> list[tuple[str, Case]]:
    """The cases beside the blocks."""
    whole = Part(tp=8)
    found = [("embedding", embedding_case(model, whole)), ("head", head_case(model, whole))]
    return [*found, ("pipeline", pipeline_case(model))]
