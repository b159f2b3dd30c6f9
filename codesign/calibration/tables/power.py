r"""Board power of measured kernels, as a check of the energies per byte and FLOP: nothing is fitted to it here.

A power table is a kernel table with ``power_w`` beside ``latency_us``: decode attention, and grouped experts, without
the name of the kernel.  Its lines become the package's own rows of work, whose dynamic energy E is that of
`codesign.execution.time_of`, and are told twice:

* ``board_w``: :math:`P_{static} + E/t` with the time t that the model predicts, no more than the board's limit, above
  which a kernel slows down (`codesign.objective.metrics.powered`): what the model says of a kernel never measured;
* ``board_w_at_measured_time``: :math:`P_{static} + E/t` with the measured time, without a limit: the energies alone.

The meter lags, so lines below `LEAST` are left out.  What is left out of the prediction itself: the activations' narrow
formats on the way (`codesign.calibration.tables.gemm.narrowed`), rows that kernels pad to whole tiles, which are
multiplied and paid, what units draw that are busy but move nothing (`codesign.power` has no such term), and the lower
voltage at which a board runs that is held at its limit.  Kernels of a table that has no ``kernel_source`` are predicted
with the constants of the kernels in `KERNELS`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from codesign.calibration.tables import attention, moe, unplaced
from codesign.calibration.tables.base import Columns, Kind, Sample, stack
from codesign.errors import CodesignError
from codesign.execution import ideal, time_of
from codesign.objective.metrics import powered

#: Shortest kernel whose power the meter can follow [s].
LEAST = 1e-3

#: Whose constants a format's expert kernel is timed with where the table does not say which one ran.
KERNELS = {
    "fp8_block": "deepgemm", "fp8": "moe_torch_flow_cutlass", "bfloat16": "moe_torch_flow_cutlass",
    "nvfp4": "moe_torch_flow_cutlass", "w4a16_mxfp4": "moe_torch_flow", "w4a8_mxfp4_mxfp8": "moe_torch_flow",
}  # fmt: skip


class PowerKind(NamedTuple):
    """A kind of power table.

    Attributes:
        kind: as kernel tables have it, under a name of its own.
        columns: by which a file is recognised.
        kernels: its columns as the kernel table's reader takes them.
        operation: what error tables call its lines, before their format.
    """

    kind: Kind
    columns: tuple[str, ...]
    kernels: Callable[[Columns], Columns]
    operation: str


def _scans(columns: Columns) -> Columns:
    """One token behind its prefix attends to prefix and itself, under a sliding window to no more than the window."""
    length = columns["isl"].astype(float) + columns["step"].astype(float)
    window = columns["window_size"].astype(float)
    return columns | {"kv_len_tokens": np.where(window > 0, np.minimum(length, window), length)}


def _experts(columns: Columns) -> Columns:
    source = [KERNELS.get(dtype, "unknown") for dtype in columns["moe_dtype"].tolist()]
    return columns | {"kernel_source": np.array(source, dtype=object)}


KINDS: tuple[PowerKind, ...] = (
    PowerKind(
        attention.KIND._replace(name="power-decode-attention", group="power"),
        ("isl", "step", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "window_size", "batch_size"),
        _scans,
        "gqa",
    ),
    PowerKind(
        moe.KIND._replace(name="power-moe", group="power"),
        ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
         "distribution"),
        _experts,
        "experts",
    ),
)  # fmt: skip

COMMON = ("system", "latency_us", "power_w")

#: Columns that are counts, those that may be 0 among them, and more than any of them is.
COUNTS = (
    "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "batch_size", "num_tokens",
    "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
)  # fmt: skip
MAY_BE_NONE = ("step", "window_size")
MOST = 1e12


def recognise(columns: Columns) -> PowerKind | None:
    """The kind of power table whose columns these are, or None."""
    return next((kind for kind in KINDS if {*kind.columns, *COMMON} <= set(columns)), None)


def _numbers(columns: Columns, label: str) -> None:
    """Refuse cells of times, watts and counts that are none, with the line and the column."""
    for name in ("latency_us", "power_w", *COUNTS):
        for i, value in enumerate(columns[name].tolist() if name in columns else ()):
            least = 0.0 if name in MAY_BE_NONE else math.ulp(0.0)
            try:
                sound = least <= float(value) <= MOST
            except (TypeError, ValueError):
                sound = False
            if not sound:
                told = f"a finite number {'from' if name in MAY_BE_NONE else 'above'} 0 to {MOST:g}"
                raise CodesignError(f"line {i + 2} has {value!r}", file=label, key=name, allowed=told)


def read(columns: Columns, label: str) -> tuple[list[tuple[Sample, np.ndarray]], dict[int, str]]:
    """A power table's lines as samples of the kernel tables' own rows, each with its measured watts [W].

    Args:
        columns: of a table that `recognise` knows.
        label: the file, for errors.

    Returns:
        samples with watts, and the reason by number of each line left out: a kernel too short, a system that the
        catalog does not have.

    Raises:
        CodesignError: a cell that is none, a format or law of routing that no reader has.
    """
    found = recognise(columns)
    if found is None:
        raise CodesignError("no power table has these columns", file=label)
    _numbers(columns, label)
    lags = f"shorter than {1e3 * LEAST:g} ms: the meter of board power lags"
    left = {int(i): lags for i in np.flatnonzero(columns["latency_us"].astype(float) < 1e6 * LEAST)}
    left |= unplaced(columns)
    keep = np.array([i for i in range(len(columns["system"])) if i not in left], dtype=int)
    if not len(keep):
        return [], left
    kept = {name: values[keep] for name, values in columns.items()}
    kernels = found.kernels(kept)
    try:
        samples = stack(found.kind, kernels, found.kind.place(kernels))
    except CodesignError as problem:
        raise CodesignError(problem.problem, file=label, key=problem.key, allowed=problem.allowed) from problem
    except KeyError as problem:
        raise CodesignError(f"unknown name {problem.args[0]!r}", file=label) from problem
    told = [[f"{found.operation} {o.split()[-1]}" for o in s.operations] for s in samples]
    named = [replace(s, operations=np.array(o, dtype=object)) for s, o in zip(samples, told, strict=True)]
    return [(s, kept["power_w"][s.lines].astype(float)) for s in named], left


def joules(sample: Sample) -> np.ndarray:
    """Dynamic energy of each line's rows [J], (n,), on the chip that was measured; no efficiency enters it."""
    execution = ideal()
    own = [row._replace(mean_memory=None, share=1.0) for row in sample.rows]
    each = [np.asarray(time_of(row, sample.machine, execution).energy) for row in own]
    return np.sum([np.broadcast_to(e, len(sample)) for e in each], axis=0)


def board(sample: Sample, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``board_w`` for predicted seconds, and ``board_w_at_measured_time`` [W], both (n,)."""
    energy = joules(sample)
    within = np.asarray(powered(sample.machine, seconds, energy).board)
    return within, np.asarray(sample.machine.static_power) + energy / sample.seconds
