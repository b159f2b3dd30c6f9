"""What all charts share: how they are told which case to draw, their scales of colour, and their dress.

A chart is a Vega-Lite specification over named tables (`codesign.report.data`).  It selects its rows by parameters that
the page sets for all charts at once: ``chosen_case``, ``chosen_problem``, ``chosen_part``, ``shown`` (labels of the parts
that are switched on) and ``narrow``.  An image is the same specification with those parameters fixed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from codesign.report.style import LANE_COLOURS, Part

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
        scope: what it is drawn for: ``study``, ``case``, ``problem`` or ``part`` (a problem and a part).
        basis: what is said of its numbers before the definition of TPOT.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Spec, ...]
    columns: int = 1
    scope: str = "case"
    basis: str = ""
    labels: tuple[str, ...] = field(default=())

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
    spec = chart.properties(**properties).to_dict()
    for key in ("config", "$schema", "params"):
        spec.pop(key, None)
    return spec


def part_colour(parts: Iterable[Part], name: str = "label", **options: Any) -> alt.Color:
    """Colour by part, the same in every chart, without a legend: the page has one key for all."""
    parts = list(parts)
    scale = alt.Scale(domain=[p.label for p in parts], range=[p.colour for p in parts])
    return alt.Color(f"{name}:N", scale=scale, legend=None, **options)


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
    return alt.Color(f"{name}:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=7))


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


def config(ink: str = "currentColor") -> Spec:
    """How charts are dressed. ``ink`` is the colour of text and lines: the page's own, or a fixed one in images."""
    faint = {"gridColor": ink, "gridOpacity": 0.13, "domainColor": ink, "domainOpacity": 0.45, "tickColor": ink,
             "tickOpacity": 0.45, "labelColor": ink, "titleColor": ink, "titleFontWeight": 500}  # fmt: skip
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif",
        "axis": {**faint, "labelFontSize": 11.5, "titleFontSize": 12, "titlePadding": 8, "labelOverlap": "greedy"},
        "axisY": {"labelLimit": 230},
        "legend": {"labelColor": ink, "titleColor": ink, "labelFontSize": 11.5, "symbolStrokeWidth": 1.5},
        "title": {"color": ink, "subtitleColor": ink, "anchor": "start", "fontSize": 13, "fontWeight": 600, "offset": 8,
                  "subtitleFontSize": 11},
        "view": {"stroke": None},
        "text": {"color": ink, "fontSize": 11.5},
        "rule": {"color": ink},
        "line": {"strokeWidth": 1.8},
        "point": {"filled": True, "size": 55},
        "bar": {"cornerRadius": 1},
    }  # fmt: skip


def parameters(values: Spec) -> list[Spec]:
    """The parameters that every chart takes, with their values."""
    names = ("chosen_case", "chosen_problem", "chosen_part", "shown", "narrow")
    return [{"name": name, "value": values[name]} for name in names]
