"""A machine: a vector of rates, energies and latencies over the lanes, per chip, and the fabric between chips.

Every field is a float64 JAX leaf, so that machines stack, map and differentiate.  What the numbers are and where
they come from is written in ``arch/``; `codesign.catalog` reads them into this module's one class.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from codesign.lanes import Number


class Machine(eqx.Module):
    """One accelerator in its system, in SI units, per chip.

    Rates are peaks: what is achieved of them is the business of `codesign.execution`.  A part without a dtype carries
    the rate of the next wider one (no FP4 unit: FP4 weights compute at the FP8 rate).

    Attributes:
        memory_bandwidth: fast memory [B/s].
        memory_capacity: fast memory [B].
        tensor_bf16, tensor_fp8, tensor_fp4: dense matrix arithmetic [FLOP/s].
        vector_rate: elementwise operations [op/s].
        exponential_ops: vector operations that one exponential is worth [op].
        sram: on-chip memory that can hold resident tiles [B].
        scale_up_bandwidth: per direction [B/s].
        scale_up_domain: chips that one scale-up fabric joins [chips].
        scale_up_hop: one-way latency between two chips of a domain [s].
        scale_out_bandwidth: per direction [B/s].
        scale_out_domain: chips that the scale-out network joins [chips].
        scale_out_hop: one-way latency beyond the domain [s].
        in_switch_reduction: 1 where the fabric reduces in the switch, 0 where rings do it.
        launch: one dependent kernel or grid barrier [s].
        all_reduce_setup, all_to_all_setup: what a shipping kernel adds to the hops of a collective [s].
        memory_energy, scale_up_energy, scale_out_energy: at board level [J/B].
        tensor_bf16_energy, tensor_fp8_energy, tensor_fp4_energy: at board level [J/FLOP].
        vector_energy: at board level [J/op].
        static_power: drawn by an idle chip [W].
        power_limit: above which the chip slows down [W].
        chip_power: the published rating, or the envelope of a hypothetical part [W].
        provisioned_power: all-in, with the share of host, NIC, switch and cooling [W].
        dollars_per_hour: cost of owning one chip [$/h].

    How the chips of a domain are joined is known when a program is traced, by the class: `MACHINES` has one per
    topology of `codesign.fabric`, which says what each means.
    """

    topology: ClassVar[str] = "switched"

    memory_bandwidth: Number
    memory_capacity: Number
    tensor_bf16: Number
    tensor_fp8: Number
    tensor_fp4: Number
    vector_rate: Number
    exponential_ops: Number
    sram: Number
    scale_up_bandwidth: Number
    scale_up_domain: Number
    scale_up_hop: Number
    scale_out_bandwidth: Number
    scale_out_domain: Number
    scale_out_hop: Number
    in_switch_reduction: Number
    launch: Number
    all_reduce_setup: Number
    all_to_all_setup: Number
    memory_energy: Number
    tensor_bf16_energy: Number
    tensor_fp8_energy: Number
    tensor_fp4_energy: Number
    vector_energy: Number
    scale_up_energy: Number
    scale_out_energy: Number
    static_power: Number
    power_limit: Number
    chip_power: Number
    provisioned_power: Number
    dollars_per_hour: Number

    def tensor_rate(self, dtype: Number) -> Number:
        """Peak matrix arithmetic in a format given as an index into `codesign.lanes.TENSOR_DTYPES` [FLOP/s]."""
        if isinstance(dtype, float):
            return (self.tensor_bf16, self.tensor_fp8, self.tensor_fp4)[int(dtype)]
        narrow = jnp.where(dtype < 1.5, self.tensor_fp8, self.tensor_fp4)
        return jnp.where(dtype < 0.5, self.tensor_bf16, narrow)


class TwoLevel(Machine):
    """A local fabric and a global one: what goes between domains is shared out among a domain's chips first."""

    topology: ClassVar[str] = "two-level"


class FullMesh(Machine):
    """A link from every chip of a domain to every other."""

    topology: ClassVar[str] = "full-mesh"


class Mesh(Machine):
    """Chips on a square, linked to their four neighbours."""

    topology: ClassVar[str] = "mesh"


class Torus2D(Machine):
    """A square whose opposite edges are joined."""

    topology: ClassVar[str] = "torus-2d"


class Torus(Machine):
    """A cube whose opposite faces are joined: six links per chip."""

    topology: ClassVar[str] = "torus"


#: Class of a machine by its topology.
MACHINES: dict[str, type[Machine]] = {
    kind.topology: kind for kind in (Machine, TwoLevel, FullMesh, Mesh, Torus2D, Torus)
}
