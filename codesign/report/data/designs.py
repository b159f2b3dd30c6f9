"""What the search chose: variables by target, use of the budgets, and what rounding to a buildable design costs."""

import math
from collections.abc import Iterator
from typing import Any

from codesign.glossary import describe
from codesign.report.style import parts_of, words
from codesign.report.summary import Json, case_of, items, metric, number, optimum_key, part, problem_key, problems

#: Prefixes by which a column of values is scaled for its axis.
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

#: Within this share of a bound, on a logarithmic scale of the whole range, a variable counts as held by it.
AT_BOUND = 0.005


#: A shadow price below this, the bar of the KKT residual, cannot be told from none.
NO_PRICE = 1e-3


def prices(design: Json) -> dict[str, tuple[float, float]]:
    """Shadow prices by budget, lower end first; a single number in the summary stands for both."""
    found = {}
    for budget, price in part(design, "shadow_prices").items():
        ends = (price.get("left"), price.get("right")) if isinstance(price, dict) else (price,)
        known = [x for x in map(number, ends) if x is not None]
        if known:
            found[budget] = (min(known), max(known))
    return found


def idle(design: Json, budget: str) -> bool:
    """Whether a budget that is used up has no price: more of it would buy nothing, nor would less cost anything."""
    low, high = prices(design).get(budget, (math.inf, math.inf))
    return max(abs(low), abs(high)) < NO_PRICE


def binding_words(design: Json | None) -> str:
    """The budgets that are used up, those with a price first, in words."""
    names = [str(a) for a in items(design, "active_constraints")]
    free = [a for a in names if idle(design or {}, a)]
    told = ", ".join(words(a) for a in names if a not in free)
    spare = f"{', '.join(words(a) for a in free)} (used up, worth nothing at the margin)" if free else ""
    return "; ".join(filter(None, (told, spare)))


def designs(summary: Json) -> Iterator[tuple[Json, Any, Json]]:
    """Problem, look and design of every feasible design."""
    looks = {p.key: p for p in parts_of(summary)}
    for problem in problems(summary):
        for design in items(problem, "designs"):
            if design.get("feasible", True) and part(design, "metrics"):
                yield problem, looks[optimum_key(design["technology"])], design


def head(problem: Json, look: Any) -> dict[str, Any]:
    """The columns by which the page selects a row of a design."""
    return {
        "case": case_of(problem).key,
        "problem": problem_key(problem),
        "target": problem["target_s"] * 1e3,
        "part": look.key,
        "label": look.label,
    }


def scale_of(values: list[float], unit: str) -> tuple[float, str]:
    """The factor and the unit by which values are written on one axis: ``1e12, "TB/s"``; area in mm²."""
    if unit == "m^2":
        return 1e-6, "mm²"
    if unit.split("/")[0] not in ("B", "FLOP", "op", "W"):
        return 1.0, {"1": "", "text": ""}.get(unit, unit)
    typical = math.exp(sum(math.log(v) for v in values) / len(values)) if values else 1.0
    factor, prefix = next(((f, p) for f, p in _PREFIXES if typical >= f), (1.0, ""))
    return factor, prefix + unit


def mixes(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, variable, title, unit, value, built, low, high, at.

    ``value`` is the optimum's, ``built`` the rounded design's, in ``unit``; ``at`` says ``low`` or ``high`` where a
    bound of the search holds the variable, else is empty.  Only variables that the design has are listed.
    """
    declared = {v["name"]: v for v in items(summary, "variables")}
    found: list[dict[str, Any]] = []
    for problem, look, design in designs(summary):
        rounded = part(part(design, "rounded"), "variables")
        for name, value in part(design, "variables").items():
            v = number(value)
            if v is None or v <= 0:
                continue
            bounds = declared.get(name, {})
            found.append(
                head(problem, look)
                | {
                    "variable": name,
                    "value": v,
                    "built": number(rounded.get(name)),
                    "low": number(bounds.get("lo")),
                    "high": number(bounds.get("hi")),
                }
            )
    for name in dict.fromkeys(row["variable"] for row in found):
        rows = [row for row in found if row["variable"] == name]
        entry = describe(name)
        unit = declared.get(name, {}).get("unit") or (entry.unit if entry else "1")
        factor, shown = scale_of([row["value"] for row in rows], unit)
        for row in rows:
            row |= {"title": words(name), "unit": shown, "at": _at_bound(row)}
            row |= {k: row[k] / factor if row[k] is not None else None for k in ("value", "built", "low", "high")}
    return found


def _at_bound(row: dict[str, Any]) -> str:
    low, high, value = row["low"], row["high"], row["value"]
    if not low or not high or high <= low:
        return ""
    place = math.log(value / low) / math.log(high / low)
    return "low" if place < AT_BOUND else "high" if place > 1.0 - AT_BOUND else ""


def budget_use(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, budget, title, use (1 is all of it), active, idle, limit, unit.

    ``idle`` says of an active budget that it has no price (`idle`).
    """
    declared = {b["name"]: b for b in items(summary, "budgets")}
    rows = []
    for problem, look, design in designs(summary):
        active = items(design, "active_constraints")
        for name, value in part(design, "budget_use").items():
            use = number(value)
            if use is not None:
                about = declared.get(name, {})
                rows.append(
                    head(problem, look)
                    | {
                        "budget": name,
                        "title": words(name),
                        "use": use,
                        "active": name in active,
                        "idle": name in active and idle(design, name),
                        "limit": number(about.get("limit")),
                        "unit": about.get("unit") or "",
                    }
                )
    return rows


def rounding(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, relaxed, built [tokens/s/MW], loss, kkt, starts, limited_by.

    ``kkt`` is the residual at the relaxed optimum, ``starts`` how many of its starts came within 0.5 % of it.
    """
    rows = []
    for problem, look, design in designs(summary):
        rounded = part(design, "rounded")
        optimum = metric(design, "tokens_per_s_per_megawatt") or math.inf
        objectives = [o for o in (number(x.get("objective")) for x in items(design, "starts")) if o is not None]
        near = sum(abs(o / optimum - 1.0) <= 0.005 for o in objectives)
        rows.append(
            head(problem, look)
            | {
                "relaxed": metric(design, "tokens_per_s_per_megawatt"),
                "built": metric(rounded, "tokens_per_s_per_megawatt"),
                "loss": number(rounded.get("loss")),
                "kkt": number(design.get("kkt_residual")),
                "starts_near": near,
                "starts": len(objectives),
                "active": binding_words(design),
                "limited_by": design.get("limited_by") or "",
            }
        )
    return rows
