"""Measured kernel tables straight from an installed ``aiconfigurator-core``: an optional extra, read as data.

The package (NVIDIA, Apache-2.0) ships kernels measured on its own chips as Parquet files.  `read` turns those of
`codesign.calibration.aiconfigurator_tables` into the tables that the CSV readers take, and chooses lines:

* chips: the three that this program's own constants were fitted on, unless others are asked for by name; a system of
  the package is a chip here when the catalog knows its name.
* of lines of one configuration the newest version of the back end, and there the median.
* ``fit`` and ``check`` by a hash of the configuration, chip and version left out: one in `CHECK` is held back, the same
  ones on every chip and in every run, so that no relative's line tells what a line held back is.
* no more than ``most`` lines per table, chip, kernel and format, those of the least hash: the sample is the same in
  every run and takes the same configurations of every chip that has them.

Lines that cannot be placed (a kernel, format or law that no reader has, a time that is none, a device that is not the
folder's) are counted by table, chip and reason.  The package itself is never imported: only its files are read, with
polars.  Constants that ship with this program are not fitted with it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from codesign.calibration.aiconfigurator_tables import SOURCES, Source
from codesign.calibration.tables.base import Kind, Sample, stack
from codesign.errors import CodesignError, UnknownName

#: The distribution, and the package that it installs.
NAME, MODULE = "aiconfigurator-core", "aiconfigurator_core"

#: Systems of the package that are read unless others are named.
CHIPS = ("h200_sxm", "b200_sxm", "gb200")

#: One configuration in so many is held back of the fit.
CHECK = 5

#: Most lines per table, chip, kernel and format: about as many in all as the fit that ships has.
MOST = 200

#: Whole numbers that may be 0: no prefix, no window.
MAY_BE_NONE = ("step_or_prefix_tokens", "window_size")


@dataclass(frozen=True)
class Read:
    """What was read of the package.

    Attributes:
        version: the distribution's.
        tables: by kind, lines with the columns of its CSV table, ``version`` and ``split``; a polars frame.
        rows: lines of the files that were read.
        groups: per table, chip and stratum, how many lines were there and how many were taken.
        left_out: per table, chip and reason, lines that were not taken (whole files where ``files`` is told).
    """

    version: str
    tables: dict[Kind, Any]
    rows: int
    groups: list[dict[str, Any]]
    left_out: list[dict[str, Any]]

    def document(self) -> dict[str, Any]:
        """What results say of the package."""
        taken = sum(len(frame) for frame in self.tables.values())
        return {
            "name": NAME, "version": self.version, "rows": self.rows, "taken": taken, "groups": self.groups,
            "left_out": self.left_out,
        }  # fmt: skip


def folder() -> Path:
    """Folder of the installed package's tables.

    Raises:
        CodesignError: it is not installed, or has no tables.
    """
    spec = find_spec(MODULE)
    where = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    if where is None:
        raise CodesignError(f"{NAME} is not installed", allowed="pip install 'codesign[aiconfigurator]'")
    found = Path(where) / "systems" / "data"
    if not found.is_dir():
        raise CodesignError(f"{NAME} has no measured tables", file=str(found), allowed="version 0.12")
    return found


def version() -> str:
    """Version of the installed distribution, or ``unknown``."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


