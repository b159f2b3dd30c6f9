"""The catalog: what could be built (``arch/``) and what must be served (``workloads/``), read from TOML files.

Names are imported on first use, so that listing files needs neither pydantic nor jax.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codesign.catalog.build import machine_of, machine_values
    from codesign.catalog.loader import (
        LoadedSystem,
        load_accelerator,
        load_file,
        load_machine,
        load_measurement,
        load_memory,
        load_model_file,
        load_path,
        load_request,
        load_system,
        validate,
    )
    from codesign.catalog.overrides import Override, parse_overrides
    from codesign.catalog.quantity import Number
    from codesign.catalog.schema import Accelerator, Measurement, Memory, System
    from codesign.catalog.trust import Provenance, kinds_used, provenance
    from codesign.catalog.workloads import ModelFile, Request
    from codesign.catalog.workspace import Entry, Origin, Workspace, find_entry, init_workspace, list_catalog

_HOMES = {
    "build": ("machine_of", "machine_values"),
    "loader": (
        "LoadedSystem", "load_accelerator", "load_file", "load_machine", "load_measurement", "load_memory",
        "load_model_file", "load_path", "load_request", "load_system", "validate",
    ),
    "overrides": ("Override", "parse_overrides"),
    "quantity": ("Number",),
    "schema": ("Accelerator", "Measurement", "Memory", "System"),
    "trust": ("Provenance", "kinds_used", "provenance"),
    "workloads": ("ModelFile", "Request"),
    "workspace": ("Entry", "Origin", "Workspace", "find_entry", "init_workspace", "list_catalog"),
}  # fmt: skip

__all__ = [
    "Accelerator", "Entry", "LoadedSystem", "Measurement", "Memory", "ModelFile", "Number", "Origin", "Override",
    "Provenance", "Request", "System", "Workspace", "find_entry", "init_workspace", "kinds_used", "list_catalog",
    "load_accelerator", "load_file", "load_machine", "load_measurement", "load_memory", "load_model_file", "load_path",
    "load_request", "load_system", "machine_of", "machine_values", "parse_overrides", "provenance", "validate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
