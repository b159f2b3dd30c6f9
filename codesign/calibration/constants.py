r"""The numbers that are fitted: constants of all chips, and how generations, chips and kernels differ from them.

A constant is fitted as :math:`u = u_0 + u_{generation} + u_{chip} + \sum u_{kernel}`, each term with a normal prior,
and read as a share :math:`1/(1+e^{-u})`, a positive number :math:`e^u` or an exponent :math:`1 + e^u`: shares stay
below one, exponents above it.  The prior of :math:`u_0` is the published estimate of
``arch/measurements/execution.toml``.
A chip that was never measured has the terms of all chips and of its generation.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from codesign.execution import NAMES, UNITS
from codesign.lanes import FAMILIES, Number


class Form(NamedTuple):
    """How a fitted number is read, and back."""

    read: Callable[[Any], Any]
    write: Callable[[float], float]


FORMS = {
    "share": Form(jax.nn.sigmoid, lambda x: float(np.log(x) - np.log1p(-x))),
    "positive": Form(jnp.exp, lambda x: float(np.log(x))),
    "exponent": Form(lambda u: 1.0 + jnp.exp(u), lambda x: float(np.log(x - 1.0))),
}

#: Generations by accelerator; a part that is not here has what all chips share.
GENERATIONS: dict[str, tuple[str, ...]] = {
    "hopper": ("h100", "h200", "h800"),
    "blackwell": ("b200", "b300", "gb200", "gb300", "rubin", "rubin-ultra"),
}


def generation_of(chip: str) -> str | None:
    """Name of a chip's generation, or None."""
    return next((g for g, chips in GENERATIONS.items() if chip in chips), None)


@dataclass(frozen=True)
class Law:
    """One constant.

    Attributes:
        name: in `codesign.execution.NAMES`.
        form: key of `FORMS`.
        spread: standard deviation of the prior, in u.
        generation, chip: of the deviations of generations and of chips; 0 where there are none.
        centre: of the prior where the file of estimates is neutral, else None.
    """

    name: str
    form: str
    spread: float
    generation: float = 0.0
    chip: float = 0.0
    centre: float | None = None


def _family(group: str, form: str, spread: float, generation: float, chips: Mapping[str, float], centre: float | None):
    return [Law(f"{group}_{f}", form, spread, generation, chips.get(f, 0.0), centre) for f in FAMILIES]


_CHIP = 0.2

LAWS: tuple[Law, ...] = (
    *_family("memory", "share", 0.7, 0.4, {"gemm": _CHIP, "attention": _CHIP, "experts": _CHIP}, None),
    *_family("launches", "positive", 0.7, 0.3, {"gemm": 0.1}, 4.0),
    *_family("overlap_p", "exponent", 0.7, 0.4, {}, None),
    *(Law(f"tensor_{d}", "share", 0.7, 0.4, _CHIP) for d in ("bf16", "fp8", "fp4")),
    *(Law(f"rows_half_{d}", "positive", 1.0, 0.5) for d in ("bf16", "fp8", "fp4")),
    Law("outputs_half", "positive", 1.5, 0.5, 0.0, 3e5),
    Law("grouped", "share", 1.0, 0.5, _CHIP, 0.8),
    *(Law(f"expert_rows_half_{d}", "positive", 1.0, 0.5) for d in ("bf16", "fp8", "fp4")),
    Law("group_ops", "positive", 2.0, 0.5, 0.0, 1e6),
    Law("attention_tensor", "share", 0.7, 0.4, _CHIP),
    Law("vector", "share", 0.7, 0.4),
    Law("stream_ops", "positive", 2.0, 0.7, 0.0, 3e4),
    Law("scale_up", "share", 0.7, 0.4, _CHIP),
    Law("message_half", "positive", 2.0, 0.4, 0.0, 1e7),
    Law("message_least", "share", 1.0, 0.4, 0.0, 0.2),
    Law("exchange", "share", 0.7, 0.4, _CHIP),
    Law("exchange_half", "positive", 2.0, 0.4, 0.0, 1e6),
    Law("exchange_least", "share", 1.0, 0.4, 0.0, 0.3),
    Law("scale_out", "share", 0.7),
    Law("all_reduce", "positive", 0.5, 0.3, _CHIP),
    Law("all_to_all", "positive", 0.7, 0.3, _CHIP),
)