def _systems(data: Path, chips: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Systems of the package that are asked for, by its own or the catalog's name; of the others, why not."""
    from codesign.catalog.loader import load_file

    there: dict[str, str] = {}
    left: dict[str, str] = {}
    for path in sorted(p for p in data.iterdir() if p.is_dir()):
        try:
            there[path.name] = load_file("system", path.name).name
        except UnknownName:
            left[path.name] = "a chip that the catalog does not have"
    wanted: list[str] = []
    for chip in chips:
        known = load_file("system", chip).name
        same = [system for system, name in there.items() if name == known]
        if not same:
            raise CodesignError(f"{NAME} has no tables of {chip!r}", key="--chip", allowed=", ".join(sorted(there)))
        wanted += [system for system in same if system not in wanted]
    return wanted, left | {s: "a chip that was not asked for" for s in there if s not in wanted}


def _release(name: str) -> tuple[int, ...]:
    """Versions in the order of their numbers: 1.3.0rc20 after 1.3.0rc9, 0.5.14 after 0.5.6.post2."""
    return tuple(int(x) for x in re.findall(r"\d+", name))


def lines_of(source: Source, system: str, path: Path, told: Counter[str]) -> Any:
    """One file's lines in our columns, a polars frame; what cannot be placed is counted in ``told`` by reason.

    Raises:
        CodesignError: no Parquet file, or one without the columns of its kind.
    """
    import polars as pl

    try:
        scan = pl.scan_parquet(path)
        device = pl.col("device").str.split(" ").list.contains(system.split("_")[0].upper())
        own = device if "device" in scan.collect_schema().names() else pl.lit(value=True)
        frame = scan.select(**source.columns(pl, system), _own=own).collect()
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise CodesignError(f"cannot be read: {str(problem).splitlines()[0]}", file=str(path)) from problem

    def cut(frame: Any, reason: str, bad: Any) -> Any:
        kept = frame.filter(~bad.fill_null(value=True))
        told[reason] += len(frame) - len(kept)
        return kept

    frame = cut(frame, "measured on another device than the folder's", ~pl.col("_own")).drop("_own")
    frame = cut(frame, "a time that is none", ~(pl.col("latency_us").is_finite() & (pl.col("latency_us") > 0)))
    counts = [c for c, kind in frame.schema.items() if kind.is_integer() and c != "sms"]
    least = {c: 0 if c in MAY_BE_NONE else 1 for c in counts}
    frame = cut(frame, "a count that is none", pl.any_horizontal([pl.col(c) < least[c] for c in counts]))
    for column, (words, values) in source.known.items():
        strange = [v for v in frame[column].unique().sort().to_list() if v not in values]
        for value in strange:
            same = pl.col(column).is_null() if value is None else pl.col(column).eq_missing(pl.lit(value))
            frame = cut(frame, f"{words} {value!r}, which no reader has", same)
    for reason, condition in source.refuse.items():
        frame = cut(frame, reason, condition(pl))
    return frame.with_columns(system=pl.lit(system), version=pl.lit(f"{source.backend}/{path.parent.name}"))


def _newest(frame: Any, told: Counter[str]) -> Any:
    """Of lines of one configuration those of the newest version, in the median."""
    import polars as pl

    names = [name for name in frame.columns if name not in ("latency_us", "version")]
    once = frame.group_by(*names, "version", maintain_order=True).agg(pl.col("latency_us").median())
    told["measured again at the same version: the median is taken"] += len(frame) - len(once)
    order = {v: i for i, v in enumerate(sorted(once["version"].unique().to_list(), key=_release))}
    ranked = once.with_columns(_rank=pl.col("version").replace_strict(order, return_dtype=pl.Int64))
    found = ranked.sort("_rank", maintain_order=True).unique(names, keep="last", maintain_order=True)
    told["measured again with a newer version"] += len(once) - len(found)
    return found.drop("_rank")


def hashed(frame: Any) -> Any:
    """The frame with ``_hash`` from each line's configuration, every column but system, version and time."""
    import polars as pl

    names = sorted(set(frame.columns) - {"system", "version", "latency_us"})
    words = [pl.format(f"{name}={{}}", pl.col(name).cast(pl.String).fill_null("")) for name in names]
    text = frame.select(text=pl.concat_str(words, separator="|"))["text"]
    digests = (hashlib.blake2b(t.encode(), digest_size=8).digest() for t in text)
    return frame.with_columns(_hash=pl.Series([int.from_bytes(d, "little") for d in digests], dtype=pl.UInt64))


def chosen(frame: Any, strata: Sequence[str], most: int) -> Any:
    """``most`` lines of each stratum at most, those of the least hash, with their ``split``."""
    import polars as pl

    # The split takes the hash's remainder, the order the rest of it: neither tells of the other.
    found = hashed(frame).with_columns(
        split=pl.when(pl.col("_hash") % CHECK == 0).then(pl.lit("check")).otherwise(pl.lit("fit")),
        _order=pl.col("_hash") // CHECK,
    )
    found = found.sort("_order", maintain_order=True)
    return found.group_by(*strata, maintain_order=True).head(most).drop("_hash", "_order")


def _other_files(data: Path, system: str) -> list[dict[str, Any]]:
    """Files of a system that no source reads, with their lines and why."""
    import polars as pl

    ours = {(s.folder, s.file): s for s in SOURCES}
    read = {(s.folder, s.backend, s.file) for s in SOURCES}
    lines: Counter[tuple[str, str]] = Counter()
    for path in sorted((data / system).glob("*/*/*/*_perf.parquet")):
        where, backend, file = path.parts[-4], path.parts[-3], path.name.removesuffix("_perf.parquet")
        if (where, backend, file) in read:
            continue
        source = ours.get((where, file))
        reason = f"kernels of {backend}, which no law has constants for" if source else "a table that no reader has"
        try:
            count = pl.scan_parquet(path).select(pl.len()).collect().item()
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise CodesignError(f"cannot be read: {str(problem).splitlines()[0]}", file=str(path)) from problem
        lines[source.kind.name if source else f"{where}/{file}", reason] += count
    return [{"table": t, "chip": system, "reason": r, "rows": n} for (t, r), n in sorted(lines.items())]


def read(chips: Sequence[str] = CHIPS, *, most: int = MOST, data: Path | None = None) -> Read:
    """Read, place by name, split and sample the package's kernel tables.

    Args:
        chips: systems by the package's or the catalog's names.
        most: lines per table, chip, kernel and format.
        data: folder of the tables; the installed package's where None.

    Raises:
        CodesignError: no package, a chip that it or the catalog does not have, a damaged file, nothing to read.
    """
    import polars as pl

    where = folder() if data is None else data
    systems, others = _systems(where, chips)
    left_out = [
        {"table": None, "chip": s, "reason": r, "files": sum(1 for _ in (where / s).rglob("*_perf.parquet"))}
        for s, r in others.items()
    ]
    taken: dict[Kind, list[Any]] = {}
    groups: list[dict[str, Any]] = []
    rows = 0
    for system in systems:
        told: Counter[tuple[str, str]] = Counter()
        for source in SOURCES:
            reasons: Counter[str] = Counter()
            paths = sorted((where / system / source.folder / source.backend).glob(f"*/{source.file}_perf.parquet"))
            if paths:
                frame = pl.concat([lines_of(source, system, path, reasons) for path in paths])
                rows += len(frame) + reasons.total()
                frame = _newest(frame, reasons)
                some = chosen(frame, source.strata, most)
                taken.setdefault(source.kind, []).append(some)
                counts = frame.group_by(*source.strata).len().sort(*source.strata)
                groups += [
                    {"table": source.kind.name, "chip": system, "of": dict(zip(source.strata, key, strict=True)),
                     "rows": n, "taken": min(n, most)}
                    for *key, n in counts.rows()
                ]  # fmt: skip
            for reason, n in reasons.items():
                told[source.kind.name, reason] += n
        left_out += [{"table": t, "chip": system, "reason": r, "rows": n} for (t, r), n in sorted(told.items()) if n]
        left_out += _other_files(where, system)
    tables = {kind: pl.concat(frames, how="diagonal_relaxed") for kind, frames in taken.items()}
    if not sum(len(frame) for frame in tables.values()):
        raise CodesignError(f"{NAME} has no kernels of {', '.join(chips)}", file=str(where))
    return Read(version(), tables, rows, groups, left_out)


def samples(found: Read) -> list[Sample]:
    """The lines placed on machines of the catalog, for the fit."""
    placed: list[Sample] = []
    for kind, frame in found.tables.items():
        columns = {
            name: np.array(frame[name].to_list(), dtype=object if frame[name].dtype == "String" else None)
            for name in frame.columns
        }
        placed += stack(kind, columns, kind.place(columns))
    return placed
