"""Decode of one batch on one mapping: time, pipeline, power, memory and the metrics of `codesign evaluate`.

TPOT is ``max(sum_s (t_s + h), m max_s t_s) / accepted`` (physics: pipeline); a chip that would draw more than its limit
slows down until it does not (physics: power): it is the mean chip that is asked, a full stage's draws more.
All metrics derive from the rows of `codesign.work`, timed once by `codesign.execution.time_of`.
"""

import jax.numpy as jnp

from codesign.execution import Execution
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.numerics import larger
from codesign.objective.metrics import Load, Metrics, powered, rates
from codesign.objective.timing import stacked, step_of, timed_pass
from codesign.precision import Precision
from codesign.residency import residency
from codesign.work import accepted_tokens


def decode(
    model: Model, machine: Machine, execution: Execution, precision: Precision, mapping: Mapping, load: Load
) -> Metrics:
    """Evaluate one decode pass. All arguments but ``model`` are pytrees of scalars (``mapping.stages`` is 2-D).

    Returns:
        `Metrics`, every field a scalar.
    """
    step = step_of(machine, precision, mapping, load)
    one = stacked(model, mapping, timed_pass(model, machine, execution, mapping, step))
    pace = larger(one.total, mapping.microbatches * one.stage)
    power = powered(machine, pace, one.joules * mapping.microbatches / mapping.pp)
    accepted = accepted_tokens(model, load.drafts)
    tpot = power.seconds / accepted
    return Metrics(
        time_s=tpot,
        tpot_s=tpot,
        ttft_s=0.0,
        pass_s=one.total,
        pace_s=power.seconds,
        accepted=jnp.asarray(accepted, dtype=float),
        context_tokens_per_s=0.0,
        tokens_per_s_per_user=1.0 / tpot,
        throttled=power.throttled,
        slowdown=power.slowdown,
        network_peak=one.peak,
        network_mean=one.sent / one.total,
        prefill_share=0.0,
        bubble_share=1.0 - mapping.microbatches * one.busy / (mapping.pp * pace),
        memory=residency(model, step, mapping),
        **rates(machine, mapping, mapping.microbatches * load.batch * mapping.dp / tpot, power.board),
    )
