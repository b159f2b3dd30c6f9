"""The difference of two evaluations, as a waterfall over operations: which of them makes one slower than the other.

Works on the documents of ``codesign evaluate --json``, so that results of different days and versions compare.  Files
may be of another version, cut, or edited: what is missing or no number is told with the file and the key, before
anything is compared; keys that a comparison does not read are passed over.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from codesign.catalog.messages import translate
from codesign.catalog.quantity import refuse
from codesign.errors import CodesignError
from codesign.glossary import EVALUATION, STUDY

#: Lengths of a request: where they differ, the two answer different questions.
LENGTHS = ("context", "cached", "new", "isl", "osl")

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


_Name = Annotated[str, StringConstraints(min_length=1)]
_Amount = Annotated[float, Field(ge=0.0)]


class _Part(BaseModel):
    """A table of a document; keys that a comparison does not read are let through."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Operation(_Part):
    """A row of the pass: its time and what of it is hidden [s], and the lane that binds it."""

    name: _Name
    time_s: _Amount
    hidden_s: _Amount
    bound_by: _Name


class _Degrees(_Part):
    """A mapping: chips in all; its other degrees are told as they are."""

    chips: Annotated[int, Field(ge=1)]


class _Metrics(_Part):
    """Metrics under the names of ``codesign.evaluation/1``, SI; null where a phase has no such number."""

    tpot_s: _Amount | None
    pass_s: _Amount
    ttft_s: _Amount | None = None
    tokens_per_s_per_user: _Amount | None = None
    tokens_per_s_per_chip: _Amount | None = None
    tokens_per_s_per_megawatt: _Amount | None = None
    tokens_per_s_per_megawatt_drawn: _Amount | None = None
    energy_per_token_j: _Amount | None = None
    dollars_per_million_tokens: _Amount | None = None
    memory_per_chip_bytes: _Amount | None = None


class _Evaluation(_Part):
    """A document of schema ``codesign.evaluation/1``."""

    model: _Name
    arch: _Name
    phase: _Name = "decode"
    request: dict[str, Any]
    mapping: _Degrees
    precision: dict[str, Any]
    metrics: _Metrics
    operations: list[_Operation] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_time(self) -> "_Evaluation":
        if self.metrics.tpot_s is None and self.metrics.ttft_s is None:
            raise refuse("is null, and so is ttft_s", "seconds in one of them", "metrics.tpot_s")
        return self


class _Built(_Part):
    """The buildable neighbour of an optimum."""

    request: dict[str, Any]
    mapping: _Degrees
    metrics: _Metrics
    operations: list[_Operation] | None = None


class _Design(_Part):
    """The best design of a problem, with its buildable neighbour where one was found."""

    technology: _Name
    request: dict[str, Any]
    mapping: _Degrees
    metrics: _Metrics | None
    operations: list[_Operation] | None = None
    rounded: _Built | None = None


class _Problem(_Part):
    """A problem of a study, with its best design where one is feasible."""

    id: _Name
    precision: _Name
    best: _Design | None = None


class _Run(_Part):
    """A document of schema ``codesign.study/1``."""

    name: _Name
    model: _Name
    phase: _Name = "decode"
    problems: list[_Problem]


_SCHEMAS: dict[str, type[_Part]] = {EVALUATION: _Evaluation, STUDY: _Run}


def checked(document: Any, name: str) -> dict[str, Any]:
    """A document that can be compared, as it is; an array of one evaluation counts as that evaluation.

    Args:
        document: parsed JSON.
        name: of its file, for errors.

    Raises:
        CodesignError: of another schema, or lacking what a comparison needs, in one line with file and key.
    """
    found: Any = document[0] if isinstance(document, list) and len(document) == 1 else document
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, str) or schema not in _SCHEMAS:
        what = f"{len(found)} results" if isinstance(found, list) else f"schema {schema!r}"
        raise CodesignError(f"holds {what}", file=name, allowed="JSON of one 'codesign evaluate', or a run folder")
    try:
        _SCHEMAS[schema].model_validate(found)
    except ValidationError as failure:
        raise translate(failure, found, _SCHEMAS[schema], name) from failure
    return found


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
        ``changed`` (request, mapping and precision entries that differ), ``waterfall`` (``name``, ``a_s``, ``b_s``,
        ``difference_s``, ``bound_by_a``, ``bound_by_b``; the largest difference first) and ``warnings``: what makes
        the two answers to different questions.
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
        "warnings": _warnings(a, b, changed),
    }


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any], changed: Mapping[str, Any]) -> list[str]:
    """What differs between the questions, in a line each."""
    lines = []
    if a["model"] != b["model"]:
        lines.append(f"models differ, A {a['model']} and B {b['model']}: their passes are not the same work")
    for key in LENGTHS:
        if entry := changed["request"].get(key):
            x, y = (f"{v:,.10g}" if isinstance(v, int | float) else str(v) for v in (entry["a"], entry["b"]))
            lines.append(f"{key} differs, A {x} and B {y} tokens: their passes are not the same work")
    if changed["precision"]:
        lines.append(f"precisions differ in {', '.join(changed['precision'])}: bytes and rates are not the same")
    return lines


