"""How the difference of two evaluations, or of two runs, looks in a terminal; drawn from its JSON alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from codesign.cli.tables import Cell, console, microseconds, table, told, warnings
from codesign.comparison import HEADLINES
from codesign.glossary import TPOT_DEFINITION


def comparison(document: Mapping[str, Any], out: Console | None = None) -> None:
    """Draw the difference of two evaluations, the largest step first, or of two runs, problem by problem."""
    out = out or console()
    if "problems" in document:
        _runs(document, out)
        return
    out.print(f"[bold]A[/bold] {document['a']}")
    out.print(f"[bold]B[/bold] {document['b']}")
    for part, entries in document["changed"].items():
        words = ", ".join(f"{key} {entry['a']} → {entry['b']}" for key, entry in entries.items())
        out.print(f"{part:10} {words}", markup=False, soft_wrap=True)
    rows: list[Sequence[Cell]] = []
    for name, unit, more_is_better in HEADLINES:
        entry = document["metrics"][name]
        ratio = entry["ratio"]
        better = "" if ratio is None or ratio == 1 else "better" if (ratio > 1) == more_is_better else "worse"
        cells = [told(entry["a"], unit), told(entry["b"], unit), f"{ratio:.3f}" if ratio is not None else None, better]
        rows.append([name.removesuffix("_s").removesuffix("_j").replace("_", " "), *cells])
    out.print(table("metrics", ("", "A", "B", "B/A", "B is"), rows))
    whole = document["metrics"]["pass_s"]
    reached = whole["a"]
    steps: list[Sequence[Cell]] = [["pass of A", "", "", "", microseconds(reached)]]
    for step in document["waterfall"]:
        if step["difference_s"] == 0.0:
            continue
        reached += step["difference_s"]
        a, b = step["bound_by_a"], step["bound_by_b"]
        bound = a if a == b else f"{a or 'absent'} → {b or 'absent'}"
        sign = "+" if step["difference_s"] > 0 else "−"
        change = sign + microseconds(abs(step["difference_s"]))
        both = f"{microseconds(step['a_s']) or '0'} → {microseconds(step['b_s']) or '0'}"
        steps.append([step["name"], bound.replace("_", "-"), both, change, microseconds(reached)])
    steps.append(["pass of B", "", "", "", microseconds(whole["b"])])
    out.print(table("from A to B, µs of a pass", ("operation", "bound by", "A → B", "change", "pass"), steps, left=2))
    out.print(TPOT_DEFINITION)
    warnings(document["warnings"], out)


def _runs(document: Mapping[str, Any], out: Console) -> None:
    rows: list[Sequence[Cell]] = []
    for problem in document["problems"]:
        ratio, inner = problem["ratio"], problem["comparison"]
        steps = [step for step in (inner or {}).get("waterfall") or () if step["difference_s"]]
        change = None
        if steps:
            sign = "+" if steps[0]["difference_s"] > 0 else "−"
            change = f"{steps[0]['name']} {sign}{microseconds(abs(steps[0]['difference_s']))} µs"
        cells = [_rate(problem, side) for side in ("a", "b")]
        rows.append([problem["id"], *cells, f"{ratio:.3f}" if ratio else None, change])
    columns = ("problem", "A tok/s/MW", "B tok/s/MW", "B/A", "largest change of the pass")
    out.print(table(f"A {document['a']}, B {document['b']}", columns, rows, text=columns[-1:]))
    for side in ("a", "b"):
        if document[f"only_{side}"]:
            out.print(f"only in {side.upper()}: {', '.join(document[f'only_{side}'])}", soft_wrap=True)
    out.print("tok/s/MW of the best design as it can be built: with whole numbers, evaluated again", soft_wrap=True)
    if any(problem[side] and not problem[f"built_{side}"] for problem in document["problems"] for side in ("a", "b")):
        out.print("* no buildable design was found: the optimum before rounding", soft_wrap=True)
    if not all(problem["pass_built"] for problem in document["problems"] if problem["comparison"]):
        out.print("changes of the pass are those of the optima before rounding", soft_wrap=True)
    warnings(document["warnings"], out)


def _rate(problem: Mapping[str, Any], side: str) -> Cell:
    """Tokens/s and megawatt of one run's design, marked where it is not a buildable one."""
    rate = told(problem[side], "token/s")
    return rate if not problem[side] or problem[f"built_{side}"] else f"{rate}*"
