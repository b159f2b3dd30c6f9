"""Grouped products of experts, sort and permute included, on the rank that the measuring program loads most.

The program draws tokens per expert from a law, then measures the rank with the most: `drawn` repeats its law (routes
and distinct experts of that rank, mean of several draws), which is not the law of random routing that
`codesign.routing` has.  Balanced routing spreads the routes evenly, so every expert is hit as early as it can be.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.errors import CodesignError
from codesign.lanes import Number, Row
from codesign.layers.base import Step
from codesign.layers.moe import MoE
from codesign.machine import Machine

#: Weights, activations of the product, kernel constants of each format.
FORMATS = {
    "bfloat16": ("bf16", "bf16"), "fp8": ("fp8", "fp8"), "fp8_block": ("fp8_block", "fp8"), "nvfp4": ("nvfp4", "nvfp4"),
    "w4a16_mxfp4": ("mxfp4", "bf16"), "w4a8_mxfp4_mxfp8": ("mxfp4", "mxfp8"),
}  # fmt: skip
DRAWS = 16

#: What kernels are called in `codesign.calibration.constants.KERNELS` where it is not the table's word.
KERNELS = {"moe_torch_flow": "moe-mxfp4", "deepgemm": "moe-deepgemm"}


@lru_cache(maxsize=4096)
def drawn(tokens: int, experts: int, top_k: int, ranks: int, law: str) -> tuple[float, float]:
    """Routes and distinct experts on the most loaded of ``ranks`` ranks.

    ``power_law_a``: shares of the experts are drawn with density x^-a, between 1 and 0.8 T where there are more routes
    than experts, else between 0.01 and 2, scaled to T k routes, rounded and held below T; what that loses goes to the
    experts with the fewest.
    """
    routes, held = tokens * top_k, experts // ranks
    even = -(-routes // ranks)
    if law == "balanced":
        return routes / ranks if routes >= experts else float(even), float(min(held, even))
    try:
        a = float(law.removeprefix("power_law_"))
    except ValueError:
        raise CodesignError(f"unknown law {law!r}", key="distribution", allowed="balanced, power_law_A") from None
    low, high = (1.0, 0.8 * tokens) if routes > experts else (0.01, 2.0)
    draw = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        x = ((high ** (1 - a) - low ** (1 - a)) * draw.random(experts) + low ** (1 - a)) ** (1 / (1 - a))
        counts = np.minimum(np.round(x / x.sum() * routes).astype(int), tokens)
        if not counts.any():  # nothing but the remainder: one route on every so many experts
            return float(even), float(min(held, even))
        while (delta := routes - counts.sum()) != 0:
            order = np.lexsort((draw.random(experts), counts))
            open_ = order[counts[order] < tokens] if delta > 0 else order[counts[order] > 0]
            counts[open_[: abs(delta)]] += 1 if delta > 0 else -1
        load = counts.reshape(ranks, held)
        most = load[load.sum(axis=1).argmax()]
        found.append((most.sum(), (most > 0).sum()))
    mean = np.mean(found, axis=0)
    return float(mean[0]), float(mean[1])


def expert_rows(layer: MoE, step: Step, hidden: int, routes: Number, distinct: Number) -> list[Row]:
    """The sort and the experts of `MoE.rows`, for routes and distinct experts that are known instead of expected."""
    rows = {row.name: row for row in layer.rows(step, hidden)}
    p, width, act = step.precision, layer.expert_width(hidden), step.precision.bytes["activation"]
    inner = layer.inner / step.moe_tp
    held = layer.expert_parameters(hidden) / step.moe_tp
    exponential = step.machine.exponential_ops
    return [
        rows["sort"]._replace(memory=16.0 * step.tokens * layer.top_k + 4.0 * routes * width * act, mean_memory=None),
        rows["experts"]._replace(
            memory=distinct * held * p.bytes["routed"]
            + routes * (2.0 * width + 2.0 * inner) * p.bytes["expert_activation"],
            tensor=2.0 * routes * held,
            rows=routes / distinct,
            vector=routes * inner * (exponential + 3.0),
            streams=layer.experts / step.ep,
            share=1.0,
            mean_memory=None,
        ),
    ]


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by everything but the number of tokens."""
    keys = ("system", "kernel_source", "moe_dtype", "hidden_size", "inter_size", "topk", "num_experts")
    for key, lines in split_by(columns, *keys):
        system, source, dtype, hidden, inner, top_k, experts = key
        if dtype not in FORMATS:
            raise CodesignError(f"unknown format {dtype!r}", key="moe_dtype", allowed=", ".join(FORMATS))
        routed, activation = FORMATS[dtype]
        tokens, tp, ep = numbers(columns, lines, "num_tokens", "moe_tp_size", "moe_ep_size")
        laws = columns["distribution"][lines]
        layer = MoE(experts=int(experts), top_k=int(top_k), inner=int(inner))
        known = np.array(
            [drawn(int(t), int(experts), int(top_k), int(r), w) for t, r, w in zip(tokens, ep, laws, strict=True)]
        )

        def build(some, layer=layer, tokens=tokens, known=known, tp=tp, ep=ep, hidden=hidden, routed=routed,
                  activation=activation):  # fmt: skip
            def rows(machine: Machine) -> list[Row]:
                step = Step(
                    batch=tokens[some], new=1.0, cached=0.0, tp=(tp * ep)[some], dp=1.0, ep=ep[some], skew=0.0,
                    context_split=0.0, machine=machine,
                    precision=precision(routed=routed, expert_activation=activation),
                )  # fmt: skip
                return expert_rows(layer, step, int(hidden), *known[some].T)

            return rows

        kernel = KERNELS.get(source, str(source).replace("moe_torch_flow", "moe").replace("_", "-"))
        names = (kernel, f"{kernel}-{dtype}")
        even = np.array([w == "balanced" for w in laws])
        for some, apart in ((even, (f"{kernel}-balanced", f"{kernel}-{dtype}-balanced")), (~even, ())):
            if some.any():
                told = f"{kernel.removeprefix('moe-')} {dtype}"
                yield group(lines[some], system, (*names, *apart), told, build(some))


KIND = Kind("moe", "moe", ("kernel_source", "moe_dtype", "num_tokens", "moe_ep_size", "distribution"), place)
