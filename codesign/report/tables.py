"""The tables of the report: which columns they have, how their numbers are written, and who fills them.

A table with a scope is filled by the page from its data, for the chosen case or problem; others are written into the
page.  All go to CSV with every row, whatever is chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codesign.report.words import milliseconds, percent, plain

#: How a value is written: ``text``, ``plain`` (3 digits), ``percent``, ``ratio``, ``ms`` (given in ms), ``flag``,
#: ``range`` (text that stays on one line), ``name`` (text that wraps even in the first column),
#: ``words`` (text that needs room), ``long`` (sentences).
Kind = str


@dataclass(frozen=True)
class Column:
    """A column: key of its rows, heading, how its values are written, and whether it goes when no row has a value."""

    key: str
    title: str
    kind: Kind = "text"
    optional: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: of its data and file. title: caption. columns: in order. scope: ``case``, ``problem`` or empty (static).
        note: what to know to read it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    scope: str = ""
    note: str = ""


MATRIX = Table(
    "matrix",
    "The answer at every target",
    (
        Column("target", "target TPOT", "ms"),
        Column("answer", "best answer"),
        Column("design", "best searched design"),
        Column("value", "tokens/s/MW", "plain"),
        Column("range", "range", "range", optional=True),
        Column("machine", "best existing or announced part"),
        Column("machine_value", "tokens/s/MW", "plain"),
        Column("gain", "design / part", "ratio"),
        Column("supposed", "best hypothetical part", optional=True),
        Column("supposed_value", "tokens/s/MW", "plain", optional=True),
        Column("limited_by", "the best answer is limited by", "words"),
        Column("active", "budgets that bind the design", "words"),
    ),
    "case",
    "The best answer is the best of what the search found within the budgets and of all parts of the catalog, "
    "hypothetical ones included, which need not keep the budgets. Designs stand in their buildable form where one was "
    "found, before rounding else.",
)

RANKING = Table(
    "answers",
    "Everything at this target, best first",
    (
        Column("label", "part"),
        Column("value", "tokens/s/MW", "plain"),
        Column("of_best", "of best", "percent"),
        Column("per_megawatt_drawn", "per MW drawn", "plain"),
        Column("tpot", "TPOT", "ms"),
        Column("per_user", "tokens/s/user", "plain"),
        Column("per_chip", "tokens/s/chip", "plain"),
        Column("dollars", "$ per M tokens", "plain"),
        Column("joules", "J per token", "plain"),
        Column("provisioned_w", "W provisioned", "plain"),
        Column("batch", "batch", "plain"),
        Column("mapping", "mapping", "words"),
        Column("limited_by", "limited by", "words"),
        Column("least_tpot", "least TPOT", "ms"),
        Column("missing", "what is missing", "words"),
        Column("kinds", "rests on", "words"),
    ),
    "problem",
    "Parts that cannot meet the target come last, with the least TPOT that they reach.",
)

SAME = Table(
    "same_technology",
    "Each optimum against the best part of its own memory technology",
    (
        Column("label", "design"),
        Column("target", "target TPOT", "ms"),
        Column("value", "tokens/s/MW", "plain"),
        Column("machine", "best part"),
        Column("machine_value", "tokens/s/MW", "plain"),
        Column("gain", "gain", "ratio"),
        Column("verdict", "verdict", "words"),
    ),
    "case",
)

MIXES = Table(
    "mixes",
    "The mix, before rounding and as built",
    (
        Column("label", "design"),
        Column("title", "variable"),
        Column("value", "before rounding", "plain"),
        Column("built", "as built", "plain"),
        Column("unit", "unit"),
        Column("low", "lower bound", "plain"),
        Column("high", "upper bound", "plain"),
        Column("at", "held by bound"),
    ),
    "problem",
)

ROUNDING = Table(
    "rounding",
    "Before rounding and as built, residual, starts",
    (
        Column("label", "design"),
        Column("target", "target TPOT", "ms"),
        Column("relaxed", "tokens/s/MW before rounding", "plain"),
        Column("built", "tokens/s/MW as built", "plain"),
        Column("loss", "loss", "percent"),
        Column("kkt", "KKT residual", "plain"),
        Column("starts_near", "starts within 0.5 %", "plain"),
        Column("starts", "starts", "plain"),
        Column("active", "constraints that bind", "words"),
        Column("limited_by", "limited by", "words"),
    ),
    "case",
)

POWER = Table(
    "power_table",
    "Power: formula against published ratings",
    (
        Column("part", "part"),
        Column("published_w", "published [W]", "plain"),
        Column("envelope_w", "formula [W]", "plain"),
        Column("ratio", "formula / published", "ratio"),
        Column("fitted", "fitted to it", "flag"),
        Column("regime", "set by"),
        Column("source", "source", "words"),
    ),
)

CHECKS = Table(
    "checks",
    "Published points against the model",
    (
        Column("name", "point", "name"),
        Column("predicted", "predicted", "plain"),
        Column("published", "published", "plain"),
        Column("unit", "unit"),
        Column("ratio", "predicted / published", "ratio"),
        Column("terms", "which terms make the difference", "long"),
        Column("source", "source", "words"),
    ),
)

BANDS = Table(
    "bands",
    "Scenario forecast against this study",
    (
        Column("title", "machine"),
        Column("case", "case"),
        Column("low", "forecast, low", "plain"),
        Column("high", "forecast, high", "plain"),
        Column("ours_low", "here, least over targets", "plain"),
        Column("ours_high", "here, most over targets", "plain"),
        Column("best_target", "most at target", "ms"),
        Column("of_band", "most here / middle of band", "ratio"),
    ),
)

UNKNOWNS = Table(
    "unknowns",
    "Unknown numbers and where the order turns",
    (
        Column("title", "unknown"),
        Column("value", "catalog", "range"),
        Column("range", "range", "range"),
        Column("kind", "kind"),
        Column("swing", "swing, ln", "plain"),
        Column("turns", "passes", "words"),
        Column("note", "order", "long"),
    ),
    "arch",
    "Swing is ln(most / least) of tokens/s/MW over the range, the largest of all settings.",
)

ALL = (MATRIX, RANKING, SAME, MIXES, ROUNDING, POWER, CHECKS, BANDS, UNKNOWNS)


def shown(table: Table, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table without optional columns that no row fills."""
    kept = (c for c in table.columns if not c.optional or any(row.get(c.key) not in (None, "") for row in rows))
    return replace(table, columns=tuple(kept))


def cell(value: Any, kind: Kind) -> str:
    """A value as the page writes it; a dash where there is none."""
    if value is None or value == "":
        return "–"
    if kind in ("text", "name", "range", "words", "long"):
        return str(value)
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "ms":
        return milliseconds(value / 1e3)
    if kind == "percent":
        return percent(value)
    return plain(value) + (" ×" if kind == "ratio" else "")


def cells(table: Table, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The rows of a table, written out."""
    return [[cell(row.get(c.key), c.kind) for c in table.columns] for row in rows]
