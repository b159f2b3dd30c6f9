"""Power drawn while serving, and the envelope formula against published ratings."""

import altair as alt

from codesign.report.charts.base import GREY, PROBLEM, SHOWN, Figure, data, panel
from codesign.report.data import Tables
from codesign.report.style import LANE_COLOURS
from codesign.report.summary import Json, pass_words


def power_drawn_figure(summary: Json, tables: Tables) -> Figure | None:
    """Watts per chip of every part at the chosen problem, piece by piece, against what is provisioned."""
    if not tables["power_drawn"]:
        return None
    names = {
        "static": "#6b6f76",
        "lanes": "#4477aa",
        "board": "#9fb2cf",
        **LANE_COLOURS,
        "host, network, cooling": "#c9ccd1",
    }
    used = [n for n in names if any(r["share"] == n for r in tables["power_drawn"])]
    base = alt.Chart(data("power_drawn")).transform_filter(f"{PROBLEM} && {SHOWN}")
    order = alt.EncodingSortField(field="provisioned", op="max", order="ascending")
    y = alt.Y("label:N", title=None, sort=order, axis=alt.Axis(ticks=False, domain=False, grid=False))
    x = alt.X("watts:Q", title="W per chip, all-in, as drawn", stack="zero", axis=alt.Axis(format=",~r", tickCount=6))
    colour = alt.Color(
        "share:N",
        scale=alt.Scale(domain=used, range=[names[n] for n in used]),
        legend=alt.Legend(title=None, orient="top", columns=alt.ExprRef("narrow ? 2 : 8")),
    )
    tooltip = [
        alt.Tooltip("label:N", title="part"),
        alt.Tooltip("share:N", title="piece"),
        alt.Tooltip("watts:Q", format=",.3~g"),
        alt.Tooltip("provisioned:Q", title="provisioned [W]", format=",.4~g"),
    ]
    chart = alt.layer(
        base.mark_bar(height=14).encode(x=x, y=y, color=colour, order="order:Q", tooltip=tooltip),
        base.transform_aggregate(provisioned="max(provisioned)", groupby=["label"])
        .mark_tick(thickness=2.5, size=20, color=GREY)
        .encode(x="provisioned:Q", y=alt.Y("label:N", sort=order, title=None)),
    )
    return Figure(
        name="power_drawn",
        title="What a chip draws while serving",
        caption="Static power, each lane's energy over time, and the share of host, network and cooling; the grey tick "
        "is the "
        f"power provisioned per chip, on which tokens per megawatt stand. {pass_words(summary)}.",
        panels=(panel(chart, alt.Step(23)),),
        scope="problem",
        basis="Drawn against provisioned.",
    )


def power_table_figure(_: Json, tables: Tables) -> Figure | None:
    """Envelope of the formula over the published rating, part by part."""
    rows = [r for r in tables["power_table"] if r["ratio"]]
    if not rows:
        return None
    base = alt.Chart(data("power_table")).transform_filter("isValid(datum.ratio)")
    y = alt.Y("part:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, grid=False))
    x = alt.X("published_w:Q", title="W per chip", scale=alt.Scale(zero=True), axis=alt.Axis(format=",~r", tickCount=6))
    kind = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=["fitted", "predicted"], range=[GREY, "#d55e00"]),
        legend=alt.Legend(title="envelope", orient="top"),
    )
    told = base.transform_calculate(
        kind="datum.fitted ? 'fitted' : 'predicted'",
        text="format(datum.ratio, '.2f') + ' ×'",
        most="max(datum.published_w, datum.envelope_w)",
    )
    chart = alt.layer(
        told.mark_rule(strokeWidth=2, opacity=0.5).encode(x=x, x2="envelope_w:Q", y=y, color=kind),
        told.mark_point(shape="stroke", size=200, angle=90, filled=False, strokeWidth=2.5, color=GREY).encode(x=x, y=y),
        told.mark_point(shape="diamond", size=80).encode(
            x="envelope_w:Q",
            y=y,
            color=kind,
            tooltip=[
                alt.Tooltip("part:N"),
                alt.Tooltip("published_w:Q", format=",.4~g"),
                alt.Tooltip("envelope_w:Q", format=",.4~g"),
                alt.Tooltip("ratio:Q", format=".3~g"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("source:N"),
            ],
        ),
        told.mark_text(align="left", dx=11).encode(x="most:Q", y=y, text="text:N"),
    )
    return Figure(
        name="power_table",
        title="Power budget: formula against published ratings",
        caption="Strokes are published ratings, diamonds the envelope: static power and the largest over regimes of "
        "rates times "
        "energies. Constants were fitted to the ratings of the grey parts and predict those of the others.",
        panels=(panel(chart, alt.Step(23)),),
        scope="study",
        basis="Chip power, without host and cooling.",
    )
