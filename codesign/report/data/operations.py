"""Where a token's time and energy go: the operations of a pass, by what binds them, for every optimum and machine.

A pass is told per token: ``TPOT × accepted = Σ (time − hidden) + waiting``, where waiting is what a micro-batch stands
still (uneven stages, bubbles, the power limit).  Energy per token is ``energy_j · tp / (batch · accepted)``,
since ``energy_j`` is of one chip of each stage for one micro-batch; what board power leaves beyond it is static.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from codesign.lanes import LANES
from codesign.report.style import LANE_NAMES, spread
from codesign.report.summary import (
    Json,
    built_pass,
    candidates,
    case_of,
    items,
    metric,
    number,
    part,
    problem_key,
    problems,
)

#: Operations below this share of the pass are drawn as one row; CSV files keep them apart.
SMALL = 0.008

OTHERS = "small operations"

#: Ends of a roofline chart's axis of intensity [FLOP/B], and how many of its operations are named.
LEAST_INTENSITY, MOST_INTENSITY = 0.1, 2e4
NAMED = 8


def passes(summary: Json) -> Iterator[tuple[Json, str, Json]]:
    """Problem, part and entry of every answer that lists its operations; designs as `built_pass` tells them."""
    for problem in problems(summary):
        for key, entry in candidates(problem):
            told = built_pass(entry)
            if items(told, "operations") and metric(told, "tpot_s"):
                yield problem, key, told


def operations(summary: Json, small: float = SMALL) -> list[dict[str, Any]]:
    """Rows: case, problem, part, order, name, layers, bound, lane (the longest), dtype, time, latency, hidden and lane
    times [ms], share, flop, bytes, joules (per output token).

    Args:
        summary: of a study.
        small: operations below this share of the pass are merged into one row; 0 keeps all.

    Pseudo-rows close the account: ``waiting`` in time, ``static power`` and ``host, network, cooling`` in energy.
    """
    rows: list[dict[str, Any]] = []
    for problem, key, entry in passes(summary):
        head = {"case": case_of(problem).key, "problem": problem_key(problem), "part": key}
        rows += [head | row for row in _pass(entry, small)]
    return rows


def _pass(entry: Json, small: float) -> list[dict[str, Any]]:
    m = part(entry, "metrics")
    accepted = number(m.get("accepted_tokens_per_pass")) or 1.0
    whole = m["tpot_s"] * accepted
    batch = number(part(entry, "request").get("batch"))
    tp = number(part(entry, "mapping").get("tp")) or 1.0
    found = [_row(i, op, whole, tp / (batch * accepted) if batch else None) for i, op in enumerate(entry["operations"])]
    kept = [r for r in found if r["share"] >= small]
    rest = [r for r in found if r["share"] < small]
    if len(rest) == 1:
        kept, rest = found, []
    rows = kept + ([_merged(rest)] if rest else [])

    waiting = whole * 1e3 - sum(r["time"] - r["hidden"] for r in found)
    if waiting > 1e-4 * whole * 1e3:
        name = "power limit" if m.get("throttled") else "pipeline waiting"
        rows.append(
            _blank(len(found) + 1, name)
            | {"bound": LANE_NAMES["wait"], "lane": LANE_NAMES["wait"], "time": waiting, "share": waiting / whole / 1e3}
        )
    rows += _standing(found, m)
    return rows


def _row(i: int, op: Json, whole: float, per_token: float | None) -> dict[str, Any]:
    lanes = part(op, "lane_time_s")
    time, hidden = number(op.get("time_s")) or 0.0, number(op.get("hidden_s")) or 0.0
    energy = number(op.get("energy_j"))
    return {
        "order": i,
        "name": op["name"],
        "layers": number(op.get("layers")) or 1.0,
        "bound": LANE_NAMES.get(op.get("bound_by") or "", op.get("bound_by") or ""),
        "dtype": op.get("dtype") or "",
        "lane": LANE_NAMES[max(LANES, key=lambda lane: number(lanes.get(lane)) or 0.0)],
        "time": time * 1e3,
        "latency": (number(op.get("latency_s")) or 0.0) * 1e3,
        "hidden": hidden * 1e3,
        **{lane: (number(lanes.get(lane)) or 0.0) * 1e3 for lane in LANES},
        "share": (time - hidden) / whole,
        "flop": number(op.get("tensor_flop")) or 0.0,
        "bytes": number(op.get("memory_bytes")) or 0.0,
        "joules": energy * per_token if energy is not None and per_token is not None else None,
    }


def _blank(order: int, name: str) -> dict[str, Any]:
    numbers = dict.fromkeys(("time", "latency", "hidden", *LANES, "share", "flop", "bytes"), 0.0)
    return {
        "order": order,
        "name": name,
        "layers": 0.0,
        "bound": "",
        "lane": "",
        "dtype": "",
        **numbers,
        "joules": None,
    }


def _merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Many small operations as one, bound by what bound most of their time."""
    one = _blank(max(r["order"] for r in rows), f"{len(rows)} {OTHERS}")
    for column in ("time", "latency", "hidden", *LANES, "share", "flop", "bytes"):
        one[column] = sum(r[column] for r in rows)
    bounds: dict[str, float] = {}
    for r in rows:
        bounds[r["bound"]] = bounds.get(r["bound"], 0.0) + r["time"]
    one["lane"] = LANE_NAMES[max(LANES, key=lambda lane: one[lane])]
    joules = [r["joules"] for r in rows if r["joules"] is not None]
    return one | {"bound": max(bounds, key=lambda b: bounds[b]), "joules": sum(joules) if joules else None}


