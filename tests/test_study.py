"""Studies: what is refused, what a run leaves, and that being killed, resumed or damaged changes nothing of it."""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killing
import pytest
from studies import RESULTS, STUDY, same

import codesign
from codesign.cli.study import _progress
from codesign.errors import CodesignError
from codesign.files import write_bytes, write_json
from codesign.study import run as running
from codesign.study.problems import Spec
from codesign.study.store import Checkpoints, Log, damaged_results


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


def kill(place: Path, run: str, after: int, delay: float, *flags: str) -> Path:
    """Start a run and kill it ``delay`` seconds after its ``after``-th problem."""
    process = start(place, run, *flags)
    folder = place / run
    while solved(folder) < after and process.poll() is None:
        time.sleep(0.02)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return folder


def unfinished(of: Path, to: Path) -> Path:
    """A copy of a run as it is before its results are written."""
    shutil.copytree(of, to)
    for name in (*RESULTS, "report.html"):
        (to / name).unlink()
    return to


def numbers(document: object) -> Iterator[float]:
    """Every number of a JSON document."""
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from numbers(part)
    elif isinstance(document, float):
        yield document


def keys(document: object) -> Iterator[str]:
    """Every key of a JSON document."""
    if isinstance(document, dict):
        yield from document
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from keys(part)


# ------------------------------------------------------------------------------------------------------- a whole run


