"""A pair that cannot be: what is missing, and the nearest that can, asked for again; slightly more cannot."""

from typing import Any

import pytest

import codesign
from codesign.mapping import INSTANCES

PAIR: dict[str, Any] = {"experts_on": "jalapeno", "model": "deepseek-v3", "context": 32768.0, "kv_dtype": "fp8"}


def asked(**given: Any) -> dict[str, Any]:
    return codesign.disaggregate("gb200-nvl72", **(PAIR | given))


def refused(**given: Any) -> dict[str, Any]:
    """The margin of an answer that says no."""
    found = asked(**given)
    assert not found["feasible"]
    assert found["margin"]["nearest_mapping"] == found["mapping"]
    return found["margin"]


def degrees(mapping: dict[str, Any]) -> dict[str, Any]:
    return {k: mapping[k] for k in ("chips", "tp", "expert_chips", "ep", "microbatches")}


def again(near: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The nearest point, asked for."""
    found = asked(**degrees(near["mapping"]) | {"batch": near["batch"]} | given)
    assert found["feasible"]
    assert found["metrics"]["tpot_s"] == pytest.approx(near["tpot_s"])
    assert found["metrics"]["tokens_per_s_per_megawatt"] == pytest.approx(near["tokens_per_s_per_megawatt"])
    return found


def test_too_fast_a_target() -> None:
    margin = refused(chips=16, tpot=1e-5)
    least = margin["least_tpot_s"]
    assert margin["missing_s"] == pytest.approx(least - 1e-5)
    assert margin["memory_bytes"] >= 0.0
    assert "missing_bytes" not in margin
    assert margin["nearest"]["relaxed"] == ["tpot"]
    assert margin["nearest"]["tpot_s"] == pytest.approx(least)
    assert margin["nearest"]["ttft_s"] is None
    # That much time is enough, and a little less is not.
    assert asked(chips=16, tpot=least * (1 + 1e-9))["feasible"]
    assert not asked(chips=16, tpot=least * (1 - 1e-6))["feasible"]
    again(margin["nearest"], tpot=least * (1 + 1e-9))


def test_memory_that_is_missing_is_enough_once_it_is_there() -> None:
    # 671 GB in FP8, most of them experts, on two chips of 186 GB, 5 % of which stay free.
    both = {"experts_on": "gb200-nvl72", "chips": 8, "expert_chips": 2, "batch": 1.0}
    margin = refused(**both)
    missing = margin["missing_bytes"]
    assert 640e9 / 2 - 0.95 * 186e9 < missing < 680e9 / 2 - 0.95 * 186e9
    assert margin["memory_bytes"] == -missing
    assert (margin["max_chips"], margin["max_expert_chips"]) == (72, 72)
    for share, fits in ((1 + 1e-9, True), (1 - 1e-6, False)):
        capacity = 186e9 + missing / 0.95 * share
        found = asked(**both, set=[f"accelerator.memory_capacity={capacity / 1e9!r} GB"])
        assert found["feasible"] is fits


def test_expert_chips_are_given_up_for_the_nearest_number_that_holds_them() -> None:
    near = refused(chips=16, expert_chips=1)["nearest"]
    assert near["relaxed"] == ["expert_chips"]
    assert near["mapping"]["chips"] == 16
    few = near["mapping"]["expert_chips"]
    again(near)
    for fewer in (n for n in INSTANCES if n < few):
        assert not asked(chips=16, expert_chips=fewer)["feasible"]


def test_the_batch_is_given_up_for_the_largest_that_serves() -> None:
    where = {"chips": 16, "tp": 2, "expert_chips": 16, "ep": 16, "microbatches": 2}
    near = refused(**where, batch=100_000)["nearest"]
    assert near["relaxed"] == ["batch"]
    assert degrees(near["mapping"]) == where
    again(near)
    assert not asked(**where, batch=near["batch"] + 1)["feasible"]
    # And within a target, which stops it earlier.
    slower = refused(**where, batch=100_000, tpot=0.02)["nearest"]
    assert slower["relaxed"] == ["batch"]
    assert slower["batch"] < near["batch"]
    again(slower, tpot=0.02)
    assert not asked(**where, batch=slower["batch"] + 1, tpot=0.02)["feasible"]
    # One sequence more is had on other degrees of the same chips, which are given up before the batch.
    other = refused(**where, batch=near["batch"] + 1)["nearest"]
    assert other["batch"] == near["batch"] + 1
    assert set(other["relaxed"]) <= {"tp", "ep", "microbatches"}
    again(other)


def test_degrees_are_given_up_before_anything_else() -> None:
    where = {"chips": 16, "expert_chips": 16}
    goal = asked(**where, tpot=1e-5)["margin"]["least_tpot_s"] * 1.01
    near = refused(**where, tp=1, microbatches=4, tpot=goal)["nearest"]
    assert set(near["relaxed"]) <= {"tp", "microbatches"}
    assert "microbatches" in near["relaxed"]
    assert (near["mapping"]["chips"], near["mapping"]["expert_chips"]) == (16, 16)
    assert near["tpot_s"] <= goal
    again(near, tpot=goal)
    assert not asked(**degrees(near["mapping"]), batch=near["batch"] + 1, tpot=goal)["feasible"]
    # It is the best of all on those chips.
    best = asked(**where, tpot=goal)["metrics"]["tokens_per_s_per_megawatt"]
    assert near["tokens_per_s_per_megawatt"] == pytest.approx(best)


def test_batch_and_target_are_given_up_where_neither_can_be_had() -> None:
    near = refused(chips=16, tp=8, expert_chips=16, ep=16, microbatches=1, batch=1e6, tpot=1e-5)["nearest"]
    assert near["relaxed"] == ["batch", "tpot"]
    assert near["batch"] == 1.0
    again(near)


def test_a_batch_that_is_given_is_kept_where_only_the_target_must_go() -> None:
    near = refused(chips=16, batch=8, tpot=1e-5)["nearest"]
    assert near["relaxed"] == ["tpot"]
    assert near["batch"] == 8.0
    found = again(near, tpot=near["tpot_s"] * (1 + 1e-9))
    assert not asked(chips=16, batch=8, tpot=near["tpot_s"] * (1 - 1e-6))["feasible"]
    assert found["request"]["batch"] == 8.0


def test_where_nothing_holds_a_single_sequence_nothing_is_near() -> None:
    # 61 layers x 576 bytes for each of a thousand million tokens: 35 TB for one sequence.
    margin = refused(context=1e9, chips=16)
    assert margin["nearest"] is None
    assert margin["missing_bytes"] > 0.0


def test_the_tried_one_lacks_nothing_that_it_need_not() -> None:
    # The batch is too large for the attention pool; the experts that are shown beside it fit.
    found = asked(chips=16, batch=1e5)
    memory = found["memory"]
    assert memory["attention"]["total"] > memory["attention"]["capacity"]
    assert memory["experts"]["total"] <= memory["experts"]["capacity"]


def test_warnings_name_the_system_that_they_are_of() -> None:
    told = asked(chips=16, context=2e5)["warnings"]
    assert any(line.startswith("a context of 200,000 tokens is more than") for line in told)
    assert any(line.startswith("jalapeno: kernel constants") for line in told)
    hypothetical = asked(experts_on="jalapeno-super-3d-ram", chips=16)["warnings"]
    assert any(line.startswith("jalapeno-super-3d-ram is hypothetical") for line in hypothetical)
