"""The rows of one pass as a table: work, lane times, latency, what binds, energy; and what the whole pass waits for."""

from typing import Any

import jax
import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.solve import leaves
from codesign.execution import Execution, Timed
from codesign.lanes import LANES, TENSOR_DTYPES
from codesign.layers.moe import MoE
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.model import Model
from codesign.objective.compiled import uniform
from codesign.objective.metrics import Load
from codesign.objective.phases import Phase
from codesign.objective.timing import timed_pass
from codesign.precision import Precision
from codesign.programs import begin, run
from codesign.routing_choices import fullest

#: What a lane is called when it binds.
LANE_WORDS = {
    "memory": "memory bandwidth",
    "tensor": "tensor rate",
    "vector": "vector rate",
    "scale_up": "scale-up bandwidth",
    "scale_out": "scale-out bandwidth",
    "latency": "launches, hops and set-up",
}


def _numbers(t: Timed, hidden: Any) -> dict[str, Any]:
    r = t.row
    return {
        "work": (r.memory, r.tensor, r.vector, r.scale_up, r.scale_out),
        "lanes": t.lanes, "efficiency": t.efficiency, "latency": t.latency, "time": t.time, "hidden": hidden,
        "energy": t.energy, "dtype": r.dtype, "share": r.share,
        "mean_memory": r.memory * r.share if r.mean_memory is None else r.mean_memory,
    }  # fmt: skip


def _timed(
    phase: Phase,
    model: Model,
    even: bool,
    machine: Machine,
    execution: Execution,
    precision: Precision,
    mapping: Mapping,
    load: Load,
) -> tuple[Any, Any]:
    """Numbers of every row of a pass, block by block, then those of the ends; and the chunks that it comes in.

    Beside them the names and kernel families of the rows, in the same order.
    """
    step = phase.step(machine, precision, mapping, uniform(load) if even else load)
    timed = timed_pass(model, machine, execution, mapping, step)
    *names, ends, (hand_off,) = [
        [(t.row.name, t.row.family) for t in section] for section in (*timed.blocks, timed.ends, (timed.hand_off,))
    ]
    blocks = [
        [_numbers(t, h) for t, h in zip(b, hs, strict=True)] for b, hs in zip(timed.blocks, timed.hidden, strict=True)
    ]
    routing = {}
    moe = next((layer for _, layer in model.blocks if isinstance(layer, MoE)), None)
    if moe is not None:
        law = 0.0 if even else load.skew
        bank = step.tokens * mapping.dp
        most = fullest(bank, moe.experts, moe.top_k, mapping.ep, law, load.routing)
        once, by_route = moe.messages(step)
        routing = {
            "distinct_experts_per_layer": most.layer,
            "distinct_experts_fullest_rank": most.distinct,
            "routed_assignments_per_layer": bank * moe.top_k,
            "routes_fullest_rank": most.routes,
            "overflow_share": most.beyond,
            "messages_per_token_once": once,
            "messages_per_token_by_route": by_route,
        }
    found = [_numbers(t, 0.0) for t in timed.ends], _numbers(timed.hand_off, 0.0)
    return (blocks, *found, routing, step.chunks), (names, ends, hand_off)


def _arguments(case: Case, mapping: Mapping, load: Load) -> tuple[Any, ...]:
    even = not np.any(np.asarray(load.skew))
    fixed = leaves((case.machine, case.execution, case.precision, mapping, load))
    return _timed, (case.phase, case.model, even), *fixed


def begin_table(case: Case, mapping: Mapping, load: Load) -> None:
    """Have the program of `pass_table` made ready in the background, for any mapping and load of this structure."""
    begin(*_arguments(case, mapping, load))


def operations(case: Case, mapping: Mapping, load: Load) -> list[dict[str, Any]]:
    """Rows of `pass_table` alone."""
    return pass_table(case, mapping, load)[0]


def pass_table(case: Case, mapping: Mapping, load: Load) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Every operation of a pass on the fullest chip, summed over layers and chunks, as ``evaluate --json`` lists it.

    ``time_s = pnorm(lane_time_s) + latency_s`` with the exponent of the row's ``family``, and
    ``sum time_s - sum hidden_s = pass_s``.  Each lane time is ``work / (rate x efficiency)`` with the rates of
    ``machine.rates`` and the efficiency given beside it.  Work is that of the fullest chip; ``energy_j`` is paid by the
    mean one, for ``mean_memory_bytes`` and ``mean_share`` of the rest.
    Operations that cost nothing on this mapping (a collective over one chip) are left out.

    Args:
        case: machine, model, constants and precisions.
        mapping, load: of scalars.

    Returns:
        the rows, and the expected distinct experts and routes of the expert bank (empty where there is none).
    """
    numbers, names = run(*_arguments(case, mapping, load))
    blocks, ends, hand_off, routing, chunks = numbers
    block_rows, end_rows, hand_off_row = names
    again = float(np.asarray(chunks))
    found = [
        (f"{name}.{row}", family, count, again, "every stage", numbers)
        for (name, _), rows, block, count in zip(
            case.model.blocks, block_rows, blocks, case.model.block_counts(), strict=True
        )
        for (row, family), numbers in zip(rows, block, strict=True)
    ]
    stages = ("first stage", *("last stage" for _ in ends[1:]))
    found += [(*row, 1, 1.0, s, numbers) for row, s, numbers in zip(end_rows, stages, ends, strict=True)]
    found.append((*hand_off_row, 1, again, "between stages", hand_off))
    values = jax.tree.map(lambda x: float(np.asarray(x)), [numbers for *_, numbers in found])

    rows = []
    for (name, family, count, times, stage, _), v in zip(found, values, strict=True):
        if v["time"] <= 0.0:
            continue
        n = count * times
        waits = dict(zip(LANES, v["lanes"], strict=True)) | {"latency": v["latency"]}
        memory, tensor, vector, up, out = (n * w for w in v["work"])
        rows.append(
            {
                "name": name, "family": family, "layers": count, "stage": stage,
                "dtype": TENSOR_DTYPES[round(v["dtype"])] if tensor else None,
                "bound_by": max(waits, key=lambda lane: waits[lane]),
                "time_s": n * v["time"],
                "lane_time_s": {lane: n * t for lane, t in zip(LANES, v["lanes"], strict=True)},
                "efficiency": dict(zip(LANES, v["efficiency"], strict=True)),
                "hidden_s": n * v["hidden"], "latency_s": n * v["latency"],
                "memory_bytes": memory, "tensor_flop": tensor, "vector_op": vector,
                "scale_up_bytes": up, "scale_out_bytes": out, "energy_j": n * v["energy"],
                "mean_share": v["share"], "mean_memory_bytes": n * v["mean_memory"],
            }
        )  # fmt: skip
    return rows, {k: float(np.asarray(v)) for k, v in routing.items()}


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
