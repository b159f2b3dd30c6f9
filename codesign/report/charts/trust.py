"""Published figures against the model's, and how the answer moves with numbers that nobody has published."""

import altair as alt

from codesign.report.charts.base import GREY, PER_MEGAWATT, Figure, Spec, data, panel, part_colour
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json


def check_figure(_: Json, tables: Tables) -> Figure | None:
    """Predicted over published."""
    rows = [r for r in tables["checks"] if r["ratio"]]
    if not rows:
        return None
    far = max(2.0, *(max(r["ratio"], 1 / r["ratio"]) for r in rows)) * 1.15
    base = alt.Chart(data("checks")).transform_filter("isValid(datum.ratio)")
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, grid=True))
    scale = alt.Scale(type="log", domain=[1 / far, far], nice=False)
    x = alt.X(
        "ratio:Q",
        title="predicted / published",
        scale=scale,
        axis=alt.Axis(values=[0.25, 0.5, 0.8, 1, 1.25, 2, 4], format="~g"),
    )
    tooltip = [
        "name:N",
        alt.Tooltip("predicted:Q", format=",.4~g"),
        alt.Tooltip("published:Q", format=",.4~g"),
        "unit:N",
        "terms:N",
        "source:N",
    ]
    chart = alt.layer(
        base.mark_rule(opacity=0.6).encode(x=alt.datum(1.0)),
        base.mark_point(size=80, color="#d55e00").encode(x=x, y=y, tooltip=tooltip),
        base.mark_text(align="left", dx=9).encode(x=x, y=y, text=alt.Text("ratio:Q", format=".2f")),
    )
    return Figure(
        name="checks",
        title="Published points against the model",
        caption="Nothing was tuned to hit these points; the table below names the terms that make the difference.",
        panels=(panel(chart, alt.Step(26)),),
        scope="study",
    )


def sensitivity_figure(summary: Json, tables: Tables) -> Figure | None:
    """One panel per unknown number: tokens/s/MW over its range, other machines as level lines."""
    rows = tables["sensitivity"]
    if not rows:
        return None
    colour = part_colour(parts_of(summary), "series")
    panels: list[Spec] = []
    for i in dict.fromkeys(r["panel"] for r in rows):
        here = [r for r in rows if r["panel"] == i]
        first, unit = here[0], f" [{here[0]['unit']}]" if here[0]["unit"] else ""
        values = [float(r["value"]) for r in here]
        wide = min(values) > 0 and max(values) / min(values) >= 3
        scale = alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False, nice=False, padding=6)
        x = alt.X("value:Q", title=f"{first['title']}{unit}", scale=scale, axis=alt.Axis(tickCount=4, format="~g"))
        y = alt.Y("metric:Q", title=PER_MEGAWATT, scale=alt.Scale(zero=False), axis=alt.Axis(format="~s", tickCount=4))
        base = alt.Chart(data("sensitivity")).transform_filter(f"datum.panel === {i}").encode(x=x, y=y, color=colour)
        tooltip = [
            alt.Tooltip("series:N", title="part"),
            alt.Tooltip("value:Q", title=str(first["title"]), format=",.3~g"),
            alt.Tooltip("metric:Q", title=PER_MEGAWATT, format=",.4~g"),
        ]
        own = base.transform_filter("datum.series === datum.label")
        others = base.transform_filter("datum.series !== datum.label")
        names = others.transform_aggregate(value="min(value)", metric="min(metric)", groupby=["series"])
        chart = alt.layer(
            others.mark_line(strokeDash=[5, 3], opacity=0.9),
            names.mark_text(align="left", dy=-7, fontSize=10.5, color=GREY).encode(x=x, y=y, text="series:N"),
            own.mark_line(strokeWidth=2.6),
            own.mark_point(size=45).encode(tooltip=tooltip),
        )
        panels.append(panel(chart, 190, f"{first['label']}: {first['title']}"))
    return Figure(
        name="sensitivity",
        title="What the unknowns would change",
        caption="Each panel moves one unpublished number over its range, all else as in the catalog; dashed level "
        "lines are the "
        "parts it is compared with.",
        panels=tuple(panels),
        columns=3,
        scope="study",
    )
