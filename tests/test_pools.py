"""Attention and experts on two parts: the colocated pass as a limit, ping-pong by simulation, the link by hand."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import pytest
from cases import case, changed, decoded, load, mapping

import codesign
from codesign.errors import CodesignError
from codesign.evaluation.case import load_case
from codesign.mapping import stack, take
from codesign.objective.compiled import leaves
from codesign.objective.pools import Link, Pair, Pool, decode_pair, halves, link_between, room

FREE = Link(float("inf"), float("inf"), 0.0)


def pair(
    of, what, link=None, *, there=None, tp: int = 1, dp: int = 16, chips: int = 16, ep: int = 16, tp_there: int = 1,
    micro: int = 1, machine=None, machine_there=None,
) -> Pair:  # fmt: skip
    """A pair of pools, point by point; uniform routing stays known."""
    there = there or of
    first, second = halves(of.model)
    here = Pool(machine or of.machine, of.execution, take(stack(first, [(1, tp, dp, 1, 0.0, micro)]), 0))
    other = take(stack(second, [(1, tp_there, chips // tp_there, ep, 0.0, 1)]), 0)
    numbers: Any = leaves(
        (here, Pool(machine_there or there.machine, there.execution, other), of.precision, what, link)
    )
    numbers = eqx.tree_at(lambda x: x[3].skew, numbers, 0.0)
    return decode_pair(of.model, *numbers)


@pytest.mark.parametrize(("arch", "model"), [("gb200-nvl72", "kimi-k3"), ("h200", "deepseek-v3"), ("b300", "glm-5")])
@pytest.mark.parametrize("tp", [1, 4])
def test_one_part_without_a_link_is_the_colocated_pass(arch: str, model: str, tp: int) -> None:
    c = case(arch, model)
    dp = 64 // tp
    whole = decoded(c, mapping(c.model, tp=tp, dp=dp, ep=64), load(8.0, 16384.0))
    split = pair(c, load(8.0, 16384.0), FREE, tp=tp, dp=dp, chips=64, ep=64, tp_there=tp)
    assert float(split.pass_s) == pytest.approx(float(whole.pass_s), rel=1e-12)
    assert float(split.tpot_s) == pytest.approx(float(whole.tpot_s), rel=1e-12)
    assert float(split.tokens_per_s) == pytest.approx(float(whole.tokens_per_s), rel=1e-12)
    # Twice the chips for the same tokens.
    assert float(split.tokens_per_s_per_megawatt) == pytest.approx(float(whole.tokens_per_s_per_megawatt) / 2)
    # What the two parts keep is what one kept: weights apart, caches in the attention pool alone.
    a, e = split.attention_memory, split.expert_memory
    assert float(a.weights + e.weights) == pytest.approx(float(whole.memory.weights), rel=1e-12)
    assert float(a.kv) == pytest.approx(float(whole.memory.kv))
    assert float(e.kv + e.state) == 0.0
    # Joules: what both spend above their static power is what one chip did, and the bytes on the link.
    dynamic = (float(x) - float(c.machine.static_power) for x in (split.attention_board_w, split.expert_board_w))
    assert sum(dynamic) - float(split.link_w) / 64 == pytest.approx(
        float(whole.board_power_w) - float(c.machine.static_power), rel=1e-9
    )


def test_halves_hold_every_block_once() -> None:
    model = case("gb200-nvl72", "kimi-k3").model
    first, second = halves(model)
    counts = dict(zip((n for n, _ in model.blocks), model.block_counts(), strict=True))
    parts = {n: k for half in (first, second) for (n, _), k in zip(half.blocks, half.block_counts(), strict=True)}
    assert parts == counts
    total = [x.counts().total_parameters for x in (first, second)]
    assert sum(total) == pytest.approx(model.counts().total_parameters + model.hidden)


@lru_cache
def ping_pong(attention: float, experts: float, out: float, back: float, micro: int, layers: int = 200) -> float:
    """Seconds of a pass in a long simulated run: pools and each way of the link serve one micro-batch at a time."""
    free: dict[str, float] = dict.fromkeys(("attention", "out", "experts", "back"), 0.0)
    ready, half = [0.0] * micro, 0.0
    stages = (("attention", attention), ("out", out), ("experts", experts), ("back", back))
    for layer in range(layers):
        for i in range(micro):
            for name, takes in stages:
                start = max(free[name], ready[i])
                free[name] = ready[i] = start + takes
        if layer == layers // 2:
            half = max(ready)
    return (max(ready) - half) / (layers - 1 - layers // 2)


@pytest.mark.parametrize("micro", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "times", [(1.0, 1.0, 0.1, 0.1), (1.0, 0.5, 0.2, 0.3), (0.3, 1.0, 0.6, 0.1), (0.2, 0.3, 1.0, 0.9)]
)
def test_ping_pong_takes_what_a_simulated_one_does(times: tuple[float, ...], micro: int) -> None:
    attention, experts, out, back = times
    want = max(attention + experts + out + back, micro * max(times))
    assert ping_pong(*times, micro) == pytest.approx(want, rel=1e-9)
    # And so does the model: a pair whose link is set to take such shares of its pools' times.
    c = case("gb200-nvl72", "kimi-k3")
    base = pair(c, load(16.0, 32768.0), FREE)
    crossings = sum(halves(c.model)[1].block_counts())
    way = out * float(base.attention_s)
    found = pair(c, load(16.0, 32768.0), Link(float("inf"), float("inf"), way / crossings), micro=micro)
    busy = (float(base.attention_s), float(base.expert_s))
    assert float(found.tpot_s) == pytest.approx(max(sum(busy) + 2 * way, micro * max(busy)), rel=1e-9)
    assert float(found.exposed_s) == pytest.approx(float(found.tpot_s) - micro * max(busy), abs=1e-12)


def test_a_layer_with_two_feed_forward_blocks_crosses_once(tmp_path: Path) -> None:
    """Gemma 4 has a dense block and a mixture in each of 30 layers of 2,816: out and back once, in BF16."""
    config = Path(__file__).parent / "data/hf-configs/google--gemma-4-26B-A4B_config.json"
    codesign.import_model(config, "gemma-4", workspace=tmp_path)
    c = load_case("h200", "gemma-4", workspace=tmp_path)
    found = pair(c, load(4.0, 8192.0), FREE, dp=8, chips=8, ep=8, micro=2)
    assert float(found.link_bytes_per_token) == pytest.approx(30 * 2816 * (2 + 2))


def test_the_link_by_hand() -> None:
    c = case("gb200-nvl72", "kimi-k3", use_ideal=True)
    slow, fast = 1e10, 4e10
    micro, tokens = 2, 16.0 * 16
    found = pair(c, load(16.0, 32768.0), Link(slow, fast, 2e-6), micro=micro, chips=8, ep=8)
    layers, width, bytes_ = sum(halves(c.model)[1].block_counts()), c.model.hidden, c.precision.bytes
    # 16 attention chips at 10 GB/s are slower than 8 expert chips at 40.
    for seconds, kind in ((found.out_s, "dispatch"), (found.back_s, "combine")):
        assert float(seconds) == pytest.approx(layers * (tokens * width * bytes_[kind] / (16 * slow) + 2e-6))
    both = layers * width * (bytes_["dispatch"] + bytes_["combine"])
    assert float(found.link_bytes_per_token) == pytest.approx(both)
    # Each byte is paid once, by the sender.
    watts = micro * tokens * both * float(c.machine.scale_out_energy) / float(found.tpot_s)
    assert float(found.link_w) == pytest.approx(watts, rel=1e-9)
    power = 24 * float(c.machine.provisioned_power)
    assert float(found.tokens_per_s) == pytest.approx(micro * tokens / float(found.tpot_s))
    assert float(found.tokens_per_s_per_megawatt) == pytest.approx(float(found.tokens_per_s) / power * 1e6)
    default = link_between(c.machine, case("jalapeno", "kimi-k3").machine)
    assert float(default.latency) == pytest.approx(float(c.machine.scale_out_hop) + float(c.machine.launch))


def test_micro_batches_hide_the_link_and_balance_the_pools() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    rates = [float(pair(c, load(16.0, 32768.0), micro=m).tokens_per_s) for m in (1, 2, 3)]
    assert rates[0] < rates[1] <= rates[2] * (1 + 1e-12)
    two = pair(c, load(16.0, 32768.0), micro=2)
    assert float(two.exposed_s) >= 0.0
    assert max(float(two.attention_busy), float(two.expert_busy)) <= 1.0 + 1e-12
    assert float(two.balance) == pytest.approx(float(two.expert_s / two.attention_s))
    # Fewer expert chips are each busier, and hold more.
    few = pair(c, load(16.0, 32768.0), micro=2, chips=8, ep=8)
    assert float(few.expert_s) > float(two.expert_s)
    assert float(few.expert_memory.weights) > 1.7 * float(two.expert_memory.weights)
    assert float(room(few)) < float(room(two))


def test_a_pool_within_its_power_slows_both() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    free = pair(c, load(16.0, 32768.0), micro=2)
    limit = float(c.machine.static_power) + 0.5 * (float(free.expert_board_w) - float(c.machine.static_power))
    held = pair(c, load(16.0, 32768.0), micro=2, machine_there=changed(c.machine, power_limit=limit))
    assert float(held.expert_board_w) == pytest.approx(limit)
    assert float(held.tpot_s) == pytest.approx(2 * float(free.tpot_s))


@pytest.mark.parametrize("name", ["attention_bandwidth", "expert_bandwidth", "latency"])
def test_the_pair_is_continuous_in_its_link(name: str) -> None:
    c = case("gb200-nvl72", "kimi-k3")
    link = Link(5e10, 5e10, 5e-6)
    for factor in (0.01, 0.3, 1.0, 30.0):
        a, b = (
            float(
                pair(c, load(16.0, 32768.0), replace(link, **{name: getattr(link, name) * factor * x}), micro=2).tpot_s
            )
            for x in (1.0, 1.0 + 1e-9)
        )
        assert b == pytest.approx(a, rel=1e-8)


def test_the_api_finds_a_pair_and_refuses_what_is_none() -> None:
    found = codesign.disaggregate(
        "gb200-nvl72", "jalapeno", "deepseek-v3", 32768.0, tpot=0.03, chips=16, kv_dtype="fp8"
    )
    assert found["schema"] == "codesign.pair/1"
    assert found["feasible"]
    assert found["metrics"]["tpot_s"] <= 0.03
    assert found["margin"]["memory_bytes"] >= 0.0
    m = found["mapping"]
    again = codesign.disaggregate(
        "gb200-nvl72", "jalapeno", "deepseek-v3", 32768.0, tpot=0.03, chips=16, kv_dtype="fp8", tp=m["tp"],
        expert_chips=m["expert_chips"], ep=m["ep"], microbatches=m["microbatches"], batch=found["request"]["batch"],
        output=5000.0,
    )  # fmt: skip
    np.testing.assert_allclose(again["metrics"]["tokens_per_s"], found["metrics"]["tokens_per_s"], rtol=1e-9)
    # What the pair draws in all over what it answers: joules per token; 1,000 tokens a query, or as many as are said.
    a, b = found["metrics"], again["metrics"]
    np.testing.assert_allclose(a["energy_per_token_j"] * a["tokens_per_s_per_megawatt_drawn"], 1e6)
    np.testing.assert_allclose(a["energy_per_query_j"], 1000.0 * a["energy_per_token_j"])
    np.testing.assert_allclose(b["energy_per_query_j"], 5000.0 * a["energy_per_token_j"])
    assert (found["request"]["output"], again["request"]["output"]) == (1000.0, 5000.0)
    few = codesign.disaggregate("gb200-nvl72", "jalapeno", "deepseek-v3", 32768.0, tpot=1e-5, chips=16, expert_chips=16)
    assert not few["feasible"]
    assert few["margin"]["tpot_s"] < 0.0
    # A rack of LPUs holds 128 GB in all: no room for DeepSeek's experts.
    small = codesign.disaggregate("gb200-nvl72", "groq-lpx", "deepseek-v3", 32768.0, chips=16, batch=1.0)
    assert not small["feasible"]
    assert small["margin"]["memory_bytes"] < 0.0
    bad: Any = (
        ({"expert_chips": 129}, "1 to 128"), ({"chips": 1000}, "--chips"), ({"chips": 16, "tp": 3}, "--tp"),
        ({"copies": -1.0}, "--copies"), ({"link_latency": -1.0}, "link_latency"),
        ({"output": 0.0}, "--output"),
    )  # fmt: skip
    for given, words in bad:
        with pytest.raises(CodesignError, match=words):
            codesign.disaggregate("gb200-nvl72", "jalapeno", "deepseek-v3", 32768.0, **given)
