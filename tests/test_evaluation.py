"""`codesign.evaluate` as its users see it: the JSON contract, answers to what cannot be served, errors in one line."""

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from cases import decoded, load, mapping

import codesign
from codesign import catalog
from codesign.errors import CodesignError
from codesign.evaluation.case import Degrees, execution_of, load_case
from codesign.evaluation.choose import GAP, pareto, thinned
from codesign.evaluation.document import constants_file
from codesign.evaluation.solve import solve
from codesign.glossary import unknown
from codesign.lanes import FAMILIES, TENSOR_DTYPES
from codesign.mapping import take

K3: dict[str, Any] = {"arch": "gb200-nvl72", "model": "kimi-k3"}
LLAMA: dict[str, Any] = {"arch": "b200", "model": "llama3.1-70b"}

number, text, whole = (int, float), str, int
MAPPING: dict[str, Any] = {
    "chips": whole, "pp": whole, "tp": whole, "dp": whole, "ep": whole, "moe_tp": whole, "attention_split": text,
    "microbatches": whole, "chunk": type(None),
}  # fmt: skip
LANES = dict.fromkeys(("memory", "tensor", "vector", "scale_up", "scale_out"), number)

#: The contract: names and types of what a decode evaluation holds; `None` stands for whatever the key holds besides.
CONTRACT: dict[str, Any] = {
    "schema": text, "arch": text, "model": text, "phase": text, "feasible": bool, "limited_by": text, "margin": {},
    "request": {"context": number, "new": number, "batch": number, "drafts": whole},
    "mapping": MAPPING,
    "precision": {"routed": text, "attention": text, "kv": text},
    "machine": {
        "rates": {lane: number for lane in LANES if lane != "tensor"}
        | {"tensor.bf16": number, "tensor.fp8": number, "tensor.fp4": number},
        "energies": {lane: number for lane in LANES if lane != "tensor"}
        | {"tensor.bf16": number, "tensor.fp8": number, "tensor.fp4": number},
    },
    "execution": {
        "calibrated": bool, "constants": text, "ideal": bool, "p": {},
        **dict.fromkeys(("memory_efficiency", "launches"), dict.fromkeys(FAMILIES, number)),
        **dict.fromkeys(("tensor_efficiency", "rows_half", "expert_rows_half"), dict.fromkeys(TENSOR_DTYPES, number)),
        **dict.fromkeys(
            ("overlap", "setup", "all_reduce", "all_to_all", "outputs_half", "grouped", "group_ops", "stream_ops",
             "attention_tensor_efficiency", "vector_efficiency", "scale_up_efficiency", "scale_out_efficiency",
             "message_half", "message_least", "exchange", "exchange_half", "exchange_least"), number,
        ),
    },
    "rests_on": {},
    "metrics": {
        "tpot_s": number, "ttft_s": type(None), "pass_s": number, "accepted_tokens_per_pass": number,
        "tokens_per_s": number, "context_tokens_per_s": type(None), "tokens_per_s_per_chip": number,
        "tokens_per_s_per_user": number, "tokens_per_s_per_megawatt": number,
        "tokens_per_s_per_megawatt_drawn": number, "energy_per_token_j": number, "energy_per_query_j": number,
        "dollars_per_million_tokens": number, "board_power_w": number, "all_in_power_w": number,
        "provisioned_power_w": number, "throttled": bool, "memory_per_chip_bytes": number,
        "network_peak_bytes_per_s": number, "network_mean_bytes_per_s": number, "prefill_share": number,
    },
    "memory": dict.fromkeys(
        ("weights_bytes", "kv_bytes", "state_bytes", "buffer_bytes", "working_bytes", "slack_bytes", "capacity_bytes"),
        number,
    ),
    "operations": [
        {
            "name": text, "layers": whole, "stage": text, "dtype": (str, type(None)), "bound_by": text,
            "time_s": number, "lane_time_s": LANES, "hidden_s": number, "latency_s": number, "memory_bytes": number,
            "tensor_flop": number, "vector_op": number, "scale_up_bytes": number, "scale_out_bytes": number,
            "energy_j": number,
        }
    ],
    "counts": {
        "total_parameters": number, "active_parameters": number, "weight_bytes": number, "kv_bytes_per_token": number,
        "window_bytes_per_sequence": number, "state_bytes_per_sequence": number,
        "distinct_experts_per_layer": (*number, type(None)), "distinct_experts_per_rank_mean": (*number, type(None)),
        "distinct_experts_fullest_rank": (*number, type(None)), "routed_assignments_per_layer": (*number, type(None)),
    },
}  # fmt: skip


