"""Which module of a checkpoint is stored how: storage by bits and groups, schemes, and modules that stay wide.

What every dialect of quantisation settings shares; `codesign.catalog.importing.quantization` and
`codesign.catalog.importing.integers` read the dialects.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.modules import Module
from codesign.catalog.importing.names import ALWAYS_WIDE, LEFT_OUT, Names
from codesign.catalog.messages import told

#: Weights by type, bits and group, 0 for a scale per tensor or channel.
GROUPED = {
    ("float", 4, 16): "nvfp4", ("float", 4, 32): "mxfp4", ("float", 8, 0): "fp8", ("float", 8, 32): "mxfp8",
    ("int", 4, 0): "int4", ("int", 4, 32): "int4_group32", ("int", 4, 64): "int4_group64",
    ("int", 4, 128): "int4_group128", ("int", 8, 0): "int8", ("int", 8, 32): "int8_group32",
    ("int", 8, 64): "int8_group64", ("int", 8, 128): "int8_group128",
}  # fmt: skip

#: The same with a zero point beside each scale, of as many bits as the weights.
ZEROED = {
    ("int", 4, 0): "int4", ("int", 4, 32): "int4_group32_zero", ("int", 4, 64): "int4_group64_zero",
    ("int", 4, 128): "int4_group128_zero", ("int", 8, 0): "int8",
}  # fmt: skip

#: Lists of modules that are not quantised, by the names that writers of checkpoints give them.
WIDE_LISTS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")


class Scheme(NamedTuple):
    """How a module is stored, and in what its input is quantised (None: not at all)."""

    weight: str
    input: str | None


def stored(kind: Any, bits: Any, size: Any, zeros: bool = False) -> str | None:
    """The dtype of weights of so many bits in groups of ``size`` (0: per tensor or channel), None where none is."""
    table = ZEROED if zeros else GROUPED
    return next((name for key, name in table.items() if key == (kind, bits, size)), None)


@dataclass
class Rules:
    """Which module is stored how.

    Attributes:
        general: of modules that nothing else names, None for wide.
        named: schemes of modules by name.
        wide: modules that stay wide whatever else takes them.
        ordered: expressions of which the first that takes a module decides: a scheme, or False for wide.
        experts: of all routed experts, where the configuration says it apart.
        head: whether ``general`` covers the output head too.
        cache: dtype of the cache that the checkpoint was calibrated for.
    """

    general: Scheme | None = None
    named: Names | None = None
    wide: Names | None = None
    experts: Scheme | None = None
    head: bool = False
    cache: str | None = None
    ordered: Names | None = None

    def of(self, module: Module, unnamed: bool = True) -> Scheme | None:
        """The scheme of a module; ``unnamed`` modules fall under ``general``."""
        named = self.named.find(module) if self.named else None
        if self.wide and self.wide.find(module):
            return None
        first = self.ordered.find(module) if self.ordered else None
        if first is not None:
            return first or None
        if module.kind == "routed" and self.experts:
            return self.experts
        return named or (self.general if unnamed else None)

    def tell(self, depth: int) -> None:
        """Note the names that matched nothing in a model of ``depth`` layers."""
        for names in (self.named, self.wide, self.ordered):
            if names:
                names.tell(depth)


def table_of(c: Config, value: Any, key: str) -> dict[str, Any]:
    """A table that must be there."""
    if value is None:
        raise c.error("is missing", key, "a table")
    if not isinstance(value, dict):
        raise c.error(f"{told(value)} is of the wrong type", key, "a table")
    return value


def names_of(c: Config, value: Any, key: str) -> list[str]:
    """A list of names, which may be absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise c.error(f"{told(value)} is of the wrong type", key, "a list of names")
    for i, entry in enumerate(value):
        if not isinstance(entry, str):
            raise c.error(f"{told(entry)} is of the wrong type", f"{key}.{i}", "the name of a module")
    return value


def wide_names(c: Config, q: Mapping[str, Any], key: str) -> Names | None:
    """What a checkpoint lists as not quantised, under any of the names that such lists have."""
    listed = {name: names_of(c, q.get(name), f"{key}.{name}") for name in WIDE_LISTS}
    given = [name for name in WIDE_LISTS if listed[name]]
    if not given:
        return None
    found = Names(c, f"{key}.{given[0]}", re.compile(f"{LEFT_OUT.pattern}|{ALWAYS_WIDE.pattern}"))
    for name in given:
        for i, entry in enumerate(listed[name]):
            found.add(entry, True, f"{key}.{name}.{i}")
    return found
