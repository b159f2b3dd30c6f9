"""Writes ``docs/glossary.md`` from `codesign.glossary`, where each name of a result is kept once: ``make docs``."""

from itertools import groupby
from pathlib import Path

from codesign.glossary import ENTRIES, TPOT_DEFINITION

WORDS = (
    ("TPOT", f"time per output token of one user: {TPOT_DEFINITION.partition('= ')[2]}"),
    ("TTFT", "time to first token: from the request to the first output token"),
    ("decode", "making output tokens one after the other, each behind its cached context"),
    ("prefill, midfill", "processing a whole prompt; a short new suffix behind a long cached prefix"),
    ("PP, TP, EP, DP", "pipeline stages; chips per attention instance; expert ranks; attention instances per stage"),
    (
        "lane",
        "a resource with a rate: memory, tensor, vector, scale-up, scale-out; latency is time that no rate shortens",
    ),
    ("scale-up, scale-out", "the fabric inside a domain of chips; the network between domains"),
    ("provisioned power", "what a site must supply for one chip all-in: chip, host, network, switches, cooling"),
    ("drawn power", "what the chip and its share of the rest take while serving"),
    ("kind", "how far a number can be trusted: datasheet, measured, fitted, estimate, assumption, rumour"),
    ("shadow price", "what a little more of a budget would buy at the optimum"),
)

INTRODUCTION = """\
# Glossary

Each name that a result carries, once: its unit and its meaning. SI throughout. Rates are of the whole mapping; per
chip, per user and per megawatt derive from them. Watts are per chip. A unit of 1 is a plain number.

<!-- Written by docs/render_glossary.py from codesign/glossary.py; change that, then: make docs -->
"""


def render() -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION, _table("Words", ("word", "meaning"), WORDS)]
    for group, entries in groupby(ENTRIES, key=lambda entry: entry.group):
        rows = [(f"`{e.name}`", "" if e.unit == "text" else e.unit, e.meaning) for e in entries]
        parts.append(_table(group.capitalize(), ("name", "unit", "meaning"), rows))
    return "\n".join(parts)


def _table(title: str, columns: tuple[str, ...], rows: "tuple[tuple[str, ...], ...] | list[tuple[str, ...]]") -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return f"## {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "glossary.md").write_text(render(), encoding="utf-8")
