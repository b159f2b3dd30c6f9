"""Decode of one batch on one mapping: time, pipeline, power, memory and the metrics of `codesign evaluate`.

TPOT is ``max(sum_s (t_s + h), m max_s t_s) / accepted`` (physics: pipeline); a chip that would draw more than its limit
slows down until it does not (physics: power).  All metrics derive from the rows of `codesign.work`, timed once by
`codesign.execution.time_of`.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.execution import Execution, Timed, software_setup, time_rows
from codesign.lanes import Number
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.mapping import Mapping, fullest
from codesign.model import Model
from codesign.precision import Precision
from codesign.residency import Residency, residency
from codesign.work import accepted_tokens, pass_rows

#: Rows whose time shared experts may hide behind.
ALL_TO_ALL = ("dispatch", "combine")


class Load(eqx.Module):
    """What is served: sequences, their context, drafts and the law of routing.

    Attributes:
        batch: sequences per micro-batch of one instance.
        context: cached tokens per sequence.
        drafts: drafted tokens per sequence and pass.
        skew: exponent of expert popularity, 0 for uniform.
        output: tokens of one answer, for energy per query.
    """

    batch: Number
    context: Number
    drafts: Number
    skew: Number
    output: Number


class TimedPass(NamedTuple):
    """All rows of a pass with their times, the time hidden per row, and how often each runs."""

    blocks: tuple[tuple[Timed, ...], ...]
    hidden: tuple[tuple[Number, ...], ...]
    head: tuple[Timed, ...]
    hand_off: Timed


class Decode(NamedTuple):
    """Metrics of a decode pass. Rates are of the whole mapping, watts per chip.

    Attributes:
        tpot_s: seconds per output token and user.
        pass_s: seconds of one pass through all stages.
        pace_s: seconds between two passes of one micro-batch, after any slowing.
        accepted: tokens accepted per sequence and pass.
        tokens_per_s, tokens_per_s_per_chip, tokens_per_s_per_user.
        tokens_per_s_per_megawatt: on provisioned power.
        tokens_per_s_per_megawatt_drawn: on drawn all-in power.
        energy_per_token_j: drawn all-in energy.
        board_power_w, all_in_power_w, provisioned_power_w.
        throttled: 1 where the power limit slowed the pass.
        slowdown: pace over the pace without a power limit.
        network_peak: largest bytes/time over rows [B/s]. network_mean: bytes/pass [B/s].
        dollars_per_million_tokens.
        memory: `Residency`.
    """

    tpot_s: Number
    pass_s: Number
    pace_s: Number
    accepted: Number
    tokens_per_s: Number
    tokens_per_s_per_chip: Number
    tokens_per_s_per_user: Number
    tokens_per_s_per_megawatt: Number
    tokens_per_s_per_megawatt_drawn: Number
    energy_per_token_j: Number
    board_power_w: Number
    all_in_power_w: Number
    provisioned_power_w: Number
    throttled: Number
    slowdown: Number
    network_peak: Number
    network_mean: Number
    dollars_per_million_tokens: Number
    memory: Residency


def step_of(machine: Machine, precision: Precision, mapping: Mapping, load: Load) -> Step:
    """The pass as a layer sees it."""
    return Step(
        batch=load.batch,
        new=1.0 + load.drafts,
        cached=load.context,
        tp=mapping.tp,
        dp=mapping.dp,
        ep=mapping.ep,
        context_split=mapping.context_split,
        skew=load.skew,
        machine=machine,
        precision=precision,
    )


def _hidden(rows: tuple[Timed, ...], execution: Execution) -> tuple[Number, ...]:
    """Seconds of each row that pass behind others of its block.

    Shared experts run beside the all-to-all; two-batch overlap then hides a share of what is left of the all-to-all
    behind the rest of the block, which belongs to another micro-batch.
    """
    exchange = sum(r.time for r in rows if r.row.name in ALL_TO_ALL)
    hidden: list[Number] = [0.0] * len(rows)
    if not any(r.row.name in ALL_TO_ALL for r in rows):
        return tuple(hidden)
    left = exchange
    for i, r in enumerate(rows):
        if r.row.beside == "all_to_all":
            hidden[i] = jnp.minimum(r.time, left)
            left = left - hidden[i]
    others = sum(r.time for r in rows if r.row.name not in ALL_TO_ALL) - sum(hidden)
    covered = execution.overlap * jnp.minimum(left, others) / jnp.where(exchange > 0, exchange, 1.0)
    for i, r in enumerate(rows):
        if r.row.name in ALL_TO_ALL:
            hidden[i] = covered * r.time
    return tuple(hidden)


def timed_pass(
    model: Model, machine: Machine, execution: Execution, precision: Precision, mapping: Mapping, load: Load
) -> TimedPass:
    """Count the rows of a pass and time each, once."""
    machine = software_setup(machine, execution)
    rows = pass_rows(model, step_of(machine, precision, mapping, load), mapping.pp, load.drafts)
    sections = (*rows.blocks, rows.head, (rows.hand_off,))
    times = iter(time_rows([row for section in sections for row in section], machine, execution))
    *blocks, head, hand_off = (tuple(next(times) for _ in section) for section in sections)
    return TimedPass(
        blocks=tuple(blocks),
        hidden=tuple(_hidden(block, execution) for block in blocks),
        head=head,
        hand_off=hand_off[0],
    )


def decode(
    model: Model, machine: Machine, execution: Execution, precision: Precision, mapping: Mapping, load: Load
) -> Decode:
    """Evaluate one decode pass. All arguments but ``model`` are pytrees of scalars (``mapping.stages`` is 2-D).

    Returns:
        `Decode`, every field a scalar.
    """
    timed = timed_pass(model, machine, execution, precision, mapping, load)
    step = step_of(machine, precision, mapping, load)
    counts = model.block_counts()

    per_block = [
        sum(r.time for r in block) - sum(hidden) for block, hidden in zip(timed.blocks, timed.hidden, strict=True)
    ]
    head = sum(r.time for r in timed.head)
    stage = fullest(mapping, per_block, 0.0, head)
    pass_s = sum(n * x for n, x in zip(counts, per_block, strict=True)) + head + timed.hand_off.time
    pace = jnp.maximum(pass_s, mapping.microbatches * stage)

    # Energy of the rows of all stages for one micro-batch, on the mean chip of each stage.
    joules = sum(n * sum(r.energy for r in block) for n, block in zip(counts, timed.blocks, strict=True))
    joules = joules + sum(r.energy for r in timed.head) + timed.hand_off.energy
    per_chip = joules * mapping.microbatches / mapping.pp
    slowest = per_chip / (machine.power_limit - machine.static_power)
    slowed = jnp.maximum(pace, slowest)
    board = machine.static_power + per_chip / slowed

    accepted = accepted_tokens(model, load.drafts)
    tpot = slowed / accepted
    tokens = mapping.microbatches * load.batch * mapping.dp / tpot
    per_chip_tokens = tokens / mapping.chips
    all_in = board + (machine.provisioned_power - machine.chip_power)
    rows = [(n, r) for n, block in zip(counts, timed.blocks, strict=True) for r in block]
    rows += [(1, r) for r in timed.head] + [(1, timed.hand_off)]
    sent = [(n, r.row.scale_up + r.row.scale_out, r.time) for n, r in rows if r.row.family == "collective"]
    peak, total = 0.0, 0.0
    for n, b, t in sent:
        rate = b / jnp.where(t > 0, t, 1.0)
        peak = jnp.maximum(peak, rate)
        total = total + n * b
    return Decode(
        tpot_s=tpot,
        pass_s=pass_s,
        pace_s=slowed,
        accepted=jnp.asarray(accepted, dtype=float),
        tokens_per_s=tokens,
        tokens_per_s_per_chip=per_chip_tokens,
        tokens_per_s_per_user=1.0 / tpot,
        tokens_per_s_per_megawatt=per_chip_tokens / machine.provisioned_power * 1e6,
        tokens_per_s_per_megawatt_drawn=per_chip_tokens / all_in * 1e6,
        energy_per_token_j=all_in / per_chip_tokens,
        board_power_w=board,
        all_in_power_w=all_in,
        provisioned_power_w=machine.provisioned_power,
        throttled=jnp.where(slowest > pace, 1.0, 0.0),
        slowdown=slowed / pace,
        network_peak=peak,
        network_mean=total / pass_s,
        dollars_per_million_tokens=machine.dollars_per_hour / 3600.0 / per_chip_tokens * 1e6,
        memory=residency(model, step, mapping),
    )
