"""Files on disk, whole or not at all: every file appears under its name only when all of it is written."""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codesign.errors import CodesignError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a file into one line for the user."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = "the disk is full; nothing is lost" if full else f"cannot be written: {error.strerror}"
        raise CodesignError(
            problem,
            file=str(path),
            allowed="make room and give the same command again (a study: with --resume)" if full else None,
        ) from error


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write files that belong together: drafts of all first, then each takes its name.

    Raises:
        CodesignError: one cannot be written; none then is.
    """
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, data in files.items():
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with drafts[path].open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
        for path, draft in drafts.items():
            with disk_errors(path):
                draft.replace(path)
    except CodesignError:
        for draft in drafts.values():
            with disk_errors(draft):
                draft.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write one file."""
    write_whole({path: data})


def write_json(path: Path, document: Any) -> None:
    """Write JSON that says no NaN."""
    write_bytes(path, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8."""
    write_bytes(path, text.encode())
