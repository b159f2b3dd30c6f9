"""The report: its accounts add up, it is one file that loads nothing, and it copes with what a summary lacks."""

import base64
import csv
import gzip
import json
import math
import re
from itertools import combinations, pairwise
from typing import Any

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import MACHINE, OUTPUT_WORDS, TECHNOLOGIES, make_summary

from codesign.errors import CodesignError
from codesign.report import export, write_report
from codesign.report.charts import figures
from codesign.report.charts.base import log_ticks
from codesign.report.data import tables
from codesign.report.data.operations import operations
from codesign.report.files import complete, draw
from codesign.report.headline import headlines
from codesign.report.pack import pack_table
from codesign.report.page import defaults, page
from codesign.report.published import bands
from codesign.report.style import context_words, parts_of, pretty, spread
from codesign.report.summary import Case
from codesign.report.words import mapping_words, plain
from codesign.study.wording import rate

PROBLEM, PART = "c131072-bf16-t0.02", "vera-rubin-nvl72"


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return make_summary()


@pytest.fixture(scope="module")
def rows(summary):
    return tables(summary)


@pytest.fixture(scope="module")
def html(summary) -> str:
    return page(summary)


@pytest.fixture
def run(tmp_path, summary):
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return tmp_path


def unpacked(html: str) -> dict[str, Any]:
    found = re.search(r'<script id="data"[^>]*>([^<]*)</script>', html)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def entry(summary, problem: str, arch: str) -> dict[str, Any]:
    p = next(p for p in summary["problems"] if p["id"] == problem)
    return next(m for m in p["machines"] if m["arch"] == arch)


# The accounts


@pytest.mark.parametrize("small", [0.0, 0.008, 0.2])
def test_steps_of_the_waterfall_end_at_tpot(summary, small):
    found: dict[tuple[str, str], float] = {}
    for r in operations(summary, small):
        key = (r["problem"], r["part"])
        found[key] = found.get(key, 0.0) + r["time"] - r["hidden"]
    assert len(found) > 20
    for problem in summary["problems"]:
        for m in problem["machines"]:
            if m["feasible"] or m["metrics"]:
                assert found[problem["id"], m["arch"]] == pytest.approx(1e3 * m["metrics"]["tpot_s"], rel=1e-12)


def test_energy_of_a_token_adds_up_to_watts_over_tokens(summary):
    m = entry(summary, PROBLEM, PART)["metrics"]
    found = [r for r in operations(summary) if (r["problem"], r["part"]) == (PROBLEM, PART)]
    assert sum(r["joules"] for r in found if r["joules"]) == pytest.approx(
        m["all_in_power_w"] / m["tokens_per_s_per_chip"]
    )
    static = next(r["joules"] for r in found if r["name"] == "static power")
    assert static == pytest.approx(MACHINE["static_power"] / m["tokens_per_s_per_chip"])


def test_a_pipeline_that_waits_or_throttles_is_told_as_such(summary):
    changed = json.loads(json.dumps(summary))
    machine = entry(changed, PROBLEM, PART)
    machine["metrics"]["tpot_s"] *= 1.25
    waiting = [r for r in operations(changed) if r["bound"] == "waiting"]
    assert [(r["name"], r["part"]) for r in waiting] == [("pipeline waiting", PART)]
    assert waiting[0]["share"] == pytest.approx(0.2)
    machine["metrics"]["throttled"] = True
    assert [r["name"] for r in operations(changed) if r["bound"] == "waiting"] == ["power limit"]


def test_roofs_are_the_rates_of_the_machine(summary, rows):
    here = [r for r in rows["ceilings"] if (r["problem"], r["part"]) == (PROBLEM, PART)]
    flat = {r["roof"]: r["rate"] for r in here if not r["ridge"] and r["intensity"] > 1}
    assert flat == pytest.approx({"BF16": 3.35e15, "FP8": 6.7e15})
    slope = next(r["rate"] / r["intensity"] for r in here if r["intensity"] == 0.1)
    assert slope == pytest.approx(22e12)


