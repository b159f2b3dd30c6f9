"""Measured tables: read a file, recognise its kind by its columns, place its lines on machines of the catalog."""

import math
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

#: Columns that are counts, wherever a table has them: each at least 1, a prefix at least 0.
COUNTS = (
    "m", "n", "k", "num_gpus", "message_elements", "num_heads", "num_key_value_heads", "head_dim", "batch_size",
    "kv_len_tokens", "seq_len", "num_k_heads", "head_k_dim", "isl_tokens", "step_or_prefix_tokens", "ep_size",
    "hidden_size", "topk", "num_experts", "num_tokens_per_rank", "num_tokens", "inter_size", "moe_tp_size",
    "moe_ep_size",
)  # fmt: skip

#: More than any kernel is given.
MOST = 1e12


def read_columns(path: Path) -> Columns:
    """A CSV file as columns of numpy arrays; a table without ``split`` is for checking only.

    Raises:
        CodesignError: the file is no table, or has no lines.
    """
    import polars as pl

    try:
        frame = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as problem:
        raise CodesignError(f"cannot be read as a table: {str(problem).splitlines()[0]}", file=str(path)) from problem
    if not len(frame):
        raise CodesignError("has no lines", file=str(path))
    columns = {name: np.array(frame[name].to_list(), dtype=object if frame[name].dtype == pl.String else None)
               for name in frame.columns}  # fmt: skip
    return columns if "split" in columns else columns | {"split": np.full(len(frame), "check", dtype=object)}


def recognise(columns: Columns) -> Kind | None:
    """The kind of kernel table whose columns these are, or None."""
    return next((kind for kind in KINDS if {*kind.columns, *COMMON} <= set(columns)), None)


def _checked(columns: Columns, label: str) -> None:
    """Refuse times and counts that are none, with the line and the column."""
    bounds = {"latency_us": (math.ulp(0.0), MOST)}
    bounds |= {name: (0.0 if "prefix" in name else 1.0, MOST) for name in COUNTS if name in columns}
    for name, (low, high) in bounds.items():
        for i, value in enumerate(columns[name].tolist()):
            try:
                sound = low <= float(value) <= high
            except (TypeError, ValueError):
                sound = False
            if not sound:
                least = "above 0" if name == "latency_us" else f"from {low:g}"
                problem, allowed = f"line {i + 2} has {value!r}", f"a finite number {least} to {high:g}"
                raise CodesignError(problem, file=label, key=name, allowed=allowed)


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
        raise CodesignError("no kernel table has these columns", file=str(path), allowed=known)
    _checked(columns, str(path))
    left = unplaced(columns)
    if left and strict:
        raise CodesignError(next(iter(left.values())), file=str(path))
    keep = np.array([i for i in range(len(columns["system"])) if i not in left], dtype=int)
    kept = {name: values[keep] for name, values in columns.items()}
    try:
        samples = stack(kind, kept, kind.place(kept)) if len(keep) else []
    except CodesignError as problem:
        raise CodesignError(problem.problem, file=str(path), key=problem.key, allowed=problem.allowed) from problem
    except KeyError as problem:
        raise CodesignError(f"unknown name {problem.args[0]!r}", file=str(path)) from problem
    except (AttributeError, TypeError, ValueError, OverflowError) as problem:
        raise CodesignError(f"has a cell that is none: {problem}", file=str(path)) from problem
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