@lru_cache
def _evaluate(arguments: str) -> dict[str, Any]:
    return codesign.evaluate(**json.loads(arguments)).to_json()


def evaluate(**arguments: Any) -> dict[str, Any]:
    """The JSON of a request, evaluated once per process."""
    return _evaluate(json.dumps(arguments, sort_keys=True))


def conforms(found: Any, wanted: Any, path: str = "") -> None:
    """Every key of the contract is there with its type, all the way down."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), path
        assert set(wanted) <= set(found), (path, set(wanted) - set(found))
        for key, value in wanted.items():
            conforms(found[key], value, f"{path}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list) and found, path
        for item in found:
            conforms(item, wanted[0], path)
    else:
        assert isinstance(found, wanted), (path, found)
        assert wanted is bool or wanted is not number or not isinstance(found, bool), path


REQUESTS = [
    {**K3, "context": 131072, "tpot": 0.02}, {**K3, "context": 131072, "tpot": 1e-4},
    {**K3, "context": 8192, "tp": 8, "dp": 9, "ep": 72, "batch": 4, "drafts": 3}, {**K3, "context": 8192, "chips": 4},
    {**LLAMA, "context": 32768}, {**LLAMA, "context": 32768, "tp": 1, "pp": 1, "batch": 1000, "tpot": 0.01},
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS)
def test_contract(request_: dict[str, Any]) -> None:
    d = evaluate(**request_)
    conforms(d, CONTRACT)
    assert d["schema"] == "codesign.evaluation/1"
    assert json.loads(json.dumps(d, allow_nan=False)) == d
    m = d["mapping"]
    assert m["chips"] == m["pp"] * m["tp"] * m["dp"]
    assert m["ep"] * m["moe_tp"] == m["tp"] * m["dp"]
    memory = dict(d["memory"])
    capacity = memory.pop("capacity_bytes")
    assert sum(memory.values()) == pytest.approx(capacity)
    assert d["feasible"] or d["margin"]["nearest_mapping"] == m
    if d["feasible"]:
        assert memory["slack_bytes"] >= 0.05 * capacity * (1 - 1e-9)
        assert d["margin"]["memory_bytes"] >= 0
        assert d["metrics"]["tpot_s"] <= d["request"]["tpot_s"] if d["request"]["tpot_s"] else True
    used = sum(memory[k] for k in memory if k != "slack_bytes")
    assert d["metrics"]["memory_per_chip_bytes"] == pytest.approx(used)
    assert sum(d["binding"].values()) == pytest.approx(1.0)
    assert d["metrics"]["energy_per_query_j"] == pytest.approx(1000 * d["metrics"]["energy_per_token_j"])


def test_agrees_with_a_pass_that_was_not_compiled() -> None:
    d = evaluate(**REQUESTS[2])
    c = load_case("gb200-nvl72", "kimi-k3")
    found = decoded(c, mapping(c.model, tp=8, dp=9, ep=72), load(4.0, 8192.0, drafts=3.0))
    for name in ("tpot_s", "pass_s", "tokens_per_s", "board_power_w", "tokens_per_s_per_megawatt"):
        assert d["metrics"][name] == pytest.approx(float(getattr(found, name)), rel=1e-12)


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 16.0), (8, 120.3), (64, 613.2), (256, 887.1)])
def test_counts_of_kimi_k3(tokens: int, distinct: float) -> None:
    d = evaluate(**K3, context=8192, tp=8, dp=1, ep=8, batch=tokens)
    counts = d["counts"]
    assert counts["distinct_experts_per_layer"] == pytest.approx(distinct, abs=0.06)
    assert counts["distinct_experts_per_rank_mean"] == pytest.approx(distinct / 8, abs=0.01)
    assert counts["distinct_experts_per_rank_mean"] <= counts["distinct_experts_fullest_rank"] <= 112
    assert counts["routed_assignments_per_layer"] == tokens * 16
    assert counts["total_parameters"] == pytest.approx(2779.48e9, rel=1e-5)
    assert counts["active_parameters"] == pytest.approx(104.19e9, rel=1e-4)
    assert counts["weight_bytes"] == pytest.approx(1559.9e9, rel=1e-4)
    assert counts["kv_bytes_per_token"] == 13824
    assert counts["state_bytes_per_sequence"] == 449_372_160


def test_tokens_in_step_are_those_of_all_instances_and_drafts() -> None:
    d = evaluate(**REQUESTS[2])
    assert d["counts"]["routed_assignments_per_layer"] == 4 * (1 + 3) * 9 * 16
    assert d["request"]["new"] == 4
    assert d["metrics"]["accepted_tokens_per_pass"] == pytest.approx(2.87)
    dense = evaluate(**LLAMA, context=32768)["counts"]
    assert dense["distinct_experts_per_layer"] is None
    assert dense["kv_bytes_per_token"] == 163_840


# --- the best mapping


@pytest.mark.parametrize(("request_", "tpot"), [(LLAMA, 0.012), (LLAMA, None), (K3, 0.02), (K3, 0.04)])
def test_no_whole_batch_on_any_mapping_does_better(request_: dict[str, str], tpot: float | None) -> None:
    d = evaluate(**request_, context=65536, **({"tpot": tpot} if tpot else {}))
    c = load_case(request_["arch"], request_["model"])
    mappings = c.mappings(Degrees())
    n = len(np.asarray(mappings.pp))
    rng = np.random.default_rng(0)
    index, batch = rng.integers(0, n, 6000), np.floor(np.exp(rng.uniform(0, np.log(600), 6000)))
    index, batch = np.append(index, np.arange(n)), np.append(batch, np.full(n, d["request"]["batch"]))
    found = solve(c, take(mappings, index), load(1.0, 65536.0), np.inf, batch, batch).result
    memory = found.memory
    good = memory.fixed + batch * memory.per_sequence <= memory.capacity
    good &= found.tpot_s <= (tpot or np.inf)
    best = np.max(np.where(good, found.tokens_per_s_per_megawatt, 0.0))
    assert best <= d["metrics"]["tokens_per_s_per_megawatt"] * (1 + 1e-12)
    assert best > 0.5 * d["metrics"]["tokens_per_s_per_megawatt"]
    assert d["request"]["batch"] == int(d["request"]["batch"])


def test_one_sequence_more_would_be_too_many() -> None:
    for request_, tpot in ((LLAMA, 0.012), (K3, 0.02), (LLAMA, None)):
        d = evaluate(**request_, context=65536, **({"tpot": tpot} if tpot else {}))
        m = {k: d["mapping"][k] for k in ("pp", "tp", "dp", "ep", "attention_split", "microbatches")}
        target = {"tpot": tpot} if tpot else {}
        more = evaluate(**request_, context=65536, **m, **target, batch=d["request"]["batch"] + 1)
        assert not more["feasible"]
        wanted = "TPOT" if tpot else "memory capacity"
        assert d["limited_by"].endswith(f"batch by {wanted}")
        assert more["mapping"] == d["mapping"]


def test_given_degrees_are_kept() -> None:
    d = evaluate(**K3, context=8192, tp=4, dp=6, attention_split="context", microbatches=2, pp=2)
    m = d["mapping"]
    assert (m["tp"], m["dp"], m["pp"], m["chips"], m["microbatches"]) == (4, 6, 2, 48, 2)
    assert m["attention_split"] == "context"


def test_precision_flags() -> None:
    where = {"context": 8192, "tp": 8, "dp": 9, "ep": 72, "batch": 16, "attention_split": "heads"}
    base = evaluate(**K3, **where)
    narrow = evaluate(**K3, **where, weights="fp8", kv_dtype="bf16", attention_dtype="fp8")
    assert (narrow["precision"]["attention"], narrow["precision"]["kv"]) == ("fp8", "bf16")
    assert narrow["precision"]["routed"] == base["precision"]["routed"] == "mxfp4"
    assert narrow["counts"]["kv_bytes_per_token"] == 27648
    assert narrow["memory"]["kv_bytes"] == pytest.approx(2 * base["memory"]["kv_bytes"])
    rows = {r["name"]: r for r in narrow["operations"]}
    assert (rows["mla.scan"]["dtype"], rows["kda.qkv"]["dtype"]) == ("fp8", "fp8")
    one = evaluate(**K3, **where, weights="shared=fp8")
    assert base["memory"]["weights_bytes"] - one["memory"]["weights_bytes"] == pytest.approx(92 * 3 * 7168 * 6144 / 8)


def test_speed_of_light_is_faster() -> None:
    where = {"context": 8192, "tp": 8, "pp": 1, "batch": 16}
    real, perfect = evaluate(**LLAMA, **where), evaluate(**LLAMA, **where, ideal=True)
    assert perfect["metrics"]["tpot_s"] < real["metrics"]["tpot_s"]
    assert (real["execution"]["ideal"], perfect["execution"]["ideal"]) == (False, True)
    assert set(perfect["execution"]["p"].values()) == {None}


def test_constants_that_are_told_are_those_of_the_file_that_the_result_rests_on() -> None:
    # A chip that was served, a relative of it, one of the vendor's others, and a part that is no GPU.
    named = {"b200": "served-b200", "gb200-nvl72": "served-blackwell", "mi455x-helios": "served-amd"}
    for arch, name in (named | {"jalapeno": "served"}).items():
        d = evaluate(arch=arch, model="llama3.1-70b", context=8192, tp=8, pp=1, batch=4)
        told, numbers = d["execution"], catalog.load_measurement(name).si
        (file,) = [x for names in d["rests_on"].values() for x in names if x.startswith("measurement.")]
        assert file in d["rests_on"]["fitted"]
        assert file == f"measurement.{name}"
        for family in FAMILIES:
            assert told["memory_efficiency"][family] == numbers(f"memory_{family}")
            assert told["launches"][family] == (1.0 if arch == "jalapeno" else numbers(f"launches_{family}"))
        for single in ("outputs_half", "grouped", "message_least", "exchange", "overlap", "setup"):
            assert told[single] == numbers(single)
        assert told["expert_rows_half"]["fp8"] == numbers("expert_rows_half_fp8")
        assert told["message_half"] == numbers("message_half", "B")
        # Latencies of a part that is no GPU are those of its own file.
        for latency in ("all_reduce", "all_to_all"):
            assert told[latency] == (1.0 if arch == "jalapeno" else numbers(latency))
        assert unknown(f"execution.{key}" for key in told) == []
    perfect = evaluate(arch="b200", model="llama3.1-70b", context=8192, tp=8, pp=1, batch=4, ideal=True)
    assert not [x for names in perfect["rests_on"].values() for x in names if x.startswith("measurement.")]
    for system in catalog.list_catalog("arch"):
        if system.kind == "system":
            loaded = load_case(system.name, "llama3.1-70b")
            name = constants_file(loaded)
            assert name is not None
            assert execution_of(catalog.load_measurement(name)).memory == loaded.execution.memory, system.name


def test_a_change_of_the_machine_by_set() -> None:
    where = {"context": 8192, "tp": 8, "pp": 1, "batch": 16}
    base = evaluate(**LLAMA, **where)
    fast = evaluate(**LLAMA, **where, set=["accelerator.memory_bandwidth=15.4 TB/s"])
    for a, b in zip(base["operations"], fast["operations"], strict=True):
        assert b["lane_time_s"]["memory"] == a["lane_time_s"]["memory"] / 2
    assert fast["machine"]["rates"]["memory"] == 2 * base["machine"]["rates"]["memory"]


def test_a_chip_at_its_limit_of_power_says_so() -> None:
    # Of the 1,000 W of a B200 only 300 are left.
    d = evaluate(**LLAMA, context=8192, tp=8, pp=1, batch=64, ideal=True, set=["accelerator.power_limit=300 W"])
    free = evaluate(**LLAMA, context=8192, tp=8, pp=1, batch=64, ideal=True)
    m = d["metrics"]
    assert m["throttled"] and not free["metrics"]["throttled"]
    assert m["board_power_w"] == pytest.approx(300.0)
    joules = sum(row["energy_j"] for row in d["operations"])
    assert m["tpot_s"] == pytest.approx(joules / (300.0 - d["machine"]["energies"]["static_w"]))
    assert m["tpot_s"] == pytest.approx(m["pass_s"] * m["slowdown"])
    assert d["limited_by"].startswith("power limit")
    assert free["limited_by"].startswith("memory bandwidth")


# --- what cannot be served


def test_too_fast_a_target_is_answered() -> None:
    d = evaluate(**K3, context=131072, tpot=1e-4)
    assert not d["feasible"]
    margin = d["margin"]
    assert margin["least_tpot_s"] == pytest.approx(d["metrics"]["tpot_s"])
    assert margin["missing_s"] == pytest.approx(d["metrics"]["tpot_s"] - 1e-4)
    assert margin["nearest_mapping"] == d["mapping"]
    assert d["request"]["batch"] == 1
    # That much time is enough, and a little less is not.
    assert evaluate(**K3, context=131072, tpot=margin["least_tpot_s"] * (1 + 1e-9))["feasible"]
    assert not evaluate(**K3, context=131072, tpot=margin["least_tpot_s"] * (1 - 1e-6))["feasible"]


def test_too_large_a_model_is_answered() -> None:
    # 1,560 GB on four chips of 186 GB, 5 % of them kept free.
    d = evaluate(**K3, context=8192, chips=4)
    assert not d["feasible"]
    missing = d["margin"]["missing_bytes"]
    assert 1559.9e9 / 4 - 0.95 * 186e9 < missing < 1559.9e9 / 4 * 1.1 - 0.95 * 186e9
    assert d["margin"]["memory_bytes"] == pytest.approx(-missing)
    assert d["limited_by"].endswith("memory capacity")
    # With so many bytes more it would fit.
    capacity = 186e9 + missing / 0.95 * (1 + 1e-9)
    assert evaluate(**K3, context=8192, chips=4, set=[f"accelerator.memory_capacity={capacity / 1e9} GB"])["feasible"]


def test_a_batch_that_is_too_large_is_answered() -> None:
    d = evaluate(**LLAMA, context=32768, tp=8, pp=1, batch=100_000)
    assert not d["feasible"]
    # 5.4 GB of cache for each sequence, on eight chips.
    assert d["margin"]["missing_bytes"] == pytest.approx(100_000 * 32769 * 163840 / 8, rel=0.02)


def test_the_nearest_that_serves_on_other_chips() -> None:
    h100 = {"arch": "h100", "model": "kimi-k3", "context": 8192}
    d = evaluate(**h100, chips=8)
    near = d["margin"]["nearest"]
    assert not d["feasible"]
    assert near["relaxed"] == ["chips"]
    # 1,560 GB of weights in 95 % of 80 GB a chip: 21 chips at least.
    chips = near["mapping"]["chips"]
    assert chips * 0.95 * 80e9 > 1559.9e9
    found = evaluate(**h100, **_degrees(near["mapping"]), batch=near["batch"])
    assert found["feasible"]
    assert found["metrics"]["tpot_s"] == pytest.approx(near["tpot_s"])
    assert found["metrics"]["tokens_per_s_per_megawatt"] == pytest.approx(near["tokens_per_s_per_megawatt"])
    for fewer in (9, 16, 18):
        assert not evaluate(**h100, chips=fewer)["feasible"]


def _degrees(mapping: dict[str, Any]) -> dict[str, Any]:
    return {k: mapping[k] for k in ("pp", "tp", "dp", "ep", "attention_split", "microbatches")}


def test_the_nearest_that_serves_by_what_is_given_up() -> None:
    where = {"context": 32768, "tp": 8, "pp": 1, "dp": 1, "ep": 1}
    # A smaller batch on the mapping that was asked for: the largest that fits.
    near = evaluate(**LLAMA, **where, batch=100_000)["margin"]["nearest"]
    assert near["relaxed"] == ["batch"]
    fixed = LLAMA | {"context": 32768} | _degrees(near["mapping"])
    assert fixed.items() >= where.items()
    assert evaluate(**fixed, batch=near["batch"])["feasible"]
    assert not evaluate(**fixed, batch=near["batch"] + 1)["feasible"]
    # Another mapping on the same chips, where the target leaves only that.
    slow = evaluate(**LLAMA, context=32768, tp=1, pp=8, dp=1, tpot=0.01)
    near = slow["margin"]["nearest"]
    assert slow["margin"]["missing_s"] > 0.0
    assert near["relaxed"] == ["pp", "tp"]
    assert near["mapping"]["chips"] == 8
    assert near["tpot_s"] <= 0.01
    # The time, where nothing is as fast.
    near = evaluate(**LLAMA, context=32768, tpot=1e-5)["margin"]
    assert near["nearest"]["relaxed"] == ["tpot"]
    assert near["nearest"]["tpot_s"] == pytest.approx(near["least_tpot_s"])
    # 13,824 bytes of cache for each of a thousand million tokens are more than all chips hold.
    assert evaluate(**K3, context=1_000_000_000)["margin"]["nearest"] is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"context": None}, "--context: is missing: decode needs it"),
        ({"context": True}, "--context: True is not a number .*128Ki"),
        ({"context": [8192]}, r"--context: \[8192\] is not a number"),
        ({"context": "8 s"}, "--context: '8 s' has the wrong dimension"),
        ({"tpot": "20"}, "--tpot: '20' has no unit .*20 ms"),
        ({"context": 2e9}, "--context: 2e.09 tokens .*at most 1,000,000,000"),
        ({"batch": 1e30}, "--batch: 1e.30 sequences .*at most 10,000,000"),
        ({"chips": 8.5}, "--chips: '8.5' is not a whole number"),
        ({"tp": "eight"}, "--tp: 'eight' is not a whole number"),
        ({"weights": ""}, "--weights: is empty"),
        ({"kv_dtype": " "}, "--kv-dtype: is empty"),
        ({"phase": "prefill", "context": None, "new": 8192, "chunk": 0.5}, "--chunk: 0.5 tokens .*1 or more"),
        ({"phase": "serve", "context": None, "isl": 8192, "osl": 1}, "--osl: an answer of 1 tokens .*2 or more"),
        ({"phase": "serve", "context": None, "isl": 100, "osl": 9, "cached": 100}, "--cached: .*none is new"),
        ({"arch": "kimi-k3"}, "--arch: 'kimi-k3' is a model, not a system"),
        ({"model": "h200"}, "--model: 'h200' is a system, not a model"),
        ({"arch": "gb20-nvl72"}, "unknown system 'gb20-nvl72' .*gb200-nvl72"),
        ({"model": "kimi-k33"}, "unknown model 'kimi-k33' .*kimi-k3"),
        ({"phase": "decoding"}, "--phase: unknown phase 'decoding' .*decode"),
        ({"context": 0}, "--context: 0 is not a positive number"),
        ({"context": float("nan")}, "--context: nan"),
        ({"context": float("inf")}, "--context: inf"),
        ({"tpot": -0.01}, "--tpot: -0.01"),
        ({"batch": 0}, "--batch: 0 is not"),
        ({"drafts": 9}, "--drafts: 9 drafts .*0 to 8"),
        ({"drafts": -1}, "--drafts: -1 drafts"),
        ({"skew": -0.5}, "--skew: .*0 to 1.5"),
        ({"skew": float("nan")}, "--skew: .*nan"),
        ({"output": 0.0}, "--output: 0.0 tokens"),
        ({"weights": "fp7"}, "--weights: unknown dtype 'fp7'"),
        ({"weights": "routd=fp8"}, "--weights: unknown tensor class 'routd' .*routed"),
        ({"kv_dtype": "fp12"}, "--kv-dtype: unknown dtype 'fp12'"),
        ({"attention_dtype": "mxfp4"}, "--attention-dtype: no attention scan in 'mxfp4' .*bf16, fp8"),
        ({"attention_split": "rings"}, "--attention-split: unknown split 'rings' .*heads, context"),
        ({"tp": 0}, "--tp: tp 0 .*at least 1"),
        ({"microbatches": 0}, "--microbatches: microbatches 0"),
        ({"tp": 7}, "mapping: tp 7 does not divide the model's 96 heads"),
        ({"chips": 73}, "mapping: pp x tp x dp = 73 chips, the machine offers 72"),
        ({"ep": 5, "tp": 8, "dp": 2}, "mapping: ep 5 does not divide tp x dp = 16"),
        ({"set": ["accelerator.memory_bandwith=9 TB/s"]}, "memory_bandwith.*memory_bandwidth"),
        ({"set": ["accelerator.memory_bandwidth=9 TB"]}, "memory_bandwidth"),
        ({"set": ["accelerator.power_limit=100 W"]}, "static_power"),
        ({"set": ["system.provisioned_power=1 kW"]}, "provisioned_power: 1 kW is less than the chip_power 1200 W"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(CodesignError, match=words) as caught:
        codesign.evaluate(**({**K3, "context": 8192} | wrong))
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_contexts_beyond_the_model_are_warned_about() -> None:
    much, enough = (evaluate(**LLAMA, context=c, tp=8, pp=1, batch=1)["warnings"] for c in (131_073, 131_072))
    assert any("131,072 that llama3.1-70b supports" in words for words in much)
    assert not any("supports" in words for words in enough)


def test_aliases_name_the_same() -> None:
    a, b = evaluate(**K3, context=131072, tpot=0.02), evaluate(arch="nvl72", model="K3", context=131072, tpot=0.02)
    assert a == b


# --- the frontier


def test_pareto_against_all_pairs() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, 200).astype(float), rng.integers(0, 30, 200).astype(float)
    x[:5] = np.inf
    kept = pareto(x, y)
    beaten = [
        any((x[j] <= x[i] and y[j] > y[i]) or (x[j] < x[i] and y[j] >= y[i]) for j in range(200)) or np.isinf(x[i])
        for i in range(200)
    ]
    assert {(x[i], y[i]) for i in kept} == {(x[i], y[i]) for i in range(200) if not beaten[i]}
    assert len(kept) == len({(x[i], y[i]) for i in kept})
    assert np.all(np.diff(x[kept]) > 0)
    assert np.all(np.diff(y[kept]) > 0)


def test_frontier_is_pareto_and_spans_the_best() -> None:
    points = codesign.frontier(**LLAMA, context=65536)
    tpot = np.array([p.metrics["tpot_s"] for p in points])
    rate = np.array([p.metrics["tokens_per_s_per_megawatt"] for p in points])
    assert len(points) > 10
    assert np.all(np.diff(tpot) > 0)
    assert np.all(np.diff(rate) > 0)
    for p in (points[0], points[-1]):
        conforms(p.to_json(), CONTRACT)
        assert p.feasible
    # No evaluation with a target lies above it by more than a few per cent, and none below.
    for target in (0.012, *tpot[0] * np.array([1.2, 1.7, 3.0, 6.0])):
        best = evaluate(**LLAMA, context=65536, tpot=target)["metrics"]["tokens_per_s_per_megawatt"]
        assert 0.94 * best < rate[tpot <= target].max() <= best * (1 + 1e-9)
    # The fastest point is the least TPOT that the answer to an impossible request names.
    assert tpot[0] == pytest.approx(evaluate(**LLAMA, context=65536, tpot=1e-5)["margin"]["least_tpot_s"])


def test_nothing_on_the_frontier_where_nothing_fits() -> None:
    assert codesign.frontier(**LLAMA, context=65536, tpot=1e-5) == []


def test_the_frontier_ends_at_the_best_within_a_target() -> None:
    asked = {"arch": "jalapeno", "model": "kimi-k3", "context": 131072, "tpot": 0.02}
    points, best = codesign.frontier(**asked), evaluate(**asked)["metrics"]
    assert points[-1].metrics["tokens_per_s_per_megawatt"] == pytest.approx(best["tokens_per_s_per_megawatt"])
    assert all(point.metrics["tpot_s"] <= 0.02 for point in points)


def test_thinning_loses_no_more_than_the_gap() -> None:
    rate = np.cumsum(np.random.default_rng(0).exponential(1.0, 500)) + 1.0
    kept = thinned(rate)
    assert {kept[0], kept[-1]} == {0, 499}
    before = rate[kept[np.searchsorted(kept, np.arange(500), side="right") - 1]]
    assert np.all(rate <= before * (1 + GAP))
    assert len(kept) < 250
    assert list(thinned(np.array([3.0]))) == [0]


# --- texts, and prompts of which a part is cached


def test_texts_mean_what_they_mean_on_the_command_line() -> None:
    where = {"tp": 8, "pp": 1, "batch": 16}
    assert evaluate(**LLAMA, **where, context="8Ki", tpot="50 ms") == evaluate(
        **LLAMA, **where, context=8192, tpot=0.05
    )


def test_cached_tokens_are_part_of_the_prompt_in_serving() -> None:
    asked = {"arch": "b200", "model": "gpt-oss-120b", "phase": "serve", "isl": 8192, "osl": 1024, "tp": 8, "dp": 1}
    asked |= {"pp": 1, "ep": 8, "concurrency": 64, "chunk": 8192}
    whole, half = evaluate(**asked), evaluate(**asked, cached=4096)
    assert (half["request"]["context"], half["request"]["new"], half["request"]["isl"]) == (4096, 4096, 8192)
    # As long a sequence, so that the cache is the same, and half of the prompt's work.
    assert half["memory"]["kv_bytes"] == pytest.approx(whole["memory"]["kv_bytes"])
    assert half["metrics"]["ttft_s"] < whole["metrics"]["ttft_s"]
    assert half["metrics"]["tpot_s"] < whole["metrics"]["tpot_s"]


def test_points_of_a_serving_frontier_tell_their_requests_in_flight() -> None:
    points = codesign.frontier("b200", "gpt-oss-120b", "serve", isl=8192, osl=1024, tp=8, pp=1, dp=1, ep=8)
    assert len(points) > 5
    for point in points:
        request, m = point.to_json()["request"], point.mapping
        assert request["concurrency"] == pytest.approx(request["batch"] * m["dp"] * m["microbatches"])
