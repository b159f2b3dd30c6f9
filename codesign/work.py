"""The table of a pass: which rows each block of a model brings, and those of its ends.

Blocks are a model's distinct layer kinds; a pass runs each as often as the model has it.  Beside the blocks stand the
embedding (on the first stage, its table split by words over TP), the head (output projection and sampling, on the
last), the drafter, and the hand-offs between stages.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from codesign.fabric import all_gather, all_reduce, hand_off
from codesign.lanes import Number, Row
from codesign.layers.base import Layer, Step, formed, gemm
from codesign.layers.moe import MoE
from codesign.model import Model


class Pass(NamedTuple):
    """Rows of a pass, per layer.

    Attributes:
        blocks: for each block of the model, its rows in order, per chunk of a prompt.
        others: for each block, its rows in its other form, of which most are those of ``blocks``; none where it has
            only one.
        embed: rows of the embedding, once for all chunks, on the first stage.
        head: rows of output projection, sampling and drafter, once for all chunks, on the last stage.
        hand_off: the row of all hand-offs between stages, per chunk.
    """

    blocks: tuple[tuple[Row, ...], ...]
    others: tuple[tuple[Row, ...], ...]
    embed: tuple[Row, ...]
    head: tuple[Row, ...]
    hand_off: Row


def _norm(model: Model, step: Step, shared_out: Number) -> Row:
    """Residual addition and RMS norm around a block: two reads and two writes of the residual stream.

    Where the residual is n streams (hyper-connections), all of them are read and written, the block's input is mixed
    out of them and its output into them: ``n (n + 2)`` mixing weights per token from as many rows of ``n h``
    parameters, which are read once; ``2 n (n + 2)`` operations per element.  Source: arXiv:2512.24880.

    Under attention residuals the input is a softmax over n sums of completed runs of layers and the sum of the run at
    hand.  As its publisher serves it (two phases, arXiv:2603.15031), the s blocks of a run (two a layer) read the
    completed sums once, in one kernel that writes each block's share of them: ``n/s + 1`` more reads and writes of the
    stream, and one more read where the block merges its share with the sum at hand.  Per element ``4 n`` operations for
    scores and sums, ``2 n/s`` for the norms of the sources, 8 to norm, score and merge the sum at hand.  Left out: the
    last mix, before the head.
    """
    t, hidden, streams = step.tokens / shared_out, model.hidden, model.streams
    if model.residual_run:
        n, s = model.residual_sources, 2 * model.residual_run
        return Row(
            "norm",
            "elementwise",
            memory=(6.0 + n / s) * t * hidden * step.precision.bytes["activation"],
            vector=(14.0 + 4.0 * n + 2.0 * n / s) * t * hidden,
            launches=1.0 + 1.0 / s,
        )
    if streams > 1:
        mixes = streams * (streams + 2)
        weights = mixes * streams * hidden
        return Row(
            "norm",
            "elementwise",
            memory=(2.0 * streams + 2.0) * t * hidden * step.precision.bytes["activation"]
            + weights * step.precision.bytes["attention"],
            tensor=2.0 * t * weights,
            dtype=0.0,
            rows=t,
            vector=(6.0 + 2.0 * mixes) * t * hidden,
            launches=2.0,
        )
    return Row(
        "norm",
        "elementwise",
        memory=4.0 * t * hidden * step.precision.bytes["activation"],
        vector=6.0 * t * hidden,
        launches=1.0,
    )


def drafter_rows(model: Model, step: Step) -> tuple[Row, ...]:
    """The drafter's own passes, each reading its weights and the model's head once.

    A chain runs once per draft with ``B`` rows, a block drafter once for all drafts with ``B d`` rows.  Its cache is
    left out (a few layers against the model's dozens).
    """
    if model.drafts is None or step.block:
        return ()
    d, drafts = model.drafts, step.drafts
    passes = d.passes(drafts)
    rows = step.batch * drafts / jnp.maximum(passes, 1.0)
    one = gemm(
        "drafter",
        d.active_parameters / step.tp,
        rows,
        model.hidden,
        model.hidden,
        "drafter",
        step,
        launches=6.0 * d.layers,
    )
    head = gemm("head", model.vocab * model.hidden / step.tp, rows, model.hidden, model.vocab / step.tp, "head", step)
    return (
        one._replace(
            memory=(one.memory + head.memory) * passes,
            tensor=(one.tensor + head.tensor) * passes,
            rows=jnp.maximum(rows, 1e-3),
            launches=(one.launches + head.launches) * passes,
        ),
    )


def pass_rows(model: Model, step: Step, pp: Number) -> Pass:
    """Count the work of one pass of one micro-batch.

    Args:
        model: the structure (static).
        step: batch, lengths, degrees, machine and precision.
        pp: pipeline stages.
    """
    hidden, p = model.hidden, step.precision

    def block(layer: Layer) -> tuple[Row, ...]:
        norm = _norm(model, step, step.shared_out if isinstance(layer, MoE) else 1.0)
        return norm, *layer.rows(step, hidden)

    def other(layer: Layer, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        names = formed(layer, step)
        if not names:
            return ()
        found = {row.name: row for row in layer.rows(replace(step, form=1), hidden) if row.name in names}
        return tuple(found.get(row.name, row) for row in rows)

    blocks = tuple(block(layer) for _, layer in model.blocks)
    t, vocab = step.answered, model.vocab / step.tp
    head = gemm("head", vocab * hidden, t, hidden, vocab, "head", step)
    sample = Row(
        "sample",
        "elementwise",
        memory=2.0 * t * vocab * p.bytes["activation"],
        vector=t * vocab * (step.machine.exponential_ops + 4.0),
        launches=2.0,
    )
    entering = step.batch * step.whole * hidden
    embed = Row(
        "embed",
        "elementwise",
        memory=entering * (p.bytes["embedding"] + p.bytes["activation"]),
        launches=step.chunks,
    )
    together = all_reduce("embed_reduce", entering * p.bytes["activation"], step.tp, step.machine)
    gather = all_gather("sample_gather", 8.0 * t * step.tp, step.tp, step.machine)
    return Pass(
        blocks=blocks,
        others=tuple(other(layer, rows) for (_, layer), rows in zip(model.blocks, blocks, strict=True)),
        embed=(embed, together._replace(latency=together.latency * step.chunks)),
        head=(head, sample, gather, *drafter_rows(model, step)),
        hand_off=hand_off(
            step.tokens * model.handed * hidden * p.bytes["activation"], pp, step.tp * step.dp, step.machine
        ),
    )


def accepted_tokens(model: Model, drafts: Number) -> Number:
    """Accepted tokens per sequence and pass, linear between the whole numbers of the model's table.

    ``1 + sum_i g_i clip(d - i, 0, 1)`` with ``g_i`` the gain of the i-th draft, made non-negative by the table itself.
    """
    if model.drafts is None:
        return 1.0
    table = np.asarray((1.0, *model.drafts.accepted_length))
    gains = np.diff(table)
    return 1.0 + jnp.sum(gains * jnp.clip(drafts - np.arange(len(gains)), 0.0, 1.0))
