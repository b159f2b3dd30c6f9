"""Published figures against the model's: chip power by the envelope, and the speed of a single user, term by term.

Nothing is tuned to these points.  Each speed is taken apart into what its operations wait for, and the gap to the
published figure is told as what one term alone would have to cost to close it.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from codesign.catalog.loader import load_accelerator, load_file
from codesign.evaluation.case import Case, Degrees, load_case
from codesign.evaluation.operations import operations
from codesign.evaluation.solve import evaluate_all
from codesign.mapping import Mapping, take
from codesign.objective.metrics import Load
from codesign.power_fit import envelope_table
from codesign.study.published import POINTS, Point

Where = str | Path | None

#: Context assumed where a publisher names none, and those that show how little it matters [tokens].
CONTEXT = 8192.0
OTHER_CONTEXTS = (1024.0, 32768.0)

#: Chips of a server, told beside the fastest mapping where a publisher does not say how many served the one user.
FEW_CHIPS = 8

#: Terms of a pass, as `terms_of` sorts its operations.
WORDS = {
    "weights": "weights from memory",
    "cache": "KV and state from memory",
    "arithmetic": "arithmetic",
    "elementwise": "elementwise kernels",
    "launches": "launches",
    "setup": "collectives' set-up",
    "hops": "hops",
    "links": "bytes on the links",
}


def power_table(workspace: Where = None) -> list[dict[str, Any]]:
    """Rows of `codesign.power_fit.envelope_table`: part, title, published_w, envelope_w, ratio, regime, fitted, source.

    ``regime`` is what sets the envelope, ``source`` that of the published figure.
    """
    rows = []
    for row in envelope_table(workspace):
        chip = load_accelerator(load_file("system", row.part, workspace).accelerator, workspace)
        rows.append(
            {
                "part": row.part, "title": row.title, "published_w": float(row.published_w),
                "envelope_w": float(row.envelope_w), "ratio": float(row.ratio), "regime": row.regime,
                "fitted": bool(row.fitted), "source": f"{chip.chip_power.kind}: {chip.chip_power.source}",
            }
        )  # fmt: skip
    return rows


def terms_of(rows: list[dict[str, Any]], setup_s: float = 0.0) -> dict[str, float]:
    """Seconds that a pass waits, by term (keys of `WORDS`); they sum to the pass.

    An operation's latency goes to launches, or to set-up and hops where it is a collective; the rest of its exposed
    time to what binds it: a matrix product's memory lane to weights (its activations with them), a scan's or a
    state's to the cache.

    Args:
        rows: of `codesign.evaluation.operations.operations`.
        setup_s: set-up of collectives in all of the pass [s]; the rest of their latency is hops.
    """
    found = dict.fromkeys(WORDS, 0.0)
    for row in rows:
        exposed = row["time_s"] - row["hidden_s"]
        latency = min(row["latency_s"], exposed)
        collective = row["family"] == "collective"
        found["hops" if collective else "launches"] += latency
        lane = max(row["lane_time_s"], key=lambda x: row["lane_time_s"][x])
        if collective:
            term = "links"
        elif lane == "tensor":
            term = "arithmetic"
        elif row["family"] == "elementwise" or lane == "vector":
            term = "elementwise"
        else:
            term = "cache" if row["family"] in ("attention", "state") else "weights"
        found[term] += exposed - latency
    found["setup"] = min(setup_s, found["hops"])
    found["hops"] -= found["setup"]
    return found


def _passes(case: Case, mappings: Mapping, context: float, drafts: int) -> np.ndarray:
    """Seconds of a pass of one sequence on each mapping, infinite where it does not fit."""
    found = evaluate_all(case, mappings, _load(context, drafts))
    fits = found.memory.fixed + found.memory.per_sequence <= found.memory.capacity
    return np.where(fits, found.pace_s, np.inf)


def _load(context: float, drafts: int) -> Load:
    return Load(1.0, context, float(drafts), 0.0, 1000.0)


def _without_setup(case: Case) -> Case:
    execution = eqx.tree_at(lambda e: e.setup, case.execution, 0.0 * np.asarray(case.execution.setup))
    return replace(case, execution=execution)


def gap_words(terms: dict[str, float], published_s: float, most: int = 3) -> str:
    """What would close the gap between a predicted pass and the published one: each of the largest terms, alone."""
    gap = published_s - sum(terms.values())
    if gap == 0.0:
        return "no gap"
    words = f"published is {abs(gap) * 1e3:.3g} ms {'longer' if gap > 0 else 'shorter'}; alone, "
    closing = []
    for key in sorted(terms, key=lambda k: -terms[k])[:most]:
        factor = 1.0 + gap / terms[key] if terms[key] > 0.0 else -1.0
        closing.append(f"{WORDS[key]} at {factor:.3g} ×" if factor > 0.0 else f"{WORDS[key]} could not")
    return words + ", ".join(closing)


def _mapping_words(mapping: Mapping) -> str:
    pp, tp, ep = (round(float(x)) for x in (mapping.pp, mapping.tp, mapping.ep))
    split = ", KV by context" if float(mapping.context_split) > 0.5 else ""
    return f"{round(float(mapping.chips))} chips (PP {pp}, TP {tp}, EP {ep}{split})"


def _check(point: Point, case: Case, mappings: Mapping, drafts: int) -> dict[str, Any]:
    """One row: predicted beside published, with its terms."""
    passes = _passes(case, mappings, CONTEXT, drafts)
    best = int(np.argmin(passes))
    mapping, pass_s = take(mappings, best), float(passes[best])
    rows = operations(case, mapping, _load(CONTEXT, drafts))
    bare = operations(_without_setup(case), mapping, _load(CONTEXT, drafts))
    terms = terms_of(rows, sum(r["latency_s"] for r in rows) - sum(r["latency_s"] for r in bare))
    accepted = point.accepted if point.accepted is not None else _accepted(case, drafts)
    moved = [pass_s / float(_passes(case, mappings, c, drafts)[best]) - 1.0 for c in OTHER_CONTEXTS]

    largest = sorted(((k, t) for k, t in terms.items() if t > 0.01 * pass_s), key=lambda kt: -kt[1])
    told = [
        f"{pass_s * 1e3:.3g} ms a pass: " + ", ".join(f"{WORDS[k]} {100.0 * t / pass_s:.0f} %" for k, t in largest),
        gap_words(terms, accepted / point.value),
    ]
    chosen = _mapping_words(mapping)
    if not point.degrees:
        chosen += ", the fastest for one sequence"
        few = float(np.min(passes, where=np.asarray(mappings.chips) == FEW_CHIPS, initial=np.inf))
        if np.isfinite(few):
            chosen += f"; {FEW_CHIPS} chips reach {accepted / few:.0f} token/s"
    told.append(chosen)
    if drafts:
        origin = "as published" if point.accepted is not None else "by the model file's table"
        told.append(f"{drafts} drafts, {accepted:g} tokens accepted a pass {origin}")
    told.append(
        f"context of {CONTEXT / 1024:g}Ki assumed; speed at "
        + ", ".join(f"{c / 1024:g}Ki {100.0 * m:+.1f} %" for c, m in zip(OTHER_CONTEXTS, moved, strict=True))
    )
    name = point.name if point.drafts is not None else f"{point.name}, {f'{drafts} drafts' if drafts else 'no drafts'}"
    return {
        "name": name, "arch": point.arch, "model": point.model, "predicted": accepted / pass_s,
        "published": point.value, "unit": "token/s", "ratio": accepted / pass_s / point.value,
        "drafts": drafts, "accepted": accepted, "context": CONTEXT, "pass_s": pass_s,
        "seconds": terms, "terms": "; ".join(told), "source": point.source,
    }  # fmt: skip


def _accepted(case: Case, drafts: int) -> float:
    return float(case.model.drafts.accepted_length[drafts - 1]) if drafts and case.model.drafts else 1.0


def _checks_of(point: Point, workspace: Where) -> list[dict[str, Any]]:
    """The rows of one point: one where its drafts are published, else one without and one with the best number."""
    case = load_case(point.arch, point.model, workspace=workspace)
    degrees: dict[str, Any] = {"dp": 1, "microbatches": 1} | point.degrees
    mappings = case.mappings(Degrees(**degrees))
    if point.drafts is not None:
        return [_check(point, case, mappings, point.drafts)]
    found = [_check(point, case, mappings, 0)]
    if case.model.drafts is not None:
        speeds = {
            d: _accepted(case, d) / _passes(case, mappings, CONTEXT, d).min()
            for d in range(1, len(case.model.drafts.accepted_length) + 1)
        }
        found.append(_check(point, case, mappings, max(speeds, key=lambda d: speeds[d])))
    return found


def published_checks(
    workspace: Where = None, points: tuple[Point, ...] = POINTS, workers: int = 2
) -> list[dict[str, Any]]:
    """The speed of one user against published points, which no fit has seen.

    Where a publisher names no mapping, the fastest for a single sequence is taken; where it does not say whether
    drafts were used, the row stands twice if the model's file has a table of acceptance: without drafts, and with as
    many as make it fastest.

    Args:
        workspace: where machines and models are looked up.
        points: published; `POINTS` unless given.
        workers: models compiled side by side (threads; results do not depend on it).

    Returns:
        per row: name, predicted, published, unit, ratio, source, ``terms`` (words), ``seconds`` (by term of `WORDS`),
        drafts, accepted, context, pass_s.
    """
    models = list(dict.fromkeys(point.model for point in points))

    def of_model(model: str) -> dict[str, list[dict[str, Any]]]:
        return {point.name: _checks_of(point, workspace) for point in points if point.model == model}

    with ThreadPoolExecutor(max_workers=workers) as pool:
        found = {name: rows for part in pool.map(of_model, models) for name, rows in part.items()}
    return [row for point in points for row in found[point.name]]
