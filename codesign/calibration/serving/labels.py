"""What the words of a serving table mean: spellings of precisions, frameworks and checkpoints, cells, unused columns.

A word that is not known stays as it is, so that its line is told with it; what a spelling leaves open and is settled
here comes back as a note, which stands beside the line's prediction.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from codesign.catalog.names import normalise, printable
from codesign.errors import CodesignError

#: Cells that say that something was not measured, in small letters.
ABSENT = frozenset(("", "na", "n/a", "nan", "null", "none", "-", "--", "–", "—"))

#: Cells that say yes or no, in small letters.
YES_NO = {"true": 1.0, "yes": 1.0, "on": 1.0, "false": 0.0, "no": 0.0, "off": 0.0}

#: Precisions, and their spellings without what is no letter or digit.
SPELLED: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half", "w16a16"),
    "fp8": (
        "fp8", "fp8block", "blockfp8", "blockwisefp8", "fp8blockwise", "fp8dynamic", "fp8e4m3", "fp8e4m3fn", "e4m3",
        "float8", "w8a8fp8", "fp8w8a8", "mxfp8",
    ),
    "fp4": (
        "fp4", "nvfp4", "mxfp4", "fp4e2m1", "e2m1", "float4", "w4a4", "w4a4fp4", "fp4w4a4", "w4a4nvfp4", "nvfp4w4a4",
        "w4a4mxfp4", "mxfp4w4a4",
    ),
    "int4": (
        "int4", "int4group32", "int4g32", "w4a16", "int4w4a16", "w4a16int4", "awq", "gptq", "int4awq", "awqint4",
        "int4gptq", "gptqint4",
    ),
}  # fmt: skip
_PRECISIONS = {spelling: name for name, spellings in SPELLED.items() for spelling in spellings}


#: What a spelling of a precision consists of.
_SIGNS = re.compile(r"[A-Za-z0-9 _./+()-]+")


def _letters(text: str) -> str:
    """Letters and digits of a spelling of a precision; empty where it holds other signs than those of one."""
    text = text.strip()
    return re.sub(r"[^a-z0-9]+", "", text.lower()) if _SIGNS.fullmatch(text) else ""


def precision_of(label: str) -> tuple[str, str]:
    """A precision by any of its spellings, and a note where the spelling says more than the model follows.

    Raises:
        CodesignError: not one of `SPELLED`, such as INT8, FP4 weights with FP8 activations, or ``fp4?``.
    """
    letters = _letters(label)
    name = _PRECISIONS.get(letters)
    if name is None:
        raise CodesignError(
            f"unknown precision {printable(label, 40)!r}", key="precision", allowed=", ".join(SPELLED)
        )  # fmt: skip
    if letters == "mxfp8":
        return name, "mxfp8 taken as block FP8"
    if letters in ("fp16", "float16", "half"):
        return name, f"{printable(label.strip(), 40)} taken as bf16"
    if name == "int4" and letters not in ("int4", "int4group32", "int4g32"):
        return name, f"{printable(label.strip(), 40)} taken as INT4 in groups of 32 with BF16 activations"
    return name, ""


#: Frameworks as the fit has them, and their names in small letters, with at most one sign between their words.
ENGINES = {
    "trt": r"(tensor[\W_]?rt|trt)([\W_]?llm)?", "sglang": r"sg[\W_]?lang|sgl", "vllm": r"v[\W_]?llm", "atom": "atom",
}  # fmt: skip

#: An engine stands as a word, with no letter on either side.
_LETTER = r"[^\W\d_]"
_WORDS = {engine: re.compile(f"(?<!{_LETTER})({spelled})(?!{_LETTER})") for engine, spelled in ENGINES.items()}

#: What says, in the name of a framework, that tokens are drafted.
_DRAFTED = re.compile(r"mtp|eagle|draft|spec(?!ia|if)")


def framework_of(name: str) -> tuple[str, str]:
    """A framework by the name that the fit has for it, and a note where more stands around the engine's name.

    What names no engine, or two, stays as it is, in small letters.
    """
    small = name.strip().casefold()
    told = f"framework {printable(name.strip(), 40)}"
    found = [engine for engine, word in _WORDS.items() if word.search(small)]
    if len(found) != 1:
        return small, f"{told} predicted without speculation" if _DRAFTED.search(small) else ""
    rest = re.sub(r"[\W_]+", "", _WORDS[found[0]].sub("", small))
    if not rest:
        return found[0], ""
    apart = " with prefill on the same chips" if "disagg" in rest else ""
    drafted = ", predicted without speculation" if _DRAFTED.search(rest) else ""
    return found[0], f"{told} taken as {found[0]}{apart}{drafted}"


#: Ends of a checkpoint's name beside its precision.
_EDITIONS = frozenset(("preview", "kv", "dynamic", "block", "static", "v1", "v2"))


def checkpoint_of(name: str) -> tuple[str, str | None]:
    """A model's name without the tags of a precision at its end, and that precision; None where there is no tag.

    Between and after tags `_EDITIONS` may stand; what stands before another word belongs to the name.
    """
    parts = normalise(name).split("-")
    precision: str | None = None
    end = len(parts)
    for i in range(len(parts) - 1, 0, -1):
        tag = _tag(parts[i])
        if tag is not None:
            precision, end = tag, i
        elif parts[i] not in _EDITIONS:
            break
    return "-".join(parts[:end]), precision


def _tag(part: str) -> str | None:
    """The precision that a part of a checkpoint's name says; ``half`` says how much, not how wide."""
    return None if part == "half" else _PRECISIONS.get(_letters(part.removeprefix("quantized.")))


class Unused(NamedTuple):
    """Columns that change what a measurement means and that no prediction reads.

    Attributes:
        columns: pattern of their names, in small letters with underscores.
        harmless: pattern of values in small letters with which nothing changes, beside those of nothing at all.
        instead: what is predicted.
    """

    columns: str
    harmless: str
    instead: str


UNUSED = (
    Unused(r"^spec$|spec_?dec|speculat|^spec_(method|tokens|mode)|(^|_)mtp|(^|_)draft|(^|_)eagle|medusa", "standard",
           "predicted without speculation"),
    Unused(r"disagg", "aggregated", "predicted with prefill and decode on the same chips"),
    Unused(r"^(pp|cp|dcp|pcp)(_size)?$|pipeline_par|context_par", r"1(\.0*)?", "predicted without it"),
    Unused(r"^kv_?(cache)?_?(dtype|type|precision)$", "fp8.*", "caches are taken as FP8"),
    Unused(r"prefix_cach|cache_hit", "disabled", "every prompt is taken as new"),
    Unused(r"range_ratio", r"0?\.80*", "lengths are taken between 0.8 and 1.0 of nominal"),
)  # fmt: skip
_NOTHING = re.compile(r"0+(\.0*)?%?|off|no|false|disabled")


def unused_in(row: Mapping[str, Any]) -> list[str]:
    """Notes on cells of a line that would change its meaning and are not used."""
    notes = []
    for column, cell in row.items():
        value = str(cell or "").strip()
        small, name = value.casefold(), re.sub(r"[\s-]+", "_", str(column or "").strip().casefold())
        if small in ABSENT or _NOTHING.fullmatch(small):
            continue
        for rule in UNUSED:
            if re.search(rule.columns, name) and not re.fullmatch(rule.harmless, small):
                told = f"{printable(str(column).strip(), 40)} = {printable(value, 40)}"
                notes.append(f"column {told} is not used, {rule.instead}")
                break
    return notes
