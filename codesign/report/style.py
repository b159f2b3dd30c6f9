"""One look for all charts: a colour, a shape and a dash per part, colours per lane, and how names are written.

Colours begin with Okabe and Ito's and Tol's palettes; the first sixteen machines have one each, no two alike, and shape
tells apart what some eyes may not.  Optima are thick and diamond-shaped; the dash says whether a part ships.
"""

import re
from dataclasses import dataclass

from codesign.report.summary import Json, items, optimum_key

OPTIMUM_COLOURS = ("#d55e00", "#2b83c6", "#009e73", "#8f6bc9", "#b8860b")
MACHINE_COLOURS = (
    *("#56b4e9", "#e69f00", "#cc79a7", "#8a8a2b", "#6a3fd0", "#a0673c", "#1e7a7a", "#c2185b"),
    *("#8c8c8c", "#b5a1e0", "#d94f9d", "#5aa02c", "#2f5fc0", "#e5726a", "#3fc1b0", "#9a3fae"),
)
SHAPES = ("circle", "square", "triangle-up", "cross", "triangle-down")

#: Lane, how it is called, colour; latency is not a lane but is drawn beside them.
LANES = (
    ("memory", "memory", "#4477aa"),
    ("tensor", "tensor", "#ee6677"),
    ("vector", "vector", "#ccbb44"),
    ("scale_up", "scale-up", "#228833"),
    ("scale_out", "scale-out", "#aa3377"),
    ("latency", "latency", "#9a9a9a"),
    ("wait", "waiting", "#66ccee"),
)
LANE_NAMES = {key: name for key, name, _ in LANES}
LANE_COLOURS = {name: colour for _, name, colour in LANES}

#: Words of names that are written in capitals.
_CAPITALS = {"dram", "ram", "sram", "3d", "2d", "lpu", "lpx", "gpu", "tpu", "fp4", "fp8", "bf16", "kv", "ai"}


@dataclass(frozen=True)
class Part:
    """Something drawn in the charts: a technology's optimum or a machine of the catalog.

    Attributes:
        key: ``optimum:TECHNOLOGY`` or the machine's catalog name. label: for people.
        optimum: from the search. status: shipping, announced or hypothetical. colour, shape: of its marks.
    """

    key: str
    label: str
    optimum: bool
    status: str
    colour: str
    shape: str


def pretty(name: str) -> str:
    """A catalog name for people: ``hybrid-bonded-dram`` is ``Hybrid-bonded DRAM``."""
    words = [w.upper() if w in _CAPITALS or re.fullmatch(r"(hbm|lpddr|gddr)\d\w*", w) else w for w in name.split("-")]
    text = " ".join(words)
    text = re.sub(r"\b(hybrid) (bonded)\b", r"\1-\2", text)
    return text[:1].upper() + text[1:]


def words(name: str) -> str:
    """A field's name as a phrase: ``tensor_fp4`` is ``tensor FP4``."""
    text = " ".join(w.upper() if w in _CAPITALS else w for w in name.split("_"))
    return text.replace("scale up", "scale-up").replace("scale out", "scale-out").replace("tpot", "TPOT")


def context_words(context: float) -> str:
    """``128Ki`` where the context is a whole number of Ki, else with thousands separated."""
    whole = round(context)
    return f"{whole // 1024}Ki" if whole % 1024 == 0 and whole >= 1024 else f"{whole:,}"


def parts_of(summary: Json) -> list[Part]:
    """Every optimum and machine of a summary, optima first, each with its own look, in the study's order."""
    technologies = list(items(summary, "technologies"))
    titles: dict[str, str] = {}
    status: dict[str, str] = {}
    machines = list(items(summary, "machines"))
    for problem in items(summary, "problems"):
        technologies += [d["technology"] for d in items(problem, "designs")]
        for m in items(problem, "machines"):
            machines.append(m["arch"])
            titles.setdefault(m["arch"], m.get("title") or m["arch"])
            status.setdefault(m["arch"], m.get("status") or "shipping")
    machines += [f["arch"] for f in items(summary, "frontiers")]

    found = []
    for i, name in enumerate(dict.fromkeys(technologies)):
        colour = OPTIMUM_COLOURS[i % len(OPTIMUM_COLOURS)]
        found.append(Part(optimum_key(name), f"Optimum, {pretty(name)}", True, "hypothetical", colour, "diamond"))
    used: set[str] = set()
    for i, name in enumerate(dict.fromkeys(machines)):
        label = titles.get(name, pretty(name))
        label = name if label in used else label
        used.add(label)
        colour = MACHINE_COLOURS[i % len(MACHINE_COLOURS)]
        shape = SHAPES[(i // len(MACHINE_COLOURS) + i) % len(SHAPES)]
        found.append(Part(name, label, False, status.get(name, "shipping"), colour, shape))
    return found


def spread(heights: list[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Positions near ``heights``, in the same order, at least ``gap`` apart and within bounds where they fit.

    Labels beside a chart are placed so: pushed apart from the bottom up, then back down from the top.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    floor = low
    for i in order:
        placed[i] = max(heights[i], floor)
        floor = placed[i] + gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed
