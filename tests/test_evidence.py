"""Evidence beside a study's answer: published points taken apart, unknowns moved, findings told from results."""

import json
import math
import tomllib

import numpy as np
import pytest

from codesign.api import evaluate
from codesign.catalog import load_system
from codesign.catalog.workspace import bundled_root
from codesign.machine import Machine
from codesign.mapping import take
from codesign.objective.compiled import solve_points
from codesign.runtime import prepare
from codesign.study.checks import gap_words, power_table, published_checks, terms_of
from codesign.study.findings import findings, floor_s, overdrafts
from codesign.study.orderings import alike
from codesign.study.published import DECODE_515K, POINTS, Point
from codesign.study.sensitivity import ORDER, Question, rates_of, sweep_all
from codesign.study.standing import standing
from codesign.study.sweep import variants
from codesign.study.unknowns import unknowns_of
from codesign.study.verdicts import ATTENTION, TOGETHER, note_of, verdict_of, where

prepare()

#: A small model, so that the tests compile little.
SMALL = Question("mixtral-8x7b", 8192.0)


@pytest.fixture(scope="module")
def sweep():
    return SMALL.sweeps("jalapeno", [0.02])[0][2]


@pytest.fixture(scope="module")
def entries():
    return sweep_all(
        SMALL, ("jalapeno", "gb300-nvl72"), [0.005], ("jalapeno-hybrid-bonded",), [0.02], points=5, workers=2
    )


# --- published figures


def test_power_table_has_the_published_watts():
    table = {row["part"]: row for row in power_table()}
    watts = {"h100": 700, "b200": 1000, "mi355x": 1400, "jalapeno": 700, "vera-rubin-nvl72": 2300, "gb300-nvl72": 1400}
    assert {part: table[part]["published_w"] for part in watts} == watts
    assert [part for part, row in table.items() if row["fitted"]] == ["h100", "h200", "b200", "mi300x"]
    for row in table.values():
        assert row["ratio"] == pytest.approx(row["envelope_w"] / row["published_w"])
        assert ": " in row["source"]
    json.dumps(list(table.values()))


def row(name, family, time, latency=0.0, hidden=0.0, **lanes):
    names = ("memory", "tensor", "vector", "scale_up", "scale_out")
    return {
        "name": name, "family": family, "time_s": time, "latency_s": latency, "hidden_s": hidden,
        "lane_time_s": dict.fromkeys(names, 0.0) | lanes,
    }  # fmt: skip


def test_terms_of_a_pass_by_hand():
    rows = [
        row("a.qkv", "gemm", 5.0, 1.0, memory=4.0, tensor=1.0),
        row("a.scan", "attention", 3.0, 1.0, memory=1.5, tensor=2.0),
        row("b.scan", "attention", 2.0, 0.5, memory=1.5),
        row("b.norm", "elementwise", 1.0, 0.75, memory=0.25),
        row("b.all_reduce", "collective", 4.0, 3.0, scale_up=1.0),
        row("b.shared", "gemm", 2.0, 0.5, hidden=1.75, memory=1.5),
    ]
    terms = terms_of(rows, setup_s=2.0)
    assert terms == pytest.approx(
        {
            "weights": 4.0, "cache": 1.5, "arithmetic": 2.0, "elementwise": 0.25,
            "launches": 1.0 + 1.0 + 0.5 + 0.75 + 0.25, "setup": 2.0, "hops": 1.0, "links": 1.0,
        }
    )  # fmt: skip
    assert sum(terms.values()) == pytest.approx(sum(r["time_s"] - r["hidden_s"] for r in rows))


def test_what_closes_a_gap_by_hand():
    terms = {"weights": 4e-3, "launches": 2e-3, "hops": 0.0}
    # 9 ms published: 3 ms more, 4 + 3 of 4 and 2 + 3 of 2; 3 ms published: 3 ms less, 1 of 4, and launches have only 2.
    assert "3 ms longer; alone, weights from memory at 1.75 ×, launches at 2.5 ×" in gap_words(terms, 9e-3)
    assert "3 ms shorter; alone, weights from memory at 0.25 ×, launches could not" in gap_words(terms, 3e-3)
    assert gap_words(terms, 6e-3) == "no gap"


