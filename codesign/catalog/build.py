"""The one step from files to JAX: a loaded system becomes a `codesign.machine.Machine`, in SI."""

from typing import TYPE_CHECKING

from codesign.catalog.loader import LoadedSystem

if TYPE_CHECKING:
    from codesign.machine import Machine

#: Fields of `Machine` that a system's file holds; the others are its accelerator's.
SYSTEM_FIELDS = (
    "scale_up_bandwidth", "scale_up_domain", "scale_up_hop", "scale_out_bandwidth", "scale_out_domain", "scale_out_hop",
    "in_switch_reduction", "all_reduce_setup", "all_to_all_setup", "scale_up_energy", "scale_out_energy",
    "provisioned_power", "dollars_per_hour",
)  # fmt: skip

ACCELERATOR_FIELDS = (
    "memory_bandwidth", "memory_capacity", "vector_rate", "exponential_ops", "sram", "launch", "memory_energy",
    "vector_energy", "static_power", "power_limit", "chip_power",
)  # fmt: skip


def machine_values(loaded: LoadedSystem) -> dict[str, float]:
    """Every field of `Machine` as a float in SI, without importing jax.

    A format without a rate of its own computes at the next wider one, at that one's energy; one with a rate but no
    energy takes the wider one's energy.
    """
    chip, system = loaded.accelerator, loaded.system
    values = {name: getattr(chip, name).si for name in ACCELERATOR_FIELDS}
    values |= {name: getattr(system, name).si for name in SYSTEM_FIELDS}
    rate, energy = chip.tensor_bf16.si, chip.tensor_bf16_energy.si
    for dtype in ("bf16", "fp8", "fp4"):
        own_rate, own_energy = getattr(chip, f"tensor_{dtype}"), getattr(chip, f"tensor_{dtype}_energy")
        rate = own_rate.si if own_rate else rate
        energy = own_energy.si if own_energy else energy
        values[f"tensor_{dtype}"], values[f"tensor_{dtype}_energy"] = rate, energy
    return values


def machine_of(loaded: LoadedSystem) -> "Machine":
    """Build the machine that the model computes with; imports jax.

    A two-level fabric that no deployment outgrows is the switched one inside its domain.

    Raises nothing: the files were validated when they were loaded.
    """
    import jax.numpy as jnp

    from codesign.machine import MACHINES

    topology, system = loaded.system.topology, loaded.system
    if topology == "two-level" and system.max_chips.si <= system.scale_up_domain.si:
        topology = "switched"
    return MACHINES[topology](
        **{name: jnp.asarray(value, dtype=float) for name, value in machine_values(loaded).items()}
    )
