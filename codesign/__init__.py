"""codesign: which accelerator serves the most tokens per megawatt at a target TPOT.

The functions here are those of `codesign.api`, imported on first use, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codesign.api import (
        disaggregate,
        evaluate,
        frontier,
        import_model,
        list_catalog,
        load_machine,
        load_model,
        optimize,
    )
    from codesign.errors import CodesignError

__version__ = "0.1.0"

__all__ = [
    "CodesignError", "disaggregate", "evaluate", "frontier", "import_model", "list_catalog", "load_machine",
    "load_model", "optimize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "CodesignError":
        return import_module("codesign.errors").CodesignError
    if name in __all__:
        return getattr(import_module("codesign.api"), name)
    raise AttributeError(f"module 'codesign' has no attribute {name!r}")