def test_a_step_is_coloured_by_its_longest_lane_even_where_latency_binds(summary):
    found = {r["name"]: r for r in operations(summary, 0.0) if (r["problem"], r["part"]) == (PROBLEM, PART)}
    assert (found["moe.sort"]["bound"], found["moe.sort"]["lane"]) == ("latency", "memory")
    assert found["mla.scan"]["bound"] == found["mla.scan"]["lane"]


def test_the_best_existing_part_is_told_apart_from_hypothetical_ones(summary):
    changed = json.loads(json.dumps(summary))
    for problem in changed["problems"]:
        for m in problem["machines"]:
            if m["arch"] == "jalapeno":
                m["status"] = "hypothetical"
    row = next(r for r in tables(changed)["matrix"] if r["problem"] == PROBLEM)
    assert (row["machine"], row["supposed"]) == ("Vera Rubin NVL72", "OpenAI Jalapeno (128 local)")
    assert row["gain"] == pytest.approx(row["value"] / row["machine_value"])
    assert row["supposed_value"] > row["machine_value"]


def with_part(summary, problem: str, arch: str, factor: float, designs: bool = True) -> dict[str, Any]:
    """The summary with one machine hypothetical and scaled at a problem, and without designs there if so asked."""
    changed = json.loads(json.dumps(summary))
    for p in changed["problems"]:
        for m in p["machines"]:
            m["status"] = "hypothetical" if m["arch"] == arch else m["status"]
        if p["id"] == problem and not designs:
            p["best"], p["designs"] = None, [{"technology": t, "feasible": False} for t in TECHNOLOGIES]
            p["machines"] = [m if m["arch"] == arch else m | {"feasible": False} for m in p["machines"]]
    entry(changed, problem, arch)["metrics"]["tokens_per_s_per_megawatt"] *= factor
    return changed


def headline(summary, problem: str) -> dict[str, Any]:
    return next(h for h in headlines(summary, tables(summary)["matrix"]) if h["key"] == problem)


def test_a_part_that_leads_the_search_is_the_answer(summary):
    changed = with_part(summary, PROBLEM, "jalapeno", 10.0)
    entry(changed, PROBLEM, "jalapeno")["overdraws"] = "heat by 45 %"
    told, value = headline(changed, PROBLEM), 10.0 * rate(entry(summary, PROBLEM, "jalapeno"))
    assert told["sentence"].startswith(
        f"The best answer is a hypothetical part of the catalog, OpenAI Jalapeno (128 local): {plain(value)} tokens/s"
    )
    assert "as a design it would overdraw heat by 45 %" in told["sentence"]
    row = next(r for r in tables(changed)["matrix"] if r["problem"] == PROBLEM)
    assert f"The best searched design, Super 3D RAM, serves {plain(row['value'])} (" in told["sentence"]
    assert told["figures"][0] == ("tokens/s per MW", plain(value), "hypothetical part")
    assert row["answer"] == "hypothetical part"


def test_a_target_that_a_part_meets_is_not_called_out_of_reach(summary):
    changed = with_part(summary, PROBLEM, "jalapeno", 1.0, designs=False)
    told = headline(changed, PROBLEM)["sentence"]
    assert told.startswith("No searched design meets this target; OpenAI Jalapeno (128 local), a hypothetical part of")
    assert "no part that exists or is announced meets it either" in told
    row = next(r for r in tables(changed)["matrix"] if r["problem"] == PROBLEM)
    assert (row["answer"], row["limited_by"]) == ("hypothetical part", "memory bandwidth; batch by the target")


def test_what_comes_next_is_told_as_part_and_as_technology(summary):
    design = max(rate(d) for d in next(p for p in summary["problems"] if p["id"] == PROBLEM)["designs"])
    factor = 0.99 * design / rate(entry(summary, PROBLEM, "jalapeno"))
    told = headline(with_part(summary, PROBLEM, "jalapeno", factor), PROBLEM)["sentence"]
    assert "Next comes a part of the catalog, OpenAI Jalapeno (128 local) (hypothetical), at" in told
    assert "(99 % of it); the next searched technology is HBM4, at" in told


