r"""Board power from technology constants: what a byte, a FLOP and an idle mm^2 cost, by node and architecture.

Energies at board level:

.. math::
    e_{mem} = e_{device} + u_{gpu}\,\nu \quad\text{or}\quad (e_{device} + u_{tile|stacked|sram}) / \eta, \qquad
    e_{tensor}(b) = e_8\,\nu\,(b/8)^{\beta}\,(16384/n)^{\gamma}

with the node's factor :math:`\nu` (5 nm is 1), the width :math:`b` in bits, the matrix unit's size :math:`n` in FLOP
per core and clock, and the regulators' efficiency :math:`\eta`.  The *envelope* of a part is its static power plus
the largest, over regimes (decode scan, GEMM, all-to-all, each at line or sustained rate), of the sum of lane rate x
lane energy (physics: power).

Five constants are fitted (`codesign.power_fit`): on the GEMM power of H100, H200, B200 and MI300X, idle power of H100
and B300, and bytes of GH200's and MI300A's HBM3; the others are stated in
``arch/measurements/power.toml`` with their arithmetic.  Left out: voltage and clock as choices of their own (a part
that is pushed up its voltage curve draws more than this law), data-dependent switching, temperature, and the power of
a busy chip that moves nothing.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.catalog.loader import Where, load_measurement
from codesign.errors import CodesignError
from codesign.lanes import TENSOR_DTYPES, Number
from codesign.machine import Machine

#: Bits of each tensor format.
BITS = {"bf16": 16.0, "fp8": 8.0, "fp4": 4.0}

#: Unit size to which `Constants.tensor_fp8` refers [FLOP per core and clock].
REFERENCE_UNIT = 16384.0

#: How a chip moves bytes from its memory to its arithmetic; decides the on-die share of a byte's energy.
ARCHITECTURES = ("gpu", "tile", "stacked", "sram")


class Constants(eqx.Module):
    """Technology constants, SI; JAX leaves.

    Attributes:
        static_per_area: idle board power per die area [W/m^2].
        on_die: what an architecture adds to the memory device, by `ARCHITECTURES`; ``gpu`` at 5 nm [J/B].
        regulator: efficiency of the regulators, for all but ``gpu``, whose constant was fitted at board level.
        tensor_fp8: at 5 nm and `REFERENCE_UNIT` [J/FLOP].
        width_exponent, unit_exponent: of the law above.
        vector: at 5 nm [J/op].
        gemm_intensity: FLOP per byte of memory of a large 8-bit GEMM [FLOP/B].
        scan_intensity, scan_vector: arithmetic beside a byte of the decode scan [FLOP/B, op/B].
        share: sustained share of the peak rate, by format, where a part was not measured.
    """

    static_per_area: Number
    on_die: dict[str, Number]
    regulator: Number
    tensor_fp8: Number
    width_exponent: Number
    unit_exponent: Number
    vector: Number
    gemm_intensity: Number
    scan_intensity: Number
    scan_vector: Number
    share: dict[str, Number]


def load_constants(workspace: Where = None) -> Constants:
    """Read ``arch/measurements/power.toml``; an own workspace's file hides the bundled one."""
    m = load_measurement("power", workspace)
    return Constants(
        static_per_area=m.si("static_per_area", "W/m^2"),
        on_die={a: m.si(f"on_die_{a}", "J/B") for a in ARCHITECTURES},
        regulator=m.si("regulator"),
        tensor_fp8=m.si("tensor_fp8", "J/FLOP"),
        width_exponent=m.si("width_exponent"),
        unit_exponent=m.si("unit_exponent"),
        vector=m.si("vector", "J/op"),
        gemm_intensity=m.si("gemm_intensity", "FLOP/B"),
        scan_intensity=m.si("scan_intensity", "FLOP/B"),
        scan_vector=m.si("scan_vector", "op/B"),
        share={d: m.si(f"share_{d}") for d in TENSOR_DTYPES},
    )


def node_key(process: str | None) -> str:
    """Key of a process's factor in power.toml: ``TSMC N3P`` is ``node_n3p``."""
    return "node_" + (process or "n5").split()[-1].lower()


