"""Find the best mapping of a request, or the frontier of all of them, and say what is missing where none serves."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case, Degrees
from codesign.evaluation.document import Evaluation, evaluation_document, mapping_document
from codesign.evaluation.operations import begin_table
from codesign.evaluation.request import OUTPUT_TOKENS, Request
from codesign.evaluation.solve import evaluate_all, solve
from codesign.layers.moe import MoE
from codesign.mapping import Mapping, take
from codesign.objective.batch import Batch
from codesign.objective.compiled import BLOCK
from codesign.objective.metrics import Load

#: Batches that a frontier tries.
FRONTIER_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)

#: Requests in flight that a frontier of serving tries.
FRONTIER_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def _check(request: Request, case: Case) -> None:
    most = len(case.model.drafts.accepted_length) if case.model.drafts else 0
    if not 0 <= request.drafts <= most:
        allowed = f"0 to {most}" if most else f"0: {case.model_name} has no drafter in its file"
        raise CodesignError(f"{request.drafts:g} drafts", key="--drafts", allowed=allowed)
    experts = min((layer.experts for _, layer in case.model.blocks if isinstance(layer, MoE)), default=0)
    if request.copies > experts:
        allowed = f"0 to {experts}" if experts else f"0: {case.model_name} has no routed experts"
        raise CodesignError(f"{request.copies:g} redundant experts", key="--copies", allowed=allowed)


def _warnings(case: Case, request: Request) -> list[str]:
    found = []
    if case.constants.startswith("inherited"):
        found.append(f"kernel constants were not fitted to this part; {case.constants}")
    if case.system.system.status == "hypothetical":
        found.append(
            f"{case.arch} is hypothetical: its numbers are assumptions with ranges (codesign show {case.arch})"
        )
    context, most = request.longest, case.max_context
    if most is not None and context > most:
        found.append(f"a context of {context:,.0f} tokens is more than the {most:,} that {case.model_name} supports")
    if request.drafts > 0 and case.model.drafts:
        found.append("accepted length is that of coding prompts; other text accepts less")
    return found


def _stop(found: Batch, i: int, given: bool, request: Request) -> str:
    if given:
        return "request"
    return request.target_name[:4].upper() if found.limited_by_time[i] > 0.5 else "memory capacity"


def evaluate_case(case: Case, request: Request, degrees: Degrees | None = None) -> Evaluation:
    """Answer one request.

    Among all legal mappings within ``degrees`` the one with the most tokens per second and provisioned megawatt is
    taken, each at the largest batch that meets the target and fits; a batch that was not given is rounded down to
    whole sequences.  Where none serves, the answer is the mapping nearest to serving, with what is missing.

    Raises:
        CodesignError: drafts that the model cannot make, no legal mapping, unknown framework.
    """
    _check(request, case)
    case, overheads = case.asked(request)
    mappings = _flying(case.mappings(degrees or Degrees()), request)
    load = request.load(overheads)
    begin_table(case, take(mappings, 0), load)
    goal = np.inf if request.target is None else request.target
    given = request.batches(mappings)
    found = solve(case, mappings, load, goal, 1.0 if given is None else given, np.inf if given is None else given)
    serves = (found.late <= 0.0) & (found.full <= 0.0)
    score = np.where(serves, found.result.tokens_per_s_per_megawatt, -np.inf)
    warnings = _warnings(case, request)
    if serves.any():
        if given is None:
            i, batch = _whole(case, mappings, load, goal, found, score)
        else:
            i = int(np.argmax(score))
            batch = float(found.batch[i])
        stopped = _stop(found, i, given is not None, request)
        return _answer(case, take(mappings, i), request, load, batch, True, stopped, warnings, {})
    fits = found.full <= 0.0
    if fits.any():
        i = int(np.argmin(np.where(fits, found.result.time_s, np.inf)))
        least, name = float(found.result.time_s[i]), request.target_name
        missing: dict[str, Any] = {f"least_{name}": least, "missing_s": least - goal}
        stopped = name[:4].upper()
    else:
        i = int(np.argmin(found.full))
        memory = take(found.result.memory, i)
        short = float(memory.fixed + found.batch[i] * memory.per_sequence - memory.capacity)
        missing, stopped = {"missing_bytes": short}, "memory capacity"
    missing["nearest_mapping"] = mapping_document(take(mappings, i), load)
    return _answer(case, take(mappings, i), request, load, float(found.batch[i]), False, stopped, warnings, missing)


def _flying(mappings: Mapping, request: Request) -> Mapping:
    """Mappings on which every micro-batch has a request, where their number is given."""
    if request.concurrency is None:
        return mappings
    kept = np.flatnonzero(np.asarray(request.batches(mappings)) >= 1.0 - 1e-9)
    if not len(kept):
        least = int(np.min(np.asarray(mappings.dp) * np.asarray(mappings.microbatches)))
        raise CodesignError(
            f"{request.concurrency:g} requests leave instances without one", key="--concurrency",
            allowed=f"at least {least} with these degrees",
        )  # fmt: skip
    return take(mappings, kept)


def _whole(
    case: Case, mappings: Mapping, load: Load, goal: float, found: Batch, score: np.ndarray
) -> tuple[int, float]:
    """The best mapping once batches are whole: the best few at real batches are tried again, rounded down.

    A root that its finder left a little above the target is rounded down once more.
    """
    order = np.argsort(-score, kind="stable")[:BLOCK]
    whole = np.maximum(np.floor(found.batch[order] * (1.0 + 1e-12)), 1.0)
    again = solve(case, take(mappings, order), load, goal, whole, whole)
    over = (again.late > 1e-9) & (whole > 1.0)
    if over.any():
        whole -= over
        again = solve(case, take(mappings, order), load, goal, whole, whole)
    rate = np.where(score[order] > -np.inf, again.result.tokens_per_s_per_megawatt, -np.inf)
    best = int(np.argmax(rate))
    return int(order[best]), float(whole[best])


def _answer(
    case: Case,
    mapping: Mapping,
    request: Request,
    load: Load,
    batch: float,
    feasible: bool,
    stopped: str,
    warnings: list[str],
    missing: dict[str, Any],
) -> Evaluation:
    load = eqx.tree_at(lambda x: x.batch, load, batch)
    single = jax.tree.map(lambda x: np.asarray(x)[None], mapping)
    found = take(solve(case, single, load, np.inf, batch, batch).result, 0)
    memory = found.memory
    margin = {
        "memory_bytes": float(memory.capacity - memory.fixed - batch * memory.per_sequence),
        "power_w": float(case.machine.power_limit) - float(found.board_power_w),
        **({request.target_name: request.target - float(found.time_s)} if request.target is not None else {}),
        **missing,
    }
    return evaluation_document(
        case,
        mapping,
        request,
        load,
        found,
        feasible=feasible,
        stopped=stopped,
        margin=margin,
        warnings=warnings,
    )


def pareto(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points that no other beats in both: least ``x`` (TPOT), most ``y``; in order of ``x``."""
    order = np.lexsort((-y, x))
    best, kept = -np.inf, []
    for i in order:
        if y[i] > best and np.isfinite(x[i]):
            kept.append(i)
            best = y[i]
    return np.asarray(kept, dtype=int)


