"""A run folder on disk: atomic files, checkpoints that say when they are damaged, and a log.

Nothing is ever half-written: every file appears under its name only when it is whole.  Checkpoints are Orbax steps, one
per solved problem; the last few are kept, each with a digest of what it holds, so that a damaged one is found, told
and passed over.  A finished run that is run anew stays in its folder's ``previous`` until the new results are whole.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from codesign.errors import CodesignError
from codesign.files import disk_errors
from codesign.glossary import STUDY

#: Checkpoints kept beside the newest.
KEPT = 3


#: Files that a run writes whole.
WHOLE = ("study.toml", "environment.json", "summary.json", "results.parquet", "report.html")


#: What a finished run is told by; digests of both stand in the log.
RESULTS = ("summary.json", "results.parquet")

#: Where the finished run lies that a new one in the same folder replaces.
PREVIOUS = "previous"


def clear_drafts(folder: Path) -> None:
    """Remove the drafts that a killed run left behind."""
    with disk_errors(folder):
        for name in WHOLE:
            for draft in folder.glob(f".{name}.*.tmp"):
                draft.unlink(missing_ok=True)
        for draft in folder.glob(f".{PREVIOUS}*.tmp"):
            shutil.rmtree(draft)


def set_aside(folder: Path) -> None:
    """Move a finished run to `PREVIOUS` inside its folder, so that it can be read until another is whole.

    Its files are linked there under a draft's name, which then becomes `PREVIOUS` in one step, and only after that are
    they taken from their old places, the summary first: wherever this is killed, one whole copy is left.  What
    `PREVIOUS` held before is kept where the run here is damaged, and else gives way.

    Raises:
        CodesignError: something else lies in its place, or the disk does not take it.
    """
    draft, kept = folder / f".{PREVIOUS}.tmp", folder / PREVIOUS
    if kept.exists() and not _is_run(kept):
        raise CodesignError("is in the way", file=str(kept), key="--out", allowed="another folder")
    with disk_errors(folder):
        if not (kept.exists() and damaged_results(folder)):
            draft.mkdir()
            for name in (*WHOLE, "log.jsonl"):
                if (folder / name).exists():
                    _link(folder / name, draft / name)
            drop_previous(folder)
            draft.replace(kept)
        for name in ("summary.json", "results.parquet", "report.html", "log.jsonl"):
            (folder / name).unlink(missing_ok=True)
        if (folder / "checkpoints").exists():
            if (kept / "checkpoints").exists():
                shutil.rmtree(folder / "checkpoints")
            else:
                (folder / "checkpoints").replace(kept / "checkpoints")


def _link(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the disk has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run, and not what somebody put there."""
    return (folder / "environment.json").is_file()


def drop_previous(folder: Path) -> None:
    """Remove the run that one which is whole has replaced."""
    if _is_run(folder / PREVIOUS):
        with disk_errors(folder):
            gone = (folder / PREVIOUS).rename(folder / f".{PREVIOUS}-gone.tmp")
            shutil.rmtree(gone)


def digests(folder: Path) -> dict[str, str]:
    """Digest of each of the `RESULTS` that can be read."""
    return {name: hashlib.sha256(data).hexdigest() for name in RESULTS if (data := _bytes(folder / name))}


def _bytes(path: Path) -> bytes:
    """What a file holds, nothing where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run, None where there is none or it is damaged."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    sound = isinstance(found, dict) and found.get("schema") == STUDY and isinstance(found.get("problems"), list)
    return found if sound else None


def damaged_results(folder: Path) -> list[str]:
    """Names of the `RESULTS` that are missing, that are none, or that are not what the log says was written."""
    written: dict[str, str] = {}
    for event in read_log(folder / "log.jsonl"):
        if event["event"] == "finished" and isinstance(event.get("digests"), dict):
            written = event["digests"]
    found = digests(folder)
    sound = {
        "summary.json": read_summary(folder) is not None,
        "results.parquet": _bytes(folder / "results.parquet").endswith(b"PAR1"),  # as every whole Parquet file does
    }
    return [name for name in RESULTS if not sound[name] or written.get(name, found.get(name)) != found.get(name)]


def solved_problems(folder: Path) -> int | None:
    """Problems solved by the newest checkpoint of a run, None where it has no checkpoints."""
    try:
        steps = [int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return max(steps, default=None)


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that are whole: a running study may be writing the last one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("time"), int | float) and "event" in event:
            yield event


class Log:
    """Times and events of a run, one JSON object per line, appended; never part of the results."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, event: str, **details: Any) -> None:
        """Append one line; a log that cannot be written does not stop the run."""
        line = json.dumps({"time": time.time(), "event": event, **details})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            return


def digest(document: Any) -> str:
    """Digest of a JSON document, independent of key order."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _check(sealed: dict[str, Any]) -> None:
    if digest(sealed["state"]) != sealed["digest"]:
        raise ValueError("its digest does not match")


class Checkpoints:
    """Orbax checkpoints of a study's state.

    The state is JSON: floats survive it exactly.  Steps number the solved problems.
    """

    def __init__(self, folder: Path):
        from orbax import checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what Orbax logs with a traceback is told here in a line
        self._folder = folder.resolve()
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._ocp = ocp
        self._manager = ocp.CheckpointManager(
            self._folder, options=options, handler_registry=None, item_names=("state",),
            item_handlers={"state": ocp.JsonCheckpointHandler()},
        )  # fmt: skip

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save a step; it counts only once it is whole."""
        sealed = {"digest": digest(state), "state": state}
        with disk_errors(self._folder):
            self._manager.save(step, args=self._ocp.args.Composite(state=self._ocp.args.JsonSave(sealed)), force=True)
            self._manager.wait_until_finished()

    def restore(self, told: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
        """The newest whole step; damaged ones are told, dropped and passed over."""
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = self._manager.restore(step, args=self._ocp.args.Composite(state=self._ocp.args.JsonRestore()))
                sealed = found["state"]
                _check(sealed)
            except Exception as error:  # noqa: BLE001 - whatever a damaged file makes the reader raise
                reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
                told(f"checkpoint {step} is damaged ({reason}); the one before it is used")
                self._manager.delete(step)
                continue
            return step, sealed["state"]
        return None

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()
