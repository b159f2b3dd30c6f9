"""Machines, mappings and passes for the tests of the core: round numbers, loaded once, evaluated point by point."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import equinox as eqx

from codesign import catalog
from codesign.evaluation.case import Case, execution_of, load_case
from codesign.evaluation.document import evaluation_document
from codesign.evaluation.request import Request
from codesign.execution import Execution
from codesign.layers.base import Step
from codesign.machine import Machine
from codesign.mapping import Mapping, stack, take
from codesign.model import Model
from codesign.objective.compiled import leaves
from codesign.objective.decode import decode
from codesign.objective.metrics import Load, Metrics
from codesign.objective.timing import TimedPass, step_of, timed_pass
from codesign.precision import Precision
from codesign.work import pass_rows

#: Everything a chip does in round numbers: 1 TB/s, 1 PFLOP/s, domains of 8.
ROUND: dict[str, float] = {
    "memory_bandwidth": 1e12, "memory_capacity": 1e11, "tensor_bf16": 1e15, "tensor_fp8": 2e15, "tensor_fp4": 4e15,
    "vector_rate": 1e13, "exponential_ops": 8.0, "sram": 1e8, "scale_up_bandwidth": 1e11, "scale_up_domain": 8.0,
    "scale_up_hop": 1e-6, "scale_out_bandwidth": 1e10, "scale_out_domain": 1024.0, "scale_out_hop": 1e-5,
    "in_switch_reduction": 0.0, "launch": 1e-6, "all_reduce_setup": 2e-6, "all_to_all_setup": 5e-6,
    "memory_energy": 1e-10, "tensor_bf16_energy": 4e-13, "tensor_fp8_energy": 2e-13, "tensor_fp4_energy": 1e-13,
    "vector_energy": 2e-12, "scale_up_energy": 4e-11, "scale_out_energy": 8e-11, "static_power": 100.0,
    "power_limit": 1e12, "chip_power": 1000.0, "provisioned_power": 1500.0, "dollars_per_hour": 3.6,
}  # fmt: skip

#: Fields of a machine that are rates, and those that are latencies.
RATES = ("memory_bandwidth", "tensor_bf16", "tensor_fp8", "tensor_fp4", "vector_rate", "scale_up_bandwidth",
         "scale_out_bandwidth")  # fmt: skip
#: Columns of the table of work.
WORK = ("memory", "tensor", "vector", "scale_up", "scale_out", "launches", "latency")
LATENCIES = ("launch", "scale_up_hop", "scale_out_hop", "all_reduce_setup", "all_to_all_setup")


def machine(**changes: float) -> Machine:
    """The round machine with some numbers changed."""
    return Machine(**(ROUND | changes))


def changed(of: Machine, **changes: Any) -> Machine:
    """A machine with some numbers replaced."""
    return replace(of, **changes)


@lru_cache
def case(arch: str, model: str, use_ideal: bool = False, kv_dtype: str | None = None) -> Case:
    """A machine and a model of the catalog, loaded once per process, under the published estimates.

    What the program is must not move with each new fit of its constants.
    """
    found = load_case(arch, model, use_ideal=use_ideal, kv_dtype=kv_dtype)
    return found if use_ideal else replace(found, execution=estimates(), constants="published estimates")


@lru_cache
def estimates() -> Execution:
    """Kernel constants that nothing was fitted to."""
    return execution_of(catalog.load_measurement("execution"))


def mapping(
    model: Model, pp: int = 1, tp: int = 1, dp: int = 1, ep: int = 1, *, context: bool = False, micro: int | None = None
) -> Mapping:
    """One mapping."""
    return take(stack(model, [(pp, tp, dp, ep, float(context), micro or pp)]), 0)


def load(batch: float = 1.0, context: float = 1000.0, drafts: float = 0.0, skew: float = 0.0) -> Load:
    """What is served."""
    return Load(batch, context, drafts, skew, 1000.0)


def step(
    of: Machine, precision: Precision, *, batch: float = 1.0, new: float = 1.0, cached: float = 1000.0, tp: int = 1,
    dp: int = 1, ep: int = 1, context: bool = False, skew: float = 0.0, drafts: float = 0.0, chunks: float = 1.0,
    block: bool = False, form: int = 0,
) -> Step:  # fmt: skip
    """A pass as a layer sees it."""
    return Step(
        batch, new, cached, float(tp), float(dp), float(ep), float(context), skew, of, precision, drafts, chunks, block,
        form=form,
    )  # fmt: skip


def _numbers(of: Case, where: Mapping, what: Load, execution: Execution | None, on: Machine | None) -> Any:
    """Arguments of a pass as traced code has them; uniform routing stays known, as in compiled programs."""
    found = leaves((on or of.machine, execution or of.execution, of.precision, where, what))
    return found if what.skew else eqx.tree_at(lambda x: x[-1].skew, found, 0.0)


def timed(
    of: Case, where: Mapping, what: Load, execution: Execution | None = None, on: Machine | None = None
) -> TimedPass:
    """`timed_pass` of a case, point by point."""
    machine, constants, precision, where, what = _numbers(of, where, what, execution, on)
    return timed_pass(of.model, machine, constants, where, step_of(machine, precision, where, what))


def decoded(
    of: Case, where: Mapping, what: Load, execution: Execution | None = None, on: Machine | None = None
) -> Metrics:
    """`decode` of a case, point by point."""
    return decode(of.model, *_numbers(of, where, what, execution, on))


def work(of: Case, where: Mapping, what: Load) -> dict[str, dict[str, float]]:
    """Work of each row of a pass, summed over its layers, by ``block.row`` and lane."""
    machine, _, precision, where, what = _numbers(of, where, what, None, None)
    found = pass_rows(of.model, step_of(machine, precision, where, what), where.pp)
    rows = {
        f"{name}.{row.name}": (n, row)
        for (name, _), block, n in zip(of.model.blocks, found.blocks, of.model.block_counts(), strict=True)
        for row in block
    }
    rows |= {row.name: (1, row) for row in (*found.embed, *found.head, found.hand_off)}
    return {name: {lane: n * float(getattr(row, lane)) for lane in WORK} for name, (n, row) in rows.items()}


def document(of: Case, where: Mapping, what: Load) -> dict[str, Any]:
    """The JSON of one evaluation, without compiling anything."""
    found = decoded(of, where, what)
    return evaluation_document(
        of,
        where,
        Request(context=float(what.context)),
        what,
        found,
        feasible=True,
        stopped="request",
        margin={},
        warnings=[],
    ).to_json()


def total(rows: dict[str, dict[str, float]], lane: str, *without: str) -> float:
    """Sum of a lane over all rows but those whose name ends so."""
    return sum(row[lane] for name, row in rows.items() if not name.endswith(without))