def test_findings_and_tables_tell_the_same_number(summary, rows):
    found = {(r["problem"], r["part"]): r["value"] for r in rows["answers"] if r["optimum"]}
    for problem in summary["problems"]:
        for d in problem["designs"]:
            assert rate(d) == (found[problem["id"], f"optimum:{d['technology']}"] or 0.0)


@pytest.mark.parametrize("computed", [True, False])
def test_ranges_have_a_column_only_where_they_were_computed(summary, computed):
    changed = json.loads(json.dumps(summary))
    for problem in changed["problems"]:
        for d in problem["designs"]:
            if not computed:
                d.pop("interval", None)
    text = page(changed)
    columns = [c["key"] for c in unpacked(text)["views"]["matrix"]["columns"]]
    assert ("range" in columns) == computed
    assert "no range computed" not in text
    assert ("range that its assumptions span" in text) == computed
    low, high = ((f * rate_before(summary, PROBLEM)) for f in (0.7, 1.2))
    assert (
        any(f"range {plain(low)} – {plain(high)}" in f for _, _, f in headline(changed, PROBLEM)["figures"]) == computed
    )


def rate_before(summary, problem: str) -> float:
    designs = next(p for p in summary["problems"] if p["id"] == problem)["designs"]
    return max(designs, key=rate)["metrics"]["tokens_per_s_per_megawatt"]


def test_steps_in_a_whole_number_are_no_elasticity(summary, rows):
    assert all(
        "scale_up_domain" in d["elasticities"] for p in summary["problems"] for d in p["designs"] if d["feasible"]
    )
    leaves = {r["leaf"] for r in rows["elasticities"]}
    assert leaves == {"memory_bandwidth", "provisioned_power", "launch", "tensor_bf16"}


def test_a_budget_that_is_used_up_without_a_price_is_told_apart(summary):
    changed = json.loads(json.dumps(summary))
    for problem in changed["problems"]:
        for d in problem["designs"]:
            if d["feasible"] and d["technology"] == "hbm4":
                d["shadow_prices"]["shoreline"] = {"left": 2e-9, "right": 0.0}
    found = tables(changed)
    states = {(r["budget"], r["active"], r["idle"]) for r in found["budget_use"] if r["part"] == "optimum:hbm4"}
    assert {("shoreline", True, True), ("package_power", True, False), ("die_area", False, False)} <= states
    told = {r["active"] for r in found["rounding"] if r["part"] == "optimum:hbm4"}
    assert told == {"package power; shoreline (used up, worth nothing at the margin)"}


def test_an_optimum_stands_over_the_frontier_of_a_part_of_its_technology(summary, rows):
    behind = [r for r in rows["frontier_behind"] if (r["case"], r["part"]) == ("c131072-bf16", "optimum:hbm4")]
    built_with = {m["title"] for p in summary["problems"] for m in p["machines"] if m["memory_technology"] == "hbm4"}
    assert len({r["label"] for r in behind}) == 1
    assert behind[0]["label"] in built_with
    theirs = [r for r in rows["frontier"] if r["label"] == behind[0]["label"] and r["case"] == "c131072-bf16"]
    assert [r["value"] for r in behind] == [r["value"] for r in theirs if r["kind"] == "frontier"]
    assert not [r for r in rows["frontier_behind"] if r["part"] == "optimum:super-3d-ram"]


def test_a_built_design_is_drawn_with_its_own_operations(summary):
    changed = json.loads(json.dumps(summary))
    problem = next(p for p in changed["problems"] if p["id"] == PROBLEM)
    d = next(d for d in problem["designs"] if d["technology"] == "hbm4")
    slower = [o | {"time_s": 2.0 * o["time_s"], "hidden_s": 2.0 * o["hidden_s"]} for o in d["operations"]]
    d["rounded"] |= {"operations": slower}
    d["rounded"]["metrics"]["tpot_s"] = 2.0 * d["metrics"]["tpot_s"]
    found = [r for r in operations(changed, 0.0) if (r["problem"], r["part"]) == (PROBLEM, "optimum:hbm4")]
    assert sum(r["time"] - r["hidden"] for r in found) == pytest.approx(2e3 * d["metrics"]["tpot_s"])
    assert "Optima are shown as built" in page(changed)
    assert "Optima are shown before rounding" in page(summary)


