"""Curves of tokens/s/MW against TPOT: each machine's Pareto frontier, each technology's optimum at each target."""

import math
from typing import Any

from codesign.report.data.answers import answers
from codesign.report.published import bands
from codesign.report.style import Part, parts_of
from codesign.report.summary import Json, case_of, cases, items, number, optimum_key, part
from codesign.report.words import mapping_words

#: Points of one machine's curve that are drawn at most, evenly taken.
MOST_POINTS = 60


def curves(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, part, label, optimum, status, tpot [ms], value [tokens/s/MW], per_chip, per_user, batch, mapping,
    kind, target [ms], degrees (the mapping's PP and TP, to colour by).

    ``kind`` is ``frontier`` (a point of a machine's curve) or ``target`` (the answer at one of the study's targets).
    """
    looks = {p.key: p for p in parts_of(summary)}
    rows = []
    for f in items(summary, "frontiers"):
        points = [
            p for p in items(f, "points") if number(p.get("tpot_s")) and number(p.get("tokens_per_s_per_megawatt"))
        ]
        points.sort(key=lambda p: p["tpot_s"])
        step = max(1, math.ceil(len(points) / MOST_POINTS))
        kept = points[::step] + ([points[-1]] if points and (len(points) - 1) % step else [])
        one = {"kind": "frontier", "target": None}
        rows += [_point(case_of(f).key, looks[f["arch"]], p) | one for p in kept]
    for a in answers(summary):
        if a["value"] and a["tpot"]:
            kept = {
                k: a[k] for k in ("case", "part", "label", "tpot", "value", "per_chip", "per_user", "batch", "mapping")
            }
            kept |= {"optimum": a["optimum"], "status": a["status"]}
            rows.append(kept | {"degrees": _degrees(a["degrees"]), "kind": "target", "target": a["target"]})
    return rows


def behind(summary: Json, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each optimum, the frontier of the catalog's best part of its memory technology: rows of `curves`, with the
    optimum as ``part`` and the part's name as ``label``.

    An optimum is another machine at every target and so has no frontier of its own.  Where the catalog has no part of
    its technology with a frontier, there are no rows.

    Args:
        rows: of `curves`.
    """
    built_with = {
        m["arch"]: m.get("memory_technology") for p in items(summary, "problems") for m in items(p, "machines")
    }
    own: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        if r["kind"] == "frontier":
            own.setdefault((r["case"], r["part"]), []).append(r)
    found = []
    for look in parts_of(summary):
        for case in cases(summary):
            theirs = [
                points
                for (key, arch), points in own.items()
                if look.optimum and key == case.key and optimum_key(str(built_with.get(arch))) == look.key
            ]
            best = max(theirs, key=lambda points: max(r["value"] for r in points), default=[])
            found += [r | {"part": look.key} for r in best]
    return found


def _point(case: str, look: Part, p: Json) -> dict[str, Any]:
    degrees = part(p, "mapping")
    batch = number(p.get("batch"))
    return {
        "case": case,
        "part": look.key,
        "label": look.label,
        "optimum": look.optimum,
        "status": look.status,
        "tpot": p["tpot_s"] * 1e3,
        "value": p["tokens_per_s_per_megawatt"],
        "per_chip": number(p.get("tokens_per_s_per_chip")),
        "per_user": 1.0 / p["tpot_s"],
        "batch": batch if batch is not None else number(part(p, "request").get("batch")),
        "mapping": mapping_words(degrees),
        "degrees": _degrees(degrees),
    }


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


def ends(summary: Json, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last point inside the chart of each curve, where its name belongs: rows of case, part, label, tpot, value."""
    (left, right), (bottom, top) = domains(summary, rows)
    inside = [r for r in rows if left <= r["tpot"] <= right and bottom <= r["value"] <= top]
    last = {(r["case"], r["part"]): r for r in sorted(inside, key=lambda r: r["tpot"])}
    return [{k: r[k] for k in ("case", "part", "label", "tpot", "value")} for r in last.values()]


def band_rows(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, title, part (the machine that the band speaks of), low, high, middle, ours_low, ours_high (least and
    most of the study for it over the targets), best_target [ms], of_band (ours_high over the middle of the band).
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
                    "case": case.key,
                    "title": band.title,
                    "part": band.arch or "",
                    "low": band.low,
                    "high": band.high,
                    "middle": middle,
                    "of_band": most / middle if most else None,
                    "ours_low": min((r["value"] for r in ours), default=None),
                    "ours_high": most,
                    "best_target": max(ours, key=lambda r: r["value"])["target"] if ours else None,
                }
            )
    return found
