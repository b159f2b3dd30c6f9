"""Work becomes time in one place: every figure of the JSON follows from the others, and rates scale as they must."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import LATENCIES, RATES, ROUND, case, changed, decoded, document, load, machine, mapping
from hypothesis import given
from hypothesis import strategies as st

from codesign.evaluation.case import Case
from codesign.execution import NAMES, Execution, execution_from, ideal, software_setup, time_of, time_rows
from codesign.lanes import FAMILIES, LANES, Row

#: Cases that use every lane between them: (system, model, degrees, batch, context, drafts).
POINTS: dict[str, tuple[str, str, dict[str, Any], float, float, float]] = {
    "k3": ("gb200-nvl72", "kimi-k3", {"tp": 8, "dp": 9, "ep": 72}, 24.0, 131072.0, 3.0),
    "v3": ("h200", "deepseek-v3", {"pp": 2, "tp": 2, "dp": 8, "ep": 16}, 16.0, 8192.0, 1.0),
    "oss": ("jalapeno", "gpt-oss-120b", {"tp": 4, "ep": 4}, 7.5, 30000.0, 0.0),
    "llama": ("h100", "llama3.1-70b", {"tp": 8}, 64.0, 4096.0, 0.0),
}
CASES = [(name, perfect) for name in POINTS for perfect in (False, True)]


def point(name: str, perfect: bool = False) -> tuple[Case, Any, Any]:
    arch, model, degrees, batch, context, drafts = POINTS[name]
    c = case(arch, model, perfect)
    return c, mapping(c.model, **degrees), load(batch, context, drafts)


@pytest.fixture(scope="module")
def told() -> dict[tuple[str, bool], dict[str, Any]]:
    return {key: document(*point(*key)) for key in CASES}


def peak(d: dict[str, Any], row: dict[str, Any], lane: str) -> float:
    return d["machine"]["rates"][f"tensor.{row['dtype'] or 'bf16'}" if lane == "tensor" else lane]


WORK = {"memory": "memory_bytes", "tensor": "tensor_flop", "vector": "vector_op", "scale_up": "scale_up_bytes",
        "scale_out": "scale_out_bytes"}  # fmt: skip


@pytest.mark.parametrize("key", CASES)
def test_lane_times_follow_from_work_and_rates(told, key) -> None:
    d = told[key]
    for row in d["operations"]:
        for lane, column in WORK.items():
            want = row[column] / (peak(d, row, lane) * row["efficiency"][lane])
            assert row["lane_time_s"][lane] == pytest.approx(want, rel=1e-12), (row["name"], lane)


@pytest.mark.parametrize("key", CASES)
def test_times_follow_from_lane_times(told, key) -> None:
    d = told[key]
    for row in d["operations"]:
        lanes = np.array(list(row["lane_time_s"].values()))
        p = d["execution"]["p"][row["family"]]
        slowest = lanes.max() if key[1] else np.linalg.norm(lanes, p)
        assert row["time_s"] == pytest.approx(slowest + row["latency_s"], rel=1e-12), row["name"]
        assert 0.0 <= row["hidden_s"] <= row["time_s"] * (1 + 1e-12)
        waits = row["lane_time_s"] | {"latency": row["latency_s"]}
        assert waits[row["bound_by"]] == max(waits.values())


@pytest.mark.parametrize("key", CASES)
def test_pass_follows_from_operations(told, key) -> None:
    d = told[key]
    rows, metrics = d["operations"], d["metrics"]
    spent = sum(row["time_s"] - row["hidden_s"] for row in rows)
    assert spent == pytest.approx(metrics["pass_s"], rel=1e-12)
    sent = {row["name"]: row["scale_up_bytes"] + row["scale_out_bytes"] for row in rows}
    assert metrics["network_mean_bytes_per_s"] == pytest.approx(sum(sent.values()) / metrics["pass_s"], rel=1e-12)
    fastest = max(sent[row["name"]] / row["time_s"] for row in rows)
    assert metrics["network_peak_bytes_per_s"] == pytest.approx(fastest, rel=1e-12)


@pytest.mark.parametrize("key", CASES)
def test_energy_follows_from_work(told, key) -> None:
    d = told[key]
    energies = d["machine"]["energies"]
    for row in d["operations"]:
        work = {lane: row["mean_share"] * row[column] for lane, column in WORK.items()}
        work["memory"] = row["mean_memory_bytes"]
        joules = sum(
            amount * energies[f"tensor.{row['dtype'] or 'bf16'}" if lane == "tensor" else lane]
            for lane, amount in work.items()
        )
        assert row["energy_j"] == pytest.approx(joules, rel=1e-12), row["name"]
        # Rows of the fullest expert rank are paid by the mean one; all others are alike on every chip.
        if row["name"].split(".")[-1] not in ("sort", "experts", "dispatch", "combine"):
            assert row["mean_share"] == 1.0 and row["mean_memory_bytes"] == row["memory_bytes"]
        assert row["mean_memory_bytes"] <= row["memory_bytes"] * (1 + 1e-12)


def test_every_lane_is_used_somewhere(told) -> None:
    for lane in LANES:
        assert any(row["lane_time_s"][lane] > 0 for d in told.values() for row in d["operations"]), lane
    assert {row["dtype"] for d in told.values() for row in d["operations"]} >= {"bf16", "fp8", None}


def test_speed_of_light_spares_efficiencies_and_setups_alone(told) -> None:
    for name in POINTS:
        real, perfect = told[name, False], told[name, True]
        assert perfect["execution"]["ideal"] and not real["execution"]["ideal"]
        for a, b in zip(real["operations"], perfect["operations"], strict=True):
            assert a["name"] == b["name"]
            assert set(b["efficiency"].values()) == {1.0}
            assert b["time_s"] <= a["time_s"]
            assert b["latency_s"] <= a["latency_s"]
            for column in WORK.values():
                assert a[column] == b[column]
    # Llama on eight H100: of an all-reduce's latency only its two hops are left.
    c, *_ = point("llama")
    row = next(r for r in told["llama", True]["operations"] if r["name"] == "full.all_reduce")
    assert row["latency_s"] == pytest.approx(80 * 2 * float(c.machine.scale_up_hop))


def test_twice_the_bandwidth_halves_every_memory_time_to_the_last_bit(told) -> None:
    for name in POINTS:
        c, where, what = point(name)
        fast = changed(c.machine, memory_bandwidth=2.0 * float(c.machine.memory_bandwidth))
        doubled = document(replace(c, machine=fast), where, what)
        for before, after in zip(told[name, False]["operations"], doubled["operations"], strict=True):
            assert after["lane_time_s"]["memory"] == before["lane_time_s"]["memory"] / 2.0
            others = [lane for lane in LANES if lane != "memory"]
            assert [after["lane_time_s"][x] for x in others] == [before["lane_time_s"][x] for x in others]


@pytest.mark.parametrize("key", CASES)
def test_twice_the_machine_halves_the_pass(key) -> None:
    c, where, what = point(*key)
    unlimited = changed(c.machine, power_limit=1e15)
    faster = {name: 2.0 * float(getattr(c.machine, name)) for name in RATES}
    faster |= {name: 0.5 * float(getattr(c.machine, name)) for name in LATENCIES}
    slow = decoded(c, where, what, on=unlimited)
    fast = decoded(c, where, what, on=changed(unlimited, **faster))
    assert float(fast.pass_s) == pytest.approx(float(slow.pass_s) / 2.0, rel=1e-14)
    assert float(fast.tpot_s) == pytest.approx(float(slow.tpot_s) / 2.0, rel=1e-14)
    assert float(fast.tokens_per_s) == pytest.approx(float(slow.tokens_per_s) * 2.0, rel=1e-14)


def test_every_latency_is_halved() -> None:
    assert set(RATES) | set(LATENCIES) <= set(ROUND)
    seconds = [name for name in ROUND if name.endswith(("hop", "launch", "setup"))]
    assert sorted(seconds) == sorted(LATENCIES)


def efficient(**changes: Any) -> Execution:
    """Efficiencies of one, a sum of lanes for the families, and what is asked for."""
    return replace(ideal(), **({"hard": False} | changes))


def test_one_row_by_hand() -> None:
    families = {"gemm": 2.0, "attention": 1.0}
    execution = efficient(
        memory={"gemm": 0.5, "attention": 0.8}, tensor={"bf16": 0.5, "fp8": 0.25, "fp4": 0.125},
        rows_half={"bf16": 16.0, "fp8": 32.0, "fp4": 64.0}, attention_tensor=0.4, vector=0.5, overlap_p=families,
    )  # fmt: skip
    # 1 GB at half of 1 TB/s is 2 ms; 1 TFLOP in FP8 at 32 of 32 + 32 rows and a quarter of 2 PFLOP/s is 4 ms;
    # 5 Gop at half of 10 Top/s is 1 ms; two launches of 1 us and 3 us besides.
    row = Row("r", "gemm", memory=1e9, tensor=1e12, dtype=1.0, rows=32.0, vector=5e9, launches=2.0, latency=3e-6)
    found = time_of(row, machine(), execution)
    assert [float(x) for x in found.lanes] == pytest.approx([2e-3, 4e-3, 1e-3, 0.0, 0.0])
    assert float(found.time) == pytest.approx(np.sqrt(4 + 16 + 1) * 1e-3 + 5e-6)
    # 1 GB at 100 pJ/B, 1 TFLOP at 0.2 pJ, 5 Gop at 2 pJ.
    assert float(found.energy) == pytest.approx(0.1 + 0.2 + 0.01)
    assert float(time_of(row._replace(share=0.5), machine(), execution).energy) == pytest.approx(0.155)
    # The scan has an efficiency of its own, whatever its rows; its lanes add up here.
    scan = time_of(row._replace(family="attention"), machine(), execution)
    assert float(scan.time) == pytest.approx(1e9 / 0.8e12 + 1e12 / (2e15 * 0.4) + 1e-3 + 5e-6)


@pytest.mark.parametrize("dtype", [0.0, 1.0, 2.0])
def test_a_format_may_be_traced(dtype: float) -> None:
    row = Row("r", "gemm", memory=1e6, tensor=1e12, dtype=dtype, rows=20.0)
    execution = efficient(rows_half={"bf16": 1.0, "fp8": 2.0, "fp4": 3.0}, overlap_p={"gemm": 4.0})
    (fixed,) = time_rows([row], machine(), execution)
    traced = jax.jit(lambda d: time_of(row._replace(dtype=d), machine(), execution)[1:])(jnp.asarray(dtype))
    for a, b in zip(jax.tree.leaves(fixed[1:]), jax.tree.leaves(traced), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-15)
    # 1 PFLOP/s in BF16, twice and four times as much in FP8 and FP4.
    assert float(fixed.lanes[1]) == pytest.approx(1e-3 / 2**dtype * (20 + 1 + dtype) / 20)


@pytest.mark.parametrize("kind", ["as shipped", "ideal"])
def test_elasticity_of_a_memory_row_is_minus_one(kind: str) -> None:
    row = Row("stream", "gemm", memory=3.3e9)
    execution = ideal() if kind == "ideal" else case("h200", "llama3.1-70b").execution

    def log_time(log_bandwidth: jax.Array) -> jax.Array:
        return jnp.log(time_of(row, changed(machine(), memory_bandwidth=jnp.exp(log_bandwidth)), execution).time)

    for bandwidth in (1e11, 4.8e12, 2e13):
        assert float(jax.grad(log_time)(jnp.log(bandwidth))) == pytest.approx(-1.0, abs=1e-15)
    # The same without logarithms, to the last bit where the numbers are powers of two.
    time = jax.grad(
        lambda b: time_of(row._replace(memory=2.0**31), changed(machine(), memory_bandwidth=b), ideal()).time
    )
    assert float(time(2.0**40)) * 2.0**40 == -(2.0**-9)


def test_software_setup_scales_both_setups_only() -> None:
    m = software_setup(machine(), efficient(setup=0.25))
    assert (float(m.all_reduce_setup), float(m.all_to_all_setup)) == (0.5e-6, 1.25e-6)
    assert all(getattr(m, name) == ROUND[name] for name in ROUND if "setup" not in name)


def test_catalog_constants_are_shares() -> None:
    e = case("h200", "llama3.1-70b").execution
    shares = [*e.memory.values(), *e.tensor.values(), e.attention_tensor, e.vector, e.scale_up, e.scale_out, e.overlap]
    assert all(0.0 <= float(x) <= 1.0 for x in shares)
    assert all(float(p) >= 1.0 for p in e.overlap_p.values())


WIDE = Row("r", "gemm", memory=1e6, tensor=1e12, rows=64.0, vector=1e9, width=1e3)


@pytest.mark.parametrize(
    ("row", "field", "loose", "tight"),
    [
        (WIDE, "outputs_half", 1e5, 0.0),
        (WIDE._replace(family="experts"), "grouped", 0.5, 1.0),
        (WIDE._replace(family="experts", streams=256.0), "group_ops", 1e7, 0.0),
        (WIDE._replace(family="attention", streams=256.0), "stream_ops", 1e7, 0.0),
        (Row("r", "collective", scale_up=1e6), "message_half", 1e6, 0.0),
        (Row("dispatch", "collective", scale_up=1e6), "exchange_half", 1e6, 0.0),
        (Row("combine", "collective", scale_up=1e6), "exchange", 0.5, 1.0),
    ],
)
def test_each_law_slows_its_own_rows_and_has_the_speed_of_light_as_its_limit(row, field, loose, tight) -> None:
    base = efficient(message_least=0.3, exchange_least=0.3, overlap_p=dict.fromkeys(FAMILIES, 8.0))
    limit = float(time_of(row, machine(), base).time)
    times = [float(time_of(row, machine(), replace(base, **{field: x})).time) for x in np.linspace(loose, tight, 5)]
    assert times[-1] == limit
    assert all(a > b for a, b in pairwise(times))
    other = row._replace(name="other", family="elementwise", width=0.0, streams=0.0, scale_up=0.0)
    assert float(time_of(other, machine(), replace(base, **{field: loose})).time) == float(
        time_of(other, machine(), base).time
    )


def test_laws_by_hand() -> None:
    e = efficient(
        outputs_half=1e6, grouped=0.5, expert_rows_half={"bf16": 64.0, "fp8": 0.0, "fp4": 0.0}, stream_ops=1e6,
        group_ops=2e6, scale_up=0.8, message_half=1e6, message_least=0.25,
        launches=dict.fromkeys(FAMILIES, 1.0) | {"gemm": 3.0},
    )  # fmt: skip
    # 500 rows of 2,000 columns are 1e6 elements, where half of 1 PFLOP/s is reached; launches take three each.
    found = time_of(Row("r", "gemm", tensor=1e12, rows=500.0, launches=2.0, width=2000.0), machine(), e)
    assert float(found.time) == pytest.approx(2e-3 + 6e-6)
    # Grouped: half of the rate, and 64 of 64 + 64 rows halve it again.
    found = time_of(Row("r", "experts", tensor=1e12, rows=64.0), machine(), e)
    assert float(found.time) == pytest.approx(4e-3)
    # 1e9 operations beside 100 streams of 1e6, or 100 experts of 2e6, at 10 Top/s.
    scan = Row("r", "attention", vector=1e9, streams=100.0)
    assert float(time_of(scan, machine(), e).time) == pytest.approx(1.1e-4)
    assert float(time_of(scan._replace(family="experts"), machine(), e).time) == pytest.approx(1.2e-4)
    # 1 MB at (1 + 0.25)/(1 + 1) of 80 % of 100 GB/s.
    found = time_of(Row("r", "collective", scale_up=1e6), machine(), e)
    assert float(found.time) == pytest.approx(1e-5 / 0.5, rel=2e-6)
    # Another family's constants, and those of exchanges, do not touch it.
    assert float(time_of(Row("dispatch", "collective", scale_up=1e6), machine(), e).time) == pytest.approx(1e-5)


@given(st.floats(0.0, 12.0), st.floats(0.0, 12.0))
def test_more_work_takes_more_time_and_more_rows_are_better_used(size: float, more: float) -> None:
    e = efficient(
        message_half=1e6, message_least=0.3, exchange_half=1e5, exchange_least=0.2, outputs_half=1e5,
        rows_half=dict.fromkeys(("bf16", "fp8", "fp4"), 16.0),
    )  # fmt: skip
    small, large = 10.0**size, 10.0 ** max(size, more)

    def sent(name: str, b: float) -> float:
        return float(time_of(Row(name, "collective", scale_up=b), machine(), e).time)

    def product(m: float) -> Any:
        return time_of(Row("r", "gemm", tensor=2e6 * m, rows=m, width=1e3), machine(), e)

    for name in ("all_reduce", "dispatch"):
        assert 0.0 < sent(name, small) <= sent(name, large)
        assert sent(name, large) / large <= sent(name, small) / small * (1 + 1e-12)
    assert float(product(small).time) <= float(product(large).time)
    assert float(product(small).efficiency[1]) <= float(product(large).efficiency[1]) <= 1.0


def test_setups_by_kind_of_collective() -> None:
    m = software_setup(machine(), efficient(setup=1.0, all_reduce=0.5, all_to_all=2.0))
    assert (float(m.all_reduce_setup), float(m.all_to_all_setup)) == (1e-6, 1e-5)


def test_every_constant_has_a_name_and_a_place() -> None:
    counted = {name: float(i + 1) for i, name in enumerate(NAMES)}
    assert sorted(float(x) for x in jax.tree.leaves(execution_from(counted.__getitem__))) == sorted(counted.values())
