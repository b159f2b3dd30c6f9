r"""Prefill and midfill: prompts of new tokens behind a cached prefix, in chunks, through a pipeline.

A prompt of N new tokens comes in :math:`n = \lceil N/\text{chunk} \rceil` equal chunks.  Its work is n times that of
the mean chunk (`codesign.layers.base.Step`): operations are affine in what stands before a chunk, or averaged
exactly.  Chunks grow with their context, so the last one is timed as well; for m prompts per instance in flight, stage
times :math:`x_s` of the mean and :math:`y_s` of the last chunk,

.. math:: T = m\, n \max_s x_s + \sum_s y_s - \max_s y_s + (P-1)\,h,

which is n passes where P = 1, :math:`\sum_s t_s + (n-1) \max_s t_s` for equal chunks on uneven stages, and leaves the
share :math:`(P-1)/(m n+P-1)` of even stages idle.  TTFT is T: the last chunk of the last prompt has left the last
stage.  An empty prefix is prefill; one new token is a decode pass.  Left out: growth of chunks within the fullest
stage against the others of a pipeline.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from codesign.execution import Execution
from codesign.lanes import Number
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.metrics import Load, Metrics, powered, rates
from codesign.objective.timing import Stack, stacked, timed_pass
from codesign.precision import Precision
from codesign.residency import residency


def chunks_of(mapping: Mapping, load: Load) -> Number:
    """Chunks of a prompt: as many equal ones as keep each within the mapping's chunk."""
    return jnp.maximum(jnp.ceil(load.new / mapping.chunk - 1e-9), 1.0)


def prompt_step(machine: Machine, precision: Precision, mapping: Mapping, load: Load) -> Step:
    """The mean chunk of a prompt as a layer sees it."""
    chunks = chunks_of(mapping, load)
    return Step(
        batch=load.batch,
        new=load.new / chunks,
        cached=load.context,
        tp=mapping.tp,
        dp=mapping.dp,
        ep=mapping.ep,
        context_split=mapping.context_split,
        skew=load.skew,
        machine=machine,
        precision=precision,
        chunks=chunks,
        block=True,
        routing=load.routing,
    )


def mean_and_last(model: Model, machine: Machine, execution: Execution, mapping: Mapping, step: Step) -> Stack:
    """The mean chunk of a prompt and its last one, each field of shape (2,); of the mean, a share 1/n of the head."""

    def one(cached: Number, chunks: Number, heads: Number) -> Stack:
        here = eqx.tree_at(lambda s: (s.cached, s.chunks), step, (cached, chunks))
        return stacked(model, mapping, timed_pass(model, machine, execution, mapping, here), heads)

    last = step.cached + (step.chunks - 1.0) * step.new
    cached = jnp.stack([jnp.asarray(step.cached, dtype=float), last])
    chunks = jnp.stack([step.chunks, jnp.ones_like(step.chunks)])
    return jax.lax.map(lambda x: one(*x), (cached, chunks, 1.0 / chunks))


def prefill(
    model: Model, machine: Machine, execution: Execution, precision: Precision, mapping: Mapping, load: Load
) -> Metrics:
    """Evaluate prompts of ``load.new`` tokens behind ``load.context`` cached ones; arguments as in `decode`.

    ``load.batch`` prompts run together on an instance, ``mapping.microbatches`` such batches one after the other.
    """
    step = prompt_step(machine, precision, mapping, load)
    both = mean_and_last(model, machine, execution, mapping, step)
    n, m = step.chunks, mapping.microbatches
    seconds = m * n * both.stage[0] + both.total[1] - both.stage[1]
    power = powered(machine, seconds, both.joules[0] * n * m / mapping.pp)
    prompts = m * load.batch * mapping.dp
    return Metrics(
        time_s=power.seconds,
        tpot_s=0.0,
        ttft_s=power.seconds,
        pass_s=n * both.total[0],
        pace_s=power.seconds,
        accepted=1.0,
        context_tokens_per_s=prompts * (load.context + load.new) / power.seconds,
        tokens_per_s_per_user=load.new / power.seconds,
        throttled=power.throttled,
        slowdown=power.slowdown,
        network_peak=both.peak[0],
        network_mean=both.sent[0] / both.total[0],
        prefill_share=1.0,
        bubble_share=1.0 - m * n * both.busy[0] / (mapping.pp * seconds),
        memory=residency(model, step, mapping),
        **rates(machine, mapping, prompts * load.new / power.seconds, power.board),
    )