def _standing(found: list[dict[str, Any]], m: Json) -> list[dict[str, Any]]:
    """Energy that no operation causes: static power, and the all-in share beyond the board, per output token."""
    rate, board, all_in = (number(m.get(k)) for k in ("tokens_per_s_per_chip", "board_power_w", "all_in_power_w"))
    if not rate or board is None or any(r["joules"] is None for r in found):
        return []
    static = board / rate - sum(r["joules"] for r in found)
    rows = [_blank(len(found) + 2, "static power") | {"joules": max(static, 0.0)}]
    if all_in is not None:
        rows.append(_blank(len(found) + 3, "host, network, cooling") | {"joules": max(all_in - board, 0.0) / rate})
    return rows


def ceilings(summary: Json) -> list[dict[str, Any]]:
    """Rooflines at peak: rows of case, problem, part, roof, intensity [FLOP/B], rate [FLOP/s], ridge.

    A roof rises with the bandwidth of the memory and levels at the arithmetic rate of one dtype.  Both are taken from
    the operations themselves, as work over lane time and the lane's efficiency, so that they are the rates that the
    times were made with; where an efficiency is not told the best that any operation achieved stands for the peak.
    """
    rows: list[dict[str, Any]] = []
    for problem, key, entry in passes(summary):
        ops = items(entry, "operations")
        memory = max((_peak(op, "memory_bytes", "memory") for op in ops), default=0.0)
        for dtype in dict.fromkeys(op.get("dtype") for op in ops if op.get("dtype")):
            peak = max(_peak(op, "tensor_flop", "tensor") for op in ops if op.get("dtype") == dtype)
            if not memory or not peak:
                continue
            ridge = peak / memory
            head = {"case": case_of(problem).key, "problem": problem_key(problem), "part": key, "roof": dtype.upper()}
            rows += [
                head | {"intensity": x, "rate": min(peak, memory * x), "ridge": x == ridge}
                for x in (LEAST_INTENSITY, ridge, MOST_INTENSITY)
            ]
    return rows


def _peak(op: Json, work: str, lane: str) -> float:
    amount, time = number(op.get(work)) or 0.0, number(part(op, "lane_time_s").get(lane)) or 0.0
    efficiency = number(part(op, "efficiency").get(lane)) or 1.0
    return amount / (time * efficiency) if time > 0 else 0.0


def rate_domain(roofs: list[dict[str, Any]]) -> tuple[float, float]:
    """The range of FLOP/s that all rooflines of a study are drawn in."""
    ridges = [r["rate"] for r in roofs if r["ridge"]] or [1.0]
    return min(ridges) * 1e-4, 1.8 * max(ridges)


def roof_labels(rows: list[dict[str, Any]], roofs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the names of the largest operations stand in a roofline chart: right of its points, apart from each other.

    Args:
        rows: of `operations`. roofs: of `ceilings`.

    Rows: problem, part, case, name, intensity, rate (of the point), place (height of the name as FLOP/s).
    """
    low, high = rate_domain(roofs)
    scale = math.log(high / low)
    found: list[dict[str, Any]] = []
    seen = [r for r in rows if r["flop"] > 0 and r["bytes"] > 0 and r["time"] > 0]
    for _, group in groupby(seen, key=lambda r: (r["problem"], r["part"])):
        largest = sorted(group, key=lambda r: -r["share"])[:NAMED]
        rates = [min(max(r["flop"] / r["time"] * 1e3, low), high) for r in largest]
        heights = spread([math.log(rate / low) / scale for rate in rates], 0.05, high=0.97)
        for r, rate, height in zip(largest, rates, heights, strict=True):
            intensity = min(max(r["flop"] / r["bytes"], LEAST_INTENSITY), MOST_INTENSITY)
            found.append(
                {
                    "case": r["case"],
                    "problem": r["problem"],
                    "part": r["part"],
                    "name": r["name"],
                    "intensity": intensity,
                    "rate": rate,
                    "place": low * math.exp(height * scale),
                }
            )
    return found
