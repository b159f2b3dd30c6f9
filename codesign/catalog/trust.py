"""What a result rests on: every number of its files with value, unit, kind and source."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from codesign.catalog.loader import LoadedSystem
from codesign.catalog.quantity import KIND_ORDER, Number, Table
from codesign.catalog.schema import CatalogFile


class Provenance(NamedTuple):
    """One number of a file.

    Attributes:
        field: dotted key, with the kind of file in front, e.g. ``accelerator.memory_bandwidth``.
        value: as written in the file.
        unit: of the converted value (SI).
        kind: datasheet | measured | fitted | estimate | assumption | rumour.
        source: where it comes from.
        range: lowest and highest, as written, or None.
        note: or None.
    """

    field: str
    value: str
    unit: str
    kind: str
    source: str
    range: tuple[str, str] | None
    note: str | None


def _walk(node: Any, path: str) -> Iterable[Provenance]:
    if isinstance(node, Number):
        span = (str(node.range[0]), str(node.range[1])) if node.range else None
        yield Provenance(path, node.text, node.unit, node.kind, node.source, span, node.note)
    elif isinstance(node, Table):
        for name in type(node).model_fields:
            yield from _walk(getattr(node, name), f"{path}.{name}")
    elif isinstance(node, dict):
        for name, inner in node.items():
            yield from _walk(inner, f"{path}.{name}")


def provenance(loaded: LoadedSystem | CatalogFile) -> list[Provenance]:
    """Every number of a system (with its accelerator and memory technology) or of one file, in the file's order."""
    files = loaded.files if isinstance(loaded, LoadedSystem) else (loaded,)
    return [row for file in files for row in _walk(file, file.kind_name)]


def kinds_used(*loaded: LoadedSystem | CatalogFile, fields: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Which kinds of number the given files hold, least trusted first, with the fields of each.

    Args:
        loaded: systems and files that a result rests on.
        fields: only these dotted keys, e.g. the ones that a result is sensitive to; None for all.

    Returns:
        ``{"rumour": [...], "assumption": [...], ...}``, kinds without fields left out.
    """
    wanted = None if fields is None else set(fields)
    rows = [row for one in loaded for row in provenance(one) if wanted is None or row.field in wanted]
    found = {kind: [row.field for row in rows if row.kind == kind] for kind in reversed(KIND_ORDER)}
    return {kind: names for kind, names in found.items() if names}
