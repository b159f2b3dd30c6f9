"""The figures of the report, in the order in which an architect asks: from the answer to how far to trust it."""

from codesign.report.charts.answer import answer_figure
from codesign.report.charts.base import Figure
from codesign.report.charts.frontier import frontier_figure, mapping_figure
from codesign.report.charts.mixes import budget_figure, mix_figure
from codesign.report.charts.power import power_drawn_figure, power_table_figure
from codesign.report.charts.prices import elasticity_figure, shadow_figure
from codesign.report.charts.roofline import roofline_figure
from codesign.report.charts.search import search_figure
from codesign.report.charts.time import energy_figure, timeline_figure, waterfall_figure
from codesign.report.charts.trust import check_figure, held_back_figure
from codesign.report.charts.unknowns import sensitivity_figure
from codesign.report.data import Tables
from codesign.report.summary import Json

__all__ = ["Figure", "figures"]


def figures(summary: Json, tables: Tables) -> dict[str, Figure]:
    """Every figure that has something to draw, by name."""
    made = (
        answer_figure,
        frontier_figure,
        mapping_figure,
        mix_figure,
        budget_figure,
        waterfall_figure,
        timeline_figure,
        energy_figure,
        roofline_figure,
        power_drawn_figure,
        power_table_figure,
        elasticity_figure,
        shadow_figure,
        search_figure,
        held_back_figure,
        check_figure,
        sensitivity_figure,
    )
    found = [make(summary, tables) for make in made]
    return {figure.name: figure for figure in found if figure is not None}
