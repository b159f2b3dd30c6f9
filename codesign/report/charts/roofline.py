"""The operations of a pass under the roofs of their machine."""

import altair as alt

from codesign.report.charts.base import GREY, PART, PROBLEM, Figure, data, lane_colour, panel
from codesign.report.data import Tables
from codesign.report.summary import Json


def roofline_figure(_: Json, tables: Tables) -> Figure | None:
    """Achieved arithmetic against arithmetic intensity, with achieved roofs per dtype."""
    if not tables["ceilings"]:
        return None
    here = f"{PROBLEM} && {PART}"
    rates = [r["rate"] for r in tables["ceilings"] if r["ridge"]]
    domain = [min(rates) * 3e-5, 1.6 * max(rates)]
    points = (
        alt.Chart(data("operations"))
        .transform_filter(f"{here} && datum.flop > 0 && datum.bytes > 0 && datum.time > 0")
        .transform_calculate(intensity="datum.flop / datum.bytes", rate="datum.flop / datum.time * 1000")
        .transform_window(place="rank()", sort=[alt.SortField("share", order="descending")])
    )
    x = alt.X("intensity:Q", title="FLOP per byte of fast memory", scale=alt.Scale(type="log", domain=[0.1, 2e4], nice=False, clamp=True),
              axis=alt.Axis(format="~s", tickCount=6))  # fmt: skip
    y = alt.Y("rate:Q", title="achieved FLOP/s per chip", scale=alt.Scale(type="log", domain=domain, nice=False, clamp=True),
              axis=alt.Axis(format="~s", tickCount=6))  # fmt: skip
    roofs = alt.Chart(data("ceilings")).transform_filter(here)
    tooltip = [
        alt.Tooltip("name:N", title="operation"), alt.Tooltip("bound:N", title="bound by"), alt.Tooltip("dtype:N"),
        alt.Tooltip("intensity:Q", title="FLOP/B", format=",.3~g"), alt.Tooltip("rate:Q", title="FLOP/s", format=".3~s"),
        alt.Tooltip("share:Q", title="share of the pass", format=".1%"),
    ]  # fmt: skip
    chart = alt.layer(
        roofs.mark_line(strokeWidth=1.5, clip=True).encode(x=x, y=y, detail="roof:N", color=alt.value(GREY), order="intensity:Q"),
        roofs.transform_filter("datum.ridge").mark_text(align="left", dx=6, dy=-7, fontSize=11).encode(x=x, y=y, text="roof:N"),
        points.mark_point(opacity=0.85).encode(
            x=x, y=y, color=lane_colour(), tooltip=tooltip,
            size=alt.Size("share:Q", scale=alt.Scale(domain=[0, 0.4], range=[25, 520], clamp=True), legend=None)),
        points.transform_filter("datum.place <= 7 && datum.place % 2 === 1").mark_text(align="right", dx=-9, dy=-6).encode(x=x, y=y, text="name:N"),
        points.transform_filter("datum.place <= 7 && datum.place % 2 === 0").mark_text(align="left", dx=9, dy=9).encode(x=x, y=y, text="name:N"),
    )  # fmt: skip
    return Figure(
        name="roofline",
        title="Roofline of the operations",
        caption="Area of a point is its share of the pass, colour what binds it. Roofs are the rates that the model lets kernels "
        "achieve, per dtype; a point below its roof waits for another lane, for latency, or has too few rows.",
        panels=(panel(chart, 380),),
        scope="part",
    )
