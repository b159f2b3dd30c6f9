"""Mappings as arrays: every legal (PP, TP, instances, EP, attention split, micro-batches) of a machine and a model.

A mapping is a row of numbers, so that thousands are evaluated by one compiled call.  ``chips = pp tp dp``; ``ep``
divides ``tp dp`` and each expert is split by tensor over ``moe_tp = tp dp / ep``.  The stages of a pipeline enter as a
table of their distinct compositions (how often each block), made once per depth by `codesign.model.stage_table`.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import gcd, inf
from typing import Any

import equinox as eqx
import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.lanes import Number
from codesign.layers.moe import MoE
from codesign.model import Model, stage_table
from codesign.numerics import larger

PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16)
TENSOR_WAYS = (1, 2, 4, 8, 16, 32, 64)
INSTANCES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36, 48, 64, 72, 96, 128, 144, 256)
EXPERT_TENSOR_WAYS = (1, 2, 4, 8)


class Mapping(eqx.Module):
    """How one model lies on the chips of one machine.

    Attributes:
        pp, tp, dp, ep: pipeline stages, chips per attention instance, instances per stage, expert ranks.
        context_split: 1 where TP splits the KV scan by context, 0 by heads.
        microbatches: micro-batches in flight.
        stages: distinct stage compositions, (compositions, blocks + 1); the last column flags the head.
        chunk: most tokens of a prompt that one pass takes (prefill, midfill, serve); infinite for whole prompts.
    """

    pp: Number
    tp: Number
    dp: Number
    ep: Number
    context_split: Number
    microbatches: Number
    stages: jax.Array | np.ndarray
    chunk: Number = inf

    @property
    def chips(self) -> Number:
        """Chips of the whole mapping."""
        return self.pp * self.tp * self.dp


def _choices(given: int | None, options: Iterable[int]) -> list[int]:
    return [given] if given is not None else list(options)


def tensor_limit(model: Model) -> int:
    """Most ways that the heads of every attention layer split over TP: their greatest common divisor."""
    return gcd(*(getattr(layer, "heads", 0) for _, layer in model.blocks))


def legal(model: Model, pp: int, tp: int, dp: int, ep: int) -> str | None:
    """Why a mapping is impossible, in words; None where it is legal."""
    if min(pp, tp, dp, ep) < 1:
        return "every degree is at least 1"
    if pp > sum(len(group) for group in model.layers):
        return f"pp {pp} exceeds the model's {sum(len(g) for g in model.layers)} layers"
    if tensor_limit(model) % tp:
        return f"tp {tp} does not divide the model's {tensor_limit(model)} heads"
    for kv in sorted({getattr(layer, "kv_heads", tp) for _, layer in model.blocks}):
        if kv % tp and tp % kv:
            return f"tp {tp} neither divides the model's {kv} KV heads nor is a multiple of them"
    try:
        stage_table(model, pp)
    except CodesignError as error:
        return error.problem
    experts = max((layer.experts for _, layer in model.blocks if isinstance(layer, MoE)), default=1)
    if ep > experts:
        return f"ep {ep} exceeds the model's {experts} experts"
    if (tp * dp) % ep:
        return f"ep {ep} does not divide tp x dp = {tp * dp}"
    return None


def fullest(mapping: Mapping, per_block: Sequence[Number], first: Number, last: Number) -> Number:
    """The largest, over the stages, of what their blocks and the ends of the model sum to.

    Args:
        mapping: of scalars.
        per_block: what one run of each block costs.
        first, last: what the first stage has beside its blocks, and the last.
    """
    costs = [*per_block, last]
    best: Number = 0.0
    for c in range(mapping.stages.shape[0]):
        terms = [mapping.stages[c, b] * x for b, x in enumerate(costs) if not (isinstance(x, float) and x == 0.0)]
        total = sum(terms) + first if c == 0 else sum(terms)
        best = total if c == 0 else larger(best, total)
    return best


@lru_cache(maxsize=256)
def enumerate_mappings(
    model: Model,
    max_chips: int,
    *,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    chunks: tuple[float, ...] = (inf,),
    flow: bool = True,
    max_domain_tp: int | None = None,
) -> Mapping:
    """All legal mappings within what is given, stacked along the first axis.

    Args:
        model: structure to place.
        max_chips: chips that the machine offers.
        chips, pp, tp, dp, ep, attention_split, microbatches: fixed where given, else searched.
        chunks: most tokens of a prompt per pass, each of these tried.
        flow: as many micro-batches as stages in flight where none are given (decode), else one.
        max_domain_tp: TP stays inside the scale-up domain of this many chips.

    Raises:
        CodesignError: a degree below 1, or nothing legal is left, with the reason of the nearest try: one of the right
            size, else one that fits the machine, else the smallest.
    """
    given = {"chips": chips, "pp": pp, "tp": tp, "dp": dp, "ep": ep, "microbatches": microbatches}
    for name, value in given.items():
        if value is not None and value < 1:
            raise CodesignError(f"{name} {value}", key=f"--{name}", allowed="at least 1")
    has_experts = any(isinstance(layer, MoE) for _, layer in model.blocks)
    splits_context = any(hasattr(layer, "context_ways") for _, layer in model.blocks)
    if attention_split not in (None, "heads", "context"):
        raise CodesignError(f"unknown split {attention_split!r}", key="--attention-split", allowed="heads, context")
    found: list[tuple[float, ...]] = []
    refused = [(inf, f"no pp x tp x dp makes {chips or max_chips} chips")]
    for p in _choices(pp, PIPELINES):
        for t in _choices(tp, TENSOR_WAYS):
            if tp is None and max_domain_tp is not None and t > max_domain_tp:
                continue
            if dp is None and chips is not None:
                instances = [chips // (p * t)] if chips % (p * t) == 0 else []
            else:
                instances = _choices(dp, INSTANCES)
            for d in instances:
                n = p * t * d
                if n > max_chips:
                    refused.append((n, f"pp x tp x dp = {n} chips, the machine offers {max_chips}"))
                    continue
                if chips is not None and n != chips:
                    refused.append((1.0, f"pp x tp x dp = {n} is not the {chips} chips asked for"))
                    continue
                bank = t * d
                ways = (
                    _choices(ep, sorted({bank // m for m in EXPERT_TENSOR_WAYS if bank % m == 0}))
                    if has_experts
                    else _choices(ep, [1])
                )
                for e in ways:
                    why = legal(model, p, t, d, e)
                    if why:
                        refused.append((0.0, why))
                        continue
                    splits = [0.0, 1.0] if t > 1 and splits_context else [0.0]
                    if attention_split is not None:
                        splits = [1.0 if attention_split == "context" and t > 1 else 0.0]
                    flying = microbatches or (p if flow else 1)
                    found += [(p, t, d, e, s, flying, chunk) for s in splits for chunk in chunks]
    if not found:
        _, reason = min(refused, key=lambda r: r[0])
        raise CodesignError(reason, key="mapping", allowed="degrees with pp x tp x dp chips, ep dividing tp x dp")
    return stack(model, found)


def stack(model: Model, degrees: Sequence[tuple[float, ...]]) -> Mapping:
    """Stack tuples (pp, tp, dp, ep, context_split, microbatches[, chunk]) into one Mapping of arrays."""
    table = np.asarray([(*row, inf)[:7] for row in degrees], dtype=float)
    stages = {p: stage_table(model, int(p)) for p in sorted(set(table[:, 0]))}
    return Mapping(
        *(table[:, i] for i in range(6)),
        stages=np.stack([stages[p] for p in table[:, 0]]),
        chunk=table[:, 6],
    )


def pad(mapping: Mapping, size: int) -> Mapping:
    """Repeat the last mapping up to ``size`` rows, so that one compilation serves every machine."""

    def widen(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        return np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)]) if len(x) < size else x

    return jax.tree.map(widen, mapping)


def take(stacked: Any, index: Any) -> Any:
    """One entry, or several, out of any stacked pytree."""
    return jax.tree.map(lambda x: x[index], stacked)