def test_power_drawn_adds_up_to_all_in(summary, rows):
    here = [r for r in rows["power_drawn"] if (r["problem"], r["part"]) == (PROBLEM, PART)]
    assert {"static", "memory", "tensor", "host, network, cooling"} <= {r["share"] for r in here}
    assert sum(r["watts"] for r in here) == pytest.approx(entry(summary, PROBLEM, PART)["metrics"]["all_in_power_w"])


def test_the_answer_is_the_buildable_design_and_its_gain_over_the_best_part(summary, rows):
    for row, problem in zip(rows["matrix"], summary["problems"], strict=True):
        built = [d["rounded"]["metrics"]["tokens_per_s_per_megawatt"] for d in problem["designs"] if d["feasible"]]
        parts = [m["metrics"]["tokens_per_s_per_megawatt"] for m in problem["machines"] if m["feasible"]]
        assert row["value"] == (max(built) if built else None)
        assert row["gain"] == (pytest.approx(max(built) / max(parts)) if built and parts else None)


def test_parts_that_miss_the_target_come_last_with_what_they_reach(rows):
    here = [r for r in rows["answers"] if r["problem"] == "c131072-bf16-t0.005"]
    assert [r["feasible"] for r in here] == [True, False, False, False, False]
    least = [r["least_tpot"] for r in here if r["least_tpot"] and not r["feasible"]]
    assert least == sorted(least)
    assert min(least) > 5.0


def test_an_optimum_stands_beside_the_best_part_of_its_technology(rows):
    found = {(r["problem"], r["part"]): r for r in rows["same_technology"]}
    row = found["c131072-bf16-t0.02", "optimum:hbm4"]
    assert row["machine"] == "OpenAI Jalapeno (128 local)"
    assert row["gain"] == pytest.approx(row["value"] / row["machine_value"])
    assert row["verdict"] == "ahead"
    assert (
        found["c131072-bf16-t0.02", "optimum:super-3d-ram"]["verdict"] == "no part of this technology meets the target"
    )
    assert found["c515000-bf16-t0.005", "optimum:hbm4"]["verdict"] == "neither meets the target"


def test_starts_and_iterates_are_told_by_their_distance_from_the_optimum(rows):
    starts = [r for r in rows["starts"] if (r["problem"], r["part"]) == (PROBLEM, "optimum:hbm4")]
    assert [r["gap"] for r in starts] == pytest.approx([1e-4, 0.002, 0.03])
    curve = [r["gap"] for r in rows["convergence"] if (r["problem"], r["part"]) == (PROBLEM, "optimum:hbm4")]
    assert curve[:3] == pytest.approx([2.0, 1.6, 1.28])
    near = next(r for r in rows["rounding"] if (r["problem"], r["part"]) == (PROBLEM, "optimum:hbm4"))
    assert (near["starts_near"], near["starts"]) == (2, 3)


def test_terms_of_a_published_point_are_set_against_the_pass_it_implies(rows):
    here = [r for r in rows["check_terms"] if r["name"].startswith("K3 on GB300")]
    assert sum(r["ms"] for r in here) == pytest.approx(7.8)
    assert [r["published"] for r in here] == pytest.approx([7.8 * 128 / 111] * 3)


def test_an_unknown_is_told_by_the_range_it_spans_and_where_the_order_turns(rows):
    here = {
        r["title"]: r
        for r in rows["sensitivity"]
        if (r["arch"], r["setting"]) == ("jalapeno", "20 ms, attention in BF16")
    }
    fp8 = here["tensor FP8"]
    assert (fp8["low"], fp8["high"], fp8["base"]) == (0.91e5, 1.3e5, 1.3e5)
    assert (fp8["at_low"], fp8["at_high"]) == ("3.35 PFLOP/s", "6.7 PFLOP/s")
    assert here["scale-up hop"]["unserved"] == "800 ns"
    assert (here["all unknowns together"]["low"], here["all unknowns together"]["high"]) == (0.8e5, 1.6e5)
    table = next(r for r in rows["unknowns"] if r["title"] == "tensor FP8")
    assert table["turns"].startswith("Vera Rubin NVL72 at 3.9 PFLOP/s (20 ms")
    assert [r["setting"] for r in rows["sensitivity"] if r["arch"] == "vera-rubin-nvl72"] == ["as stated"]
    assert {(r["series"], r["metric"]) for r in rows["rivals"]} == {("Vera Rubin NVL72", 1.0e5)}


