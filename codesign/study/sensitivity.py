"""How tokens per megawatt moves with the numbers that nobody has published, and whether one machine stays ahead.

Every number of a machine that states a range in its file is moved over it, one at a time and all together, at each
target and with the attention scan in each of two formats; where the order against another machine turns inside a
range, the value at which it does is found by bisection.  Batches are real numbers here, so rates lie a little above
those of whole sequences.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from codesign.evaluation.case import bases, load_case, with_dtypes
from codesign.evaluation.choose import OUTPUT_TOKENS
from codesign.objective.metrics import Load
from codesign.study.standing import standing
from codesign.study.sweep import Sweep, floats
from codesign.study.unknowns import FLAGS, Unknown, numbers_of
from codesign.study.verdicts import ATTENTION, TOGETHER, note_of

Where = str | Path | None

#: Machines compared, in the order that bandwidth per watt suggests.
ORDER = ("jalapeno", "vera-rubin-nvl72", "gb300-nvl72")

#: Unknowns always told, if the machine's file states a range, by what is asked of it.
NAMED = {
    "jalapeno": ("tensor_fp8", "tensor_bf16", "sram", "scale_up_hop", "launch", "memory_energy", "provisioned_power"),
    "stacked": (
        "memory_bandwidth", "memory_capacity", "memory_energy", "power_limit", "provisioned_power", "tensor_bf16",
        "tensor_fp8",
    ),
}  # fmt: skip

#: Beside them as many others, the largest swings first, that move ln rate by so much.
OTHERS = 3
SWING = 0.05

#: A machine serves where it gives more than this [tokens/s per MW].
SERVING = 1e-6

#: Values per unknown.
POINTS = 7


@dataclass(frozen=True)
class Question:
    """What is served where.

    Attributes:
        model: of the catalog. context: cached tokens. drafts, skew: of the load.
        weights, kv: precision flags, None as the model's file has them.
        workspace: where names are looked up.
    """

    model: str
    context: float
    drafts: float = 0.0
    skew: float = 0.0
    weights: str | None = None
    kv: str | None = None
    workspace: Where = None

    def sweeps(self, arch: str, targets: Sequence[float]) -> list[tuple[str, float, Sweep]]:
        """One per format of attention and target: format, target, sweep."""
        case = load_case(arch, self.model, workspace=self.workspace)
        load = Load(1.0, self.context, self.drafts, self.skew, OUTPUT_TOKENS)
        first: dict[float, Sweep] = {}
        found = []
        for a in ATTENTION:
            here = with_dtypes(case, weights=self.weights, kv_dtype=self.kv, attention_dtype=a)
            for t in targets:
                sweep = Sweep(here, load, t, first.get(t))
                first.setdefault(t, sweep)
                found.append((a, t, sweep))
        return found


def sweep_machine(
    question: Question,
    arch: str,
    targets: Sequence[float],
    rivals: dict[tuple[str, float], dict[str, float]],
    main: tuple[str, float],
    named: Sequence[str] = (),
    points: int = POINTS,
) -> list[dict[str, Any]]:
    """Entries of one machine: all unknowns together first, then each, the largest swing first.

    Args:
        question: what is served.
        arch: the machine.
        targets: TPOT [s].
        rivals: per (attention, target) the rates of other machines as the catalog has them.
        main: the (attention, target) whose numbers stand at the top of an entry.
        named: unknowns that get an entry however little they move.
        points: values per unknown.

    Returns:
        per entry: arch, parameter, unit, kind, value, range, values; metric and reference at ``main``; target_s,
        attention, context of it; ``swing`` (largest over the cases, of ln rate); note; and ``cases``, a row per
        attention and target with metric, reference, ``crossings`` by rival and ``serving``, the values at which the
        machine begins or ceases to serve at all.  The first entry tells beside it the ``bases``, rates on constants
        that treat all parts alike by basis, attention and target, and its cases tell instead how
        the machine stands (feasible, tpot_s, batch, mapping, binding, limited_by, throttled, scan, floor_s,
        elasticities), its rates at the corners ``worst`` and ``best``, the share of the way to the worst at which a
        rival passes (``turns``), and which unknowns alone turn an order (``flips``).
    """
    sweeps = question.sweeps(arch, targets)
    unknowns = sweeps[0][2].unknowns
    extremes = [u.change(v) for u in unknowns for v in (u.low, u.high)]
    ends = [_split(sweep.rates(extremes), [2] * len(unknowns)) for *_, sweep in sweeps]
    swings = [max(_swing(pairs[j]) for pairs in ends) for j in range(len(unknowns))]
    told = [unknowns[j] for j in _told(unknowns, swings, named)]
    grids = [u.grid(points) for u in told]
    changes = [u.change(v) for u, grid in zip(told, grids, strict=True) for v in grid]
    swept = [_split(sweep.rates(changes), [len(g) for g in grids]) for *_, sweep in sweeps]

    together = _together(question, arch, sweeps, rivals, main, points)
    for case, pairs in zip(together["cases"], ends, strict=True):
        case["flips"] = _flips(unknowns, pairs, case["metric"][0] or 0.0, case["reference"])
    together["bases"] = _bases(question, sweeps) if arch in ORDER else []
    together["swings"] = dict(zip([u.name for u in unknowns], swings, strict=True))
    entries = [together]
    for j, (u, grid) in enumerate(zip(told, grids, strict=True)):
        cases = [
            _case(attention, target, rates[j], rivals[attention, target])
            | {"crossings": _crossings(sweep, u, grid, rates[j], rivals[attention, target])}
            | {"serving": _crossings(sweep, u, grid, rates[j], {"": SERVING}).get("", [])}
            for (attention, target, sweep), rates in zip(sweeps, swept, strict=True)
        ]
        entry = _entry(question, arch, u.name, u.unit, u.kind, u.value, grid, cases, main)
        entries.append(entry | {"swing": max(_swing(rates[j]) for rates in swept)})
    for entry in entries:
        entry["note"] = note_of(entry)
    return floats(entries)


def _bases(question: Question, sweeps: list[tuple[str, float, Sweep]]) -> list[dict[str, Any]]:
    """The rate of the machine as it is on each of `codesign.evaluation.case.bases`, None where it does not serve."""
    return [
        {
            "basis": name, "attention": attention, "target_s": target,
            "metric": replace(sweep, case=replace(sweep.case, execution=execution)).base() or None,
        }
        for name, execution in bases(question.workspace).items()
        for attention, target, sweep in sweeps
    ]  # fmt: skip


def _split(rates: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    return np.split(rates, np.cumsum(sizes)[:-1])


def _told(unknowns: list[Unknown], swings: list[float], named: Sequence[str]) -> list[int]:
    """Indices of the unknowns that get an entry: those named and the `OTHERS` that move most, largest swing first."""
    order = sorted(range(len(unknowns)), key=lambda j: -swings[j])
    others = [j for j in order if unknowns[j].name not in named and swings[j] >= SWING][:OTHERS]
    return [j for j in order if unknowns[j].name in named or j in others]


def _swing(rates: np.ndarray) -> float:
    """ln(highest/lowest); a rate of zero at some value and not at others counts as e^9."""
    if rates.max() <= 0.0:
        return 0.0
    return float(np.log(rates.max() / rates.min())) if rates.min() > 0.0 else 9.0


def _case(attention: str, target: float, rates: np.ndarray, reference: dict[str, float]) -> dict[str, Any]:
    metric = [float(r) if r > 0.0 else None for r in rates]
    return {"attention": attention, "target_s": target, "metric": metric, "reference": reference}


def _entry(
    question: Question,
    arch: str,
    name: str,
    unit: str,
    kind: str,
    value: float,
    grid: np.ndarray,
    cases: list[dict[str, Any]],
    main: tuple[str, float],
) -> dict[str, Any]:
    top = next(c for c in cases if (c["attention"], c["target_s"]) == main)
    return {
        "arch": arch, "parameter": name, "unit": unit, "kind": kind, "value": value,
        "range": [float(grid[0]), float(grid[-1])], "values": grid.tolist(), "metric": top["metric"],
        "reference": {k: v for k, v in top["reference"].items() if v}, "attention": main[0], "target_s": main[1],
        "context": question.context, "cases": cases,
    }  # fmt: skip


def _flips(
    unknowns: list[Unknown], ends: list[np.ndarray], base: float, rivals: dict[str, float]
) -> dict[str, list[str]]:
    """Per rival the unknowns that alone, at an end of their range, turn the order that the catalog's values give."""
    return {
        rival: [
            u.name
            for u, pair in zip(unknowns, ends, strict=True)
            if any((r >= level) != (base >= level) for r in pair if max(r, level) > 0.0)
        ]
        for rival, level in rivals.items()
        if base > 0.0 or level > 0.0
    }


