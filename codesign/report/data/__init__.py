"""Tidy tables made from a summary: what charts draw and what CSV files hold, one row per mark.

A table is a list of flat dicts; every row names the case, the problem and the part that it belongs to, where it belongs
to one, since the page selects by them.  Times are in ms, other columns in SI or in the unit that their row names.
"""

from typing import Any

from codesign.report.data.answers import answers, matrix, same_technology
from codesign.report.data.designs import budget_use, mixes, rounding
from codesign.report.data.frontier import band_rows, behind, curves, ends
from codesign.report.data.operations import ceilings, operations, roof_labels
from codesign.report.data.power import drawn, power_table
from codesign.report.data.search import convergence, elasticities, shadow_prices, starts
from codesign.report.data.trust import check_terms, checks, held_back
from codesign.report.data.unknowns import rivals, sensitivity, unknowns
from codesign.report.summary import Json

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def tables(summary: Json) -> Tables:
    """All tables of a summary, by name. A table without rows stays in, empty."""
    found, rows, roofs = curves(summary), operations(summary), ceilings(summary)
    return {
        "answers": answers(summary),
        "matrix": matrix(summary),
        "same_technology": same_technology(summary),
        "frontier": found,
        "frontier_behind": behind(summary, found),
        "frontier_labels": ends(summary, found),
        "bands": band_rows(summary),
        "mixes": mixes(summary),
        "budget_use": budget_use(summary),
        "operations": rows,
        "ceilings": roofs,
        "roof_labels": roof_labels(rows, roofs),
        "power_drawn": drawn(summary),
        "power_table": power_table(summary),
        "elasticities": elasticities(summary),
        "shadow_prices": shadow_prices(summary),
        "convergence": convergence(summary),
        "starts": starts(summary),
        "rounding": rounding(summary),
        "checks": checks(summary),
        "check_terms": check_terms(summary),
        "held_back": held_back(summary),
        "sensitivity": sensitivity(summary),
        "rivals": rivals(summary),
        "unknowns": unknowns(summary),
    }
