"""A run folder on disk: atomic files, checkpoints that say when they are damaged, and a log.

Nothing is ever half-written: every file appears under its name only when it is whole.  Checkpoints are Orbax steps, one
per solved problem; the last few are kept, each with a digest of what it holds, so that a damaged one is found, told
and passed over.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codesign.files import disk_errors

#: Checkpoints kept beside the newest.
KEPT = 3


#: Files that a run writes whole.
WHOLE = ("study.toml", "environment.json", "summary.json", "results.parquet", "report.html")


def clear_drafts(folder: Path) -> None:
    """Remove the drafts that a killed run left behind."""
    with disk_errors(folder):
        for name in WHOLE:
            for draft in folder.glob(f".{name}.*.tmp"):
                draft.unlink(missing_ok=True)


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
