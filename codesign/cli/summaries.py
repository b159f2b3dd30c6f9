"""How the outcome of a study looks in a terminal; drawn from its ``summary.json`` alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from codesign.cli.tables import Cell, console, table, told, warnings
from codesign.glossary import TPOT_DEFINITION

#: Findings told in the terminal; the report has them all.
FINDINGS = 6


def summary(document: Mapping[str, Any], run: str, page: str | None, out: Console | None = None) -> None:
    """Draw what a study found: per context and precision the best design at each target, beside the best machine."""
    out = out or console()
    out.print(f"[bold]{escape(document.get('title') or document['name'])}[/bold]")
    cases: dict[tuple[float, str], list[Sequence[Cell]]] = {}
    for problem in document["problems"]:
        rows = cases.setdefault((problem["context"], problem["precision"]), [])
        rows.append([told(problem["target_s"], "s"), *_design(problem.get("best")), *_machine(problem)])
    columns = ("TPOT ≤", "best mix", "memory", "scale-up", "tok/s/MW", "limited by", "best machine", "tok/s/MW", "gain")
    for (context, precision), rows in cases.items():
        title = f"{document['model']} {document['phase']} at {context:,.0f} tokens, {precision} weights outside experts"
        out.print(table(title, columns, rows, left=4, text=("limited by", "best machine")))
    findings = document.get("findings") or ()
    for line in findings[:FINDINGS]:
        out.print(f"- {line}", markup=False, soft_wrap=True)
    if len(findings) > FINDINGS:
        out.print(f"- {len(findings) - FINDINGS} more in the report", markup=False)
    out.print(f"{TPOT_DEFINITION}; output tokens; MW {document.get('power_basis', 'provisioned')}", markup=False)
    warnings(document.get("warnings") or (), out)
    out.print(f"run     {run}", markup=False, soft_wrap=True)
    if page:
        out.print(f"report  {page}", markup=False, soft_wrap=True)


def _design(design: Mapping[str, Any] | None) -> list[Cell]:
    """The buildable form of a design where it was found: technology, memory, fabric, rate, what binds."""
    if not design or not design.get("metrics"):
        return ["none is feasible", None, None, None, None]
    rounded = design.get("rounded") or {}
    found = rounded if rounded.get("metrics") else design
    v = found["variables"]
    memory = f"{told(v.get('memory_bandwidth'), 'B/s', 3)}, {told(v.get('memory_capacity'), 'B', 3)}"
    domain = f" × {v['scale_up_domain']:.0f}" if v.get("scale_up_domain") else ""
    rate = told(found["metrics"]["tokens_per_s_per_megawatt"], "token/s")
    return [
        design["technology"],
        memory,
        told(v.get("scale_up_bandwidth"), "B/s", 3) + domain,
        rate,
        design["limited_by"],
    ]


def _machine(problem: Mapping[str, Any]) -> list[Cell]:
    """The best existing machine at the same target, and what the mix gains over it."""
    able = [
        m
        for m in problem.get("machines") or ()
        if m.get("feasible") and m.get("metrics") and m.get("status") != "hypothetical"
    ]
    if not able:
        return ["none reaches it", None, None]
    best = max(able, key=lambda m: m["metrics"]["tokens_per_s_per_megawatt"])
    gain = problem.get("gain_over_best_machine")
    rate = told(best["metrics"]["tokens_per_s_per_megawatt"], "token/s")
    return [best["arch"], rate, f"{gain:.2f} ×" if gain else None]


def plan(document: Mapping[str, Any], out: Console | None = None) -> None:
    """Draw what a study would do."""
    out = out or console()
    rows: list[Sequence[Cell]] = []
    for name, value in document.items():
        if name not in ("schema", "title"):
            text = (
                ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
                if isinstance(value, list)
                else str(value)
            )
            rows.append((name.replace("_", " "), text))
    out.print(table(document["title"], ("", "would be done"), rows, left=2))
