"""A ``config.json`` as the importer sees it: the text model's fields, found by name, checked, and missed aloud."""

import json
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from codesign.catalog.messages import told
from codesign.catalog.names import allowed_names, printable
from codesign.errors import CodesignError

#: A larger file is no configuration; the longest lists of quantised layers take 3 MB.
MAX_BYTES = 64_000_000

#: Where models with an image or sound tower keep the configuration of their text model.
NESTED = ("text_config", "language_config", "llm_config", "thinker_config")

#: Layers that a model file may have; longer lists are not built.
MAX_LAYERS = 10_000

#: Fields of the whole checkpoint that may stand beside a nested text configuration instead of in it.
OUTER = ("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config", "compression_config", "expert_dtype")


def read_json(path: Path, label: str) -> dict[str, Any]:
    """Read a JSON object; raises `CodesignError` where it cannot be read or is something else."""
    try:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise CodesignError(f"has {path.stat().st_size} bytes", file=label, allowed=f"at most {MAX_BYTES}")
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)[:160]
        raise CodesignError(f"cannot be read: {why}", file=label, allowed="a Hugging Face config.json") from error
    if not isinstance(raw, dict) or not raw:
        what = "is an empty JSON object" if raw == {} else "is no JSON object"
        raise CodesignError(what, file=label, allowed="a Hugging Face config.json")
    return raw


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Read ``config.key=value`` texts; values are JSON, or text where they are not."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        target, _, name = key.strip().partition(".")
        if not equals or target != "config" or not name or "." in name:
            example = "config.tie_word_embeddings=false"
            raise CodesignError(f"{printable(text, 80)!r} is not config.key=value", key="--set", allowed=example)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value.strip()
    return found


