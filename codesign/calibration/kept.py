"""What both fits keep on disk besides their constants: a JSON of every number, and a covariance beside it.

``NAME-fit.json`` holds the numbers, ``NAME-covariance.npz`` the lower triangle of their covariance, row by row; the
first has the digest of the second, and the two belong together or are refused.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from codesign.errors import CodesignError
from codesign.files import write_whole

T = TypeVar("T")


def save_fit(
    folder: Path, name: str, texts: Mapping[str, str], document: Mapping[str, Any], covariance: np.ndarray
) -> list[Path]:
    """Write a fit's files into a folder, all or none; returns their paths.

    Args:
        folder: made where there is none.
        name: of the fit.
        texts: other files by name.
        document: of every number.
        covariance: of the numbers, (n, n).
    """
    packed = io.BytesIO()
    np.savez_compressed(packed, covariance=covariance[np.tril_indices(len(covariance))].astype(np.float32))
    files = {folder / file: text.encode() for file, text in texts.items()}
    told = {**document, "covariance_sha256": hashlib.sha256(packed.getvalue()).hexdigest()}
    files[folder / f"{name}-fit.json"] = (json.dumps(told, indent=0, allow_nan=False) + "\n").encode()
    files[folder / f"{name}-covariance.npz"] = packed.getvalue()
    write_whole(files)
    return list(files)


def load_fit(folder: Path, name: str, read: Callable[[dict[str, Any]], tuple[T, bool]]) -> tuple[T, np.ndarray]:
    """What `read` makes of a fit's JSON, and the covariance, (n, n).

    Args:
        folder: that `save_fit` wrote into.
        name: of the fit.
        read: what the document says, and whether this version knows its numbers.

    Raises:
        CodesignError: there is no fit, or its files are damaged or do not belong together.
    """
    path = folder / f"{name}-fit.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        packed = (folder / f"{name}-covariance.npz").read_bytes()
        with np.load(io.BytesIO(packed)) as arrays:
            lower = arrays["covariance"].astype(float)
        found, known = read(document)
        n = len(document["numbers"])
    except FileNotFoundError as problem:
        raise CodesignError("no fit here", file=str(path), allowed="run codesign calibrate") from problem
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile) as problem:
        raise CodesignError("damaged; run codesign calibrate again", file=str(path)) from problem
    other = document.get("covariance_sha256", "") != hashlib.sha256(packed).hexdigest()
    if other or len(lower) != n * (n + 1) // 2 or not known or not np.all(np.isfinite(lower)):
        raise CodesignError("does not belong to its covariance or to this version", file=str(path))
    return found, symmetric(lower, n)


def symmetric(lower: np.ndarray, n: int) -> np.ndarray:
    """A covariance, (n, n), from its lower triangle, row by row."""
    found = np.zeros((n, n))
    found[np.tril_indices(n)] = lower
    return found + np.tril(found, -1).T