def test_bounds_that_hold_a_variable_are_marked(rows):
    at = {(r["variable"], r["at"]) for r in rows["mixes"]}
    assert ("scale_up_domain", "high") in at
    assert not {v for v, where in at if where and v != "scale_up_domain"}


def test_forecast_bands_belong_to_their_case_only(summary, rows):
    assert {r["case"] for r in rows["bands"]} == {"c515000-bf16", "c515000-fp8"}
    assert bands(summary | {"model": "deepseek-v3"}, Case(515000.0, "fp8")) == ()
    assert [(b.low, b.high) for b in bands(summary, Case(515000.0, "fp8")) if b.arch == "jalapeno"] == [(1e5, 3e5)]


def test_a_shadow_price_on_a_kink_keeps_both_ends(rows):
    found = {r["budget"]: (r["low"], r["high"], r["tie"]) for r in rows["shadow_prices"]}
    assert found["package_power"] == (0.4, 0.62, True)
    assert found["target_tpot"] == (0.35, 0.35, False)


# Pieces


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_labels_keep_their_order_and_distance(heights):
    gap = 0.03
    placed = spread(heights, gap)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    steps = [placed[b] - placed[a] for a, b in pairwise(order)]
    assert all(step >= gap - 1e-12 for step in steps)
    assert max(placed) <= 1.0 + 1e-12
    assert min(placed) >= -1e-12


@given(st.floats(1e-3, 1e6), st.floats(1.02, 1e5))
def test_ticks_lie_inside_and_are_few(low, factor):
    ticks = log_ticks(low, low * factor, 7)
    assert len(ticks) <= 7
    assert all(low * (1 - 1e-9) <= t <= low * factor * (1 + 1e-9) for t in ticks)
    assert ticks == sorted(ticks)


def test_packing_keeps_what_is_drawn():
    given_rows = [
        {"a": "x", "b": 1.23456789e-5, "c": True},
        {"a": None, "b": math.nan},
        {"a": "x", "b": 3.0, "c": None},
    ]
    packed = pack_table(given_rows)
    assert packed["n"] == 3
    words, codes = packed["columns"]["a"]["words"], packed["columns"]["a"]["codes"]
    assert [words[i] for i in codes] == ["x", None, "x"]
    assert packed["columns"]["b"] == [pytest.approx(1.2346e-5, rel=1e-12), None, 3]
    assert packed["columns"]["c"] == [True, None, None]


def test_names_as_people_write_them():
    assert pretty("hybrid-bonded-dram") == "Hybrid-bonded DRAM"
    assert pretty("super-3d-ram") == "Super 3D RAM"
    assert pretty("hbm4") == "HBM4"
    assert context_words(131072.0) == "128Ki"
    assert context_words(515000.0) == "515,000"
    assert plain(412345.0) == "412,000"
    assert plain(0.0312) == "0.0312"
    assert mapping_words({"chips": 8, "pp": 1, "tp": 8, "dp": 1, "ep": 8, "attention_split": "context"}) == (
        "8 chips: PP 1 · TP 8 · DP 1 · EP 8 · KV by context"
    )
    assert mapping_words({"chips": 1, "pp": 1, "tp": 1, "dp": 1, "ep": 1}) == "1 chip: PP 1 · TP 1 · DP 1 · EP 1"


def lab(colour: str) -> tuple[float, float, float]:
    """CIE L*a*b* of an sRGB colour under D65 (CIE 15:2004)."""
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def test_no_two_of_sixteen_machines_share_a_colour(summary):
    parts = parts_of(summary | {"machines": [f"part-{i}" for i in range(16)], "problems": [], "frontiers": []})
    machines = [p for p in parts if not p.optimum]
    assert len(machines) == 16
    for a, b in combinations(parts, 2):  # a just noticeable difference is about 2.3
        assert math.dist(lab(a.colour), lab(b.colour)) > (20 if not a.optimum else 15), (a, b)


