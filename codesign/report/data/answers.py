"""Who answers each problem, and how well: one row per problem and part, the feasible ones first and best first."""

from typing import Any

from codesign.report.style import parts_of, words
from codesign.report.summary import (
    Json,
    built,
    candidates,
    case_of,
    items,
    metric,
    number,
    optimum_key,
    part,
    problem_key,
    problems,
)
from codesign.report.words import mapping_words, plain

#: Kinds of source that a result is said to rest on.
UNSURE = ("rumour", "assumption", "estimate")


def interval(entry: Json) -> tuple[float | None, float | None]:
    """The range of tokens/s/MW that comes with a result, where one was computed.

    Read from ``interval.tokens_per_s_per_megawatt = [low, high]`` of a design or machine.
    """
    found = part(entry, "interval").get("tokens_per_s_per_megawatt") or (None, None)
    return number(found[0]), number(found[1])


def answers(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, optimum, status, feasible, value [tokens/s/MW], low, high, rank,
    of_best (value over the best feasible one's), tpot [ms], least_tpot [ms], per_chip, per_user, per_megawatt_drawn,
    dollars, joules, board_w, provisioned_w, batch, mapping (in words), degrees (as a table), limited_by,
    missing, kinds (`UNSURE` ones among its inputs).

    An optimum stands with its buildable design, as far as it was found; ``relaxed`` is its value before rounding.
    """
    looks = {p.key: p for p in parts_of(summary)}
    rows: list[dict[str, Any]] = []
    for problem in problems(summary):
        here = [_row(problem, looks[key], entry) for key, entry in candidates(problem)]
        here.sort(key=lambda r: (r["value"] is None, -(r["value"] or 0.0), r["least_tpot"] or 1e9, r["label"]))
        best = next((r["value"] for r in here if r["value"]), None)
        for i, row in enumerate(here):
            row["rank"] = i + 1
            row["of_best"] = row["value"] / best if row["value"] and best else None
        rows += here
    return rows


def _row(problem: Json, look: Any, entry: Json) -> dict[str, Any]:
    made = built(entry) if look.optimum else entry
    feasible = bool(entry.get("feasible", True)) and metric(made, "tokens_per_s_per_megawatt") is not None
    made = made if feasible else made | {"metrics": None, "mapping": None, "request": None}
    low, high = interval(entry)
    tpot, least = metric(made, "tpot_s"), number(entry.get("least_tpot_s"))
    return {
        "case": case_of(problem).key,
        "problem": problem_key(problem),
        "target": problem["target_s"] * 1e3,
        "part": look.key,
        "label": look.label,
        "optimum": look.optimum,
        "status": look.status,
        "feasible": feasible,
        "value": metric(made, "tokens_per_s_per_megawatt") if feasible else None,
        "low": low if feasible else None,
        "high": high if feasible else None,
        "relaxed": metric(entry, "tokens_per_s_per_megawatt") if look.optimum and feasible else None,
        "tpot": tpot * 1e3 if tpot and feasible else None,
        "least_tpot": least * 1e3 if least else None,
        "per_chip": metric(made, "tokens_per_s_per_chip"),
        "per_user": metric(made, "tokens_per_s_per_user"),
        "per_megawatt_drawn": metric(made, "tokens_per_s_per_megawatt_drawn"),
        "dollars": metric(made, "dollars_per_million_tokens"),
        "joules": metric(made, "energy_per_token_j"),
        "board_w": metric(made, "board_power_w"),
        "provisioned_w": metric(made, "provisioned_power_w"),
        "batch": number(part(made, "request").get("batch")),
        "mapping": mapping_words(part(made, "mapping")),
        "degrees": part(made, "mapping"),
        "limited_by": entry.get("limited_by") or "",
        "missing": entry.get("missing") or "",
        "kinds": ", ".join(k for k in items(entry, "kinds") if k in UNSURE),
    }


def matrix(summary: Json) -> list[dict[str, Any]]:
    """One row per problem: the best optimum against the best existing part of the catalog, and the best hypothetical.

    Rows: case, problem, target [ms], design, value, low, high, range (in words), part, machine, machine_value,
    machine_status, machine_kinds, supposed and supposed_value (of hypothetical parts), gain (value over machine_value),
    limited_by, active (constraints that bind, in words), runner_up, runner_up_of_best, note.
    """
    rows = answers(summary)
    found = []
    for problem in problems(summary):
        key = problem_key(problem)
        here = [r for r in rows if r["problem"] == key and r["value"]]
        design = next((r for r in here if r["optimum"]), None)
        machine = next((r for r in here if not r["optimum"] and r["status"] != "hypothetical"), None)
        supposed = next((r for r in here if not r["optimum"] and r["status"] == "hypothetical"), None)
        entry = next((e for k, e in candidates(problem) if design and k == design["part"]), None)
        runner = next((r for r in here if r["optimum"] and r is not design), None)
        found.append(
            {
                "case": case_of(problem).key,
                "problem": key,
                "target": problem["target_s"] * 1e3,
                "design": design and design["label"].partition(", ")[2],
                "part": design and design["part"],
                "value": design and design["value"],
                "low": design and design["low"],
                "high": design and design["high"],
                "range": f"{plain(design['low'])} – {plain(design['high'])}" if design and design["low"] else None,
                "machine": machine and machine["label"],
                "machine_value": machine and machine["value"],
                "machine_status": machine and machine["status"],
                "machine_kinds": machine and machine["kinds"],
                "supposed": supposed and supposed["label"],
                "supposed_value": supposed and supposed["value"],
                "gain": design["value"] / machine["value"] if design and machine else None,
                "limited_by": design["limited_by"] if design else "out of reach",
                "active": ", ".join(words(str(a)) for a in items(entry, "active_constraints")),
                "runner_up": runner and runner["label"].partition(", ")[2],
                "runner_up_of_best": runner["value"] / design["value"] if runner and design else None,
                "note": problem.get("note") or "",
            }
        )
    return found


def same_technology(summary: Json) -> list[dict[str, Any]]:
    """Each optimum against the best part of the catalog that is built with the same memory technology.

    Rows: case, problem, target [ms], part, label, value, machine, machine_value, gain, verdict.
    """
    rows = answers(summary)
    found = []
    for problem in problems(summary):
        key = problem_key(problem)
        built_with = {m["arch"]: m.get("memory_technology") for m in items(problem, "machines")}
        here = [r for r in rows if r["problem"] == key]
        for design in items(problem, "designs"):
            ours = next(r for r in here if r["part"] == optimum_key(design["technology"]))
            theirs = next((r for r in here if built_with.get(r["part"]) == design["technology"] and r["value"]), None)
            gain = ours["value"] / theirs["value"] if theirs and ours["value"] else None
            if theirs is None:
                verdict = "no part of this technology meets the target" if ours["value"] else "neither meets the target"
            elif gain is None:
                verdict = "only the part meets the target"
            else:
                verdict = "ahead" if gain >= 1.0 else "behind"
            found.append(
                {
                    **{k: ours[k] for k in ("case", "problem", "target", "part", "label", "value")},
                    "machine": theirs and theirs["label"],
                    "machine_value": theirs and theirs["value"],
                    "gain": gain,
                    "verdict": verdict,
                }
            )
    return found
