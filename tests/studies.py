"""Studies that the tests run, and what their runs must leave."""

from pathlib import Path

STUDY = """
name = "tiny"
title = "A tiny study"
question = "Which mix?"
model = "gpt-oss-120b"
targets = ["20 ms", "0.2 ms"]
contexts = ["8Ki", "32Ki"]
technologies = ["hbm4"]
machines = ["b200"]
max_chips = 8
checks = false
[[precisions]]
name = "published"
[search]
starts = 1
kept = 2
steps = 2
"""

#: Files that must come out the same, whatever happened on the way.
RESULTS = ("summary.json", "results.parquet")

#: A study that says everything that can be said.
FULL = """
name = "full"
title = "Everything"
question = "Which mix?"
note = "All keys."
model = "gpt-oss-120b"
phase = "decode"
targets = ["20 ms", "0.01 s"]
contexts = ["8Ki", 32768]
technologies = ["hbm4", "super-3d-ram"]
machines = ["b200", "jalapeno"]
drafts = 0
skew = 0.5
max_chips = 8
seed = 3
checks = false
[[precisions]]
name = "published"
[[precisions]]
name = "fp8"
weights = "fp8"
kv = "fp8"
attention = "bf16"
[variables.memory_bandwidth]
lowest = "2 TB/s"
highest = "12 TB/s"
[package]
die_area = "800 mm^2"
power = "650 W"
[search]
starts = 2
kept = 4
steps = 8
[sensitivity]
context = "8Ki"
targets = ["20 ms"]
"""


def same(one: Path, other: Path) -> None:
    """Both runs left the same results, byte for byte."""
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
