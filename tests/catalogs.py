"""A small complete catalog as texts, for tests that must not depend on the bundled data, and helpers around it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from codesign.catalog import Workspace
from codesign.errors import CodesignError

ACCELERATOR = """
name = "chip"
title = "A chip"
aliases = ["little chip", "CHIP-1"]
vendor = "Acme"
memory = "stacks"
memory_bandwidth = { value = "8 TB/s", kind = "datasheet", source = "sheet", range = ["7.7 TB/s", "8 TB/s"], note = "x"}
memory_capacity = { value = "192 GB", kind = "datasheet", source = "sheet" }
tensor_bf16 = { value = "2.5 PFLOP/s", kind = "datasheet", source = "sheet" }
tensor_fp8 = { value = "5 PFLOP/s", kind = "rumour", source = "forum" }
vector_rate = { value = "60 Top/s", kind = "assumption", source = "cores x clock" }
exponential_ops = { value = 8, kind = "assumption", source = "as the nearest part" }
sram = { value = "126 MiB", kind = "estimate", source = "die photo" }
launch = { value = "0.5 us", kind = "measured", source = "bench" }
static_power = { value = "140 W", kind = "fitted", source = "fit" }
power_limit = { value = "1.2 kW", kind = "datasheet", source = "sheet" }
chip_power = { value = "1200 W", kind = "datasheet", source = "sheet" }
die_area = { value = "1600 mm^2", kind = "estimate", source = "die photo" }
memory_energy = { value = "10 pJ/bit", kind = "fitted", source = "fit" }
tensor_bf16_energy = { value = "0.4 pJ/FLOP", kind = "fitted", source = "fit" }
tensor_fp8_energy = { value = "0.2 pJ/FLOP", kind = "fitted", source = "fit" }
vector_energy = { value = "2 pJ/op", kind = "fitted", source = "fit" }
"""

SYSTEM = """
name = "rack"
title = "A rack of 72"
aliases = ["nvl"]
accelerator = "chip"
status = "shipping"
topology = "switched"
max_chips = { value = "72", kind = "datasheet", source = "sheet" }
scale_up_bandwidth = { value = "900 GB/s", kind = "datasheet", source = "sheet" }
scale_up_domain = { value = "72 chips", kind = "datasheet", source = "sheet" }
scale_up_hop = { value = "0.8 us", kind = "measured", source = "bench" }
scale_out_bandwidth = { value = "800 Gbit/s", kind = "datasheet", source = "sheet" }
scale_out_domain = { value = "1024", kind = "assumption", source = "a row" }
scale_out_hop = { value = "5 us", kind = "estimate", source = "bench" }
in_switch_reduction = { value = "1", kind = "datasheet", source = "sheet" }
all_reduce_setup = { value = "3 us", kind = "measured", source = "bench" }
all_to_all_setup = { value = "12 us", kind = "measured", source = "bench" }
scale_up_energy = { value = "5 pJ/bit", kind = "assumption", source = "links" }
scale_out_energy = { value = "40 pJ/B", kind = "assumption", source = "links" }
provisioned_power = { value = "2 kW", kind = "estimate", source = "survey" }
dollars_per_hour = { value = "1.95 dollar/h", kind = "estimate", source = "survey" }
"""

MEMORY = """
name = "stacks"
title = "Stacks beside the die"
attachment = "edge"
bandwidth_per_stack = { value = "1 TB/s", kind = "datasheet", source = "sheet" }
capacity_per_stack = { value = "24 GB", kind = "datasheet", source = "sheet" }
shoreline_per_stack = { value = "11 mm", kind = "estimate", source = "photo" }
device_energy = { value = "4 pJ/bit", kind = "datasheet", source = "sheet" }
board_energy = { value = "90 pJ/B", kind = "fitted", source = "fit" }
heat_limit = { value = "1 W/mm^2", kind = "assumption", source = "plate" }
price = { value = "9 dollar/GB", kind = "estimate", source = "survey" }
"""

MEASUREMENT = """
name = "constants"
title = "Constants"
[numbers]
share = { value = "0.9", kind = "assumption", source = "guess", range = ["0.8", "1"] }
floor = { value = "2.5 us", kind = "measured", source = "bench" }
density = { value = "0.09 W/mm^2", kind = "fitted", source = "fit" }
"""

MODEL = """
name = "tiny"
title = "A tiny model"
aliases = ["org/Tiny-MoE"]
hidden = 64
vocab = 1000
tied_embeddings = false
[published]
total_parameters = { value = "1.5e6", kind = "datasheet", source = "card" }
[blocks.full]
kind = "gqa"
heads = 8
kv_heads = 2
key_width = 16
value_width = 16
[blocks.linear]
kind = "kda"
heads = 4
value_heads = 4
key_width = 16
value_width = 16
[blocks.dense]
kind = "mlp"
inner = 256
[blocks.experts]
kind = "moe"
experts = 16
top_k = 4
inner = 32
shared_inner = 32
[[layers]]
group = [["full", "dense"]]
[[layers]]
repeat = 3
group = [["linear", "experts"], ["full", "experts"]]
[dtypes]
routed = "mxfp4"
shared = "bf16"
dense = "bf16"
attention = "bf16"
embedding = "bf16"
head = "bf16"
[drafts]
layers = 1
accepted_length = { value = [1.8, 2.4], kind = "measured", source = "bench" }
parameters = { value = "10000", kind = "estimate", source = "count" }
"""

REQUEST = """
name = "chat"
title = "Chat"
phase = "decode"
context = { value = "128Ki", kind = "assumption", source = "wish" }
output = { value = "1000", kind = "assumption", source = "wish" }
"""

CHIP = "arch/accelerators/chip.toml"

#: kind of file, its name, its text.
FILES = {
    "accelerator": (CHIP, ACCELERATOR),
    "system": ("arch/systems/rack.toml", SYSTEM),
    "memory": ("arch/memories/stacks.toml", MEMORY),
    "measurement": ("arch/measurements/constants.toml", MEASUREMENT),
    "model": ("workloads/models/tiny.toml", MODEL),
    "request": ("workloads/requests/chat.toml", REQUEST),
}


def write_catalog(root: Path) -> Path:
    """Write all of `FILES` below ``root``, and an empty ``optimize/``; returns ``root``."""
    for name, text in FILES.values():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "optimize").mkdir(exist_ok=True)
    return root


def edit(workspace: Workspace, kind: str, old: str, new: str) -> None:
    """Replace text in a file of the small catalog."""
    path = workspace.roots[0][1] / FILES[kind][0]
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def line_of(action: Callable[[], object]) -> str:
    """The one line with which an action is refused."""
    with pytest.raises(CodesignError) as caught:
        action()
    return one_line(caught.value)


def one_line(error: CodesignError) -> str:
    """The error's text, held to be one line of bearable length."""
    text = str(error)
    assert "\n" not in text
    assert len(text) < 600
    return text
