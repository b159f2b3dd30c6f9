"""Memory technologies and packages as an architect meets them: exchange rates and budgets, in SI, as JAX leaves.

HBM sells bandwidth by the millimetre of edge, stacked DRAM by the square millimetre of die and capacity by the layer,
SRAM both by area; links by edge and joules (physics: power, energy, area, money).  The numbers stand in
``arch/memories`` and ``arch/measurements/package.toml``; `codesign.design` spends them.
"""

import equinox as eqx
import jax.numpy as jnp

from codesign.catalog.loader import Where, load_accelerator, load_machine, load_measurement, load_memory
from codesign.catalog.quantity import Number as FileNumber
from codesign.errors import CodesignError
from codesign.lanes import Number
from codesign.machine import Machine
from codesign.power import Constants, load_constants, memory_energy, node_key

#: The catalog part that hypothetical parts are anchored at.
ANCHOR = "jalapeno"


class Technology(eqx.Module):
    """Exchange rates of a memory technology, SI; JAX leaves except names.

    Attributes:
        name: of the file in ``arch/memories`` (static).
        attachment: ``edge`` | ``stacked`` | ``on-die`` (static).
        bandwidth_per_stack, shoreline_per_stack: edge [B/s, m]; of the other kinds 1.
        layer_capacity: edge: of one layer of a stack [B]; else of one layer per die area [B/m^2].
        layers: the most layers that are built.
        bandwidth_per_area: stacked and on-die [B/s/m^2]; of edge 1.
        memory_energy, device_energy: all told at board level, and of the device alone [J/B].
        heat_limit: of the die [W/m^2].
        price [dollar/B].
    """

    name: str = eqx.field(static=True)
    attachment: str = eqx.field(static=True)
    bandwidth_per_stack: Number
    shoreline_per_stack: Number
    layer_capacity: Number
    layers: Number
    bandwidth_per_area: Number
    memory_energy: Number
    device_energy: Number
    heat_limit: Number
    price: Number


class Package(eqx.Module):
    """Budgets and exchange rates of the die, its package and its place in a rack, SI; JAX leaves.

    Attributes:
        die_area: that the compute die may fill; it bears the stacked memory and leaks [m^2].
        reticle: largest die that can be exposed [m^2].
        power: that the package may draw [W].
        edge_share: share of the perimeter ``4 sqrt(die_area)`` for memory and links.
        covered: share of the die under stacked DRAM.
        compute_area [m^2 s/FLOP], sram_density [B/m^2], edge_phy_area [m^2 per stack], stacked_phy [B/s/m^2],
        serdes_density [B/s/m^2], serdes_shoreline [B/s/m], fixed_area [m^2]: of the compute die.
        switch_energy, optics_energy: of the fabrics beyond the chip [J/B].
        tier: chips that one switch tier joins [chips].
        overhead: supply and cooling, over what they feed.
        facility [dollar/W], die_price [dollar/m^2], years [s], electricity [dollar/J]: money.
        anchor_area: die area of the anchor [m^2]; ``anchor_price``: of its memory [dollar/B].
        anchor: the catalog part that designs are anchored at, and take from it what they do not choose.
        constants: technology constants of `codesign.power`.
    """

    die_area: Number
    reticle: Number
    power: Number
    edge_share: Number
    covered: Number
    compute_area: Number
    sram_density: Number
    edge_phy_area: Number
    stacked_phy: Number
    serdes_density: Number
    serdes_shoreline: Number
    fixed_area: Number
    switch_energy: Number
    optics_energy: Number
    tier: Number
    overhead: Number
    facility: Number
    die_price: Number
    years: Number
    electricity: Number
    anchor_area: Number
    anchor_price: Number
    anchor: Machine
    constants: Constants