def test_one_user_of_kimi_k3_on_eight_gb300():
    plain, drafted = published_checks(points=POINTS[:2])
    assert (plain["published"], drafted["published"]) == (111.0, 331.0)
    for check in (plain, drafted):
        assert sum(check["seconds"].values()) == pytest.approx(check["pass_s"])
        assert check["predicted"] == pytest.approx(check["accepted"] / check["pass_s"])
        assert check["ratio"] == pytest.approx(check["predicted"] / check["published"])
    # 137 GB of weights are read at batch 1 (16 x 92 experts of MXFP4 and 111 GB of BF16), an eighth of it per chip at
    # 8 TB/s: 2.1 ms at least. 93 layers launch a dozen kernels of 1 us each at the very least.
    assert plain["pass_s"] > 137e9 / 8 / 8e12 + 93 * 12e-6
    assert plain["seconds"]["weights"] > 137e9 / 8 / 8e12 * 0.95
    assert plain["seconds"]["launches"] > 93 * 12e-6
    # The published acceptance stands in for the table's 3.78, and eight tokens touch more experts than one.
    assert drafted["accepted"] == 4.73
    assert drafted["pass_s"] > 1.05 * plain["pass_s"]
    assert "8Ki assumed" in plain["terms"]
    assert "4.73 tokens accepted a pass as published" in drafted["terms"]
    json.dumps([plain, drafted])


def test_an_open_mapping_takes_the_fastest_for_one_sequence():
    (check,) = published_checks(points=(Point("one user", "h100", "mixtral-8x7b", 100.0, {}, None, None, "none"),))
    # 12.9e9 active parameters in BF16 over 8 H100 of 3.35 TB/s: under 1,040 tokens/s; and no chip alone holds them.
    assert check["name"] == "one user, no drafts"
    assert 100.0 < check["predicted"] < 8 * 3.35e12 / (2 * 12.9e9)
    assert "the fastest for one sequence" in check["terms"]
    assert "8 chips reach" in check["terms"]


def test_bands_are_those_of_the_chart():
    # The article's Figure 7 at 515k: Vera Rubin 6-8e4, Jalapeno 1-3e5, with super 3D RAM 4-6e5, tokens/s per MW.
    bands = {b.arch: (b.low, b.high) for b in DECODE_515K if b.arch}
    assert bands == {"vera-rubin-nvl72": (6e4, 8e4), "jalapeno": (1e5, 3e5), "jalapeno-super-3d-ram": (4e5, 6e5)}


# --- unknowns


def test_every_range_of_the_files_is_an_unknown():
    root = bundled_root()
    ranged = set()
    for path in ("arch/systems/jalapeno.toml", "arch/accelerators/jalapeno.toml"):
        raw = tomllib.loads((root / path).read_text(encoding="utf-8"))
        ranged |= {k for k, v in raw.items() if isinstance(v, dict) and "range" in v}
    found = {u.name: u for u in unknowns_of(load_system("jalapeno"))}
    # The rating says the same as the limit and moves with it.
    assert set(found) == ranged - {"chip_power"}
    assert found["power_limit"].leaves == ("power_limit", "chip_power")
    hop = found["scale_up_hop"]
    assert (hop.low, hop.value, hop.high) == pytest.approx((0.2e-6, 0.478e-6, 0.8e-6))
    assert (hop.worst, found["tensor_fp8"].worst) == pytest.approx((0.8e-6, 3.35e15))
    assert hop.between(hop.high, 0.5) == pytest.approx(math.sqrt(0.478e-6 * 0.8e-6))
    for u in found.values():
        grid = u.grid(7)
        assert (grid[0], grid[-1]) == (u.low, u.high)
        assert u.value in grid
        assert np.all(np.diff(grid) > 0)


def test_a_format_that_a_part_lacks_moves_with_the_wider_one():
    rows = {u.name: u.leaves for u in unknowns_of(load_system("cloudmatrix384"))}
    missing = load_system("cloudmatrix384").accelerator.tensor_fp4 is None
    assert missing
    wide = [leaves for leaves in rows.values() if "tensor_fp4" in leaves or "tensor_fp4_energy" in leaves]
    assert all(leaves[0] != "tensor_fp4" for leaves in wide)


# --- sweeps


