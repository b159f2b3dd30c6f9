"""What stands beside a study's answer: power and published points against the model, unknowns moved, findings.

Each function returns plain lists, as ``summary.json`` holds them.
"""

from typing import TYPE_CHECKING, Any

from codesign.study.checks import power_table, published_checks
from codesign.study.findings import findings
from codesign.study.sensitivity import ORDER, Question, sweep_all
from codesign.units import parse

if TYPE_CHECKING:
    from codesign.study.problems import Solver

__all__ = ["findings", "power_table", "published_checks", "sensitivity"]


def sensitivity(solver: "Solver") -> list[dict[str, Any]]:
    """Entries of `codesign.study.sensitivity.sweep_all` for a study's ``[sensitivity]``, in its first precision.

    Of the study's machines, those of `ORDER` are compared at the targets of ``[sensitivity]``, and the hypothetical
    ones with them at all of the study's targets.
    """
    study = solver.study
    if study.sensitivity is None:
        return []
    first = study.precisions[0]
    question = Question(
        model=study.model, context=parse(study.sensitivity.context, "token"), drafts=float(study.drafts),
        skew=study.skew, weights=first.weights, kv=first.kv, workspace=solver.workspace,
    )  # fmt: skip
    targets = [parse(t, "s") for t in study.sensitivity.targets]
    compared = [arch for arch in ORDER if arch in solver.cases]
    hypothetical = [arch for arch, case in solver.cases.items() if case.system.system.status == "hypothetical"]
    return sweep_all(question, compared, targets, hypothetical, study.targets_s, workers=2)
