"""The answer as a dot plot: everything that meets the target, best first, with its range where one was computed."""

import altair as alt

from codesign.report.charts.base import PER_MEGAWATT, PROBLEM, Figure, data, panel, part_colour, part_shape
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json


def answer_figure(summary: Json, tables: Tables) -> Figure | None:
    """Tokens/s/MW of each optimum and machine at the chosen target."""
    if not any(r["value"] for r in tables["answers"]):
        return None
    parts = parts_of(summary)
    base = alt.Chart(data("answers")).transform_filter(f"{PROBLEM} && isValid(datum.value)")
    y = alt.Y(
        "label:N",
        sort=alt.EncodingSortField(field="rank", op="min"),
        title=None,
        axis=alt.Axis(grid=True, ticks=False, domain=False),
    )
    x = alt.X(
        "value:Q",
        title=f"{PER_MEGAWATT}",
        scale=alt.Scale(type="log", nice=False, padding=14),
        axis=alt.Axis(format="~s", tickCount=5),
    )
    ranged = any(r["low"] is not None and r["high"] is not None for r in tables["answers"])
    tooltip = [
        alt.Tooltip("label:N", title="part"),
        alt.Tooltip("value:Q", title=PER_MEGAWATT, format=",.4~g"),
        alt.Tooltip("tpot:Q", title="TPOT [ms]", format=".3~g"),
        alt.Tooltip("mapping:N"),
        alt.Tooltip("batch:Q", format=".3~g"),
        alt.Tooltip("limited_by:N", title="limited by"),
        *(alt.Tooltip(f"{end}:Q", format=",.3~g") for end in ("low", "high") if ranged),
    ]
    ranges = (
        base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(strokeWidth=5, opacity=0.35)
        .encode(y=y, x=alt.X("low:Q"), x2="high:Q", color=part_colour(parts))
    )
    points = base.mark_point(size=90).encode(
        x=x, y=y, color=part_colour(parts), shape=part_shape(parts), tooltip=tooltip
    )
    told = base.transform_calculate(right="max(datum.value, datum.high)")
    names = told.mark_text(align="left", dx=10).encode(
        x=alt.X("right:Q"), y=y, text=alt.Text("value:Q", format=",.3~r")
    )
    bar = " A bar behind a mark is the range that its assumptions span, where it was computed." if ranged else ""
    return Figure(
        name="answer",
        title="What serves the most at this target",
        caption="Logarithmic axis. Diamonds are optima of the search in their buildable form, other marks parts of the "
        "catalog." + bar,
        panels=(panel(ranges + points + names, alt.Step(21)),),
        scope="problem",
    )
