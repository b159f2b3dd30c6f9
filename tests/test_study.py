"""A study on disk: what a run leaves, and that being killed, resumed or damaged changes nothing of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codesign.api import optimize
from codesign.errors import CodesignError
from codesign.study.schema import load_study
from codesign.study.store import write_bytes

STUDY = """
name = "tiny"
title = "A tiny study"
question = "Which mix?"
model = "gpt-oss-120b"
targets = ["20 ms", "10 ms", "5 ms"]
contexts = ["8Ki"]
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study and a compilation cache that all runs share."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(STUDY)
    return folder


def start(place: Path, run: str, *flags: str) -> subprocess.Popen[str]:
    """Start a run as a user would, in a process of its own."""
    script = "import sys; from codesign.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "optimize", str(place / "tiny.toml"), "--out", str(place / run), *flags]
    environment = os.environ | {"CODESIGN_CACHE": str(place / "cache")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a run that must end well; what it told on stderr."""
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return err


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Path:
    """A run that nothing happened to."""
    finish(start(place, "undisturbed"))
    return place / "undisturbed"


def solved(run: Path) -> int:
    """Problems solved so far, from the log."""
    log = run / "log.jsonl"
    return log.read_text().count('"solved", "problem"') if log.exists() else 0


def same(one: Path, other: Path) -> None:
    """Both runs left the same results, byte for byte."""
    for name in RESULTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def kill(place: Path, run: str, after: int, delay: float) -> Path:
    """Start a run and kill it ``delay`` seconds after its ``after``-th problem."""
    process = start(place, run)
    folder = place / run
    while solved(folder) < after and process.poll() is None:
        time.sleep(0.02)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return folder


def numbers(document: object) -> Iterator[float]:
    """Every number of a JSON document."""
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from numbers(part)
    elif isinstance(document, float):
        yield document


def test_a_run_leaves_what_is_promised(undisturbed: Path) -> None:
    import polars as pl

    found = {p.name for p in undisturbed.iterdir()}
    promised = {"study.toml", "environment.json", "checkpoints", "report.html", "log.jsonl"}
    assert promised | set(RESULTS) == found
    assert (undisturbed / "study.toml").read_text() == STUDY
    summary = json.loads((undisturbed / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["schema"] == "codesign.study/1"
    assert [p["target_s"] for p in summary["problems"]] == [0.02, 0.01, 0.005]
    assert all(abs(x) < 1e30 for x in numbers(summary))
    for p in summary["problems"]:
        (design,) = p["designs"]
        assert design["kkt_residual"] <= 1e-3
        assert max(design["budget_use"].values()) <= 1.0 + 1e-6
        assert design["metrics"]["tpot_s"] <= p["target_s"] * (1 + 1e-9)
        rounded = design["rounded"]
        assert rounded["request"]["batch"] == int(rounded["request"]["batch"])
        assert rounded["metrics"]["tpot_s"] <= p["target_s"] * (1 + 1e-9)
    table = pl.read_parquet(undisturbed / "results.parquet")
    assert set(table["what"]) == {"design", "rounded", "machine"}
    assert len(table) == 9


def test_results_do_not_depend_on_the_workers(place: Path, undisturbed: Path) -> None:
    finish(start(place, "alone", "--workers", "1"))
    same(place / "alone", undisturbed)


@pytest.mark.parametrize(("after", "delay"), [(0, 0.7), (1, 0.05), (2, 0.3)])
def test_killed_and_resumed(place: Path, undisturbed: Path, after: int, delay: float) -> None:
    folder = kill(place, f"killed-{after}", after, delay)
    finish(start(place, folder.name, "--resume"))
    same(folder, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(50))
def test_killed_at_fifty_moments(place: Path, undisturbed: Path, round_: int) -> None:
    folder = kill(place, f"slow-{round_}", 0, 0.2 + 0.2 * round_)
    finish(start(place, folder.name, "--resume"))
    same(folder, undisturbed)


def test_a_damaged_checkpoint_is_told_and_passed_over(place: Path, undisturbed: Path) -> None:
    folder = kill(place, "damaged", 2, 0.0)
    steps = sorted((folder / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    for path in steps[-1].rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x55
            path.write_bytes(data)
    finish(start(place, folder.name, "--resume"))
    assert f"checkpoint {steps[-1].name} is damaged" in (folder / "log.jsonl").read_text()
    same(folder, undisturbed)


def test_what_a_run_refuses(place: Path, undisturbed: Path, tmp_path: Path) -> None:
    study = place / "tiny.toml"
    with pytest.raises(CodesignError, match="not the one this run was started with"):
        optimize(study, undisturbed, resume=True, seed=7)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(CodesignError, match="is a file"):
        optimize(study, file)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(CodesignError, match="not empty and is no run folder"):
        optimize(study, tmp_path / "full")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "environment.json").write_text((undisturbed / "environment.json").read_text())
    with pytest.raises(CodesignError, match="holds an unfinished run"):
        optimize(study, unfinished)
    assert [p.name for p in unfinished.iterdir()] == ["environment.json"]


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "summary.json"
    write_bytes(target, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CodesignError, match="disk is full"):
        write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('model = "gpt-oss-120b"', 'model = "gpt-oss-12b"', "unknown model"),
        ('technologies = ["hbm4"]', 'technologies = ["hbm9"]', "unknown memory"),
        ('machines = ["b200"]', 'machines = ["b201"]', "unknown system"),
        ('"20 ms", ', '"20 GB", ', "targets.0"),
        ('"20 ms", ', '"0 ms", ', "not above zero"),
        ('"20 ms", ', '"10 ms", ', "names one value twice"),
        ("starts = 1", "starts = 0", "search.starts"),
        ("max_chips = 8", "max_chip = 8", "max_chip"),
        ("max_chips = 8", "max_chips = 8\nskew = nan", "skew"),
        ("[search]", '[variables.sram]\nlowest = "9 MB"\nhighest = "1 MB"\n[search]', "not in order"),
        ("[search]", '[package]\npower = "700 kg"\n[search]', "power"),
        ("[search]", "[search", "tiny.toml"),
    ],
)
def test_bad_studies_are_refused_in_one_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in STUDY
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(CodesignError, match=told) as caught:
        optimize(path, tmp_path / "run", dry_run=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_bundled_study_is_sound() -> None:
    study = load_study("tokens-per-megawatt").study
    assert study.targets_s == [0.002, 0.003, 0.005, 0.01, 0.02, 0.05]
    assert study.contexts_tokens == [131072.0, 515000.0]
    assert [p.weights for p in study.precisions] == ["bf16", "fp8"]
    plan = optimize("tokens-per-megawatt", dry_run=True)
    assert plan["problems"] == 24
