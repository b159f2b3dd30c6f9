"""What one more of anything would buy: elasticities of the machine's numbers, shadow prices of the budgets."""

import altair as alt

from codesign.report.charts.base import PROBLEM, SHOWN, Figure, data, designs_of, panel, part_colour
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json

#: Bars of one tornado.
MOST = 12


def elasticity_figure(summary: Json, tables: Tables) -> Figure | None:
    """A tornado per technology of elasticities at the optimum."""
    rows = tables["elasticities"]
    if not rows:
        return None
    panels = []
    for label in designs_of(summary, rows):
        base = (
            alt.Chart(data("elasticities"))
            .transform_filter(f"{PROBLEM} && datum.label === '{label}' && datum.rank <= {MOST} && datum.size >= 0.005")
            .transform_calculate(
                sign="datum.value > 0 ? 'more helps' : 'less helps'", text="format(datum.value, '+.2f')"
            )
        )
        y = alt.Y(
            "title:N",
            title=None,
            sort=alt.EncodingSortField(field="rank", op="min"),
            axis=alt.Axis(ticks=False, domain=False, grid=False),
        )
        x = alt.X("value:Q", title="% tokens/s/MW per %", axis=alt.Axis(format=".2~f", tickCount=5))
        colour = alt.Color(
            "sign:N",
            scale=alt.Scale(domain=["more helps", "less helps"], range=["#2b83c6", "#d55e00"]),
            legend=alt.Legend(title=None, orient="top"),
        )
        chart = alt.layer(
            base.mark_bar().encode(x=x, y=y, color=colour, tooltip=["title:N", alt.Tooltip("value:Q", format="+.3f")]),
            base.transform_filter("datum.value > 0")
            .mark_text(align="right", dx=-4)
            .encode(x=alt.datum(0), y=y, text="text:N"),
            base.transform_filter("datum.value < 0")
            .mark_text(align="left", dx=4)
            .encode(x=alt.datum(0), y=y, text="text:N"),
        )
        panels.append(panel(chart, alt.Step(21), label.partition(", ")[2]))
    return Figure(
        name="elasticities",
        title="Elasticities at the optimum",
        caption="By how many percent tokens/s/MW changes when one number of the machine grows by one percent and all "
        "else, power set aside for it included, stays: derivatives at the optimum before rounding, on its mapping, "
        "the batch following. Numbers that come whole, such as the chips of a scale-up domain, are left out: they "
        "move the answer in steps.",
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
    x = alt.X(
        "high:Q",
        title="% tokens/s/MW per % of budget",
        scale=alt.Scale(padding=8),
        axis=alt.Axis(format=".2~f", tickCount=6),
    )
    colour = part_colour(parts)
    tooltip = [
        alt.Tooltip("label:N", title="design"),
        alt.Tooltip("title:N", title="budget"),
        alt.Tooltip("high:Q", title="one less costs", format=".3~f"),
        alt.Tooltip("low:Q", title="one more buys", format=".3~f"),
    ]
    chart = alt.layer(
        base.mark_rule(strokeWidth=3, opacity=0.5).encode(x=x, x2="low:Q", y=y, yOffset=offset, color=colour),
        base.mark_point(shape="triangle-right", size=110).encode(
            x="low:Q", y=y, yOffset=offset, color=colour, tooltip=tooltip
        ),
        base.mark_point(shape="triangle-left", size=110).encode(
            x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
        ),
    )
    return Figure(
        name="shadow_prices",
        title="Shadow prices",
        caption="What one percent more of a budget would buy (right-pointing) and one percent less would cost "
        "(left-pointing), at the optimum before rounding. The two part where the "
        "optimum sits on a kink: balanced lanes, tied mappings, a batch limited twice. A budget that is used up may "
        "have no price: where the target holds the batch, more capacity buys nothing.",
        panels=(panel(chart, alt.Step(16)),),
        scope="problem",
        keyed=True,
    )
