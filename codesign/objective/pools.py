r"""Attention and experts on different parts: two pools that play ping-pong with micro-batches over a link.

The attention pool keeps caches, attention blocks, embedding, head and drafter; the expert pool keeps the feed-forward
blocks, routed and dense.  In every layer that has one, hidden states go out over the link and come back.  With A and F
the seconds that one micro-batch's pass keeps each pool busy, X those that it is on the link, and m micro-batches in
flight,

.. math:: t = \max(A + F + X,\; m A,\; m F,\; m X_{out},\; m X_{back}), \qquad \text{TPOT} = t/\text{accepted}

(a pipeline whose stages are the pools and the directions of the link).  One micro-batch waits for everything; enough of
them hide the link and the idle pool.  Rows are those of the two halves of the model, timed as everywhere by
`codesign.execution.time_of`; a transfer takes the time of the slower side, whose scale-out lane it is on, and the
sender pays its energy.  The expert pool is an expert bank of its own: what it dispatches among its chips is in F.
Source: MegaScale-Infer (arXiv:2504.02263) and Step-3 (arXiv:2507.19427) describe such pairs.

Left out: pipeline stages inside a pool; layers that take longer than others (the flow is that of their mean); a router
on the attention side that sends each token straight to its experts.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.errors import CodesignError
from codesign.execution import Execution, Timed, time_of
from codesign.lanes import Number, Row
from codesign.layers.mlp import MLP
from codesign.layers.moe import MoE
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.numerics import larger
from codesign.objective.metrics import Load, powered
from codesign.objective.timing import TimedPass, step_of, timed_pass
from codesign.precision import Precision
from codesign.residency import Residency, residency
from codesign.work import accepted_tokens


class Pool(eqx.Module):
    """One part of a pair.

    Attributes:
        machine, execution: its chips and kernels.
        mapping: its degrees; one stage. ``dp`` of the attention pool are instances; the expert pool shares their tokens
            out evenly over its own ``dp``. ``microbatches`` of the attention pool are in flight.
    """

    machine: Machine
    execution: Execution
    mapping: Mapping


class Link(eqx.Module):
    """What lies between the pools.

    Attributes:
        attention_bandwidth, expert_bandwidth: of a chip on either side, per direction [B/s].
        latency: one way, from memory to memory [s].
    """

    attention_bandwidth: Number
    expert_bandwidth: Number
    latency: Number


class Pair(NamedTuple):
    """What a pair of pools serves.

    Attributes:
        tpot_s: seconds per output token and user.
        pass_s: of one micro-batch alone: both pools and the link.
        attention_s, expert_s: that it keeps each pool busy.
        out_s, back_s: that it is on the link.
        exposed_s: of the pace that neither pool computes: the pace less m times the busier one's time.
        attention_busy, expert_busy: share of the time in which each pool works.
        balance: expert chips per attention chip at which both would be busy alike, by their times as they are.
        accepted: tokens per sequence and pass.
        tokens_per_s: of the pair.
        tokens_per_s_per_megawatt, tokens_per_s_per_megawatt_drawn: over the provisioned, and the drawn, power of both.
        attention_board_w, expert_board_w: drawn per chip [W].
        link_bytes_per_token: hidden out and back, over all layers [B].
        link_w: of all chips, spent on the link [W].
        attention_memory, expert_memory: `Residency` of a chip of each.
    """

    tpot_s: Number
    pass_s: Number
    attention_s: Number
    expert_s: Number
    out_s: Number
    back_s: Number
    exposed_s: Number
    attention_busy: Number
    expert_busy: Number
    balance: Number
    accepted: Number
    tokens_per_s: Number
    tokens_per_s_per_megawatt: Number
    tokens_per_s_per_megawatt_drawn: Number
    attention_board_w: Number
    expert_board_w: Number
    link_bytes_per_token: Number
    link_w: Number
    attention_memory: Residency
    expert_memory: Residency


def link_between(attention: Machine, experts: Machine) -> Link:
    """The scale-out lanes of both sides, the longer hop of the two and the later launch."""
    return Link(
        attention.scale_out_bandwidth,
        experts.scale_out_bandwidth,
        jnp.maximum(attention.scale_out_hop, experts.scale_out_hop) + jnp.maximum(attention.launch, experts.launch),
    )


def _keep(model: Model, blocks: tuple[int, ...], name: str) -> Model:
    index = {old: new for new, old in enumerate(blocks)}
    layers = tuple(tuple(tuple(index[b] for b in x if b in index) for x in group) for group in model.layers)
    return replace(model, name=f"{model.name} ({name})", blocks=tuple(model.blocks[b] for b in blocks), layers=layers)


@lru_cache(maxsize=64)
def halves(model: Model) -> tuple[Model, Model]:
    """A model's attention half, with its ends and drafter, and its feed-forward half.

    Raises:
        CodesignError: one of them is empty.
    """
    feed = tuple(i for i, (_, layer) in enumerate(model.blocks) if isinstance(layer, MoE | MLP))
    rest = tuple(i for i in range(len(model.blocks)) if i not in feed)
    if not feed or not rest:
        raise CodesignError(f"{model.name} has nothing to put on a second pool", key="--experts-on")
    experts = replace(_keep(model, feed, "experts"), vocab=0, drafts=None)
    return _keep(model, rest, "attention"), experts


def _transfer(name: str, amount: Number, pool: Pool, bandwidth: Number) -> Timed:
    """A pool's end of a transfer, each chip with an equal share of the bytes."""
    machine = eqx.tree_at(lambda m: m.scale_out_bandwidth, pool.machine, bandwidth)
    return time_of(Row(name, "collective", scale_out=amount / pool.mapping.chips), machine, pool.execution)


