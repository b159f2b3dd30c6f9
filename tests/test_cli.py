"""The command line: exit codes, one line per error, one JSON document on stdout, answers that add up."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from summaries import make_summary

from codesign.cli import run
from codesign.comparison import compare, compare_documents
from codesign.errors import CodesignError
from codesign.glossary import unknown

ROOT = Path(__file__).resolve().parents[1]
K3 = ("--arch", "gb200-nvl72", "--model", "kimi-k3", "--context", "128Ki")


COMMANDS = (
    "list", "show", "evaluate", "frontier", "compare", "optimize", "status", "report", "verify", "calibrate",
    "validate", "bench", "init", "doctor",
)  # fmt: skip


class Told(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        assert self.code == 0, self.err
        assert self.err == ""
        return json.loads(self.out)


Codesign = Callable[..., Told]


@pytest.fixture
def codesign(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Codesign:
    """Run a command in this process, at the top of the checkout."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(ROOT)

    def call(*args: str) -> Told:
        capsys.readouterr()
        code = run(args)
        told = capsys.readouterr()
        return Told(code, told.out, told.err)

    return call


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("evaluate", *K3[:4], "--context", "many"), ("--context", "is not a number")),
        (("evaluate", *K3[:4], "--context", "20 s"), ("--context", "wrong dimension", "128Ki")),
        (("evaluate", *K3[:4], "--context", "-5"), ("--context", "negative", "more than zero")),
        (("evaluate", *K3[:4], "--context", "0"), ("--context", "zero", "more than zero")),
        (("evaluate", *K3[:4], "--context", "1.5"), ("--context", "fraction", "whole number")),
        (("evaluate", *K3[:4], "--context", "1e30"), ("--context", "at most 1,000,000,000")),
        (("evaluate", *K3, "--batch", "1e30"), ("--batch", "at most 10,000,000")),
        (("evaluate", *K3, "--weights", ""), ("--weights: is empty",)),
        (("evaluate", *K3, "--skew", "nan"), ("--skew", "0 to 1.5")),
        (("evaluate", *K3, "--set", "foo=1"), ("--set", "section.key=value", "accelerator.memory_bandwidth")),
        (("evaluate", *K3, "--set", "model.hidden=-1"), ("--set model.hidden", "-1 is out of bounds", "at least 1")),
        (("evaluate", *K3[2:], "--arch", "kimi-k3"), ("--arch: 'kimi-k3' is a model, not a system",)),
        (("evaluate", *K3, "--tpot", "20"), ("--tpot", "no unit", "20 ms")),
        (("evaluate", *K3, "--tpot", "0 ms"), ("--tpot",)),
        (("evaluate", *K3, "--phase", "dream"), ("--phase", "allowed: prefill, midfill, decode, serve")),
        (("evaluate", *K3, "--chips", "several"), ("--chips",)),
        (("evaluate", *K3, "--chips", "0"), ("--chips",)),
        (("evaluate", *K3, "--chips", "7", "--pp", "2"), ("chips",)),
        (("evaluate", *K3, "--batch", "nan"), ("--batch",)),
        (("evaluate", *K3, "--attention-split", "sideways"), ("heads, context",)),
        (("evaluate", *K3, "--kv-dtype", "fp7"), ("--kv-dtype", "fp8")),
        (("evaluate", *K3, "--experts-on", "jalapeno", "--osl", "5000"), ("--osl: has no meaning for two pools",)),
        (("evaluate", *K3, "--experts-on", "jalapeno", "--dp", "2"), ("--dp: has no meaning for two pools", "--ep")),
        (("evaluate", *K3, "--experts-on", "jalapeno", "--output", "0"), ("--output",)),
        (("evaluate", *K3, "--set", "accelerator.memory_bandwidht=3 TB/s"), ("--set", "memory_bandwidth")),
        (("evaluate", *K3, "--set", "accelerator.memory_bandwidth=3 GB"), ("memory_bandwidth", "B/s")),
        (("evaluate", "--arch", "gb200-nvl27", *K3[2:]), ("gb200-nvl27", "gb200-nvl72")),
        (("evaluate", *K3[:2], "--model", "kimi-k33", *K3[4:]), ("kimi-k33", "kimi-k3")),
        (("evaluate", *K3[2:]), ("--arch", "codesign evaluate --help")),
        (("evaluate", *K3, "--tops", "20 ms"), ("--tops",)),
        (("evaluat", *K3), ("evaluat",)),
        (("list", "fridge"), ("fridge", "arch, workloads, optimize")),
        (("list", "--workspace", "no/such/folder"), ("--workspace", "codesign init")),
        (("show", "kimi-k33"), ("kimi-k33", "kimi-k3")),
        (("compare", "one.json"), ("at least two",)),
        (("compare", "one.json", "two.json"), ("one.json", "no such file")),
        (("compare", "README.md", "README.md"), ("README.md", "JSON")),
        (("optimize", "no-such-study.toml"), ("no-such-study",)),
        (("status", "no/such/run"), ("no/such/run",)),
        (("report", "no/such/run"), ("no/such/run",)),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    codesign: Codesign, args: tuple[str, ...], says: tuple[str, ...]
) -> None:
    told = codesign(*args)
    assert told.code == 2, told.out + told.err
    assert told.out == ""
    assert told.err.startswith("codesign: ")
    assert told.err.count("\n") == 1
    for words in says:
        assert words in told.err


