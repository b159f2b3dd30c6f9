"""The table of a pass: which rows each block of a model brings, and those of its ends.

Blocks are a model's distinct layer kinds; a pass runs each as often as the model has it.  Beside the blocks stand the
embedding (on the first stage), the head (output projection and sampling, on the last), the drafter, and the hand-offs
between stages.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from codesign.fabric import all_gather, hand_off
from codesign.lanes import Number, Row
from codesign.layers.base import Step, gemm
from codesign.layers.moe import MoE
from codesign.model import Model


class Pass(NamedTuple):
    """Rows of a pass, per layer.

    Attributes:
        blocks: for each block of the model, its rows in order, per chunk of a prompt.
        embed: the row of the embedding, once for all chunks, on the first stage.
        head: rows of output projection, sampling and drafter, once for all chunks, on the last stage.
        hand_off: the row of all hand-offs between stages, per chunk.
    """

    blocks: tuple[tuple[Row, ...], ...]
    embed: Row
    head: tuple[Row, ...]
    hand_off: Row


def _norm(step: Step, hidden: int, shared_out: Number, streams: int = 1) -> Row:
    """Residual addition and RMS norm around a block: two reads and two writes of the residual stream.

    Where the residual is n streams (hyper-connections), all of them are read and written, the block's input is mixed
    out of them and its output into them: ``n (n + 2)`` mixing weights per token from as many rows of ``n h``
    parameters, which are read once; ``2 n (n + 2)`` operations per element.  Source: arXiv:2512.24880.
    """
    t = step.tokens / shared_out
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
    blocks = tuple(
        (
            _norm(step, hidden, step.shared_out if isinstance(layer, MoE) else 1.0, model.streams),
            *layer.rows(step, hidden),
        )
        for _, layer in model.blocks
    )
    t, vocab = step.answered, model.vocab / step.tp
    head = gemm("head", vocab * hidden, t, hidden, vocab, "head", step)
    sample = Row(
        "sample",
        "elementwise",
        memory=2.0 * t * vocab * p.bytes["activation"],
        vector=t * vocab * (step.machine.exponential_ops + 4.0),
        launches=2.0,
    )
    embed = Row(
        "embed",
        "elementwise",
        memory=step.batch * step.whole * hidden * (p.bytes["embedding"] + p.bytes["activation"]),
        launches=step.chunks,
    )
    gather = all_gather("sample_gather", 8.0 * t * step.tp, step.tp, step.machine)
    return Pass(
        blocks=blocks,
        embed=embed,
        head=(head, sample, gather, *drafter_rows(model, step)),
        hand_off=hand_off(
            step.tokens * model.streams * hidden * p.bytes["activation"], pp, step.tp * step.dp, step.machine
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
