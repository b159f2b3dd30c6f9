r"""The design space of a hypothetical part: what memory, links and arithmetic cost in area, edge and watts.

A `Design` is a point of that space, a `Technology` sets a memory's exchange rates, a `Package` the budgets.  From them
`machine_of` makes the `Machine` that the model evaluates, and `constraints` the budgets overdrawn (``g <= 0`` holds).
All of it is JAX: differentiable, and mapped over by ``vmap`` (physics: power, energy, area, money).

Area of the compute die:

.. math:: A = A_{fixed} + a\,F_{fp4} + S/\rho_{sram} + A_{phy} + (B_{up} + B_{out})/\rho_{serdes}

Watts of the chip are its `codesign.power.envelope` times the ratio published/envelope of the nearest catalog part (the
*anchor*, Jalapeno).  Watts of its place add the switches, the host and the overhead of supply and cooling, the host
being what is left of the anchor's published all-in power; so the anchor, described as a design, has its published
ratings.  Left out: yield against die size, package warpage, refresh against temperature, the second memory tier.
"""

import equinox as eqx
import jax.numpy as jnp

from codesign.lanes import Number
from codesign.machine import Machine
from codesign.power import envelope
from codesign.technology import ANCHOR, Package, Technology, load_package, load_technology

__all__ = [
    "ANCHOR", "BUDGETS", "Design", "Package", "Technology", "anchor_design", "areas", "constraints", "edge",
    "fabric_power", "load_package", "load_technology", "machine_of", "stacks",
]  # fmt: skip

#: Names of `constraints`, in order; a budget that a technology does not draw on reads -1.
BUDGETS = ("package_power", "die_area", "reticle", "shoreline", "stack_bandwidth", "stack_capacity", "heat")

#: The formats that rate a design's power: the one whose rate is published for the anchor.
RATED_FORMATS = ("fp4",)


class Design(eqx.Module):
    """What an architect chooses, per chip, SI; every field a JAX leaf.

    Attributes:
        memory_bandwidth: fast memory [B/s].
        memory_capacity: fast memory [B].
        scale_up_bandwidth: per direction [B/s].
        scale_up_domain: chips of one scale-up fabric [chips].
        tensor_fp4: dense FP4 arithmetic; the wider formats follow in the anchor's ratios [FLOP/s].
        sram: on-chip memory for resident tiles [B].
    """

    memory_bandwidth: Number
    memory_capacity: Number
    scale_up_bandwidth: Number
    scale_up_domain: Number
    tensor_fp4: Number
    sram: Number


def stacks(design: Design, technology: Technology) -> Number:
    """Stacks at the edge that bandwidth or capacity asks for, whichever is more, continuous; else 0."""
    if technology.attachment != "edge":
        return jnp.zeros_like(jnp.asarray(design.memory_bandwidth, dtype=float))
    by_capacity = design.memory_capacity / (technology.layer_capacity * technology.layers)
    return jnp.maximum(design.memory_bandwidth / technology.bandwidth_per_stack, by_capacity)


def areas(design: Design, technology: Technology, package: Package, base: Machine | None = None) -> dict[str, Number]:
    """What fills the compute die [m^2], by part."""
    links = design.scale_up_bandwidth + (base or package.anchor).scale_out_bandwidth
    if technology.attachment == "edge":
        memory = stacks(design, technology) * package.edge_phy_area
    elif technology.attachment == "stacked":
        memory = design.memory_bandwidth / package.stacked_phy
    else:
        memory = design.memory_capacity / technology.layer_capacity
    return {
        "fixed": package.fixed_area,
        "compute": design.tensor_fp4 * package.compute_area,
        "sram": design.sram / package.sram_density,
        "memory": memory,
        "serdes": links / package.serdes_density,
    }


def edge(
    design: Design, technology: Technology, package: Package, base: Machine | None = None
) -> tuple[Number, Number]:
    """Shoreline used and usable [m]."""
    used = stacks(design, technology) * technology.shoreline_per_stack
    links = design.scale_up_bandwidth + (base or package.anchor).scale_out_bandwidth
    used = used + links / package.serdes_shoreline
    return used, package.edge_share * 4.0 * jnp.sqrt(package.die_area)


def _beyond_tier(domain: Number, package: Package) -> Number:
    """Share of a chip's scale-up peers that one switch tier does not reach."""
    return jnp.maximum(1.0 - package.tier / domain, 0.0)


def fabric_power(bandwidth_up: Number, domain: Number, bandwidth_out: Number, package: Package) -> Number:
    """Switches and optics outside the chip, at line rate [W per chip].

    Scale-up: one switch pass within a tier; the share of peers beyond it pays two more passes and an optical link.
    Scale-out: two passes and an optical link.
    """
    far = 2.0 * package.switch_energy + 2.0 * package.optics_energy
    up = bandwidth_up * (package.switch_energy + _beyond_tier(domain, package) * far)
    return up + bandwidth_out * (2.0 * package.switch_energy + 2.0 * package.optics_energy)


def _anchor_ratio(package: Package) -> Number:
    anchor = package.anchor
    return anchor.chip_power / envelope(anchor, package.anchor_area, package.constants, formats=RATED_FORMATS)