def test_parts_look_different_from_each_other(summary):
    looks = [(p.colour, p.shape) for p in parts_of(summary | {"machines": [f"part-{i}" for i in range(26)]})]
    assert len(set(looks)) == len(looks) >= 28


# Charts


def test_specifications_follow_the_vega_lite_schema(summary, rows):
    made = figures(summary, rows)
    assert len(made) == 17
    for figure in made.values():
        for panel in figure.panels:
            alt.Chart.from_dict(json.loads(json.dumps(panel)), validate=True)
        assert set(figure.tables()) <= set(rows)


def test_long_names_are_not_cut(summary):
    name = "Jalapeno with hybrid-bonded DRAM (128)"
    changed = json.loads(json.dumps(summary))
    for problem in changed["problems"]:
        problem["machines"][-1]["title"] = name
    found = tables(changed)
    made = figures(changed, found)
    values = defaults(changed, found)
    for figure in ("answer", "power_drawn"):
        svg = draw(complete(made[figure], changed, found, values), ["svg"])["svg"].decode()
        assert f">{name}</text>" in svg
        assert "…" not in svg


def test_every_chart_says_its_basis(html):
    document = unpacked(html)
    for figure in document["figures"].values():
        assert OUTPUT_WORDS in figure["basis"]
        assert "per user; output tokens; provisioned megawatts" in figure["basis"]
    drawn = re.findall(r'data-figure="(\w+)"', html)
    assert sorted(drawn) == sorted(document["figures"])
    assert html.count("per user; output tokens; provisioned megawatts") >= len(drawn)


def test_charts_that_a_summary_cannot_fill_are_left_out(summary):
    bare = {**summary, "frontiers": [], "power_table": None, "checks": None, "sensitivity": []}
    names = set(figures(bare, tables(bare)))
    assert not names & {"power_table", "checks", "sensitivity"}
    assert "frontier" in names, "the answers at the targets still make a frontier"


# The page


def test_the_page_loads_nothing(html):
    outside = re.compile(
        r"""(?:src|href|action|data|poster)\s*=\s*["']?\s*(?:https?:)?//|url\(\s*["']?\s*(?:https?:)?//|@import|<link\b|<iframe\b""",
        re.IGNORECASE,
    )
    shell = re.sub(r"<script>\(function \(\) \{.*?</script>", "", html, flags=re.DOTALL)
    assert not outside.search(shell)
    assert "http" not in shell.replace("http-equiv", "")
    assert not re.search(r"<script[^>]+src", html)


def test_the_page_is_about_a_megabyte(html):
    assert 0.8e6 < len(html.encode()) < 1.4e6


def test_words_from_the_study_are_escaped(html):
    assert "Launches bind at 5 ms &lt;&amp; more&gt;." in html


def test_the_page_is_the_same_for_the_same_summary(summary, html):
    assert page(make_summary()) == html


def test_answers_stand_in_the_page_without_any_script(html):
    assert html.count('<div class="answer"') == 12
    assert "A searched Super 3D RAM design serves the most" in html
    assert "Nothing meets this target: no searched design" in html
    assert 'id="term-tokens_per_s_per_megawatt"' in html


def test_an_infeasible_study_is_still_a_report(summary):
    none: dict[str, Any] = json.loads(json.dumps(summary))
    for problem in none["problems"]:
        problem["best"] = None
        problem["designs"] = [{"technology": t, "feasible": False} for t in TECHNOLOGIES]
        problem["machines"] = [
            {"arch": m["arch"], "title": m["title"], "feasible": False, "metrics": None} for m in problem["machines"]
        ]
    none["frontiers"] = None
    text = page(none)
    assert "Nothing meets this target: no searched design, and none of the study&#39;s parts." in text


@pytest.mark.parametrize(
    "key", sorted(k for k in make_summary() if k not in ("schema", "problems", "contexts", "precisions"))
)
def test_what_is_absent_or_null_does_not_stop_the_tables(summary, key):
    for changed in ({k: v for k, v in summary.items() if k != key}, summary | {key: None}):
        assert tables(changed)["answers"]


