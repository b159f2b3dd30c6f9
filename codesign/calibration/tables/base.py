"""What every kind of measured table gives: its rows placed on a machine of the catalog, beside the seconds measured.

A kind of table is a file of this folder that says by which columns it is recognised and turns its lines into the
package's own rows of work.  What is fitted to the measurements is then what evaluation uses:
`codesign.execution.time_of`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from codesign.errors import CodesignError
from codesign.lanes import Row
from codesign.machine import Machine
from codesign.precision import MOVING_CLASSES, WEIGHT_CLASSES, Precision

#: Fields of a row that are numbers.
NUMBERS = tuple(f for f in Row._fields if f not in ("name", "family", "beside"))

#: Names of the multiples of a machine's set-up, as `codesign.execution` has them, and the machine's fields.
SETUPS = {"all_reduce": "all_reduce_setup", "all_to_all": "all_to_all_setup"}

Columns = dict[str, np.ndarray]


class Kind(NamedTuple):
    """A kind of table.

    Attributes:
        name: as results call it.
        group: which bar its error counts for: gemm, attention, moe, collectives, kda.
        columns: by which a file is recognised; all must be there.
        place: lines to groups of equal structure.
    """

    name: str
    group: str
    columns: tuple[str, ...]
    place: Callable[[Columns], Iterable["Group"]]


class Group(NamedTuple):
    """Lines of a table with one chip, one set of kernels and rows of one structure.

    Attributes:
        lines: their numbers in the table, (n,).
        chip: name of the accelerator.
        machine: it and its fabric.
        kernels: names of `codesign.calibration.constants.KERNELS` whose constants apply.
        operation: what error tables call it.
        rows: the work without software set-up, leaves scalar or (n,).
        setups: per row, seconds of each of `SETUPS`, scalar or (n,).
    """

    lines: np.ndarray
    chip: str
    machine: Machine
    kernels: tuple[str, ...]
    operation: str
    rows: Sequence[Row]
    setups: Sequence[dict[str, Any]]


@lru_cache(maxsize=64)
def machine_named(system: str, workspace: Any = None) -> tuple[str, Machine]:
    """Name of the accelerator and the machine of a system that a table names; aliases allowed."""
    from codesign.catalog.build import machine_of
    from codesign.catalog.loader import load_system

    loaded = load_system(system, workspace)
    return loaded.accelerator.name, jax.tree.map(lambda x: float(np.asarray(x)), machine_of(loaded))


def precision(**dtypes: str) -> Precision:
    """BF16 throughout but for the classes given."""
    return Precision.from_names(dict.fromkeys(WEIGHT_CLASSES + MOVING_CLASSES, "bf16") | dtypes)


def group(
    lines: np.ndarray,
    system: str,
    kernels: tuple[str, ...],
    operation: str,
    build: Callable[[Machine], Sequence[Row]],
    workspace: Any = None,
) -> Group:
    """Lines whose rows ``build`` makes on a machine; latencies are affine in the machine's set-ups, which go apart."""
    chip, machine = machine_named(system, workspace)
    bare = eqx.tree_at(lambda m: tuple(getattr(m, f) for f in SETUPS.values()), machine, (0.0,) * len(SETUPS))
    rows = [_host(row) for row in build(bare)]
    setups: list[dict[str, Any]] = [{} for _ in rows]
    for name, field in SETUPS.items():
        one = eqx.tree_at(lambda m, f=field: getattr(m, f), bare, getattr(machine, field))
        for found, row, other in zip(setups, rows, build(one), strict=True):
            found[name] = np.asarray(other.latency, dtype=float) - np.asarray(row.latency, dtype=float)
    return Group(lines, chip, machine, kernels, operation, rows, setups)


def _host(row: Row) -> Row:
    """The row with numpy arrays for JAX's; Python's own zeros stay, which say that there is nothing."""
    return row._replace(**{f: v if isinstance(v := getattr(row, f), float) else np.asarray(v, float) for f in NUMBERS})


def split_by(columns: Columns, *names: str) -> Iterable[tuple[tuple[Any, ...], np.ndarray]]:
    """The combinations of values of some columns, and the line numbers of each, in order of first appearance."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(zip(*(columns[n].tolist() for n in names), strict=True)):
        found.setdefault(key, []).append(i)
    return [(key, np.array(lines)) for key, lines in found.items()]


@dataclass(frozen=True)
class Sample:
    """Lines with rows of one structure, stacked for one compiled evaluation.

    Attributes:
        kind: the table's.
        lines: numbers in the table, (n,).
        systems, operations, splits: of each line, (n,).
        chips, kernels: whose constants apply, n of each.
        machine: leaves (n,).
        rows: leaves (n,) or Python zeros.
        setups: per row, seconds of each of `SETUPS`, (n,).
        seconds: measured, (n,).
    """

    kind: Kind
    lines: np.ndarray
    systems: np.ndarray
    operations: np.ndarray
    splits: np.ndarray
    chips: tuple[str, ...]
    kernels: tuple[tuple[str, ...], ...]
    machine: Machine
    rows: tuple[Row, ...]
    setups: tuple[dict[str, np.ndarray], ...]
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.lines)


def stack(kind: Kind, columns: Columns, groups: Iterable[Group]) -> list[Sample]:
    """Groups of one structure become one sample."""
    alike: dict[tuple, list[Group]] = {}
    for g in groups:
        alike.setdefault((g.machine.topology, *((row.name, row.family) for row in g.rows)), []).append(g)
    return [_joined(kind, columns, same) for same in alike.values()]


def _joined(kind: Kind, columns: Columns, groups: list[Group]) -> Sample:
    sizes = [len(g.lines) for g in groups]
    lines = np.concatenate([g.lines for g in groups])

    def joined(values: Sequence[Any]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(np.asarray(v, float), n) for v, n in zip(values, sizes, strict=True)])

    def number(values: Sequence[Any]) -> Any:
        return 0.0 if all(isinstance(v, float) and v == 0.0 for v in values) else joined(values)

    rows = tuple(
        row._replace(**{f: number([getattr(g.rows[i], f) for g in groups]) for f in NUMBERS})
        for i, row in enumerate(groups[0].rows)
    )
    setups = tuple({s: joined([g.setups[i][s] for g in groups]) for s in SETUPS} for i in range(len(rows)))
    return Sample(
        kind=kind,
        lines=lines,
        systems=columns["system"][lines],
        operations=np.array([g.operation for g, n in zip(groups, sizes, strict=True) for _ in range(n)], dtype=object),
        splits=columns["split"][lines],
        chips=tuple(c for g, n in zip(groups, sizes, strict=True) for c in (g.chip,) * n),
        kernels=tuple(k for g, n in zip(groups, sizes, strict=True) for k in (g.kernels,) * n),
        machine=jax.tree.map(lambda *leaves: joined(leaves), *(g.machine for g in groups)),
        rows=rows,
        setups=setups,
        seconds=columns["latency_us"][lines].astype(float) * 1e-6,
    )


def numbers(columns: Mapping[str, np.ndarray], lines: np.ndarray, *names: str) -> list[np.ndarray]:
    """Some columns at some lines, as floats."""
    try:
        return [np.asarray(columns[n])[lines].astype(float) for n in names]
    except ValueError as problem:
        raise CodesignError(f"not a number: {problem}", key=", ".join(names)) from problem
