"""How findings write numbers, targets and names, and how they read a summary that may lack parts."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

#: Formats and units within the names of numbers.
_CAPITALS = {"fp4": "FP4", "fp8": "FP8", "bf16": "BF16", "sram": "SRAM"}


def plain(value: float, digits: int = 3) -> str:
    """``418,916`` is ``419,000``; ``0.01234`` is ``0.0123``."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def times(ratio: float) -> str:
    """``2.31 ×``."""
    return f"{plain(ratio)} ×"


def percent(share: float) -> str:
    """``61 %``."""
    return f"{100.0 * share:.0f} %" if abs(share) >= 0.1 or share == 0.0 else f"{100.0 * share:.2g} %"


def ms(seconds: float) -> str:
    """``20 ms``."""
    return f"{seconds * 1e3:.3g} ms"


def tokens(context: float) -> str:
    """``128Ki`` or ``515,000`` tokens."""
    whole = round(context)
    return f"{whole // 1024}Ki tokens" if whole % 1024 == 0 and whole else f"{whole:,} tokens"


def leaf(name: str) -> str:
    """A number's name as a phrase: ``tensor_fp8`` is ``tensor FP8``."""
    return " ".join(_CAPITALS.get(w, w) for w in name.split("_")).replace("scale up", "scale-up").replace(
        "scale out", "scale-out"
    )  # fmt: skip


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def rate(entry: Json | None) -> float:
    """Tokens/s per MW of a machine, or of a design as it can be built; 0 where it does not serve.

    A design without a buildable neighbour is told by its value before rounding.
    """
    entry = entry or {}
    metrics = (entry.get("rounded") or {}).get("metrics") or entry.get("metrics") or {}
    value = metrics.get("tokens_per_s_per_megawatt")
    return float(value) if value and entry.get("feasible", True) else 0.0


def cases(summary: Json) -> dict[tuple[float, str], list[Json]]:
    """Problems by (context, precision), tightest target first."""
    found: dict[tuple[float, str], list[Json]] = {}
    for problem in summary.get("problems") or ():
        found.setdefault((float(problem["context"]), str(problem["precision"])), []).append(problem)
    return {key: sorted(problems, key=lambda p: p["target_s"]) for key, problems in found.items()}


def case_words(key: tuple[float, str]) -> str:
    """``515,000 tokens, bf16 weights``."""
    return f"{tokens(key[0])}, {key[1]} weights"


def titles(summary: Json) -> dict[str, str]:
    """Machines' titles by catalog name."""
    return {
        m["arch"]: m.get("title") or m["arch"] for p in summary.get("problems") or () for m in p.get("machines") or ()
    }


def machine(problem: Json, arch: str) -> Json | None:
    """A machine of a problem, None where the study does not have it."""
    return next((m for m in problem.get("machines") or () if m["arch"] == arch), None)
