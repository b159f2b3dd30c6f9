"""Published figures against the model's: chip power by the envelope, and the speed of a single user, term by term.

Nothing is tuned to these points.  Each speed is taken apart into what its operations wait for, and the gap to the
published figure is told as what one term alone would have to cost to close it.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.catalog.loader import Where, load_accelerator, load_file
from codesign.evaluation.case import Case, Degrees, load_case
from codesign.evaluation.operations import operations
from codesign.evaluation.solve import solve
from codesign.mapping import Mapping, take
from codesign.objective.decode import Load
from codesign.power_fit import envelope_table
from codesign.study.published import POINTS, Point

#: Context assumed where a publisher names none, and those that show how little it matters [tokens].
CONTEXT = 8192.0
OTHER_CONTEXTS = (1024.0, 32768.0)

#: Terms of a pass, as `terms_of` sorts its operations.
WORDS = {
    "weights": "weights (with their activations) from memory",
    "cache": "KV and state from memory",
    "arithmetic": "arithmetic",
    "elementwise": "elementwise kernels",
    "launches": "kernel launches",
    "setup": "set-up of collectives",
    "hops": "hops of collectives",
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
    time to what binds it: a matrix product's memory lane to weights, a scan's or a state's to the cache.

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
            term = "cache" if row["family"] == "attention" else "weights"
        found[term] += exposed - latency
    found["setup"] = min(setup_s, found["hops"])
    found["hops"] -= found["setup"]
    return found


def _fastest(case: Case, degrees: Degrees, context: float, drafts: int) -> tuple[Mapping, float]:
    """The mapping with the least time per pass for one sequence, and that pass [s]."""
    mappings = case.mappings(degrees)
    found = solve(case, mappings, _load(context, drafts), np.inf, 1.0, 1.0)
    time = np.where(found.full <= 0.0, found.result.pace_s, np.inf)
    i = int(np.argmin(time))
    return take(mappings, i), float(time[i])


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
        closing.append(f"{WORDS[key]} at {factor:.2g} ×" if factor > 0.0 else f"{WORDS[key]} could not")
    return words + ", ".join(closing)


def _mapping_words(mapping: Mapping) -> str:
    pp, tp, ep = (round(float(x)) for x in (mapping.pp, mapping.tp, mapping.ep))
    split = ", KV by context" if float(mapping.context_split) > 0.5 else ""
    return f"{round(float(mapping.chips))} chips (PP {pp}, TP {tp}, EP {ep}{split})"


def _check(point: Point, case: Case, drafts: int) -> dict[str, Any]:
    """One row: predicted beside published, with its terms."""
    degrees = Degrees(**({"dp": 1, "microbatches": 1} | point.degrees))
    mapping, pass_s = _fastest(case, degrees, CONTEXT, drafts)
    rows = operations(case, mapping, _load(CONTEXT, drafts))
    bare = operations(_without_setup(case), mapping, _load(CONTEXT, drafts))
    terms = terms_of(rows, sum(r["latency_s"] for r in rows) - sum(r["latency_s"] for r in bare))
    table = case.model.drafts.accepted_length[drafts - 1] if drafts and case.model.drafts else 1.0
    accepted = point.accepted if point.accepted is not None else float(table)
    chosen = Degrees(
        **{k: round(float(getattr(mapping, k))) for k in ("pp", "tp", "dp", "ep", "microbatches")},
        attention_split="context" if float(mapping.context_split) > 0.5 else "heads",
    )
    moved = [pass_s / _fastest(case, chosen, c, drafts)[1] - 1.0 for c in OTHER_CONTEXTS]

    shares = ", ".join(
        f"{WORDS[k]} {100.0 * t / pass_s:.0f} %" for k, t in sorted(terms.items(), key=lambda kv: -kv[1]) if t > 0.01 * pass_s
    )
    told = [f"{pass_s * 1e3:.3g} ms a pass: {shares}", gap_words(terms, accepted / point.value)]
    told.append(_mapping_words(mapping) + ("" if point.degrees else ", the fastest for one sequence"))
    if drafts:
        origin = "as published" if point.accepted is not None else "by the model file's table"
        told.append(f"{drafts} drafts, {accepted:g} tokens accepted a pass {origin}")
    told.append(
        f"context of {CONTEXT / 1024:g}Ki assumed; "
        + ", ".join(f"{c / 1024:g}Ki {100.0 * m:+.1f} %" for c, m in zip(OTHER_CONTEXTS, moved, strict=True))
    )
    name = point.name if point.drafts is not None else f"{point.name}, {f'{drafts} drafts' if drafts else 'no drafts'}"
    return {
        "name": name, "arch": point.arch, "model": point.model, "predicted": accepted / pass_s,
        "published": point.value, "unit": "token/s", "ratio": accepted / pass_s / point.value,
        "drafts": drafts, "accepted": accepted, "context": CONTEXT, "pass_s": pass_s,
        "seconds": terms, "terms": "; ".join(told), "source": point.source,
    }  # fmt: skip


def published_checks(workspace: Where = None, points: tuple[Point, ...] = POINTS) -> list[dict[str, Any]]:
    """The speed of one user, uncalibrated, against published points.

    Where a publisher names no mapping, the fastest for a single sequence is taken; where it does not say whether
    drafts were used, the row stands twice if the model's file has a table of acceptance: without drafts, and with as
    many as make it fastest.

    Returns:
        per row: name, predicted, published, unit, ratio, source, ``terms`` (words), ``seconds`` (by term of `WORDS`),
        drafts, accepted, context, pass_s.
    """
    found = []
    cases: dict[tuple[str, str], Case] = {}
    for point in points:
        key = (point.arch, point.model)
        case = cases.setdefault(key, load_case(*key, workspace=workspace))
        if point.drafts is not None:
            found.append(_check(point, case, point.drafts))
            continue
        found.append(_check(point, case, 0))
        if case.model.drafts is not None:
            table = np.asarray(case.model.drafts.accepted_length)
            degrees = Degrees(dp=1, microbatches=1)
            speed = [a / _fastest(case, degrees, CONTEXT, d)[1] for d, a in enumerate(table, start=1)]
            found.append(_check(point, case, int(np.argmax(speed)) + 1))
    return jax.tree.map(lambda x: x.item() if isinstance(x, np.generic) else x, found)
