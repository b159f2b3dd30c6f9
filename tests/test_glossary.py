"""The glossary holds each name once, and every name that results carry."""

import dataclasses
from collections import Counter

import pytest
from summaries import LAYERS, MACHINE, make_summary

from codesign.glossary import ENTRIES, PREFIXES, describe, unknown
from codesign.lanes import LANES
from codesign.machine import Machine
from codesign.objective.metrics import Metrics
from codesign.study.results import rows

# The JSON of `evaluate` as the design lists it.
METRICS = [
    "tpot_s",
    "ttft_s",
    "pass_s",
    "accepted_tokens_per_pass",
    "tokens_per_s",
    "context_tokens_per_s",
    "tokens_per_s_per_chip",
    "tokens_per_s_per_user",
    "tokens_per_s_per_megawatt",
    "tokens_per_s_per_megawatt_drawn",
    "energy_per_token_j",
    "energy_per_query_j",
    "dollars_per_million_tokens",
    "board_power_w",
    "all_in_power_w",
    "provisioned_power_w",
    "throttled",
    "memory_per_chip_bytes",
    "network_peak_bytes_per_s",
    "network_mean_bytes_per_s",
    "prefill_share",
]
MEMORY = ["weights_bytes", "kv_bytes", "state_bytes", "buffer_bytes", "working_bytes", "slack_bytes", "capacity_bytes"]
OPERATIONS = [
    "name",
    "layers",
    "stage",
    "dtype",
    "bound_by",
    "time_s",
    "lane_time_s",
    "hidden_s",
    "latency_s",
    "memory_bytes",
    "tensor_flop",
    "vector_op",
    "scale_up_bytes",
    "scale_out_bytes",
    "energy_j",
]
COUNTS = [
    "total_parameters",
    "active_parameters",
    "weight_bytes",
    "kv_bytes_per_token",
    "window_bytes_per_sequence",
    "state_bytes_per_sequence",
    "distinct_experts_per_layer",
    "distinct_experts_per_rank_mean",
    "distinct_experts_fullest_rank",
    "routed_assignments_per_layer",
]
MAPPING = ["chips", "pp", "tp", "dp", "ep", "moe_tp", "attention_split", "microbatches", "chunk"]
TOP = [
    "schema",
    "arch",
    "model",
    "phase",
    "feasible",
    "limited_by",
    "margin",
    "request",
    "mapping",
    "precision",
    "machine",
    "execution",
    "metrics",
    "memory",
    "operations",
    "counts",
]
SECTIONS = {"metrics": METRICS, "memory": MEMORY, "counts": COUNTS, "mapping": MAPPING}


def test_each_name_stands_once_with_unit_and_meaning():
    assert [name for name, n in Counter(e.name for e in ENTRIES).items() if n > 1] == []
    for e in ENTRIES:
        assert e.unit, e.name
        assert e.meaning.endswith("."), e.name
        assert len(e.meaning) > 12, e.name


def test_the_contract_of_evaluate_is_described():
    for names in (METRICS, MEMORY, OPERATIONS, COUNTS, MAPPING):
        assert unknown(names) == []
    assert unknown(f"{section}.{name}" for section, names in SECTIONS.items() for name in names) == []
    assert [k for k in TOP if describe(k) is None and k not in PREFIXES and k != "operations"] == []


def test_every_field_of_a_machine_is_described():
    assert unknown(f.name for f in dataclasses.fields(Machine)) == []


def test_metrics_of_the_model_are_described_under_their_contract_names():
    # Some fields are renamed on their way into the JSON, and memory is a table of its own.
    renamed = {"time_s": None, "pace_s": None,
               "accepted": "accepted_tokens_per_pass", "network_peak": "network_peak_bytes_per_s",
               "network_mean": "network_mean_bytes_per_s", "memory": None}  # fmt: skip
    names = [renamed.get(name, name) for name in Metrics._fields]
    assert unknown(n for n in names if n) == []


def test_keys_of_a_summary_are_described():
    summary = make_summary()
    design = next(d for p in summary["problems"] for d in p["designs"] if d["feasible"])
    machine = summary["problems"][1]["machines"][0]
    skipped = {"request", "metrics", "memory", "machine", "operations", "interval"}
    assert unknown(k for k in design if k not in skipped) == []
    assert unknown(k for k in machine if k not in skipped) == []
    assert unknown(f"budget_use.{b}" for b in design["budget_use"]) == []
    assert unknown(f"rounded.metrics.{m}" for m in design["rounded"]["metrics"]) == []
    assert unknown(f"lane_time_s.{lane}" for lane in LANES) == []
    assert LAYERS
    assert MACHINE


def test_every_column_of_the_results_is_described():
    problems = make_summary()["problems"]
    columns = {column for row in rows(problems) for column in row}
    assert {"id", "what", "tpot_s", "tokens_per_s_per_megawatt", "dp", "memory_bandwidth", "kkt_residual"} <= columns
    assert unknown(columns) == []


@pytest.mark.parametrize("name", ["nonsense", "metrics.nonsense", "tpot_s.nonsense", ""])
def test_what_is_not_there_is_not_described(name):
    assert describe(name) is None
