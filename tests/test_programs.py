"""Programs kept on disk: the same numbers as traced ones, nothing taken that is damaged or of another program."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from codesign import programs

TRACED: list[int] = []


def scaled(by: int, x: Any, more: Any) -> tuple[Any, Any]:
    """``by`` times the sum, and a note."""
    TRACED.append(by)
    return [by * (x + more["y"]), jnp.sum(x)], {"by": by, "shape": x.shape}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CODESIGN_CACHE", str(tmp_path))
    monkeypatch.setattr(programs, "_PROGRAMS", {})
    TRACED.clear()
    return tmp_path / "programs"


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_PROGRAMS", {})


def call(by: int = 3, n: int = 4) -> tuple[Any, Any]:
    values, note = programs.run(scaled, (by,), np.arange(float(n)), {"y": 1.0})
    return [np.asarray(v) for v in values], note


def test_a_second_start_traces_nothing_and_says_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, total), note = call()
    assert first.tolist() == [3.0, 6.0, 9.0, 12.0] and total == 6.0 and note == {"by": 3, "shape": (4,)}
    start_again(monkeypatch)
    (again, _), told = call()
    assert again.tobytes() == first.tobytes() and told == note
    assert TRACED == [3]
    assert len([f for f in folder.rglob("*") if f.is_file()]) == 1


def test_other_statics_and_shapes_are_other_programs(folder: Path) -> None:
    assert call(2)[0][0].tolist() == [2.0, 4.0, 6.0, 8.0]
    assert call(5, 2)[0][0].tolist() == [5.0, 10.0]
    assert len([f for f in folder.rglob("*") if f.is_file()]) == 2


@pytest.mark.parametrize("damage", [b"", b"not a program", None])
def test_a_damaged_program_is_traced_again(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    wanted = call()[0][0]
    (file,) = (f for f in folder.rglob("*") if f.is_file())
    data = file.read_bytes()
    damaged = data[:-1] + bytes([data[-1] ^ 1]) if damage is None else damage
    file.write_bytes(damaged)
    start_again(monkeypatch)
    assert call()[0][0].tobytes() == wanted.tobytes()
    assert TRACED == [3, 3] and file.read_bytes() != damaged


def test_without_a_cache_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESIGN_CACHE", "off")
    assert call()[0][0][0] == 3.0 and not folder.exists()


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert call()[0][0][0] == 3.0


def test_a_program_begun_in_the_background_is_the_one_that_runs(folder: Path) -> None:
    programs.begin(scaled, (7,), np.arange(4.0), {"y": 1.0})
    assert call(7)[0][0].tolist() == [7.0, 14.0, 21.0, 28.0] and TRACED == [7]


def test_what_cannot_be_traced_is_told_each_time(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            programs.run(scaled, ("a",), np.arange(4.0), {"y": 1.0})