def test_help_names_each_command_with_examples(codesign: Codesign) -> None:
    told = codesign("--help")
    assert told.code == 0
    for command in COMMANDS:
        assert f" {command} " in told.out
        page = codesign(command, "--help")
        assert page.code == 0
        assert f"codesign {command}" in page.out.split("Examples")[1]
        assert "--json" in page.out
        assert "--workspace" in page.out


def test_help_of_evaluate_has_every_flag_of_the_mapping_and_the_precision(codesign: Codesign) -> None:
    page = codesign("evaluate", "--help").out
    for flag in (
        "--arch", "--model", "--phase", "--context", "--tpot", "--chips", "--pp", "--tp", "--dp", "--ep",
        "--attention-split", "--batch", "--microbatches", "--drafts", "--weights", "--kv-dtype", "--attention-dtype",
        "--ideal", "--set",
    ):  # fmt: skip
        assert f"{flag} " in page


def test_version_is_that_of_the_package(codesign: Codesign) -> None:
    told = codesign("--version")
    assert told.code == 0
    assert told.out.startswith("codesign ")


def test_list_names_machines_and_models(codesign: Codesign) -> None:
    entries = codesign("list", "--json").json()["entries"]
    named = {(entry["kind"], entry["name"]) for entry in entries}
    assert {("system", "gb200-nvl72"), ("memory", "hbm4"), ("model", "kimi-k3")} <= named
    assert not [entry for entry in entries if entry["problem"]]
    workloads = codesign("list", "workloads", "--json").json()["entries"]
    assert {entry["kind"] for entry in workloads} == {"model", "request"}
    assert "gb200-nvl72" in codesign("list", "arch").out


def test_show_has_unit_kind_and_source_of_each_number(codesign: Codesign) -> None:
    shown = codesign("show", "h100", "--json").json()
    numbers = {number["key"]: number for number in shown["numbers"]}
    for number in numbers.values():
        assert number["kind"] in ("datasheet", "measured", "fitted", "estimate", "assumption", "rumour")
        assert number["source"]
    # The datasheet: 3.35 TB/s of HBM3, 80 GB, 700 W.
    assert numbers["accelerator.memory_bandwidth"]["si"] == 3.35e12
    assert numbers["accelerator.memory_bandwidth"]["unit"] == "B/s"
    assert numbers["accelerator.memory_capacity"]["si"] == 80e9
    assert numbers["accelerator.chip_power"]["si"] == 700.0
    page = codesign("show", "h100").out
    assert "3.35 TB/s" in page
    assert "datasheet" in page


def test_show_of_a_model_has_its_published_counts(codesign: Codesign) -> None:
    counts = codesign("show", "kimi-k3", "--json").json()["counts"]
    assert counts["total_parameters"] == pytest.approx(2779.48e9, rel=1e-3)
    assert counts["active_parameters"] == pytest.approx(104.19e9, rel=1e-3)
    assert counts["kv_bytes_per_token"] == 27_648
    assert counts["state_bytes_per_sequence"] == pytest.approx(449.37e6, rel=1e-4)
    assert "27,648 B" in codesign("show", "kimi-k3").out


