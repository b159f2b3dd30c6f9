"""Bands of tokens/s per MW that others forecast, drawn beside the model's results where the case is theirs.

From a published article on mapping MoE inference to hardware (SemiAnalysis, October 2026), Figure 7: decode of a
Kimi-K3-class model at about 500,000 tokens of context.  Read off a logarithmic chart, so bands and not points; a
scenario forecast, not a measurement.  Nothing here is used in any computation of the model.
"""

from typing import NamedTuple

from codesign.report.summary import Case, Json

CAPTION = "scenario forecast read off a chart (published article on MoE inference, Figure 7; about 500k context)"


class Band(NamedTuple):
    """A forecast range of output tokens/s per MW; ``arch`` names the catalog's machine where there is one."""

    title: str
    arch: str | None
    low: float
    high: float


DECODE_515K = (
    Band("Vera Rubin 72", "vera-rubin-nvl72", 6e4, 8e4),
    Band("Vera Rubin 72 + LPU, near 2 ms", None, 1e5, 1e5),
    Band("Jalapeño", "jalapeno", 1e5, 3e5),
    Band("Jalapeño + super 3D RAM", "jalapeno-super-3d-ram", 4e5, 6e5),
)


def bands(summary: Json, case: Case) -> tuple[Band, ...]:
    """The bands that belong to a case: Kimi K3, decode, about 500k tokens; none else."""
    theirs = summary.get("phase") == "decode" and str(summary.get("model", "")).startswith("kimi-k3")
    return DECODE_515K if theirs and 490_000 <= case.context <= 530_000 else ()
