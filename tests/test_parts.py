"""The parts of ``arch/``: published figures, names that must resolve, latencies that reproduce measured floors."""

import pytest

from codesign.catalog.loader import load_accelerator, load_machine, load_memory, load_system
from codesign.catalog.workspace import list_catalog

NAMES = sorted(entry.name for entry in list_catalog("arch") if entry.kind == "system")

#: B/s, B, FLOP/s dense FP4 (or FP8 where there is none), B/s per direction, domain: from datasheets.
DATASHEET = {
    "h100": (3.35e12, 80e9, 1.979e15, 450e9, 8),
    "h200": (4.8e12, 141e9, 1.979e15, 450e9, 8),
    "gb200-nvl72": (8e12, 186e9, 10e15, 900e9, 72),
    "gb300-nvl72": (8e12, 278e9, 15e15, 900e9, 72),
    "vera-rubin-nvl72": (22e12, 288e9, 35e15, 1.8e12, 72),
    "jalapeno": (15.4e12, 216 * 2**30, 13.4e15, 600e9, 128),
    "mi300x": (5.3e12, 192e9, 2.615e15, 448e9, 8),
    "mi355x": (8e12, 288e9, 10.066e15, 576e9, 8),
    "groq-lpx": (150e12, 500e6, 1.2e15, 1.25e12, 256),
}


@pytest.mark.parametrize("name", sorted(DATASHEET))
def test_datasheet(name):
    bandwidth, capacity, tensor, link, domain = DATASHEET[name]
    machine = load_machine(name)
    assert float(machine.memory_bandwidth) == pytest.approx(bandwidth)
    assert float(machine.memory_capacity) == pytest.approx(capacity)
    assert float(machine.tensor_fp4) == pytest.approx(tensor)
    assert float(machine.scale_up_bandwidth) == pytest.approx(link)
    assert float(machine.scale_up_domain) == domain


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("b200-hgx", "b200"), ("hgx-b200", "b200"), ("b200_sxm", "b200"), ("h200_sxm", "h200"),
        ("gb200", "gb200-nvl72"), ("gb300", "gb300-nvl72"), ("vr200", "vera-rubin-nvl72"), ("vr72", "vera-rubin-nvl72"),
        ("rubin", "vera-rubin-nvl72"), ("H100", "h100"), ("mi455x", "mi455x-helios"), ("ascend-910c", "cloudmatrix384"),
    ],
)  # fmt: skip
def test_aliases(alias, name):
    assert load_system(alias).name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_system_is_plausible(name):
    loaded = load_system(name)
    machine, chip = load_machine(name), loaded.accelerator
    assert machine.tensor_bf16 <= machine.tensor_fp8 <= machine.tensor_fp4
    assert machine.tensor_fp4_energy <= machine.tensor_fp8_energy <= machine.tensor_bf16_energy
    assert 0.05 < float(machine.static_power / machine.chip_power) < 0.35
    assert 1.2 < float(machine.provisioned_power / machine.chip_power) < 2.5
    assert float(machine.memory_energy) < 200e-12
    assert chip.die_area.si > 500e-6
    for file in loaded.files:
        numbers = [n for n in vars(file).values() if hasattr(n, "kind") and hasattr(n, "source")]
        assert len(numbers) >= 6


def test_hypothetical_assumptions_have_ranges():
    hypothetical = [load_system(n) for n in NAMES if load_system(n).system.status == "hypothetical"]
    assert len(hypothetical) >= 2
    for loaded in hypothetical:
        for field, number in (vars(loaded.accelerator) | vars(loaded.system)).items():
            assert getattr(number, "kind", "") != "datasheet", (loaded.name, field)
            if getattr(number, "kind", "") == "assumption" and "as Jalapeno" not in number.source:
                assert number.si_range is not None, (loaded.name, field)


def test_small_message_floors():
    # What a collective of the model costs without bytes: set-up and hops, against measured kernels [us].
    for name, measured in (("gb200-nvl72", 5.0), ("gb300-nvl72", 5.0), ("b200", 5.0), ("h100", 3.2), ("h200", 3.2)):
        machine = load_machine(name)
        assert float(machine.all_reduce_setup + 2 * machine.scale_up_hop) * 1e6 == pytest.approx(measured, rel=0.01)
    # EP64 on GB200, small batch: dispatch 12 and combine 24 us, two legs of 18.
    machine = load_machine("gb200-nvl72")
    assert 2 * float(machine.all_to_all_setup + machine.scale_up_hop) * 1e6 == pytest.approx(36.0, rel=0.01)


@pytest.mark.parametrize("name", ["jalapeno-hybrid-bonded", "jalapeno-super-3d-ram"])
def test_hypothetical_parts_are_area_times_density_times_layers(name):
    loaded = load_system(name)
    chip, memory = loaded.accelerator, loaded.memory
    assert loaded.system.status == "hypothetical"
    assert memory.bandwidth_per_area and memory.capacity_per_area and memory.layers
    covered = 0.9 * 840e-6
    assert chip.memory_bandwidth.si == pytest.approx(covered * memory.bandwidth_per_area.si, rel=2e-3)
    assert chip.memory_capacity.si == pytest.approx(covered * memory.capacity_per_area.si * memory.layers.si, rel=2e-3)
    for field in ("memory_bandwidth", "memory_capacity", "memory_energy", "tensor_fp4", "power_limit"):
        number = getattr(chip, field)
        assert number.si_range is not None
        assert number.kind in ("assumption", "fitted")
    # Raptor, measured: 105 TB/s over 8 x 360 mm^2, which the stated ranges enclose (36.5, told as 36).
    low, high = memory.bandwidth_per_area.si_range or (0.0, 0.0)
    assert low <= 1.02 * 105e12 / (8 * 360e-6) <= 1.02 * high
    # No part is rated above what can be cooled.
    assert chip.power_limit.si <= memory.heat_limit.si * 840e-6 * 1.001


def test_raptor_density():
    raptor = load_accelerator("raptor")
    memory = load_memory("raptor-3d-dram")
    assert memory.bandwidth_per_area and memory.capacity_per_area
    assert raptor.memory_bandwidth.si / raptor.die_area.si == pytest.approx(memory.bandwidth_per_area.si, rel=0.02)
    assert raptor.die_area.si * memory.capacity_per_area.si == pytest.approx(raptor.memory_capacity.si, rel=0.03)
