"""The report opened in a browser: every chart draws marks, choices change it, and nothing goes wrong or goes out."""

import json
import re
import shutil
import subprocess

import pytest
from summaries import make_summary

from codesign.report import write_report

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: the report was not opened in a browser"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    (run / "summary.json").write_text(json.dumps(make_summary()), encoding="utf-8")
    return write_report(run)


def opened(report, profile, query: str = "") -> tuple[str, str]:
    """The page's elements after its scripts ran, and the browser's log."""
    assert CHROMIUM
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--window-size=1400,1000", "--virtual-time-budget=60000",
        "--enable-logging=stderr", "--dump-dom", report.as_uri() + query,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def marks(dom: str) -> dict[str, int]:
    """Drawn marks (symbols, bars, lines, rules) of each figure, axes and legends left out."""
    found = {}
    for name, body in re.findall(r'data-figure="(\w+)"(.*?)</figure>', dom, flags=re.DOTALL):
        groups = re.findall(r'<g class="mark-(?:symbol|rect|line|rule) role-mark[^>]*>(.*?)</g>', body, flags=re.DOTALL)
        found[name] = sum(group.count("<path") + group.count("<line") + group.count("<rect") for group in groups)
    return found


def test_every_chart_draws_and_nothing_goes_wrong(report, tmp_path):
    dom, log = opened(report, tmp_path / "profile")
    assert 'data-state="drawn"' in dom
    found = marks(dom)
    assert len(found) == 17
    assert {name: n for name, n in found.items() if n < 2} == {}
    assert not [line for line in log.splitlines() if "CONSOLE" in line and ("Uncaught" in line or "ERROR" in line)]
    assert 'id="trouble" role="alert" hidden' in dom


def test_choices_change_what_is_shown(report, tmp_path):
    first, _ = opened(report, tmp_path / "a")
    second, _ = opened(report, tmp_path / "b", "?context=515000&precision=fp8&target=0.05&part=jalapeno")
    assert "forecast: Jalapeño" in second
    assert "forecast: Jalapeño" not in first

    def shown(dom: str) -> list[str]:
        return re.findall(r'<div class="answer on" data-problem="([^"]+)"', dom)

    assert shown(first) == ["c131072-bf16-t0.02"]
    assert shown(second) == ["c515000-fp8-t0.05"]
    ranking = re.search(r'<table data-view="answers">.*?<tbody>(.*?)</tbody>', second, flags=re.DOTALL)
    assert ranking
    assert ranking[1].count("<tr") == 5
    assert ranking[1].count('class="chosen"') == 1
