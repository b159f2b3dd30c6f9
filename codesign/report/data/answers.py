"""Who answers each problem, and how well: one row per problem and part, the feasible ones first and best first."""

from typing import Any

from codesign.report.data.designs import binding_words
from codesign.report.style import parts_of
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
    """One row per problem: the best answer of all, the best searched design, and the best parts of the catalog.

    Rows: case, problem, target [ms]; best (words), best_part (key), best_value, best_range (words), best_kind
    (``searched design`` or the status of a part), answer (the same, ``nothing`` where nothing serves), limited_by (of
    the best answer); design, part (its key), value, low, high, range (in words), active (budgets that bind, in words);
    machine, machine_value, machine_status, machine_kinds (the best part that exists or is announced); supposed,
    supposed_value, supposed_overdraws (the best hypothetical part); gain (value over machine_value); second,
    second_kind, second_value (what follows the best answer); runner_up, runner_up_value (the next searched technology);
    least_tpot [ms] and least_label where nothing serves; note.
    """
    rows = answers(summary)
    found = []
    for problem in problems(summary):
        key = problem_key(problem)
        everything = [r for r in rows if r["problem"] == key]
        here = [r for r in everything if r["value"]]
        design = next((r for r in here if r["optimum"]), None)
        machine = next((r for r in here if not r["optimum"] and r["status"] != "hypothetical"), None)
        supposed = next((r for r in here if not r["optimum"] and r["status"] == "hypothetical"), None)
        entries = dict(candidates(problem))
        runner = next((r for r in here if r["optimum"] and r is not design), None)
        best, second = [*here[:2], None, None][:2]
        least = min((r for r in everything if r["least_tpot"]), key=lambda r: r["least_tpot"], default=None)
        found.append(
            {
                "case": case_of(problem).key,
                "problem": key,
                "target": problem["target_s"] * 1e3,
                "best": best and named(best),
                "best_part": best and best["part"],
                "best_value": best and best["value"],
                "best_kind": best and kind_of(best),
                "best_range": range_words(best),
                "answer": kind_of(best) if best else "nothing",
                "limited_by": best["limited_by"] if best else "out of reach",
                "design": design and design["label"].partition(", ")[2],
                "part": design and design["part"],
                "value": design and design["value"],
                "low": design and design["low"],
                "high": design and design["high"],
                "range": range_words(design),
                "active": binding_words(entries[design["part"]]) if design else "",
                "machine": machine and machine["label"],
                "machine_value": machine and machine["value"],
                "machine_status": machine and machine["status"],
                "machine_kinds": machine and machine["kinds"],
                "supposed": supposed and supposed["label"],
                "supposed_value": supposed and supposed["value"],
                "supposed_overdraws": supposed and (entries[supposed["part"]].get("overdraws") or None),
                "gain": design["value"] / machine["value"] if design and machine else None,
                "second": second and named(second),
                "second_kind": second and kind_of(second),
                "second_value": second and second["value"],
                "runner_up": runner and runner["label"].partition(", ")[2],
                "runner_up_value": runner and runner["value"],
                "least_tpot": least["least_tpot"] if least and not here else None,
                "least_label": named(least) if least and not here else None,
                "note": problem.get("note") or "",
            }
        )
    return found


def range_words(row: dict[str, Any] | None) -> str | None:
    """The range of tokens/s/MW of an answer, where one was computed."""
    known = row and row["low"] is not None and row["high"] is not None
    return f"{plain(row['low'])} – {plain(row['high'])}" if row and known else None


def named(row: dict[str, Any]) -> str:
    """An answer by name: a searched design by its technology, a part by its title."""
    return f"searched {row['label'].partition(', ')[2]} design" if row["optimum"] else row["label"]


def kind_of(row: dict[str, Any]) -> str:
    """What an answer is: a searched design, or a part of the catalog by its status."""
    return "searched design" if row["optimum"] else f"{row['status']} part"


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
