"""How many bytes an element of each tensor class takes, and in which format it is multiplied.

Bytes and arithmetic formats are JAX leaves: BF16 and FP8 variants of a model share one compilation.
Bits per weight include the scales: MXFP4 has one 8-bit scale per 32 weights, NVFP4 one per 16, block FP8 one 32-bit
scale per 128 x 128, integers in groups of g a 16-bit scale, and with ``_zero`` a zero point of as many bits as a
weight: b + 16/g or b + (16 + b)/g bits.  ``int4``, ``int8`` and ``fp8`` have one scale per channel or tensor, which is
not counted.
"""

import equinox as eqx

from codesign.errors import CodesignError
from codesign.lanes import TENSOR_DTYPES, Number

#: Bytes per element, scales included.
BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / (128 * 128),
    "mxfp8": 1.0 + 1.0 / 32,
    "int8": 1.0,
    "mxfp4": 0.5 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
    "int4": 0.5,
    "int4_group32": 0.5 + 2.0 / 32,
    "int4_group64": 0.5 + 2.0 / 64,
    "int4_group128": 0.5 + 2.0 / 128,
    "int4_group32_zero": 0.5 + 2.5 / 32,
    "int4_group64_zero": 0.5 + 2.5 / 64,
    "int4_group128_zero": 0.5 + 2.5 / 128,
    "int8_group32": 1.0 + 2.0 / 32,
    "int8_group64": 1.0 + 2.0 / 64,
    "int8_group128": 1.0 + 2.0 / 128,
}

#: The narrowest tensor format that can multiply each storage format.
ARITHMETIC = {
    "fp32": "bf16",
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "int8": "fp8",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
    "int4": "fp4",
    "int4_group32": "fp4",
    "int4_group64": "fp4",
    "int4_group128": "fp4",
    "int4_group32_zero": "fp4",
    "int4_group64_zero": "fp4",
    "int4_group128_zero": "fp4",
    "int8_group32": "fp8",
    "int8_group64": "fp8",
    "int8_group128": "fp8",
}

#: Weight classes, then what moves.
WEIGHT_CLASSES = ("routed", "shared", "dense", "attention", "router", "latent", "embedding", "head", "drafter")
MOVING_CLASSES = (
    "activation",
    "expert_activation",
    "dispatch",
    "combine",
    "kv",
    "index",
    "state",
    "conv_state",
    "attention_math",
)


def bytes_of(dtype: str) -> float:
    """Bytes per element of a named dtype, scales included; raises `CodesignError` on an unknown name."""
    if dtype not in BYTES:
        raise CodesignError(f"unknown dtype {dtype!r}", allowed=", ".join(BYTES))
    return BYTES[dtype]


def arithmetic_of(*dtypes: str) -> float:
    """Index into `TENSOR_DTYPES` of the widest arithmetic format among the operands."""
    return float(min(TENSOR_DTYPES.index(ARITHMETIC[d]) for d in dtypes))


def with_cache(dtypes: dict[str, str], kv: str) -> dict[str, str]:
    """The dtypes with another one for the cache; index keys go along where they were stored as the cache was."""
    follows = dtypes.get("index") == dtypes.get("kv")
    return dtypes | {"kv": kv} | ({"index": kv} if follows else {})


class Precision(eqx.Module):
    """Bytes per element of every tensor class and the arithmetic format of every weight class.

    ``bytes`` maps a class of `WEIGHT_CLASSES` or `MOVING_CLASSES` to bytes per element; ``math`` maps a weight class,
    ``scan`` for the attention scan or ``index`` for that of an indexer, to an index into `TENSOR_DTYPES`.
    """

    bytes: dict[str, Number]
    math: dict[str, Number]

    @classmethod
    def from_names(cls, dtypes: dict[str, str]) -> "Precision":
        """Build from dtype names per class (see `codesign.catalog` for the defaults of a model).

        A product runs in the wider of its weight's and its activation's formats; routed experts multiply by
        ``expert_activation``, everything else by ``activation``; weights narrower than their activations are widened on
        the way (weight-only quantisation), at the activation's rate.  Activations move between kernels in BF16 even
        where products quantise them on the way in, so ``bytes["activation"]`` is at least 2.
        """
        b = {name: bytes_of(dtypes[name]) for name in WEIGHT_CLASSES + MOVING_CLASSES}
        b["activation"] = max(b["activation"], BYTES["bf16"])
        math = {
            name: arithmetic_of(dtypes[name], dtypes["expert_activation" if name == "routed" else "activation"])
            for name in WEIGHT_CLASSES
        }
        math["scan"] = arithmetic_of(dtypes["attention_math"])
        math["index"] = arithmetic_of(dtypes["index"])
        return cls(bytes=b, math=math)
