"""The findings of a study: lines of text, each computed from the summary, none typed.

Who wins each case, whether orders hold and over which range, whether each technology's optimum beats the catalog's
parts of that technology and if not why, forecasts beside results, what cannot be reached and what floors it.
"""

import math
from collections.abc import Iterator
from typing import Any

from codesign.catalog.loader import Where
from codesign.errors import CodesignError
from codesign.study.orderings import alike, assumptions, order, ranges, stacked
from codesign.study.published import BAND_CONTEXTS, DECODE_515K, Band
from codesign.study.wording import Json, case_words, cases, listed, machine, ms, percent, plain, rate, times

#: Budgets in words, as in "would overdraw …".
BUDGET_WORDS = {
    "package_power": "package watts", "die_area": "die area", "reticle": "the reticle", "shoreline": "shoreline",
    "stack_bandwidth": "the stacks' bandwidth", "stack_capacity": "the stacks' capacity", "heat": "heat",
}  # fmt: skip


def findings(summary: Json, workspace: Where = None) -> list[str]:
    """All lines, in the order in which a reader asks.

    Args:
        summary: of schema ``codesign.study/1``; parts that it lacks give no lines.
        workspace: where the parts of the catalog are looked up.
    """
    return [
        *winners(summary), *order(summary), *alike(summary), *ranges(summary), *stacked(summary),
        *optima(summary, workspace),
        *forecasts(summary), *out_of_reach(summary), *floors(summary), *published(summary),
    ]  # fmt: skip


def winners(summary: Json) -> Iterator[str]:
    """Per context and precision: the best buildable design at each target, against the parts that were scored."""
    for key, problems in cases(summary).items():
        told, parts, none = [], [], []
        for p in problems:
            design = max(p.get("designs") or (), key=rate, default=None)
            machines = [m for m in p.get("machines") or () if rate(m)]
            lead = max(machines, key=rate, default=None)
            rival = max((m for m in machines if m.get("status") != "hypothetical"), key=rate, default=None)
            if design is None or not rate(design):
                if lead:
                    parts.append(f"{ms(p['target_s'])}, where {_scored(lead)}")
                else:
                    none.append(ms(p["target_s"]))
                continue
            against = f"{times(rate(design) / rate(rival))} {rival['title']}" if rival else "no existing part serves"
            if lead and lead is not rival and rate(lead) > rate(design):
                against += f"; {_scored(lead)}"
            told.append(f"{ms(p['target_s'])} {design['technology']} with {plain(rate(design))} ({against})")
        ends = [f"no searched design meets {'; '.join(parts)}"] if parts else []
        ends += [f"nothing meets {listed(none)}"] if none else []
        if told:
            head = f"{case_words(key)}, most tokens/s/MW of a buildable design within the budgets: {'; '.join(told)}"
            yield "; ".join([head, *ends]) + "."
        elif ends:
            yield f"{case_words(key)}: {'; '.join(ends)}."


def _scored(m: Json) -> str:
    """A part of the catalog with its result: ``the hypothetical X serves 9,920``."""
    return f"the {m.get('status', 'catalog')} {m['title']} serves {plain(rate(m))}"


def optima(summary: Json, workspace: Where = None) -> Iterator[str]:
    """Per technology: whether its optimum beats every catalog part of that technology at every target, or why not."""
    for technology in summary.get("technologies") or ():
        met: dict[str, list[tuple[Json, Json, Json | None]]] = {}
        for p in summary.get("problems") or ():
            design = next((d for d in p.get("designs") or () if d["technology"] == technology), None)
            for m in p.get("machines") or ():
                if m.get("memory_technology") == technology and rate(m):
                    met.setdefault(m["arch"], []).append((p, m, design))
        for arch, meetings in met.items():
            yield _optimum_against(technology, meetings, overdrafts(summary, arch, technology, workspace))


