"""Degrees of a pair of pools: what is asked for, checked against both systems, and every legal one within it."""

from dataclasses import dataclass, replace

import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case
from codesign.layers.moe import MoE
from codesign.mapping import EXPERT_TENSOR_WAYS, INSTANCES, TENSOR_WAYS, legal

#: Micro-batches in flight that are tried.
MICROBATCHES = (1, 2, 3, 4)


@dataclass(frozen=True)
class PairDegrees:
    """Degrees of a pair; None is searched.

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


def checked(case: Case, experts: Case, degrees: PairDegrees) -> PairDegrees:
    """Degrees within the two systems; an attention pool of which nothing is said is as large as its domain.

    Raises:
        CodesignError: more chips than a system offers, a degree below 1.
    """
    domain = int(min(float(case.machine.scale_up_domain), case.max_chips))
    chips = domain if degrees.chips is None else degrees.chips
    there = 1 if degrees.expert_chips is None else degrees.expert_chips
    limits = ((chips, case.max_chips, "--chips", case.arch),
              (there, experts.max_chips, "--expert-chips", experts.arch))  # fmt: skip
    for value, most, key, name in limits:
        if not 1 <= value <= most:
            raise CodesignError(f"{value} chips of {name}", key=key, allowed=f"1 to {most}")
    for name, key in (("tp", "--tp"), ("expert_ep", "--ep"), ("microbatches", "--microbatches")):
        value = getattr(degrees, name)
        if value is not None and value < 1:
            raise CodesignError(f"{value}", key=key, allowed="at least 1")
    return replace(degrees, chips=chips)


def degree_rows(case: Case, experts: Case, degrees: PairDegrees) -> np.ndarray:
    """(tp, dp, expert chips, ep, micro-batches) of every pair to try, (n, 5).

    Raises:
        CodesignError: there is none.
    """
    model = case.model
    most = min((layer.experts for _, layer in model.blocks if isinstance(layer, MoE)), default=1)
    ways = [degrees.tp] if degrees.tp else [t for t in TENSOR_WAYS if t <= float(case.machine.scale_up_domain)]
    pools = [degrees.chips] if degrees.chips else [n for n in INSTANCES if n <= case.max_chips]
    attention = [(t, n // t) for n in pools for t in ways if n % t == 0 and legal(model, 1, t, n // t, 1) is None]
    if not attention:
        told = f"tp {degrees.tp} on {degrees.chips} chips" if degrees.tp else f"no tp on {degrees.chips} chips"
        raise CodesignError(told, key="--tp", allowed="a divisor of the chips that splits the model's heads")
    counts = [degrees.expert_chips] if degrees.expert_chips else [n for n in INSTANCES if n <= experts.max_chips]
    bank = [(n, n // w) for n in counts for w in EXPERT_TENSOR_WAYS if n % w == 0 and n // w <= most]
    if degrees.expert_ep:
        bank = [(n, degrees.expert_ep) for n in counts if n % degrees.expert_ep == 0 and degrees.expert_ep <= most]
    if not bank and degrees.expert_ep:
        on = f"{counts[0]} expert chips" if degrees.expert_chips else f"any expert pool of {experts.arch}"
        allowed = f"a divisor of the expert chips, at most the model's {most} experts"
        raise CodesignError(f"{degrees.expert_ep} ranks on {on}", key="--ep", allowed=allowed)
    if not bank:
        problem = f"no expert ranks on {degrees.expert_chips} chips"
        raise CodesignError(problem, key="--expert-chips", allowed=f"ranks that divide them, up to {most}")
    flying = [degrees.microbatches] if degrees.microbatches else MICROBATCHES
    return np.asarray([(t, d, n, e, m) for t, d in attention for n, e in bank for m in flying], dtype=float)
