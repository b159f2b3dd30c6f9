"""The difference of two evaluations, as a waterfall over operations: which of them makes one slower than the other.

Works on the documents of ``codesign evaluate --json``, so that results of different days and versions compare.
"""

from collections.abc import Mapping
from typing import Any

from codesign.errors import CodesignError

EVALUATION, STUDY = "codesign.evaluation/1", "codesign.study/1"

#: Metrics set side by side, with their unit and whether more is better.
HEADLINES = (
    ("tpot_s", "s", False),
    ("pass_s", "s", False),
    ("tokens_per_s_per_user", "token/s", True),
    ("tokens_per_s_per_chip", "token/s", True),
    ("tokens_per_s_per_megawatt", "token/s", True),
    ("tokens_per_s_per_megawatt_drawn", "token/s", True),
    ("energy_per_token_j", "J", False),
    ("dollars_per_million_tokens", "1", False),
    ("memory_per_chip_bytes", "B", False),
)


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    r"""Compare two evaluations.

    The waterfall leads from the pass of ``a`` to that of ``b``: each step is the difference of one operation's time,
    less what of it is hidden,

    .. math:: T_b - T_a = \sum_o (t_o^b - h_o^b) - (t_o^a - h_o^a)

    with an operation that only one of them has counted as zero in the other.  Passes of different batches or chips
    are compared as they are: the time of a pass, not of a token of the machine.

    Args:
        a, b: documents with schema ``codesign.evaluation/1``.

    Returns:
        a document with schema ``codesign.comparison/1``: ``metrics`` (each with ``a``, ``b`` and ``ratio`` b/a),
        ``changed`` (request, mapping and precision entries that differ) and ``waterfall`` (``name``, ``a_s``, ``b_s``,
        ``difference_s``, ``bound_by_a``, ``bound_by_b``; the largest difference first).
    """
    metrics = {}
    for name, _, _ in HEADLINES:
        x, y = a["metrics"].get(name), b["metrics"].get(name)
        metrics[name] = {"a": x, "b": y, "ratio": y / x if x and y is not None else None}
    ours, theirs = _exposed(a), _exposed(b)
    steps = []
    for name in dict.fromkeys((*ours, *theirs)):
        (t, bound_a), (u, bound_b) = ours.get(name, (0.0, None)), theirs.get(name, (0.0, None))
        step = {"name": name, "a_s": t, "b_s": u, "difference_s": u - t, "bound_by_a": bound_a, "bound_by_b": bound_b}
        steps.append(step)
    steps.sort(key=lambda step: -abs(step["difference_s"]))
    changed = {
        part: {
            key: {"a": a[part].get(key), "b": b[part].get(key)}
            for key in dict.fromkeys((*a[part], *b[part]))
            if a[part].get(key) != b[part].get(key)
        }
        for part in ("request", "mapping", "precision")
    }
    return {
        "schema": "codesign.comparison/1",
        "a": label(a),
        "b": label(b),
        "metrics": metrics,
        "changed": {part: entries for part, entries in changed.items() if entries},
        "waterfall": steps,
    }


def compare_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the best designs of two runs, problem by problem.

    Args:
        a, b: summaries with schema ``codesign.study/1``.

    Returns:
        a document with schema ``codesign.run-comparison/1``: ``problems``, each with ``id``, ``a`` and ``b`` (tokens/s
        and megawatt of the best design, None where none is feasible), ``ratio``, and ``comparison`` of the two designs
        as `compare` gives it, None where one is missing; ``only_a`` and ``only_b``: problems that the other lacks.
    """
    ours, theirs = _problems(a), _problems(b)
    problems = []
    for key in ours.keys() & theirs.keys():
        x, y = _best(a, ours[key]), _best(b, theirs[key])
        rates = [d["metrics"]["tokens_per_s_per_megawatt"] if d else None for d in (x, y)]
        problems.append(
            {
                "id": key,
                "a": rates[0],
                "b": rates[1],
                "ratio": rates[1] / rates[0] if rates[0] and rates[1] is not None else None,
                "comparison": compare(x, y) if x and y else None,
            }
        )
    order = list(ours)
    return {
        "schema": "codesign.run-comparison/1",
        "a": a["name"],
        "b": b["name"],
        "problems": sorted(problems, key=lambda p: order.index(p["id"])),
        "only_a": [key for key in ours if key not in theirs],
        "only_b": [key for key in theirs if key not in ours],
    }


def _problems(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {problem["id"]: problem for problem in summary["problems"]}


def _best(summary: Mapping[str, Any], problem: Mapping[str, Any]) -> dict[str, Any] | None:
    """The best design of a problem in the form of an evaluation, None where there is none."""
    design = problem.get("best")
    if not design or not design.get("metrics"):
        return None
    return {
        "model": summary["model"],
        "arch": f"the best {design['technology']} design",
        "precision": {"precision": problem["precision"]},
        "operations": design.get("operations") or [],
        **{part: design[part] for part in ("request", "mapping", "metrics")},
    }


def label(evaluation: Mapping[str, Any]) -> str:
    """An evaluation in a few words."""
    return f"{evaluation['model']} on {evaluation['arch']}, {evaluation['mapping']['chips']} chips"


def _exposed(evaluation: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Seconds that each operation adds to the pass, and what binds it; stages of one name are added up."""
    times: dict[str, tuple[float, str]] = {}
    for op in evaluation["operations"]:
        before = times.get(op["name"], (0.0, ""))[0]
        times[op["name"]] = (before + op["time_s"] - op["hidden_s"], op["bound_by"])
    return times


def compare_documents(a: Any, b: Any, names: tuple[str, str]) -> dict[str, Any]:
    """Compare what two files hold: two evaluations, or two summaries of studies.

    Args:
        a, b: parsed JSON; an array of one evaluation counts as that evaluation.
        names: of the files, for errors.

    Raises:
        CodesignError: something else, or one of each.
    """
    a, b = (x[0] if isinstance(x, list) and len(x) == 1 else x for x in (a, b))
    kinds = [_kind(document, name) for document, name in zip((a, b), names, strict=True)]
    if kinds[0] != kinds[1]:
        raise CodesignError("an evaluation does not compare with a run", file=names[1], allowed="two of one kind")
    return compare(a, b) if kinds[0] == EVALUATION else compare_runs(a, b)


def _kind(document: Any, name: str) -> str:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (EVALUATION, STUDY):
        what = f"{len(document)} results" if isinstance(document, list) else f"schema {schema!r}"
        raise CodesignError(f"holds {what}", file=name, allowed="JSON of one 'codesign evaluate', or a run folder")
    return schema
