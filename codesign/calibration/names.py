"""Chips and models of measured tables by any name that the catalog has for them."""

from collections.abc import Collection

from codesign.catalog.names import KINDS, normalise
from codesign.catalog.workspace import Workspace, read_toml
from codesign.errors import UnknownName


def known_as(name: str, chips: Collection[str], models: Collection[str] = ()) -> str:
    """The one of some chips or models that a name means, in any case, by alias, or of a chip by its system.

    Args:
        name: as it was given.
        chips: names of accelerators.
        models: names of models.

    Returns:
        one of the names, or ``name`` as it was given where it means none of them.
    """
    same = {normalise(known): known for known in (*models, *chips)}
    if normalise(name) in same:
        return same[normalise(name)]
    catalog = Workspace.open()
    for kind, known in (("model", models), ("system", chips), ("accelerator", chips)):
        try:
            entry = catalog.find(KINDS[kind], name)
        except UnknownName:
            continue
        found = str(read_toml(entry.origin).get("accelerator")) if kind == "system" else entry.name
        if found in known:
            return found
    return name