def _crossings(
    sweep: Sweep, unknown: Unknown, grid: np.ndarray, rates: np.ndarray, rivals: dict[str, float]
) -> dict[str, list[float]]:
    """Per rival the values at which the machine's rate passes the rival's; none for a flag, which has no between."""
    found: dict[str, list[float]] = {}
    for rival, level in rivals.items():
        ahead = rates >= level
        turns = np.flatnonzero(ahead[1:] != ahead[:-1])
        if len(turns) and level > 0.0 and unknown.name not in FLAGS:
            brackets = [(float(grid[i]), float(grid[i + 1])) for i in turns]
            found[rival] = [sweep.crossing(unknown.change, bracket, level) for bracket in brackets]
    return found


def _together(
    question: Question,
    arch: str,
    sweeps: list[tuple[str, float, Sweep]],
    rivals: Any,
    main: tuple[str, float],
    points: int,
) -> dict[str, Any]:
    """All unknowns from the catalog's values (0) to the ends that serve least (1); and the ends that serve most."""
    shares = np.linspace(0.0, 1.0, points)
    unknowns = sweeps[0][2].unknowns
    worst, best = {u.name: u.worst for u in unknowns}, {u.name: u.best for u in unknowns}
    cases = []
    for attention, target, sweep in sweeps:
        path = sweep.rates([sweep.corner(worst, s) for s in shares] + [sweep.corner(best, 1.0)])
        level = rivals[attention, target]
        cases.append(
            _case(attention, target, path[:-1], level)
            | {"worst": float(path[-2]), "best": float(path[-1])}
            | {"turns": _turns(sweep, worst, shares, path[:-1], level)}
            | standing(sweep)
        )
    case = sweeps[0][2].case
    kinds = {k: n.kind for k, n in numbers_of(case.system).items()}
    return _entry(question, arch, TOGETHER, "1", "", 0.0, shares, cases, main) | {
        "title": case.system.system.title, "status": case.system.system.status,
        "swing": max(_swing(np.array([m or 0.0 for m in c["metric"]])) for c in cases),
        "unknowns": [u.name for u in unknowns], "kinds": kinds,
        "bandwidth_per_watt": float(case.machine.memory_bandwidth) / float(case.machine.provisioned_power),
    }  # fmt: skip