def _busy(model: Model, timed: TimedPass) -> tuple[Number, Number]:
    """Exposed seconds and joules of all blocks."""
    counts = model.block_counts()
    seconds = sum(n * x for n, x in zip(counts, timed.per_block, strict=True))
    joules = sum(n * sum(r.energy for r in rows) for n, rows in zip(counts, timed.blocks, strict=True))
    return seconds, joules


def decode_pair(
    model: Model, attention: Pool, experts: Pool, precision: Precision, load: Load, link: Link | None = None
) -> Pair:
    """Decode on a pair of pools.

    Args:
        model: structure (static).
        attention, experts: the pools.
        precision: of all tensors.
        load: ``batch`` sequences per micro-batch of one attention instance.
        link: between them; `link_between` where not given.
    """
    first, second = halves(model)
    a, e = attention.mapping, experts.mapping
    link = link_between(attention.machine, experts.machine) if link is None else link
    m, chips_a, chips_e = a.microbatches, a.chips, e.chips
    here = step_of(attention.machine, precision, a, load)
    moved = eqx.tree_at(lambda x: x.batch, load, load.batch * a.dp / e.dp)
    there = step_of(experts.machine, precision, e, moved)
    timed_a = timed_pass(first, attention.machine, attention.execution, a, here)
    timed_e = timed_pass(second, experts.machine, experts.execution, e, there)
    (seconds_a, joules_a), (seconds_e, joules_e) = _busy(first, timed_a), _busy(second, timed_e)
    seconds_a = seconds_a + sum(r.time for r in timed_a.ends)
    joules_a = joules_a + sum(r.energy for r in timed_a.ends)

    # The link: once out and once back for every layer that feeds forward, in one block or several; each chip of a pool
    # carries an equal share.
    crossings = sum(len(layer) > 0 for group in second.layers for layer in group)
    tokens = here.tokens * a.dp
    times, sent, paid = [], 0.0, []
    for name, way in (("dispatch", "link_out"), ("combine", "link_back")):
        amount = tokens * model.hidden * precision.bytes[name]
        here_end = _transfer(way, amount, attention, link.attention_bandwidth)
        there_end = _transfer(way, amount, experts, link.expert_bandwidth)
        carried = crossings * larger(here_end.time, there_end.time)
        times.append((carried, carried + crossings * link.latency))
        paid.append(crossings * (here_end if way == "link_out" else there_end).energy)
        sent = sent + crossings * amount
    (carried_out, out), (carried_back, back) = times
    alone = seconds_a + seconds_e + out + back
    lanes = (m * seconds_a, m * seconds_e, m * carried_out, m * carried_back)
    pace = alone
    for x in lanes:
        pace = larger(pace, x)

    spent_a, spent_e = m * (joules_a + paid[0]), m * (joules_e + paid[1])
    power_a = powered(attention.machine, pace, spent_a)
    power_e = powered(experts.machine, pace, spent_e)
    slowed = larger(power_a.seconds, power_e.seconds)
    board_a = attention.machine.static_power + spent_a / slowed
    board_e = experts.machine.static_power + spent_e / slowed

    accepted = accepted_tokens(model, load.drafts)
    rate = m * load.batch * a.dp * accepted / slowed
    provisioned = chips_a * attention.machine.provisioned_power + chips_e * experts.machine.provisioned_power
    place_a = attention.machine.provisioned_power - attention.machine.chip_power
    place_e = experts.machine.provisioned_power - experts.machine.chip_power
    drawn = chips_a * (board_a + place_a) + chips_e * (board_e + place_e)
    return Pair(
        tpot_s=slowed / accepted,
        pass_s=alone,
        attention_s=seconds_a,
        expert_s=seconds_e,
        out_s=out,
        back_s=back,
        exposed_s=slowed - m * jnp.maximum(seconds_a, seconds_e),
        attention_busy=m * seconds_a / slowed,
        expert_busy=m * seconds_e / slowed,
        balance=chips_e / chips_a * seconds_e / seconds_a,
        accepted=accepted,
        tokens_per_s=rate,
        tokens_per_s_per_megawatt=rate / provisioned * 1e6,
        tokens_per_s_per_megawatt_drawn=rate / drawn * 1e6,
        attention_board_w=board_a,
        expert_board_w=board_e,
        link_bytes_per_token=sent / (load.batch * a.dp * accepted),
        link_w=m * (chips_a * paid[0] + chips_e * paid[1]) / slowed,
        attention_memory=residency(first, here, a),
        expert_memory=residency(second, there, e),
    )


def room(found: Pair) -> Number:
    """Bytes left on a chip of the fuller pool; negative where it does not hold what it must [B]."""
    pools = (found.attention_memory, found.expert_memory)
    return jnp.minimum(*(m.capacity - m.total for m in pools))
