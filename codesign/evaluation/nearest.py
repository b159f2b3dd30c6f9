"""What could serve instead of an infeasible request: the nearest point that can, and what was given up for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.best import Tried, attempt, best, flying
from codesign.evaluation.case import Case, Degrees
from codesign.evaluation.document import mapping_document
from codesign.evaluation.request import Request
from codesign.evaluation.solve import solve
from codesign.mapping import take
from codesign.objective.metrics import Load


def _chips(degrees: Degrees) -> int | None:
    """Chips asked for, or those that all three degrees make; None where any number will do."""
    if degrees.chips is not None or degrees.pp is None or degrees.tp is None or degrees.dp is None:
        return degrees.chips
    return degrees.pp * degrees.tp * degrees.dp


def _wider(degrees: Degrees) -> list[Degrees]:
    """Degrees as asked for, any on as many chips, any at all; each once."""
    return list(dict.fromkeys((degrees, Degrees(chips=_chips(degrees)), Degrees())))


def levels(request: Request) -> Iterator[tuple[Request, Any, bool]]:
    """Requests that ask for less and less: (request, whose batch is the most, the first mapping counts as well).

    As asked; a smaller batch; any time, which is least at the given batch or else at one sequence; both.
    """
    sized = request.concurrency is not None or (request.batch is not None and request.batch > 1.0)
    yield request, None, False
    if sized:
        yield replace(request, batch=None, concurrency=None), request, True
    if request.target is not None:
        given = request.batch is not None or request.concurrency is not None
        timeless = replace(request, tpot=None, ttft=None)
        yield timeless if given else replace(timeless, batch=1.0), None, True
        if sized:
            yield replace(timeless, batch=1.0, concurrency=None), None, True


def _closest(tried: Tried, chips: float | None) -> Any:
    """Of the mappings that serve those whose number of chips is nearest to the one asked for, (n,)."""
    if chips is None or not tried.serves.any():
        return True
    off = np.abs(np.log(np.asarray(tried.mappings.chips, dtype=float) / chips))
    return off <= np.min(off[tried.serves]) + 1e-9


def nearest(case: Case, request: Request, degrees: Degrees, load: Load) -> dict[str, Any] | None:
    """The nearest point that serves where a request does not.

    What was asked for is given up in this order: the degrees, on the chips that were asked for; the number of chips,
    for the nearest that serves; the batch, for the largest that serves; the target, for the least time.

    Args:
        case: in the request's regime.
        request: one that no mapping within ``degrees`` serves.
        degrees: as given.
        load: as `Request.load` makes it.

    Returns:
        ``relaxed`` (flags whose values differ from what was asked), ``mapping``, ``batch``, ``tpot_s``, ``ttft_s`` and
        ``tokens_per_s_per_megawatt``; None where not even one sequence fits on any mapping.
    """
    wider = _wider(degrees)
    for eased, bound, again in levels(request):
        for asked in wider if again else wider[1:]:
            try:
                mappings = flying(case.mappings(asked), eased)
                if bound is not None:
                    mappings = flying(mappings, bound)
            except CodesignError:  # as many chips have no legal mapping, or more instances than requests
                continue
            most = np.inf if bound is None else bound.batches(mappings)
            tried = attempt(case, eased, mappings, load, most)
            if request.target is not None and eased.target is None:
                if not tried.fits.any():
                    continue
                i = int(np.argmin(np.where(tried.fits, tried.found.result.time_s, np.inf)))
                return _document(case, request, degrees, tried, i, float(tried.found.batch[i]))
            found = best(case, tried, _closest(tried, _chips(degrees)))
            if found is not None:
                return _document(case, request, degrees, tried, *found)
    return None


def _document(case: Case, request: Request, degrees: Degrees, tried: Tried, i: int, batch: float) -> dict[str, Any]:
    """The point as the margin of an answer tells it."""
    result = take(solve(case, take(tried.mappings, np.array([i])), tried.load, np.inf, batch, batch).result, 0)
    mapping = mapping_document(take(tried.mappings, i), tried.load)
    flying_now = batch * mapping["dp"] * mapping["microbatches"]
    now = mapping | {
        "batch": batch, "concurrency": flying_now, "tpot": float(result.tpot_s), "ttft": float(result.ttft_s),
    }  # fmt: skip
    asked = degrees.__dict__ | {"batch": request.batch, "concurrency": request.concurrency}
    changed = [name for name, value in asked.items() if value is not None and not same(name, value, now[name])]
    late = request.target is not None and float(result.time_s) > request.target * (1.0 + 1e-9)
    return {
        "relaxed": changed + ([request.target_name[:4]] if late else []), "mapping": mapping, "batch": batch,
        "tpot_s": now["tpot"] or None, "ttft_s": now["ttft"] or None,
        "tokens_per_s_per_megawatt": float(result.tokens_per_s_per_megawatt),
    }  # fmt: skip


def same(name: str, asked: Any, found: Any) -> bool:
    """Whether a flag was kept; a chunk is the largest that a pass may take."""
    if isinstance(asked, str) or found is None:
        return asked == found
    return found <= asked * (1.0 + 1e-9) if name == "chunk" else bool(np.isclose(asked, found, rtol=1e-9))
