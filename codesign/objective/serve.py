r"""Aggregated serving in closed loop: decode steps share the chips with the prompts of other requests.

C requests are in flight on an instance; over the ``osl`` steps of one of them each of the others brings one prompt of
n chunks.  A chunk joins a decode step: matrix products, experts and collectives take all tokens together, each
sequence's attention stays its own.  A step that carries a chunk takes x longer, so that

.. math:: \text{TPOT} = t + \frac{C-1}{osl} (n + P - 1)\, x,

the mean :math:`(1-f) t + f (t + x)` with the share :math:`f = (C-1) n/osl` of steps that carry one while
:math:`f \le 1` and :math:`P = 1`; the chunks of a burst delay every micro-batch of a pipeline of P stages by
:math:`(n+P-1) x`, until every micro-batch carries one.  Where more than one short prompt comes per step, they share a
chunk as far as it has room; further chunks have steps to themselves.  Distinct experts are concave in tokens: the pass
of the mean is not the mean of the passes.  The framework adds host time per step and per sequence.  A busy board draws
a share of its limit at least, and a server multiplies the work's energy: both are in the watts, up to the limit, and
not in the time, whose constants were fitted to steps as boards at their limit took them.  TTFT is the way of n mixed
steps through the stages and half a step of waiting.  Watts are all joules of an answer over its time.

Instances that share an expert bank step together and take their prompts in the same steps, one each: of all their
requests but one, an instance's share brings bursts.
Source: shared measurements of closed-loop serving.  Left out: queues before admission, the working set of a chunk,
growth of a prompt's chunks with what stands before them, instances that take prompts in different steps (more bursts,
each shorter).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from codesign.execution import Execution
from codesign.lanes import Number
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.mapping import Mapping, fullest
from codesign.model import Model
from codesign.numerics import larger
from codesign.objective.metrics import Load, Metrics, powered, rates
from codesign.objective.prefill import chunks_of
from codesign.objective.timing import TimedPass, step_of, timed_pass
from codesign.precision import Precision
from codesign.residency import residency
from codesign.work import accepted_tokens

#: Kernel families in which each sequence works for itself; rows of others say so (`Row.own`).
OWN = ("attention", "state")


class Parts(NamedTuple):
    """A pass by what depends on each sequence's own tokens (attention) and what takes all tokens together.

    Attributes:
        attention, joint: exposed seconds of one run of each block.
        embed, head, handed: seconds of the embedding, of the head and of all hand-offs.
        attention_joules, joint_joules: of all rows, on the mean chips of the stages.
        sent: bytes that a chip sends. peak: largest bytes per second over its rows.
    """

    attention: tuple[Number, ...]
    joint: tuple[Number, ...]
    embed: Number
    head: Number
    handed: Number
    attention_joules: Number
    joint_joules: Number
    sent: Number
    peak: Number


def parts_of(model: Model, timed: TimedPass) -> Parts:
    """Sum the rows of a pass apart: those in which each sequence works for itself and all others."""
    counts = model.block_counts()
    attention, joint = [], []
    own: Number = 0.0
    others: Number = sum(r.energy for r in timed.ends) + timed.hand_off.energy
    sent: Number = 0.0
    peak: Number = 0.0
    for n, rows, hidden in zip(counts, timed.blocks, timed.hidden, strict=True):
        mine = [r.row.family in OWN or r.row.own for r in rows]
        attention.append(sum((r.time for r, a in zip(rows, mine, strict=True) if a), 0.0))
        joint.append(sum(r.time - h for r, a, h in zip(rows, mine, hidden, strict=True) if not a))
        own = own + n * sum((r.energy for r, a in zip(rows, mine, strict=True) if a), 0.0)
        others = others + n * sum(r.energy for r, a in zip(rows, mine, strict=True) if not a)
        for r in rows:
            if r.row.family == "collective":
                amount = r.row.scale_up + r.row.scale_out
                sent = sent + n * amount
                peak = jnp.maximum(peak, amount / jnp.where(r.time > 0, r.time, 1.0))
    ends = timed.embed_s, timed.head_s, timed.hand_off.time
    return Parts(tuple(attention), tuple(joint), *ends, own, others, sent, peak)


def decode_step(machine: Machine, precision: Precision, mapping: Mapping, load: Load) -> Step:
    """The decode step of what is in flight: answers are half written in the mean."""
    behind = load.context + load.new + load.output / 2.0
    here = eqx.tree_at(lambda x: (x.batch, x.context), load, (load.batch * load.framework.decoding, behind))
    return eqx.tree_at(
        lambda s: s.chunks, Step(**{**vars(step_of(machine, precision, mapping, here)), "block": True}), jnp.ones(())
    )


def board_in_server(drawn: Number, static: Number, limit: Number, awake: Number, effort: Number) -> Number:
    r"""Watts of a board: :math:`\min(\max(P_{static}, a P_{limit}) + e (P - P_{static}), P_{limit})`.

    Args:
        drawn: what it would draw by static power and the work's energy alone, P [W].
        static, limit: its static power and power limit [W].
        awake: share of the limit that a busy board draws, a.
        effort: dynamic energy over that of the work alone, e.
    """
    return jnp.minimum(jnp.maximum(static, awake * limit) + effort * (drawn - static), limit)


def mixed(
    model: Model,
    machine: Machine,
    execution: Execution,
    mapping: Mapping,
    step: Step,
    load: Load,
    chunks: Number,
    together: Number,
) -> Parts:
    """Three passes, each field of shape (3,): the decode step, all its tokens with a chunk's, the chunk alone.

    Args:
        chunks: of a prompt.
        together: prompts in a chunk.
    """
    chunk = load.new / chunks
    joined = (step.tokens + together * chunk) / step.batch

    def one(batch: Number, new: Number, cached: Number, drafts: Number, of: Number) -> Parts:
        here = eqx.tree_at(
            lambda s: (s.batch, s.new, s.cached, s.drafts, s.chunks), step, (batch, new, cached, drafts, of)
        )
        return parts_of(model, timed_pass(model, machine, execution, mapping, here))

    def column(*values: Number) -> Number:
        return jnp.stack([jnp.asarray(v, dtype=float) for v in values])

    passes = (
        column(step.batch, step.batch, together),
        column(step.new, joined, chunk),
        column(step.cached, step.cached, load.context),
        column(step.drafts, step.drafts, 0.0),
        column(1.0, 1.0, chunks),
    )
    return jax.lax.map(lambda x: one(*x), passes)


def serve(
    model: Model, machine: Machine, execution: Execution, precision: Precision, mapping: Mapping, load: Load
) -> Metrics:
    """Evaluate closed-loop serving of ``load.batch`` requests in flight per micro-batch of an instance.

    ``load.new`` is the prompt's length (``isl``), behind ``load.context`` cached tokens, ``load.output`` the answer's
    (``osl``); arguments as in `codesign.objective.decode.decode`.
    """
    step = decode_step(machine, precision, mapping, load)
    n, m, counts = chunks_of(mapping, load), mapping.microbatches, model.block_counts()
    in_flight = load.batch * m
    accepted = accepted_tokens(model, load.drafts)  # a pass answers several tokens
    arriving = jnp.maximum(in_flight - 1.0 / mapping.dp, 0.0) / load.output * accepted  # other prompts, per pass
    packed = jnp.clip(arriving / m, 1.0, jnp.maximum(mapping.chunk / load.new, 1.0))
    p = mixed(model, machine, execution, mapping, step, load, n, packed)
    alone = [a[0] + j[0] for a, j in zip(p.attention, p.joint, strict=True)]
    together = [a[0] + a[2] + j[1] for a, j in zip(p.attention, p.joint, strict=True)]
    stage = fullest(mapping, alone, p.embed[0], p.head[0])
    longest = fullest(mapping, together, p.embed[1], p.head[1])
    longer = jnp.maximum(longest - stage, 0.0)
    busy = sum(k * x for k, x in zip(counts, alone, strict=True)) + p.embed[0] + p.head[0]
    burdened = sum(k * x for k, x in zip(counts, together, strict=True)) + p.embed[1] + p.head[1] + p.handed[1]
    host = load.framework.step_overhead + load.framework.sequence_overhead * step.batch

    pace = larger(busy + p.handed[0], m * stage) + host * m
    bursts = arriving / packed
    loaded = jnp.maximum(jnp.maximum(m, mapping.pp), bursts * n)  # every micro-batch carries a chunk
    burst = jnp.minimum(bursts * (n + mapping.pp - 1.0), loaded) * longer
    decoding = p.attention_joules[0] + p.joint_joules[0]
    chunk = p.attention_joules[2] + p.joint_joules[1] - p.joint_joules[0]
    power = powered(machine, pace + burst, (m * decoding + bursts * n * chunk) / mapping.pp)
    tpot = power.seconds / accepted
    # The own prompt: its chunks follow one another through the stages, each with a step of the others.
    prompt = powered(machine, burdened + (n - 1.0) * longest + n * host, n * (decoding + chunk) / mapping.pp)
    ttft = prompt.seconds + pace / 2.0 * power.slowdown
    cycle = ttft + jnp.maximum(load.output - 1.0, 0.0) * tpot
    answers = in_flight * mapping.dp / cycle
    # All that an answer costs, over the time that it takes.
    joules = (m * decoding * load.output / accepted + in_flight * n / packed * chunk) / mapping.pp
    board = board_in_server(
        machine.static_power + joules / cycle,
        machine.static_power,
        machine.power_limit,
        load.framework.awake,
        load.framework.effort,
    )
    return Metrics(
        time_s=tpot,
        tpot_s=tpot,
        ttft_s=ttft,
        pass_s=busy + p.handed[0],
        pace_s=power.seconds,
        accepted=jnp.asarray(accepted, dtype=float),
        context_tokens_per_s=answers * (load.context + load.new + load.output),
        tokens_per_s_per_user=1.0 / tpot,
        throttled=power.throttled,
        slowdown=power.slowdown,
        network_peak=p.peak[0],
        network_mean=p.sent[0] / (busy + p.handed[0]),
        prefill_share=burst / (pace + burst),
        bubble_share=1.0 - m * busy / (mapping.pp * (pace - host * m)),
        memory=residency(model, eqx.tree_at(lambda s: s.batch, step, load.batch), mapping),
        **rates(machine, mapping, answers * load.output, board),
    )
