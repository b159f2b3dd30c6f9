"""Measured tables: read a file, recognise its kind by its columns, place its lines on machines of the catalog."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from codesign.calibration.tables import attention, collectives, exchange, gemm, kda, mla, moe
from codesign.calibration.tables.base import SETUPS, Columns, Kind, Sample, machine_named, stack
from codesign.errors import CodesignError

#: In the order in which a file is tried.
KINDS: tuple[Kind, ...] = (
    gemm.KIND, attention.KIND, mla.MODULE, mla.KERNEL, moe.KIND, collectives.KIND, exchange.KIND, kda.KIND,
)  # fmt: skip

#: Columns that every kernel table has.
COMMON = ("system", "latency_us")


def read_columns(path: Path) -> Columns:
    """A CSV file as columns of numpy arrays; a table without ``split`` is for checking only.

    Raises:
        CodesignError: the file is no table, or has no lines.
    """
    import polars as pl

    try:
        frame = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as problem:
        raise CodesignError(f"cannot be read as a table: {str(problem).splitlines()[0]}", file=path.name) from problem
    if not len(frame):
        raise CodesignError("has no lines", file=path.name)
    columns = {name: np.array(frame[name].to_list(), dtype=object if frame[name].dtype == pl.String else None)
               for name in frame.columns}  # fmt: skip
    return columns if "split" in columns else columns | {"split": np.full(len(frame), "check", dtype=object)}


def recognise(columns: Columns) -> Kind | None:
    """The kind of kernel table whose columns these are, or None."""
    return next((kind for kind in KINDS if {*kind.columns, *COMMON} <= set(columns)), None)


def _checked(columns: Columns, label: str) -> None:
    seconds = columns["latency_us"]
    for i, value in enumerate(seconds.tolist()):
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0.0:
            raise CodesignError(
                f"line {i + 2} has {value!r}", file=label, key="latency_us", allowed="a finite number above 0"
            )


def unplaced(columns: Columns) -> dict[int, str]:
    """Line numbers whose system the catalog does not have, with the reason."""
    reasons: dict[str, str] = {}
    for system in dict.fromkeys(columns["system"].tolist()):
        try:
            machine_named(str(system))
        except CodesignError as problem:
            reasons[system] = str(problem)
    return {i: reasons[s] for i, s in enumerate(columns["system"].tolist()) if s in reasons}


def place(path: Path, *, strict: bool = True) -> tuple[list[Sample], dict[int, str]]:
    """Read and place one kernel table.

    Args:
        path: the file.
        strict: refuse lines that cannot be placed instead of naming them.

    Returns:
        samples, and the reason by number of each line left out.

    Raises:
        CodesignError: not a kernel table, a time that is none, an unknown format or system.
    """
    columns = read_columns(path)
    kind = recognise(columns)
    if kind is None:
        known = "; ".join(", ".join((*COMMON, *k.columns)) for k in KINDS)
        raise CodesignError("no kernel table has these columns", file=path.name, allowed=known)
    _checked(columns, path.name)
    left = unplaced(columns)
    if left and strict:
        raise CodesignError(next(iter(left.values())), file=path.name)
    keep = np.array([i for i in range(len(columns["system"])) if i not in left], dtype=int)
    kept = {name: values[keep] for name, values in columns.items()}
    try:
        samples = stack(kind, kept, kind.place(kept)) if len(keep) else []
    except CodesignError as problem:
        raise CodesignError(problem.problem, file=path.name, key=str(problem).split(":")[0], allowed=None) from problem
    return samples, left


def place_folder(folder: Path) -> list[Sample]:
    """All kernel tables of a folder, by name; other files are passed over."""
    found: list[Sample] = []
    for path in sorted(folder.glob("*.csv")):
        if recognise(read_columns(path)) is not None:
            found += place(path)[0]
    if not found:
        raise CodesignError("no kernel tables here", file=str(folder), allowed="CSV files as in the documentation")
    return found


__all__ = ["KINDS", "SETUPS", "Kind", "Sample", "place", "place_folder", "read_columns", "recognise", "unplaced"]


def total(samples: Sequence[Sample]) -> int:
    """Lines in all."""
    return sum(len(s) for s in samples)