def test_a_run_leaves_what_is_promised(undisturbed: Path) -> None:
    import polars as pl

    found = {p.name for p in undisturbed.iterdir()}
    promised = {"study.toml", "environment.json", "checkpoints", "report.html", "log.jsonl"}
    assert promised | set(RESULTS) == found
    assert (undisturbed / "study.toml").read_text() == STUDY
    summary = json.loads((undisturbed / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["schema"] == "codesign.study/1"
    assert [(p["context"], p["target_s"]) for p in summary["problems"]] == [
        (8192.0, 0.02), (8192.0, 0.0002), (32768.0, 0.02), (32768.0, 0.0002)
    ]  # fmt: skip
    assert all(abs(x) < 1e30 for x in numbers(summary))
    able, unable = summary["problems"][::2], summary["problems"][1]
    for p in able:
        (design,) = p["designs"]
        assert design["feasible"]
        assert p["best"] == design
        assert design["kkt_residual"] <= 1e-3
        assert max(design["budget_use"].values()) <= 1.0 + 1e-6
        assert design["metrics"]["tpot_s"] <= p["target_s"] * (1 + 1e-9)
        rounded = design["rounded"]
        assert rounded["request"]["batch"] == int(rounded["request"]["batch"])
        assert rounded["metrics"]["tpot_s"] <= p["target_s"] * (1 + 1e-9)
        relaxed, built = (d["metrics"]["tokens_per_s_per_megawatt"] for d in (design, rounded))
        assert rounded["loss"] == pytest.approx(1.0 - built / relaxed, abs=1e-9)
        (machine,) = p["machines"]
        best = machine["metrics"]["tokens_per_s_per_megawatt"]
        assert p["gain_over_best_machine"] == pytest.approx(max(relaxed, built) / best, rel=0.05)
    # Nothing decodes a token in 0.2 ms: that is an answer too, with what could be reached.
    (design,) = unable["designs"]
    assert not design["feasible"]
    assert design["metrics"] is None and unable["best"] is None and unable["gain_over_best_machine"] is None
    assert design["least_tpot_s"] > unable["target_s"]
    assert not unable["machines"][0]["feasible"]
    table = pl.read_parquet(undisturbed / "results.parquet")
    assert set(table["what"]) == {"design", "rounded", "machine"}
    assert len(table) == 4 + 2 + 4
    assert not any(table[c].is_nan().any() for c, kind in table.schema.items() if kind == pl.Float64)


def test_results_say_nothing_of_when_and_where(undisturbed: Path, place: Path) -> None:
    import platform

    summary = (undisturbed / "summary.json").read_text()
    told = set(keys(json.loads(summary)))
    assert not {k for k in told if any(w in k for w in ("host", "date", "elapsed", "duration", "wall", "version"))}
    for secret in (platform.node(), str(place), sys.executable, time.strftime("%Y-%m-%d")):
        assert secret not in summary
        assert secret.encode() not in (undisturbed / "results.parquet").read_bytes()
    events = [json.loads(line) for line in (undisturbed / "log.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["started", *["solved"] * 4, "finished"]
    assert all(e["time"] > 1.7e9 for e in events)
    environment = json.loads((undisturbed / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["versions"]["jax"].split(".")[0] == "0"


def test_killed_and_resumed(place: Path, undisturbed: Path) -> None:
    """One run, killed as it starts, after its first problem and after its second; the rest by one worker, not two."""
    kill(place, "killed", 0, 0.7)
    kill(place, "killed", 1, 0.05, "--resume")
    kill(place, "killed", 2, 0.3, "--resume")
    finish(start(place, "killed", "--resume", "--workers", "1"))
    same(place / "killed", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_do_not_depend_on_the_workers(place: Path, undisturbed: Path, workers: int) -> None:
    finish(start(place, f"by-{workers}", "--workers", str(workers)))
    same(place / f"by-{workers}", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_killed_at_fifty_moments(place: Path, undisturbed: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - no secret
    folder = kill(place, f"slow-{seed}", draw.randrange(5), draw.uniform(0.0, 3.0))
    finish(start(place, folder.name, "--resume"))
    same(folder, undisturbed)


def test_a_damaged_checkpoint_is_told_and_passed_over(place: Path, undisturbed: Path) -> None:
    folder = unfinished(undisturbed, place / "damaged")
    newest = max((folder / "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    for path in newest.rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x55
            path.write_bytes(data)
    told = finish(start(place, folder.name, "--resume"))
    assert f"checkpoint {newest.name} is damaged" in (folder / "log.jsonl").read_text()
    assert f"checkpoint {newest.name} is damaged" in told
    assert "Traceback" not in told
    same(folder, undisturbed)


# -------------------------------------------------------------------------------- the keeping of a run, many times over


def killed_many_times(folder: Path, kills: int) -> None:
    ended = subprocess.run(
        [sys.executable, killing.__file__, str(folder), str(kills), "5"], capture_output=True, text=True,
        timeout=300 + 10 * kills, check=False, env=os.environ | {"PYTHONPATH": str(Path(codesign.__file__).parents[1])},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["kills"] >= kills
    assert found["failed"] == []
    assert found["different"] == []
    assert found["left"] == []
    # The moments were spread: some before the first problem was solved, some between problems.
    assert any(n <= 0 for n in found["solved"])
    assert len({n for n in found["solved"] if 0 < n < 12}) > 2, found["solved"]
    # A disk that is full ends a run in one clear line, wherever it happens.
    assert set(found["full"]) == {2}


def test_killed_at_random_moments_with_quick_problems(tmp_path: Path) -> None:
    killed_many_times(tmp_path, 12)


@pytest.mark.slow
def test_killed_at_many_moments_with_quick_problems(tmp_path: Path) -> None:
    killed_many_times(tmp_path, 150)


class Killed(BaseException):
    """What stands for a kill inside this process."""


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_every_file(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """Killed just before or just after each file takes its name, of a new run and of one that replaces another."""
    quick.write_text(killing.STUDY.replace('contexts = ["8Ki", "32Ki"]', 'contexts = ["8Ki"]').replace('"10 ms", ', ""))
    running.run_study(quick, tmp_path / "undisturbed")
    whole = [(tmp_path / "undisturbed" / name).read_bytes() for name in RESULTS]
    before_it: list[bytes] = []
    replace, count, at = Path.replace, 0, -1

    def dying(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == at and before:
            raise Killed
        moved = replace(self, target)
        if count == at:
            raise Killed
        return moved

    ended = 0
    for again in (False, True):
        for n in range(1, 20):
            folder = tmp_path / f"run-{again}-{n}"
            if again:
                running.run_study(quick, folder, seed=4)
                before_it = [(folder / name).read_bytes() for name in RESULTS]
            monkeypatch.setattr(Path, "replace", dying)
            count, at = 0, n
            try:
                running.run_study(quick, folder)
            except Killed:
                ended += 1
            else:
                break
            finally:
                monkeypatch.setattr(Path, "replace", replace)
            # The old results are whole until the new ones are.
            left = [f for f in (folder, folder / "previous") if not damaged_results(f)]
            assert not again or any((f / RESULTS[0]).read_bytes() in (before_it[0], whole[0]) for f in left)
            if again and n < 3 + before:
                # Not yet known as the new run, and no longer the old one.
                with pytest.raises(CodesignError, match="not the one"):
                    running.run_study(quick, folder, resume=True)
                running.run_study(quick, folder, resume=True, seed=4)
                assert [(folder / name).read_bytes() for name in RESULTS] == before_it
            else:
                running.run_study(quick, folder, resume=True)
                same(folder, tmp_path / "undisturbed")
            assert (folder / "study.toml").read_text() == quick.read_text()
            assert {p.name for p in folder.iterdir()} == {p.name for p in (tmp_path / "undisturbed").iterdir()}
    # Environment, study, results, summary: each of them once, in both kinds of run; results and checkpoints aside.
    assert ended == 4 + 6


def test_a_finished_run_is_not_run_again(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = running.run_study(quick, tmp_path / "run")
    calls: list[str] = []

    def solve(self: Any, spec: Spec, starts: Any) -> Any:
        calls.append(spec.id)
        return original(self, spec, starts)

    original = killing.Quick.solve
    monkeypatch.setattr(killing.Quick, "solve", solve)
    assert running.run_study(quick, tmp_path / "run", resume=True) == first
    # A damaged summary and a lost table are made anew from the checkpoints.
    whole = {name: (tmp_path / "run" / name).read_bytes() for name in RESULTS}
    (tmp_path / "run" / "summary.json").write_bytes(whole["summary.json"][:1000])
    assert running.run_study(quick, tmp_path / "run", resume=True) == first
    (tmp_path / "run" / "results.parquet").unlink()
    assert running.run_study(quick, tmp_path / "run", resume=True) == first
    assert calls == []
    for name, data in whole.items():
        assert (tmp_path / "run" / name).read_bytes() == data
    # Without --resume a finished run is replaced.
    running.run_study(quick, tmp_path / "run", seed=9)
    assert len(calls) == 12
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 9


def test_a_run_begun_anew_leaves_the_finished_one_readable(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when it is killed after some problems: the old results lie in ``previous`` until the new ones are whole."""
    folder, original, solved = tmp_path / "run", killing.Quick.solve, 0
    running.run_study(quick, folder)
    old = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}

    def dying(self: Any, spec: Spec, starts: Any) -> Any:
        nonlocal solved
        solved += 1
        if solved > 3:
            raise Killed
        return original(self, spec, starts)

    for _ in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(killing.Quick, "solve", dying)
            with pytest.raises(Killed):
                running.run_study(quick, folder, seed=9, workers=1, resume=solved > 0)
        assert {p.name: p.read_bytes() for p in (folder / "previous").iterdir() if p.is_file()} == old
        assert (_progress(folder)["state"], _progress(folder)["solved"]) == ("unfinished", 3)
        assert _progress(folder)["previous"] == str(folder / "previous")
        assert (_progress(folder / "previous")["state"], _progress(folder / "previous")["solved"]) == ("finished", 12)
        with pytest.raises(CodesignError, match="unfinished"):
            running.run_study(quick, folder, seed=9)
    assert "is run anew, and kept in" in caplog.text
    running.run_study(quick, folder, resume=True, seed=9)
    running.run_study(quick, tmp_path / "alone", seed=9)
    same(folder, tmp_path / "alone")
    assert not (folder / "previous").exists()


def test_what_is_not_a_run_is_not_replaced(quick: Path, tmp_path: Path) -> None:
    """A folder of the user's own that has the name of the run set aside."""
    folder = tmp_path / "run"
    running.run_study(quick, folder)
    (folder / "previous").mkdir()
    (folder / "previous" / "thesis.txt").write_text("x")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(CodesignError, match="previous: --out: is in the way"):
        running.run_study(quick, folder, seed=3)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    running.run_study(quick, folder, resume=True)
    assert (folder / "previous" / "thesis.txt").read_text() == "x"


def test_nothing_to_resume_is_told(quick: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running.run_study(quick, tmp_path / "one")
    assert caplog.text == ""
    running.run_study(quick, tmp_path / "two", resume=True)
    assert "two: holds no run to resume; a new one begins" in caplog.text


@pytest.mark.parametrize("logged", [True, False])
def test_damaged_results_are_noticed_and_made_again(quick: Path, tmp_path: Path, logged: bool) -> None:
    """Cut, emptied, replaced or, where the log is there to tell, altered by a bit."""
    folder = tmp_path / "run"
    running.run_study(quick, folder)
    whole = {name: (folder / name).read_bytes() for name in RESULTS}
    log = folder / "log.jsonl"
    ways: tuple[Callable[[Path], object], ...] = (half, empty, Path.unlink, swap)
    for name in RESULTS:
        for damage in (*ways, flip) if logged else ways:
            if not logged:
                log.write_text("")
            assert (_progress(folder)["state"], _progress(folder)["solved"]) == ("finished", 12)
            damage(folder / name)
            told = _progress(folder)
            assert told["state"] == ("damaged" if (folder / "summary.json").exists() else "unfinished")
            assert told["solved"] == 12
            assert told["damaged"] == ([name] if told["state"] == "damaged" else [])
            running.run_study(quick, folder, resume=True)
            assert {n: (folder / n).read_bytes() for n in RESULTS} == whole


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"schema": "codesign.study/1"', '{"schema": "other/1"}'])
def test_status_of_a_damaged_summary(quick: Path, tmp_path: Path, text: str) -> None:
    running.run_study(quick, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(text)
    assert _progress(tmp_path / "run")["state"] == "damaged"


def test_problems_that_are_solved_are_not_solved_again(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in one problem keeps what was solved before it, and is raised as it is."""
    original, calls = killing.Quick.solve, []

    def solve(self: Any, spec: Spec, starts: Any) -> Any:
        calls.append(spec.id)
        if calls.count(spec.id) == 1 and spec.id == "c8192-two-t0.005":
            raise CodesignError("stops here")
        return original(self, spec, starts)

    running.run_study(quick, tmp_path / "undisturbed")
    monkeypatch.setattr(killing.Quick, "solve", solve)
    with pytest.raises(CodesignError, match="stops here"):
        running.run_study(quick, tmp_path / "run", workers=1)
    before = len(calls)
    assert before < 12
    running.run_study(quick, tmp_path / "run", resume=True, workers=1)
    assert len(calls) == 12 + 1
    same(tmp_path / "run", tmp_path / "undisturbed")


# ---------------------------------------------------------------------------------------------------------- the store


STATES: list[dict[str, Any]] = [
    {
        "records": {f"p{i}": {"x": [0.1 * i + 1e-16 * j for j in range(300)], "none": None, "n": 3} for i in range(n)},
        "starts": {"c": {"hbm4": [1.5, -2.25e-300, 0.1 + 0.2]}},
    }
    for n in range(1, 6)
]  # fmt: skip


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    path.write_bytes(b"{}\xff\0" * 300)


def test_checkpoints_give_back_the_newest_whole_state(tmp_path: Path) -> None:
    """Every file of the newest step damaged in every way: what comes back is that state or, told, the one before."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    store = Checkpoints(tmp_path / "whole")
    assert store.restore(pytest.fail) is None
    for n, state in enumerate(STATES, start=1):
        store.save(n, state)
    store.close()
    steps = sorted(p.name for p in (tmp_path / "whole").iterdir() if p.name.isdigit())
    assert steps == ["3", "4", "5"]
    ways: tuple[Callable[[Path], None], ...] = (flip, half, empty, Path.unlink)
    passed = 0
    for at in [p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole" / "5").rglob("*") if p.is_file()]:
        for damage in ways:
            folder = tmp_path / "copy"
            shutil.copytree(tmp_path / "whole", folder)
            damage(folder / at)
            told: list[str] = []
            store = Checkpoints(folder)
            found = store.restore(told.append)
            if told:
                passed += 1
                assert "checkpoint 5 is damaged" in told[0]
                assert found == (4, STATES[3])
            else:
                assert found == (5, STATES[4])
            # Going on works, from either.
            assert found is not None
            store.save(found[0] + 1, STATES[0])
            store.close()
            store = Checkpoints(folder)
            assert store.restore(pytest.fail) == (found[0] + 1, STATES[0])
            store.close()
            shutil.rmtree(folder)
    assert passed >= len(ways)


def test_checkpoints_that_are_all_damaged_are_none(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for n, state in enumerate(STATES, start=1):
        store.save(n, state)
    store.close()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            flip(path)
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    told: list[str] = []
    store = Checkpoints(tmp_path)
    assert store.restore(told.append) is None
    assert len(told) == 3
    store.save(1, STATES[0])
    store.close()


@pytest.mark.parametrize("number", [28, 122, 13, 5])
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    target, told = tmp_path / "summary.json", "disk is full" if number in (28, 122) else "cannot be written"
    write_bytes(target, b"old")
    for place, name in ((os, "fsync"), (Path, "replace"), (Path, "open")):
        with monkeypatch.context() as broken:
            broken.setattr(place, name, fail)
            with pytest.raises(CodesignError, match=told):
                write_bytes(target, b"new")
        assert target.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    # A log that cannot be written stops nothing.
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", fail)
        Log(tmp_path / "log.jsonl")("started")


def test_what_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "summary.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())
