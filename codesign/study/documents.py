"""Designs and machines as a summary tells them; keys as in schema ``codesign.study/1``, SI units, no times or hosts."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.document import Evaluation, limited_by, mapping_document, memory_document, metrics_document
from codesign.evaluation.operations import binding, operations
from codesign.machine import Machine
from codesign.mapping import Mapping, take
from codesign.objective.compiled import elasticities, solve_points
from codesign.objective.metrics import Load
from codesign.search.finish import ACTIVE
from codesign.search.optimum import Optimum
from codesign.search.problem import Problem
from codesign.search.space import BUDGETS, VARIABLES

#: What a buildable design repeats of a relaxed one.
BUILT = ("mapping", "request", "metrics", "memory", "limited_by", "binding", "operations")


def _numbers(machine: Machine) -> dict[str, float]:
    return {f.name: float(np.asarray(getattr(machine, f.name))) for f in fields(machine)}


def _served(problem: Problem, case: Case, machine: Machine, mapping: Mapping, batch: float | None) -> dict[str, Any]:
    """Metrics, memory and rows of one machine on one mapping (a stack of one), at a given or the largest batch."""
    least, most = (batch, batch) if batch is not None else (1.0, np.inf)
    found = take(
        solve_points(
            problem.model,
            problem.execution,
            problem.precision,
            machine,
            mapping,
            problem.load,
            problem.target,
            least,
            most,
        ),
        0,
    )
    load = Load(float(found.batch), problem.load.context, problem.load.drafts, problem.load.skew, problem.load.output)
    scalar = take(mapping, 0)
    rows = operations(replace(case, machine=machine), scalar, load)
    stopped = "TPOT" if found.limited_by_time > 0.5 else "memory capacity"
    return {
        "mapping": mapping_document(scalar), "request": {"batch": float(found.batch), "context": problem.load.context},
        "metrics": metrics_document(found.result, load), "memory": memory_document(found.result),
        "limited_by": limited_by(
            rows, "" if batch is not None else stopped, throttled=bool(found.result.throttled > 0.5)
        ),
        "binding": binding(rows), "operations": rows,
    }  # fmt: skip


def design_document(optimum: Optimum, problem: Problem, case: Case, mappings: Mapping) -> dict[str, Any]:
    """One technology's optimum: the relaxed design with its proof, and the buildable one with its loss.

    A design that cannot serve the target is told by its least TPOT and what it lacks.
    """
    end, space = optimum.finished, optimum.space
    machine = take(space.build(end.x[None]).machine, 0)
    document: dict[str, Any] = {
        "technology": space.technology.name, "feasible": optimum.serves,
        "variables": dict(zip(VARIABLES, np.exp(end.x).tolist(), strict=True)), "machine": _numbers(machine),
        "budget_use": {name: float(g) + 1.0 for name, g in zip(BUDGETS, end.budgets, strict=True)},
        "active_constraints": [name for name, g in zip(BUDGETS, end.budgets, strict=True) if g > -ACTIVE],
        "at_bounds": [
            f"{name} {side}"
            for i, name in enumerate(VARIABLES)
            for side, at in (("lowest", end.x[i] <= space.lo[i] + 1e-6), ("highest", end.x[i] >= space.hi[i] - 1e-6))
            if at
        ],
        "shadow_prices": {name: {"left": a, "right": b} for name, (a, b) in end.prices.items()},
        "kkt_residual": end.residual,
        "elasticities": elasticities(
            problem.model, problem.execution, problem.precision, machine, take(mappings, np.array([end.mapping])),
            problem.load, problem.target,
        ),
        "starts": [
            {"objective": float(np.exp(s)), "overdraft": float(v)}
            for s, v in zip(optimum.climb.score, optimum.climb.overdraft, strict=True)
        ],
        "convergence": [float(np.exp(max(h))) for h in optimum.climb.history] + [float(np.exp(s)) for s in end.path],
        "violation": [float(min(v)) for v in optimum.climb.violations] + [end.overdraft] * len(end.path),
        "evaluations": optimum.evaluations, "rounded": None,
    }  # fmt: skip
    index = np.array([end.mapping])
    served = _served(problem, case, machine, take(mappings, index), None)
    if not optimum.serves:
        return document | {
            "mapping": served["mapping"], "least_tpot_s": served["metrics"]["tpot_s"], "request": served["request"],
            "metrics": None, "limited_by": served["limited_by"], "operations": served["operations"],
            "memory": served["memory"],
        }  # fmt: skip
    document |= served
    if optimum.rounded is not None:
        r = optimum.rounded
        built = _served(problem, case, r.machine, take(mappings, np.array([r.mapping])), r.batch)
        document["rounded"] = {
            "variables": r.design, "machine": _numbers(r.machine), "clock": r.clock, "loss": r.loss,
            **{key: built[key] for key in BUILT},
        }  # fmt: skip
    return document


def machine_document(case: Case, found: Evaluation) -> dict[str, Any]:
    """An existing machine at a target."""
    d = found.to_json()
    missing = None
    if not found.feasible:
        m = d["margin"]
        if "missing_bytes" in m:
            missing = f"{m['missing_bytes'] / 1e9:.3g} GB per chip short of the weights and one sequence"
        else:
            missing = f"least TPOT {m['least_tpot_s'] * 1e3:.3g} ms"
    return {
        "arch": case.arch, "title": case.system.system.title, "status": case.system.system.status,
        "memory_technology": case.system.accelerator.memory, "feasible": found.feasible,
        "least_tpot_s": d["margin"].get("least_tpot_s"), "missing": missing, "kinds": sorted(d["rests_on"]),
        "machine": _numbers(case.machine),
        **{k: d[k] for k in ("mapping", "request", "metrics", "limited_by", "binding", "operations", "memory")},
    }  # fmt: skip