def test_screening_loses_nothing_against_all_mappings(sweep):
    changes = [{}] + [u.change(v) for u in sweep.unknowns for v in (u.low, u.high)]
    rates = sweep.rates(changes)
    case = sweep.case
    for i in np.argsort(rates)[[0, len(rates) // 2, -1]]:
        machine = Machine(**(vars(case.machine) | changes[i]))
        found = solve_points(
            case.model, case.execution, case.precision, machine, sweep._all, sweep.load, sweep.target
        )  # fmt: skip
        serves = np.maximum(found.late, found.full) <= 0.0
        every = np.asarray(found.result.tokens_per_s_per_megawatt)
        assert rates[i] == pytest.approx(every[serves].max(), rel=1e-9)


def test_variants_replace_what_is_named(sweep):
    both = variants(sweep.case.machine, [{}, {"launch": 5e-6}])
    assert both.launch == pytest.approx([1e-6, 5e-6])
    assert both.memory_bandwidth == pytest.approx([15.4e12, 15.4e12])


def test_crossing_of_a_number_that_divides_the_rate(sweep):
    # Tokens per provisioned megawatt fall as 1/watts: 5 % more are reached at 1,125/1.05 W.
    unknown = next(u for u in sweep.unknowns if u.name == "provisioned_power")
    level = 1.05 * sweep.rates([{}])[0]
    found = sweep.crossing(unknown.change, (unknown.low, unknown.high), level)
    assert found == pytest.approx(1125.0 / 1.05, rel=1e-4)
    assert sweep.base() == pytest.approx(sweep.rates([{}])[0])


def test_elasticities_against_differences(sweep):
    told = standing(sweep)["elasticities"]
    assert told["provisioned_power"] == pytest.approx(-1.0, abs=1e-9)
    i, _ = sweep.best()
    case, one = sweep.case, take(sweep.mappings, slice(i, i + 1))
    for name in ("memory_bandwidth", "launch", "tensor_bf16"):
        value, step = float(getattr(case.machine, name)), 1e-4
        rates = []
        for factor in (1 - step, 1 + step):
            machine = Machine(**(vars(case.machine) | {name: value * factor}))
            found = solve_points(
                case.model, case.execution, case.precision, machine, one, sweep.load, sweep.target
            )  # fmt: skip
            rates.append(np.asarray(found.result.tokens_per_s_per_megawatt)[0])
        slope = (math.log(rates[1]) - math.log(rates[0])) / (2 * step)
        assert told.get(name, 0.0) == pytest.approx(slope, abs=2e-3), name


def test_entries_move_one_number_each_and_all_at_once(entries):
    json.dumps(entries)
    archs = dict.fromkeys(e["arch"] for e in entries)
    assert list(archs) == ["jalapeno", "gb300-nvl72", "jalapeno-hybrid-bonded"]
    for arch in archs:
        first, *singles = (e for e in entries if e["arch"] == arch)
        assert first["parameter"] == TOGETHER
        assert singles
        for case in first["cases"]:
            # The catalog's own values, then ever less; the best corner serves most.
            path = [m or 0.0 for m in case["metric"]]
            assert path == sorted(path, reverse=True)
            assert case["best"] >= path[0] * (1 - 1e-9)
            assert case["worst"] == path[-1]
            assert case["floor_s"] < case["tpot_s"]
            assert sum(case["binding"].values()) == pytest.approx(1.0)
        for entry in singles:
            assert entry["value"] in entry["values"]
            own = entry["values"].index(entry["value"])
            for case, base in zip(entry["cases"], first["cases"], strict=True):
                assert case["metric"][own] == pytest.approx(base["metric"][0])
    for arch, targets in (("jalapeno", [0.005]), ("jalapeno-hybrid-bonded", [0.005, 0.02])):
        cases = next(e for e in entries if e["arch"] == arch)["cases"]
        assert [(c["attention"], c["target_s"]) for c in cases] == [(a, t) for a in ATTENTION for t in targets]


def test_orders_turn_where_they_are_said_to(entries):
    found = 0
    for entry in entries:
        for case in entry["cases"]:
            sweep = None
            for rival, values in (case.get("crossings") or {}).items():
                sweep = sweep or next(
                    s for a, t, s in SMALL.sweeps(entry["arch"], [case["target_s"]]) if a == case["attention"]
                )
                unknown = next(u for u in sweep.unknowns if u.name == entry["parameter"])
                for value in values:
                    below, above = sweep.rates([unknown.change(value * f) for f in (0.995, 1.005)])
                    assert (below - case["reference"][rival]) * (above - case["reference"][rival]) < 0.0
                    found += 1
    assert found


def test_serving_begins_where_it_is_said_to():
    # A target below the least TPOT of the catalog's part is met by a part that launches faster.
    arch = "jalapeno-super-3d-ram"
    nearest = standing(SMALL.sweeps(arch, [1e-6])[0][2])
    assert not nearest["feasible"]
    target = 0.8 * nearest["tpot_s"]
    entries = sweep_all(SMALL, (arch,), [target], points=3)
    assert all(c["metric"][0] is None for c in entries[0]["cases"])
    launch = next(e for e in entries if e["parameter"] == "launch")
    for case in launch["cases"]:
        (value,) = case["serving"]
        assert 0.2e-6 < value < 1e-6
        sweep = next(s for a, _, s in SMALL.sweeps(arch, [target]) if a == case["attention"])
        faster, slower = sweep.rates([{"launch": value * f} for f in (0.995, 1.005)])
        assert faster > 0.0
        assert slower == 0.0


def test_reference_rates_are_those_of_the_machines_themselves(entries):
    jalapeno, gb300 = (next(e for e in entries if e["arch"] == arch) for arch in ("jalapeno", "gb300-nvl72"))
    for ours, theirs in zip(jalapeno["cases"], gb300["cases"], strict=True):
        assert ours["reference"]["gb300-nvl72"] == pytest.approx(theirs["metric"][0])
        assert theirs["reference"]["jalapeno"] == pytest.approx(ours["metric"][0])


def test_verdicts_and_where():
    def case(attention, target, metric, level):
        return {"attention": attention, "target_s": target, "metric": metric, "reference": {"x": level}}

    cases = [
        case("bf16", 0.02, [3.0, 2.0], 1.0),
        case("fp8", 0.02, [3.0, None], 1.0),
        case("fp8", 0.05, [0.5, 0.2], 1.0),
    ]
    assert [verdict_of(c, "x") for c in cases] == ["ahead", "turns", "behind"]
    assert verdict_of(case("bf16", 0.02, [None, None], 0.0), "x") is None
    assert verdict_of(case("bf16", 0.02, [None, 1.0], 0.0), "x") == "turns"
    assert where(cases) == "bf16 20 ms, fp8 20, 50 ms"
    assert where(cases[:2]) == "20 ms"
    assert note_of({"cases": cases}) == "against x ahead at bf16 20 ms, behind at fp8 50 ms, turns at fp8 20 ms"


def test_kimi_k3_at_515k_orders_as_bandwidth_per_watt():
    rates = rates_of(Question("kimi-k3", 515_000.0, weights="bf16", kv="fp8"), ORDER, [0.02, 0.05])
    for target in (0.02, 0.05):
        for attention in ATTENTION:
            jalapeno, rubin, gb300 = (rates[attention, target][arch] for arch in ORDER)
            assert jalapeno > rubin > gb300
    # 24 layers x 96 heads x 2 (2 x 512 + 64) FLOP x 515,000 tokens at the BF16 rate, per provisioned watt.
    flop = 24 * 96 * 2 * (2 * 512 + 64) * 515_000
    for arch, petaflops, watts in zip(ORDER, (3.35, 4.0, 2.5), (1125.0, 3300.0, 2120.0), strict=True):
        bound = petaflops * 1e15 / flop / watts * 1e6
        assert 0.2 * bound < rates["bf16", 0.05][arch] < bound


def test_orders_on_one_law_are_told():
    def head(arch, *rates):
        bases = [
            {"basis": "speed of light", "attention": "bf16", "target_s": t, "metric": rate}
            for t, rate in zip((0.02, 0.05), rates, strict=True)
        ]
        cases = [{"target_s": t} for t in (0.02, 0.05)]
        return {"arch": arch, "parameter": "all_unknowns", "attention": "bf16", "cases": cases, "bases": bases}

    swept = [head("jalapeno", 4.0, 2.0), head("vera-rubin-nvl72", 2.0, 2.5), head("gb300-nvl72", 1.0, 1.0)]
    (told,) = alike({"problems": [], "sensitivity": swept})
    assert "1 : 0.5 : 0.25 at 20 ms, 1 : 1.2 : 0.5 at 50 ms (the order does not hold)" in told
    assert not list(alike({"problems": [], "sensitivity": swept[:2]}))


def test_bases_are_rates_on_one_law_and_on_none(entries):
    first = next(e for e in entries if e["arch"] == "gb300-nvl72")
    for b in first["bases"]:
        if b["basis"] == "speed of light":
            own = evaluate("gb300-nvl72", SMALL.model, context=SMALL.context, tpot=b["target_s"], ideal=True,
                           attention_dtype=b["attention"])  # fmt: skip
            # Whole sequences serve a little less than the real batch of a sweep.
            assert b["metric"] == pytest.approx(own.metrics["tokens_per_s_per_megawatt"], rel=0.02)
            assert b["metric"] >= own.metrics["tokens_per_s_per_megawatt"] * (1 - 1e-9)
    light, law = (
        [b["metric"] for b in first["bases"] if b["basis"] == basis] for basis in ("speed of light", "own latencies")
    )
    assert all(a > b for a, b in zip(light, law, strict=True))


# --- findings


def part(arch, technology, rate, tpot=0.02, status="announced", latency=1e-3):
    return {
        "arch": arch, "title": f"The {arch}", "status": status, "memory_technology": technology, "feasible": rate > 0,
        "least_tpot_s": None if rate else tpot,
        "metrics": {"tokens_per_s_per_megawatt": rate or None, "tpot_s": tpot, "accepted_tokens_per_pass": 1.0},
        "operations": [row("a", "gemm", tpot, latency, memory=tpot - latency)],
    }  # fmt: skip


def problem(target, designs, machines, context=515_000.0):
    found = [{"technology": t, **part(t, t, r)} for t, r in designs.items()]
    best = max(
        (d for d in found if d["feasible"]), default=None, key=lambda d: d["metrics"]["tokens_per_s_per_megawatt"]
    )
    return {
        "id": f"t{target}", "context": context, "precision": "bf16", "target_s": target, "best": best,
        "designs": found, "machines": machines,
    }  # fmt: skip


def summary(*problems, **more):
    return {
        "model": "kimi-k3", "phase": "decode", "technologies": ["hbm4", "super-3d-ram"],
        "precisions": [{"name": "bf16"}], "problems": list(problems),
    } | more  # fmt: skip


def lines(found, start):
    return [line for line in found if start in line]


def test_findings_say_who_wins_and_by_how_much():
    told = findings(
        summary(
            problem(0.02, {"hbm4": 3e5, "super-3d-ram": 2e5}, [part("jalapeno", "hbm4", 2e5)]),
            problem(0.005, {"hbm4": 0, "super-3d-ram": 1e5}, [part("jalapeno", "hbm4", 0, tpot=6e-3)]),
            problem(0.002, {"hbm4": 0, "super-3d-ram": 0}, [part("jalapeno", "hbm4", 0, tpot=3e-3, latency=2.5e-3)]),
        )
    )
    (line,) = lines(told, "most tokens/s/MW")
    assert line == (
        "515,000 tokens, bf16 weights, most tokens/s/MW of a buildable design within the budgets: 5 ms super-3d-ram "
        "with 100,000 (no existing part serves); 20 ms hbm4 with 300,000 (1.5 × The jalapeno); nothing meets 2 ms."
    )
    (line,) = lines(told, "met by nothing")
    assert "2 ms at 515,000 tokens, bf16 weights" in line
    assert "3 ms (The jalapeno), of which 2.5 ms are launches, hops and set-up, on that mapping more than" in line


def test_findings_say_why_an_optimum_is_behind():
    ahead, behind = part("jalapeno", "hbm4", 2e5), part("vera-rubin-nvl72", "hbm4", 4e5)
    told = findings(summary(problem(0.02, {"hbm4": 3e5, "super-3d-ram": 2e5}, [ahead, behind])))
    (line,) = lines(told, "optimum beats The jalapeno")
    assert "at all 1 targets that part serves, by 1.5 to 1.5 ×" in line
    assert "keep all budgets" in line
    (line,) = lines(told, "does not beat The vera-rubin-nvl72 at 1 of the 1")
    # Two reticles and 2,300 W do not fit one die and 700 W.
    assert "by up to 1.33 ×" in line
    assert "package watts" in line
    assert "die area" in line


def test_overdrafts_of_catalog_parts():
    budgets = {"budgets": [{"name": "package_power", "limit": 700.0}, {"name": "die_area", "limit": 840e-6}]}
    assert overdrafts(budgets, "jalapeno", "hbm4") == ""
    # 35 PFLOP/s x 0.0397 mm^2/TFLOP/s alone are 1,390 mm^2; a die of two reticles holds them.
    assert "die area" in str(overdrafts(budgets, "vera-rubin-nvl72", "hbm4"))
    large = {"budgets": [{"name": "package_power", "limit": 5000.0}, {"name": "die_area", "limit": 2e-3}]}
    told = overdrafts(large, "vera-rubin-nvl72", "hbm4")
    assert told is not None and "die area" not in told
    assert overdrafts(budgets, "no-such-part", "hbm4") is None


def test_findings_do_not_take_an_unknown_part_for_one_that_keeps_the_budgets():
    for rate, head in ((4e5, "does not beat The no-such-part"), (2e5, "beats The no-such-part")):
        machines = [part("no-such-part", "hbm4", rate)]
        told = findings(summary(problem(0.02, {"hbm4": 3e5, "super-3d-ram": 2e5}, machines)))
        (line,) = lines(told, head)
        assert "is unknown" in line
        assert "keep all budgets" not in line


def test_findings_set_forecasts_beside_results():
    middle = math.sqrt(6e4 * 8e4)
    machines = [part("vera-rubin-nvl72", "hbm4", 2 * middle), part("jalapeno-super-3d-ram", "super-3d-ram", 6 * middle)]
    told = findings(summary(problem(0.02, {"hbm4": 3e5}, machines)))
    (line,) = lines(told, "read off a chart, Vera Rubin 72")
    assert "60,000 to 80,000" in line
    assert "139,000 at 20 ms (2 ×); nearest at 20 ms" in line
    (line,) = lines(told, "Forecast for Jalapeño + super 3D RAM")
    assert "5 to 10 × Vera Rubin 72; here 20 ms 3 ×" in line
    assert not lines(findings(summary(problem(0.02, {"hbm4": 3e5}, machines, context=8192.0))), "Forecast")


def test_findings_catch_a_result_below_its_floor():
    good = summary(problem(0.02, {"hbm4": 3e5}, [part("jalapeno", "hbm4", 2e5)]))
    (line,) = lines(findings(good), "below its floor")
    assert line.startswith("None of 2 results")
    assert floor_s(good["problems"][0]["machines"][0]) == pytest.approx(1e-3)
    bad = summary(problem(0.02, {"hbm4": 3e5}, [part("jalapeno", "hbm4", 2e5, tpot=2e-3, latency=3e-3)]))
    (line,) = lines(findings(bad), "below their floor")
    assert line.startswith("1 of 2 results")
    assert "The jalapeno at 20 ms" in line


def test_findings_of_swept_machines(entries):
    machines = [part(arch, "hbm4", r) for arch, r in zip(ORDER, (3e5, 2e5, 1e5), strict=True)]
    machines.append(part("jalapeno-hybrid-bonded", "hybrid-bonded-dram", 2e5, status="hypothetical"))
    told = findings(summary(problem(0.005, {"hbm4": 3e5}, machines), sensitivity=entries))
    (line,) = lines(told, "The jalapeno is")
    assert "The gb300-nvl72" in line
    assert "of its 21 unknowns" in line.lower()
    for attention in ATTENTION:
        (line,) = lines(told, f"The jalapeno-hybrid-bonded, {attention} attention, against The jalapeno: ")
        assert "5 ms" in line
        assert "20 ms" in line
    # Without the third machine of the order there is nothing to say about the order.
    assert not lines(told, "The jalapeno > ")


def test_an_empty_summary_gives_no_findings():
    assert findings({"problems": []}) == []
    infeasible = problem(0.002, {"hbm4": 0}, [])
    for design in infeasible["designs"]:
        design |= {"metrics": None, "operations": None, "least_tpot_s": None}
    assert findings(summary(infeasible)) == ["515,000 tokens, bf16 weights: nothing meets 2 ms."]
