"""Matrix products: m rows through an n x k weight, and the pass that narrows activations where the format needs it."""

from collections.abc import Iterable

from codesign.calibration.tables.base import Columns, Group, Kind, group, numbers, precision, split_by
from codesign.errors import CodesignError
from codesign.lanes import Number, Row
from codesign.layers.base import Step, gemm
from codesign.machine import Machine

#: Of each format: weights' dtype, bytes per activation that narrowing reads and writes, kernel constants.
FORMATS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "bfloat16": ("bf16", 0.0, ()),
    "fp8": ("fp8", 5.0, ("fp8-per-tensor",)),
    "fp8_block": ("fp8_block", 3.0, ("fp8-block",)),
    "nvfp4": ("nvfp4", 2.5625, ("nvfp4",)),
}


def step_of(machine: Machine, weights: str, batch: Number) -> Step:
    """A pass of ``batch`` tokens on one chip, all weights and activations in one format."""
    dtypes = {"attention": weights, "dense": weights, "activation": weights}
    return Step(
        batch=batch, new=1.0, cached=0.0, tp=1.0, dp=1.0, ep=1.0, context_split=0.0, skew=0.0, machine=machine,
        precision=precision(**dtypes),
    )  # fmt: skip


def narrowed(name: str, tokens: Number, width: Number, bytes_each: float) -> Row:
    """The pass over the activations that scales and narrows them."""
    return Row(name, "elementwise", memory=tokens * width * bytes_each, launches=1.0)


def place(columns: Columns) -> Iterable[Group]:
    """Lines to groups by system and format."""
    for (system, dtype), lines in split_by(columns, "system", "gemm_dtype"):
        if dtype not in FORMATS:
            raise CodesignError(f"unknown format {dtype!r}", key="gemm_dtype", allowed=", ".join(FORMATS))
        weights, narrowing, kernels = FORMATS[dtype]
        m, n, k = numbers(columns, lines, "m", "n", "k")

        def build(machine: Machine, m=m, n=n, k=k, weights=weights, narrowing=narrowing) -> list[Row]:
            rows = [gemm("product", n * k, m, k, n, "dense", step_of(machine, weights, m))]
            return [*rows, narrowed("narrow", m, k, narrowing)] if narrowing else rows

        yield group(lines, system, kernels, dtype, build)


KIND = Kind("gemm", "gemm", ("gemm_dtype", "m", "n", "k"), place)
