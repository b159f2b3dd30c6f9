"""Attention and experts on different parts, answered: the best pair, or the frontier of all, as JSON documents."""

from typing import Any

import equinox as eqx
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case
from codesign.evaluation.choose import FINE, FRONTIER_BATCHES, check, near, pareto, thinned, warnings_of
from codesign.evaluation.pair_degrees import PairDegrees, checked, degree_rows
from codesign.evaluation.pair_nearest import nearest_pair, pair_mapping
from codesign.evaluation.pair_points import PairCase, PairPoints, at_batches, chosen, largest, solve_pairs
from codesign.evaluation.request import Request
from codesign.mapping import take
from codesign.objective.pools import Link, link_between

SCHEMA = "codesign.pair/1"

__all__ = ["SCHEMA", "PairDegrees", "disaggregate_cases", "frontier_of_pairs"]


def _prepared(
    case: Case, experts: Case, request: Request, degrees: PairDegrees, link: Link | None
) -> tuple[PairCase, PairDegrees]:
    if request.phase != "decode":
        raise CodesignError(f"two pools in {request.phase}", key="--experts-on", allowed="--phase decode")
    check(request, case)
    degrees = checked(case, experts, degrees)
    return PairCase(case, experts, request, link or link_between(case.machine, experts.machine)), degrees


def _tried(pair: PairCase, degrees: PairDegrees, *, fine: bool) -> PairPoints:
    """Every pair within the degrees at the batch that is asked for, else at a few and at the largest that serves.

    Args:
        pair: what is asked.
        degrees: as `checked` leaves them.
        fine: those that come near the best at many more batches.
    """
    rows = degree_rows(pair.attention, pair.experts, degrees)
    if pair.request.batch is not None:
        return solve_pairs(pair, at_batches(rows, [pair.request.batch]))
    coarse = solve_pairs(pair, at_batches(rows, FRONTIER_BATCHES))
    serves = coarse.serves.reshape(len(rows), len(FRONTIER_BATCHES))[:, 0]
    if not serves.any():
        return coarse
    tables = [coarse.table, largest(pair, rows[serves]).table]
    if fine:
        time, rate = (np.where(coarse.serves, x, worst) for x, worst in ((coarse.time, np.inf), (coarse.rate, -np.inf)))
        close = near(time, rate).reshape(len(rows), -1).any(axis=1)
        tables.append(at_batches(rows[close], FINE))
    return solve_pairs(pair, np.concatenate(tables))


def disaggregate_cases(
    case: Case, experts: Case, request: Request, degrees: PairDegrees, link: Link | None = None
) -> dict[str, Any]:
    """The pair with the most tokens per second and provisioned megawatt that meets the target and fits.

    Where none does, the answer is the fastest that fits, else the one that lacks least, with what is missing, and in
    its margin the nearest point that does serve (`codesign.evaluation.pair_nearest`).

    Args:
        case: attention pool, model and precisions.
        experts: the expert pool's machine.
        request: of decode; a batch that it does not give is a whole number.
        degrees: fixed where given.
        link: between the pools; the slower side's scale-out where not given.

    Raises:
        CodesignError: another phase, impossible degrees, a model that cannot be halved.
    """
    pair, degrees = _prepared(case, experts, request, degrees, link)
    points = _tried(pair, degrees, fine=False)
    if points.serves.any():
        return _document(pair, points, int(np.argmax(np.where(points.serves, points.rate, -np.inf))), {})
    if points.fits.any():
        i = int(np.argmin(np.where(points.fits, points.time, np.inf)))
        least = float(points.time[i])
        missing: dict[str, Any] = {"least_tpot_s": least, "missing_s": least - points.goal}
    else:
        i = int(points.least_lacking[0])
        missing = {"missing_bytes": -float(points.room[i])}
    missing |= {
        "nearest_mapping": pair_mapping(points.table[i]), "nearest": nearest_pair(pair, degrees),
        "max_chips": case.max_chips, "max_expert_chips": experts.max_chips,
    }  # fmt: skip
    return _document(pair, points, i, missing)


def frontier_of_pairs(
    case: Case, experts: Case, request: Request, degrees: PairDegrees, link: Link | None = None
) -> list[dict[str, Any]]:
    """The Pareto set over degrees, micro-batches and whole batches: least TPOT, most tokens per second and megawatt.

    Every pair is tried at a few batches and at the largest that serves, those that come near the best at many more.
    Points that gain too little over the one before are left out (`codesign.evaluation.choose.thinned`).

    Args:
        case, experts, request, degrees, link: as in `disaggregate_cases`.

    Returns:
        its documents in order of TPOT; empty where none serves.
    """
    pair, degrees = _prepared(case, experts, request, degrees, link)
    points = _tried(pair, degrees, fine=True)
    serving = np.flatnonzero(points.serves)
    points = chosen(points, serving)
    kept = pareto(points.time, points.rate)
    kept = kept[thinned(points.rate[kept])]
    return [_document(pair, points, int(i), {}) for i in kept]


def _told(case: Case, experts: Case, request: Request) -> list[str]:
    """Warnings of both systems; each names its own where only one has it."""
    here, there = warnings_of(case, request), warnings_of(experts, request)
    alone = [
        line if c.arch in line else f"{c.arch}: {line}"
        for c, lines, others in ((case, here, there), (experts, there, here))
        for line in lines
        if line not in others
    ]
    return [line for line in here if line in there] + alone


def _document(pair: PairCase, points: PairPoints, i: int, missing: dict[str, Any]) -> dict[str, Any]:
    """One point as the JSON of ``codesign evaluate --experts-on``."""
    case, experts, request, link = pair
    best, batch = take(points.found, i), float(points.table[i, 5])
    numbers = {k: float(v) for k, v in best._asdict().items() if not k.endswith("_memory")}
    joules = 1e6 / numbers["tokens_per_s_per_megawatt_drawn"]
    numbers |= {
        "tokens_per_s_per_user": 1.0 / numbers["tpot_s"],
        "energy_per_token_j": joules, "energy_per_query_j": joules * request.output,
    }  # fmt: skip
    spare = {"tpot_s": points.goal - numbers["tpot_s"]} if np.isfinite(points.goal) else {}
    return {
        "schema": SCHEMA, "arch": case.arch, "experts_on": experts.arch, "model": case.model_name, "phase": "decode",
        "feasible": bool(points.serves[i]), "margin": {"memory_bytes": float(points.room[i]), **spare, **missing},
        "request": request.document(eqx.tree_at(lambda x: x.batch, pair.load, batch)),
        "mapping": pair_mapping(points.table[i]),
        "link": {
            "attention_bandwidth": float(link.attention_bandwidth), "expert_bandwidth": float(link.expert_bandwidth),
            "latency_s": float(link.latency),
        },
        "precision": case.dtypes, "metrics": numbers,
        "memory": {
            name: {k: float(v) for k, v in part._asdict().items()} | {"total": float(part.total)}
            for name, part in (("attention", best.attention_memory), ("experts", best.expert_memory))
        },
        "warnings": _told(case, experts, request),
    }  # fmt: skip