def test_show_toml_is_the_file_itself(codesign: Codesign) -> None:
    told = codesign("show", "gb200-nvl72", "--toml")
    assert told.out == (ROOT / "arch/systems/gb200-nvl72.toml").read_text()


def test_evaluate_reads_units_and_its_numbers_add_up(codesign: Codesign) -> None:
    found = codesign("evaluate", *K3, "--tpot", "20 ms", "--json").json()
    assert found["schema"] == "codesign.evaluation/1"
    assert found["request"]["context"] == 128 * 1024
    metrics, mapping = found["metrics"], found["mapping"]
    assert found["feasible"]
    assert metrics["tpot_s"] <= 0.020
    assert metrics["tokens_per_s_per_user"] == pytest.approx(1 / metrics["tpot_s"])
    assert metrics["tokens_per_s"] == pytest.approx(metrics["tokens_per_s_per_chip"] * mapping["chips"])
    assert mapping["chips"] == mapping["pp"] * mapping["tp"] * mapping["dp"]
    exposed = sum(op["time_s"] - op["hidden_s"] for op in found["operations"])
    assert exposed == pytest.approx(metrics["pass_s"], rel=1e-9)


def test_evaluate_tells_the_answer_before_its_warnings(codesign: Codesign) -> None:
    request = ("--model", "kimi-k3", "--context", "128Ki", "--tpot", "50 ms")
    page = codesign("evaluate", "--arch", "gb300-nvl72", *request).out
    assert page.index("TPOT") < page.index("operation") < page.index("rests on") < page.index("warnings")
    assert "gb300-nvl72" in page
    assert "inherited: blackwell" in page


def test_what_cannot_be_met_is_an_answer(codesign: Codesign) -> None:
    found = codesign("evaluate", *K3, "--tpot", "10 us", "--json").json()
    assert not found["feasible"]
    least = found["margin"]["least_tpot_s"]
    assert found["margin"]["missing_s"] == pytest.approx(least - 10e-6)
    page = codesign("evaluate", *K3, "--tpot", "10 us")
    assert page.code == 0
    assert "not feasible" in page.out
    # One chip cannot hold 1.56 TB of weights.
    small = codesign("evaluate", *K3, "--chips", "1", "--json").json()
    assert not small["feasible"]
    assert small["margin"]["missing_bytes"] > 1.3e12


def test_an_override_reaches_the_machine(codesign: Codesign) -> None:
    found = codesign("evaluate", *K3, "--set", "accelerator.memory_bandwidth=10 TB/s", "--json").json()
    assert found["machine"]["rates"]["memory"] == 10e12


def test_frontier_trades_speed_for_throughput(codesign: Codesign) -> None:
    points = codesign("frontier", *K3, "--json").json()
    assert len(points) > 2
    tpot = [point["metrics"]["tpot_s"] for point in points]
    rate = [point["metrics"]["tokens_per_s_per_megawatt"] for point in points]
    assert tpot == sorted(tpot)
    assert rate == sorted(rate)


def _evaluation(**times: tuple[float, float]) -> dict[str, Any]:
    """As much of an evaluation as a comparison reads: seconds and hidden seconds by operation."""
    operations = [{"name": n, "time_s": t, "hidden_s": h, "bound_by": "memory"} for n, (t, h) in times.items()]
    exposed = sum(t - h for t, h in times.values())
    return {
        "schema": "codesign.evaluation/1", "model": "m", "arch": "a", "request": {"batch": 1.0}, "precision": {},
        "mapping": {"chips": 8}, "metrics": {"pass_s": exposed, "tpot_s": exposed}, "operations": operations,
    }  # fmt: skip


def test_compare_leads_from_one_pass_to_the_other() -> None:
    # By hand: scan 3 -> 5, experts 4 -> 2 of which 1 is hidden (so 4 -> 1), all-to-all only in the second.
    found = compare(_evaluation(scan=(3, 0), experts=(4, 0)), _evaluation(scan=(5, 0), experts=(2, 1), exchange=(1, 0)))
    steps = {step["name"]: step["difference_s"] for step in found["waterfall"]}
    assert steps == {"experts": -3, "scan": 2, "exchange": 1}
    assert found["waterfall"][0]["name"] == "experts"
    assert sum(steps.values()) == found["metrics"]["pass_s"]["b"] - found["metrics"]["pass_s"]["a"] == 0
    assert found["metrics"]["pass_s"]["ratio"] == 1
    assert found["changed"] == {}


