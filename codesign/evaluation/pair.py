"""Attention and experts on different parts, answered: degrees, batch and micro-batches searched, one JSON document."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case
from codesign.evaluation.request import Request
from codesign.layers.moe import MoE
from codesign.mapping import EXPERT_TENSOR_WAYS, INSTANCES, TENSOR_WAYS, legal, stack, take
from codesign.objective.compiled import leaves, uniform
from codesign.objective.metrics import Framework
from codesign.objective.pools import Link, Pair, Pool, decode_pair, halves, link_between, room
from codesign.programs import run

SCHEMA = "codesign.pair/1"

#: Micro-batches in flight and sequences of each that are tried.
MICROBATCHES = (1, 2, 3, 4)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

#: Points per compiled call.
BLOCK = 1024


@dataclass(frozen=True)
class PairDegrees:
    """Degrees of a pair; None is searched, but for the attention pool's chips: as many as its domain joins.

    Attributes:
        chips, tp: of the attention pool, and of one instance.
        expert_chips, expert_ep: of the expert pool: chips, and ranks by expert.
        microbatches: in flight.
    """

    chips: int | None = None
    tp: int | None = None
    expert_chips: int | None = None
    expert_ep: int | None = None
    microbatches: int | None = None


def _checked(case: Case, experts: Case, degrees: PairDegrees) -> PairDegrees:
    domain = int(min(float(case.machine.scale_up_domain), case.max_chips))
    chips = domain if degrees.chips is None else degrees.chips
    limits = ((chips, case.max_chips, "--chips", case.arch),
              (degrees.expert_chips or 1, experts.max_chips, "--expert-chips", experts.arch))  # fmt: skip
    for value, most, key, name in limits:
        if not 1 <= value <= most:
            raise CodesignError(f"{value} chips of {name}", key=key, allowed=f"1 to {most}")
    for name in ("tp", "expert_ep", "microbatches"):
        value = getattr(degrees, name)
        if value is not None and value < 1:
            raise CodesignError(f"{value}", key=f"--{name.replace('_', '-')}", allowed="at least 1")
    return replace(degrees, chips=chips)


def _points(case: Case, experts: Case, degrees: PairDegrees, batch: float | None) -> list[tuple[float, ...]]:
    """(tp, dp, expert chips, ep, micro-batches, batch) of every pair to try."""
    model, chips = case.model, degrees.chips or 1
    most = min((layer.experts for _, layer in model.blocks if isinstance(layer, MoE)), default=1)
    ways = [degrees.tp] if degrees.tp else [t for t in TENSOR_WAYS if t <= float(case.machine.scale_up_domain)]
    attention = [(t, chips // t) for t in ways if chips % t == 0 and legal(model, 1, t, chips // t, 1) is None]
    if not attention:
        told = f"tp {degrees.tp} on {chips} chips" if degrees.tp else f"no tp on {chips} chips"
        raise CodesignError(told, key="--tp", allowed="a divisor of the chips that splits the model's heads")
    counts = [degrees.expert_chips] if degrees.expert_chips else [n for n in INSTANCES if n <= experts.max_chips]
    bank = [(n, n // w) for n in counts for w in EXPERT_TENSOR_WAYS if n % w == 0 and n // w <= most]
    if degrees.expert_ep:
        bank = [(n, degrees.expert_ep) for n in counts if n % degrees.expert_ep == 0 and degrees.expert_ep <= most]
    if not bank:
        raise CodesignError(
            f"no expert ranks on {counts} chips", key="--expert-chips", allowed=f"ranks that divide them, up to {most}"
        )
    flying = [degrees.microbatches] if degrees.microbatches else MICROBATCHES
    sizes = [batch] if batch is not None else BATCHES
    return [(t, d, n, e, m, b) for t, d in attention for n, e in bank for m in flying for b in sizes]


def _evaluated(model: Any, even: bool, fixed: Any, mappings: Any, loads: Any) -> tuple[Any, Any]:
    machine, execution, on, execution_there, precision, link = fixed

    def one(mappings: Any, load: Any) -> Pair:
        pools = Pool(machine, execution, mappings[0]), Pool(on, execution_there, mappings[1])
        return decode_pair(model, *pools, precision, uniform(load) if even else load, link)

    leaves, structure = jax.tree.flatten(jax.vmap(one)(mappings, loads))
    return leaves, jax.tree.unflatten(structure, range(len(leaves)))


def _solve(case: Case, experts: Case, load: Any, link: Link, table: np.ndarray) -> Pair:
    """`Pair` of numpy arrays over the rows of ``table``, as `_points` has them."""
    first, second = halves(case.model)
    size = -(-len(table) // BLOCK) * BLOCK if len(table) > BLOCK else len(table)
    table = np.concatenate([table, np.repeat(table[-1:], size - len(table), axis=0)])
    fixed = leaves((case.machine, case.execution, experts.machine, experts.execution, case.precision, link))
    found, counted = [], None
    for i in range(0, size, BLOCK):
        rows = table[i : i + BLOCK]
        t, d, n, e, m, batch = rows.T
        ones, none = np.ones(len(rows)), np.zeros(len(rows))
        mappings = (
            stack(first, list(zip(ones, t, d, ones, none, m, strict=True))),
            stack(second, list(zip(ones, ones, n, e, none, ones, strict=True))),
        )
        loads = jax.tree.map(lambda x, like=none: np.full_like(like, float(x)), load)
        loads = eqx.tree_at(lambda x: x.batch, loads, batch)
        even = not np.any(np.asarray(load.skew))
        numbers, counted = run(_evaluated, (case.model, even), fixed, mappings, loads)
        found.append([np.asarray(x) for x in numbers])
    joined = [np.concatenate(x) for x in zip(*found, strict=True)]
    return jax.tree.map(lambda i: joined[i], counted)


def disaggregate_cases(
    case: Case, experts: Case, request: Request, degrees: PairDegrees, link: Link | None = None
) -> dict[str, Any]:
    """The pair with the most tokens per second and provisioned megawatt that meets the target and fits.

    Args:
        case: attention pool, model and precisions.
        experts: the expert pool's machine.
        request: of decode.
        degrees: fixed where given.
        link: between the pools; the slower side's scale-out where not given.

    Raises:
        CodesignError: another phase, impossible degrees, a model that cannot be halved.
    """
    if request.phase != "decode":
        raise CodesignError(f"two pools in {request.phase}", key="--experts-on", allowed="--phase decode")
    degrees = _checked(case, experts, degrees)
    load = request.load(Framework())
    table = np.asarray(_points(case, experts, degrees, request.batch), dtype=float)
    link = link or link_between(case.machine, experts.machine)
    found = _solve(case, experts, load, link, table)
    left = np.asarray(room(found))
    goal = np.inf if request.tpot is None else request.tpot
    serves = (left >= 0.0) & (found.tpot_s <= goal)
    if serves.any():
        i = int(np.argmax(np.where(serves, found.tokens_per_s_per_megawatt, -np.inf)))
    elif (left >= 0.0).any():
        i = int(np.argmin(np.where(left >= 0.0, found.tpot_s, np.inf)))
    else:
        i = int(np.argmax(left))
    best, (tp, dp, chips, ep, m, batch) = take(found, i), table[i]
    numbers = {k: float(v) for k, v in best._asdict().items() if not k.endswith("_memory")}
    joules = 1e6 / numbers["tokens_per_s_per_megawatt_drawn"]
    numbers |= {"energy_per_token_j": joules, "energy_per_query_j": joules * request.output}
    margin = {"memory_bytes": float(left[i])} | ({"tpot_s": goal - numbers["tpot_s"]} if np.isfinite(goal) else {})
    return {
        "schema": SCHEMA, "arch": case.arch, "experts_on": experts.arch, "model": case.model_name, "phase": "decode",
        "feasible": bool(serves[i]), "margin": margin,
        "request": request.document(eqx.tree_at(lambda x: x.batch, load, float(batch))),
        "mapping": {
            "chips": round(tp * dp), "tp": round(tp), "dp": round(dp), "expert_chips": round(chips), "ep": round(ep),
            "moe_tp": round(chips / ep), "microbatches": round(m),
        },
        "link": {
            "attention_bandwidth": float(link.attention_bandwidth), "expert_bandwidth": float(link.expert_bandwidth),
            "latency_s": float(link.latency),
        },
        "precision": case.dtypes, "metrics": numbers,
        "memory": {
            name: {k: float(v) for k, v in part._asdict().items()} | {"total": float(part.total)}
            for name, part in (("attention", best.attention_memory), ("experts", best.expert_memory))
        },
    }  # fmt: skip
