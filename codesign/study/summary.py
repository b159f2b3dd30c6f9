"""The summary of a run (schema ``codesign.study/1``): problems in the study's order, and the evidence beside them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from codesign.calibration.serving.store import held_back
from codesign.calibration.store import bundled
from codesign.evaluation.document import execution_document, rests_on
from codesign.glossary import STUDY
from codesign.search.space import BUDGETS, VARIABLES
from codesign.study import evidence
from codesign.study.findings import overdrafts
from codesign.study.problems import Solver
from codesign.study.schema import VARIABLE_UNITS


def summary_of(solver: Solver, records: dict[str, Any], tell: Callable[[int, int, str], None]) -> dict[str, Any]:
    """Put the answer together."""
    study = solver.study
    total = len(records)
    tell(total, total, "frontiers of existing machines")
    frontiers = [
        solver.frontier(name, context, p.name)
        for context in study.contexts_tokens
        for p in study.precisions
        for name in solver.cases
    ]
    tell(total, total, "evidence")
    lo = np.exp(np.min([s.lo for s in solver.spaces], axis=0))
    hi = np.exp(np.max([s.hi for s in solver.spaces], axis=0))
    package = solver.spaces[0].package
    limits = {
        "package_power": (float(package.power), "W", "board power of the package"),
        "die_area": (float(package.die_area), "m^2", "contents of the compute die"),
        "reticle": (float(package.reticle), "m^2", "largest die that can be exposed"),
        "shoreline": (None, "m", "edge for memory stacks and SerDes"),
        "stack_bandwidth": (None, "B/s", "what the memory technology can give on this die"),
        "stack_capacity": (None, "B", "layers and area of the memory technology"),
        "heat": (None, "W/m^2", "heat through the die and what is stacked on it"),
    }
    summary: dict[str, Any] = {
        "schema": STUDY, "name": study.name, "title": study.title, "question": study.question, "seed": solver.seed,
        "power_basis": "provisioned", "model": solver.base.model_name, "phase": study.phase,
        "targets_s": study.targets_s, "contexts": study.contexts_tokens,
        "precisions": [p.model_dump() for p in study.precisions], "technologies": study.technologies,
        "machines": list(solver.cases), "drafts": study.drafts, "routing_skew": study.skew,
        "variables": [
            {"name": v, "unit": VARIABLE_UNITS[v], "lo": float(a), "hi": float(b)}
            for v, a, b in zip(VARIABLES, lo, hi, strict=True)
        ],
        "budgets": [
            {"name": b, "limit": limits[b][0], "unit": limits[b][1], "note": limits[b][2]} for b in BUDGETS
        ],
        "problems": [records[spec.id] for chain in solver.chains for spec in chain],
        "frontiers": frontiers,
        "held_back": held_back(bundled(solver.workspace)),
        "power_table": evidence.power_table(solver.workspace) if study.checks else [],
        "checks": evidence.published_checks(solver.workspace) if study.checks else [],
        "sensitivity": evidence.sensitivity(solver) if study.sensitivity else [],
        "rests_on": rests_on(*solver.cases.values()), "execution": execution_document(solver.base),
        "warnings": [
            f"kernel constants of designs: {solver.base.constants}; of existing parts: their own or their relatives'",
            "hypothetical parts and designs rest on assumptions with ranges (arch/memories, arch/measurements)",
        ],
    }  # fmt: skip
    parts = {
        m["arch"]: m["memory_technology"]
        for m in summary["problems"][0]["machines"]
        if m["status"] == "hypothetical" and m["memory_technology"] in summary["technologies"]
    }
    overdrawn = {arch: overdrafts(summary, arch, technology, solver.workspace) for arch, technology in parts.items()}
    for problem in summary["problems"]:
        for m in problem["machines"]:
            if m["arch"] in overdrawn:
                m["overdraws"] = overdrawn[m["arch"]]
    summary["findings"] = evidence.findings(summary)
    return summary
