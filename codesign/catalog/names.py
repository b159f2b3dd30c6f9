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


#: What a published checkpoint's name may end with: how it was trained on, and the month or day.
_EDITION = re.compile(r"(-(instruct|chat|base|hf|it|\d{4}))+$")

#: What may stand before the name of a part.
_MAKER = re.compile(r"^((nvidia|amd|instinct)-)+")


def structure(kind: str, name: str) -> str:
    """The form in which models and parts are compared where none has a name as it is written; empty for other kinds.

    Of a model the last part of ``org/Name`` without its edition (``Llama-3.1-70B-Instruct``), of a part its name
    without its maker; hyphens matter between digits alone (``kimik2.5``).
    """
    text = normalise(name)
    if kind == "model":
        text = _EDITION.sub("", text.rpartition("/")[2])
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
