"""Pydantic's list of errors, told as one line: file, dotted key, what is wrong, what is allowed."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from codesign.catalog.names import allowed_names, printable
from codesign.catalog.overrides import Override, child, known_keys
from codesign.errors import CodesignError

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of reasonable size",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
    "float_type": "a number",
}


def told(value: Any) -> str:
    """A value as an error shows it: short, and never the whole of a table."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def dotted(location: Sequence[str | int], raw: Any, missing: bool = False) -> tuple[str, ...]:
    """A pydantic location as keys of the file; the tags that unions put in are dropped.

    What is not in the file is such a tag, except for the last part where a key is ``missing``.
    """
    path: list[str] = []
    node = raw
    for i, part in enumerate(location):
        inside = (isinstance(node, dict) and part in node) or (
            isinstance(node, list) and isinstance(part, int) and part < len(node)
        )
        if inside:
            node = node[part]  # type: ignore[index]
            path.append(str(part))
        elif missing and i == len(location) - 1:
            path.append(str(part))
    return tuple(path)


def _schema_at(schema: type[BaseModel], path: Sequence[str], raw: Any) -> list[str]:
    annotation: Any = schema
    node = raw
    for part in path:
        annotation = child(annotation, part, node)
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        if annotation is None:
            return []
    return known_keys(annotation, node)


def _wording(error: Any, path: tuple[str, ...], schema: type[BaseModel], raw: Any) -> tuple[str, str | None]:
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "codesign":
        return context["problem"], context["allowed"]
    if kind == "extra_forbidden":
        keys = _schema_at(schema, path[:-1], raw)
        return "unknown key", allowed_names(path[-1], keys) if keys else None
    if kind == "missing":
        keys = _schema_at(schema, path[:-1], raw)
        required = "value, kind, source" if {"value", "kind", "source"} <= set(keys) else None
        return "is missing", required
    if kind in ("literal_error", "union_tag_invalid"):
        allowed = context.get("expected") or context.get("expected_tags")
        shown = context.get("tag") if kind == "union_tag_invalid" else value
        return f"{told(shown)} is not allowed", str(allowed).replace("'", "").replace(" or ", ", ")
    if kind == "union_tag_not_found":
        from codesign.catalog.workloads import block_kinds

        return "kind is missing", ", ".join(block_kinds())
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"{told(value)} is out of bounds", bound
    if kind in ("too_short", "string_too_short"):
        return "is empty", "at least one element" if kind == "too_short" else "some text"
    if kind == "string_too_long":
        return "is too long", f"at most {context.get('max_length')} characters"
    if kind in ("model_type", "model_attributes_type") and "value" in _schema_at(schema, path, raw):
        example = '{ value = "22 TB/s", kind = "datasheet", source = "..." }'
        return f"{told(value)} has no kind and source", example
    if kind in _TYPES:
        return f"{told(value)} is of the wrong type", _TYPES[kind]
    return error["msg"][:120], None


def translate(
    failure: ValidationError, raw: Any, schema: type[BaseModel], label: str, overrides: Sequence[Override] = ()
) -> CodesignError:
    """The first error that a person should mend, in one line; unknown keys first, since a typo makes two errors.

    Args:
        failure: what pydantic found.
        raw: the file as TOML reads it, after overrides.
        schema: what it was validated as.
        label: how the file is called.
        overrides: those applied to it; an error in one of their keys is told as the command line's.
    """
    errors = failure.errors(include_url=False)
    errors.sort(key=lambda e: e["type"] != "extra_forbidden")
    first: Any = errors[0]
    path = dotted(first["loc"], raw, first["type"] == "missing")
    problem, allowed = _wording(first, path, schema, raw)
    if first["type"] == "codesign" and first["ctx"]["key"]:
        path = (*path, *first["ctx"]["key"].split("."))
    if len(errors) > 1:
        problem += f", and {len(errors) - 1} more"
    for override in overrides:
        if override.path[: len(path)] == path or path[: len(override.path)] == override.path:
            return CodesignError(problem, key=f"--set {override.key}", allowed=allowed)
    if overrides:
        problem += " (with " + ", ".join(f"--set {o.key}" for o in overrides) + ")"
    return CodesignError(problem, file=label, key=printable(".".join(path)) or None, allowed=allowed)