#: Constants that a measured kernel may have of its own: by its name, what it shifts.  Shared by all chips.
KERNELS: dict[str, tuple[str, ...]] = {
    "fp8-per-tensor": ("tensor_fp8", "rows_half_fp8", "launches_gemm", "memory_gemm", "memory_elementwise",
                       "launches_elementwise"),
    "fp8-block": ("memory_elementwise", "launches_elementwise"),
    "nvfp4": ("launches_gemm", "memory_gemm", "memory_elementwise", "launches_elementwise", "outputs_half"),
    "gqa-xqa": ("launches_attention", "memory_attention", "overlap_p_attention", "stream_ops"),
    "gqa-trtllm": ("launches_attention", "memory_attention", "overlap_p_attention", "stream_ops"),
    "gqa-xqa-bf16": ("launches_attention", "stream_ops"),
    "mla-context": ("launches_attention", "attention_tensor", "memory_attention", "stream_ops", "overlap_p_attention"),
    "mla-context-hopper": ("attention_tensor", "stream_ops"),
    "mla-context-fp8": ("attention_tensor", "launches_attention", "memory_attention", "stream_ops"),
    "mla-decode-blackwell-fp8": ("attention_tensor", "memory_attention", "stream_ops", "launches_attention"),
    "mla-decode-fp8": ("attention_tensor", "memory_attention", "stream_ops"),
    "mla-module": ("launches_gemm", "memory_gemm", "tensor_fp8", "tensor_fp4", "memory_elementwise",
                   "launches_attention"),
    "mla-module-nvfp4": ("launches_gemm", "memory_elementwise", "rows_half_fp4", "outputs_half", "memory_gemm"),
    "moe-deepgemm": ("memory_experts", "launches_experts", "grouped", "expert_rows_half_fp8", "group_ops"),
    "moe-min-latency": ("memory_experts", "launches_experts", "grouped", "expert_rows_half_fp4", "group_ops"),
    "moe-min-latency-balanced": ("memory_experts", "launches_experts", "grouped"),
    "moe-mxfp4": ("memory_experts", "launches_experts", "grouped", "expert_rows_half_fp4", "group_ops"),
    "moe-mxfp4-w4a16_mxfp4": ("memory_experts", "launches_experts"),
    "moe-cutlass-nvfp4": ("memory_experts", "launches_experts", "grouped", "group_ops"),
    "moe-cutlass-nvfp4-balanced": ("memory_experts", "launches_experts", "grouped"),
    "moe-cutlass-fp8": ("memory_experts", "launches_experts", "grouped", "expert_rows_half_fp8", "group_ops"),
    "nccl": ("all_reduce", "scale_up", "message_half", "message_least"),
    "nccl-all-reduce": ("all_reduce", "scale_up"),
    "nccl-alltoall": ("all_to_all", "exchange", "exchange_half", "exchange_least"),
    "kda-conv": ("memory_elementwise", "launches_elementwise", "overlap_p_elementwise", "vector"),
    "kda-causal-conv1d-update": ("memory_elementwise", "launches_elementwise"),
    "kda-chunk": ("memory_state", "launches_state", "attention_tensor", "overlap_p_state", "stream_ops", "vector"),
    "kda-fused-kda-decode-mtp-dspark": ("memory_state", "launches_state"),
    "kda-fused-sigmoid-gating-delta-rule-update": ("memory_state", "launches_state"),
    **{
        f"a2a-{name}": ("all_to_all", "exchange", "exchange_half", "exchange_least", "scale_out")
        for name in ("nvlinkonesided", "nvlinktwosided", "deepep-ll", "deepep-normal", "trtllm-deepep-ht",
                     "trtllm-deepep-ll")
    },
    **{
        f"a2a-{name}-{leg}": ("all_to_all", "exchange")
        for name in ("nvlinkonesided", "nvlinktwosided", "deepep-ll", "deepep-normal", "trtllm-deepep-ht",
                     "trtllm-deepep-ll")
        for leg in ("combine",)
    },
    "a2a-nvlinktwosided-low": ("exchange",),
    "a2a-nvlinktwosided-prepare": ("all_to_all", "exchange"),
}  # fmt: skip

