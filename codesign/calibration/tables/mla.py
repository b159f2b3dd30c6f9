"""Latent attention: the scan alone (kernel tables), and with its projections (module tables), in both phases."""

from collections.abc import Iterable
from dataclasses import replace

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.calibration.tables.gemm import FORMATS, narrowed
from codesign.lanes import Row
from codesign.layers.base import Step
from codesign.layers.mla import MLA
from codesign.machine import Machine

DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}

#: DeepSeek-V3's layer, whose heads the tables vary.
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 1536, 512, 128, 64, 128
HIDDEN = 7168

#: Tokens of a tile of queries.
TILE = 128.0


def _step(machine: Machine, batch, new, cached, cache: str, weights: str = "bf16") -> Step:
    dtypes = {"attention": weights, "activation": weights}
    return Step(
        batch=batch, new=new, cached=cached, tp=1.0, dp=1.0, ep=1.0, context_split=0.0, skew=0.0, machine=machine,
        precision=precision(kv=DTYPES[cache], **dtypes), block=False,
    )  # fmt: skip


def _rows(layer: MLA, step: Step, context: bool) -> list[Row]:
    """Projections and scan of one pass: expanded from the start of a prompt, absorbed in decode."""
    rows = {row.name: row for row in layer.rows(replace(step, form=int(context)), HIDDEN)}
    if context:
        tiles = step.new / TILE
        streams = step.batch * layer.heads * (tiles + 1.0)
    else:
        streams = step.batch * max(layer.heads / 64.0, 1.0)
    scan = rows["scan"]._replace(streams=streams)
    return [rows["qkv"], scan, rows["output"], *([rows["expand"]] if context else [])]


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system, phase, formats and heads."""
    module = "gemm_type" in columns
    keys = ("system", "phase", "kv_cache_dtype", "num_heads", *(("gemm_type",) if module else ()))
    for (system, phase, cache, heads, *weights), lines in split_by(columns, *keys):
        batch, length, before = numbers(columns, lines, "batch_size", "isl_tokens", "step_or_prefix_tokens")
        layer, context = MLA(int(heads), Q_RANK, KV_RANK, NOPE, ROPE, VALUE), phase == "context"
        new, cached = (length, before) if context else (1.0 + 0.0 * batch, before)

        def build(machine: Machine, batch=batch, new=new, cached=cached, layer=layer, context=context, cache=cache,
                  weights=weights) -> list[Row]:  # fmt: skip
            if not weights:
                return [_rows(layer, _step(machine, batch, new, cached, cache), context)[1]]
            dtype, narrowing, _ = FORMATS[weights[0]]
            step = _step(machine, batch, new, cached, cache, dtype)
            inputs = HIDDEN + Q_RANK + layer.heads * layer.value
            return [*_rows(layer, step, context), narrowed("narrow", step.tokens, inputs, narrowing)]

        name = "mla-context" if context else "mla-decode"
        era = "hopper" if system.startswith(("h100", "h200", "h20")) else "blackwell"
        kernels = (name, f"{name}-{era}", f"{name}-{DTYPES[cache]}", f"{name}-{era}-{DTYPES[cache]}")
        if weights:
            kernels = (*kernels, "mla-module", f"mla-module-{weights[0]}")
        yield group(lines, system, kernels, f"{phase} {weights[0] if weights else DTYPES[cache]}", build)


KERNEL = Kind("mla-kernel", "attention", ("mla_dtype", "step_or_prefix_tokens", "kernel_source"), place)
MODULE = Kind("mla-module", "attention", ("mla_dtype", "step_or_prefix_tokens", "gemm_type"), place)
