"""Which tables of the package ``aiconfigurator-core`` become which kernel tables of this one, column by column.

The package keeps one Parquet file per system, kind of kernel, back end and version:
``systems/data/SYSTEM/FOLDER/BACKEND/VERSION/FILE_perf.parquet``, times in milliseconds, but those of the exchanges of
``moe_a2a`` and of DeepEP in microseconds.
A `Source` names one of these files and says how its columns become those of the CSV tables that
`codesign.calibration.tables` reads: same names, units in the name, times in microseconds.  Rates that a CSV table
states beside its times (``tflops_achieved``, ``kv_read_GBps`` and the like) follow from the other columns, no reader
takes them, and they are left out here.

One back end per kind of kernel is read, the one whose kernels `codesign.calibration.constants.KERNELS` knows: TensorRT-
LLM, NCCL for collectives, SGLang for DeepEP and Kimi Delta Attention.  What a reader would take for something else (a
sliding window, experts without a gate, an 8-bit integer collective) is refused by `Source.known`, with a reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from codesign.calibration.tables import attention, collectives, exchange, gemm, kda, mla, moe
from codesign.calibration.tables.base import Kind

#: Chips of a node by system of the package, where they are not eight: DeepEP's tables count nodes.
NODE = {"gb200": 4, "gb300": 4}

#: Expert kernels that the reader's gated experts describe; ``moe_torch_flow_nongated`` has two matrices of three.
EXPERTS = ("moe_torch_flow_cutlass", "deepgemm", "moe_torch_flow_min_latency", "moe_torch_flow")

#: Our columns by expression of the package's; given polars and the system's name.
Columns = Callable[[Any, str], dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """One file of the package and the lines that it gives.

    Attributes:
        kind: of the table that it becomes.
        folder, backend, file: where it lies; several sources may read one file.
        columns: ours from theirs, ``latency_us`` among them.
        strata: columns by which lines are told apart when they are sampled: kernel and format.
        known: by column, the values that the reader places, and what another is called in the reason.
        refuse: by reason, a condition on our columns for lines that the reader would take for something else.
    """

    kind: Kind
    folder: str
    backend: str
    file: str
    columns: Columns
    strata: tuple[str, ...]
    known: Mapping[str, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)
    refuse: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


def _named(*same: str, unit: float = 1e3, **other: str) -> Columns:
    """Columns of the same name, those of another (``ours="theirs"``), and ``latency`` times ``unit`` [us]."""

    def columns(pl: Any, _system: str) -> dict[str, Any]:
        found = {name: pl.col(name) for name in same} | {ours: pl.col(theirs) for ours, theirs in other.items()}
        return found | {"latency_us": pl.col("latency") * unit}

    return columns


def _with(columns: Columns, **added: Callable[[Any, str], Any]) -> Columns:
    """More columns, each by its expression."""
    return lambda pl, system: columns(pl, system) | {name: make(pl, system) for name, make in added.items()}


def _constant(value: Any) -> Callable[[Any, str], Any]:
    return lambda pl, _system: pl.lit(value)


def _deepep(phase: str, normal: bool) -> Columns:
    """One phase of a DeepEP table: of low latency its mean time, of normal the sum of what transmits and notifies."""

    def columns(pl: Any, system: str) -> dict[str, Any]:
        parts = ("transmit_us", "notify_us") if normal else ("avg_t_us",)
        return {
            "comm_backend": pl.lit("deepep_normal" if normal else "deepep_ll"),
            "phase": pl.lit(phase),
            "dtype": pl.lit(None, dtype=pl.String),
            "ep_size": pl.col("node_num") * NODE.get(system, 8),
            "node_num": pl.col("node_num"),
            "hidden_size": pl.col("hidden_size"),
            "topk": pl.col("num_topk"),
            "num_experts": pl.col("num_experts"),
            "num_tokens_per_rank": pl.col("num_token"),
            "sms": pl.col(f"{phase}_sms") if normal else pl.lit(None, dtype=pl.Int64),
            "latency_us": pl.sum_horizontal([pl.col(f"{phase}_{part}") for part in parts], ignore_nulls=False),
        }

    return columns


_SCAN = _named("kernel_source", "mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", isl_tokens="isl",
               step_or_prefix_tokens="step")  # fmt: skip
_SCAN_KNOWN = {
    "kernel_source": ("kernel", ("default",)),
    "mla_dtype": ("format of the scan", ("bfloat16",)),
    "kv_cache_dtype": ("format of the cache", tuple(mla.DTYPES)),
}
_MODULE = _named("gemm_type", "mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", isl_tokens="isl",
                 step_or_prefix_tokens="step")  # fmt: skip
_MODULE_KNOWN = {
    "mla_dtype": ("format of the scan", ("bfloat16",)),
    "kv_cache_dtype": ("format of the cache", tuple(mla.DTYPES)),
    "gemm_type": ("format of the weights", tuple(gemm.FORMATS)),
}
_COLLECTIVE_KNOWN = {
    "op": ("collective", collectives.OPERATIONS),
    "dtype": ("format", tuple(collectives.BYTES)),
}
_EXCHANGE_KNOWN = {
    "phase": ("phase", tuple(exchange.PHASES)),
    "dtype": ("format", tuple(exchange.DTYPES)),
}

#: DeepEP's normal kernels were timed with 4 to 24 streaming units; its readers know those that are deployed.
_SMS = {"sms": ("number of streaming units", (20, 24))}

SOURCES: tuple[Source, ...] = (
    Source(
        gemm.KIND, "gemm", "trtllm", "gemm",
        _named("gemm_dtype", "kernel_source", "m", "n", "k"),
        ("gemm_dtype",),
        {"gemm_dtype": ("format", tuple(gemm.FORMATS)), "kernel_source": ("kernel", ("torch_flow", "deepgemm"))},
    ),
    Source(
        attention.KIND, "attention", "trtllm", "generation_attention",
        _with(
            _named("kernel_source", "attn_dtype", "kv_cache_dtype", "num_heads", "num_key_value_heads", "head_dim",
                   "batch_size", "window_size"),
            kv_len_tokens=lambda pl, _system: pl.col("isl") + pl.col("step"),
        ),
        ("kv_cache_dtype",),
        {
            "kernel_source": ("kernel", ("torch_flow",)),
            "attn_dtype": ("format of the scan", ("bfloat16",)),
            "kv_cache_dtype": ("format of the cache", tuple(attention.DTYPES)),
        },
        {"a sliding window, which the table has no column for": lambda pl: pl.col("window_size") > 0},
    ),
    *(
        Source(
            mla.KERNEL, "mla", "trtllm", f"{phase}_mla", _with(_SCAN, phase=_constant(phase)),
            ("phase", "kv_cache_dtype"), _SCAN_KNOWN,
        )
        for phase in ("context", "generation")
    ),
    *(
        Source(
            mla.MODULE, "mla", "trtllm", f"mla_{phase}_module", _with(_MODULE, phase=_constant(phase)),
            ("phase", "gemm_type", "kv_cache_dtype"), _MODULE_KNOWN,
        )
        for phase in ("context", "generation")
    ),
    Source(
        moe.KIND, "moe", "trtllm", "moe",
        _named("kernel_source", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
               "moe_tp_size", "moe_ep_size", "distribution"),
        ("kernel_source", "moe_dtype"),
        {"kernel_source": ("kernel", EXPERTS), "moe_dtype": ("format", tuple(moe.FORMATS))},
        {
            "a law of routing that the reader does not draw":
                lambda pl: ~(pl.col("distribution").eq("balanced")
                             | pl.col("distribution").str.contains(r"^power_law_[0-9]+(\.[0-9]+)?$")),
            "experts that do not divide by the ranks": lambda pl: pl.col("num_experts") % pl.col("moe_ep_size") != 0,
        },
    ),
    Source(
        collectives.KIND, "comm", "nccl", "nccl",
        _named(op="op_name", dtype="nccl_dtype", num_gpus="num_gpus", message_elements="message_size"),
        ("op", "dtype"), _COLLECTIVE_KNOWN,
    ),
    Source(
        collectives.KIND, "comm", "trtllm", "custom_allreduce",
        _with(
            _named(dtype="allreduce_dtype", num_gpus="num_gpus", message_elements="message_size"),
            op=lambda pl, _system: pl.concat_str(["op_name", "kernel_source"], separator=":"),
        ),
        ("op", "dtype"), _COLLECTIVE_KNOWN,
    ),
    Source(
        exchange.KIND, "comm", "trtllm", "moe_a2a",
        _named("comm_backend", "phase", "ep_size", "node_num", "hidden_size", "topk", "num_experts", "sms",
               unit=1.0, dtype="comm_dtype", num_tokens_per_rank="num_tokens"),
        ("comm_backend", "phase", "dtype"), _EXCHANGE_KNOWN,
    ),
    Source(
        exchange.KIND, "comm", "trtllm", "trtllm_alltoall",
        _with(
            _named("hidden_size", "topk", "num_experts", comm_backend="kernel_source", phase="op_name",
                   dtype="moe_dtype", ep_size="moe_ep_size", num_tokens_per_rank="num_tokens"),
            node_num=lambda pl, system: (pl.col("moe_ep_size") + NODE.get(system, 8) - 1) // NODE.get(system, 8),
            sms=lambda pl, _system: pl.lit(None, dtype=pl.Int64),
        ),
        ("comm_backend", "phase", "dtype"), _EXCHANGE_KNOWN,
    ),
    *(
        Source(
            exchange.KIND, "comm", "sglang", f"wideep_deepep_{'normal' if normal else 'll'}", _deepep(phase, normal),
            ("comm_backend", "phase"), _SMS if normal else {},
        )
        for normal in (False, True)
        for phase in ("dispatch", "combine")
    ),
    Source(
        kda.KIND, "kda", "sglang", "kda",
        _named("kernel_source", "phase", "batch_size", "seq_len", "num_tokens", "d_model", "num_k_heads", "head_k_dim",
               "num_v_heads", "head_v_dim"),
        ("kernel_source", "phase"),
        {"kernel_source": ("kernel", tuple(kda.KERNELS))},
        {
            "heads of keys and of values that differ":
                lambda pl: (pl.col("num_v_heads") != pl.col("num_k_heads"))
                | (pl.col("head_v_dim") != pl.col("head_k_dim")),
        },
    ),
)  # fmt: skip
