"""How the search went and what the optimum says: convergence, starts, elasticities, shadow prices."""

import math
from typing import Any

from codesign.report.data.designs import designs, head, prices
from codesign.report.style import words
from codesign.report.summary import Json, items, metric, number, part

#: Numbers of a machine that count chips or switch a feature on.
WHOLE = ("scale_up_domain", "scale_out_domain", "in_switch_reduction")

#: Points of a convergence curve that are drawn at most.
MOST_POINTS = 80


def elasticities(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, leaf, title, value (d ln tokens/s/MW per d ln leaf), size, rank.

    Numbers that come whole (`WHOLE`) are left out: they move the answer in steps, which no derivative measures.
    """
    rows = []
    for problem, look, design in designs(summary):
        found = [(k, number(v)) for k, v in part(design, "elasticities").items() if k not in WHOLE]
        for rank, (leaf, value) in enumerate(sorted(((k, v) for k, v in found if v), key=lambda kv: -abs(kv[1]))):
            row = {"leaf": leaf, "title": words(leaf), "value": value, "size": abs(value), "rank": rank + 1}
            rows.append(head(problem, look) | row)
    return rows


def shadow_prices(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, budget, title, low, high, tie.

    Prices are d ln(tokens/s/MW) / d ln(budget).  Where the optimum sits on a kink (``tie``) the price is a range: one
    more buys ``low``, one less costs ``high``.
    """
    rows = []
    for problem, look, design in designs(summary):
        for budget, (low, high) in prices(design).items():
            tie = high - low > 1e-3 * max(abs(low), abs(high), 1e-12)
            row = {"budget": budget, "title": words(budget), "low": low, "high": high, "tie": tie}
            rows.append(head(problem, look) | row)
    return rows


def convergence(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, iteration, gap, violation.

    ``gap`` is how far the objective, tokens/s/MW, stands from the optimum at the end: ``|ln(objective / optimum)|``.
    Early iterates may overdraw a budget and stand above it; ``violation`` says by how much.
    """
    rows = []
    for problem, look, design in designs(summary):
        curve = [number(x) for x in items(design, "convergence")]
        violation = [number(x) for x in items(design, "violation")]
        violation += [None] * (len(curve) - len(violation))
        step = max(1, math.ceil(len(curve) / MOST_POINTS))
        kept = sorted({*range(0, len(curve), step), *range(max(len(curve) - 1, 0), len(curve))})
        rows += [
            head(problem, look) | {"iteration": i, "gap": gap, "violation": violation[i]}
            for i, gap in ((i, _gap(curve[i], design)) for i in kept)
            if gap is not None
        ]
    return rows


def starts(summary: Json) -> list[dict[str, Any]]:
    """Rows: case, problem, target [ms], part, label, start, gap, overdraft: where each start stood when it was stopped.

    ``gap`` is as in `convergence`; ``overdraft`` is the largest share by which the start then overdrew a budget.
    """
    rows = []
    for problem, look, design in designs(summary):
        for i, start in enumerate(items(design, "starts")):
            gap = _gap(number(start.get("objective")), design)
            if gap is not None:
                row = {"start": i + 1, "gap": gap, "overdraft": number(start.get("overdraft")) or 0.0}
                rows.append(head(problem, look) | row)
    return rows


def _gap(objective: float | None, design: Json) -> float | None:
    optimum = metric(design, "tokens_per_s_per_megawatt")
    return abs(math.log(objective / optimum)) if objective and objective > 0 and optimum else None
