"""The operations of a pass under the roofs of their machine."""

import altair as alt

from codesign.report.charts.base import GREY, PART, PROBLEM, Figure, data, lane_colour, log_ticks, panel
from codesign.report.data import Tables
from codesign.report.data.operations import LEAST_INTENSITY, MOST_INTENSITY, rate_domain
from codesign.report.style import LANE_COLOURS, LANE_NAMES
from codesign.report.summary import Json, pass_words


def roofline_figure(summary: Json, tables: Tables) -> Figure | None:
    """Achieved arithmetic against arithmetic intensity, with achieved roofs per dtype."""
    if not tables["ceilings"]:
        return None
    here = f"{PROBLEM} && {PART}"
    low, high = rate_domain(tables["ceilings"])
    points = (
        alt.Chart(data("operations"))
        .transform_filter(f"{here} && datum.flop > 0 && datum.bytes > 0 && datum.time > 0")
        .transform_calculate(
            intensity=f"clamp(datum.flop / datum.bytes, {LEAST_INTENSITY}, {MOST_INTENSITY})",
            rate=f"clamp(datum.flop / datum.time * 1000, {low}, {high})",
        )
    )
    across = alt.Scale(type="log", domain=[LEAST_INTENSITY, MOST_INTENSITY], nice=False)
    x = alt.X(
        "intensity:Q",
        title="FLOP per byte of fast memory",
        scale=across,
        axis=alt.Axis(values=[0.1, 1, 10, 100, 1000, 10000], format=",~g"),
    )
    up = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=log_ticks(low, high, 9), format="~s")
    y = alt.Y("rate:Q", title="achieved FLOP/s per chip", scale=up, axis=axis)
    place = alt.Y("place:Q", title="achieved FLOP/s per chip", scale=up, axis=axis)
    roofs = alt.Chart(data("ceilings")).transform_filter(here)
    labels = alt.Chart(data("roof_labels")).transform_filter(here).transform_calculate(over="datum.intensity * 1.35")
    tooltip = [
        alt.Tooltip("name:N", title="operation"),
        alt.Tooltip("bound:N", title="bound by"),
        alt.Tooltip("dtype:N"),
        alt.Tooltip("intensity:Q", title="FLOP/B", format=",.3~g"),
        alt.Tooltip("rate:Q", title="FLOP/s", format=".3~s"),
        alt.Tooltip("share:Q", title="share of the pass", format=".1%"),
    ]
    chart = alt.layer(
        roofs.mark_line(strokeWidth=1.5, clip=True).encode(
            x=x, y=y, detail="roof:N", color=alt.value(GREY), order="intensity:Q"
        ),
        roofs.transform_filter(f"datum.intensity === {MOST_INTENSITY:.0f}")
        .mark_text(align="right", dx=-3, dy=-7, fontSize=11)
        .encode(x=x, y=y, text="roof:N"),
        labels.mark_rule(strokeWidth=0.7, opacity=0.5).encode(x=x, y=y, x2="over:Q", y2="place:Q"),
        points.mark_point(opacity=0.85).encode(
            x=x,
            y=y,
            color=lane_colour(shown=[n for n in LANE_COLOURS if n != LANE_NAMES["wait"]]),
            tooltip=tooltip,
            size=alt.Size("share:Q", scale=alt.Scale(domain=[0, 0.4], range=[25, 520], clamp=True), legend=None),
        ),
        labels.mark_text(align="left", dx=3).encode(x="over:Q", y=place, text="name:N"),
    )
    return Figure(
        name="roofline",
        title="Roofline of the operations",
        caption="Area of a point is its share of the pass, colour what binds it. Roofs are peak rates, per dtype; a "
        "point below its roof waits for another lane or for latency, has too few rows, or meets the kernels' "
        f"efficiency. {pass_words(summary)}.",
        panels=(panel(chart, 380),),
        scope="part",
    )
