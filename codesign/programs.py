"""Programs that are traced once: kept on disk as StableHLO, so that a second start neither traces nor compiles them.

A program is known by its function, what is static, the shapes it takes, this package's sources and the versions below
it.  Whatever is run is what was kept, traced a moment ago or last week: results do not depend on which.
"""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from codesign.runtime import cache_folder

#: Sources of which programs are kept; older ones go.
KEPT = 4


class Program(NamedTuple):
    """A traced program.

    Attributes:
        call: from the flat arrays to the values.
        note: what the function said beside its values.
    """

    call: Callable[..., Any]
    note: Any


_LOCK = Lock()
_PROGRAMS: dict[tuple[Any, ...], Future[Program]] = {}
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="programs")


def run(function: Callable[..., tuple[Any, Any]], static: tuple[Any, ...], *arrays: Any) -> tuple[Any, Any]:
    """Call a function compiled.

    Args:
        function: of a module, from (*static, *arrays) to its values (arrays in lists, tuples and dicts) and a note that
            can be pickled: what is known once it is traced, such as the structure of the values.
        static: hashable, each told apart by its ``repr``; functions by their names.
        arrays: pytrees of numpy arrays.

    Returns:
        the values and the note.
    """
    leaves, tree = jax.tree.flatten(arrays)
    found = _begun(function, static, tree, _shapes(leaves)).result()
    return found.call(*leaves), found.note


def begin(function: Callable[..., tuple[Any, Any]], static: tuple[Any, ...], *arrays: Any) -> None:
    """Trace and compile in the background what `run` will be asked for with the same arguments."""
    leaves, tree = jax.tree.flatten(arrays)
    _begun(function, static, tree, _shapes(leaves), wait=False)


def _shapes(leaves: list[Any]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((np.shape(x), np.result_type(x).name) for x in leaves)


def _begun(*key: Any, wait: bool = True) -> Future[Program]:
    """The program, begun by whoever asks first: here, or by the background thread."""
    with _LOCK:
        found = _PROGRAMS.get(key)
        if found is None:
            found = _PROGRAMS[key] = _THREAD.submit(_program, *key) if not wait else Future()
            mine = wait
        else:
            mine = False
    if mine:
        try:
            found.set_result(_program(*key))
        except BaseException as problem:
            with _LOCK:
                del _PROGRAMS[key]
            found.set_exception(problem)
            raise
    return found


def _program(function: Any, static: tuple[Any, ...], tree: Any, shapes: Any) -> Program:
    names = (_name(function), *(_name(x) for x in static), repr(tree), repr(shapes))
    file = _file(names)
    kept = _read(file)
    if kept is None:
        kept = _traced(function, static, tree, shapes)
        _write(file, kept)
    exported, note = kept
    call = jax.jit(export.deserialize(bytearray(exported)).call)
    return Program(call.lower(*_arguments(shapes)).compile(), note)


def _traced(function: Any, static: tuple[Any, ...], tree: Any, shapes: Any) -> tuple[bytes, Any]:
    notes: list[Any] = []

    def flat(*leaves: jax.Array) -> Any:
        values, note = function(*static, *jax.tree.unflatten(tree, leaves))
        notes.append(note)
        return values

    exported = export.export(jax.jit(flat))(*_arguments(shapes)).serialize()
    return bytes(exported), notes[-1]


def _arguments(shapes: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def _name(x: Any) -> str:
    """What tells a static argument apart in another process."""
    if isinstance(x, type) or not callable(x):
        return repr(x)
    return f"{x.__module__}.{x.__qualname__}"


@cache
def _sources() -> str:
    """Digest of this package's sources and of the versions that trace and lower them."""
    versions = (metadata.version("jax"), metadata.version("jaxlib"), jax.default_backend())
    found = hashlib.sha256(" ".join(versions).encode())
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        found.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _file(names: tuple[str, ...]) -> Path | None:
    """Where a program is kept; None where it is not: an object without a name of its own, or no cache."""
    if os.environ.get("CODESIGN_CACHE") == "off" or any(" at 0x" in name for name in names):
        return None
    key = hashlib.sha256("\n".join((*names, jnp.result_type(float).name)).encode()).hexdigest()[:32]
    return cache_folder() / "programs" / _sources() / key


def _read(file: Path | None) -> tuple[bytes, Any] | None:
    """A kept program; None where there is none or it is damaged."""
    if file is None:
        return None
    try:
        data = file.read_bytes()
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            return None
        return pickle.loads(data[32:])  # noqa: S301 - written by `_write`, in the user's own folder
    except (OSError, pickle.UnpicklingError, AttributeError, EOFError, ImportError, ValueError, TypeError):
        return None


def _write(file: Path | None, kept: tuple[bytes, Any]) -> None:
    """Keep a program; a folder that cannot be written is left out without a word."""
    if file is None:
        return
    data = pickle.dumps(kept)
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        if not file.parent.is_dir():
            file.parent.mkdir(parents=True, exist_ok=True)
            older = sorted(file.parent.parent.iterdir(), key=lambda f: f.stat().st_mtime, reverse=True)[KEPT:]
            for folder in older:
                shutil.rmtree(folder, ignore_errors=True)
        draft.write_bytes(hashlib.sha256(data).digest() + data)
        draft.replace(file)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
