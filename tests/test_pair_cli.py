"""Frontiers at the terminal: of pairs of pools, and what an empty one says."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import codesign
from codesign.cli import run

PAIR = ("--arch", "gb200-nvl72", "--experts-on", "jalapeno", "--model", "deepseek-v3", "--context", "32Ki")
SMALL = (*PAIR, "--chips", "8", "--expert-chips", "8")
Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Run a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(args)
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


def seconds(text: str, after: str) -> float:
    """The time that follows some words."""
    value, unit = re.findall(after + r" ([\d.]+) (us|ms|s)\b", text)[0]
    return float(value) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_a_frontier_of_pairs_is_an_array_and_a_table(told: Told) -> None:
    code, out, err = told("frontier", *SMALL, "--json")
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)
    api = codesign.frontier(
        "gb200-nvl72", "deepseek-v3", context="32Ki", experts_on="jalapeno", chips=8, expert_chips=8
    )
    assert found == json.loads(json.dumps(api))
    assert all(d["schema"] == "codesign.pair/1" and d["feasible"] for d in found)
    code, out, err = told("frontier", *SMALL)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line.lstrip().startswith("8 + 8 chips:")]
    assert len(lines) == len(found)
    for line, d in zip(lines, found, strict=True):
        m = d["mapping"]
        assert f"TP {m['tp']} × {m['dp']}, EP {m['ep']}" in line
        assert f"{d['metrics']['tokens_per_s_per_megawatt']:,.0f}" in line
    assert "attention on gb200-nvl72, experts on jalapeno" in out
    assert out.index("tok/s/MW") < out.index("warnings")


def test_a_narrow_terminal_keeps_the_numbers_whole(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = told("frontier", *SMALL)[1]
    assert "tok/s/MW" in out
    assert "not shown in 80 columns" in out


def test_an_empty_frontier_of_pairs_says_what_is_missing_and_nearest(told: Told) -> None:
    assert told("frontier", *SMALL, "--tpot", "10 us", "--json") == (0, "[]\n", "")
    code, out, err = told("frontier", *SMALL, "--tpot", "10 us")
    assert (code, err) == (0, "")
    least = seconds(out, "the least TPOT reachable is")
    assert seconds(out, "the target is missed by") == pytest.approx(least - 1e-5, rel=1e-3)
    assert "gives up --tpot" in out
    # So much time, as it is told, is enough; a percent less is not.
    assert json.loads(told("frontier", *SMALL, "--tpot", f"{least * 1.001} s", "--json")[1])
    assert not json.loads(told("frontier", *SMALL, "--tpot", f"{least * 0.99} s", "--json")[1])
    code, out, err = told("frontier", *PAIR, "--chips", "8", "--expert-chips", "1")
    assert (code, err) == (0, "")
    assert re.search(r"does not fit, a chip of experts lacks [\d.]+ GB of memory", out)
    assert "gives up --expert-chips" in out
    out = told("frontier", *PAIR[:-1], "1e9")[1]
    assert "nearest    nothing serves: no pair up to 72 + 128 chips holds it" in out


def test_a_pair_that_cannot_be_is_an_answer(told: Told) -> None:
    code, out, err = told("evaluate", *SMALL, "--tpot", "10 us", "--json")
    assert (code, err) == (0, "")
    margin = json.loads(out)["margin"]
    assert margin["nearest"]["relaxed"] == ["tpot"]
    code, out, err = told("evaluate", *SMALL, "--tpot", "10 us")
    assert (code, err) == (0, "")
    assert seconds(out, "the least TPOT reachable is") == pytest.approx(margin["least_tpot_s"], rel=1e-3)


MACHINE = ("--arch", "h100", "--model", "gpt-oss-120b")


def test_an_empty_frontier_says_what_is_missing_and_nearest(told: Told) -> None:
    where = (*MACHINE, "--context", "8Ki", "--chips", "8", "--pp", "1")
    assert told("frontier", *where, "--tpot", "10 us", "--json") == (0, "[]\n", "")
    code, out, err = told("frontier", *where, "--tpot", "10 us")
    assert (code, err) == (0, "")
    assert out.startswith("no feasible mapping: gpt-oss-120b decode at 8,192 tokens of context on h100")
    least = seconds(out, "the least TPOT reachable is")
    assert json.loads(told("frontier", *where, "--tpot", f"{least * 1.001} s", "--json")[1])
    assert not json.loads(told("frontier", *where, "--tpot", f"{least * 0.99} s", "--json")[1])
    # 60.8 GB of weights and 5 % of 80 GB kept free leave no room for a million tokens on one chip.
    out = told("frontier", *MACHINE, "--context", "1Mi", "--chips", "1")[1]
    assert re.search(r"the fullest chip lacks [\d.]+ GB of memory", out)
    assert "gives up --chips" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("frontier", *PAIR, "--osl", "5000"), ("--osl: has no meaning for two pools", "--expert-chips")),
        (("frontier", *PAIR, "--phase", "serve"), ("--experts-on: two pools in serve", "--phase decode")),
        (("frontier", *PAIR[:2], "--experts-on", "jalapenno", *PAIR[4:]), ("'jalapenno'", "nearest: jalapeno")),
        (("frontier", *PAIR[:2], *PAIR[4:], "--expert-chips", "8"), ("--expert-chips", "with --experts-on")),
        (("frontier", *PAIR, "--expert-chips", "500"), ("--expert-chips: 500 chips of jalapeno", "1 to 128")),
        (("frontier", *PAIR, "--ep", "7"), ("--ep: 7 ranks",)),
        (("evaluate", *PAIR, "--drafts", "99"), ("--drafts: 99 drafts",)),
        (("frontier", *PAIR, "--tpot", "20"), ("--tpot", "no unit", "20 ms")),
        (("frontier", *PAIR, "--expert-chip", "8"), ("--expert-chip",)),
    ],
)
def test_bad_input_is_one_line(told: Told, args: tuple[str, ...], says: tuple[str, ...]) -> None:
    code, out, err = told(*args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for words in says:
        assert words in err
