"""The vocabulary of work: a pass is a table of rows, a row spends bytes, FLOP and operations on lanes.

Lanes are the resources that a machine offers at a rate: fast memory, tensor units, vector units, the scale-up
fabric and the scale-out network.  Latency stands beside them: seconds that no rate shortens.
Everything the program says of time, energy and traffic is derived from rows (physics: one pass, five lanes).
"""

from typing import Any, NamedTuple, TypeAlias

#: A real number: a float, a JAX scalar, or the array that a mapped call makes of it.
Number: TypeAlias = Any

LANES = ("memory", "tensor", "vector", "scale_up", "scale_out")

#: Arithmetic formats with a tensor rate of their own, widest first; a ``Row.dtype`` is an index into this tuple.
TENSOR_DTYPES = ("bf16", "fp8", "fp4")

#: Kernel families: each has its own overlap exponent and efficiencies.
FAMILIES = ("gemm", "attention", "experts", "collective", "elementwise", "state")


class Row(NamedTuple):
    """The work of one operation, of one layer, on the fullest chip of its stage.

    A lane the operation never touches holds the Python float ``0.0``: it is known when the program is traced and
    costs nothing to evaluate.

    Attributes:
        name: what the operation is, e.g. ``scan``; reports write it behind its block, ``mla.scan``.
        family: one of `FAMILIES`.
        memory: bytes moved to and from the fast memory [B].
        tensor: matrix arithmetic [FLOP].
        dtype: index into `TENSOR_DTYPES` of the arithmetic.
        rows: rows of the matrix product, the ``m`` of its efficiency [tokens].
        vector: elementwise operations; an exponential counts as several [op].
        scale_up: bytes this chip sends on the scale-up fabric [B].
        scale_out: bytes this chip sends on the scale-out network [B].
        launches: dependent kernels or grid barriers that start one after the other.
        latency: hops, set-up and other seconds that no rate shortens [s].
        share: work of the mean chip as a share of the fullest chip's; energy is paid by the mean chip.
        mean_memory: bytes of memory traffic of the mean chip, where that is not ``share`` of ``memory`` [B].
        beside: name of the rows behind which this one may run (empty: nothing hides it).
        streams: independent pieces, each with a start of its own: sequences x heads of keys and values of a scan, the
            experts on the chip of a grouped product.
        narrow: bytes of a weight over those of the format it is multiplied in; grouped products alone.
        width: columns of the matrix product's result: with the rows they make the tiles that units of the chip take.
        own: whether each sequence works for itself, with its own lengths, although the family takes all together.
    """

    name: str
    family: str
    memory: Number = 0.0
    tensor: Number = 0.0
    dtype: Number = 0.0
    rows: Number = 1.0
    vector: Number = 0.0
    scale_up: Number = 0.0
    scale_out: Number = 0.0
    launches: Number = 0.0
    latency: Number = 0.0
    share: Number = 1.0
    mean_memory: Number | None = None
    beside: str = ""
    streams: Number = 0.0
    width: Number = 0.0
    narrow: Number = 1.0
    own: bool = False
