"""Findings about orders: which machine leads, over which range of its unknowns, and what binds the others."""

from collections.abc import Iterator
from itertools import pairwise

from codesign.evaluation.operations import LANE_WORDS
from codesign.study.sensitivity import ORDER
from codesign.study.verdicts import TOGETHER, where
from codesign.study.wording import (
    Json,
    case_words,
    cases,
    leaf,
    listed,
    machine,
    ms,
    percent,
    plain,
    rate,
    times,
    titles,
)
from codesign.units import format_quantity

#: The bases of `codesign.evaluation.case.bases` in words.
BASES = {
    "own latencies": "one law for all (shares of all chips measured, launches and set-ups of each part's own file)",
    "speed of light": "peak rates and bare latencies",
}


def _entries(summary: Json, arch: str) -> tuple[Json | None, list[Json]]:
    """A machine's entry with all unknowns together, and those of single unknowns."""
    mine = [e for e in summary.get("sensitivity") or () if e["arch"] == arch]
    together = next((e for e in mine if e["parameter"] == TOGETHER), None)
    return together, [e for e in mine if e["parameter"] != TOGETHER]


def order(summary: Json) -> Iterator[str]:
    """Whether the order that bandwidth per watt suggests holds, problem by problem at the swept context."""
    heads = [_entries(summary, arch)[0] for arch in ORDER]
    if not all(heads):
        return
    per_watt = [h["bandwidth_per_watt"] for h in heads if h]
    context = heads[0]["context"] if heads[0] else 0.0
    targets = {c["target_s"] for c in heads[0]["cases"]} if heads[0] else set()
    name = titles(summary)
    for key, problems in cases(summary).items():
        if abs(key[0] - context) > 0.5:
            continue
        told = []
        for problem in problems:
            rates = [rate(machine(problem, arch)) for arch in ORDER]
            if problem["target_s"] not in targets or not all(rates):
                continue
            holds = all(a > b for a, b in pairwise(rates))
            told.append(
                f"{'holds' if holds else 'does not hold'} at {ms(problem['target_s'])} "
                f"({', '.join(map(plain, rates))}; 1 : {' : '.join(plain(r / rates[0], 2) for r in rates[1:])})"
            )
        if told:
            yield (
                f"{case_words(key)}: {' > '.join(name.get(a, a) for a in ORDER)} in tokens/s/MW {'; '.join(told)}. "
                f"Bandwidth per provisioned watt alone suggests 1 : "
                f"{' : '.join(plain(w / per_watt[0], 2) for w in per_watt[1:])}."
            )


def _rate_on(entry: Json, basis: str, attention: str, target: float) -> float:
    found = [
        b["metric"] or 0.0
        for b in entry.get("bases") or ()
        if (b["basis"], b["attention"]) == (basis, attention) and abs(b["target_s"] - target) < 1e-9
    ]
    return found[0] if found else 0.0


def alike(summary: Json) -> Iterator[str]:
    """The same order on constants that treat all parts alike: launches fitted to servers are known of GPUs alone."""
    heads = [h for h in (_entries(summary, arch)[0] for arch in ORDER) if h]
    if len(heads) < len(ORDER):
        return
    attention, name = heads[0]["attention"], titles(summary)
    for basis in dict.fromkeys(b["basis"] for b in heads[0].get("bases") or ()):
        told = []
        for target in sorted({c["target_s"] for c in heads[0]["cases"]}):
            rates = [_rate_on(h, basis, attention, target) for h in heads]
            if all(rates):
                shares = " : ".join(plain(r / rates[0], 2) for r in rates[1:])
                holds = all(a > b for a, b in pairwise(rates))
                told.append(f"1 : {shares} at {ms(target)}" + ("" if holds else " (the order does not hold)"))
        if told:
            yield (
                f"On {BASES.get(basis, basis)}, {' : '.join(name.get(a, a) for a in ORDER)} stand {', '.join(told)} "
                f"({attention} attention)."
            )


