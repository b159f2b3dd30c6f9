r"""Tokens per megawatt and its derivative along directions in the space of machines, the batch following along.

At the largest admissible batch :math:`B^*(\theta)` the derivative of :math:`J(\theta, B^*)` is

.. math:: \frac{dJ}{d\theta} = J_\theta + J_B \frac{dB^*}{d\theta}, \qquad
          \frac{dB^*}{d\theta} = -\frac{T_\theta}{T_B} \text{ on the target, or } \frac{dB_{mem}}{d\theta}
          \text{ where memory is full,}

by the implicit function theorem.  A design has half a dozen variables, so the derivative is taken forwards, along the
change that each variable makes to the machine: cheaper to compile and as cheap to run as backwards.  A mapping that
cannot serve even one sequence is scored by what it would serve less `SHORTFALL` times the logarithm of its shortfall,
so that a search is drawn towards serving.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from codesign.execution import Execution
from codesign.lanes import Number
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.batch import Batch
from codesign.objective.metrics import Load
from codesign.objective.phases import DECODE, Phase
from codesign.precision import Precision
from codesign.residency import batch_that_fits, residency

#: Weight of the logarithm of a shortfall in the score of a mapping that does not serve: a mapping of few chips that is
#: late by a hundredth may promise twice the rate of one that serves.
SHORTFALL = 50.0


class Scored(NamedTuple):
    """A mapping's score with its derivatives.

    Attributes:
        score: ``ln(tokens/s/MW)`` at the largest admissible batch, less the weighted shortfall.
        slopes: derivative of the score along each direction, (directions,).
        by_target: elasticity by the target TPOT; 0 where it does not limit.
        batch: the batch [sequences].
        shortfall: 0 where the mapping serves.
        limited_by_time: 1 where the target limits the batch.
        time_s, tokens_per_s_per_megawatt: at that batch; the time that the target is about.
    """

    score: Number
    slopes: jax.Array
    by_target: Number
    batch: Number
    shortfall: Number
    limited_by_time: Number
    time_s: Number
    tokens_per_s_per_megawatt: Number


def scored(
    model: Model,
    machine: Machine,
    execution: Execution,
    precision: Precision,
    mapping: Mapping,
    load: Load,
    found: Batch,
    along: jax.Array,
    phase: Phase = DECODE,
) -> Scored:
    """Score one mapping on one machine at the batch that `codesign.objective.batch.largest_batch` found.

    Args:
        model: structure (static).
        machine, execution, precision, mapping, load: pytrees of scalars.
        found: the batch and what limits it. Solving for it is compiled apart: together the two take the compiler three
            times as long as one after the other.
        along: directions, (fields of `Machine`, directions): change of each field.
        phase: regime (static).
    """

    def logs(machine: Machine, log_batch: Number) -> tuple[Number, Number]:
        """Of the time that the target is about, and of tokens/s/MW: not B over T where answers wait for prompts."""
        here = eqx.tree_at(lambda x: x.batch, load, jnp.exp(log_batch))
        at = phase.evaluate(model, machine, execution, precision, mapping, here)
        return jnp.log(at.time_s), jnp.log(at.tokens_per_s_per_megawatt)

    def log_memory(machine: Machine) -> tuple[Number, Number]:
        one = eqx.tree_at(lambda x: x.batch, load, jnp.ones(()))
        m = residency(model, phase.step(machine, precision, mapping, one), mapping)
        return jnp.log(jnp.maximum(batch_that_fits(m), 1e-3)), jnp.log((m.fixed + m.per_sequence) / m.capacity)

    tree = jax.tree.structure(machine)
    log_batch = jnp.log(found.batch)

    def push(move: jax.Array) -> tuple[Number, Number, Number, Number]:
        moved = jax.tree.unflatten(tree, list(move))
        by = jax.jvp(lambda m: logs(m, log_batch), (machine,), (moved,))[1]
        return *by, *jax.jvp(log_memory, (machine,), (moved,))[1]

    time_by, rate_by, fits_by, need_by = jax.vmap(push, in_axes=1)(along)
    (time, _), (time_by_batch, rate_by_batch) = jax.jvp(
        lambda b: logs(machine, b), (log_batch,), (jnp.ones_like(log_batch),)
    )
    rate = jnp.log(found.result.tokens_per_s_per_megawatt)

    late, full = found.late > 0.0, found.full > 0.0
    timed = (found.limited_by_time > 0.5) & ~late & ~full
    stored = (found.limited_by_time < 0.5) & ~full
    price = jnp.where(timed, rate_by_batch / jnp.where(time_by_batch > 0.0, time_by_batch, 1.0), 0.0)
    on_time = price + jnp.where(late, SHORTFALL, 0.0)
    on_fits = jnp.where(stored, rate_by_batch, 0.0)
    on_need = jnp.where(full, SHORTFALL, 0.0)
    total = rate_by - on_time * time_by + on_fits * fits_by - on_need * need_by
    shortfall = found.late + found.full
    return Scored(
        score=rate - SHORTFALL * shortfall,
        slopes=total,
        by_target=on_time,
        batch=found.batch,
        shortfall=shortfall,
        limited_by_time=found.limited_by_time,
        time_s=jnp.exp(time),
        tokens_per_s_per_megawatt=jnp.exp(rate),
    )
