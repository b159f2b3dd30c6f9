"""Collectives within one scale-up domain: the package's, with the ring steps that NCCL waits for."""

from collections.abc import Iterable

from codesign import fabric
from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, split_by
from codesign.errors import CodesignError
from codesign.lanes import Row
from codesign.machine import Machine

BYTES = {"half": 2.0, "bfloat16": 2.0, "float": 4.0}

#: Ring steps beyond the hops that the package counts: of (G - 1) steps, per operation.
OPERATIONS = ("all_reduce", "all_reduce:TRTLLM", "all_gather", "reduce_scatter", "alltoall")


def _rows(op: str, payload, chips, machine: Machine) -> list[Row]:
    if op == "alltoall":
        row = fabric.all_to_all("dispatch", payload * (chips - 1.0) / chips, chips, machine)
        return [row]
    if op in ("all_gather", "reduce_scatter"):
        row = fabric.all_gather(op, payload, chips, machine)
        return [row._replace(latency=row.latency + (chips - 2.0) * machine.scale_up_hop)]
    row = fabric.all_reduce("all_reduce", payload, chips, machine)
    if op == "all_reduce":
        row = row._replace(latency=row.latency + 2.0 * (chips - 2.0) * machine.scale_up_hop)
    return [row]


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system, operation and format."""
    for (system, op, dtype), lines in split_by(columns, "system", "op", "dtype"):
        if op not in OPERATIONS:
            raise CodesignError(f"unknown collective {op!r}", key="op", allowed=", ".join(OPERATIONS))
        if dtype not in BYTES:
            raise CodesignError(f"unknown format {dtype!r}", key="dtype", allowed=", ".join(BYTES))
        chips, elements = numbers(columns, lines, "num_gpus", "message_elements")
        payload = elements * BYTES[dtype]
        custom = op == "all_reduce:TRTLLM"
        kernels = () if custom else ("nccl", f"nccl-{op.replace('_', '-')}")
        build = lambda m, op=op, b=payload, g=chips: _rows(op, b, g, m)  # noqa: E731
        yield group(lines, system, kernels, "all_reduce custom" if custom else f"{op} nccl", build)


KIND = Kind("collectives", "collectives", ("op", "num_gpus", "message_elements"), place)