def _place(machine: Machine, package: Package) -> Number:
    """All-in power per chip [W]: chip, fabrics, overhead, and the host that the anchor's published figure leaves."""

    def fed(m: Machine) -> Number:
        fabric = fabric_power(m.scale_up_bandwidth, m.scale_up_domain, m.scale_out_bandwidth, package)
        return (1.0 + package.overhead) * (m.chip_power + fabric)

    return fed(machine) + package.anchor.provisioned_power - fed(package.anchor)


def _dollars(machine: Machine, technology: Technology, package: Package) -> Number:
    """Owning cost per chip [dollar/h]: the anchor's, moved by watts, memory and die."""
    anchor = package.anchor
    watts = machine.provisioned_power - anchor.provisioned_power
    capital = package.facility * watts
    capital = capital + technology.price * machine.memory_capacity - package.anchor_price * anchor.memory_capacity
    capital = capital + package.die_price * (package.die_area - package.anchor_area)
    return anchor.dollars_per_hour + 3600.0 * (capital / package.years + package.electricity * watts)


def machine_of(design: Design, technology: Technology, package: Package, base: Machine | None = None) -> Machine:
    """The machine of a design: rates from the design, energies from the technology, the rest from ``base``.

    Launches, hops, set-ups, the scale-out network, arithmetic energies and the ratios of the wider formats to FP4 are
    those of ``base``, the anchor unless given.

    ``power_limit = chip_power``: a part that would draw more in some phase slows down there, as catalog parts do.
    Beyond one switch tier the mean hop grows by the anchor's scale-out hop for the share of peers beyond.
    """
    base = base or package.anchor
    scale = design.tensor_fp4 / base.tensor_fp4
    beyond = _beyond_tier(design.scale_up_domain, package)
    machine = eqx.tree_at(
        lambda m: (
            m.memory_bandwidth, m.memory_capacity, m.tensor_bf16, m.tensor_fp8, m.tensor_fp4, m.vector_rate, m.sram,
            m.scale_up_bandwidth, m.scale_up_domain, m.scale_up_hop, m.scale_out_domain, m.memory_energy,
            m.static_power,
        ),
        base,
        (
            design.memory_bandwidth, design.memory_capacity, base.tensor_bf16 * scale, base.tensor_fp8 * scale,
            design.tensor_fp4, base.vector_rate * scale, design.sram, design.scale_up_bandwidth, design.scale_up_domain,
            base.scale_up_hop + beyond * base.scale_out_hop, jnp.maximum(base.scale_out_domain, design.scale_up_domain),
            technology.memory_energy, package.constants.static_per_area * package.die_area,
        ),
    )  # fmt: skip
    rated = _anchor_ratio(package) * envelope(machine, package.die_area, package.constants, formats=RATED_FORMATS)
    machine = eqx.tree_at(lambda m: (m.chip_power, m.power_limit), machine, (rated, rated))
    machine = eqx.tree_at(lambda m: m.provisioned_power, machine, _place(machine, package))
    return eqx.tree_at(lambda m: m.dollars_per_hour, machine, _dollars(machine, technology, package))


def constraints(
    design: Design, technology: Technology, package: Package, base: Machine | None = None
) -> dict[str, Number]:
    r"""Budgets overdrawn, relative: ``used/budget - 1``, so that ``g <= 0`` holds; keys are `BUDGETS`.

    ``package_power``: chip watts; ``die_area``: contents of the die; ``reticle``: the die; ``shoreline``: edge of
    stacks and SerDes; ``stack_bandwidth``, ``stack_capacity``: what the memory can give (edge: of stacks on the whole
    usable edge); ``heat``: watts per area of the die and what is stacked on it (the devices of edge stacks lie beside
    it and do not count).
    """
    machine = machine_of(design, technology, package, base)
    used, usable = edge(design, technology, package, base)
    fill = sum(areas(design, technology, package, base).values())
    if technology.attachment == "edge":
        most = usable / technology.shoreline_per_stack
        bandwidth = most * technology.bandwidth_per_stack
        capacity = most * technology.layer_capacity * technology.layers
        on_die = machine.chip_power - design.memory_bandwidth * technology.device_energy
    elif technology.attachment == "stacked":
        under = package.covered * package.die_area
        bandwidth = under * technology.bandwidth_per_area
        capacity = under * technology.layer_capacity * technology.layers
        on_die = machine.chip_power
    else:
        array = design.memory_capacity / technology.layer_capacity
        bandwidth, capacity = array * technology.bandwidth_per_area, package.die_area * technology.layer_capacity
        on_die = machine.chip_power
    return {
        "package_power": machine.chip_power / package.power - 1.0,
        "die_area": fill / package.die_area - 1.0,
        "reticle": package.die_area / package.reticle - 1.0,
        "shoreline": used / usable - 1.0,
        "stack_bandwidth": design.memory_bandwidth / bandwidth - 1.0,
        "stack_capacity": design.memory_capacity / capacity - 1.0,
        "heat": on_die / (technology.heat_limit * package.die_area) - 1.0,
    }


def anchor_design(package: Package) -> Design:
    """The anchor itself as a point of the design space."""
    base = package.anchor
    return Design(
        memory_bandwidth=base.memory_bandwidth,
        memory_capacity=base.memory_capacity,
        scale_up_bandwidth=base.scale_up_bandwidth,
        scale_up_domain=base.scale_up_domain,
        tensor_fp4=base.tensor_fp4,
        sram=base.sram,
    )
