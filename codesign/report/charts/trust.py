"""Published figures against the model's, and what the model's pass waits for at those points."""

import altair as alt

from codesign.report.charts.base import GREY, Figure, Spec, data, log_ticks, panel
from codesign.report.data import Tables
from codesign.report.summary import Json

#: Terms of a pass: colours of Tol's muted palette.
TERM_COLOURS = ["#4477aa", "#66ccee", "#ee6677", "#ccbb44", "#9a9a9a", "#aa3377", "#228833", "#bbbbbb"]


#: Chips with serving points: Tol's bright palette.
CHIP_COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"]


def _names(grid: bool) -> alt.Axis:
    return alt.Axis(ticks=False, domain=False, grid=grid, labelLimit=alt.ExprRef("narrow ? 170 : 340"))


def check_figure(_: Json, tables: Tables) -> Figure | None:
    """Predicted over published."""
    rows = [r for r in tables["checks"] if r["ratio"]]
    if not rows:
        return None
    far = max(2.0, *(max(r["ratio"], 1 / r["ratio"]) for r in rows)) * 1.35
    base = alt.Chart(data("checks")).transform_filter("isValid(datum.ratio)")
    y = alt.Y("name:N", title=None, sort=None, axis=_names(grid=True))
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
    told = alt.Text("ratio:Q", format=".2f")
    above, below = (base.transform_filter(f"datum.ratio {side} 1") for side in (">=", "<"))  # away from the line at 1
    chart = alt.layer(
        base.mark_rule(opacity=0.6).encode(x=alt.datum(1.0)),
        base.mark_point(size=80, color="#d55e00").encode(x=x, y=y, tooltip=tooltip),
        above.mark_text(align="left", dx=9).encode(x=x, y=y, text=told),
        below.mark_text(align="right", dx=-9).encode(x=x, y=y, text=told),
    )
    panels = [panel(chart, alt.Step(26))]
    if tables["check_terms"]:
        panels.append(_terms_panel())
    return Figure(
        name="checks",
        title="Published points against the model",
        caption="Nothing was tuned to hit these points; the table below names the terms that make the difference. "
        "Strokes across the bars are the pass that the published rate implies.",
        panels=tuple(panels),
        scope="study",
    )


def held_back_figure(_: Json, tables: Tables) -> Figure | None:
    """Predicted against measured TPOT of the serving points that the fit did not see, and their errors by chip."""
    rows = tables["held_back"]
    if not rows:
        return None
    low = min(min(r["measured"], r["predicted"]) for r in rows) / 1.15
    high = max(max(r["measured"], r["predicted"]) for r in rows) * 1.15
    scale, axis = (
        alt.Scale(type="log", domain=[low, high], nice=False),
        alt.Axis(values=log_ticks(low, high), format="~g"),
    )
    colour = alt.Color("chip:N", scale=alt.Scale(range=CHIP_COLOURS), legend=alt.Legend(title=None, orient="top"))
    tooltip = [
        "chip:N", "model:N", "framework:N", "concurrency:Q",
        *(alt.Tooltip(f"{k}:Q", title=f"{k} [ms]", format=".3~g") for k in ("measured", "predicted", "low", "high")),
        alt.Tooltip("error:Q", format="+.0%"),
    ]  # fmt: skip
    base = alt.Chart(data("held_back"))
    x = alt.X("measured:Q", title="measured TPOT [ms]", scale=scale, axis=axis)
    line = (
        base.transform_aggregate(n="count()")
        .transform_calculate(lo=str(low), hi=str(high))
        .mark_rule(strokeDash=[4, 4], color=GREY)
        .encode(x=alt.X("lo:Q", scale=scale), y=alt.Y("lo:Q", scale=scale), x2="hi:Q", y2="hi:Q")
    )
    points = base.mark_circle(size=28, opacity=0.65).encode(
        x=x, y=alt.Y("predicted:Q", title="predicted [ms]", scale=scale, axis=axis), color=colour, tooltip=tooltip
    )
    spread = base.mark_tick(thickness=1.5, size=14, opacity=0.6).encode(
        x=alt.X("error:Q", title="predicted over measured, less one", axis=alt.Axis(format="+.0%")),
        y=alt.Y("chip:N", title=None, axis=_names(grid=True)),
        color=alt.Color("chip:N", scale=alt.Scale(range=CHIP_COLOURS), legend=None),
        tooltip=tooltip,
    )
    inside = sum(r["low"] <= r["measured"] <= r["high"] for r in rows) / len(rows)
    middle = sorted(abs(r["error"]) for r in rows)[len(rows) // 2]
    return Figure(
        name="held_back",
        title="Serving points that no fit has seen",
        caption=f"{len(rows)} closed-loop serving points held back of the fit: median error {middle:.1%}, {inside:.0%} "
        "inside their 90 % intervals. The dashed line is measured = predicted.",
        panels=(panel(alt.layer(line, points), 340), panel(spread, alt.Step(30), "Error by chip")),
        columns=2,
        scope="study",
    )


def _terms_panel() -> Spec:
    """What the predicted pass of each point waits for, against the pass that the published rate implies."""
    base = alt.Chart(data("check_terms"))
    y = alt.Y("name:N", title=None, sort=None, axis=_names(grid=False))
    chart = alt.layer(
        base.mark_bar(height=14).encode(
            x=alt.X("sum(ms):Q", title="one pass [ms]", stack="zero"),
            y=y,
            color=alt.Color(
                "term:N",
                sort=None,
                scale=alt.Scale(range=TERM_COLOURS),
                legend=alt.Legend(title=None, orient="top", columns=alt.ExprRef("narrow ? 3 : 8")),
            ),
            order="order:Q",
            tooltip=["name:N", "term:N", alt.Tooltip("sum(ms):Q", title="ms", format=".3~g")],
        ),
        base.mark_tick(thickness=2.5, size=22).encode(x="max(published):Q", y=y),
    )
    return panel(chart, alt.Step(26), "What the pass waits for")
