"""Tokens/s/MW against TPOT, and the same for one part with its mappings as colour."""

import math

import altair as alt

from codesign.report.charts.base import (
    CASE,
    GREY,
    PART,
    PER_MEGAWATT,
    SHOWN,
    Figure,
    data,
    log_ticks,
    panel,
    part_colour,
    part_shape,
    status_dash,
)
from codesign.report.data import Tables
from codesign.report.data.frontier import domains
from codesign.report.published import FORECAST
from codesign.report.style import parts_of
from codesign.report.summary import Json, items

#: Height of the chart and of a line of its labels [px].
HEIGHT, LINE = 460, 14


def spread(chart: alt.Chart, bottom: float, top: float) -> alt.Chart:
    r"""Places for labels beside a logarithmic axis, near their ``value`` but at least a line apart: column ``place``.

    In heights ``u`` from 0 to 1, sorted upwards, the lowest places at or above ``u`` that keep a gap ``g`` are
    :math:`p_i = i g + \max_{j \le i} (u_j - j g)`; where the last ones leave the chart all are pushed back down
    likewise, :math:`q_i = \min_{j \ge i} (\min(p_j, 1) - (j - i) g)`.  Running extremes do both, so the places follow
    the choice of parts that are shown.
    """
    gap = LINE / HEIGHT
    scale = math.log(top / bottom)
    return (
        chart.transform_calculate(height=f"log(datum.value / {bottom}) / {scale}")
        .transform_window(i="row_number()", sort=[alt.SortField("height")])
        .transform_calculate(lift=f"datum.height - datum.i * {gap}")
        .transform_window(lifted="max(lift)", sort=[alt.SortField("i")], frame=[None, 0])
        .transform_calculate(drop=f"min(datum.lifted + datum.i * {gap}, 1) - datum.i * {gap}")
        .transform_window(dropped="min(drop)", sort=[alt.SortField("i")], frame=[0, None])
        .transform_calculate(place=f"{bottom} * exp((datum.dropped + datum.i * {gap}) * {scale})")
    )


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("label:N", title="part"),
        alt.Tooltip("status:N"),
        alt.Tooltip("tpot:Q", title="TPOT [ms]", format=".3~g"),
        alt.Tooltip("per_user:Q", title="tokens/s/user", format=",.3~g"),
        alt.Tooltip("value:Q", title=PER_MEGAWATT, format=",.4~g"),
        alt.Tooltip("per_chip:Q", title="tokens/s/chip", format=",.4~g"),
        alt.Tooltip("mapping:N"),
        alt.Tooltip("batch:Q", title="batch per instance", format=".3~g"),
        alt.Tooltip("target:Q", title="target [ms]", format=".3~g"),
    ]


def _axes(summary: Json, tables: Tables) -> tuple[alt.X, alt.X, alt.X, alt.Y, alt.Scale]:
    """TPOT below, without an axis, read as tokens/s/user above; tokens/s/MW at the side, and its scale."""
    (left, right), (bottom, top) = domains(summary, tables["frontier"])
    scale = alt.Scale(type="log", domain=[left, right], nice=False)
    values = sorted(t * 1e3 for t in items(summary, "targets_s")) or log_ticks(left, right)
    below = alt.X("tpot:Q", scale=scale, title="TPOT [ms]", axis=alt.Axis(values=values, format="~g", orient="bottom"))
    bare = alt.X("tpot:Q", scale=scale, axis=None)
    speeds = [1000.0 / s for s in (5, 10, 20, 50, 100, 200, 500, 1000) if left <= 1000.0 / s <= right]
    above = alt.X(
        "tpot:Q",
        scale=scale,
        title="tokens/s per user",
        axis=alt.Axis(orient="top", values=speeds, labelExpr="format(1000 / datum.value, ',.0f')", grid=False),
    )
    heights = alt.Scale(type="log", domain=[bottom, top], nice=False)
    y = alt.Y(
        "value:Q", scale=heights, title=PER_MEGAWATT, axis=alt.Axis(format="~s", values=log_ticks(bottom, top, 9))
    )
    return below, bare, above, y, heights


