"""The largest batch that meets a target TPOT and fits the memory: a monotone root, evaluated in one loop.

TPOT grows with the batch, so the largest admissible batch is the smaller of two: the one at which memory is full
(closed form) and the root of ``TPOT(B) = target``.  The root is bracketed and found by the Anderson-Bjorck variant of
false position with a fixed number of steps, the first of which take the geometric mean of a bracket that is wide: where
memory would hold thousands of sequences and experts saturate at a few, secants crawl.  Both ends of the bracket and the
result are evaluated by the same loop, so that the model is compiled once.  Its derivative (implicit function theorem)
is taken in `codesign.objective.gradient`.
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
from codesign.objective.metrics import Load, Metrics
from codesign.objective.phases import DECODE, Phase
from codesign.precision import Precision
from codesign.residency import Residency, batch_that_fits, residency

#: Steps of the root finder; of these the first few halve a bracket in the logarithm while its ends are a factor apart.
STEPS, HALVINGS, WIDE = 15, 3, 8.0


class Batch(NamedTuple):
    """The largest admissible batch of one mapping.

    Attributes:
        batch: sequences per micro-batch [sequences].
        by_memory: the batch at which memory is full; below the least batch asked for, nothing fits [sequences].
        limited_by_time: 1 where the target TPOT limits the batch, 0 where memory or the given ceiling does.
        late: ``log(TPOT/target)`` at the least batch, where positive: how far the mapping is from the target.
        full: ``log(bytes/capacity)`` at the least batch, where positive: how far it is from fitting.
        result: `Metrics` at that batch.
    """

    batch: Number
    by_memory: Number
    limited_by_time: Number
    late: Number
    full: Number
    result: Metrics

    @property
    def feasible(self) -> Number:
        """Whether the mapping serves at all."""
        return (self.late <= 0.0) & (self.full <= 0.0)


def largest_batch(
    model: Model,
    machine: Machine,
    execution: Execution,
    precision: Precision,
    mapping: Mapping,
    load: Load,
    tpot: Number,
    least: Number = 1.0,
    most: Number = jnp.inf,
    steps: int = STEPS,
    phase: Phase = DECODE,
) -> Batch:
    r"""Solve :math:`\max\{B : T(B) \le T^*,\ M(B) \le C\}` and evaluate there.

    Args:
        model: structure (static).
        machine, execution, precision, mapping, load: pytrees of scalars; ``load.batch`` is ignored.
        tpot: target [s]; infinite where there is none.
        least, most: bounds on the batch [sequences]; equal where the batch is given.
        steps: of the root finder (static).
        phase: regime (static); the target is its ``time_s``.

    Returns:
        `Batch`. Where even ``least`` is too slow or does not fit, the batch is ``least`` and the shortfall positive.
    """
    memory = residency(model, phase.step(machine, precision, mapping, load), mapping)
    by_memory = batch_that_fits(memory)
    low = jnp.asarray(least, dtype=float)
    high = jnp.maximum(jnp.minimum(by_memory, most), low)
    goal = jnp.asarray(tpot, dtype=float)
    zero = low * 0.0  # mapped over like the rest of the loop, which is then batched in one pass

    def at(batch: Number) -> Metrics:
        here = eqx.tree_at(lambda x: x.batch, load, batch)
        found = phase.evaluate(model, machine, execution, precision, mapping, here)
        return jax.tree.map(lambda x: jnp.asarray(x, dtype=zero.dtype), found)

    def body(i: jax.Array, state: tuple) -> tuple:
        a, fa, b, fb, t_low, t_high, *_ = state
        secant = b - fb * (b - a) / jnp.where(fb == fa, 1.0, fb - fa)
        near, far = jnp.minimum(a, b), jnp.maximum(a, b)
        early = i < 2 + HALVINGS
        c = jnp.where(early & (far > WIDE * near), jnp.sqrt(near * far), jnp.clip(secant, near, far))
        chosen = jnp.where(t_low > goal, low, jnp.where(t_high <= goal, high, b))
        batch = jnp.where(i == 0, low, jnp.where(i == 1, high, jnp.where(i == steps + 2, chosen, c)))
        result = at(batch)
        fc = result.time_s - jnp.where(jnp.isfinite(goal), goal, 0.0)
        t_low, t_high = jnp.where(i == 0, result.time_s, t_low), jnp.where(i == 1, result.time_s, t_high)
        crossed = fc * fb < 0.0
        weight = 1.0 - fc / jnp.where(fb == 0.0, 1.0, fb)
        shrink = jnp.where(early, 1.0, jnp.where(weight > 0.0, weight, 0.5))
        started = i > 1
        new_a = jnp.where(started & crossed, b, a)
        new_fa = jnp.where(i == 0, fc, jnp.where(started, jnp.where(crossed, fb, fa * shrink), fa))
        new_b = jnp.where(started, c, b)
        new_fb = jnp.where(i >= 1, fc, fb)
        return new_a, new_fa, new_b, new_fb, t_low, t_high, batch, result

    # Spelled out, not taken from a trace of the phase: tracing is what a warm start waits for.
    blank = Metrics(*[zero] * (len(Metrics._fields) - 1), memory=Residency(*[zero] * len(Residency._fields)))
    start = (low, zero, high, zero, zero, zero, low, blank)
    *_, t_low, t_high, batch, result = jax.lax.fori_loop(0, steps + 3, body, start)

    need = (memory.fixed + low * memory.per_sequence) / memory.capacity
    return Batch(
        batch=batch,
        by_memory=by_memory,
        limited_by_time=jnp.where(t_high > goal, 1.0, 0.0),
        late=jnp.where(t_low > goal, jnp.log(t_low / goal), 0.0),
        full=jnp.maximum(jnp.log(need), 0.0),
        result=result,
    )
