"""What numbers that nobody has published would change: the range of tokens/s/MW that each of them spans."""

import altair as alt

from codesign.report.charts.base import PER_MEGAWATT, Figure, data, panel, part_colour
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json


def sensitivity_figure(summary: Json, tables: Tables) -> Figure | None:
    """A bar per unknown of the chosen machine and setting, other machines as upright lines."""
    if not tables["sensitivity"]:
        return None
    here = "datum.arch === chosen_arch && datum.setting === chosen_setting"
    base = alt.Chart(data("sensitivity")).transform_filter(here)
    y = alt.Y(
        "title:N",
        title=None,
        sort=alt.EncodingSortField(field="order", op="min"),
        axis=alt.Axis(ticks=False, domain=False, grid=True),
    )
    scale = alt.Scale(type="log", nice=False, padding=72)
    x = alt.X("low:Q", title=PER_MEGAWATT, scale=scale, axis=alt.Axis(format="~s", tickCount=5))
    tooltip = [
        alt.Tooltip("title:N", title="unknown"),
        alt.Tooltip("at_low:N", title="least at"),
        alt.Tooltip("low:Q", title="least", format=",.4~g"),
        alt.Tooltip("at_high:N", title="most at"),
        alt.Tooltip("high:Q", title="most", format=",.4~g"),
        alt.Tooltip("base:Q", title="as in the catalog", format=",.4~g"),
        alt.Tooltip("unserved:N", title="target missed at"),
    ]
    parts = parts_of(summary)
    others = alt.Chart(data("rivals")).transform_filter(here).encode(x="metric:Q", color=part_colour(parts, "series"))
    fits = "datum.high / datum.low > 1.02"
    told = base.transform_calculate(missed="datum.unserved === '' ? '' : '✕ missed at ' + datum.unserved")
    chart = alt.layer(
        others.mark_rule(strokeWidth=2, strokeDash=[5, 3]).encode(
            tooltip=["series:N", alt.Tooltip("metric:Q", format=",.4~g")]
        ),
        base.mark_bar(height=9, opacity=0.75).encode(x=x, x2="high:Q", y=y, color=part_colour(parts), tooltip=tooltip),
        base.transform_filter("isValid(datum.base)").mark_tick(thickness=2.5, size=17).encode(x="base:Q", y=y),
        base.transform_filter(f"{fits} && !narrow")
        .mark_text(align="right", dx=-5, fontSize=10.5)
        .encode(x=x, y=y, text="at_low:N"),
        told.mark_text(align="left", dx=5, fontSize=10.5)
        .transform_calculate(text=f"({fits} ? datum.at_high + ' ' : '') + datum.missed")
        .encode(x="high:Q", y=y, text="text:N"),
        others.transform_window(i="row_number()", sort=[alt.SortField("metric")])
        .transform_calculate(lift="-8 - 13 * (datum.i % 2)")
        .mark_text(fontSize=10.5, yOffset=alt.ExprRef("datum.lift"))
        .encode(y=alt.value(0), text="series:N"),
    )
    return Figure(
        name="sensitivity",
        title="What the unknowns would change",
        caption="Each bar moves one number of the chosen machine over the range that its file states, all else as in "
        "the "
        "catalog (the stroke); its ends are labelled with the number's value there. Dashed upright lines are the "
        "machines "
        "it is compared with: a bar across one means that the order depends on that number.",
        panels=(panel(chart, alt.Step(24)),),
        scope="setting",
    )
