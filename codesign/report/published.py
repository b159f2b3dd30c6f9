"""Where the published forecast of `codesign.study.published` belongs in a report, and what is said of it there."""

from codesign.report.summary import Case, Json
from codesign.study.published import BAND_CONTEXTS, DECODE_515K, Band

#: What the bands are.
FORECAST = "scenario forecast read off a chart (article on mapping MoE inference, SemiAnalysis, Figure 7; 500k context)"


def bands(summary: Json, case: Case) -> tuple[Band, ...]:
    """The forecast bands that belong to a case: Kimi K3, decode, about 500k tokens; none else."""
    theirs = summary.get("phase") == "decode" and str(summary.get("model", "")).startswith("kimi-k3")
    low, high = BAND_CONTEXTS
    return DECODE_515K if theirs and low <= case.context <= high else ()
