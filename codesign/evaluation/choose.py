"""Find the best mapping of a request, or the frontier of all of them, and say what is missing where none serves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.best import attempt, best, flying
from codesign.evaluation.case import Case, Degrees
from codesign.evaluation.document import Evaluation, evaluation_document, mapping_document
from codesign.evaluation.nearest import nearest
from codesign.evaluation.operations import begin_table
from codesign.evaluation.request import OUTPUT_TOKENS, Request
from codesign.evaluation.solve import evaluate_all, solve
from codesign.layers.moe import MoE
from codesign.mapping import Mapping, take
from codesign.objective.batch import Batch
from codesign.objective.metrics import Load

#: Batches that a frontier tries.
FRONTIER_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)

#: Requests in flight that a frontier of serving tries.
FRONTIER_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)

#: Either of them where a mapping comes near the frontier: steps of a twenty-fifth at most, but for whole numbers.
FINE = tuple(sorted({round(1.04**k) for k in range(195)}))

#: Share of the best rate from which a mapping counts as near, and the gain for which a further point is kept.
NEAR, GAP = 0.8, 0.04


def check(request: Request, case: Case) -> None:
    most = len(case.model.drafts.accepted_length) if case.model.drafts else 0
    if not 0 <= request.drafts <= most:
        allowed = f"0 to {most}" if most else f"0: {case.model_name} has no drafter in its file"
        raise CodesignError(f"{request.drafts:g} drafts", key="--drafts", allowed=allowed)
    experts = min((layer.experts for _, layer in case.model.blocks if isinstance(layer, MoE)), default=0)
    if request.copies > experts:
        allowed = f"0 to {experts}" if experts else f"0: {case.model_name} has no routed experts"
        raise CodesignError(f"{request.copies:g} redundant experts", key="--copies", allowed=allowed)


def warnings_of(case: Case, request: Request) -> list[str]:
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


def evaluate_case(case: Case, request: Request, degrees: Degrees | None = None, *, near: bool = True) -> Evaluation:
    """Answer one request.

    Among all legal mappings within ``degrees`` the one with the most tokens per second and provisioned megawatt is
    taken, each at the largest batch that meets the target and fits; a batch that was not given is rounded down to
    whole sequences.  Where none serves, the answer is the mapping nearest to serving, with what is missing, and in its
    margin the nearest point that does serve (`codesign.evaluation.nearest`), unless ``near`` is False.

    Raises:
        CodesignError: drafts that the model cannot make, no legal mapping, unknown framework.
    """
    check(request, case)
    degrees = degrees or Degrees()
    case, overheads = case.asked(request)
    mappings = flying(case.mappings(degrees), request)
    load = request.load(overheads)
    begin_table(case, take(mappings, 0), load)
    tried = attempt(case, request, mappings, load)
    found, warnings = tried.found, warnings_of(case, request)
    chosen = best(case, tried)
    if chosen is not None:
        i, batch = chosen
        stopped = _stop(found, i, tried.given is not None, request)
        return _answer(case, take(mappings, i), request, load, batch, True, stopped, warnings, {})
    if tried.fits.any():
        i = int(np.argmin(np.where(tried.fits, found.result.time_s, np.inf)))
        least, name = float(found.result.time_s[i]), request.target_name
        missing: dict[str, Any] = {f"least_{name}": least, "missing_s": least - tried.goal}
        stopped = name[:4].upper()
    else:
        i = int(np.argmin(found.full))
        memory = take(found.result.memory, i)
        short = float(memory.fixed + found.batch[i] * memory.per_sequence - memory.capacity)
        missing, stopped = {"missing_bytes": short}, "memory capacity"
    missing["nearest_mapping"] = mapping_document(take(mappings, i), load)
    missing["nearest"] = nearest(case, request, degrees, load) if near else None
    missing["max_chips"] = case.max_chips
    return _answer(case, take(mappings, i), request, load, float(found.batch[i]), False, stopped, warnings, missing)


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
    if request.phase == "serve":
        in_flight = batch * float(np.asarray(mapping.dp)) * float(np.asarray(mapping.microbatches))
        request = replace(request, batch=None, concurrency=in_flight)
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


def _sizes(request: Request, mappings: Mapping, index: np.ndarray, counts: Sequence[int]) -> tuple[Any, Any]:
    """Points of a frontier: each of some mappings at each count, of sequences or of requests in flight (serve).

    Returns:
        index of the mapping and sequences per micro-batch, at least one, of every point.
    """
    per = np.asarray(mappings.dp * mappings.microbatches)[index] if request.phase == "serve" else np.ones(len(index))
    sizes = (np.asarray(counts, dtype=float)[None] / per[:, None]).ravel()
    index = np.repeat(index, len(counts))
    return index[sizes >= 1.0], sizes[sizes >= 1.0]


def near(time: np.ndarray, rate: np.ndarray, share: float = NEAR) -> np.ndarray:
    """Points whose rate is at least ``share`` of the best one that is no slower, (n,) of bool."""
    order = np.lexsort((-rate, time))
    near = np.zeros(len(time), dtype=bool)
    near[order] = rate[order] >= share * np.maximum.accumulate(rate[order])
    return near & np.isfinite(time)


def thinned(rate: np.ndarray, gap: float = GAP) -> np.ndarray:
    """Points of a frontier without those that gain too little over the one kept before; first and last stay.

    Args:
        rate: rising, (n,).
        gap: relative; what is left out lies no more than this above the kept point before it.

    Returns:
        indices, rising.
    """
    kept: list[int] = []
    for i, value in enumerate(rate):
        if not kept or i + 1 == len(rate) or value > rate[kept[-1]] * (1.0 + gap):
            kept.append(i)
    return np.asarray(kept, dtype=int)


def frontier_points(
    case: Case, request: Request, degrees: Degrees | None = None, *, fine: bool = True
) -> tuple[Mapping, Load, Any]:
    """The Pareto set over mappings and whole batches: least TPOT or TTFT, most tokens per second and megawatt.

    Every mapping is tried at a few batches, those that come near the best at many more and at the one that fills the
    memory, and the best point of `evaluate_case` is among them.  Points that gain less than `GAP` over the one before
    are left out.

    Args:
        case, request, degrees: as in `evaluate_case`.
        fine: False for the few batches alone, as a chart of many machines needs them.

    Returns:
        mappings, loads and `Metrics` of the kept points, stacked in order of that time.
    """
    check(request, case)
    case, overheads = case.asked(request)
    mappings = flying(case.mappings(degrees or Degrees()), request)
    load = request.load(overheads)
    n = len(np.asarray(mappings.pp))
    given = request.batches(mappings)

    def evaluated(index: np.ndarray, sizes: np.ndarray) -> tuple[Mapping, Load, Any, np.ndarray, np.ndarray]:
        stacked = take(mappings, index)
        loads = jax.tree.map(lambda x: np.full(len(sizes), float(x)), load)
        loads = eqx.tree_at(lambda x: x.batch, loads, sizes)
        found = evaluate_all(case, stacked, loads)
        fits = found.memory.fixed + sizes * found.memory.per_sequence <= found.memory.capacity
        if request.target is not None:
            fits &= found.time_s <= request.target
        rates = np.where(fits, found.tokens_per_s_per_megawatt, -np.inf)
        return stacked, loads, found, np.where(fits, found.time_s, np.inf), rates

    if given is None:
        counts = FRONTIER_CONCURRENCY if request.phase == "serve" else FRONTIER_BATCHES
        index, sizes = _sizes(request, mappings, np.arange(n), counts)
    else:
        index, sizes = np.arange(n), np.broadcast_to(np.asarray(given, dtype=float), (n,))
    if given is None and fine:
        _, _, first, time, rate = evaluated(index, sizes)
        close = near(time, rate)
        memory = take(first.memory, close)
        full = np.floor((memory.capacity - memory.fixed) / np.maximum(memory.per_sequence, 1e-300))
        full = np.where(full < 1e7, np.maximum(full, 1.0), 1.0)
        more = _sizes(request, mappings, np.unique(index[close]), FINE)
        chosen = best(case, attempt(case, request, mappings, load))
        last = ([], []) if chosen is None else ([chosen[0]], [chosen[1]])
        index = np.concatenate([index, index[close], more[0], np.asarray(last[0], dtype=int)])
        sizes = np.concatenate([sizes, full, more[1], np.asarray(last[1], dtype=float)])
    stacked, loads, found, time, rate = evaluated(index, sizes)
    kept = pareto(time, rate)
    kept = kept[thinned(rate[kept])] if np.isfinite(time).any() else kept[:0]
    return take(stacked, kept), take(loads, kept), take(found, kept)


def frontier_case(case: Case, request: Request, degrees: Degrees | None = None) -> list[Evaluation]:
    """`frontier_points` as full evaluations."""
    mappings, loads, _ = frontier_points(case, request, degrees)
    case, _ = case.asked(request)
    warnings = warnings_of(case, request)
    given = request.batch is not None or request.concurrency is not None
    return [
        _answer(case, take(mappings, i), request, take(loads, i), float(loads.batch[i]), True,
                "request" if given else "", warnings, {})
        for i in range(len(np.asarray(mappings.pp)))
    ]  # fmt: skip


__all__ = ["FRONTIER_BATCHES", "OUTPUT_TOKENS", "evaluate_case", "frontier_case", "frontier_points", "pareto"]