#: Standard deviation of a kernel's shift.
KERNEL_SPREAD = 0.7

BY_NAME = {law.name: law for law in LAWS}

#: Kernels that evaluation takes where none are named, by generation: caches are FP8 unless a request says otherwise.
DEFAULT_KERNELS: dict[str | None, tuple[str, ...]] = {
    "hopper": ("mla-decode-fp8", "a2a-deepep-ll"),
    "blackwell": ("mla-decode-fp8", "mla-decode-blackwell-fp8", "moe-deepgemm", "a2a-nvlinktwosided"),
    None: ("a2a-nvlinktwosided",),
}

#: Not fitted to kernels: choices.
CHOSEN = tuple(name for name in NAMES if name not in BY_NAME)


class Term(NamedTuple):
    """One fitted number: level (``all`` | ``generation`` | ``chip`` | ``kernel``), whose it is, which constant."""

    level: str
    owner: str
    law: str


@dataclass(frozen=True)
class Terms:
    """All numbers of a fit, and their priors.

    Attributes:
        terms: in the order of the vector.
        mean, spread: of the normal prior, (n,).
        chosen: constants that are not fitted, by name.
    """

    terms: tuple[Term, ...]
    mean: np.ndarray
    spread: np.ndarray
    chosen: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.terms)

    @property
    def index(self) -> dict[Term, int]:
        """Place of each term in the vector."""
        return {t: i for i, t in enumerate(self.terms)}

    def matrix(self, chip: str | None, kernels: Iterable[str] = (), generation: str | None = None) -> np.ndarray:
        """(laws, terms): which terms add up to each constant of a chip's kernels."""
        generation = generation or (generation_of(chip) if chip else None)
        wanted = {("all", ""), ("generation", generation), ("chip", chip), *(("kernel", k) for k in kernels)}
        wanted -= {("generation", None), ("chip", None)}
        out = np.zeros((len(LAWS), len(self)))
        place = {law.name: i for i, law in enumerate(LAWS)}
        for j, t in enumerate(self.terms):
            if (t.level, t.owner) in wanted:
                out[place[t.law], j] = 1.0
        return out

    def chip_specific(self) -> int:
        """Numbers that belong to one chip."""
        return sum(t.level == "chip" for t in self.terms)


def terms_of(estimates: Callable[[str], float], chips: Iterable[str], kernels: Iterable[str]) -> Terms:
    """The numbers to fit for some chips and kernels.

    Args:
        estimates: published estimate of each constant, by name.
        chips: accelerators with measurements.
        kernels: that were measured; those without constants of their own are passed over.
    """
    chips, kernels = sorted(set(chips)), sorted(set(kernels) & set(KERNELS))
    generations = sorted({g for c in chips if (g := generation_of(c))})
    terms, mean, spread = [], [], []

    def add(level: str, owner: str, law: str, m: float, s: float) -> None:
        terms.append(Term(level, owner, law))
        mean.append(m)
        spread.append(s)

    for law in LAWS:
        centre = estimates(law.name) if law.centre is None else law.centre
        add("all", "", law.name, FORMS[law.form].write(centre), law.spread)
        if law.generation:
            for g in generations:
                add("generation", g, law.name, 0.0, law.generation)
        if law.chip:
            for c in chips:
                if not (law.name == "tensor_fp4" and generation_of(c) == "hopper"):
                    add("chip", c, law.name, 0.0, law.chip)
    for kernel in kernels:
        for name in KERNELS[kernel]:
            add("kernel", kernel, name, 0.0, KERNEL_SPREAD)
    chosen = {name: estimates(name) for name in CHOSEN}
    return Terms(tuple(terms), np.array(mean), np.array(spread), chosen)


def read(u: Any) -> dict[str, Number]:
    """Constants by name from their u, (..., laws)."""
    return {law.name: FORMS[law.form].read(u[..., i]) for i, law in enumerate(LAWS)}


@lru_cache(maxsize=8)
def published(workspace: Any = None) -> Callable[[str], float]:
    """The estimates of ``arch/measurements/execution.toml``."""
    from codesign.catalog.loader import load_measurement

    measurement = load_measurement("execution", workspace)
    return lambda name: measurement.si(name, UNITS.get(name, "1"))
