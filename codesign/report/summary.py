"""Reading a run's ``summary.json``: checked for its schema, and made safe for what may be absent in it.

A summary may hold null wherever something was infeasible or not computed; the accessors here answer with an empty
value then, so that no chart has to ask.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from codesign.errors import CodesignError
from codesign.glossary import STUDY

Json = dict[str, Any]

#: What a summary may tell of a buildable design.
_BUILT = ("variables", "mapping", "request", "metrics", "machine", "memory", "binding", "operations")


class Case(NamedTuple):
    """What a chart is drawn for: one context and one precision.

    Attributes:
        context: cached tokens. precision: name of the set of formats. key: both in one word, for selectors and files.
    """

    context: float
    precision: str

    @property
    def key(self) -> str:
        """One word for selectors and file names, such as ``c131072-bf16``."""
        return f"c{self.context:.0f}-{self.precision}"


def read_summary(run_dir: Path) -> Json:
    """The summary of a run.

    Raises:
        CodesignError: not there, not JSON, or of another schema.
    """
    path = run_dir / "summary.json"
    name = str(path)
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CodesignError(
            "no summary: the run is not finished, or this is not a run folder",
            file=name,
            allowed="a folder written by 'codesign optimize'",
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CodesignError(f"not readable as JSON: {error}", file=name) from None
    found = summary.get("schema") if isinstance(summary, dict) else None
    if found != STUDY:
        raise CodesignError(f"schema {found!r}", file=name, key="schema", allowed=STUDY)
    return summary


def cases(summary: Json) -> list[Case]:
    """Contexts and precisions of a study, in its order, as far as problems or frontiers use them."""
    named = [Case(float(c), p["name"]) for c in items(summary, "contexts") for p in items(summary, "precisions")]
    used = [case_of(x) for x in (*items(summary, "problems"), *items(summary, "frontiers"))]
    return list(dict.fromkeys([c for c in named if c in used] + used))


def case_of(entry: Json) -> Case:
    """The case that a problem or frontier belongs to."""
    return Case(float(entry["context"]), str(entry["precision"]))


def problems(summary: Json) -> list[Json]:
    """The problems of a summary, case by case in the study's order, tightest target first."""
    order = {case: i for i, case in enumerate(cases(summary))}
    return sorted(items(summary, "problems"), key=lambda p: (order[case_of(p)], p["target_s"]))


def problem_key(problem: Json) -> str:
    """One word for a problem, such as ``c131072-bf16-t0.02``."""
    return f"{case_of(problem).key}-t{problem['target_s']:g}"


def items(entry: Json | None, name: str) -> list[Any]:
    """A list of the entry, empty where it is absent."""
    return list((entry or {}).get(name) or [])


def part(entry: Json | None, name: str) -> Json:
    """A table of the entry, empty where it is absent."""
    found = (entry or {}).get(name)
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """A finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def metric(entry: Json | None, name: str) -> float | None:
    """One metric of a design or machine, None where there is none."""
    return number(part(entry, "metrics").get(name))


def built(design: Json) -> Json:
    """The buildable form of a design, as far as one was found: what the summary tells of it replaces the optimum's."""
    rounded = part(design, "rounded")
    if not part(rounded, "metrics"):
        return design
    return design | {k: rounded[k] for k in _BUILT if rounded.get(k)}


def built_pass(design: Json) -> Json:
    """As `built` where the operations of that design are told, else the optimum: one pass, not parts of two."""
    return built(design) if items(part(design, "rounded"), "operations") else design


def pass_words(summary: Json) -> str:
    """Which form of the optima `built_pass` gives, for captions."""
    found = (built_pass(d) is not d for p in items(summary, "problems") for d in items(p, "designs"))
    return "Optima are shown as built" if any(found) else "Optima are shown before rounding"


def candidates(problem: Json) -> Iterator[tuple[str, Json]]:
    """All that answer a problem, by the key of `codesign.report.style.Part`: optima first, then machines."""
    for design in items(problem, "designs"):
        yield optimum_key(design["technology"]), design
    for machine in items(problem, "machines"):
        yield machine["arch"], machine


def optimum_key(technology: str) -> str:
    """The key of a technology's optimum among parts."""
    return f"optimum:{technology}"
