"""A pass on a machine: its rows counted and timed once, what hides behind what, and what the whole of it takes."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.execution import Execution, Timed, software_setup, time_rows
from codesign.lanes import Number
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.mapping import Mapping, fullest
from codesign.model import Model
from codesign.objective.metrics import Load
from codesign.precision import Precision
from codesign.work import pass_rows

#: Rows whose time shared experts may hide behind.
ALL_TO_ALL = ("dispatch", "combine")


class TimedPass(NamedTuple):
    """All rows of a pass with their times, the time hidden per row, and how often each runs.

    Attributes:
        blocks, hidden: per block of the model, one chunk of a prompt.
        embed: rows once per pass, on the first stage.
        head: once per pass, on the last stage.
        hand_off: all hand-offs of one chunk.
    """

    blocks: tuple[tuple[Timed, ...], ...]
    hidden: tuple[tuple[Number, ...], ...]
    embed: tuple[Timed, ...]
    head: tuple[Timed, ...]
    hand_off: Timed

    @property
    def per_block(self) -> list[Number]:
        """Exposed seconds of one run of each block."""
        return [sum(r.time for r in rows) - sum(hidden) for rows, hidden in zip(self.blocks, self.hidden, strict=True)]

    @property
    def embed_s(self) -> Number:
        """Seconds of the embedding."""
        return sum(r.time for r in self.embed)

    @property
    def head_s(self) -> Number:
        """Seconds of the head."""
        return sum(r.time for r in self.head)

    @property
    def ends(self) -> tuple[Timed, ...]:
        """Rows of both ends."""
        return (*self.embed, *self.head)


class Stack(NamedTuple):
    """What a pass of one micro-batch takes, of one chunk where a prompt has several.

    Attributes:
        busy: in all stages [s].
        handed: hand-offs between them [s].
        stage: in the fullest stage [s].
        joules: dynamic energy of all rows on the mean chips of the stages [J].
        sent: bytes that a chip sends [B].
        peak: largest bytes per second over its rows [B/s].
    """

    busy: Number
    handed: Number
    stage: Number
    joules: Number
    sent: Number
    peak: Number

    @property
    def total(self) -> Number:
        """Through all stages, hand-offs included [s]."""
        return self.busy + self.handed


def step_of(machine: Machine, precision: Precision, mapping: Mapping, load: Load) -> Step:
    """A decode pass as a layer sees it."""
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
        drafts=load.drafts,
        routing=load.routing,
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


def _either(second: Number, one: Any, other: Any) -> Any:
    """A row, or a part of it: ``other`` where ``second``, else ``one``; what both have alike stays what it is."""
    if one is other or isinstance(one, str | bool):
        return one
    if isinstance(one, tuple):
        parts = [_either(second, a, b) for a, b in zip(one, other, strict=True)]
        return type(one)(*parts) if hasattr(one, "_fields") else tuple(parts)
    if isinstance(one, float) and isinstance(other, float) and one == other:
        return one
    return jnp.where(second, other, one)


def _quicker(one: tuple[Timed, ...], other: tuple[Timed, ...]) -> tuple[Timed, ...]:
    """The form of a block that takes less time, the first where both take the same; what they share is not asked."""
    if not other:
        return one
    differ = [(a, b) for a, b in zip(one, other, strict=True) if a is not b]
    return _either(sum(b.time for _, b in differ) < sum(a.time for a, _ in differ), one, other)


def timed_pass(model: Model, machine: Machine, execution: Execution, mapping: Mapping, step: Step) -> TimedPass:
    """Count the rows of a pass and time each, once; a block that has two forms takes the quicker."""
    machine = software_setup(machine, execution)
    rows = pass_rows(model, eqx.tree_at(lambda s: s.machine, step, machine), mapping.pp)
    sections = (*rows.blocks, *rows.others, rows.embed, rows.head, (rows.hand_off,))
    each = {id(row): row for section in sections for row in section}
    times = dict(zip(each, time_rows(list(each.values()), machine, execution), strict=True))
    *told, embed, head, (hand_off,) = (tuple(times[id(row)] for row in section) for section in sections)
    count = len(rows.blocks)
    blocks = tuple(_quicker(one, other) for one, other in zip(told[:count], told[count:], strict=True))
    return TimedPass(
        blocks=blocks,
        hidden=tuple(_hidden(block, execution) for block in blocks),
        embed=embed,
        head=head,
        hand_off=hand_off,
    )


def stacked(model: Model, mapping: Mapping, timed: TimedPass, heads: Number = 1.0) -> Stack:
    """Sum a pass over its blocks, its ends and its hand-offs.

    Args:
        model: how often each block runs.
        mapping: stages.
        timed: the rows.
        heads: share of the ends that falls to this chunk.
    """
    counts = model.block_counts()
    per_block, whole = timed.per_block, isinstance(heads, float) and heads == 1.0
    first, last = (x if whole else x * heads for x in (timed.embed_s, timed.head_s))
    # Energy of the rows of all stages for one micro-batch, on the mean chip of each stage.
    joules = sum(n * sum(r.energy for r in block) for n, block in zip(counts, timed.blocks, strict=True))
    ends = sum(r.energy for r in timed.ends)
    rows = [(n, r) for n, block in zip(counts, timed.blocks, strict=True) for r in block]
    rows += [(1, r) for r in timed.ends] + [(1, timed.hand_off)]
    peak: Number = 0.0
    sent: Number = 0.0
    for n, r in rows:
        if r.row.family == "collective":
            amount = r.row.scale_up + r.row.scale_out
            peak = jnp.maximum(peak, amount / jnp.where(r.time > 0, r.time, 1.0))
            sent = sent + n * amount
    return Stack(
        busy=sum(n * x for n, x in zip(counts, per_block, strict=True)) + first + last,
        handed=timed.hand_off.time,
        stage=fullest(mapping, per_block, first, last),
        joules=joules + (ends if whole else ends * heads) + timed.hand_off.energy,
        sent=sent,
        peak=peak,
    )
