"""What could serve instead of an infeasible pair of pools: the nearest point that can, and what was given up for it."""

from typing import Any

import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.nearest import levels, same
from codesign.evaluation.pair_degrees import PairDegrees, degree_rows
from codesign.evaluation.pair_points import PairCase, PairPoints, at_batches, chosen, largest, solve_pairs


def pair_mapping(row: np.ndarray) -> dict[str, int]:
    """Degrees of a row of `PairPoints.table` as the JSON names them."""
    tp, dp, chips, ep, m = (round(float(x)) for x in row[:5])
    return {
        "chips": tp * dp, "tp": tp, "dp": dp, "expert_chips": chips, "ep": ep, "moe_tp": chips // ep, "microbatches": m,
    }  # fmt: skip


def _wider(degrees: PairDegrees) -> list[PairDegrees]:
    """Degrees as asked for, any on as many chips, any at all; each once."""
    as_many = PairDegrees(chips=degrees.chips, expert_chips=degrees.expert_chips)
    return list(dict.fromkeys((degrees, as_many, PairDegrees())))


def _closest(points: PairPoints, degrees: PairDegrees) -> np.ndarray:
    """Those whose numbers of chips are nearest to the ones asked for, by the sum of their logarithms' distances."""
    off = np.zeros(len(points.table))
    for have, asked in zip(points.chips.T, (degrees.chips, degrees.expert_chips), strict=True):
        if asked is not None:
            off += np.abs(np.log(have / asked))
    return np.flatnonzero(off <= np.min(off) + 1e-9)


def nearest_pair(pair: PairCase, degrees: PairDegrees) -> dict[str, Any] | None:
    """The nearest point that serves where a request does not.

    What was asked for is given up in the order of `codesign.evaluation.nearest`: the degrees, on the chips that were
    asked for; the numbers of chips, for the nearest that serve; the batch, for the largest that serves; the target, for
    the least time.

    Args:
        pair: one whose request no pair within ``degrees`` serves.
        degrees: as `checked` leaves them: the attention pool's chips are told.

    Returns:
        ``relaxed`` (flags whose values differ from what was asked), ``mapping``, ``batch``, ``tpot_s``, ``ttft_s``
        (null, as everywhere in decode) and ``tokens_per_s_per_megawatt``; None where not even one sequence fits.
    """
    wider = _wider(degrees)
    for eased, bound, again in levels(pair.request):
        now = pair._replace(request=eased)
        for asked in wider if again else wider[1:]:
            try:
                rows = degree_rows(pair.attention, pair.experts, asked)
            except CodesignError:  # as many chips have no legal degrees
                continue
            points = solve_pairs(now, at_batches(rows, [1.0 if eased.batch is None else eased.batch]))
            if not points.serves.any():
                continue
            points = chosen(points, np.flatnonzero(points.serves))
            if pair.request.tpot is not None and eased.tpot is None:
                return _document(pair, degrees, points, int(np.argmin(points.time)))
            points = chosen(points, _closest(points, degrees))
            if eased.batch is None:
                points = largest(now, points.table[:, :5], None if bound is None else bound.batch)
            return _document(pair, degrees, points, int(np.argmax(points.rate)))
    return None


def _document(pair: PairCase, degrees: PairDegrees, points: PairPoints, i: int) -> dict[str, Any]:
    """The point as the margin of an answer tells it."""
    mapping, batch, time = pair_mapping(points.table[i]), float(points.table[i, 5]), float(points.time[i])
    asked = {
        "chips": degrees.chips, "tp": degrees.tp, "expert_chips": degrees.expert_chips, "ep": degrees.expert_ep,
        "microbatches": degrees.microbatches, "batch": pair.request.batch,
    }  # fmt: skip
    now = mapping | {"batch": batch}
    changed = [name for name, value in asked.items() if value is not None and not same(name, value, now[name])]
    late = pair.request.tpot is not None and time > pair.request.tpot * (1.0 + 1e-9)
    return {
        "relaxed": changed + (["tpot"] if late else []), "mapping": mapping, "batch": batch,
        "tpot_s": time, "ttft_s": None, "tokens_per_s_per_megawatt": float(points.rate[i]),
    }  # fmt: skip
