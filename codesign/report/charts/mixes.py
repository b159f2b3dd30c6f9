"""What the best machines are made of, and which budgets hold them back."""

import altair as alt

from codesign.report.charts.base import (
    CASE,
    GREY,
    SHOWN,
    Figure,
    Spec,
    data,
    designs_of,
    log_ticks,
    panel,
    part_colour,
    part_shape,
    target_axis,
)
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json, items


def _targets(summary: Json, tables: Tables) -> list[float]:
    return sorted({t * 1e3 for t in items(summary, "targets_s")} or {r["target"] for r in tables["answers"]})


def mix_figure(summary: Json, tables: Tables) -> Figure | None:
    """One panel per variable of the search, against the target."""
    rows = tables["mixes"]
    if not rows:
        return None
    parts = parts_of(summary)
    x, colour = target_axis(_targets(summary, tables)), part_colour(parts)
    panels: list[Spec] = []
    for name in dict.fromkeys(r["variable"] for r in rows):
        first = next(r for r in rows if r["variable"] == name)
        unit = f" [{first['unit']}]" if first["unit"] else ""
        seen = [float(v) for r in rows if r["variable"] == name for v in (r["value"], r["built"]) if v]
        low, high = 0.85 * min(seen), 1.18 * max(seen)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(values=log_ticks(low, high, 6), format="~g"))
        base = alt.Chart(data("mixes")).transform_filter(f"{CASE} && {SHOWN} && datum.variable === '{name}'")
        tooltip = [
            alt.Tooltip("label:N", title="design"),
            alt.Tooltip("target:Q", title="target [ms]", format="~g"),
            alt.Tooltip("value:Q", title=f"optimum{unit}", format=",.4~g"),
            alt.Tooltip("built:Q", title=f"built{unit}", format=",.4~g"),
            alt.Tooltip("at:N", title="held by bound"),
            alt.Tooltip("low:Q", title="lower bound", format=",.4~g"),
            alt.Tooltip("high:Q", title="upper bound", format=",.4~g"),
        ]
        held = base.transform_filter("datum.at !== ''").transform_calculate(
            bound="datum.at === 'low' ? datum.low : datum.high"
        )
        chart = alt.layer(
            held.mark_rule(strokeDash=[2, 3], opacity=0.6, clip=True).encode(y=alt.Y("bound:Q", title=None)),
            base.mark_line(strokeWidth=2.4).encode(x=x, y=y, color=colour, order="target:Q"),
            base.mark_point(size=60).encode(x=x, y=y, color=colour, shape=part_shape(parts), tooltip=tooltip),
            base.transform_filter("isValid(datum.built)")
            .mark_tick(thickness=2, size=13, orient="horizontal")
            .encode(x=x, y=alt.Y("built:Q", title=None), color=colour),
        )
        panels.append(panel(chart, 170, f"{first['title']}{unit}"))
    return Figure(
        name="mixes",
        title="The winning mix at each target",
        caption="Per chip; both axes logarithmic. Diamonds are the optimum before rounding, bars across them "
        "the buildable design that rounding gives. A dotted line is a bound of the search that holds a variable: the "
        "answer there depends on the bound.",
        panels=tuple(panels),
        columns=3,
        keyed=True,
    )


def budget_figure(summary: Json, tables: Tables) -> Figure | None:
    """Use of each budget by target, one panel per technology; what binds is marked."""
    rows = tables["budget_use"]
    if not rows:
        return None
    panels: list[Spec] = []
    for label in designs_of(summary, rows):
        base = (
            alt.Chart(data("budget_use"))
            .transform_filter(f"{CASE} && datum.label === '{label}'")
            .transform_calculate(
                text="(datum.idle ? '○ ' : datum.active ? '● ' : '') + format(datum.use, '.0%')",
                state="datum.idle ? 'used up, worth nothing at the margin' : datum.active ? 'binds' : 'slack'",
                ink="datum.use > 0.62 ? 'white' : '#1b1f24'",
            )
            .encode(
                x=alt.X(
                    "target:O",
                    title="target TPOT [ms]",
                    axis=alt.Axis(labelAngle=0, format="~g", ticks=False, domain=False),
                ),
                y=alt.Y("title:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False)),
            )
        )
        scale = alt.Scale(domain=[0, 1], range=["#eef3f7", "#0b4f7d"], clamp=True)
        tooltip = [
            alt.Tooltip("title:N", title="budget"),
            alt.Tooltip("use:Q", format=".1%"),
            alt.Tooltip("state:N"),
            alt.Tooltip("limit:Q", format=",.4~g"),
            alt.Tooltip("unit:N"),
        ]
        chart = base.mark_rect(stroke=GREY, strokeOpacity=0.3).encode(
            color=alt.Color("use:Q", scale=scale, legend=None), tooltip=tooltip
        ) + base.mark_text(fontSize=11).encode(text="text:N", color=alt.Color("ink:N", scale=None))
        panels.append(panel(chart.resolve_scale(color="independent"), alt.Step(24), label.partition(", ")[2]))
    return Figure(
        name="budgets",
        title="What binds",
        caption="Share of each budget that the optimum uses, before rounding. A full dot marks a budget that binds: "
        "its shadow price is below. An open dot marks one that is used up but worth nothing at the margin: its price "
        "is zero, for example that of capacity where the target and not the memory ends the batch.",
        panels=tuple(panels),
        columns=2,
    )
