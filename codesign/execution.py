"""How a machine executes work: achieved rates, the overlap of lanes, and the one time of an operation.

``t = smoothmax_lane(work / (rate x efficiency)) + latency`` (physics: one pass, five lanes).  Every efficiency is a
JAX leaf.  The constants and their sources stand in ``arch/measurements/execution.toml``; `ideal` is the speed of light:
the hard maximum with every efficiency 1, collectives without software set-up, launches and hops kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.lanes import FAMILIES, LANES, Number, Row
from codesign.machine import Machine
from codesign.numerics import smooth_maximum


class Execution(eqx.Module):
    """Efficiencies and overlap of one chip's kernels.

    Attributes:
        memory: achieved share of memory bandwidth, by kernel family.
        tensor: achieved share of the tensor rate for many rows, by dtype (bf16, fp8, fp4).
        rows_half: rows at which a matrix product reaches half of that, by dtype: ``m / (m + m_half)`` [tokens].
        attention_tensor: achieved share of the tensor rate in the attention scan, on top of nothing else.
        vector: achieved share of the vector rate.
        scale_up, scale_out: achieved share of link bandwidth.
        overlap_p: exponent of the smooth maximum over lanes, by kernel family.
        setup: how much of the collectives' software set-up is paid, 1 as shipped, 0 for hops alone.
        overlap: share of communication hidden behind another micro-batch's compute (two-batch overlap).
        hard: exact maximum over lanes (static).
        calibrated: whether the constants were fitted to measurements (static, told in results).
    """

    memory: dict[str, Number]
    tensor: dict[str, Number]
    rows_half: dict[str, Number]
    attention_tensor: Number
    vector: Number
    scale_up: Number
    scale_out: Number
    overlap_p: dict[str, Number]
    setup: Number
    overlap: Number
    hard: bool = eqx.field(static=True, default=False)
    calibrated: bool = eqx.field(static=True, default=False)


def ideal() -> Execution:
    """The speed of light: every efficiency 1, the hard maximum, no software set-up."""
    one: dict[str, Number] = dict.fromkeys(FAMILIES, 1.0)
    return Execution(
        memory=one,
        tensor=dict.fromkeys(("bf16", "fp8", "fp4"), 1.0),
        rows_half=dict.fromkeys(("bf16", "fp8", "fp4"), 0.0),
        attention_tensor=1.0,
        vector=1.0,
        scale_up=1.0,
        scale_out=1.0,
        overlap_p=one,
        setup=0.0,
        overlap=0.0,
        hard=True,
    )


class Timed(NamedTuple):
    """A row on a machine, for one layer.

    Attributes:
        row: the work.
        lanes: seconds per lane, in the order of `LANES`; 0.0 where the row has no such work.
        efficiency: share of the peak rate behind each of them.
        latency: launches, hops and set-up [s].
        time: `smooth_maximum` of the lanes plus latency [s].
        energy: of the mean chip [J].
    """

    row: Row
    lanes: tuple[Number, ...]
    efficiency: tuple[Number, ...]
    latency: Number
    time: Number
    energy: Number


def _by_dtype(dtype: Number, bf16: Number, fp8: Number, fp4: Number) -> Number:
    """Pick by an index into `codesign.lanes.TENSOR_DTYPES`, which may be traced."""
    if isinstance(dtype, float):
        return (bf16, fp8, fp4)[int(dtype)]
    return jnp.where(dtype < 0.5, bf16, jnp.where(dtype < 1.5, fp8, fp4))


class Arithmetic(NamedTuple):
    """Tensor arithmetic in one format on one machine: peak rate, energy, and efficiency ``e m/(m + m_half)``."""

    rate: Number
    energy: Number
    best: Number
    rows_half: Number


def arithmetic(dtype: Number, machine: Machine, execution: Execution) -> Arithmetic:
    """Rates, energies and efficiencies of a format given as an index into `codesign.lanes.TENSOR_DTYPES`."""
    e, half = execution.tensor, execution.rows_half
    return Arithmetic(
        _by_dtype(dtype, machine.tensor_bf16, machine.tensor_fp8, machine.tensor_fp4),
        _by_dtype(dtype, machine.tensor_bf16_energy, machine.tensor_fp8_energy, machine.tensor_fp4_energy),
        _by_dtype(dtype, e["bf16"], e["fp8"], e["fp4"]),
        _by_dtype(dtype, half["bf16"], half["fp8"], half["fp4"]),
    )


def _absent(work: Number) -> bool:
    return isinstance(work, float) and work == 0.0


def time_of(row: Row, machine: Machine, execution: Execution, math: Arithmetic | None = None) -> Timed:
    """Time and energy of one layer's row: the only place in the program where work becomes seconds.

    Args:
        row: the work.
        machine, execution: rates and how much of them is achieved.
        math: `arithmetic` of the row's dtype where the caller has it already.
    """
    math = math or arithmetic(row.dtype, machine, execution)
    tensor = execution.attention_tensor
    if row.family != "attention":
        tensor = math.best * row.rows / (row.rows + math.rows_half)
    table = (
        (row.memory, machine.memory_bandwidth, execution.memory[row.family], machine.memory_energy),
        (row.tensor, math.rate, tensor, math.energy),
        (row.vector, machine.vector_rate, execution.vector, machine.vector_energy),
        (row.scale_up, machine.scale_up_bandwidth, execution.scale_up, machine.scale_up_energy),
        (row.scale_out, machine.scale_out_bandwidth, execution.scale_out, machine.scale_out_energy),
    )
    lanes = tuple(0.0 if _absent(work) else work / (rate * share) for work, rate, share, _ in table)
    launched = 0.0 if _absent(row.launches) else row.launches * machine.launch
    latency = launched if _absent(row.latency) else launched + row.latency
    time = smooth_maximum(lanes, execution.overlap_p[row.family], hard=execution.hard) + latency
    energy = sum(work * joules for work, _, _, joules in table if not _absent(work))
    if not _absent(row.share - 1.0 if isinstance(row.share, float) else row.share):
        energy = energy * row.share
    return Timed(row, lanes, tuple(share for _, _, share, _ in table), latency, time, energy)


def time_rows(rows: Sequence[Row], machine: Machine, execution: Execution) -> tuple[Timed, ...]:
    """`time_of` each row; what depends on the dtype alone is looked up once per dtype."""
    known: dict[int, Arithmetic] = {}
    found = []
    for row in rows:
        if id(row.dtype) not in known:
            known[id(row.dtype)] = arithmetic(row.dtype, machine, execution)
        found.append(time_of(row, machine, execution, known[id(row.dtype)]))
    return tuple(found)


def software_setup(machine: Machine, execution: Execution) -> Machine:
    """The machine with the share of collective set-up that this execution pays."""
    return eqx.tree_at(
        lambda m: (m.all_reduce_setup, m.all_to_all_setup),
        machine,
        (machine.all_reduce_setup * execution.setup, machine.all_to_all_setup * execution.setup),
    )


__all__ = ["LANES", "Arithmetic", "Execution", "Timed", "arithmetic", "ideal", "software_setup", "time_of", "time_rows"]