def frontier_points(case: Case, request: Request, degrees: Degrees | None = None) -> tuple[Mapping, Load, Any]:
    """The Pareto set over mappings and whole batches: least TPOT or TTFT, most tokens per second and megawatt.

    Returns:
        mappings, loads and `Metrics` of the kept points, stacked in order of that time.
    """
    _check(request, case)
    case, overheads = case.asked(request)
    mappings = _flying(case.mappings(degrees or Degrees()), request)
    load = request.load(overheads)
    n = len(np.asarray(mappings.pp))
    given = request.batches(mappings)
    if given is None and request.phase == "serve":
        flying = np.asarray(FRONTIER_CONCURRENCY, dtype=float)
        sizes = (flying[None] / (np.asarray(mappings.dp) * np.asarray(mappings.microbatches))[:, None]).ravel()
        index = np.repeat(np.arange(n), len(flying))
        index, sizes = index[sizes >= 1.0], sizes[sizes >= 1.0]
    elif given is None:
        index, sizes = np.repeat(np.arange(n), len(FRONTIER_BATCHES)), np.tile(np.asarray(FRONTIER_BATCHES, float), n)
    else:
        index, sizes = np.arange(n), np.broadcast_to(np.asarray(given, dtype=float), (n,))
    stacked = take(mappings, index)
    loads = eqx.tree_at(
        lambda x: x.batch, jax.tree.map(lambda x: np.full(len(sizes), float(x)), load), np.asarray(sizes)
    )
    found = evaluate_all(case, stacked, loads)
    fits = found.memory.fixed + sizes * found.memory.per_sequence <= found.memory.capacity
    if request.target is not None:
        fits &= found.time_s <= request.target
    kept = pareto(np.where(fits, found.time_s, np.inf), np.where(fits, found.tokens_per_s_per_megawatt, -np.inf))
    if not fits.any():
        kept = kept[:0]
    return take(stacked, kept), take(loads, kept), take(found, kept)


def frontier_case(case: Case, request: Request, degrees: Degrees | None = None) -> list[Evaluation]:
    """`frontier_points` as full evaluations."""
    mappings, loads, _ = frontier_points(case, request, degrees)
    case, _ = case.asked(request)
    warnings = _warnings(case, request)
    given = request.batch is not None or request.concurrency is not None
    return [
        _answer(case, take(mappings, i), request, take(loads, i), float(loads.batch[i]), True,
                "request" if given else "", warnings, {})
        for i in range(len(np.asarray(mappings.pp)))
    ]  # fmt: skip


__all__ = ["FRONTIER_BATCHES", "OUTPUT_TOKENS", "evaluate_case", "frontier_case", "frontier_points", "pareto"]
