"""Curves of tokens/s/MW against TPOT: each machine's Pareto frontier, each technology's optimum at each target."""

import math
from itertools import groupby
from typing import Any

from codesign.report.data.answers import answers
from codesign.report.published import bands
from codesign.report.style import Part, parts_of, spread
from codesign.report.summary import Json, case_of, cases, items, number, part
from codesign.report.words import mapping_words

#: Points of one machine's curve that are drawn at most, evenly taken.
MOST_POINTS = 60

#: Height of a frontier chart and of a line of its labels [px].
HEIGHT, LINE = 460, 14


def curves(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, part, label, optimum, status, tpot [ms], value [tokens/s/MW], per_chip, per_user, batch, mapping, degrees
    (the mapping's PP and TP, to colour by), kind, target [ms].

    ``kind`` is ``frontier`` (a point of a machine's curve) or ``target`` (the answer at one of the study's targets).
    """
    looks = {p.key: p for p in parts_of(summary)}
    rows = []
    for f in items(summary, "frontiers"):
        points = [p for p in items(f, "points") if number(p.get("tpot_s")) and number(p.get("tokens_per_s_per_megawatt"))]
        points.sort(key=lambda p: p["tpot_s"])
        step = max(1, math.ceil(len(points) / MOST_POINTS))
        for p in points[::step] + ([points[-1]] if points and (len(points) - 1) % step else []):
            rows.append(_point(case_of(f).key, looks[f["arch"]], p) | {"kind": "frontier", "target": None})
    for a in answers(summary):
        if a["value"] and a["tpot"]:
            kept = {k: a[k] for k in ("case", "part", "label", "tpot", "value", "per_chip", "per_user", "batch", "mapping")}
            kept |= {"optimum": a["optimum"], "status": a["status"]}
            rows.append(kept | {"degrees": _degrees(a["degrees"]), "kind": "target", "target": a["target"]})
    return rows


def _point(case: str, look: Part, p: Json) -> dict[str, Any]:
    degrees = part(p, "mapping")
    batch = number(p.get("batch"))
    return {
        "case": case, "part": look.key, "label": look.label, "optimum": look.optimum, "status": look.status,
        "tpot": p["tpot_s"] * 1e3,
        "value": p["tokens_per_s_per_megawatt"], "per_chip": number(p.get("tokens_per_s_per_chip")),
        "per_user": 1.0 / p["tpot_s"], "batch": batch if batch is not None else number(part(p, "request").get("batch")),
        "mapping": mapping_words(degrees), "degrees": _degrees(degrees),
    }  # fmt: skip


def _degrees(mapping: Json) -> str:
    return f"PP {mapping['pp']:g} · TP {mapping['tp']:g}" if "pp" in mapping and "tp" in mapping else ""


def domains(summary: Json, rows: list[dict[str, Any]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """One range of TPOT [ms] and of tokens/s/MW for all cases, so that cases compare by eye.

    TPOT spans the study's targets with room on both sides; tokens/s/MW at most three and a half decades below the best.
    """
    targets = [t * 1e3 for t in items(summary, "targets_s")] or [r["tpot"] for r in rows] or [1.0, 100.0]
    low, high = 0.7 * min(targets), 1.6 * max(targets)
    seen = [r["value"] for r in rows if low <= r["tpot"] <= high] or [1.0, 10.0]
    for case in cases(summary):
        seen += [b.high for b in bands(summary, case)]
    top = 1.5 * max(seen)
    return (low, high), (max(0.7 * min(seen), top / 10**3.5), top)


def end_labels(summary: Json, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the name of each curve stands, right of the chart, and the end of the curve that it belongs to.

    Rows: case, part, label, tpot [ms], value, place (height of the label as a value of the axis).
    """
    (left, right), (bottom, top) = domains(summary, rows)
    inside = [r for r in rows if left <= r["tpot"] <= right and bottom <= r["value"] <= top]
    inside.sort(key=lambda r: (r["case"], r["part"], r["tpot"]))
    found = []
    for _, group in groupby(inside, key=lambda r: r["case"]):
        ends = [list(g)[-1] for _, g in groupby(group, key=lambda r: r["part"])]
        scale = math.log(top / bottom)
        heights = spread([math.log(e["value"] / bottom) / scale for e in ends], LINE / HEIGHT)
        for end, height in zip(ends, heights, strict=True):
            place = bottom * math.exp(height * scale)
            found.append({k: end[k] for k in ("case", "part", "label", "tpot", "value")} | {"place": place})
    return found


def band_rows(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, title, part (the machine that the band speaks of), low, high, middle, ours_low, ours_high (the study's
    least and most for it over the targets), best_target [ms], of_band (ours_high over the middle of the band).
    """
    found = []
    rows = answers(summary)
    for case in cases(summary):
        for band in bands(summary, case):
            ours = [r for r in rows if r["case"] == case.key and r["part"] == band.arch and r["value"]]
            most = max((r["value"] for r in ours), default=None)
            middle = math.sqrt(band.low * band.high)
            found.append(
                {
                    "case": case.key, "title": band.title, "part": band.arch or "", "low": band.low, "high": band.high,
                    "middle": middle, "of_band": most / middle if most else None,
                    "ours_low": min((r["value"] for r in ours), default=None),
                    "ours_high": most,
                    "best_target": max(ours, key=lambda r: r["value"])["target"] if ours else None,
                }
            )  # fmt: skip
    return found
