"""A model file as text: the tables of a structure in the order and style of the catalog."""

import json
from collections.abc import Mapping
from typing import Any

from codesign.catalog.importing.structure import Structure, groups, runs
from codesign.catalog.workloads import Dtypes


def _value(value: Any) -> str:
    """A value as TOML writes it; JSON's strings, numbers and switches are TOML's too."""
    return json.dumps(value, ensure_ascii=False)


def _layer(layer: tuple[str, ...]) -> str:
    return "[" + ", ".join(_value(name) for name in layer) + "]"


def render(head: Mapping[str, Any], notes: list[str], structure: Structure, dtypes: Mapping[str, str]) -> str:
    """Write the file.

    Args:
        head: keys of the file itself, in order; what is None is left out.
        notes: remarks at its top.
        structure: blocks and layers.
        dtypes: per tensor class; classes that the model lacks may be absent.
    """
    lines = [f"# {note[0].upper()}{note[1:]}." for note in notes]
    lines += [f"{key} = {_value(value)}" for key, value in head.items() if value is not None]
    if structure.streams > 1:
        lines.append(f"residual_streams = {structure.streams}")
    if structure.run:
        lines.append(f"residual_run = {structure.run}")
    for name, table in structure.blocks.items():
        lines += ["", f"[blocks.{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    for repeat, group in runs(groups(structure)):
        listed = ", ".join(_layer(layer) for layer in group)
        lines += ["", "[[layers]]", f"repeat = {repeat}", f"group = [{listed}]"]
    lines += ["", "[dtypes]", *(f"{key} = {_value(dtypes[key])}" for key in Dtypes.model_fields if key in dtypes)]
    return "\n".join(lines) + "\n"
