"""Kinds of catalog files, where each lies, how names are compared, and the nearest names to a typo.

Nothing here imports pydantic or jax: `codesign list` and shell completion stay fast.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice


@dataclass(frozen=True)
class Kind:
    """A kind of catalog file.

    Attributes:
        name: singular, as errors and ``--set`` say it, e.g. ``system``.
        section: ``arch`` | ``workloads`` | ``optimize``.
        folder: where its files lie, relative to a catalog's root.
    """

    name: str
    section: str
    folder: str


#: In the order in which `codesign show NAME` tries them.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("system", "arch", "arch/systems"),
        Kind("accelerator", "arch", "arch/accelerators"),
        Kind("memory", "arch", "arch/memories"),
        Kind("measurement", "arch", "arch/measurements"),
        Kind("model", "workloads", "workloads/models"),
        Kind("request", "workloads", "workloads/requests"),
        Kind("study", "optimize", "optimize"),
    )
}

SECTIONS = ("arch", "workloads", "optimize")


def normalise(name: str) -> str:
    """The form in which names are compared: case, blanks and underscores do not matter."""
    return "-".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


#: What a published checkpoint's name may end with, each once: how it was trained on, and a date, yymm or mmdd.
_TRAINED = frozenset(("instruct", "chat", "base", "hf", "it"))
_DATE = re.compile(r"2[4-6](0[1-9]|1[0-2])|(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")

#: Who published it, in front of its name, and folders of a workspace, which are nobody.
_PUBLISHER = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_FOLDERS = frozenset(("arch", "workloads", "optimize", "models", "runs"))

#: Makers before the name of a part, each before parts of its own.
_MAKER = re.compile(
    r"^(nvidia-(?=(dgx-|hgx-)?(g?[abhlr]|vr)-?(\d|nvl)|(vera-)?rubin|groq|lpx|lp-?\d|nvl\d|kyber)"
    r"|(amd-instinct|amd|instinct)-(?=mi-?\d))"
)


def _unpublished(text: str) -> str:
    """A model's name without who published it (``org/Name``) and its edition; any other path stays as it is."""
    publisher, slash, name = text.partition("/")
    if slash and ("/" in name or publisher in _FOLDERS or not _PUBLISHER.fullmatch(publisher)):
        return text
    parts = (name if slash else text).split("-")
    seen: set[str] = set()
    while parts and (kind := parts[-1] if parts[-1] in _TRAINED else "date" if _DATE.fullmatch(parts[-1]) else ""):
        if kind in seen:
            break
        seen.add(kind)
        parts.pop()
    return "-".join(parts)


def structure(kind: str, name: str) -> str:
    """The form in which models and parts are compared where none has a name as it is written; empty for other kinds.

    Of a model the last part of ``org/Name`` without its edition (``Llama-3.1-70B-Instruct``), of a part its name
    without the maker of such parts; hyphens matter between digits alone (``kimik2.5``).
    """
    text = normalise(name)
    if kind == "model":
        text = _unpublished(text)
    elif kind in ("system", "accelerator"):
        text = _MAKER.sub("", text)
    else:
        return ""
    return re.sub(r"(?<!\d)-|-(?!\d)", "", text)


def nearest(name: str, candidates: Iterable[str], count: int = 5) -> list[str]:
    """The candidates closest to a mistyped name, best first, then those that contain it; first spellings win."""
    spelled: dict[str, str] = {}
    for candidate in candidates:
        spelled.setdefault(normalise(candidate), candidate)
    wanted = normalise(name)[:100]
    close = [spelled[c] for c in get_close_matches(wanted, spelled, n=count, cutoff=0.5)]
    held = [c for key, c in spelled.items() if wanted and (wanted in key or key in wanted) and c not in close]
    return (close + held)[:count]


def printable(text: str, limit: int = 120) -> str:
    """Text from a file as an error shows it: no control characters, cut where it is long."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:limit])
    return shown + ("..." if len(text) > limit else "")


def allowed_names(name: str, candidates: Iterable[str], aliases: Iterable[str] = ()) -> str:
    """What to offer instead of ``name``: the nearest candidates and aliases, else the first few candidates."""
    known = [printable(c) for c in candidates]
    close = nearest(name, [*known, *map(printable, aliases)])
    if close:
        return "nearest: " + ", ".join(close)
    if not known:
        return "nothing is there yet"
    some = sorted(known)
    return ", ".join(islice(some, 12)) + (f", ... ({len(some)} in all)" if len(some) > 12 else "")


def kinds_of(section: str | None) -> list[Kind]:
    """Kinds of a section, of a kind's own name (``system``) or folder (``systems``), or all; [] where unknown."""
    if section is None:
        return list(KINDS.values())
    wanted = normalise(section)
    return [k for k in KINDS.values() if wanted in (k.section, k.name, k.folder.split("/")[-1])]
