r"""How a machine executes work: achieved rates, the overlap of lanes, and the one time of an operation.

``t = smoothmax_lane(work / (rate x efficiency)) + latency`` (physics: one pass, five lanes).  The laws of efficiency:

========================  ==============================================================================================
memory                    a share of the bandwidth, by kernel family
tensor, matrix products   :math:`e\,m/(m + m_{1/2} + A_{1/2}/w)`, m rows (of experts: rows per expert), w columns
                          of the result: its elements must give a tile to every unit of the chip
tensor, attention         a share of the rate
vector                    a share of the rate; every stream of a scan (a sequence and head of keys and values) costs
                          ``stream_ops`` operations beside its own: tiles that are not full, set-up, merging; every
                          expert on the chip, hit or not, ``group_ops``
scale-up                  :math:`e\,\frac{b + s\,b_{1/2}}{b + b_{1/2}}`: long messages reach e, short ones ``s e``
launch                    a family's kernel takes a multiple of the machine's ``launch``: start, fill and drain
collective set-up         a multiple of the machine's set-up, by kind of collective
========================  ==============================================================================================

Every constant is a JAX leaf.  Values and sources stand in ``arch/measurements/``; `ideal` is the speed of light: the
hard maximum with every efficiency 1, collectives without software set-up, launches and hops kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.lanes import FAMILIES, LANES, TENSOR_DTYPES, Number, Row
from codesign.machine import Machine
from codesign.numerics import smooth_maximum

#: Names of single constants as files have them; the others come by kernel family or by dtype.
SINGLE = (
    "outputs_half", "grouped", "group_ops", "attention_tensor", "vector", "stream_ops", "scale_up", "message_half",
    "message_least", "exchange", "exchange_half", "exchange_least", "scale_out", "all_reduce", "all_to_all", "setup",
    "overlap",
)  # fmt: skip
#: Rows that exchange tokens between the ranks of a mixture of experts.
EXCHANGES = ("dispatch", "combine")

BY_FAMILY = ("memory", "launches", "overlap_p")
BY_DTYPE = ("tensor", "rows_half", "expert_rows_half")


#: Constants that have a dimension.
UNITS = {"message_half": "B", "exchange_half": "B"}


class Execution(eqx.Module):
    """Efficiencies and overlap of one chip's kernels.

    Attributes:
        memory: achieved share of memory bandwidth, by kernel family.
        tensor: achieved share of the tensor rate for many rows, by dtype (bf16, fp8, fp4).
        rows_half: rows at which a matrix product reaches half of that, by dtype: ``m / (m + m_half)`` [tokens].
        outputs_half: elements of the result at which it reaches half, over what ``rows_half`` allows: every unit of the
            chip needs a tile.
        grouped: what grouped products of experts reach of ``tensor``.
        expert_rows_half: rows per expert at which they reach half of that, by dtype [tokens].
        group_ops: vector operations that each expert on the chip costs, hit or not [op].
        attention_tensor: achieved share of the tensor rate in scans of a cache and of recurrent states.
        vector: achieved share of the vector rate.
        stream_ops: vector operations that each stream of a scan costs beside its own [op].
        scale_up, scale_out: achieved share of link bandwidth, of long messages.
        message_half: bytes at which scale-up messages are half way from short to long [B].
        message_least: what the shortest reach of ``scale_up``.
        exchange, exchange_half, exchange_least: the same of dispatch and combine.
        launches: seconds of one launch over the machine's ``launch``, by kernel family.
        overlap_p: exponent of the smooth maximum over lanes, by kernel family.
        all_reduce, all_to_all: set-up of these collectives over the machine's.
        setup: how much of the collectives' software set-up is paid, 1 as shipped, 0 for hops alone.
        overlap: share of communication hidden behind another micro-batch's compute (two-batch overlap).
        hard: exact maximum over lanes (static).
        calibrated: whether the constants were fitted to measurements (static, told in results).
    """

    memory: dict[str, Number]
    tensor: dict[str, Number]
    rows_half: dict[str, Number]
    outputs_half: Number
    grouped: Number
    expert_rows_half: dict[str, Number]
    group_ops: Number
    attention_tensor: Number
    vector: Number
    stream_ops: Number
    scale_up: Number
    scale_out: Number
    message_half: Number
    message_least: Number
    exchange: Number
    exchange_half: Number
    exchange_least: Number
    launches: dict[str, Number]
    overlap_p: dict[str, Number]
    all_reduce: Number
    all_to_all: Number
    setup: Number
    overlap: Number
    hard: bool = eqx.field(static=True, default=False)
    calibrated: bool = eqx.field(static=True, default=False)

    def values(self) -> dict[str, Number]:
        """Every constant by its name in `NAMES`; `execution_from` reads them back."""
        grouped = {f"{g}_{k}": v for g in (*BY_FAMILY, *BY_DTYPE) for k, v in getattr(self, g).items()}
        return grouped | {name: getattr(self, name) for name in SINGLE}


#: Every constant by the name that files and fits give it.
NAMES: tuple[str, ...] = (
    *(f"{group}_{family}" for group in BY_FAMILY for family in FAMILIES),
    *(f"{group}_{dtype}" for group in BY_DTYPE for dtype in TENSOR_DTYPES),
    *SINGLE,
)


def execution_from(number: Callable[[str], Number], *, calibrated: bool = False) -> Execution:
    """An `Execution` of constants given by their names in `NAMES`."""
    families = {group: {f: number(f"{group}_{f}") for f in FAMILIES} for group in BY_FAMILY}
    dtypes = {group: {d: number(f"{group}_{d}") for d in TENSOR_DTYPES} for group in BY_DTYPE}
    return Execution(**families, **dtypes, **{name: number(name) for name in SINGLE}, calibrated=calibrated)


def ideal() -> Execution:
    """The speed of light: every efficiency 1, the hard maximum, no software set-up."""
    nothing = {
        "outputs_half",
        "stream_ops",
        "group_ops",
        "message_half",
        "exchange_half",
        "setup",
        "overlap",
        *(f"{group}_{d}" for group in ("rows_half", "expert_rows_half") for d in TENSOR_DTYPES),
    }
    return replace(execution_from(lambda name: 0.0 if name in nothing else 1.0), hard=True)


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


def _tensor_share(row: Row, execution: Execution, math: Arithmetic) -> Number:
    """Achieved share of the tensor rate."""
    if row.family in ("attention", "state"):
        return execution.attention_tensor
    best, half = math.best, math.rows_half
    if row.family == "experts":
        best, half = (
            best * execution.grouped,
            _by_dtype(row.dtype, *(execution.expert_rows_half[d] for d in TENSOR_DTYPES)) * row.narrow,
        )
    if not _absent(row.width):
        half = half + execution.outputs_half / row.width
    return best * row.rows / (row.rows + half)


def _vector_share(row: Row, execution: Execution) -> Number:
    """Achieved share of the vector rate, what streams cost beside counted as not achieved."""
    if _absent(row.streams):
        return execution.vector
    each = execution.group_ops if row.family == "experts" else execution.stream_ops
    return execution.vector * row.vector / (row.vector + row.streams * each)


def _scale_up_share(row: Row, execution: Execution) -> Number:
    """Achieved share of the scale-up bandwidth; a byte is added so that no message is no exception."""
    e = execution
    best, half, least = e.scale_up, e.message_half, e.message_least
    if row.name in EXCHANGES:
        best, half, least = e.exchange, e.exchange_half, e.exchange_least
    return (
        best if _absent(row.scale_up) else best * (row.scale_up + (1.0 + least * half)) / (row.scale_up + (1.0 + half))
    )


def time_of(row: Row, machine: Machine, execution: Execution, math: Arithmetic | None = None) -> Timed:
    """Time and energy of one layer's row: the only place in the program where work becomes seconds.

    Args:
        row: the work.
        machine, execution: rates and how much of them is achieved.
        math: `arithmetic` of the row's dtype where the caller has it already.
    """
    math = math or arithmetic(row.dtype, machine, execution)
    up, tensor = _scale_up_share(row, execution), _tensor_share(row, execution, math)
    table = (
        (row.memory, machine.memory_bandwidth, execution.memory[row.family], machine.memory_energy),
        (row.tensor, math.rate, tensor, math.energy),
        (row.vector, machine.vector_rate, _vector_share(row, execution), machine.vector_energy),
        (row.scale_up, machine.scale_up_bandwidth, up, machine.scale_up_energy),
        (row.scale_out, machine.scale_out_bandwidth, execution.scale_out, machine.scale_out_energy),
    )
    lanes = tuple(0.0 if _absent(work) else work / (rate * share) for work, rate, share, _ in table)
    launched = 0.0 if _absent(row.launches) else row.launches * (machine.launch * execution.launches[row.family])
    latency = launched if _absent(row.latency) else launched + row.latency
    time = smooth_maximum(lanes, execution.overlap_p[row.family], hard=execution.hard) + latency
    paid = table if row.mean_memory is None else table[1:]
    energy = sum(work * joules for work, _, _, joules in paid if not _absent(work))
    if not _absent(row.share - 1.0 if isinstance(row.share, float) else row.share):
        energy = energy * row.share
    if row.mean_memory is not None:
        energy = energy + row.mean_memory * machine.memory_energy
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
    """The machine with the set-up of collectives that this execution pays."""
    return eqx.tree_at(
        lambda m: (m.all_reduce_setup, m.all_to_all_setup),
        machine,
        (
            machine.all_reduce_setup * (execution.all_reduce * execution.setup),
            machine.all_to_all_setup * (execution.all_to_all * execution.setup),
        ),
    )


__all__ = [
    "LANES", "NAMES", "UNITS", "Arithmetic", "Execution", "Timed", "arithmetic", "execution_from", "ideal",
    "software_setup", "time_of", "time_rows",
]  # fmt: skip
