r"""Tokens per megawatt and its derivative by every number of the machine and of its kernels, the batch following along.

At the largest admissible batch :math:`B^*(\theta)` the derivative of :math:`J(\theta, B^*)` is

.. math:: \frac{dJ}{d\theta} = J_\theta + J_B \frac{dB^*}{d\theta}, \qquad
          \frac{dB^*}{d\theta} = -\frac{T_\theta}{T_B} \text{ on the target, or } \frac{dB_{mem}}{d\theta}
          \text{ where memory is full,}

by the implicit function theorem.  A mapping that cannot serve even one sequence is scored by what it would serve less
`SHORTFALL` times the logarithm of its shortfall, so that a search is drawn towards serving.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from codesign.execution import Execution
from codesign.lanes import Number
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.batch import Batch
from codesign.objective.decode import Load, decode, step_of
from codesign.precision import Precision
from codesign.residency import batch_that_fits, residency

#: Weight of the logarithm of a shortfall in the score of a mapping that does not serve.
SHORTFALL = 5.0


class Scored(NamedTuple):
    """A mapping's score with its derivatives.

    Attributes:
        score: ``ln(tokens/s/MW)`` at the largest admissible batch, less the weighted shortfall.
        by_machine: derivative of the score by each field of `Machine`.
        by_execution: by each field of `Execution`.
        by_target: elasticity by the target TPOT; 0 where it does not limit.
        batch: the batch [sequences].
        shortfall: 0 where the mapping serves.
        limited_by_time: 1 where the target limits the batch.
        tpot_s, tokens_per_s_per_megawatt: at that batch.
    """

    score: Number
    by_machine: Machine
    by_execution: Execution
    by_target: Number
    batch: Number
    shortfall: Number
    limited_by_time: Number
    tpot_s: Number
    tokens_per_s_per_megawatt: Number


def scored(
    model: Model,
    machine: Machine,
    execution: Execution,
    precision: Precision,
    mapping: Mapping,
    load: Load,
    found: Batch,
) -> Scored:
    """Score one mapping on one machine at the batch that `codesign.objective.batch.largest_batch` found.

    The two are compiled apart: together they take the compiler three times as long as one after the other.
    """
    batch = found.batch

    def log_time(theta: tuple[Machine, Execution], log_batch: Number) -> tuple[Number, Number]:
        machine, execution = theta
        here = eqx.tree_at(lambda x: x.batch, load, jnp.exp(log_batch))
        d = decode(model, machine, execution, precision, mapping, here)
        return jnp.log(d.tpot_s), jnp.log(d.tokens_per_s_per_megawatt)

    def memory(machine: Machine) -> tuple[Number, Number]:
        one = eqx.tree_at(lambda x: x.batch, load, jnp.ones(()))
        m = residency(model, step_of(machine, precision, mapping, one), mapping)
        return jnp.log(jnp.maximum(batch_that_fits(m), 1e-3)), jnp.log((m.fixed + m.per_sequence) / m.capacity)

    # ln(tokens/s/MW) = ln B - ln T - ln(provisioned watts) + constants: one derivative, that of ln T, serves both.
    time, pull, rate = jax.vjp(log_time, (machine, execution), jnp.log(batch), has_aux=True)
    one = jnp.ones_like(time)
    (time_by_machine, time_by_execution), time_by_batch = pull(one)
    rate_by_batch = 1.0 - time_by_batch
    _, pull_memory = jax.vjp(memory, machine)
    fits_by, need_by = pull_memory((one, 0.0 * one))[0], pull_memory((0.0 * one, one))[0]

    late, full = found.late > 0.0, found.full > 0.0
    timed = (found.limited_by_time > 0.5) & ~late & ~full
    stored = (found.limited_by_time < 0.5) & ~full
    price = jnp.where(timed, rate_by_batch / jnp.where(time_by_batch > 0.0, time_by_batch, 1.0), 0.0)
    on_time = price + jnp.where(late, SHORTFALL, 0.0)
    on_fits = jnp.where(stored, rate_by_batch, 0.0)
    on_need = jnp.where(full, SHORTFALL, 0.0)
    by_machine = jax.tree.map(
        lambda t, f, n: -(1.0 + on_time) * t + on_fits * f - on_need * n, time_by_machine, fits_by, need_by
    )
    by_machine = eqx.tree_at(
        lambda m: m.provisioned_power, by_machine, by_machine.provisioned_power - 1.0 / machine.provisioned_power
    )
    shortfall = found.late + found.full
    return Scored(
        score=rate - SHORTFALL * shortfall,
        by_machine=by_machine,
        by_execution=jax.tree.map(lambda t: -(1.0 + on_time) * t, time_by_execution),
        by_target=on_time,
        batch=batch,
        shortfall=shortfall,
        limited_by_time=found.limited_by_time,
        tpot_s=jnp.exp(time),
        tokens_per_s_per_megawatt=jnp.exp(rate),
    )


def elasticities(by: Any, at: Any) -> Any:
    """Relative change of tokens per megawatt by relative change of each leaf: ``dJ/dx . x`` (J is a logarithm)."""
    return jax.tree.map(lambda g, x: g * x, by, at)
