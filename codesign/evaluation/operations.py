"""The rows of one pass as a table: work, lane times, latency, what binds, energy; and what the whole pass waits for."""

from typing import Any

import jax
import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.solve import leaves
from codesign.execution import Timed
from codesign.lanes import LANES, TENSOR_DTYPES
from codesign.mapping import Mapping
from codesign.objective.decode import Load, timed_pass

#: What a lane is called when it binds.
LANE_WORDS = {
    "memory": "memory bandwidth",
    "tensor": "tensor rate",
    "vector": "vector rate",
    "scale_up": "scale-up bandwidth",
    "scale_out": "scale-out bandwidth",
    "latency": "latency (launches, hops, set-up)",
}


def _numbers(t: Timed, hidden: Any) -> dict[str, Any]:
    r = t.row
    return {
        "work": (r.memory, r.tensor, r.vector, r.scale_up, r.scale_out),
        "lanes": t.lanes, "efficiency": t.efficiency, "latency": t.latency, "time": t.time, "hidden": hidden,
        "energy": t.energy, "dtype": r.dtype,
    }  # fmt: skip


def operations(case: Case, mapping: Mapping, load: Load) -> list[dict[str, Any]]:
    """Every operation of a pass on the fullest chip, summed over its layers, as `codesign evaluate --json` lists it.

    ``time_s = pnorm(lane_time_s) + latency_s`` and ``sum time_s - sum hidden_s = pass_s``; each lane time is
    ``work / (rate x efficiency)`` with the rates of ``machine.rates`` and the efficiency given beside it.
    Operations that cost nothing on this mapping (a collective over one chip) are left out.
    """
    timed = timed_pass(case.model, *leaves((case.machine, case.execution, case.precision, mapping, load)))
    found: list[tuple[str, float, str, dict[str, Any]]] = []
    for (name, _), block, hidden, count in zip(
        case.model.blocks, timed.blocks, timed.hidden, case.model.block_counts(), strict=True
    ):
        found += [
            (f"{name}.{t.row.name}", count, "every stage", _numbers(t, h))
            for t, h in zip(block, hidden, strict=True)
        ]
    found += [(t.row.name, 1, "last stage", _numbers(t, 0.0)) for t in timed.head]
    found.append((timed.hand_off.row.name, 1, "between stages", _numbers(timed.hand_off, 0.0)))
    values = jax.tree.map(lambda x: float(np.asarray(x)), [numbers for *_, numbers in found])

    rows = []
    for (name, count, stage, _), v in zip(found, values, strict=True):
        if v["time"] <= 0.0:
            continue
        n = float(count)
        waits = dict(zip(LANES, v["lanes"], strict=True)) | {"latency": v["latency"]}
        memory, tensor, vector, up, out = (n * w for w in v["work"])
        rows.append(
            {
                "name": name, "layers": count, "stage": stage,
                "dtype": TENSOR_DTYPES[round(v["dtype"])] if tensor else None,
                "bound_by": max(waits, key=lambda lane: waits[lane]),
                "time_s": n * v["time"],
                "lane_time_s": {lane: n * t for lane, t in zip(LANES, v["lanes"], strict=True)},
                "efficiency": dict(zip(LANES, v["efficiency"], strict=True)),
                "hidden_s": n * v["hidden"], "latency_s": n * v["latency"],
                "memory_bytes": memory, "tensor_flop": tensor, "vector_op": vector,
                "scale_up_bytes": up, "scale_out_bytes": out, "energy_j": n * v["energy"],
            }
        )  # fmt: skip
    return rows


def binding(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Share of the pass by what bound each of its operations, exposed time only."""
    shares: dict[str, float] = dict.fromkeys((*LANES, "latency"), 0.0)
    for row in rows:
        exposed = row["time_s"] - row["hidden_s"]
        latency = min(row["latency_s"], exposed)
        shares["latency"] += latency
        lanes = row["lane_time_s"]
        shares[max(lanes, key=lambda lane: lanes[lane])] += exposed - latency
    whole = sum(shares.values()) or 1.0
    return {lane: t / whole for lane, t in shares.items()}