class Config:
    """Fields of one configuration.

    Attributes:
        label: the file, as errors name it.
        family: the architecture, once it is known.
        notes: what was taken from the architecture's definition instead of from a field.
    """

    def __init__(
        self, raw: Mapping[str, Any], label: str, settings: Mapping[str, Any] | None = None, family: str = ""
    ) -> None:
        self.label = label
        self.family = family
        self.notes: list[str] = []
        nest = next((key for key in NESTED if isinstance(raw.get(key), dict)), None)
        inner = raw[nest] if nest else raw
        deeper = inner.get("text_config") if nest else None
        if isinstance(deeper, dict):
            nest, inner = f"{nest}.text_config", deeper
        self._where = f"{nest}." if nest else ""
        self._outer = raw if nest else {}
        self._inner = dict(inner) | dict(settings or {})

    def part(self, key: str) -> "Config":
        """A table among the fields, read in the same way; an empty one where it is absent."""
        table = self.get(key)
        if table is not None and not isinstance(table, dict):
            raise self.error(f"{told(table)} is of the wrong type", key, "a table")
        inside = Config(table or {}, self.label, family=self.family)
        inside._where = f"{self._where}{key}."
        inside.notes = self.notes
        return inside

    def told_of(self, key: str, label: str | None = None) -> "Config":
        """The same fields, whose errors name the file ``label`` or where the field ``key`` stands."""
        other = copy(self)
        if label is not None:
            other.label, other._where = label, ""
        elif self._inner.get(key) is None:
            other._where = ""
        return other

    def classes(self) -> list[str]:
        """Names of the model's class: the text model's own, or where it has none the whole checkpoint's."""
        for source, c in ((self._inner, self), (self._outer, self.told_of("architectures"))):
            given = source.get("architectures")
            if isinstance(given, str):
                given = [given]
            if given is not None and not (isinstance(given, list) and all(isinstance(name, str) for name in given)):
                raise c.error(f"{told(given)} is of the wrong type", "architectures", "a list of names")
            if given:
                return given
        return []

    def types(self) -> list[str]:
        """``model_type`` of the text model, then that of the whole checkpoint."""
        found = [source.get("model_type") for source in (self._inner, self._outer)]
        return [name for name in found if isinstance(name, str)]

    def architectures(self) -> list[str]:
        """Names of the architecture, from the text model's own to the whole checkpoint's."""
        inner, outer = self._inner.get("model_type"), self._outer.get("model_type")
        classes = self.classes()
        own = classes if self._inner.get("architectures") else []
        names = [*own, inner, *classes, outer]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def get(self, *keys: str) -> Any:
        """The first of these fields that is given and not null, else None."""
        for source, allowed in ((self._inner, keys), (self._outer, [k for k in keys if k in OUTER])):
            for key in allowed:
                if source.get(key) is not None:
                    return source[key]
        return None

    def error(self, problem: str, key: str, allowed: str | None = None) -> CodesignError:
        """An error about a field."""
        return CodesignError(problem, file=self.label, key=f"{self._where}{key}", allowed=allowed)

    def _missing(self, keys: Collection[str], what: str) -> CodesignError:
        first, *others = keys
        beside = f" (or {', '.join(others)})" if others else ""
        problem = f"is missing{beside}, which {self.family or 'every model'} needs"
        return self.error(problem, first, f"{what}; --set config.{first}=... gives it")

    def whole(self, *keys: str, least: int = 1) -> int:
        """A whole number that must be there."""
        value = self.get(*keys)
        if value is None:
            raise self._missing(keys, "a whole number")
        return self._whole(value, keys, least)

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """A whole number whose absence, or null, means that there is no such part."""
        value = self.get(*keys)
        return None if value is None else self._whole(value, keys, least)

    def nullable(self, key: str, least: int = 1) -> int | None:
        """A whole number or null, which means that there is no such part; the field itself must be there."""
        if key not in self._inner:
            raise self._missing((key,), "a whole number or null")
        return self.optional(key, least=least)

    def _whole(self, value: Any, keys: Collection[str], least: int) -> int:
        key = next(k for k in keys if self.get(k) is not None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{told(value)} is of the wrong type", key, "a whole number")
        most = MAX_LAYERS if key == "num_hidden_layers" else 10**9
        if not least <= value <= most:
            raise self.error(f"{told(value)} is out of range", key, f"{least} to {most:,}")
        return value

    def flag(self, *keys: str) -> bool:
        """A switch; off, with a note, where the configuration does not have it."""
        value = self.get(*keys)
        if value is None:
            self.note(f"{keys[0]} is not given: off, as {self.family} defines it")
            return False
        return self._flag(value, keys)

    def required_flag(self, *keys: str) -> bool:
        """A switch that must be there."""
        value = self.get(*keys)
        if value is None:
            raise self._missing(keys, "true or false")
        return self._flag(value, keys)

    def _flag(self, value: Any, keys: Collection[str]) -> bool:
        if not isinstance(value, bool) and value not in (0, 1):
            raise self.error(f"{told(value)} is of the wrong type", next(iter(keys)), "true or false")
        return bool(value)

    def word(self, *keys: str) -> str | None:
        """A text, or None."""
        value = self.get(*keys)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{told(value)} is of the wrong type", keys[0], "text")
        return value

    def listed(self, *keys: str, length: int | None = None) -> list[Any] | None:
        """A list, or None; longer than ``length`` is cut (entries of prediction layers follow), shorter is refused.

        A list without a ``length`` has at most an entry for each layer that a model file may have.
        """
        value = self.get(*keys)
        if value is None:
            return None
        key = next(k for k in keys if self.get(k) is not None)
        if not isinstance(value, list):
            raise self.error(f"{told(value)} is of the wrong type", key, "a list")
        if length is not None and len(value) < length:
            raise self.error(f"has {len(value)} entries", key, f"one for each of {length} layers")
        if length is None and len(value) > MAX_LAYERS:
            raise self.error(f"has {len(value)} entries", key, f"at most {MAX_LAYERS:,}")
        return value[:length]

    def numbers(self, key: str, depth: int | None = None) -> set[int]:
        """A list of layers, counted from 0 and, where ``depth`` is given, below it; empty where it is absent."""
        value = self.listed(key) or []
        for i, entry in enumerate(value):
            if isinstance(entry, bool) or not isinstance(entry, int):
                raise self.error(f"{told(entry)} is of the wrong type", f"{key}.{i}", "the number of a layer")
            if depth is not None and not 0 <= entry < depth:
                raise self.error(f"{told(entry)} is out of range", f"{key}.{i}", f"0 to {depth - 1}")
        return set(value)

    def required_list(self, key: str, what: str) -> list[Any]:
        """A list that must be there."""
        found = self.listed(key)
        if found is None:
            raise self._missing((key,), what)
        return found

    def kinds(self, *keys: str, length: int, allowed: Mapping[Any, str]) -> list[str] | None:
        """A list with one of the ``allowed`` words, or numbers, per layer, translated; or None."""
        value = self.listed(*keys, length=length)
        if value is None:
            return None
        key = next(k for k in keys if self.get(k) is not None)
        for i, entry in enumerate(value):
            if isinstance(entry, list | dict) or entry not in allowed:
                names = ", ".join(map(str, allowed))
                raise self.error(f"unknown {told(entry)}", f"{key}.{i}", names)
        return [allowed[entry] for entry in value]

    def required_kinds(self, *keys: str, length: int, allowed: Mapping[Any, str]) -> list[str]:
        """As `kinds`, where the list must be there."""
        found = self.kinds(*keys, length=length, allowed=allowed)
        if found is None:
            raise self._missing(keys, "a list with one entry per layer")
        return found

    def refuse(self, *keys: str, allowed: str, because: str) -> None:
        """Refuse a configuration that switches on something that a model file cannot hold."""
        value = self.get(*keys)
        if value not in (None, False, 0, 0.0, [], {}):
            key = next(k for k in keys if self.get(k) is not None)
            raise self.error(f"{told(value)}: {because}", key, allowed)

    def note(self, text: str) -> None:
        """Tell what was not read from a field."""
        if text not in self.notes:
            self.notes.append(text)


def unknown_architecture(config: Config, known: Collection[str]) -> CodesignError:
    """The error for an architecture that no reader is written for."""
    names = config.architectures()
    if not names:
        return config.error("is missing, and so is model_type", "architectures", "the name of a known architecture")
    classes = config.classes()
    key = "architectures" if classes else "model_type"
    shown = ", ".join(printable(name) for name in dict.fromkeys([*classes, *names]))
    allowed = allowed_names((classes or names)[0], known)
    typed = next((name for name in config.types() if name in known), None)
    if classes and typed:
        allowed = f"{allowed}; --set config.architectures={typed} has it read as its model_type"
    return config.told_of(key).error(f"unknown architecture {shown}", key, allowed)
