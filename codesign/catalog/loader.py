"""Read a catalog file by name or alias, change it by ``--set``, and validate it; all errors are one line.

The order is: find the file (own folder first), parse TOML, apply overrides to the raw tables, validate by the schema of
its kind.  What comes back are pydantic objects with their origin; `codesign.catalog.build` makes a machine of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import BaseModel, ValidationError

from codesign.catalog.messages import translate
from codesign.catalog.names import KINDS, normalise
from codesign.catalog.overrides import Override, apply_overrides, parse_overrides
from codesign.catalog.schema import Accelerator, CatalogFile, Measurement, Memory, System, schema_of
from codesign.catalog.workloads import ModelFile, Request
from codesign.catalog.workspace import Origin, Workspace, names_like, read_toml
from codesign.errors import CodesignError

if TYPE_CHECKING:
    from codesign.machine import Machine

Where = Workspace | str | Path | None
Overrides = Iterable[str | Override]
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class LoadedSystem:
    """A system with the files it refers to.

    Attributes:
        system, accelerator, memory: validated files, each with its ``origin``.
        overrides: the ``--set`` that changed them.
    """

    system: System
    accelerator: Accelerator
    memory: Memory
    overrides: tuple[Override, ...] = field(default=())

    @property
    def name(self) -> str:
        """The system's name."""
        return self.system.name

    @property
    def files(self) -> tuple[CatalogFile, CatalogFile, CatalogFile]:
        """The three files, in the order in which they refer to each other."""
        return self.system, self.accelerator, self.memory


def validate(
    raw: dict[str, Any], schema: type[T], label: str, target: str = "", overrides: Iterable[Override] = ()
) -> T:
    """Apply overrides to raw tables and validate them; ``raw`` is changed.

    Args:
        raw: a file as TOML reads it.
        schema: a pydantic model.
        label: how errors call the file.
        target: first part of the overrides' keys, e.g. ``accelerator``.
        overrides: of any target.

    Raises:
        CodesignError: one line with file, dotted key, what is wrong and what is allowed.
    """
    mine = apply_overrides(raw, schema, target, overrides)
    try:
        return schema.model_validate(raw)
    except ValidationError as failure:
        raise translate(failure, raw, schema, label, mine) from failure


def load_path(path: str | Path, schema: type[T], target: str = "", overrides: Overrides = ()) -> T:
    """Read and validate a file given by its path (studies, points); errors as in `validate` and `read_toml`."""
    origin = Origin(Path(path), str(path), "path")
    loaded = validate(read_toml(origin), schema, origin.label, target, parse_overrides(overrides, (target,)))
    if isinstance(loaded, CatalogFile):
        loaded._origin = origin
    return loaded


@overload
def load_file(kind: Literal["system"], name: str, workspace: Where = None, overrides: Overrides = ()) -> System: ...
@overload
def load_file(
    kind: Literal["accelerator"], name: str, workspace: Where = None, overrides: Overrides = ()
) -> Accelerator: ...
@overload
def load_file(kind: Literal["memory"], name: str, workspace: Where = None, overrides: Overrides = ()) -> Memory: ...
@overload
def load_file(
    kind: Literal["measurement"], name: str, workspace: Where = None, overrides: Overrides = ()
) -> Measurement: ...
@overload
def load_file(kind: Literal["model"], name: str, workspace: Where = None, overrides: Overrides = ()) -> ModelFile: ...
@overload
def load_file(kind: Literal["request"], name: str, workspace: Where = None, overrides: Overrides = ()) -> Request: ...
@overload
def load_file(kind: str, name: str, workspace: Where = None, overrides: Overrides = ()) -> CatalogFile: ...
def load_file(kind: str, name: str, workspace: Where = None, overrides: Overrides = ()) -> CatalogFile:
    """Load a file of any kind by name or alias.

    Args:
        kind: ``system`` | ``accelerator`` | ``memory`` | ``measurement`` | ``model`` | ``request``.
        name: file name without ``.toml``, or an alias; case, blanks and underscores do not matter.
        workspace: as in `Workspace.open`.
        overrides: ``--set`` texts; those of other targets are left alone.

    Raises:
        CodesignError: unknown name, or anything wrong with the file.
    """
    entry = Workspace.open(workspace).find(KINDS[kind], name)
    raw = read_toml(entry.origin)
    given = raw.get("name")
    if isinstance(given, str) and normalise(given) != normalise(entry.name):
        problem = f"{given[:80]!r} is not the file's name"
        raise CodesignError(problem, file=entry.origin.label, key="name", allowed=entry.name)
    loaded = validate(raw, schema_of(kind), entry.origin.label, kind, parse_overrides(overrides))
    loaded._origin = entry.origin
    return loaded