@lru_cache(maxsize=1)
def bundled() -> Constants:
    """The constants that come with the program, read once."""
    return load_constants()


def memory_energy(constants: Constants, device: Number, architecture: str, node: Number) -> Number:
    """Energy of one byte at board level [J/B]: the device's [J/B] and the architecture's on-die share.

    Raises:
        CodesignError: unknown architecture.
    """
    if architecture not in ARCHITECTURES:
        raise CodesignError(f"unknown architecture {architecture!r}", allowed=", ".join(ARCHITECTURES))
    if architecture == "gpu":
        return device + constants.on_die["gpu"] * node
    return (device + constants.on_die[architecture]) / constants.regulator


def tensor_energy(constants: Constants, bits: Number, node: Number, unit: Number) -> Number:
    """Energy of a FLOP of ``bits`` wide operands [J/FLOP], in a unit of ``unit`` FLOP per core and clock at 8 bits."""
    width = (bits / 8.0) ** constants.width_exponent
    return constants.tensor_fp8 * node * width * (REFERENCE_UNIT / unit) ** constants.unit_exponent


class Energies(NamedTuple):
    """Lane energies of a part, as its file has them: memory [J/B], tensor by format [J/FLOP], vector [J/op]."""

    memory: Number
    bf16: Number
    fp8: Number
    fp4: Number
    vector: Number


def energies(constants: Constants, device: Number, architecture: str, node: Number, unit: Number) -> Energies:
    """All lane energies of a part from its memory device, architecture, node factor and matrix unit."""
    bf16, fp8, fp4 = (tensor_energy(constants, BITS[d], node, unit) for d in TENSOR_DTYPES)
    memory = memory_energy(constants, device, architecture, node)
    return Energies(memory, bf16, fp8, fp4, constants.vector * node)


def regimes(
    machine: Machine,
    die_area: Number,
    constants: Constants | None = None,
    *,
    sustained: Mapping[str, Number] | None = None,
    formats: tuple[str, ...] = TENSOR_DTYPES,
) -> dict[str, Number]:
    """Power of each regime [W], static power included; the envelope is the largest.

    ``scan``: memory at line rate with the arithmetic that accompanies it; ``gemm_FORMAT``: the matrix unit at its
    sustained rate with the traffic of blocked operands; ``all_to_all``: both fabrics at line rate, each byte read and
    written once.

    Args:
        machine: rates and energies.
        die_area: of all dies [m^2].
        constants: bundled ones by default.
        sustained: measured rates by format [FLOP/s]; elsewhere the peak times `Constants.share`.
        formats: the formats that rate the part's power (static).
    """
    c = bundled() if constants is None else constants
    static = c.static_per_area * die_area
    bytes_read = machine.memory_bandwidth
    beside = c.scan_intensity * machine.tensor_fp8_energy + c.scan_vector * machine.vector_energy
    out = {"scan": static + bytes_read * (machine.memory_energy + beside)}
    for name in formats:
        rate = (sustained or {}).get(name)
        if rate is None:
            rate = getattr(machine, f"tensor_{name}") * c.share[name]
        traffic = machine.memory_energy * BITS[name] / 8.0 / c.gemm_intensity
        out[f"gemm_{name}"] = static + rate * (getattr(machine, f"tensor_{name}_energy") + traffic)
    sent = machine.scale_up_bandwidth + machine.scale_out_bandwidth
    links = (
        machine.scale_up_bandwidth * machine.scale_up_energy + machine.scale_out_bandwidth * machine.scale_out_energy
    )
    out["all_to_all"] = static + links + 2.0 * sent * machine.memory_energy
    return out


def envelope(
    machine: Machine,
    die_area: Number,
    constants: Constants | None = None,
    *,
    sustained: Mapping[str, Number] | None = None,
    formats: tuple[str, ...] = TENSOR_DTYPES,
) -> Number:
    """Board power that a part must be rated for [W]: the largest of `regimes`; differentiable, maps over machines."""
    powers = list(regimes(machine, die_area, constants, sustained=sustained, formats=formats).values())
    top = jnp.asarray(powers[0], dtype=float)
    for power in powers[1:]:
        top = jnp.maximum(top, power)
    return top
