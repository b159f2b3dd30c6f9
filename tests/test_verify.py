"""``codesign verify``: its answer, its tables, its exit codes; the small models; this device measured."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_counts import load

from codesign import catalog
from codesign.cli import run
from codesign.layers.gqa import GQA
from codesign.layers.moe import MoE
from codesign.reference import processes, verify
from codesign.reference.processes import DEVICES, ask, environment
from codesign.reference.scaled import small_model

COUNTS: dict[str, Any] = {
    "model": "kimi-k3",
    "exact": True,
    "operations": [
        {
            "block": "dense", "split": "TP 8", "operation": "up", "status": "exact",
            "flop": {"compiled": 4096.0, "counted": 4096.0, "spent": None},
            "sent_bytes": {"compiled": 0.0, "counted": 0.0},
        },
        {
            "block": "dense", "split": "TP 8", "operation": "all_reduce", "status": "exact",
            "flop": {"compiled": 0.0, "counted": 0.0, "spent": None},
            "sent_bytes": {"compiled": 896.0, "counted": 896.0},
        },
    ],
    "programs": [
        {
            "block": "dense", "split": "TP 8", "deviation": 3e-7, "elementwise": {"compiled": 20.0, "counted": 8.0},
            "bytes": {"compiled": None, "counted": 8.0}, "sent_bytes_by_kind": {},
        }
    ],
    "not_executed": [{"what": "index", "kind": "DSA", "reason": "no executable layer of this kind yet"}],
    "notes": ["What is compared."],
}  # fmt: skip


def answers(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[dict[str, Any]]:
    """Have every request answered so; returns the requests."""
    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any], devices: int | None = DEVICES) -> Any:
        asked.append(request)
        return found

    monkeypatch.setattr(processes, "ask", answer)
    return asked


def test_agreement_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answers(monkeypatch, COUNTS)
    assert run(["verify", "--model", "k3"]) == 0
    assert asked == [{"task": "counts", "model": "kimi-k3", "workspace": None}]
    told = capsys.readouterr().out
    for words in ("4,096", "896", "2.50", "3.0e-07", "not executed: index (DSA)", "every"):
        assert words in told


def test_disagreement_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wrong = json.loads(json.dumps(COUNTS))
    wrong["exact"] = False
    wrong["operations"][0] |= {"status": "differs", "flop": {"compiled": 4096.0, "counted": 4000.0, "spent": None}}
    answers(monkeypatch, wrong)
    assert run(["verify"]) == 1
    told = capsys.readouterr().out
    assert "differs by 96 FLOP" in told and "NOT ALL AGREE" in told
    assert run(["verify", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "codesign.verify/1" and document["ok"] is False
    assert document["measure"] is None and document["gradients"] is None


def test_a_wrong_name_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--model", "kimi-k4"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "kimi-k3" in told.err


def test_a_process_that_fails_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    assert run(["verify"]) == 1
    assert "could not be run" in capsys.readouterr().err
    sleeper = tmp_path / "sleep"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(sleeper))
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match="did not come to an end"):
        ask({"task": "counts", "model": "kimi-k3"})


def test_processes_have_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=3")
    env = environment(8)
    assert env["XLA_FLAGS"].split()[:2] == [
        "--xla_cpu_enable_fast_math=false", "--xla_force_host_platform_device_count=8",
    ]  # fmt: skip
    assert int(env["NPROC"]) >= 8
    assert environment(None)["XLA_FLAGS"].endswith("count=3")


@pytest.mark.parametrize("name", [entry.name for entry in catalog.list_catalog("models")])
def test_small_models_keep_their_structure(name: str) -> None:
    model = load(name)
    small, missing = small_model(model)
    assert not missing
    assert [n for n, _ in small.blocks] == [n for n, _ in model.blocks]
    for (_, one), (_, other) in zip(small.blocks, model.blocks, strict=True):
        assert type(one) is type(other)
        if isinstance(one, GQA) and isinstance(other, GQA):
            assert one.heads / one.kv_heads == other.heads / other.kv_heads
            assert one.heads % 8 == 0
            assert (one.window is None) == (other.window is None)
        if isinstance(one, MoE) and isinstance(other, MoE):
            assert one.experts % 8 == 0 and one.top_k <= other.top_k
            assert (one.width is None, one.bias, one.gated) == (other.width is None, other.bias, other.gated)
            assert one.groups == other.groups
    assert math.log2(small.hidden).is_integer()


def test_what_is_not_executed_is_said() -> None:
    class Unheard:
        """A kind of layer without an executable one."""

    model = load("glm-5.2")
    model = replace(model, blocks=(*model.blocks, ("odd", Unheard())))  # type: ignore[arg-type]
    small, missing = small_model(model)
    assert missing == ("odd",) and "odd" not in dict(small.blocks)
    told = verify.not_executed(model, missing)
    assert {entry["what"] for entry in told} >= {"odd", "drafter"}
    assert next(entry["kind"] for entry in told if entry["what"] == "odd") == "Unheard"
    assert all(entry["reason"] for entry in told)


def test_this_device_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Structure only: how fast a computer is, and how well a busy one is predicted, is no test."""
    found = ask({"task": "measure", "small": True}, devices=None)
    assert all(rate > 0 for rate in found["rates"].values())
    assert set(found["fitted"]) == {"products", "rows_half", "scan"}
    kinds = {row["kind"] for row in found["layers"]}
    assert kinds == {"feed-forward", "experts", "decode"}
    for row in found["layers"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1.0)
    held_out = [abs(row["error"]) for row in found["layers"] if row["held_out"]]
    assert len(held_out) == found["held_out"]["n"] == 3
    assert math.isfinite(found["held_out"]["median_ape"])
    assert found["held_out"]["worst_ape"] == max(held_out)
    answers(monkeypatch, found)
    assert run(["verify", "--measure"]) == 0
    assert "median error" in capsys.readouterr().out


@pytest.mark.slow
def test_layers_of_this_device_are_predicted() -> None:
    """Held-out sizes within 25 % in the median, in the best of three runs, since others may use the computer too."""
    medians = []
    for _ in range(3):
        medians.append(ask({"task": "measure"}, devices=None)["held_out"]["median_ape"])
        if medians[-1] < 0.25:
            break
    assert min(medians) < 0.25, medians


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "phase"),
    [
        ("deepseek-v3", "decode"), ("deepseek-v3", "serve"), ("kimi-k3", "prefill"), ("gpt-oss-120b", "midfill"),
        ("glm-5.2", "serve"), ("nemotron3-super-120b", "prefill"),
    ],
)  # fmt: skip
def test_gradients_within_the_bar(model: str, phase: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--gradients", "--model", model, "--phase", phase, "--arch", "h200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["gradients"]
    assert found["within"] and found["worst"] < found["bar"] and found["designs"] == 64


def test_a_wrong_phase_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["verify", "--gradients"], ["bench"]):
        assert run([*command, "--phase", "prefil"]) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1 and "midfill" in told.err


def test_gradients_off_the_bar_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from codesign.reference import derivatives

    found = {
        "arch": "h200", "model": "kimi-k3", "designs": 8, "numbers": 27, "kinked": 0, "worst": 2e-4, "median": None,
        "bar": 1e-5, "within": False,
    }  # fmt: skip
    monkeypatch.setattr(derivatives, "check", lambda *_, **__: found)
    assert run(["verify", "--gradients"]) == 1
    told = capsys.readouterr().out
    assert "2.0e-04" in told and "not finite" in told
