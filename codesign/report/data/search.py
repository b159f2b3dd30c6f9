"""How the search went and what the optimum says: convergence, starts, elasticities, shadow prices."""

import math
from typing import Any

from codesign.report.data.designs import designs, head
from codesign.report.style import words
from codesign.report.summary import Json, items, number, part

#: Points of a convergence curve that are drawn at most.
MOST_POINTS = 80


def elasticities(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, leaf, title, value (d ln tokens/s/MW per d ln leaf)."""
    rows = []
    for problem, look, design in designs(summary):
        found = [(k, number(v)) for k, v in part(design, "elasticities").items()]
        for rank, (leaf, value) in enumerate(sorted(((k, v) for k, v in found if v), key=lambda kv: -abs(kv[1]))):
            row = {"leaf": leaf, "title": words(leaf), "value": value, "size": abs(value), "rank": rank + 1}
            rows.append(head(problem, look) | row)
    return rows


def shadow_prices(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, budget, title, low, high, tie.

    Prices are d ln(tokens/s/MW) / d ln(budget).  Where the optimum sits on a kink (``tie``) the price is a range: one
    more buys ``low``, one less costs ``high``.  A single number in the summary stands for both.
    """
    rows = []
    for problem, look, design in designs(summary):
        for budget, price in part(design, "shadow_prices").items():
            ends = (price.get("left"), price.get("right")) if isinstance(price, dict) else (price,)
            known = [x for x in map(number, ends) if x is not None]
            if known:
                low, high = min(known), max(known)
                tie = high - low > 1e-3 * max(abs(low), abs(high), 1e-12)
                row = {"budget": budget, "title": words(budget), "low": low, "high": high, "tie": tie}
                rows.append(head(problem, look) | row)
    return rows


def convergence(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, iteration, gap, violation.

    ``gap`` is how far the objective, ln(tokens/s/MW), of the best start still is below the best value it reaches.
    """
    rows = []
    for problem, look, design in designs(summary):
        curve = [number(x) for x in items(design, "convergence")]
        violation = [number(x) for x in items(design, "violation")]
        known = [x for x in curve if x is not None]
        if not known:
            continue
        best, step = max(known), max(1, math.ceil(len(curve) / MOST_POINTS))
        kept = sorted({*range(0, len(curve), step), len(curve) - 1})
        violation += [None] * (len(curve) - len(violation))
        rows += [
            head(problem, look) | {"iteration": i, "gap": best - value, "violation": violation[i]}
            for i, value in ((i, curve[i]) for i in kept)
            if value is not None
        ]
    return rows


def starts(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, start, gap: how far each start ended below the best, in ln."""
    rows = []
    for problem, look, design in designs(summary):
        found = [(i, number(s.get("objective"))) for i, s in enumerate(items(design, "starts"))]
        known = [(i, o) for i, o in found if o is not None]
        best = max((o for _, o in known), default=0.0)
        rows += [head(problem, look) | {"start": i + 1, "gap": best - o} for i, o in known]
    return rows