def frontier_figure(summary: Json, tables: Tables) -> Figure | None:
    """Every machine's frontier and every technology's optimum, with forecast bands behind them where they belong."""
    if not tables["frontier"]:
        return None
    parts = parts_of(summary)
    below, bare, above, y, heights = _axes(summary, tables)
    colour = part_colour(parts)
    points = alt.Chart(data("frontier")).transform_filter(f"{CASE} && {SHOWN}")
    curve = points.transform_filter("datum.kind === 'frontier'").encode(x=bare, y=y, color=colour, detail="part:N")
    answer = points.transform_filter("datum.kind === 'target'").encode(x=bare, y=y, color=colour, detail="part:N")
    _, (bottom, top) = domains(summary, tables["frontier"])
    named = alt.Chart(data("frontier_labels")).transform_filter(f"{CASE} && {SHOWN} && !narrow")
    labels = spread(named, bottom, top).encode(color=colour)
    place = alt.Y("place:Q", scale=heights, title=PER_MEGAWATT)

    unseen = points.mark_point(opacity=0, size=1, clip=True)
    layers: list[alt.Chart] = [unseen.encode(x=below, y=y), unseen.encode(x=above, y=y)]
    band = alt.Chart(data("bands")).transform_filter(CASE)
    if tables["bands"]:
        labelled = {p.key: p for p in parts}
        hues = alt.Scale(
            domain=[r["title"] for r in tables["bands"]],
            range=[labelled[str(r["part"])].colour if r["part"] in labelled else GREY for r in tables["bands"]],
        )
        fill = alt.Color("title:N", scale=hues, legend=None)
        height = alt.Y("low:Q", scale=heights, title=PER_MEGAWATT)
        layers += [
            band.mark_rect(opacity=0.16).encode(y=height, y2="high:Q", color=fill),
            band.transform_filter("datum.low === datum.high")
            .mark_rule(strokeDash=[4, 4], opacity=0.8)
            .encode(y=height, color=fill),
            band.transform_calculate(text="'forecast: ' + datum.title")
            .mark_text(align="left", dx=6, fontSize=10.5, fontStyle="italic", opacity=0.85)
            .encode(x=alt.value(0), y=alt.Y("middle:Q", scale=heights, title=PER_MEGAWATT), text="text:N"),
        ]
    layers += [
        curve.mark_line(clip=True, strokeWidth=1.6, opacity=0.9).encode(strokeDash=status_dash(), order="tpot:Q"),
        curve.mark_point(clip=True, size=14, opacity=0.75).encode(tooltip=_tooltip()),
        answer.transform_filter("datum.optimum").mark_line(clip=True, strokeWidth=3.2).encode(order="tpot:Q"),
        answer.mark_point(clip=True, size=70).encode(shape=part_shape(parts), tooltip=_tooltip()),
        labels.mark_rule(strokeWidth=0.8, opacity=0.6).encode(
            x=bare, y=alt.Y("value:Q", scale=heights, title=PER_MEGAWATT), x2=alt.value("width"), y2="place:Q"
        ),
        labels.mark_text(align="left", dx=5).encode(x=alt.value("width"), y=place, text="label:N"),
    ]
    chart = (
        alt.layer(*layers)
        .resolve_axis(x="independent")
        .resolve_scale(color="independent" if tables["bands"] else "shared")
    )
    note = f" Shaded bands: {FORECAST}." if tables["bands"] else ""
    return Figure(
        name="frontier",
        title="Tokens/s per megawatt against time per token",
        caption="Both axes logarithmic, the same for every context and precision. Thick lines with diamonds are the "
        "optimum of each technology at each target in its buildable form (a different machine at every point); thin "
        "lines are frontiers over mappings and batch of parts that exist (solid), are announced (dashed) or are "
        "hypothetical (dotted), with larger marks at the targets. "
        "Hover a point for its mapping and batch. Parts that are switched off in the key are not drawn." + note,
        panels=(panel(chart, HEIGHT),),
    )


def mapping_figure(summary: Json, tables: Tables) -> Figure | None:
    """One part's frontier, coloured by pipeline and tensor degree."""
    if not tables["frontier"]:
        return None
    below, bare, above, y, _ = _axes(summary, tables)
    degrees = sorted({str(r["degrees"]) for r in tables["frontier"] if r["degrees"]})
    colour = alt.Color(
        "degrees:N",
        title="mapping",
        sort=degrees,
        scale=alt.Scale(scheme="tableau10"),
        legend=alt.Legend(orient="bottom"),
    )
    own = alt.Chart(data("frontier")).transform_filter(f"{CASE} && {PART}")
    behind = alt.Chart(data("frontier_behind")).transform_filter(f"{CASE} && {PART}")
    machine = own.transform_filter("!datum.optimum")
    optimum = own.transform_filter("datum.optimum")
    layers: list[alt.Chart] = []
    for base, x in ((machine, below), (behind, bare)):
        layers += [
            base.mark_line(clip=True, opacity=0.35).encode(x=x, y=y, order="tpot:Q", color=alt.value(GREY)),
            base.mark_point(clip=True, size=70).encode(x=bare, y=y, color=colour, tooltip=_tooltip()),
            base.transform_aggregate(tpot="max(tpot)", value="max(value)", groupby=["label"])
            .mark_text(align="left", dx=-4, dy=18, fontSize=11)
            .encode(x=bare, y=y, text="label:N"),
        ]
    layers += [
        optimum.mark_point(clip=True, shape="diamond", size=190, stroke="#1b1f24", strokeWidth=1.2).encode(
            x=bare, y=y, color=colour, tooltip=_tooltip()
        ),
        own.mark_point(opacity=0, size=1, clip=True).encode(x=above, y=y),
    ]
    return Figure(
        name="mappings",
        title="Which mapping is best where",
        caption="The frontier of the chosen part, coloured by its pipeline (PP) and tensor (TP) degrees; experts and "
        "instances are in the tooltip. An optimum is another machine at every target and has no frontier: its answers "
        "are the large diamonds, over the frontier of the catalog's best part of its memory technology.",
        panels=(panel(alt.layer(*layers).resolve_axis(x="independent"), 300),),
        scope="part",
    )
