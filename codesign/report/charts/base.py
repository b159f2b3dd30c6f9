"""What all charts share: how they are told which case to draw, their scales of colour, and their dress.

A chart is a Vega-Lite specification over named tables (`codesign.report.data`).  It selects its rows by parameters that
the page sets for all charts at once: ``chosen_case``, ``chosen_problem``, ``chosen_part``, ``chosen_arch`` and
``chosen_setting`` (of the sensitivities), ``shown`` (the labels that are switched on) and ``narrow``.  An image is the
same specification with those parameters fixed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from codesign.report.style import LANE_COLOURS, Part, parts_of
from codesign.report.summary import Json

Spec = dict[str, Any]

CASE = "datum.case === chosen_case"
PROBLEM = "datum.problem === chosen_problem"
PART = "datum.part === chosen_part"
SHOWN = "indexof(shown, datum.label) >= 0"

PER_MEGAWATT = "tokens/s per MW"
GREY = "#8c8c8c"


@dataclass(frozen=True)
class Figure:
    """One figure of the report: panels side by side under one title, and the words that go with them.

    Attributes:
        name: of its files and of its place in the page. title, caption: what it shows, and how to read it.
        panels: specifications without data. columns: how many stand side by side where there is room.
        scope: what it is drawn for: ``study``, ``case``, ``problem``, ``part`` (a problem and a part) or
            ``setting`` (a machine and setting of the sensitivities).
        basis: what is said of its numbers before the definition of TPOT.
        keyed: whether colours mean parts that only the page's key names; an image then needs a legend.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Spec, ...]
    columns: int = 1
    scope: str = "case"
    basis: str = ""
    keyed: bool = False

    def tables(self) -> list[str]:
        """Names of the tables that the panels draw."""
        found: dict[str, None] = {}

        def walk(spec: Any) -> None:
            if isinstance(spec, dict):
                data = spec.get("data")
                if isinstance(data, dict) and "name" in data:
                    found[data["name"]] = None
                for value in spec.values():
                    walk(value)
            elif isinstance(spec, list):
                for value in spec:
                    walk(value)

        walk(list(self.panels))
        return list(found)


def data(name: str) -> alt.NamedData:
    """A table by its name."""
    return alt.NamedData(name=name)


def panel(chart: Any, height: Any = None, title: str = "") -> Spec:
    """The specification of one panel, as wide as its container."""
    properties: dict[str, Any] = {"width": "container"}
    if height is not None:
        properties["height"] = height
    if title:
        properties["title"] = title
    spec = chart.properties(**properties).to_dict(validate=False)
    for key in ("config", "$schema", "params"):
        spec.pop(key, None)
    return spec


def part_colour(parts: Iterable[Part], name: str = "label", **options: Any) -> alt.Color:
    """Colour by part, the same in every chart, without a legend: the page has one key for all."""
    parts = list(parts)
    scale = alt.Scale(domain=[p.label for p in parts], range=[p.colour for p in parts])
    return alt.Color(f"{name}:N", scale=scale, legend=None, **options)


def designs_of(summary: Json, rows: Iterable[dict[str, Any]]) -> list[str]:
    """Labels of the optima that a table speaks of, in the study's order: one panel each."""
    named = {r["label"] for r in rows}
    return [p.label for p in parts_of(summary) if p.optimum and p.label in named]


def part_shape(parts: Iterable[Part]) -> alt.Shape:
    """Shape by part, as its colour."""
    parts = list(parts)
    scale = alt.Scale(domain=[p.label for p in parts], range=[p.shape for p in parts])
    return alt.Shape("label:N", scale=scale, legend=None)


def status_dash() -> alt.StrokeDash:
    """Dash by status: shipping solid, announced dashed, hypothetical dotted."""
    scale = alt.Scale(domain=["shipping", "announced", "hypothetical"], range=[[1, 0], [7, 3], [2, 2]])
    return alt.StrokeDash("status:N", scale=scale, legend=None)


def lane_colour(name: str = "bound", shown: Sequence[str] | None = None) -> alt.Color:
    """Colour by lane, with a legend on top."""
    names = [n for n in LANE_COLOURS if shown is None or n in shown]
    scale = alt.Scale(domain=names, range=[LANE_COLOURS[n] for n in names])
    return alt.Color(f"{name}:N", scale=scale, legend=alt.Legend(title=None, orient="top"))


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round values within a range for the ticks of a logarithmic axis: 1, 2, 5 of each decade, more or fewer as fit.

    The densest of several familiar series that gives at most ``most`` ticks.
    """
    if not 0 < low < high:
        return []
    best: list[float] = []
    for series in (
        (1.0,),
        (1.0, 3.0),
        (1.0, 2.0, 5.0),
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
        tuple(x / 2 for x in range(2, 20)),
        tuple(x / 10 for x in range(10, 100)),
    ):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [float(f"{x * 10.0**p:.3g}") for p in powers for x in series if low <= x * 10.0**p <= high]
        if len(found) > most:
            break
        best = found
    return best


def target_axis(targets_ms: Sequence[float]) -> alt.X:
    """Target TPOT on a logarithmic axis with its ticks on the study's targets."""
    values = sorted(targets_ms)
    ends = (0.8 * values[0], 1.25 * values[-1]) if values else (1.0, 100.0)
    return alt.X(
        "target:Q",
        title="target TPOT [ms]",
        scale=alt.Scale(type="log", domain=list(ends), nice=False),
        axis=alt.Axis(values=values, format="~g", grid=False),
    )


def config(ink: str = "currentColor", legend_columns: int = 8) -> Spec:
    """How charts are dressed. ``ink`` is the colour of text and lines: the page's own, or a fixed one in images."""
    faint = {
        "gridColor": ink,
        "gridOpacity": 0.13,
        "domainColor": ink,
        "domainOpacity": 0.45,
        "tickColor": ink,
        "tickOpacity": 0.45,
        "labelColor": ink,
        "titleColor": ink,
        "titleFontWeight": 500,
    }
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif",
        "axis": {
            **faint,
            "labelFontSize": 11.5,
            "titleFontSize": 12,
            "titlePadding": 8,
            "labelOverlap": "greedy",
            "labelSeparation": 6,
        },
        "axisY": {"labelLimit": 340},
        "legend": {
            "columns": legend_columns,
            "labelColor": ink,
            "titleColor": ink,
            "labelFontSize": 11.5,
            "symbolStrokeWidth": 1.5,
        },
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "anchor": "start",
            "fontSize": 13,
            "fontWeight": 600,
            "offset": 8,
            "subtitleFontSize": 11,
        },
        "view": {"stroke": None},
        "text": {"color": ink, "fontSize": 11.5},
        "rule": {"color": ink},
        "tick": {"color": ink},
        "line": {"strokeWidth": 1.8},
        "point": {"filled": True, "size": 55},
        "bar": {"cornerRadius": 1},
    }


def parameters(values: Spec) -> list[Spec]:
    """The parameters that every chart takes, with their values."""
    names = ("chosen_case", "chosen_problem", "chosen_part", "chosen_arch", "chosen_setting", "shown", "narrow")
    return [{"name": name, "value": values[name]} for name in names]