def _run(**rates: float | None) -> dict[str, Any]:
    """As much of a study's summary as a comparison reads: tokens/s and megawatt by problem."""
    problems = []
    for name, rate in rates.items():
        best: dict[str, Any] = _evaluation(scan=(3, 0)) | {"technology": "hbm4"}
        best["metrics"]["tokens_per_s_per_megawatt"] = rate
        problems.append({"id": name, "precision": "fp8", "best": best if rate is not None else None})
    return {"schema": "codesign.study/1", "name": "s", "model": "m", "problems": problems}


def test_compare_of_runs_goes_problem_by_problem() -> None:
    found = compare_documents(_run(p=2.0, q=None, only=1.0), _run(q=5.0, p=3.0), ("a", "b"))
    assert [(p["id"], p["a"], p["b"], p["ratio"]) for p in found["problems"]] == [
        ("p", 2, 3, 1.5),
        ("q", None, 5, None),
    ]
    assert (found["only_a"], found["only_b"]) == (["only"], [])
    with pytest.raises(CodesignError, match="does not compare"):
        compare_documents(_run(p=1.0), _evaluation(scan=(3, 0)), ("a", "b"))


def test_compare_reads_what_evaluate_wrote(codesign: Codesign, tmp_path: Path) -> None:
    slow, fast = tmp_path / "slow.json", tmp_path / "fast.json"
    mapping = ("--tp", "1", "--dp", "64", "--pp", "1", "--ep", "64", "--batch", "4")
    slow.write_text(codesign("evaluate", *K3, *mapping, "--json").out)
    fast.write_text(codesign("evaluate", *K3, *mapping, "--set", "accelerator.memory_bandwidth=16 TB/s", "--json").out)
    found = codesign("compare", str(slow), str(fast), "--json").json()
    whole = found["metrics"]["pass_s"]
    assert whole["b"] < whole["a"]
    assert sum(step["difference_s"] for step in found["waterfall"]) == pytest.approx(whole["b"] - whole["a"], rel=1e-6)
    page = codesign("compare", str(slow), str(fast)).out
    assert found["waterfall"][0]["name"] in page


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder with a finished study's summary."""
    folder = tmp_path / "made-up"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(make_summary()))
    return folder


def test_report_writes_the_page_and_exports_tables(codesign: Codesign, run_folder: Path, tmp_path: Path) -> None:
    told = codesign("report", str(run_folder), "--csv", str(tmp_path / "tables"), "--json").json()
    assert Path(told["report"]) == run_folder / "report.html"
    assert "<html" in (run_folder / "report.html").read_text()
    assert told["files"]
    assert all(Path(name).suffix == ".csv" and Path(name).stat().st_size for name in told["files"])


def test_compare_takes_run_folders(codesign: Codesign, run_folder: Path, tmp_path: Path) -> None:
    # The same study, but for one problem that nothing serves any more.
    other = tmp_path / "other"
    other.mkdir()
    summary = make_summary()
    gone = next(problem for problem in summary["problems"] if problem["best"])
    gone["best"] = None
    (other / "summary.json").write_text(json.dumps(summary))
    problems = {p["id"]: p for p in codesign("compare", str(run_folder), str(other), "--json").json()["problems"]}
    assert len(problems) == len(summary["problems"])
    assert problems.pop(gone["id"])["b"] is None
    assert {p["ratio"] for p in problems.values()} <= {1.0, None}
    assert gone["id"] in codesign("compare", str(run_folder), str(other)).out