def compare_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the best designs of two runs, problem by problem.

    A design is told as it can be built, evaluated again with whole numbers, as a run's own table does.  The rows of
    its pass are those of the optimum before rounding where a summary has no others.

    Args:
        a, b: summaries with schema ``codesign.study/1``.

    Returns:
        a document with schema ``codesign.run-comparison/1``: ``problems``, each with ``id``, ``a`` and ``b`` (tokens/s
        and megawatt of the best design, None where none is feasible), ``built_a`` and ``built_b`` (false where no
        buildable design was found and the numbers are those of the optimum before rounding), ``pass_built`` (whether
        the waterfall is that of two buildable designs), ``ratio``, and ``comparison`` of the two designs as `compare`
        gives it, None where one is missing; ``only_a`` and ``only_b``: problems that the other lacks; ``warnings``.
    """
    ours, theirs = _problems(a), _problems(b)
    problems = []
    for key in ours.keys() & theirs.keys():
        of_built = _rows(ours[key]) and _rows(theirs[key])
        x, y = _best(a, ours[key], of_built), _best(b, theirs[key], of_built)
        rates = [d["metrics"]["tokens_per_s_per_megawatt"] if d else None for d in (x, y)]
        problems.append(
            {
                "id": key,
                "a": rates[0],
                "b": rates[1],
                "built_a": _built(ours[key]),
                "built_b": _built(theirs[key]),
                "pass_built": of_built,
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
        "warnings": _warnings(a, b, {"request": {}, "precision": {}}),
    }


def _problems(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {problem["id"]: problem for problem in summary["problems"]}


def _best(summary: Mapping[str, Any], problem: Mapping[str, Any], of_built: bool) -> dict[str, Any] | None:
    """The best design of a problem in the form of an evaluation, as it can be built; None where there is none.

    Its rows are those of the buildable design where ``of_built``, else those of the optimum before rounding.
    """
    design = problem.get("best")
    if not design or not design.get("metrics"):
        return None
    found = design["rounded"] if _built(problem) else design
    return {
        "model": summary["model"],
        "arch": f"the best {design['technology']} design",
        "precision": {"precision": problem["precision"]},
        "operations": (found if of_built else design).get("operations") or [],
        **{part: found[part] for part in ("request", "mapping", "metrics")},
    }


def _rounded(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    return (problem.get("best") or {}).get("rounded") or {}


def _built(problem: Mapping[str, Any]) -> bool:
    """Whether the best design of a problem has a buildable form."""
    return bool(_rounded(problem).get("metrics"))


def _rows(problem: Mapping[str, Any]) -> bool:
    """Whether the summary has rows of the buildable form."""
    return bool(_rounded(problem).get("operations"))


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
        CodesignError: something else, one of each, a damaged document, or two phases: tokens that are read do not
            compare with tokens that are written.
    """
    a, b = (checked(x, name) for x, name in zip((a, b), names, strict=True))
    if a["schema"] != b["schema"]:
        raise CodesignError("an evaluation does not compare with a run", file=names[1], allowed="two of one kind")
    phases = [x.get("phase", "decode") for x in (a, b)]
    if phases[0] != phases[1]:
        problem = f"{phases[1]} does not compare with the {phases[0]} of {names[0]}"
        raise CodesignError(problem, file=names[1], key="phase", allowed=f"two results of one phase, here {phases[0]}")
    return compare(a, b) if a["schema"] == EVALUATION else compare_runs(a, b)
