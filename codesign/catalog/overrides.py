"""``--set a.b=value``: change a catalog file's raw TOML before it is validated.

``accelerator.memory_bandwidth="30 TB/s"`` replaces a number's value, and its kind becomes ``assumption``;
``model.dtypes.kv=bf16`` or ``model.layers.0.repeat=2`` replace plain values.  Keys that the schema does not know are
refused with the nearest ones; what the value must be is left to the validation that follows.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from codesign import units
from codesign.catalog.names import allowed_names, printable
from codesign.catalog.quantity import Number
from codesign.errors import CodesignError

#: Files that an override may name, by the first part of its key.
TARGETS = ("accelerator", "system", "memory", "model", "request", "measurement")

SOURCE = "--set on the command line"


@dataclass(frozen=True)
class Override:
    """One ``--set``.

    Attributes:
        target: the kind of file, one of `TARGETS`.
        path: keys inside it, from the outside in.
        text: the value as given.
    """

    target: str
    path: tuple[str, ...]
    text: str

    @property
    def key(self) -> str:
        """The dotted key as given."""
        return ".".join((self.target, *self.path))


def parse_overrides(texts: Iterable[str | Override], targets: Sequence[str] = TARGETS) -> tuple[Override, ...]:
    """Read ``target.key[.key]=value`` texts; later ones win where they name the same key.

    Args:
        texts: as given on the command line; overrides already read are passed through.
        targets: files that the command reads.

    Raises:
        CodesignError: no ``=``, no key, or a target that the command does not read.
    """
    if isinstance(texts, str):
        texts = [texts]
    found = []
    for text in texts:
        if isinstance(text, Override):
            override = text
        else:
            key, equals, value = text.partition("=")
            target, *path = (part.strip() for part in key.replace("[", ".").replace("]", "").split("."))
            if not equals or not path or not all((target, *path)):
                example = 'accelerator.memory_bandwidth="30 TB/s"'
                raise CodesignError(f"{text[:80]!r} is not section.key=value", key="--set", allowed=f"e.g. {example}")
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            override = Override(target, tuple(path), value)
        if override.target not in targets:
            problem = f"unknown file {override.target[:40]!r}"
            raise CodesignError(problem, key=f"--set {override.key[:80]}", allowed=", ".join(targets))
        found.append(override)
    return tuple(found)


def apply_overrides(
    raw: dict[str, Any], schema: type[BaseModel], target: str, overrides: Iterable[Override]
) -> list[Override]:
    """Change ``raw`` in place by the overrides that name ``target``; returns these.

    Args:
        raw: the file as TOML reads it.
        schema: what it will be validated as, to know numbers from plain values and keys from typing errors.
        target: the kind of file, one of `TARGETS`.
        overrides: of any target.

    Raises:
        CodesignError: unknown key, or a key that holds a table.
    """
    mine = [o for o in overrides if o.target == target]
    for override in mine:
        _apply(raw, schema, override)
    return mine


def _apply(raw: dict[str, Any], schema: type[BaseModel], override: Override) -> None:
    node: Any = raw
    annotation: Any = schema
    path = override.path
    if len(path) > 1 and path[-1] == "value":
        path = path[:-1]
    for depth, part in enumerate(path):
        keys = known_keys(annotation, node)
        inside = child(annotation, part, node) if part in keys else None
        if inside is None:
            where = ".".join((override.target, *path[:depth]))
            problem = f"unknown key {part[:40]!r} in {where}"
            raise CodesignError(problem, key=f"--set {override.key[:80]}", allowed=allowed_names(part, keys))
        annotation = inside
        last = depth == len(path) - 1
        if _model(annotation, _get(node, part)) is Number:
            if last:
                _put(node, part, _number(override.text, _get(node, part)))
                return
            raise CodesignError("only the value of a number can be set", key=f"--set {override.key[:80]}")
        if last:
            options = known_keys(annotation, _get(node, part))
            if options:
                allowed = "one of its keys: " + ", ".join(map(printable, options[:20]))
                raise CodesignError("is a table", key=f"--set {override.key[:80]}", allowed=allowed)
            _put(node, part, _plain(override.text, annotation))
            return
        if _get(node, part) is None:
            _put(node, part, {})
        node = _get(node, part)


def _get(node: Any, part: str) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    return node[int(part)] if isinstance(node, list) and part.isdecimal() and int(part) < len(node) else None


def _put(node: Any, part: str, value: Any) -> None:
    if isinstance(node, dict):
        node[part] = value
    elif isinstance(node, list):
        node[int(part)] = value


def _number(text: str, before: Any) -> dict[str, Any]:
    value: Any = _toml(text) if text.startswith("[") else text
    table: dict[str, Any] = {"value": value, "kind": "assumption", "source": SOURCE}
    if isinstance(before, dict) and isinstance(before.get("value"), str | int | float):
        table["note"] = f"instead of {before['value']} ({before.get('kind', 'no kind')})"
    return table


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except (ValueError, RecursionError, KeyError):
        return text


def _plain(text: str, annotation: Any) -> Any:
    """A plain value of the type that the schema wants; text that does not fit is left for the validation to refuse."""
    types = {get_origin(option) or option for option in _options(annotation)}
    if bool in types:
        return {"true": True, "false": False}.get(text.casefold(), text)
    if int in types:
        try:
            value = units.parse(text.removeprefix("-"), "1") * (-1.0 if text.startswith("-") else 1.0)
        except CodesignError:
            return text
        return int(value) if value.is_integer() else value
    return _toml(text) if list in types else text


def _options(annotation: Any) -> list[Any]:
    """The types that an annotation allows, with unions opened, metadata dropped and None left out."""
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for a in get_args(annotation) for option in _options(a)]
    return [] if annotation is NoneType else [annotation]


def _model(annotation: Any, raw: Any) -> type[BaseModel] | None:
    """The pydantic model behind an annotation; of several, the one that the table's ``kind`` names."""
    models = [o for o in _options(annotation) if isinstance(o, type) and issubclass(o, BaseModel)]
    if len(models) > 1 and isinstance(raw, dict):
        for model in models:
            tag = model.model_fields.get("kind")
            names = get_args(tag.annotation) if tag is not None and get_origin(tag.annotation) is Literal else ()
            if raw.get("kind") in names:
                return model
    return models[0] if models else None


def known_keys(annotation: Any, raw: Any) -> list[str]:
    """Keys that may stand in a table of this type: a model's fields, else those that the file has."""
    model = _model(annotation, raw)
    if model is not None:
        return list(model.model_fields)
    if any(get_origin(o) is dict for o in _options(annotation)) and isinstance(raw, dict):
        return [str(key) for key in raw]
    if any(get_origin(o) is list for o in _options(annotation)) and isinstance(raw, list):
        inner = [a for o in _options(annotation) if get_origin(o) is list for a in _options(get_args(o)[0])]
        tables = any(isinstance(a, type) and issubclass(a, BaseModel) for a in inner)
        return [str(i) for i in range(len(raw))] if tables else []
    return []


def child(annotation: Any, key: str, raw: Any) -> Any:
    """The annotation of ``key`` inside a table or list of this type, or None."""
    model = _model(annotation, raw)
    if model is not None:
        field = model.model_fields.get(key)
        return field.annotation if field else None
    for option in _options(annotation):
        if get_origin(option) is dict:
            return get_args(option)[1]
        if get_origin(option) is list:
            return get_args(option)[0]
    return None
