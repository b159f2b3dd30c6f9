"""Comparisons: damaged documents are refused in a line, different questions are told, runs by what can be built."""

import copy
import io
import json
from typing import Any

import pytest
from rich.console import Console
from summaries import make_summary

from codesign.cli import comparisons
from codesign.comparison import compare_documents
from codesign.errors import CodesignError


def evaluation(**changes: Any) -> dict[str, Any]:
    """An evaluation as far as it is compared: two operations, 3 s and 4 s, of which 1 s is hidden."""
    rows = [
        {"name": "scan", "time_s": 3.0, "hidden_s": 0.0, "bound_by": "memory"},
        {"name": "experts", "time_s": 4.0, "hidden_s": 1.0, "bound_by": "tensor"},
    ]
    return {
        "schema": "codesign.evaluation/1", "model": "m", "arch": "a", "phase": "decode", "feasible": True,
        "request": {"batch": 2.0, "context": 8192.0}, "precision": {"routed": "mxfp4", "kv": "fp8"},
        "mapping": {"chips": 8, "tp": 8}, "metrics": {"pass_s": 6.0, "tpot_s": 6.0}, "operations": rows,
    } | changes  # fmt: skip


def run(best: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """A summary of one problem."""
    problem = {"id": "p", "precision": "fp8", "best": best}
    return {"schema": "codesign.study/1", "name": "s", "model": "m", "problems": [problem]} | changes


def design(rate: float, rounded: float | None) -> dict[str, Any]:
    """A design of so many tokens/s and megawatt, and its buildable neighbour."""

    def told(rate: float) -> dict[str, Any]:
        e = evaluation()
        return {k: e[k] for k in ("request", "mapping")} | {"metrics": e["metrics"] | {RATE: rate}}

    built = told(rounded) if rounded is not None else None
    return told(rate) | {"technology": "hbm4", "operations": evaluation()["operations"], "rounded": built}


RATE = "tokens_per_s_per_megawatt"
GONE = object()

DAMAGE: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("operations",), GONE, "operations: is missing"),
    (("operations",), 3, "operations: 3 is of the wrong type (allowed: a list)"),
    (("operations",), [], "operations: is empty"),
    (("operations", 1), 5, "operations.1: 5 is of the wrong type (allowed: a table)"),
    (("operations", 1, "name"), GONE, "operations.1.name: is missing"),
    (("operations", 1, "name"), "", "operations.1.name: is empty"),
    (("operations", 0, "time_s"), "abc", "operations.0.time_s: 'abc' is of the wrong type (allowed: a number)"),
    (("operations", 0, "time_s"), float("nan"), "operations.0.time_s: nan is of the wrong type (allowed: a finite"),
    (("operations", 0, "time_s"), -1.0, "operations.0.time_s: -1.0 is out of bounds"),
    (("operations", 0, "hidden_s"), None, "operations.0.hidden_s: None is of the wrong type"),
    (("operations", 0, "bound_by"), GONE, "operations.0.bound_by: is missing"),
    (("model",), None, "model: None is of the wrong type (allowed: text"),
    (("arch",), GONE, "arch: is missing"),
    (("phase",), 7, "phase: 7 is of the wrong type"),
    (("metrics",), None, "metrics: None is of the wrong type (allowed: a table)"),
    (("metrics", "tpot_s"), GONE, "metrics.tpot_s: is missing"),
    (("metrics", "tpot_s"), None, "metrics.tpot_s: is null, and so is ttft_s"),
    (("metrics", "pass_s"), True, "metrics.pass_s: true is of the wrong type"),
    (("metrics", "pass_s"), float("inf"), "metrics.pass_s: inf is of the wrong type"),
    (("mapping", "chips"), GONE, "mapping.chips: is missing"),
    (("mapping", "chips"), 0, "mapping.chips: 0 is out of bounds"),
    (("request",), [1], "request: a list is of the wrong type"),
    (("precision",), GONE, "precision: is missing"),
    (("schema",), "codesign.evaluation/2", "holds schema 'codesign.evaluation/2'"),
    (("schema",), ["codesign.evaluation/1"], "holds schema ['codesign.evaluation/1']"),
]


