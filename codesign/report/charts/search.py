"""How the search went: convergence, starts, the residual at the optimum, and what rounding costs."""

import altair as alt

from codesign.report.charts.base import (
    CASE,
    PROBLEM,
    SHOWN,
    Figure,
    Spec,
    data,
    panel,
    part_colour,
    part_shape,
    target_axis,
)
from codesign.report.charts.mixes import _targets
from codesign.report.data import Tables
from codesign.report.style import parts_of
from codesign.report.summary import Json

#: Gaps below this are drawn on it [ln].
FLOOR = 1e-6

#: What an optimum must reach: KKT residual (design: quality bars).
KKT_BAR = 1e-3


def search_figure(summary: Json, tables: Tables) -> Figure | None:
    """Convergence and starts for the chosen problem; residual and rounding loss for the chosen case."""
    if not tables["rounding"]:
        return None
    parts = [p for p in parts_of(summary) if p.optimum]
    colour, shape = part_colour(parts), part_shape(parts)
    panels: list[Spec] = []
    gap = alt.Axis(values=[10.0**k for k in range(-12, 3)], format="~e")
    if tables["convergence"]:
        curve = alt.Chart(data("convergence")).transform_filter(f"{PROBLEM} && {SHOWN}")
        curve = curve.transform_calculate(drawn=f"max(datum.gap, {FLOOR})")
        y = alt.Y("drawn:Q", title="distance from the optimum", scale=alt.Scale(type="log"), axis=gap)
        chart = curve.mark_line().encode(
            x=alt.X("iteration:Q", title="iteration, best of the starts, then its finish"), y=y, color=colour
        )
        panels.append(panel(chart, 190, "Convergence"))
    if tables["starts"]:
        ends = alt.Chart(data("starts")).transform_filter(f"{PROBLEM} && {SHOWN}")
        ends = ends.transform_calculate(drawn=f"max(datum.gap, {FLOOR})")
        y = alt.Y("drawn:Q", title="distance from the optimum", scale=alt.Scale(type="log"), axis=gap)
        x = alt.X("start:O", title="start", axis=alt.Axis(labelAngle=0))
        chart = ends.mark_point(size=70).encode(
            x=x,
            y=y,
            color=colour,
            shape=shape,
            tooltip=[alt.Tooltip("label:N", title="design"), "start:O", alt.Tooltip("gap:Q", format=".2~e")],
        )
        panels.append(panel(chart, 190, "Where each start ended"))
    targets = target_axis(_targets(summary, tables))
    rows = alt.Chart(data("rounding")).transform_filter(f"{CASE} && {SHOWN}")
    if any(r["kkt"] is not None for r in tables["rounding"]):
        kept = rows.transform_filter("isValid(datum.kkt)").transform_calculate(drawn="max(datum.kkt, 1e-9)")
        y = alt.Y("drawn:Q", title="KKT residual", scale=alt.Scale(type="log", nice=False, padding=10), axis=gap)
        chart = alt.layer(
            kept.mark_line(opacity=0.6).encode(x=targets, y=y, color=colour),
            kept.mark_point(size=60).encode(
                x=targets, y=y, color=colour, shape=shape, tooltip=["label:N", alt.Tooltip("kkt:Q", format=".2~e")]
            ),
            rows.mark_rule(strokeDash=[4, 3], opacity=0.6).encode(y=alt.datum(KKT_BAR)),
        )
        panels.append(panel(chart, 190, f"Residual at the optimum (bar {KKT_BAR:g})"))
    if any(r["loss"] is not None for r in tables["rounding"]):
        y = alt.Y("loss:Q", title="loss by rounding", axis=alt.Axis(format=".1~%", tickCount=5))
        chart = alt.layer(
            rows.mark_line(opacity=0.6).encode(x=targets, y=y, color=colour),
            rows.mark_point(size=60).encode(
                x=targets, y=y, color=colour, shape=shape, tooltip=["label:N", alt.Tooltip("loss:Q", format=".2%")]
            ),
        )
        panels.append(panel(chart, 190, "What rounding to a buildable design costs"))
    return Figure(
        name="search",
        title="How the search went",
        caption=f"Distance is |ln(objective / optimum)| in tokens/s/MW before rounding, so about relative; "
        f"below {FLOOR:g} it is drawn there. "
        "Starts are shown as the first phase of the search left them; the best was finished to the optimum.",
        panels=tuple(panels),
        columns=2,
        keyed=True,
    )
