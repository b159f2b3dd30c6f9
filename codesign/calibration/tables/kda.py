"""Kimi Delta Attention: decode and verification of drafts, prefill by chunks, and the short convolutions."""

from collections.abc import Iterable

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.errors import CodesignError
from codesign.lanes import Row
from codesign.layers.base import Step
from codesign.layers.kda import KDA
from codesign.layers.recurrent import CHUNK, state_row
from codesign.machine import Machine

KERNELS = {
    "causal_conv1d_fn_qkv3": "conv", "causal_conv1d_update": "conv", "chunk_kda": "chunk",
    "fused_kda_decode_mtp_dspark": "state", "fused_recurrent_kda_packed_decode": "state",
    "fused_sigmoid_gating_delta_rule_update": "state", "kda_fused_decode": "state",
}  # fmt: skip


def _rows(layer: KDA, step: Step, part: str, conv_state: bool) -> list[Row]:
    t = step.tokens
    width, channels = layer.heads * layer.key_width, 3 * layer.heads * layer.key_width
    if part == "conv":
        passes = 1.0 + step.new if conv_state else 1.0  # one state for each draft that may be the last
        kept = step.batch * (layer.conv_kernel - 1) * channels * step.precision.bytes["conv_state"]
        moved = 2.0 * t * channels * step.precision.bytes["activation"]
        taps = 2.0 * layer.conv_kernel * t * channels
        silu = t * channels * (step.machine.exponential_ops + 3.0)
        return [Row("conv", "elementwise", memory=kept * passes + moved, vector=taps + silu, launches=1.0)]
    row = state_row(
        step, heads=layer.heads, cells=layer.state_elements()[0], conv=0.0, inside=layer.heads * 3.0 * layer.key_width,
        delta=True,
        moved=5.0 * width, elementwise=width * (step.machine.exponential_ops + 8.0),
    )  # fmt: skip
    if part == "chunk":  # in chunks however few the tokens
        return [row._replace(streams=step.batch * layer.heads * (step.new / CHUNK + 1.0))]
    return [row]


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system, kernel and heads."""
    keys = ("system", "kernel_source", "phase", "num_k_heads", "head_k_dim")
    for (system, source, phase, heads, width), lines in split_by(columns, *keys):
        if source not in KERNELS:
            raise CodesignError(f"unknown kernel {source!r}", key="kernel_source", allowed=", ".join(KERNELS))
        batch, length = numbers(columns, lines, "batch_size", "seq_len")
        w = int(width)
        layer, part = KDA(int(heads), int(heads), w, w), KERNELS[source]

        context = phase == "context"

        def build(machine: Machine, batch=batch, length=length, layer=layer, part=part, context=context) -> list[Row]:
            step = Step(
                batch=batch, new=length, cached=0.0, tp=1.0, dp=1.0, ep=1.0, context_split=0.0, skew=0.0,
                machine=machine, precision=precision(state="fp32"), block=context, form=int(context),
                drafts=0.0 if context else length - 1.0,
            )  # fmt: skip
            return _rows(layer, step, part, not context)

        yield group(lines, system, (f"kda-{part}", "kda-" + source.replace("_", "-")), source, build)


KIND = Kind("kda", "kda", ("kernel_source", "seq_len", "num_k_heads", "head_k_dim"), place)
