"""Write the accuracy table of README.md from the fits that ship: ``make docs``."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- accuracy: written by docs/render_accuracy.py -->", "<!-- end of accuracy -->"
GROUPS = {
    "gemm": "matrix products", "attention": "attention", "moe": "grouped experts",
    "collectives": "collectives and all-to-all", "kda": "KDA",
}  # fmt: skip
QUANTITIES = {"tpot_s": "TPOT", "board_j_per_output_token": "board energy per output token"}


def _percent(x: float) -> str:
    return f"{100 * x:.1f} %"


def render() -> str:
    """The table in Markdown, markers included."""
    folder = ROOT / "arch/measurements"
    kernels = json.loads((folder / "kernels-fit.json").read_text(encoding="utf-8"))
    serving = json.loads((folder / "serving-fit.json").read_text(encoding="utf-8"))
    rows: list[tuple[str, str, str, str]] = [
        (f"kernels held back: {GROUPS.get(name, name)}", "", _percent(value), "") for name, value in
        kernels["errors"].items()
    ]  # fmt: skip

    def told(words: str, g: dict[str, Any]) -> tuple[str, str, str, str]:
        return words, f"{g['n']:,}", _percent(g["median_ape"]), _percent(g["mean_ape"])

    rows += [told(f"serving held back: {QUANTITIES[g['quantity']]}", g) for g in serving["errors"]["check"]]
    rows += [told(f"serving, points of a {g['by']} left out: {g['name']}", g) for g in serving["errors"]["left_out"]]
    own = kernels["chip_specific_numbers"] + serving["chip_specific_numbers"]
    lines = [
        BEGIN,
        "| predicted against measured | points | median error | mean error |",
        "|---|--:|--:|--:|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"{own} numbers belong to one chip, {kernels['chip_specific_numbers']} of kernels and "
        f"{serving['chip_specific_numbers']} of serving; all others are shared.",
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