def test_a_design_without_its_diagnostics_still_counts(summary):
    bare = json.loads(json.dumps(summary))
    for problem in bare["problems"]:
        for d in problem["designs"]:
            for key in set(d) - {"technology", "feasible", "metrics"}:
                d[key] = None
        for m in problem["machines"]:
            for key in set(m) - {"arch", "title", "feasible", "metrics"}:
                m[key] = None
    found = tables(bare)
    assert [r for r in found["answers"] if r["optimum"] and r["value"]]
    assert found["operations"] == found["mixes"] == []
    assert "design serves the most" in page(bare)


# Files


def test_a_report_is_written_whole_beside_the_summary(run):
    path = write_report(run)
    assert path == run / "report.html"
    assert sorted(p.name for p in run.iterdir()) == ["report.html", "summary.json"]
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_a_report_that_fails_leaves_the_old_one(run, monkeypatch):
    (run / "report.html").write_text("old", encoding="utf-8")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CodesignError, match="disk is full"):
        write_report(run)
    monkeypatch.undo()
    assert (run / "report.html").read_text(encoding="utf-8") == "old"
    assert sorted(p.name for p in run.iterdir()) == ["report.html", "summary.json"]


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "no summary"), ("{", "not readable"), ("[]", "schema"), ('{"schema": "x/1"}', "schema 'x/1'")],
)
def test_what_is_no_summary_is_refused_in_one_line(tmp_path, text, why):
    if text is not None:
        (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(CodesignError, match=why) as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)


def test_tables_are_exported_with_every_operation(run, tmp_path, summary):
    files = export(run, tmp_path / "out", formats=["csv"])
    assert {f.suffix for f in files} == {".csv"}
    with (tmp_path / "out" / "operations.csv").open(encoding="utf-8") as file:
        found = [r for r in csv.DictReader(file) if r["problem"] == PROBLEM and r["part"] == PART]
    assert {"kda.norm", "moe.router", "head"} <= {r["name"] for r in found}
    ours = entry(summary, PROBLEM, PART)["operations"]
    assert sum(float(r["time"]) for r in found) == pytest.approx(1e3 * sum(o["time_s"] for o in ours))


def test_images_are_drawn_without_a_browser(run, tmp_path):
    short = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    short["problems"] = [p for p in short["problems"] if p["id"].startswith("c515000-fp8")]
    short["frontiers"] = [f for f in short["frontiers"] if f["context"] == 515000 and f["precision"] == "fp8"]
    (run / "summary.json").write_text(json.dumps(short), encoding="utf-8")
    files = export(run, tmp_path / "out", formats=["svg", "png"])
    svg = {f.stem: f.read_text(encoding="utf-8") for f in files if f.suffix == ".svg"}
    assert len(svg) == 18  # sensitivities of two machines
    for name, text in svg.items():
        marks = re.findall(r'<g class="mark-(?:symbol|rect|line|rule|text)[^>]*>(?=<)', text)
        assert len(marks) > 1, name
        assert "provisioned megawatts" in text, name
    assert "forecast: Jalapeño" in svg["frontier-c515000-fp8"]
    assert all(f.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for f in files if f.suffix == ".png")
    assert len(files) == 36


def test_an_unknown_format_is_refused(run, tmp_path):
    with pytest.raises(CodesignError, match="unknown format 'pdf'"):
        export(run, tmp_path / "out", formats=["pdf"])


def test_held_back_points_stand_with_their_errors_and_intervals(summary: dict[str, Any]) -> None:
    found = tables(summary)
    first, second = found["held_back"]
    assert (first["error"], second["error"]) == (pytest.approx(0.1), pytest.approx(-0.25))
    # 11 ms / e^0.2 = 9.006 ms is below the measured 10; 15 ms x e^0.2 = 18.3 ms is below the measured 20.
    assert first["low"] == pytest.approx(9.006, abs=1e-3) and second["high"] == pytest.approx(18.321, abs=1e-3)
    made = figures(summary, found)["held_back"]
    assert "2 closed-loop serving points" in made.caption and "50% inside" in made.caption
    bare = summary | {"held_back": []}
    assert "held_back" not in figures(bare, tables(bare))
