"""What one more of anything would buy: elasticities of the machine's numbers, shadow prices of the budgets."""

import altair as alt

from codesign.report.charts.base import PROBLEM, SHOWN, Figure, data, panel, part_colour
from codesign.report.data import Tables
from codesign.report.style import parts_of, pretty
from codesign.report.summary import Json, items

#: Bars of one tornado.
MOST = 12


def elasticity_figure(summary: Json, tables: Tables) -> Figure | None:
    """A tornado per technology of exact elasticities at the optimum."""
    rows = tables["elasticities"]
    if not rows:
        return None
    titles = {f"Optimum, {pretty(t)}": pretty(t) for t in items(summary, "technologies")}
    panels = []
    for label in dict.fromkeys(str(r["label"]) for r in rows):
        base = (
            alt.Chart(data("elasticities"))
            .transform_filter(f"{PROBLEM} && datum.label === '{label}' && datum.rank <= {MOST}")
            .transform_calculate(sign="datum.value > 0 ? 'more helps' : 'less helps'", text="format(datum.value, '+.2f')")
        )
        y = alt.Y("title:N", title=None, sort=alt.EncodingSortField(field="rank", op="min"),
                  axis=alt.Axis(ticks=False, domain=False, grid=False))  # fmt: skip
        x = alt.X("value:Q", title="% tokens/s/MW per %", axis=alt.Axis(format="+.1f", tickCount=5), scale=alt.Scale(padding=34, nice=False))
        colour = alt.Color("sign:N", scale=alt.Scale(domain=["more helps", "less helps"], range=["#0072b2", "#d55e00"]),
                           legend=alt.Legend(title=None, orient="top"))  # fmt: skip
        chart = alt.layer(
            base.mark_bar().encode(x=x, y=y, color=colour, tooltip=["title:N", alt.Tooltip("value:Q", format="+.3f")]),
            base.transform_filter("datum.value > 0").mark_text(align="left", dx=4).encode(x=x, y=y, text="text:N"),
            base.transform_filter("datum.value < 0").mark_text(align="right", dx=-4).encode(x=x, y=y, text="text:N"),
        )
        panels.append(panel(chart, alt.Step(21), titles.get(label, label)))
    return Figure(
        name="elasticities",
        title="Elasticities at the optimum",
        caption="By how many percent tokens/s/MW changes when one number of the machine grows by one percent and all else, power "
        "set aside for it included, stays: exact derivatives with mapping and batch re-optimized.",
        panels=tuple(panels),
        columns=2,
        scope="problem",
    )


def shadow_figure(summary: Json, tables: Tables) -> Figure | None:
    """Shadow prices of the budgets and of the target, from both sides."""
    rows = tables["shadow_prices"]
    if not rows:
        return None
    parts = [p for p in parts_of(summary) if p.optimum]
    base = alt.Chart(data("shadow_prices")).transform_filter(f"{PROBLEM} && {SHOWN}")
    y = alt.Y("title:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, grid=True))
    offset = alt.YOffset("label:N", sort=[p.label for p in parts])
    x = alt.X("left:Q", title="% tokens/s/MW per % of budget", axis=alt.Axis(format=".2~f", tickCount=6))
    colour = part_colour(parts)
    tooltip = [alt.Tooltip("label:N", title="design"), alt.Tooltip("title:N", title="budget"),
               alt.Tooltip("left:Q", title="one less costs", format=".3~f"), alt.Tooltip("right:Q", title="one more buys", format=".3~f")]  # fmt: skip
    chart = alt.layer(
        base.mark_rule(strokeWidth=3, opacity=0.5).encode(x=x, x2="right:Q", y=y, yOffset=offset, color=colour),
        base.mark_point(shape="triangle-right", size=55).encode(x="right:Q", y=y, yOffset=offset, color=colour, tooltip=tooltip),
        base.mark_point(shape="triangle-left", size=55).encode(x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip),
    )
    return Figure(
        name="shadow_prices",
        title="Shadow prices",
        caption="What one percent more of a budget would buy (right-pointing) and one percent less would cost (left-pointing). The two "
        "part where the optimum sits on a kink: balanced lanes, tied mappings, a batch limited twice.",
        panels=(panel(chart, alt.Step(16)),),
        scope="problem",
    )
