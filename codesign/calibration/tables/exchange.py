"""Dispatch and combine of experts by back end: the all-to-all legs of a mixture of experts of the package."""

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.errors import CodesignError
from codesign.lanes import Row
from codesign.layers.base import Step
from codesign.layers.moe import MoE
from codesign.machine import Machine
from codesign.routing import expected_ranks

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", None: "fp8", "": "fp8"}

PHASES = {
    "dispatch": "dispatch", "combine": "combine", "alltoall_dispatch": "dispatch", "alltoall_combine": "combine",
    "alltoall_combine_low_precision": "combine", "alltoall_prepare": "prepare",
}  # fmt: skip

#: Back ends that send a token once to each node and on from there.
PER_NODE = ("deepep_normal",)


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system, back end, phase, format, and size of the group."""
    keys = ("system", "comm_backend", "phase", "dtype", "hidden_size", "topk", "num_experts")
    for (system, backend, phase, dtype, hidden, top_k, experts), lines in split_by(columns, *keys):
        if phase not in PHASES:
            raise CodesignError(f"unknown phase {phase!r}", key="phase", allowed=", ".join(PHASES))
        tokens, ep = numbers(columns, lines, "num_tokens_per_rank", "ep_size")
        layer = MoE(experts=int(experts), top_k=int(top_k), inner=2048)
        leg = PHASES[phase]
        # Back ends send activations out in the format named and back in BF16 unless the phase says otherwise.
        narrow = DTYPES.get(dtype, "bf16")
        back = narrow if phase.endswith("low_precision") else "bf16"

        def build(machine: Machine, layer=layer, tokens=tokens, ep=ep, hidden=hidden, leg=leg, narrow=narrow,
                  back=back, per_node=backend in PER_NODE) -> list[Row]:  # fmt: skip
            step = Step(
                batch=tokens, new=1.0, cached=0.0, tp=1.0, dp=ep, ep=ep, context_split=0.0, skew=0.0,
                machine=machine, precision=precision(dispatch=narrow, combine=back),
            )  # fmt: skip
            rows = {row.name: row for row in layer.rows(step, int(hidden))}
            if leg == "prepare":
                counts = rows["dispatch"].scale_up * 0.0 + 4.0 * tokens * layer.top_k * (ep - 1.0) / ep
                return [rows["dispatch"]._replace(scale_up=counts, scale_out=0.0)]
            row = rows[leg]
            # What a rank sends: the mean, as the program routes evenly.
            mean = row._replace(
                **{f: np.asarray(getattr(row, f)) * np.asarray(row.share) for f in ("scale_up", "scale_out")}
            )
            if per_node:
                nodes = jnp.maximum(ep / machine.scale_up_domain, 1.0)
                sent = tokens * expected_ranks(layer.experts, layer.top_k, nodes) * (nodes - 1.0) / nodes * int(hidden)
                mean = mean._replace(scale_out=sent * step.precision.bytes[leg])
            return [mean._replace(share=1.0, name="dispatch")]

        name = backend.replace("_", "-").lower()
        kernels = (
            f"a2a-{name}",
            f"a2a-{name}-{leg}",
            *((f"a2a-{name}-low",) if phase.endswith("low_precision") else ()),
        )
        yield group(lines, system, kernels, f"{backend} {leg}", build)


KIND = Kind("moe-all-to-all", "collectives", ("comm_backend", "phase", "ep_size", "num_tokens_per_rank"), place)