def _optimum_against(technology: str, meetings: list[tuple[Json, Json, Json | None]], overdrawn: str | None) -> str:
    """A technology's optimum against one part at the targets that the part serves; ``overdrawn`` as in `overdrafts`."""
    title = meetings[0][1]["title"]
    ratios = [rate(design) / rate(m) for _, m, design in meetings]
    before = [rate(design and design | {"rounded": None}) / rate(m) for _, m, design in meetings]
    outside = f"as a design that part would overdraw {overdrawn}" if overdrawn else ""
    unknown = "which budgets that part would overdraw as a design is unknown: the catalog cannot tell"
    if min(ratios) >= 1.0:
        text = f"The {technology} optimum beats {title} at all {len(ratios)} targets that part serves, by "
        text += f"{plain(min(ratios))} to {times(max(ratios))}"
        keeps = unknown if overdrawn is None else outside or "as a design that part would keep all budgets"
        return text + f"; {keeps}."
    i = ratios.index(min(ratios))
    at = meetings[i][0]
    behind = sum(r < 1.0 for r in ratios)
    rounding = sum(r < 1.0 <= b for r, b in zip(ratios, before, strict=True))
    text = f"The {technology} optimum does not beat {title} at {behind} of the {len(ratios)} targets that part serves, "
    text += f"by up to {times(1.0 / ratios[i])}" if ratios[i] else "where no design serves"
    text += f" ({ms(at['target_s'])}, {case_words((float(at['context']), at['precision']))})"
    text += f", at {rounding} of them only since it is rounded to what can be built" if rounding else ""
    if overdrawn is None:
        return text + f": {unknown}."
    if outside:
        return (
            text + f": {outside}; a design is rated at its full envelope, that part at less, above which it slows down."
        )
    return text + ": that part would keep all budgets" + ("." if rounding == behind else ", so the search fell short.")


def overdrafts(summary: Json, arch: str, technology: str, workspace: Where = None) -> str | None:
    """The budgets of the study that a catalog part would overdraw if it were one of its designs, in words.

    Empty where it would keep them all, None where the catalog cannot say.
    """
    from codesign.catalog.loader import load_machine
    from codesign.design import Design, constraints, load_package, load_technology
    from codesign.search.space import VARIABLES

    limits = {b["name"]: b.get("limit") for b in summary.get("budgets") or ()}
    try:
        package = load_package(workspace, die_area=limits.get("die_area"), power=limits.get("package_power"))
        part, memory = load_machine(arch, workspace), load_technology(technology, workspace)
    except CodesignError:
        return None
    design = Design(**{name: getattr(part, name) for name in VARIABLES})
    over = {name: float(g) for name, g in constraints(design, memory, package).items() if float(g) > 1e-3}
    told = [f"{BUDGET_WORDS[name]} by {percent(g)}" for name, g in sorted(over.items(), key=lambda kv: -kv[1])]
    return listed(told)


def forecasts(summary: Json) -> Iterator[str]:
    """The forecast's bands beside the results at its context, by factor, and what carries ours."""
    low, high = BAND_CONTEXTS
    if summary.get("phase") != "decode" or not str(summary.get("model", "")).startswith("kimi-k3"):
        return
    precision = next((p["name"] for p in summary.get("precisions") or ()), None)
    for key, problems in cases(summary).items():
        if low <= key[0] <= high and precision in (None, key[1]):
            for band in DECODE_515K:
                if band.arch:
                    yield from _forecast(summary, key, problems, band, band.arch)
            yield from _forecast_ratio(key, problems)


def _forecast(summary: Json, key: tuple[float, str], problems: list[Json], band: Band, arch: str) -> Iterator[str]:
    ours = [(p["target_s"], rate(machine(p, arch))) for p in problems]
    ours = [(t, r) for t, r in ours if r]
    if not ours:
        return
    middle = (band.low * band.high) ** 0.5
    near, _ = min(ours, key=lambda tr: abs(math.log(tr[1] / middle)))
    inside = [ms(t) for t, r in ours if band.low <= r <= band.high]
    told = ", ".join(f"{plain(r)} at {ms(t)} ({times(r / middle)})" for t, r in ours)
    text = f"Forecast read off a chart, {band.title}: {plain(band.low)} to {plain(band.high)} tokens/s/MW. Here, "
    text += f"{case_words(key)} (in brackets over the band's middle): {told}; "
    text += f"inside the band at {listed(inside)}" if inside else f"nearest at {ms(near)}"
    carried = assumptions(summary, arch, near)
    yield text + (f"; {carried}" if carried else "") + "."


