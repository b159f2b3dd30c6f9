"""What must lie in a chip's fast memory: weights, KV, state, transfer buffer, working set, slack.

Each is taken on the fullest stage.  A pipeline's stages keep fewer layers but as many micro-batches in flight as
there are stages, so active KV per chip does not shrink with depth.  Experts are counted whole: the fullest of EP ranks
keeps ``ceil(E / EP)`` of them, ``ceil((E + c) / EP)`` with c redundant copies.
"""

from typing import NamedTuple

import jax.numpy as jnp

from codesign.lanes import Number
from codesign.layers.base import Indexed, Step, Weights
from codesign.layers.moe import MoE
from codesign.mapping import Mapping, fullest
from codesign.model import Model

#: Share of the capacity kept free for the runtime, fragmentation and kernels' scratch (assumption; serving frameworks
#: leave 5 to 15 % by default).
SLACK_SHARE = 0.05


class Residency(NamedTuple):
    """Bytes per chip on the fullest stage.

    Attributes:
        weights, kv, state, buffer, working, slack: the parts [B].
        capacity: of the chip [B].
        fixed: what does not grow with the batch [B].
        per_sequence: growth with the batch of one micro-batch [B per sequence].
    """

    weights: Number
    kv: Number
    state: Number
    buffer: Number
    working: Number
    slack: Number
    capacity: Number
    fixed: Number
    per_sequence: Number

    @property
    def total(self) -> Number:
        """All parts together [B]."""
        return self.weights + self.kv + self.state + self.buffer + self.working + self.slack


def _here(w: Weights, step: Step) -> Number:
    """Share of a weight class that one chip keeps."""
    if w.split == "tp":
        return 1.0 / step.tp
    if w.split == "kv":
        return 1.0 / jnp.minimum(step.tp, float(w.limit))
    if w.split == "experts":
        if step.routing is not None:
            slots = (w.limit + step.routing.copies) / step.ep
            whole = jnp.floor(slots + 1e-9)
            return (whole + jnp.minimum((slots - whole) * step.ep, 1.0)) / w.limit / step.moe_tp
        return jnp.ceil(w.limit / step.ep - 1e-9) / w.limit / step.moe_tp
    return 1.0


def residency(model: Model, step: Step, mapping: Mapping) -> Residency:
    """Bytes in the fast memory of the fullest chip.

    KV and state are those of ``batch`` sequences in each of ``microbatches``; with drafts, ``1 + d`` states stand per
    sequence.  The buffer holds one arriving sequence per instance while the others run; the working set is
    activations, logits and the landing zone of the expert exchange (twice the mean, for the fullest rank).
    """
    p = step.precision
    weights, kv, state = [], [], []
    for _, layer in model.blocks:
        weights.append(sum(w.count * p.bytes[w.kind] * _here(w, step) for w in layer.weights(model.hidden)))
        share = layer.cache_share(step)
        growing = layer.cache_elements() * (step.cached + step.whole)
        window = layer.window_elements()
        index: Number = 0.0
        if isinstance(layer, Indexed):
            keys = layer.index_elements() * (step.cached + step.whole)
            index = keys * layer.index_share(step) * p.bytes["index"]
        kept = layer.cache_elements() or layer.window_elements()
        kv.append((growing + window) * share * p.bytes["kv"] + index if kept else index)
        recurrent, conv = layer.state_elements()
        held = recurrent * p.bytes["state"] + conv * p.bytes["conv_state"]
        state.append(held * share * (1.0 + step.drafts) if recurrent or conv else 0.0)
    table = model.vocab * model.hidden / step.tp
    first, last = table * p.bytes["embedding"], table * p.bytes["head"]
    if model.tied:  # stored once where both ends share a chip
        last = last * jnp.minimum(mapping.pp - 1.0, 1.0)
    if model.drafts is not None:
        last = last + jnp.where(step.drafts > 0.0, model.drafts.parameters / step.tp * p.bytes["drafter"], 0.0)

    moe = [layer for _, layer in model.blocks if isinstance(layer, MoE)]
    act = p.bytes["activation"]
    per_token = 8.0 * model.hidden * act
    if moe:
        landing = 2.0 * step.dp * moe[0].top_k / step.ep * moe[0].expert_width(model.hidden)
        per_token = per_token + 2.0 * landing * act
    per_token = per_token * step.new + 2.0 * model.vocab / step.tp * act * (1.0 + step.drafts)

    weight_bytes = fullest(mapping, weights, first, last)
    kv_one = fullest(mapping, kv, 0.0, 0.0)
    state_one = fullest(mapping, state, 0.0, 0.0)
    in_flight = step.batch * mapping.microbatches
    capacity = step.machine.memory_capacity
    buffer, slack = kv_one + state_one, SLACK_SHARE * capacity
    return Residency(
        weights=weight_bytes,
        kv=kv_one * in_flight,
        state=state_one * in_flight,
        buffer=buffer,
        working=per_token * step.batch,
        slack=slack,
        capacity=capacity,
        fixed=weight_bytes + buffer + slack,
        per_sequence=(kv_one + state_one) * mapping.microbatches + per_token,
    )


def batch_that_fits(found: Residency) -> Number:
    """The real batch at which memory is full: ``(capacity - fixed) / per_sequence``; below 1 nothing fits."""
    return (found.capacity - found.fixed) / found.per_sequence
