"""Find the best mapping of a request, or the frontier of all of them, and say what is missing where none serves."""

from typing import Any

import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case, Degrees
from codesign.evaluation.document import Evaluation, evaluation_document, mapping_document
from codesign.evaluation.solve import decode_all, solve
from codesign.mapping import Mapping, take
from codesign.objective.batch import Batch
from codesign.objective.compiled import BLOCK
from codesign.objective.decode import Load

#: Batches that a frontier tries.
FRONTIER_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)

#: Tokens of one answer, for energy per query.
OUTPUT_TOKENS = 1000.0

#: Largest exponent of expert popularity that the routing model was fitted to.
MAX_SKEW = 1.5


def _check(
    context: float, batch: float | None, tpot: float | None, drafts: float, skew: float, output: float, case: Case
) -> None:
    for name, value, low in (("--context", context, 0.0), ("--batch", batch, 0.0), ("--tpot", tpot, 0.0)):
        if value is not None and not (np.isfinite(value) and value > low):
            raise CodesignError(f"{value!r} is not a positive number", key=name, allowed="a finite number above 0")
    if not (np.isfinite(output) and output > 0.0):
        raise CodesignError(f"{output!r} tokens of an answer", key="--output", allowed="a finite number above 0")
    if not 0.0 <= skew <= MAX_SKEW:
        raise CodesignError(f"expert popularity of exponent {skew!r}", key="--skew", allowed=f"0 to {MAX_SKEW:g}")
    most = len(case.model.drafts.accepted_length) if case.model.drafts else 0
    if not 0 <= drafts <= most:
        allowed = f"0 to {most}" if most else f"0: {case.model_name} has no drafter in its file"
        raise CodesignError(f"{drafts:g} drafts", key="--drafts", allowed=allowed)


def _warnings(case: Case, load: Load) -> list[str]:
    found = [] if case.execution.calibrated or case.execution.hard else [
        "kernel constants are published estimates and assumptions, not fitted: real kernels are slower at small batch"
    ]  # fmt: skip
    if case.system.system.status == "hypothetical":
        found.append(
            f"{case.arch} is hypothetical: its numbers are assumptions with ranges (codesign show {case.arch})"
        )
    context, most = float(np.max(load.context, initial=0.0)), case.max_context
    if most is not None and context > most:
        found.append(f"a context of {context:,.0f} tokens is more than the {most:,} that {case.model_name} supports")
    if np.any(np.asarray(load.drafts) > 0) and case.model.drafts:
        found.append("accepted length is that of coding prompts; other text accepts less")
    return found


def _stop(found: Batch, i: int, given: bool) -> str:
    if given:
        return "request"
    return "TPOT" if found.limited_by_time[i] > 0.5 else "memory capacity"