def _forecast_ratio(key: tuple[float, str], problems: list[Json]) -> Iterator[str]:
    """The forecast's own orders: 3D RAM over Vera Rubin and over Jalapeño, as the bands' middles have them."""
    bands = {b.arch: b for b in DECODE_515K if b.arch}
    top = max(bands.values(), key=lambda b: b.high)
    told = []
    for arch, band in bands.items():
        if arch == top.arch:
            continue
        pairs = [(p["target_s"], rate(machine(p, top.arch or "")), rate(machine(p, arch or ""))) for p in problems]
        ratios = ", ".join(f"{ms(t)} {times(a / b)}" for t, a, b in pairs if a and b)
        if ratios:
            told.append(f"{plain(top.low / band.high)} to {times(top.high / band.low)} {band.title}; here {ratios}")
    if told:
        yield f"Forecast for {top.title}, {case_words(key)}: {'. It has '.join(told)}."


def out_of_reach(summary: Json) -> Iterator[str]:
    """Targets that nothing meets: the least TPOT that anything reaches, and how much of it is floor."""
    for key, problems in cases(summary).items():
        for p in problems:
            entries = [(d, d["technology"] + " design") for d in p.get("designs") or ()]
            entries += [(m, m.get("title") or m["arch"]) for m in p.get("machines") or ()]
            if any(rate(e) for e, _ in entries):
                continue
            least = [(float(e["least_tpot_s"]), e, title) for e, title in entries if e.get("least_tpot_s")]
            if not least:
                continue
            tpot, entry, title = min(least, key=lambda x: x[0])
            floor = floor_s(entry)
            told = f"{ms(p['target_s'])} at {case_words(key)} is met by nothing: the least TPOT is {ms(tpot)} ({title})"
            if floor is not None:
                told += f", of which {ms(floor)} are launches, hops and set-up"
                beyond = floor > p["target_s"]
                told += ", on that mapping more than the target itself" if beyond else ""
            yield told + "."


def floor_s(entry: Json) -> float | None:
    """Latencies of a pass that no rate shortens, exposed, per accepted token [s]; None without operations."""
    rows = entry.get("operations")
    if not rows:
        return None
    accepted = (entry.get("metrics") or {}).get("accepted_tokens_per_pass") or 1.0
    return sum(max(r["latency_s"] - r["hidden_s"], 0.0) for r in rows) / accepted


def floors(summary: Json) -> Iterator[str]:
    """Whether any result claims a TPOT below the floor of its launches, hops and set-up."""
    found: list[tuple[float, str]] = []
    for key, problems in cases(summary).items():
        for p in problems:
            entries = [(d, d["technology"] + " design") for d in p.get("designs") or ()]
            entries += [(m, m.get("title") or m["arch"]) for m in p.get("machines") or ()]
            for entry, title in entries:
                tpot = (entry.get("metrics") or {}).get("tpot_s") or entry.get("least_tpot_s")
                floor = floor_s(entry)
                if tpot and floor:
                    found.append((float(tpot) / floor, f"{title} at {ms(p['target_s'])}, {case_words(key)}"))
    if not found:
        return
    below = [where for ratio, where in found if ratio < 1.0 - 1e-9]
    ratio, where = min(found)
    if below:
        yield f"{len(below)} of {len(found)} results claim a TPOT below their floor of latencies: {listed(below[:5])}."
    else:
        yield (
            f"None of {len(found)} results claims a TPOT below its floor of launches, hops and set-up; "
            f"the nearest stands at {times(ratio)} its floor ({where})."
        )


def published(summary: Json) -> Iterator[str]:
    """How far the power envelope and the single-user speeds are from published figures that no fit has seen."""
    shown = [r for r in summary.get("power_table") or () if not r.get("fitted") and r.get("ratio")]
    if shown:
        low, high = (f(shown, key=lambda r: r["ratio"]) for f in (min, max))
        yield (
            f"Power envelope of {len(shown)} parts whose rating was not fitted to: "
            f"{plain(low['ratio'])} ({_part(low)}) to "
            f"{times(high['ratio'])} ({_part(high)}) the published rating."
        )
    checks = [c for c in summary.get("checks") or () if c.get("predicted") and c.get("published")]
    if checks:
        told = []
        for c in checks:
            ratio = times(c["predicted"] / c["published"])
            told.append(f"{c['name']} {plain(c['predicted'])} against {plain(c['published'])} ({ratio})")
        yield f"Single-user speed, not fitted to, token/s: {'; '.join(told)}."


def _part(row: dict[str, Any]) -> str:
    return row.get("title") or row["part"]


__all__ = ["findings", "floor_s", "floors", "forecasts", "optima", "out_of_reach", "overdrafts", "published", "winners"]