def load_accelerator(name: str, workspace: Where = None, overrides: Overrides = ()) -> Accelerator:
    """Load ``arch/accelerators/NAME.toml``; see `load_file`."""
    return load_file("accelerator", name, workspace, overrides)


def load_memory(name: str, workspace: Where = None, overrides: Overrides = ()) -> Memory:
    """Load ``arch/memories/NAME.toml``; see `load_file`."""
    return load_file("memory", name, workspace, overrides)


def load_measurement(name: str, workspace: Where = None, overrides: Overrides = ()) -> Measurement:
    """Load ``arch/measurements/NAME.toml``; see `load_file`."""
    return load_file("measurement", name, workspace, overrides)


def load_model_file(name: str, workspace: Where = None, overrides: Overrides = ()) -> ModelFile:
    """Load ``workloads/models/NAME.toml``; see `load_file`."""
    return load_file("model", name, workspace, overrides)


def load_request(name: str, workspace: Where = None, overrides: Overrides = ()) -> Request:
    """Load ``workloads/requests/NAME.toml``; see `load_file`."""
    return load_file("request", name, workspace, overrides)


def load_system(name: str, workspace: Where = None, overrides: Overrides = ()) -> LoadedSystem:
    """Load ``arch/systems/NAME.toml`` with its accelerator and that one's memory technology.

    Args:
        name, workspace: as in `load_file`.
        overrides: ``--set`` texts with targets ``system``, ``accelerator`` and ``memory``; others are left alone.

    Raises:
        CodesignError: as in `load_file`; a reference to a name that is not there is told as the referring file's.
    """
    opened, changes = Workspace.open(workspace), parse_overrides(overrides)
    system = load_file("system", name, opened, changes)
    _check_reference(system, "accelerator", opened)
    accelerator = load_file("accelerator", system.accelerator, opened, changes)
    _check_reference(accelerator, "memory", opened)
    memory = load_file("memory", accelerator.memory, opened, changes)
    all_in, chip = system.provisioned_power, accelerator.chip_power
    if all_in.si < chip.si:
        problem = f"{all_in.text} is less than the chip_power {chip.text} of {accelerator.name}"
        raise CodesignError(problem, file=system.origin.label, key="provisioned_power", allowed=f"at least {chip.text}")
    mine = tuple(o for o in changes if o.target in ("system", "accelerator", "memory"))
    return LoadedSystem(system, accelerator, memory, mine)


def load_machine(name: str, workspace: Where = None, overrides: Overrides = ()) -> "Machine":
    """Load a system and build its `codesign.machine.Machine`; imports jax.  Otherwise as `load_system`."""
    from codesign.catalog.build import machine_of

    return machine_of(load_system(name, workspace, overrides))


def _check_reference(owner: CatalogFile, kind: str, workspace: Workspace) -> None:
    name = getattr(owner, kind)
    entries = workspace.entries(KINDS[kind])
    if not any(normalise(name) in entry.keys for entry in entries):
        allowed = names_like(name, entries)
        raise CodesignError(f"unknown {kind} {name!r}", file=owner.origin.label, key=kind, allowed=allowed)
