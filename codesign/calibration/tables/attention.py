"""Decode attention of grouped queries: the scan of a GQA layer of the package, without its projections."""

from collections.abc import Iterable

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.layers.base import Step
from codesign.layers.gqa import GQA
from codesign.machine import Machine

DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system, format of the cache and heads."""
    keys = ("system", "kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim")
    for (system, cache, heads, kv_heads, width), lines in split_by(columns, *keys):
        batch, length = numbers(columns, lines, "batch_size", "kv_len_tokens")
        layer = GQA(heads=int(heads), kv_heads=int(kv_heads), key_width=int(width), value_width=int(width))

        def build(machine: Machine, batch=batch, length=length, layer=layer, cache=cache) -> list:
            step = Step(
                batch=batch, new=1.0, cached=length - 1.0, tp=1.0, dp=1.0, ep=1.0, context_split=0.0, skew=0.0,
                machine=machine, precision=precision(kv=DTYPES[cache]),
            )  # fmt: skip
            scan = next(row for row in layer.rows(step, 7168) if row.name == "scan")
            return [scan._replace(streams=batch * layer.kv_heads)]

        generation = "gqa-xqa" if system.startswith(("h100", "h200", "h20")) else "gqa-trtllm"
        yield group(lines, system, (generation, f"{generation}-{DTYPES[cache]}"), f"gqa {DTYPES[cache]}", build)


KIND = Kind("gqa-decode-attention", "attention", ("attn_dtype", "kv_cache_dtype", "kv_len_tokens"), place)
