"""Where catalog files lie: the user's own folder first, then the catalog that comes with the program.

A catalog is a folder with ``arch/``, ``workloads/`` and ``optimize/``.  The bundled one is ``codesign/_bundled`` in an
installed package and the repository's root in a checkout.  This module finds files, reads them as raw TOML and knows
every name and alias; what the files must hold is the business of `codesign.catalog.schema`.
"""

import copy
import os
import shutil
import tempfile
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from codesign.catalog.names import KINDS, SECTIONS, Kind, allowed_names, kinds_of, normalise, structure
from codesign.errors import CodesignError, UnknownName

#: A larger file is not a catalog file.
MAX_BYTES = 2_000_000


@dataclass(frozen=True)
class Origin:
    """Where a file was found.

    Attributes:
        path: absolute.
        label: as errors name it: within the workspace that was named, ``bundled:`` in front where it is the program's.
        source: ``workspace`` | ``bundled`` | ``path``.
    """

    path: Path
    label: str
    source: str


@dataclass(frozen=True)
class Entry:
    """One file of the catalog, read no further than its names.

    Attributes:
        kind: key of `codesign.catalog.names.KINDS`.
        name: the file's stem.
        title: one line for people.
        aliases: other names.
        origin: where it lies.
        problem: why it cannot be read, or None.
        keys: every normalised name under which it is found.
    """

    kind: str
    name: str
    title: str
    aliases: tuple[str, ...]
    origin: Origin
    problem: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workspace:
    """The catalogs that are searched, in this order.

    Attributes:
        roots: pairs of ``workspace`` or ``bundled`` and a folder.
        shown: the user's folder as it was named, for errors; empty where nobody named it.
    """

    roots: tuple[tuple[str, Path], ...]
    shown: str = ""

    @classmethod
    def open(cls, directory: "str | Path | Workspace | None" = None) -> "Workspace":
        """The user's catalog and the bundled one.

        Args:
            directory: a folder with at least one of arch/, workloads/, optimize/ (``--workspace``); None takes the
                current folder where it has all three, else the bundled catalog alone.

        Raises:
            CodesignError: the folder is missing, is a file, or has none of the three.
        """
        if isinstance(directory, Workspace):
            return directory
        bundled = bundled_root()
        own: Path | None = None
        try:
            if directory is not None:
                own = Path(directory).expanduser()
                if not own.is_dir():
                    what = "is not a folder" if own.exists() else "does not exist"
                    raise CodesignError(f"{str(directory)!r} {what}", key="--workspace", allowed=_LAYOUT)
                if not any((own / s).is_dir() for s in SECTIONS):
                    raise CodesignError(f"{str(directory)!r} is not a workspace", key="--workspace", allowed=_LAYOUT)
                own = own.resolve()
            elif all(Path(s).is_dir() for s in SECTIONS):
                own = Path.cwd().resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise CodesignError(f"cannot be opened: {_reason(error)}", key="--workspace", allowed=_LAYOUT) from error
        if own is None:
            return cls((("bundled", bundled),))
        roots = (("workspace", own),) if own == bundled else (("workspace", own), ("bundled", bundled))
        return cls(roots, str(directory) if directory is not None else "")

    def files(self, kind: Kind) -> list[Origin]:
        """The TOML files of a kind, own ones before bundled ones, each folder sorted."""
        found = []
        for source, root in self.roots:
            folder = root / kind.folder
            try:
                paths = sorted(p for p in folder.iterdir() if p.suffix == ".toml" and not p.name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                file = str(folder) if source == "bundled" else str(Path(self.shown, kind.folder))
                raise CodesignError(f"cannot be listed: {_reason(error)}", file=file) from error
            if source == "bundled":
                found += [Origin(p, f"bundled:{kind.folder}/{p.name}", source) for p in paths]
            else:
                found += [Origin(p, str(Path(self.shown, kind.folder, p.name)), source) for p in paths]
        return found

    def entries(self, kind: Kind, *, strict: bool = True) -> list[Entry]:
        """Every file of a kind that is not hidden by an own file of the same name.

        Args:
            kind: which.
            strict: refuse two files that claim one name; else the second is listed with that as its ``problem``.

        Raises:
            CodesignError: two files of one catalog claim the same name or alias.
        """
        shown: list[Entry] = []
        claimed: dict[tuple[str, str], Entry] = {}
        own = set()
        for origin in self.files(kind):
            entry = _entry(kind, origin)
            if origin.source == "bundled" and normalise(entry.name) in own:
                continue
            for key in entry.keys:
                other = claimed.setdefault((origin.source, key), entry)
                if other is not entry:
                    twice = CodesignError(
                        f"{key!r} already names {other.origin.label}", file=origin.label, key="aliases",
                        allowed="each name and alias once",
                    )  # fmt: skip
                    if strict:
                        raise twice
                    entry = replace(entry, problem=entry.problem or str(twice))
            if origin.source == "workspace":
                own.update(entry.keys)
            shown.append(entry)
        return shown

    def find(self, kind: Kind, name: str) -> Entry:
        """The file that a name or alias means, own files first.

        Where none has the name as it is written, the one that alone has it in the form of
        `codesign.catalog.names.structure`.

        Raises:
            CodesignError: no such name, with the nearest ones.
        """
        entries = self.entries(kind)
        if found := _meant(str(name), entries):
            return found
        raise UnknownName(f"unknown {kind.name} {str(name)[:80]!r}", allowed=names_like(str(name), entries))


def _meant(name: str, entries: list[Entry]) -> Entry | None:
    """The first entry with a name as it is written, else the only one of a kind and a catalog that means the same."""
    wanted = normalise(name)
    for entry in entries:
        if wanted in entry.keys:
            return entry
    alike: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        form = structure(entry.kind, name)
        if form and any(form == structure(entry.kind, key) for key in entry.keys):
            alike.setdefault((entry.kind, entry.origin.source), []).append(entry)
    first = next(iter(alike.values()), [])
    return first[0] if len(first) == 1 else None


_LAYOUT = "a folder with arch/, workloads/ or optimize/; codesign init DIR makes one"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def names_like(name: str, entries: list[Entry]) -> str:
    """What to offer instead of an unknown name: the nearest names and aliases among the entries."""
    return allowed_names(name, [e.name for e in entries], [a for e in entries for a in e.aliases])


def bundled_root() -> Path:
    """The catalog that comes with the program; raises `CodesignError` where the installation lacks it."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "_bundled", package.parent):
        if all((root / s).is_dir() for s in SECTIONS):
            return root
    raise CodesignError("the bundled catalog is missing from this installation", allowed="install codesign again")


def _entry(kind: Kind, origin: Origin) -> Entry:
    stem = origin.path.stem
    try:
        raw = _read(origin)
    except CodesignError as error:
        return Entry(kind.name, stem, "", (), origin, str(error), (normalise(stem),))
    given, title, aliases = raw.get("name"), raw.get("title"), raw.get("aliases")
    aliases = tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else ()
    names = [stem, *([given] if isinstance(given, str) else []), *aliases]
    return Entry(
        kind.name, stem, title if isinstance(title, str) else "", aliases, origin, None,
        tuple(dict.fromkeys(key for key in map(normalise, names) if key)),
    )  # fmt: skip


def read_toml(origin: Origin) -> dict[str, Any]:
    """Read a file as raw TOML; the caller may change what it gets.

    Raises:
        CodesignError: not a file, unreadable, too large, not UTF-8, empty, or not TOML, with the line.
    """
    return copy.deepcopy(_read(origin))


def _read(origin: Origin) -> dict[str, Any]:
    try:
        status = origin.path.stat()
        if not origin.path.is_file():
            what = "is a folder" if origin.path.is_dir() else "is not a regular file"
            raise CodesignError(what, file=origin.label, allowed="a TOML file")
    except (OSError, ValueError) as error:
        raise CodesignError(f"cannot be read: {_reason(error)}", file=origin.label) from error
    if status.st_size > MAX_BYTES:
        raise CodesignError(f"has {status.st_size} bytes", file=origin.label, allowed=f"at most {MAX_BYTES}")
    return _parsed(origin, (status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=1024)
def _parsed(origin: Origin, _version: tuple[int, int, int]) -> dict[str, Any]:
    """Parse once per version of a file."""
    try:
        data = origin.path.read_bytes()
    except OSError as error:
        raise CodesignError(f"cannot be read: {_reason(error)}", file=origin.label) from error
    return parse_toml(data, origin.label)


def parse_toml(data: bytes, label: str) -> dict[str, Any]:
    """Parse bytes as TOML; errors as in `read_toml`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CodesignError(f"is not UTF-8 at line {line}", file=label, allowed="UTF-8 text") from error
    try:
        raw = tomllib.loads(text)
    except RecursionError as error:
        raise CodesignError("is nested too deeply", file=label, allowed="TOML") from error
    except ValueError as error:  # syntax errors, and whole numbers of thousands of digits
        raise CodesignError(f"is not valid TOML: {str(error)[:200]}", file=label) from error
    if not raw:
        raise CodesignError("is empty", file=label, allowed="a TOML file with the keys of its kind")
    return raw


def list_catalog(
    section: str | None = None, workspace: Workspace | str | Path | None = None, *, strict: bool = True
) -> list[Entry]:
    """Every file of a section, own ones before bundled ones within each kind.

    Args:
        section: ``arch`` | ``workloads`` | ``optimize``, a kind such as ``system`` or ``systems``, or None for all.
        workspace: as in `Workspace.open`.
        strict: as in `Workspace.entries`.

    Raises:
        CodesignError: unknown section, or two files with one name.
    """
    kinds = kinds_of(section)
    if not kinds:
        raise CodesignError(f"unknown section {str(section)[:80]!r}", allowed=", ".join((*SECTIONS, *KINDS)))
    opened = Workspace.open(workspace)
    return [entry for kind in kinds for entry in opened.entries(kind, strict=strict)]


def find_entry(name: str, workspace: Workspace | str | Path | None = None, section: str | None = None) -> Entry:
    """The first entry of any kind, in the order of `KINDS`, that a name or alias means (`codesign show`).

    ``kind/name`` (``accelerator/h100``) names one kind.

    Raises:
        CodesignError: no such name, with the nearest ones over all kinds.
    """
    opened = Workspace.open(workspace)
    kinds = kinds_of(section)
    head, slash, tail = str(name).partition("/")
    if slash and len(kinds_of(head)) == 1:
        return opened.find(kinds_of(head)[0], tail)
    entries = [entry for kind in kinds for entry in opened.entries(kind)]
    if found := _meant(str(name), entries):
        return found
    raise CodesignError(f"unknown name {str(name)[:80]!r}", allowed=names_like(str(name), entries))


def init_workspace(directory: str | Path) -> list[Path]:
    """Copy the bundled catalog to a folder of the user's own, to edit there.

    The copy is made beside its place and moved in whole, so that an interrupted one leaves no half catalog.

    Args:
        directory: made where it does not exist.

    Returns:
        The files written, sorted.

    Raises:
        CodesignError: the folder already has one of arch/, workloads/, optimize/, is a file, or cannot be written.
    """
    target, source = Path(directory).expanduser(), bundled_root()
    try:
        if target.exists() and not target.is_dir():
            raise CodesignError("is a file", file=str(directory), allowed="a new folder")
        taken = [s for s in SECTIONS if os.path.lexists(target / s)]
        if taken:
            raise CodesignError(f"already has {taken[0]}/, which is kept", file=str(directory), allowed="a new folder")
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".codesign-init-", dir=target) as scratch:
            for section in SECTIONS:
                for path in sorted((source / section).rglob("*")):
                    inside = path.relative_to(source)
                    if any(part.startswith((".", "__")) for part in inside.parts) or not path.is_file():
                        continue
                    copied = Path(scratch) / inside
                    copied.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copied)
                (Path(scratch) / section).mkdir(exist_ok=True)
            for section in SECTIONS:
                (Path(scratch) / section).rename(target / section)
    except (OSError, ValueError, RuntimeError) as error:
        raise CodesignError(f"cannot be written: {_reason(error)}", file=str(directory)) from error
    return sorted(p for s in SECTIONS for p in (target / s).rglob("*") if p.is_file())
