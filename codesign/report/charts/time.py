"""Where a token's time and energy go: waterfall by operation, one layer lane by lane, energy by operation."""

import altair as alt

from codesign.lanes import LANES
from codesign.report.charts.base import PART, PROBLEM, Figure, data, lane_colour, panel
from codesign.report.data import Tables
from codesign.report.data.operations import OTHERS
from codesign.report.style import LANE_COLOURS, LANE_NAMES
from codesign.report.summary import Json, pass_words

_HERE = f"{PROBLEM} && {PART}"
_BARS = (*LANES, "latency")

#: Data name of a lane to what it is called, as a Vega expression over ``datum.key``.
_LANE_NAME = "datum.key === 'scale_up' ? 'scale-up' : datum.key === 'scale_out' ? 'scale-out' : datum.key"


def _y() -> alt.Y:
    return alt.Y(
        "name:N",
        sort=alt.EncodingSortField(field="order", op="min"),
        title=None,
        axis=alt.Axis(ticks=False, domain=False, grid=False),
    )


def waterfall_figure(summary: Json, tables: Tables) -> Figure | None:
    """The pass as a staircase of its operations, and how long each lane is busy in it."""
    if not tables["operations"]:
        return None
    steps = (
        alt.Chart(data("operations"))
        .transform_filter(f"{_HERE} && datum.time > 0")
        .transform_calculate(exposed="datum.time - datum.hidden")
        .transform_window(end="sum(exposed)", sort=[alt.SortField("order")], frame=[None, 0])
        .transform_joinaggregate(whole="sum(exposed)")
        .transform_calculate(
            start="datum.end - datum.exposed",
            middle="datum.end - min(datum.latency, datum.exposed)",
            behind="datum.end + datum.hidden",
            text="format(datum.exposed * 1000, ',.3~r') + ' µs, ' + format(datum.exposed / datum.whole, '.1%')",
            side="datum.exposed > 0.4 * datum.whole ? 'inside' : datum.end < 0.68 * datum.whole ? 'after' : 'before'",
            centre="datum.end - datum.exposed / 2",
            ink="indexof(['vector', 'waiting'], datum.lane) >= 0 ? '#1b1f24' : 'white'",
        )
    )
    lane = lane_colour("lane")
    scale = alt.Scale(domain=list(LANE_COLOURS), range=list(LANE_COLOURS.values()))
    tooltip = [
        alt.Tooltip("name:N", title="operation"),
        alt.Tooltip("layers:Q"),
        alt.Tooltip("bound:N", title="bound by"),
        alt.Tooltip("dtype:N"),
        alt.Tooltip("text:N", title="exposed"),
        alt.Tooltip("hidden:Q", title="hidden [ms]", format=".3~g"),
        alt.Tooltip("latency:Q", title="latency [ms]", format=".3~g"),
        *(alt.Tooltip(f"{k}:Q", title=f"{LANE_NAMES[k]} [ms]", format=".3~g") for k in LANES),
    ]
    x = alt.X("start:Q", title="time of one pass [ms]", axis=alt.Axis(tickCount=6), scale=alt.Scale(nice=False))
    chart = alt.layer(
        steps.mark_bar().encode(x=x, x2="middle:Q", y=_y(), color=lane, tooltip=tooltip),
        steps.transform_calculate(floor="'latency'")
        .mark_bar()
        .encode(x="middle:Q", x2="end:Q", y=_y(), color=alt.Color("floor:N", scale=scale), tooltip=tooltip),
        steps.transform_filter("datum.hidden > 0")
        .mark_bar(fillOpacity=0.12, strokeDash=[3, 2], strokeWidth=1)
        .encode(x="end:Q", x2="behind:Q", y=_y(), color=lane, stroke=alt.Stroke("lane:N", scale=scale, legend=None)),
        steps.transform_filter("datum.side === 'after'")
        .mark_text(align="left", dx=5)
        .encode(x="behind:Q", y=_y(), text="text:N"),
        steps.transform_filter("datum.side === 'before'")
        .mark_text(align="right", dx=-5)
        .encode(x="start:Q", y=_y(), text="text:N"),
        steps.transform_filter("datum.side === 'inside'")
        .mark_text()
        .encode(x="centre:Q", y=_y(), text="text:N", fill=alt.Fill("ink:N", scale=None)),
    )
    busy = (
        alt.Chart(data("operations"))
        .transform_filter(f"{_HERE} && datum.time > 0")
        .transform_calculate(exposed="datum.time - datum.hidden")
        .transform_joinaggregate(whole="sum(exposed)")
        .transform_fold(list(_BARS))
        .transform_aggregate(total="sum(value)", whole="max(whole)", groupby=["key"])
        .transform_calculate(lane=_LANE_NAME, share="datum.total / datum.whole")
    )
    order = [LANE_NAMES[k] for k in _BARS]
    y = alt.Y("lane:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False, grid=False))
    share = alt.X("share:Q", title="busy share of the pass", axis=alt.Axis(format="%", tickCount=6))
    hue = alt.Color("lane:N", scale=scale, legend=None)
    lanes = alt.layer(
        busy.mark_bar().encode(x=share, y=y, color=hue),
        busy.mark_text(align="left", dx=4).encode(x=share, y=y, text=alt.Text("share:Q", format=".1%")),
    )
    return Figure(
        name="waterfall",
        title="Where a token's time goes",
        caption="Operations of a pass on the fullest chip, each over all its layers, in the order of the model; colour "
        "says which "
        "lane binds, grey is latency that no rate shortens, a dashed box is time hidden behind other operations. The "
        "steps end at "
        f"TPOT (times the tokens accepted per pass). {pass_words(summary)}, parts that miss the target at "
        "the least TPOT that they reach.",
        panels=(panel(chart, alt.Step(22)), panel(lanes, alt.Step(22), "How busy each lane is")),
        scope="part",
    )


def timeline_figure(_: Json, tables: Tables) -> Figure | None:
    """One layer of each kind, lane by lane, in microseconds."""
    if not tables["operations"]:
        return None
    order = ["operation", *(LANE_NAMES[k] for k in _BARS)]
    bars = (
        alt.Chart(data("operations"))
        .transform_filter(f"{_HERE} && datum.time > 0 && indexof(datum.name, '.') > 0")
        .transform_calculate(one="datum.time / datum.layers * 1000")
        .transform_window(end="sum(one)", sort=[alt.SortField("order")], frame=[None, 0])
        .transform_fold(list(_BARS))
        .transform_filter("datum.value > 0")
        .transform_calculate(
            lane=_LANE_NAME,
            length="datum.value / datum.layers * 1000",
            start="datum.key === 'latency' ? datum.end - datum.length : datum.end - datum.one",
            stop="datum.start + datum.length",
            block="split(datum.name, '.')[0]",
        )
    )
    scale = alt.Scale(domain=list(LANE_COLOURS), range=list(LANE_COLOURS.values()))
    y = alt.Y(
        "lane:N",
        sort=order,
        scale=alt.Scale(domain=order),
        title=None,
        axis=alt.Axis(ticks=False, domain=False, grid=False),
    )
    tooltip = [
        alt.Tooltip("name:N", title="operation"),
        alt.Tooltip("lane:N"),
        alt.Tooltip("length:Q", title="on this lane [µs]", format=".3~g"),
        alt.Tooltip("one:Q", title="operation [µs]", format=".3~g"),
        alt.Tooltip("layers:Q"),
    ]
    ends = bars.transform_joinaggregate(whole="max(end)").transform_aggregate(
        end="max(end)", one="max(one)", whole="max(whole)", groupby=["name"]
    )
    names = ends.transform_filter("datum.one > 0.05 * datum.whole").transform_calculate(
        centre="datum.end - datum.one / 2", row="'operation'"
    )
    chart = alt.layer(
        ends.mark_rule(opacity=0.25, strokeWidth=0.7).encode(x="end:Q"),
        bars.mark_bar(height=16).encode(
            x=alt.X(
                "start:Q",
                title="time within one layer of each kind [µs]",
                scale=alt.Scale(nice=False),
                axis=alt.Axis(tickCount=8),
            ),
            x2="stop:Q",
            y=y,
            color=alt.Color("lane:N", scale=scale, legend=None),
            tooltip=tooltip,
        ),
        names.mark_text(fontSize=11).encode(x="centre:Q", y=alt.Y("row:N", sort=order), text="name:N"),
    )
    return Figure(
        name="timeline",
        title="One layer of each kind, lane by lane",
        caption="Operations follow one another from left to right, one layer of each kind of block; faint lines part "
        "them. The "
        f"longest lane of an operation sets its time. “{OTHERS[0].upper() + OTHERS[1:]}” are left out; hover for "
        f"names.",
        panels=(panel(chart, alt.Step(26)),),
        scope="part",
    )


def energy_figure(summary: Json, tables: Tables) -> Figure | None:
    """All-in energy of an output token, by operation."""
    if not any(r["joules"] for r in tables["operations"]):
        return None
    base = (
        alt.Chart(data("operations"))
        .transform_filter(f"{_HERE} && isValid(datum.joules) && datum.joules > 0")
        .transform_joinaggregate(whole="sum(joules)")
        .transform_calculate(
            text="format(datum.joules, ',.3~r') + ' J, ' + format(datum.joules / datum.whole, '.1%')",
            kind="datum.time > 0 ? 'operations' : 'standing'",
            after="datum.joules < 0.6 * datum.whole",
        )
    )
    y = alt.Y(
        "name:N",
        sort=alt.EncodingSortField(field="joules", op="max", order="descending"),
        title=None,
        axis=alt.Axis(ticks=False, domain=False, grid=False),
    )
    x = alt.X("joules:Q", title="J per output token, all-in, as drawn", axis=alt.Axis(tickCount=6))
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=["operations", "standing"], range=["#4477aa", "#9a9a9a"]), legend=None
    )
    chart = alt.layer(
        base.mark_bar().encode(x=x, y=y, color=colour),
        base.mark_text(align="left", dx=4).encode(x=x, y=y, text="text:N"),
    )
    return Figure(
        name="energy",
        title="Where a token's energy goes",
        caption="Grey is what stands whether or not tokens flow: static power of the chip, and its share of host, "
        f"network and cooling. {pass_words(summary)}.",
        panels=(panel(chart, alt.Step(22)),),
        scope="part",
        basis="Drawn, not provisioned.",
    )