def evaluate_case(
    case: Case,
    context: float,
    *,
    degrees: Degrees | None = None,
    tpot: float | None = None,
    batch: float | None = None,
    drafts: float = 0.0,
    skew: float = 0.0,
    output: float = OUTPUT_TOKENS,
) -> Evaluation:
    """Answer one decode request.

    Among all legal mappings within ``degrees`` the one with the most tokens per second and provisioned megawatt is
    taken, each at the largest batch that meets ``tpot`` [s] and fits; a batch that was not given is rounded down to
    whole sequences.  Where none serves, the answer is the mapping nearest to serving, with what is missing.
    """
    _check(context, batch, tpot, drafts, skew, output, case)
    mappings = case.mappings(degrees or Degrees())
    load = Load(batch=1.0, context=context, drafts=drafts, skew=skew, output=output)
    goal = np.inf if tpot is None else tpot
    found = solve(case, mappings, load, goal, batch or 1.0, batch or np.inf)
    serves = (found.late <= 0.0) & (found.full <= 0.0)
    score = np.where(serves, found.result.tokens_per_s_per_megawatt, -np.inf)
    warnings = _warnings(case, load)
    if serves.any():
        i, whole = _whole(case, mappings, load, goal, found, score) if batch is None else (int(np.argmax(score)), batch)
        return _answer(
            case, take(mappings, i), load, whole, tpot, True, _stop(found, i, batch is not None), warnings, {}
        )
    fits = found.full <= 0.0
    missing: dict[str, Any] = {}
    if fits.any():
        i = int(np.argmin(np.where(fits, found.result.tpot_s, np.inf)))
        least = float(found.result.tpot_s[i])
        missing = {
            "least_tpot_s": least,
            "missing_s": least - goal,
            "nearest_mapping": mapping_document(take(mappings, i)),
        }
        stopped = "TPOT"
    else:
        i = int(np.argmin(found.full))
        memory = take(found.result.memory, i)
        short = float(memory.fixed + (batch or 1.0) * memory.per_sequence - memory.capacity)
        missing = {"missing_bytes": short, "nearest_mapping": mapping_document(take(mappings, i))}
        stopped = "memory capacity"
    return _answer(case, take(mappings, i), load, batch or 1.0, tpot, False, stopped, warnings, missing)


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
    load: Load,
    batch: float,
    tpot: float | None,
    feasible: bool,
    stopped: str,
    warnings: list[str],
    missing: dict[str, Any],
) -> Evaluation:
    load = Load(batch, load.context, load.drafts, load.skew, load.output)
    single = jax.tree.map(lambda x: np.asarray(x)[None], mapping)
    found = take(solve(case, single, load, np.inf, batch, batch).result, 0)
    memory = found.memory
    margin = {
        "memory_bytes": float(memory.capacity - memory.fixed - batch * memory.per_sequence),
        "power_w": float(case.machine.power_limit) - float(found.board_power_w),
        **({"tpot_s": tpot - float(found.tpot_s)} if tpot is not None else {}),
        **missing,
    }
    return evaluation_document(
        case,
        mapping,
        load,
        found,
        feasible=feasible,
        tpot=tpot,
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


def frontier_points(
    case: Case,
    context: float,
    *,
    degrees: Degrees | None = None,
    tpot: float | None = None,
    batch: float | None = None,
    drafts: float = 0.0,
    skew: float = 0.0,
    output: float = OUTPUT_TOKENS,
) -> tuple[Mapping, Load, Any]:
    """The Pareto set over mappings and whole batches: least TPOT, most tokens per second and megawatt.

    Returns:
        mappings, loads and `Decode` of the kept points, stacked in order of TPOT.
    """
    _check(context, batch, tpot, drafts, skew, output, case)
    mappings = case.mappings(degrees or Degrees())
    n = len(np.asarray(mappings.pp))
    batches = np.asarray([batch] if batch is not None else FRONTIER_BATCHES, dtype=float)
    index, sizes = np.repeat(np.arange(n), len(batches)), np.tile(batches, n)
    stacked = take(mappings, index)
    loads = Load(sizes, *(np.full(len(sizes), x) for x in (context, drafts, skew, output)))
    found = decode_all(case, stacked, loads)
    fits = found.memory.fixed + sizes * found.memory.per_sequence <= found.memory.capacity
    if tpot is not None:
        fits &= found.tpot_s <= tpot
    kept = pareto(np.where(fits, found.tpot_s, np.inf), np.where(fits, found.tokens_per_s_per_megawatt, -np.inf))
    if not fits.any():
        kept = kept[:0]
    return take(stacked, kept), take(loads, kept), take(found, kept)


def frontier_case(case: Case, context: float, **given: Any) -> list[Evaluation]:
    """`frontier_points` as full evaluations."""
    mappings, loads, _ = frontier_points(case, context, **given)
    warnings = _warnings(case, loads)
    return [
        _answer(case, take(mappings, i), take(loads, i), float(loads.batch[i]), given.get("tpot"), True,
                "request" if given.get("batch") else "", warnings, {})
        for i in range(len(np.asarray(mappings.pp)))
    ]  # fmt: skip


__all__ = ["FRONTIER_BATCHES", "OUTPUT_TOKENS", "evaluate_case", "frontier_case", "frontier_points", "pareto"]