def ranges(summary: Json) -> Iterator[str]:
    """Over which range of a machine's unknowns the order against its rivals holds: alone, then all at once."""
    name = titles(summary)
    for arch, rivals in zip(ORDER, (ORDER[1:], ORDER[2:]), strict=False):
        together, singles = _entries(summary, arch)
        if together is not None:
            told = [r for r in rivals if any(c["reference"].get(r) and c["metric"][0] for c in together["cases"])]
            for rival in told:
                yield _alone(together, singles, name.get(arch, arch), rival, name.get(rival, rival))
            yield from _at_once(together, name.get(arch, arch), {r: name.get(r, r) for r in told})


def _alone(together: Json, singles: list[Json], title: str, rival: str, rival_title: str) -> str:
    compared = [c for c in together["cases"] if c["reference"].get(rival) and c["metric"][0]]
    ahead = [c for c in compared if c["metric"][0] >= c["reference"][rival]]
    behind = [c for c in compared if c not in ahead]
    text = f"{title} is ahead of {rival_title} at {where(ahead)}" if ahead else f"{title} is behind {rival_title}"
    text += f" and behind at {where(behind)}" if ahead and behind else ""
    flips = sorted({u for c in compared for u in c["flips"].get(rival, ())})
    count = len(together["unknowns"])
    if flips:
        text += f". Of its {count} unknowns, each alone over its range, {listed([leaf(u) for u in flips])} turn that"
    else:
        text += f". None of its {count} unknowns, each alone over its range, turns that"
    told = [_span(e, rival) for e in singles]
    return text + (f"; least lead with {'; '.join(told)}." if told else ".")


def _at_once(together: Json, title: str, rivals: dict[str, str]) -> Iterator[str]:
    told = []
    for rival, rival_title in rivals.items():
        corner = []
        for c in together["cases"]:
            level, turn = c["reference"].get(rival), c["turns"].get(rival)
            if level and c["metric"][0] and c["metric"][0] >= level:
                words = f"{times(c['worst'] / level)} at {ms(c['target_s'])} {c['attention']}"
                corner.append(words + (f" (passed {plain(100.0 * turn)} % of the way)" if turn is not None else ""))
        if corner:
            told.append(f"{', '.join(corner)} of {rival_title}")
    if told:
        yield (
            f"With all its unknowns at their worst ends at once {title} has {'; '.join(told)}, "
            f"{'those' if len(told) > 1 else 'that part'} as the catalog has {'them' if len(told) > 1 else 'it'}."
        )


def _span(entry: Json, rival: str) -> str:
    """An unknown's range with the least lead over a rival on it, and where the order turns."""
    low, high = (format_quantity(v, entry["unit"], 3) for v in entry["range"])
    ratios = [
        (m or 0.0) / c["reference"][rival] for c in entry["cases"] if c["reference"].get(rival) for m in c["metric"]
    ]
    turns = _turning(entry, rival)
    text = f"{leaf(entry['parameter'])} {low} to {high} {times(min(ratios))}"
    return text + (f", turning at {turns}" if turns else "")


def _turning(entry: Json, rival: str) -> str:
    """The values at which the order against a rival turns: ``72.6 TB/s (20 ms bf16)``."""
    return _values(entry, [(c, v) for c in entry["cases"] for v in (c.get("crossings") or {}).get(rival, ())])


def _values(entry: Json, found: list[tuple[Json, float]]) -> str:
    return listed([f"{format_quantity(v, entry['unit'], 3)} ({ms(c['target_s'])} {c['attention']})" for c, v in found])


def stacked(summary: Json) -> Iterator[str]:
    """Where each hypothetical part stands at each target against the leader of the shipped order, and what binds."""
    name = titles(summary)
    archs = dict.fromkeys(e["arch"] for e in summary.get("sensitivity") or () if e["arch"] not in ORDER)
    for arch in archs:
        together, singles = _entries(summary, arch)
        if together is None:
            continue
        title, rival = str(name.get(arch, arch)), ORDER[0]
        for attention in dict.fromkeys(c["attention"] for c in together["cases"]):
            mine = [c for c in together["cases"] if c["attention"] == attention]
            told = "; ".join(_stand(c, rival) for c in mine)
            yield f"{title}, {attention} attention, against {name.get(rival, rival)}: {told}."
        scans = [c for c in together["cases"] if c.get("scan") and c["scan"]["flop_per_byte"]]
        if scans:
            yield _scan(title, scans)
        yield from _turns(title, name.get(rival, rival), singles, rival)


