"""Write the accuracy table of README.md from the fits that ship: ``make docs``.

Each row stands beside the error that it may have at most; a row beyond it is marked, and counted under the table.
"""

import csv
import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from codesign.calibration.serving.terms import SERVED

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- accuracy: written by docs/render_accuracy.py -->", "<!-- end of accuracy -->"
GROUPS = {
    "gemm": "matrix products", "attention": "attention", "moe": "grouped experts",
    "collectives": "collectives and all-to-all", "kda": "KDA",
}  # fmt: skip
QUANTITIES = {"tpot_s": "TPOT", "board_j_per_output_token": "board energy per output token"}

#: Points of a kind at least for a row of its own.
FEWEST = 10

#: Share of points in their intervals; half width over the median error; median error of a chip and model, at most.
COVERAGE, WIDTH, GROUP = (0.80, 0.97), 2.0, 0.20

#: The largest error that a row may have: of the median, and of the mean where it has a bar.
KERNELS = (0.15, None)
CHECK: dict[str, tuple[float, float | None]] = {"tpot_s": (0.09, 0.12), "board_j_per_output_token": (0.12, None)}
LEFT_OUT: dict[str, tuple[float, float | None]] = {
    "chip": (0.15, None), "model": (0.20, None), "chip and model": (0.25, None),
}  # fmt: skip


class Row(NamedTuple):
    """One row: words, points if told, errors, and the largest that they may be."""

    words: str
    points: int | None
    median: float
    mean: float | None
    bars: tuple[float | None, float | None]

    @property
    def misses(self) -> bool:
        """Whether an error is above its bar."""
        pairs = zip((self.median, self.mean), self.bars, strict=True)
        return any(error is not None and bar is not None and error > bar for error, bar in pairs)


def _percent(x: float | None, digits: int = 1) -> str:
    return "" if x is None else f"{100 * x:.{digits}f} %"


def _line(row: Row) -> str:
    bar = " / ".join(_percent(bar, 0) for bar in row.bars if bar is not None)
    told = ["" if row.points is None else f"{row.points:,}", _percent(row.median), _percent(row.mean)]
    return f"| {' | '.join([row.words, *told, f'**missed**: {bar}' if row.misses else bar])} |"


def _alone(numbers: list[dict[str, Any]]) -> int:
    """Numbers of generations of which one chip has numbers of its own."""
    measured = {n["of"] for n in numbers if n["level"] == "chip"}
    alone = {name for name, chips in SERVED.items() if len(measured & set(chips)) == 1}
    return sum(n["level"] == "generation" and n["of"] in alone for n in numbers)


def _intervals(g: dict[str, Any]) -> list[str]:
    """How many points held back lie in their intervals, and how wide these are."""
    inside, half = g["coverage_90"], g["median_half_width"]
    ratio = half / g["median_ape"]
    words = ["" if COVERAGE[0] <= inside <= COVERAGE[1] else ", **missed**", "" if ratio <= WIDTH else ", **missed**"]
    low, high = (_percent(x, 0) for x in COVERAGE)
    return [
        "",
        f"Intervals of TPOT held back: {_percent(inside, 0)} of the points inside (bar {low} to {high}{words[0]});",
        f"half width {_percent(half)} in the median, {ratio:.1f} times the median error (bar {WIDTH:g}{words[1]}).",
    ]


def _unseen(left_out: list[dict[str, Any]]) -> list[str]:
    """How many points of chips, and of models, that a fit was not shown lie in their intervals."""
    lines = []
    for by in ("chip", "model"):
        told = [g for g in left_out if g["by"] == by]
        inside = sum(g["n"] * g["coverage_90"] for g in told) / sum(g["n"] for g in told)
        least = min(told, key=lambda g: g["coverage_90"])
        words = "" if COVERAGE[0] <= inside <= COVERAGE[1] else ", **missed**"
        lines.append(
            f"Of points whose {by} was left out {_percent(inside, 0)} lie in their intervals{words}, least of "
            f"{least['name']}: {_percent(least['coverage_90'], 0)}."
        )
    return lines


def _families(numbers: list[dict[str, Any]]) -> int:
    """Numbers of kernel families, which all chips share."""
    return sum(n["level"] == "kernel" for n in numbers)


def _worst(path: Path) -> str:
    """The chip and model with the largest median error among points held back."""
    found: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            error = abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1.0)
            found.setdefault(f"{row['model']} on {row['chip']}", []).append(error)
    worst = max((median(errors), name) for name, errors in found.items() if len(errors) >= FEWEST)
    missed = ", **missed**" if worst[0] > GROUP else ""
    told = f"{worst[1]}, {_percent(worst[0])} (bar {_percent(GROUP, 0)}{missed})"
    return f"Worst chip and model held back, {FEWEST} points or more: {told}."


def render() -> str:
    """The table in Markdown, markers included."""
    folder = ROOT / "arch/measurements"
    kernels = json.loads((folder / "kernels-fit.json").read_text(encoding="utf-8"))
    serving = json.loads((folder / "serving-fit.json").read_text(encoding="utf-8"))
    rows = [
        Row(f"kernels held back: {GROUPS.get(name, name)}", None, value, None, KERNELS)
        for name, value in kernels["errors"].items()
    ]

    def told(words: str, g: dict[str, Any], bars: tuple[float | None, float | None]) -> Row:
        return Row(words, g["n"], g["median_ape"], g["mean_ape"], bars)

    rows += [
        told(f"serving held back: {QUANTITIES[g['quantity']]}", g, CHECK[g["quantity"]])
        for g in serving["errors"]["check"]
    ]
    rows += [
        told(f"{QUANTITIES[g['quantity']]} of these that goes most by {g['by']['limited_by']}", g, (None, None))
        for g in serving["errors"]["limits"]
        if g["quantity"] == "tpot_s" and g["n"] >= FEWEST
    ]
    rows += [
        told(f"serving, points of a {g['by']} left out: {g['name']}", g, LEFT_OUT[g["by"]])
        for g in serving["errors"]["left_out"]
    ]
    barred = [row for row in rows if row.bars != (None, None)]
    missed = [row.words for row in rows if row.misses]
    verdict = f"Bars missed: {len(missed)} of {len(barred)}" + (f" ({'; '.join(missed)})." if missed else ".")
    own = kernels["chip_specific_numbers"] + serving["chip_specific_numbers"]
    alone = _alone(kernels["numbers"]) + _alone(serving["numbers"])
    lines = [
        BEGIN,
        "| predicted against measured | points | median error | mean error | bar, median / mean |",
        "|---|--:|--:|--:|--:|",
        *(_line(row) for row in rows),
        "",
        verdict,
        *_intervals(next(g for g in serving["errors"]["check"] if g["quantity"] == "tpot_s")),
        *_unseen(serving["errors"]["left_out"]),
        _worst(folder / "serving-held-back.csv"),
        "",
        f"{own} numbers belong to one chip, {kernels['chip_specific_numbers']} of kernels and "
        f"{serving['chip_specific_numbers']} of serving; all others are shared. Of the shared ones {alone} belong to",
        f"generations of which one chip was measured, whose relatives start from them, and "
        f"{_families(kernels['numbers'])} to kernel families,",
        "not all of which were measured on every chip.",
        END,
    ]
    return "\n".join(lines)


def placed(readme: str) -> str:
    """README with the table of `render` between its markers."""
    before, rest = readme.split(BEGIN, 1)
    return before + render() + rest.split(END, 1)[1]


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(placed(page.read_text(encoding="utf-8")), encoding="utf-8")