def test_optimize_ends_with_a_table_and_the_path_of_the_report(
    codesign: Codesign, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = make_summary()

    def found(*args: Any, progress: Callable[[int, int, str], None], **kwargs: Any) -> dict[str, Any]:
        progress(1, 2, "half")
        return summary

    monkeypatch.setattr("codesign.api.optimize", found)
    told = codesign("optimize", "optimize/tokens-per-megawatt.toml", "--out", "runs/mine")
    assert told.code == 0
    assert told.err == "1/2 half\n"
    assert told.out.splitlines()[-1].split() == ["report", "runs/mine/report.html"]
    best = next(problem["best"] for problem in summary["problems"] if problem["best"])
    assert best["technology"] in told.out
    quiet = codesign("optimize", "optimize/tokens-per-megawatt.toml", "--json")
    assert quiet.json() == summary


def test_init_makes_a_catalog_that_is_looked_up_first(codesign: Codesign, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    made = codesign("init", str(mine), "--json").json()
    assert "arch/systems/b200.toml" in made["files"]
    chip = mine / "arch/accelerators/b200.toml"
    chip.write_text(chip.read_text().replace('value = "7.7 TB/s"', 'value = "7.9 TB/s"'))
    numbers = codesign("show", "b200", "--workspace", str(mine), "--json").json()["numbers"]
    assert {n["key"]: n["si"] for n in numbers}["accelerator.memory_bandwidth"] == 7.9e12
    again = codesign("init", str(mine))
    assert again.code == 2
    assert "7.9 TB/s" in chip.read_text()


def test_doctor_finds_a_damaged_file(codesign: Codesign, tmp_path: Path) -> None:
    assert codesign("doctor", "--json").json()["ok"]
    mine = tmp_path / "mine"
    codesign("init", str(mine))
    (mine / "arch/memories/hbm4.toml").write_text("name = 'hbm4'\n[[")
    told = codesign("doctor", "--workspace", str(mine), "--json")
    assert told.code == 1
    failed = [check for check in json.loads(told.out)["checks"] if check["ok"] is False]
    assert any("hbm4.toml" in check["found"] for check in failed)


def test_an_unforeseen_failure_is_one_line_and_exit_code_1(codesign: Codesign, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("of\ntwo lines")

    monkeypatch.setattr("codesign.api.evaluate", fail)
    told = codesign("evaluate", *K3)
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("codesign: failed: ZeroDivisionError: of two lines")
    assert told.err.count("\n") == 1
    monkeypatch.setenv("CODESIGN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        codesign("evaluate", *K3)


def test_an_interrupted_study_says_how_to_go_on(codesign: Codesign, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("codesign.api.evaluate", stop)
    assert codesign("evaluate", *K3)[0] == 130
    monkeypatch.setattr("codesign.api.optimize", stop)
    told = codesign("optimize", "optimize/tokens-per-megawatt.toml")
    assert (told.code, told.out) == (130, "")
    assert "--resume" in told.err
    assert told.err.count("\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from codesign.cli import main; main()", "list", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as program:
        assert program.stdout
        assert program.stderr
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait() == 141


def _log(run: Path, *events: tuple[float, str, dict[str, int]]) -> None:
    lines = [json.dumps({"time": time, "event": event, **details}) for time, event, details in events]
    (run / "log.jsonl").write_text("\n".join(lines))


def test_status_counts_what_is_solved_since_the_start(codesign: Codesign, tmp_path: Path) -> None:
    study = (ROOT / "optimize/tokens-per-megawatt.toml").read_text()
    (tmp_path / "study.toml").write_text(study)
    # 6 targets, 2 contexts, 2 precisions.
    fresh = codesign("status", str(tmp_path), "--json").json()
    assert (fresh["state"], fresh["solved"], fresh["problems"]) == ("unfinished", 0, 24)
    # An earlier run of the same folder, then one that was killed after 2, resumed, and solved 4 more in 40 s.
    earlier = ((0.0, "started", {}), (1.0, "solved", {}), (2.0, "finished", {}))
    killed = ((100.0, "started", {"solved": 0}), (110.0, "solved", {}), (120.0, "solved", {}))
    resumed = ((200.0, "resumed", {"solved": 2}), *((210.0 + 10 * i, "solved", {}) for i in range(4)))
    _log(tmp_path, *earlier, *killed, *resumed)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('\n{"time": 300.0, "event": "sol')
    told = codesign("status", str(tmp_path), "--json").json()
    assert (told["state"], told["solved"]) == ("unfinished", 6)
    assert told["remaining_s"] == pytest.approx(18 * 10)
    assert "6 of 24" in codesign("status", str(tmp_path)).out


def test_every_name_of_a_result_is_in_the_glossary(codesign: Codesign) -> None:
    found = codesign("evaluate", *K3, "--tpot", "20 ms", "--json").json()
    parts = [found[part] for part in ("request", "mapping", "metrics", "memory", "counts")]
    names = {name for part in (*parts, *found["operations"]) for name in part}
    assert len(names) > 60
    assert unknown(sorted(names)) == []


@pytest.mark.parametrize("width", [40, 80, 120])
def test_narrow_terminals_cut_no_number_and_break_no_name(
    codesign: Codesign, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    asked = ("evaluate", *K3, "--tp", "1", "--dp", "64", "--pp", "1", "--ep", "64", "--batch", "4")
    found = codesign(*asked, "--json").json()
    monkeypatch.setenv("COLUMNS", str(width))
    page = codesign(*asked).out
    rows = {line.split()[0]: line for line in page.splitlines() if line.split()}
    whole = found["metrics"]["pass_s"]
    for operation in found["operations"]:
        time = f"{operation['time_s'] * 1e6:,.0f}" if operation["time_s"] >= 100e-6 else ""
        assert time in rows[operation["name"]].split() or not time
        assert f"{operation['time_s'] / whole:.1%}" in rows[operation["name"]]
    assert f"{found['metrics']['tokens_per_s_per_megawatt']:,.0f}" in page
    assert ("not shown in" in page) == (width < 120)


def test_what_does_not_fit_has_no_rates(codesign: Codesign) -> None:
    asked = ("evaluate", "--arch", "h100", "--model", "kimi-k3", "--context", "8Ki", "--chips", "8")
    page = codesign(*asked).out
    assert "not feasible: does not fit" in page
    assert "gives up --chips" in page
    assert "$ per million" not in page
    assert "Operations" not in page
    none = codesign("evaluate", *K3[:4], "--context", "1e9").out
    assert "nothing serves: no mapping up to 72 chips" in none


def test_an_encoding_without_the_signs_is_no_failure() -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    program = "from codesign.cli import main; main(['show', 'kimi-k3'])"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, env=environment, check=False)
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"27,648 B" in told.stdout
    assert told.stdout.isascii()


def test_the_example_of_init_works_when_pasted(codesign: Codesign, tmp_path: Path, monkeypatch: Any) -> None:
    page = " ".join(codesign("init", "--help").out.replace("│", " ").split())
    example = page[page.index("codesign evaluate ") + len("codesign ") :].split()
    asked = tuple(example[: example.index("--context") + 2])
    monkeypatch.chdir(tmp_path)
    assert codesign("init", "mine").code == 0
    assert codesign(*asked, "--json").json()["feasible"]


def test_a_prompt_that_is_cached_in_part_says_so(codesign: Codesign) -> None:
    asked = ("--arch", "b200", "--model", "gpt-oss-120b", "--phase", "serve", "--osl", "1Ki", "--concurrency", "64")
    page = codesign("evaluate", *asked, "--tp", "8", "--pp", "1", "--dp", "1", "--isl", "8Ki", "--cached", "4Ki").out
    assert "8,192 tokens in (4,096 of them cached), 1,024 out" in page


def test_an_imported_model_that_hides_a_bundled_one_is_told(codesign: Codesign, tmp_path: Path) -> None:
    config = str(ROOT / "tests/data/hf-configs/openai--gpt-oss-20b_config.json")
    for name, told in (("gpt-oss-120b", True), ("of-my-own", False)):
        notes = codesign("import-model", config, "--name", name, "--workspace", str(tmp_path), "--json").json()["notes"]
        assert any("bundled model gpt-oss-120b" in note for note in notes) == told


def test_a_chip_at_its_power_limit_has_no_margin_of_power(codesign: Codesign) -> None:
    asked = ("--arch", "b200", "--model", "llama3.1-70b", "--context", "8Ki", "--tp", "8", "--pp", "1", "--dp", "1")
    limit = ("--batch", "64", "--ideal", "--set", "accelerator.power_limit=300 W")
    assert "at the power limit" in codesign("evaluate", *asked, *limit).out
    assert "below the power limit" in codesign("evaluate", *asked, *limit[:-2]).out
