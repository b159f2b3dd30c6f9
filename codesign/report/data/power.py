"""Power: what the formula sets aside against what makers publish, and what is drawn while serving, by lane."""

from typing import Any

from codesign.lanes import LANES
from codesign.report.data.operations import passes
from codesign.report.style import LANE_NAMES, parts_of, words
from codesign.report.summary import Json, case_of, items, metric, number, part, problem_key

#: The work of an operation on each lane, and the lane's energy per unit of it.
WORK = {
    "memory": ("memory_bytes", "memory_energy"),
    "tensor": ("tensor_flop", "tensor_{dtype}_energy"),
    "vector": ("vector_op", "vector_energy"),
    "scale_up": ("scale_up_bytes", "scale_up_energy"),
    "scale_out": ("scale_out_bytes", "scale_out_energy"),
}


def power_table(summary: Json) -> list[dict[str, Any]]:
    """Rows: part, published_w, envelope_w, ratio (envelope over published), fitted, source, regime; fitted ones first.

    ``regime`` is what sets the envelope: scan, GEMM or all-to-all.
    """
    rows = [
        {
            "part": r.get("title") or r.get("part"),
            "published_w": number(r.get("published_w")),
            "envelope_w": number(r.get("envelope_w")),
            "ratio": number(r.get("ratio")),
            "fitted": bool(r.get("fitted")),
            "source": r.get("source") or "",
            "regime": words(str(r.get("regime") or "")),
        }
        for r in items(summary, "power_table")
    ]
    for r in rows:
        if r["ratio"] is None and r["published_w"] and r["envelope_w"]:
            r["ratio"] = r["envelope_w"] / r["published_w"]
    return sorted(rows, key=lambda r: (not r["fitted"], str(r["part"])))


def drawn(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, part, label, share, order, watts, provisioned: what a chip draws, piece by piece.

    Pieces: static, each lane (work × energy of the operations, scaled to the board power less static), and the all-in
    share of host, network and cooling.  Where the machine's energies are not in the summary the lanes are one piece.
    """
    labels = {p.key: p.label for p in parts_of(summary)}
    rows: list[dict[str, Any]] = []
    for problem, key, entry in passes(summary):
        board, all_in, provisioned = (
            metric(entry, k) for k in ("board_power_w", "all_in_power_w", "provisioned_power_w")
        )
        if board is None or not entry.get("feasible", True):
            continue
        pieces = _board(entry, board)
        if all_in is not None:
            pieces.append(("host, network, cooling", max(all_in - board, 0.0)))
        head = {"case": case_of(problem).key, "problem": problem_key(problem), "part": key, "label": labels[key]}
        rows += [
            head | {"provisioned": provisioned, "share": name, "order": i, "watts": w}
            for i, (name, w) in enumerate(pieces)
            if w > 0
        ]
    return rows


def _board(entry: Json, board: float) -> list[tuple[str, float]]:
    machine = part(entry, "machine")
    static = number(machine.get("static_power"))
    if static is None:
        return [("board", board)]
    by_lane: dict[str, float] = dict.fromkeys(LANES, 0.0)
    for op in items(entry, "operations"):
        for lane, (work, energy) in WORK.items():
            cost = number(machine.get(energy.format(dtype=op.get("dtype")))) or 0.0
            by_lane[lane] += (number(op.get(work)) or 0.0) * cost
    total = sum(by_lane.values())
    if total <= 0:
        return [("static", static), ("lanes", board - static)]
    return [("static", static), *((LANE_NAMES[k], v / total * (board - static)) for k, v in by_lane.items())]
