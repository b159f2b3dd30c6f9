"""Whether a machine stays ahead of a rival over a range, in words."""

from collections.abc import Sequence
from typing import Any

#: Name of the entry in which all unknowns of a machine move at once.
TOGETHER = "all_unknowns"

#: Formats of the attention scan that are tried, as published first.
ATTENTION = ("bf16", "fp8")


def note_of(entry: dict[str, Any]) -> str:
    """In words: against which rivals the machine stays ahead or behind over the whole range, and where that turns."""
    told = []
    for rival in dict.fromkeys(r for c in entry["cases"] for r in c["reference"]):
        kinds: dict[str, list[dict[str, Any]]] = {"ahead": [], "behind": [], "turns": []}
        for c in entry["cases"]:
            verdict = verdict_of(c, rival)
            if verdict:
                kinds[verdict].append(c)
        parts = [f"{word} at {where(cases)}" for word, cases in kinds.items() if cases]
        if parts:
            told.append(f"against {rival} " + ", ".join(parts))
    return "; ".join(told)


def verdict_of(case: dict[str, Any], rival: str) -> str | None:
    """``ahead`` or ``behind`` a rival over the whole range, ``turns`` inside it; None where neither ever serves."""
    level = case["reference"].get(rival) or 0.0
    ahead = [m is not None and m >= level for m in case["metric"]]
    if not level and not any(ahead):
        return None
    return "ahead" if all(ahead) else "turns" if any(ahead) else "behind"


def where(cases: Sequence[dict[str, Any]]) -> str:
    """Targets and formats of attention in words: ``20, 50 ms``; ``bf16 20 ms, fp8 20, 50 ms`` where they differ."""
    by = {a: [f"{c['target_s'] * 1e3:g}" for c in cases if c["attention"] == a] for a in ATTENTION}
    texts = {a: ", ".join(targets) + " ms" for a, targets in by.items() if targets}
    if len(texts) == len(ATTENTION) and len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{a} {text}" for a, text in texts.items())