@pytest.mark.parametrize(("path", "value", "told"), DAMAGE)
def test_a_damaged_evaluation_is_refused_in_one_line(path: tuple[str | int, ...], value: Any, told: str) -> None:
    damaged: Any = copy.deepcopy(evaluation())
    node = damaged
    for part in path[:-1]:
        node = node[part]
    if value is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    for pair, names in (((evaluation(), damaged), ("a", "bad.json")), ((damaged, evaluation()), ("bad.json", "b"))):
        with pytest.raises(CodesignError) as caught:
            compare_documents(*pair, names)
        assert str(caught.value).startswith(f"bad.json: {told}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, 3, "x", [], [evaluation(), evaluation()], {}, [[]]])
def test_what_is_no_result_is_refused(document: Any) -> None:
    with pytest.raises(CodesignError, match=r"bad\.json: holds"):
        compare_documents(evaluation(), document, ("a", "bad.json"))


def test_a_damaged_run_is_refused_in_one_line() -> None:
    cut = run(design(5.0, 4.0))
    del cut["problems"][0]["best"]["mapping"]
    with pytest.raises(CodesignError, match=r"bad: problems\.0\.best\.mapping: is missing"):
        compare_documents(run(None), cut, ("a", "bad"))
    with pytest.raises(CodesignError, match="bad: problems: 'x' is of the wrong type"):
        compare_documents(run(None), run(None, problems="x"), ("a", "bad"))


def test_phases_do_not_compare() -> None:
    prompt = evaluation(phase="prefill", metrics={"pass_s": 1.0, "tpot_s": None, "ttft_s": 1.0})
    with pytest.raises(CodesignError, match=r"p\.json: phase: prefill does not compare with the decode of d\.json"):
        compare_documents(evaluation(), prompt, ("d.json", "p.json"))
    assert compare_documents(prompt, prompt, ("p", "p"))["warnings"] == []


def drawn(document: dict[str, Any]) -> str:
    """A comparison as the terminal shows it."""
    text = io.StringIO()
    comparisons.comparison(document, Console(file=text, width=200, color_system=None))
    return text.getvalue()


def test_other_questions_are_told() -> None:
    same = compare_documents(evaluation(), evaluation(arch="b", request={"batch": 9.0, "context": 8192.0}), ("a", "b"))
    assert same["warnings"] == []  # another machine with its own batch is what a comparison is for
    assert "warnings" not in drawn(same)
    other = evaluation(
        model="n", request={"batch": 2.0, "context": 515000.0}, precision={"routed": "mxfp4", "kv": "bf16"}
    )
    found = compare_documents(evaluation(), other, ("a", "b"))
    assert [line.split(",")[0] for line in found["warnings"]] == [
        "models differ", "context differs", "precisions differ in kv: bytes and rates are not the same"
    ]  # fmt: skip
    page = drawn(found)
    assert "A m and B n" in page
    assert "A 8,192 and B 515,000 tokens" in page
    runs = compare_documents(run(None), run(None, model="n"), ("a", "b"))
    assert "models differ" in drawn(runs)


def test_runs_are_compared_by_what_can_be_built() -> None:
    found = compare_documents(run(design(5.0, 4.0)), run(design(7.0, 6.0)), ("a", "b"))
    (problem,) = found["problems"]
    assert (problem["a"], problem["b"], problem["ratio"]) == (4.0, 6.0, 1.5)
    assert problem["built_a"] and problem["built_b"]
    assert problem["comparison"]["metrics"][RATE] == {"a": 4.0, "b": 6.0, "ratio": 1.5}
    page = drawn(found)
    assert "as it can be built" in page
    assert "*" not in page
    # Where no buildable design was found, the relaxed one is told and marked.
    found = compare_documents(run(design(5.0, 4.0)), run(design(7.0, None)), ("a", "b"))
    (problem,) = found["problems"]
    assert (problem["a"], problem["b"], problem["built_b"]) == (4.0, 7.0, False)
    assert "7.0*" in drawn(found)
    assert "* no buildable design" in drawn(found)


def test_the_pass_of_runs_is_that_of_two_designs_of_one_kind() -> None:
    """Rows of the buildable design where both summaries have them; else, told, of the optima."""
    slow, fast = (design(5.0, 4.0) for _ in range(2))
    for operation in fast["operations"]:
        operation["time_s"] += 7.0
    assert "before rounding" in drawn(compare_documents(run(slow), run(fast), ("a", "b")))
    fast["rounded"]["operations"] = [row | {"time_s": row["time_s"] - 5.0} for row in fast["operations"]]
    steps = compare_documents(run(slow), run(fast), ("a", "b"))["problems"][0]["comparison"]["waterfall"]
    assert [step["difference_s"] for step in steps] == [7.0, 7.0]
    slow["rounded"]["operations"] = slow["operations"]
    found = compare_documents(run(slow), run(fast), ("a", "b"))
    assert [step["difference_s"] for step in found["problems"][0]["comparison"]["waterfall"]] == [2.0, 2.0]
    assert "before rounding" not in drawn(found)


def test_the_rate_compared_is_the_one_in_the_table_of_the_run() -> None:
    from codesign.cli import summaries

    summary = make_summary()
    text = io.StringIO()
    summaries.summary(summary, "run", None, Console(file=text, width=250, color_system=None))
    for problem in compare_documents(summary, summary, ("a", "b"))["problems"]:
        if problem["a"]:
            assert f"{problem['a']:,.0f}" in text.getvalue()
    json.dumps(compare_documents(summary, summary, ("a", "b")), allow_nan=False)