def _turns(title: str, rival_title: str, singles: list[Json], rival: str) -> Iterator[str]:
    """With which unknowns the order against a rival turns, or serving begins, at which values; which change nothing."""
    passes, begins = [], []
    for entry in singles:
        low, high = (format_quantity(v, entry["unit"], 3) for v in entry["range"])
        head = f"{leaf(entry['parameter'])} ({low} to {high}) at "
        turns = _turning(entry, rival)
        starts = _values(entry, [(c, v) for c in entry["cases"] for v in c.get("serving", ())])
        passes += [head + turns] if turns else []
        begins += [head + starts] if starts else []
    still = [leaf(e["parameter"]) for e in singles if e["swing"] < 0.005]
    if passes:
        yield f"{title} passes {rival_title}, or is passed, with {'; '.join(passes)}."
    if begins:
        yield f"{title} begins or ceases to serve at all with {'; '.join(begins)}."
    if still:
        yield f"{title}: {listed(still)} change{'s' if len(still) == 1 else ''} nothing over the stated range."


def _stand(c: Json, rival: str) -> str:
    level = c["reference"].get(rival) or 0.0
    binds = sorted(c["binding"].items(), key=lambda kv: -kv[1])[:2]
    bound = ", ".join(f"{LANE_WORDS[k]} {percent(v)}" for k, v in binds)
    if not c["feasible"]:
        return f"{ms(c['target_s'])} out of reach, least {ms(c['tpot_s'])} ({bound})"
    ratio = times(c["metric"][0] / level) if level else "which does not serve"
    stop = "power" if c["throttled"] else c["limited_by"]
    return f"{ms(c['target_s'])} {plain(c['metric'][0])} ({ratio}; {bound}; batch by {stop})"


def _scan(title: str, scans: list[Json]) -> str:
    """The attention scan's FLOP per byte against what the part does per byte, by format."""
    told = []
    for attention in dict.fromkeys(c["attention"] for c in scans):
        mine = [c for c in scans if c["attention"] == attention]
        last = mine[-1]["scan"]
        bound = [c for c in mine if c["scan"]["bound_by"] == "tensor"]
        told.append(
            f"{attention} {plain(last['machine_flop_per_byte'])} FLOP per byte, so the scan is compute-bound "
            + (f"at {where(bound)}, {percent(min(c['scan']['share'] for c in bound))} to "
               f"{percent(max(c['scan']['share'] for c in bound))} of the pass" if bound else "nowhere")
        )  # fmt: skip
    most = max(c["scan"]["flop_per_byte"] for c in scans)
    asks = f"{title}: the scan asks for {plain(most)} FLOP per byte of KV"
    return f"{asks}; the part achieves {'; '.join(told)}."


def assumptions(summary: Json, arch: str, near: float) -> str:
    """The largest elasticities of a machine's rate at the swept target nearest to ``near`` [s], with their kinds."""
    together, _ = _entries(summary, arch)
    able = [c for c in (together or {}).get("cases", ()) if c.get("elasticities") and c["attention"] == "bf16"]
    if together is None or not able:
        return ""
    c = min(able, key=lambda c: abs(c["target_s"] - near))
    kinds = together["kinds"]
    steps = ("scale_up_domain", "in_switch_reduction")  # whole numbers: no small change of theirs exists
    top = sorted(((k, v) for k, v in c["elasticities"].items() if k not in steps), key=lambda kv: -abs(kv[1]))[:4]
    return f"at {ms(c['target_s'])} carried by " + ", ".join(
        f"{leaf(k)} {v:+.2f} ({kinds.get(k, 'derived')})" for k, v in top
    )


__all__ = ["assumptions", "order", "ranges", "stacked"]