def _turns(
    sweep: Sweep, worst: dict[str, float], shares: np.ndarray, path: np.ndarray, rivals: dict[str, float]
) -> dict[str, float]:
    """Per rival that is behind at first and ahead on the way to the worst corner, the share at which it passes."""
    found = {}
    for rival, level in rivals.items():
        ahead = path >= level
        if level > 0.0 and ahead[0] and not ahead.all():
            i = int(np.argmin(ahead))
            bracket = float(shares[i - 1]), float(shares[i])
            found[rival] = sweep.crossing(lambda s: sweep.corner(worst, s), bracket, level)
    return found


def rates_of(
    question: Question, archs: Sequence[str], targets: Sequence[float]
) -> dict[tuple[str, float], dict[str, float]]:
    """Rate of each machine as the catalog has it, per (attention, target); 0 where it does not serve."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for arch in archs:
        for attention, target, sweep in question.sweeps(arch, targets):
            found.setdefault((attention, target), {})[arch] = sweep.base()
    return found


def sweep_all(
    question: Question,
    compared: Sequence[str],
    targets: Sequence[float],
    stacked: Sequence[str] = (),
    stacked_targets: Sequence[float] = (),
    points: int = POINTS,
    workers: int = 1,
) -> list[dict[str, Any]]:
    """Entries of all machines.

    Args:
        question: what is served.
        compared: machines whose order is asked for, at ``targets`` [s].
        stacked: hypothetical parts, compared with the former at the targets of both lists.
        stacked_targets: further targets [s].
        points: values per unknown; two fewer for the parts of ``stacked``, which have more targets.
        workers: machines swept side by side (threads; results do not depend on it).
    """
    every = tuple(sorted({*targets, *stacked_targets}))
    rates = rates_of(question, compared, every)
    main = (ATTENTION[0], min(targets))

    def entries_of(arch: str) -> list[dict[str, Any]]:
        if arch in compared:
            others = {k: {a: r for a, r in v.items() if a != arch} for k, v in rates.items()}
            return sweep_machine(question, arch, targets, others, main, NAMED.get(arch, ()), points)
        return sweep_machine(question, arch, every, rates, main, NAMED["stacked"], max(points - 2, 3))

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return [entry for found in pool.map(entries_of, (*compared, *stacked)) for entry in found]
