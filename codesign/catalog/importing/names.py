"""Names of modules as quantisation settings list them, matched against the modules of a structure.

Three forms: a name, which covers what lies below it; a shell pattern; ``re:`` and a regular expression, which must
match from the start.  A checkpoint puts ``model.`` or the like before ``layers.``; a form may have it or not.  Names of
fused matrices (``qkv_proj``) stand for their parts, one expert for all of its layer.  What matches nothing is told.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from itertools import product
from typing import Any, NamedTuple

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.modules import Module
from codesign.catalog.names import printable

#: What stands before ``layers.`` in the names of modules.
PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer)\.)+")

#: The same, as checkpoints have it.
PREFIXES = (
    "",
    "model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "backbone.",
    "transformer.",
)

#: Matrices that servers store as one, under the names of the one.
_QKV, _GATE_UP = ("qkv_proj", "qkv", "query_key_value"), ("gate_up_proj", "w13", "w13_weight")
FUSED = {
    "q_proj": _QKV, "k_proj": _QKV, "v_proj": _QKV, "gate_proj": _GATE_UP, "up_proj": _GATE_UP, "w1": _GATE_UP,
    "w3": _GATE_UP, "w2": ("w2_weight",), "in_proj_qkv": ("in_proj_qkvz",), "in_proj_z": ("in_proj_qkvz",),
    "q_a_proj": ("fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj", "qkv_a_proj"),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj", "qkv_a_proj"),
    "wq_a": ("fused_wqa_wkv",), "wkv": ("fused_wqa_wkv",),
}  # fmt: skip

#: Parts of checkpoints that are left out whatever they are stored in.
LEFT_OUT = re.compile(r"visual|vision|audio|mtp|nextn|projector|patch_merge|eh_proj|shared_head")

#: Parts that are wide in every checkpoint, and so may be named as wide without being among the modules.
ALWAYS_WIDE = re.compile(
    r"norm|embed|bias|conv1d|router|lm_head|rotary|indexers?_proj|indexer\b|(?:^|[.*_])(?:shared_expert_)?gate\b|^head$"
)

_EXPERT = re.compile(r"(?<=experts\.)\d+(?=\.|$)")
_LAYER = re.compile(r"layers\.(\d+)\.")


class _Pattern(NamedTuple):
    text: str
    value: Any
    matches: Callable[[str], object]
    absent: bool  # whether it looks for what is not there


class Names:
    """Names that settings give modules, each with a value.

    Attributes:
        key: of the list or table, as errors and notes name it.
        ordered: whether the first pattern that takes a module decides; else patterns must agree.
    """

    def __init__(self, c: Config, key: str, known: re.Pattern[str], *, ordered: bool = False) -> None:
        self.key, self.ordered = key, ordered
        self._c, self._known = c, known
        self._literal: dict[str, Any] = {}
        self._said: dict[str, list[str]] = {}  # how a literal is written, once for each expert
        self._patterns: dict[str, list[_Pattern]] = {}  # by the layer that they begin with, or ""
        self._used: set[str] = set()
        self._partly: set[str] = set()

    def add(self, text: str, value: Any, where: str) -> None:
        """Add a name; ``where`` is the key of this one.

        Raises:
            CodesignError: no name, no regular expression, or the same name with another value.
        """
        if not text.removeprefix("re:").strip() or not text.strip(" ."):
            raise self._c.error("is empty", where, "the name of a module")
        if text.startswith("re:"):
            try:
                matches = re.compile(text[3:]).match
            except (re.error, OverflowError, RecursionError) as error:
                told = f"{printable(text, 60)!r} is no regular expression: {printable(str(error), 80)}"
                raise self._c.error(told, where, "re: and a regular expression, or a name") from error
            self._patterns.setdefault("", []).append(_Pattern(text, value, matches, "(?!" in text or "(?<!" in text))
            return
        bare = PREFIX.sub("", text.rstrip(".") + ".")[:-1].removesuffix(".weight")
        if any(sign in text for sign in "*?["):
            both = "|".join(translate(p) for one in {bare, text} for p in (one, one + ".*"))
            layer = _LAYER.match(bare)
            self._patterns.setdefault(layer[1] if layer else "", []).append(
                _Pattern(text, value, re.compile(both).match, False)
            )
            return
        name = _EXPERT.sub("0", bare)
        if text == "language_model":
            self._literal["lm_head"] = value
        if self._literal.setdefault(name, value) != value:
            raise self._c.error(f"{printable(text, 80)!r} is stored in two ways", where, "one for each module")
        self._said.setdefault(name, []).append(text)

    def find(self, module: Module) -> Any:
        """The value of a module, by its longest name, else by a pattern; None where nothing names it.

        Raises:
            CodesignError: patterns that disagree, or one that depends on what stands before the module's name.
        """
        forms = list(_forms(module.name))
        spans = (name for form in forms for name in _spans(form)) if self._literal else ()
        named = [name for name in spans if name in self._literal]
        for name in named:
            self._used.add(name)
            numbers = {found[0] for text in self._said.get(name, ()) if (found := _EXPERT.search(text))}
            if 0 < len(numbers) < module.experts:
                self._partly.add(self._said[name][0])
        layer = _LAYER.match(module.name)
        near = self._patterns.get(layer[1], []) if layer else []
        patterns = (*near, *self._patterns.get("", ()))
        if self.ordered and not named:
            return self._first(patterns, module, forms)
        hits = [p for p in patterns if self._hit(p, module, forms)]
        if named:
            return self._literal[max(named, key=len)]
        if any(p.value != hits[0].value for p in hits):
            told = " and ".join(repr(printable(p.text, 60)) for p in hits[:2])
            raise self._c.error(f"{told} store {module.name} in two ways", self.key, "one for each module")
        return hits[0].value if hits else None

    def _first(self, patterns: Iterable[_Pattern], module: Module, forms: list[str]) -> Any:
        """The value of the first pattern that takes a module; later ones are not without weights for that."""
        rest = iter(patterns)
        value = next((p.value for p in rest if self._hit(p, module, forms)), None)
        self._used.update(p.text for p in rest if self._any(p, forms))
        return value

    def _hit(self, pattern: _Pattern, module: Module, forms: list[str]) -> bool:
        """Whether a pattern names a module; routers only where it speaks of them."""
        if module.kind == "router" and not re.search("gate|router", pattern.text):
            return False
        if pattern.absent:
            found = {bool(pattern.matches(before + module.name)) for before in PREFIXES}
            if len(found) > 1:
                told = f"{printable(pattern.text, 60)!r} depends on what stands before {module.name}"
                raise self._c.error(told, self.key, "an expression that names what it means")
        hit = self._any(pattern, forms)
        if module.experts > 1 and ".experts.0" in module.name:
            last = [form.replace(".experts.0", f".experts.{module.experts - 1}") for form in forms]
            if hit != self._any(pattern, last):
                self._partly.add(pattern.text)
                self._used.add(pattern.text)
        if hit:
            self._used.add(pattern.text)
        return hit

    @staticmethod
    def _any(pattern: _Pattern, forms: list[str]) -> bool:
        # A fused name counts where the pattern speaks of it: ``up_proj`` is no ``gate_up_proj``.
        own = forms[0].rpartition(".")[2]
        tried = [f for f in forms if (leaf := f.rpartition(".")[2]) == own or _stem(leaf) in pattern.text]
        return any(pattern.matches(before + form) for form, before in product(tried, PREFIXES))

    def tell(self, depth: int) -> None:
        """Note the names that matched nothing, and those of some experts; ``depth`` layers are counted."""
        texts = [said for name, said in self._said.items() if name not in self._used]
        unused = [text for said in texts for text in said]
        unused += [p.text for some in self._patterns.values() for p in some if p.text not in self._used]
        unused = [text for text in unused if not self._known.search(text) and not _beyond(text, depth)]
        for names, told in (
            (unused, "matches no weights that are counted"),
            (sorted(self._partly), "names some experts of a layer only; all are counted as the first is"),
        ):
            if names:
                more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
                self._c.note(f"{self.key}: {printable(names[0], 80)!r}{more} {told}")


def _beyond(text: str, depth: int) -> bool:
    """Whether a name is of one of the few layers after the last: of multi-token prediction."""
    layer = re.search(r"layers\\?\.(\d{1,9})(?!\d)", text)
    return layer is not None and depth <= int(layer[1]) < depth + 8


def _stem(leaf: str) -> str:
    """The part of a fused name by which a pattern tells that it means it."""
    return leaf.removeprefix("in_proj_").removesuffix("_proj").removesuffix("_weight")


def _forms(name: str) -> Iterator[str]:
    """A module's names: its own first, then fused, with the number of the expert and without."""
    path, _, leaf = name.rpartition(".")
    before = f"{path}." if path else ""
    for last in (leaf, *FUSED.get(leaf, ())):
        yield before + last
        if path.endswith("experts.0"):
            yield f"{path[:-2]}.{last}"
        elif path.endswith(".experts"):
            yield f"{path}.0.{last}"


def _spans(name: str) -> Iterator[str]:
    """All runs of a name's parts; in a layer also the empty one, which stands for the whole model."""
    if "." in name:
        yield ""
    parts = name.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            span = ".".join(parts[start:end])
            if not span.isdigit():
                yield span
