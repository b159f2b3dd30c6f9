"""Tests run in float64, without a compilation cache from earlier runs, and with hypothesis free of deadlines."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read by jax when it is first imported, here and in the programs that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["CODESIGN_CACHE"] = "off"
# What a developer has set for the program must not reach the tests.
for name in ("CODESIGN_WORKSPACE", "CODESIGN_TRACEBACK"):
    os.environ.pop(name, None)

# Compilation makes a first example slow: that is no flaw of the code under test.
settings.register_profile("codesign", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("codesign")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A study whose problems are answered at once, in a folder."""
    import killing

    from codesign.study import run as running

    monkeypatch.setattr(running, "Solver", killing.Quick)
    monkeypatch.setattr(running, "summary_of", killing.summary)
    study = tmp_path / "killed.toml"
    study.write_text(killing.STUDY)
    return study