def load_package(workspace: Where = None, *, die_area: float | None = None, power: float | None = None) -> Package:
    """Read ``arch/measurements/package.toml``; ``die_area`` [m^2] and ``power`` [W] replace the anchor's budgets."""
    m = load_measurement("package", workspace)
    chip = load_accelerator(ANCHOR, workspace)
    year = 365.25 * 86400.0
    values = {
        "die_area": die_area if die_area is not None else m.si("die_area", "m^2"),
        "reticle": m.si("reticle", "m^2"),
        "power": power if power is not None else m.si("package_power", "W"),
        "edge_share": m.si("edge_share"),
        "covered": m.si("covered"),
        "compute_area": m.si("compute_area", "m^2*s/FLOP"),
        "sram_density": m.si("sram_density", "B/m^2"),
        "edge_phy_area": m.si("edge_phy_area", "m^2"),
        "stacked_phy": m.si("stacked_phy", "B/m^2/s"),
        "serdes_density": m.si("serdes_density", "B/m^2/s"),
        "serdes_shoreline": m.si("serdes_shoreline", "B/m/s"),
        "fixed_area": m.si("fixed_area", "m^2"),
        "switch_energy": m.si("switch_energy", "J/B"),
        "optics_energy": m.si("optics_energy", "J/B"),
        "tier": m.si("tier"),
        "overhead": m.si("overhead"),
        "facility": m.si("facility", "dollar*s/J"),
        "die_price": m.si("die_price", "dollar/m^2"),
        "years": m.si("years") * year,
        "electricity": m.si("electricity", "dollar/J"),
        "anchor_area": chip.die_area.si,
        "anchor_price": load_memory(chip.memory, workspace).price.si,
    }
    return Package(
        **{k: jnp.asarray(v, dtype=float) for k, v in values.items()},
        anchor=load_machine(ANCHOR, workspace),
        constants=load_constants(workspace),
    )


def load_technology(name: str, workspace: Where = None, *, at: str = "value") -> Technology:
    """A memory technology as an architect of a tile ASIC would buy it, from ``arch/memories`` and the energy constants.

    Args:
        name: file of ``arch/memories``.
        workspace: as in `codesign.catalog.load_file`.
        at: ``value`` | ``low`` | ``high``: which end of the stated ranges of bandwidth, capacity per layer, layers and
            heat to take (``low`` is the pessimist's); energies keep their value.

    Raises:
        CodesignError: unknown name or end, or an edge memory without layer numbers in package.toml.
    """
    if at not in ("value", "low", "high"):
        raise CodesignError(f"unknown end {at!r}", allowed="value, low, high")
    memory = load_memory(name, workspace)
    m = load_measurement("package", workspace)
    constants = load_constants(workspace)

    def pick(number: FileNumber | None) -> float:
        if number is None:
            return 1.0
        ends = number.si_range or (number.si, number.si)
        return {"low": ends[0], "value": number.si, "high": ends[1]}[at]

    if memory.attachment == "edge":
        if f"layer_{memory.name}" not in m.numbers:
            known = ", ".join(k.removeprefix("layer_") for k in m.numbers if k.startswith("layer_"))
            raise CodesignError(f"no layers known for {memory.name!r}", file=m.origin.label, allowed=known)
        layer, layers = m.si(f"layer_{memory.name}", "B"), m.si(f"layers_{memory.name}")
    else:
        layer, layers = pick(memory.capacity_per_area), pick(memory.layers)
    architecture = {"edge": "tile", "stacked": "stacked", "on-die": "sram"}[memory.attachment]
    power = load_measurement("power", workspace)
    node = power.si(node_key(load_accelerator(ANCHOR, workspace).process))
    values = {
        "bandwidth_per_stack": pick(memory.bandwidth_per_stack),
        "shoreline_per_stack": memory.shoreline_per_stack.si if memory.shoreline_per_stack else 1.0,
        "layer_capacity": layer,
        "layers": layers,
        "bandwidth_per_area": pick(memory.bandwidth_per_area),
        "memory_energy": memory_energy(constants, memory.device_energy.si, architecture, node),
        "device_energy": memory.device_energy.si,
        "heat_limit": pick(memory.heat_limit),
        "price": memory.price.si,
    }
    arrays = {k: jnp.asarray(v, dtype=float) for k, v in values.items()}
    return Technology(name=memory.name, attachment=memory.attachment, **arrays)
