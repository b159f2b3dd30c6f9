"""How a machine of the catalog stands at one target: what it reaches, what binds, and what its rate is elastic to."""

from typing import Any

import equinox as eqx
import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.document import mapping_document
from codesign.evaluation.operations import binding, operations
from codesign.mapping import take
from codesign.objective.compiled import elasticities
from codesign.study.sweep import Sweep


def standing(sweep: Sweep) -> dict[str, Any]:
    """What the machine reaches as the catalog has it.

    Returns:
        feasible, tpot_s, batch, mapping, ``binding`` (share of the pass by lane), ``limited_by`` (the batch),
        throttled, ``floor_s`` (exposed launches, hops and set-up per token); ``scan``: the KV scan's name, bound_by,
        share of the pass, flop_per_byte and the machine's as achieved; ``elasticities`` where it serves.
    """
    i, found = sweep.best()
    case, mapping = sweep.case, take(sweep.mappings, i)
    load = eqx.tree_at(lambda x: x.batch, sweep.load, float(found.batch))
    rows = operations(case, mapping, load)
    scan = max((r for r in rows if r["name"].endswith(".scan")), key=lambda r: r["time_s"], default=None)
    whole = sum(r["time_s"] - r["hidden_s"] for r in rows)
    serves = bool(found.late <= 0.0 and found.full <= 0.0)
    told: dict[str, Any] = {
        "feasible": serves, "tpot_s": float(found.result.tpot_s), "batch": float(found.batch),
        "mapping": mapping_document(mapping), "binding": binding(rows),
        "limited_by": "TPOT" if found.limited_by_time > 0.5 else "memory capacity",
        "throttled": bool(found.result.throttled > 0.5),
        "floor_s": sum(max(r["latency_s"] - r["hidden_s"], 0.0) for r in rows) / float(found.result.accepted),
    }  # fmt: skip
    if scan is not None:
        told["scan"] = {
            "name": scan["name"], "bound_by": scan["bound_by"], "share": scan["time_s"] / whole,
            "flop_per_byte": scan["tensor_flop"] / scan["memory_bytes"] if scan["memory_bytes"] else None,
            "machine_flop_per_byte": _balance(case, scan["dtype"]),
        }  # fmt: skip
    if serves:
        told["elasticities"] = _elasticities(sweep, i)
    return told


def _balance(case: Case, dtype: str | None) -> float | None:
    """FLOP that the scan's arithmetic does while its memory brings a byte, both as achieved."""
    if dtype is None:
        return None
    flop = float(getattr(case.machine, f"tensor_{dtype}")) * float(np.asarray(case.execution.attention_tensor))
    return flop / (float(case.machine.memory_bandwidth) * float(np.asarray(case.execution.memory["attention"])))


def _elasticities(sweep: Sweep, i: int) -> dict[str, float]:
    """Derivative d ln rate per d ln of each number of the machine, those above 0.001.

    That of a rate is also that of its kernels' achieved share, since only their product enters a time.
    """
    case = sweep.case
    found = elasticities(
        case.model, case.execution, case.precision, case.machine, take(sweep.mappings, slice(i, i + 1)), sweep.load,
        sweep.target,
    )  # fmt: skip
    return {k: v for k, v in found.items() if abs(v) >= 1e-3}
