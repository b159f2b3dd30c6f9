"""Prose of the report: the basis said on every chart, what is not modelled, how numbers and mappings are written."""

from collections.abc import Mapping
from typing import Any

from codesign.glossary import TPOT_DEFINITION
from codesign.report.summary import Json, number
from codesign.units import format_quantity

#: What the model leaves out; the report says so beside its accuracy.
NOT_MODELLED = (
    "Prefill, midfill and the arrival of requests: decode is steady, with every slot of the batch filled.",
    "Moving KV between workers or tiers, and the buffers for it, unless a mapping names them.",
    "Contention between jobs, congestion beyond a link's own rate, failures and spare chips.",
    "Clock and voltage moving with load: a chip slows only where its power limit binds.",
    "Scheduling on the host, sampling options, grammar and tokenization.",
    "Heat beyond the stated limit per area; yield and the cost of packaging, beyond the price of memory.",
)

KINDS = {
    "datasheet": "published by the maker",
    "measured": "measured on the part",
    "fitted": "fitted to measurements",
    "estimate": "estimated by others or derived from published figures",
    "rumour": "reported without confirmation",
    "assumption": "assumed, with a range",
}


def basis(summary: Json, what: str = "") -> str:
    """The line under every chart: definition of TPOT, per what, of which tokens, on which power."""
    power = summary.get("power_basis") or "provisioned"
    return f"{what + ' ' if what else ''}{TPOT_DEFINITION}; per user; output tokens; {power} megawatts."


def mapping_words(mapping: Mapping[str, Any] | None) -> str:
    """A mapping in one line, such as ``72 chips: PP 1 · TP 1 · DP 72 · EP 72``."""
    if not mapping:
        return ""
    text = " · ".join(f"{k.upper()} {mapping[k]:g}" for k in ("pp", "tp", "dp", "ep") if number(mapping.get(k)))
    if number(mapping.get("chips")):
        text = f"{mapping['chips']:,.0f} chip{'' if mapping['chips'] == 1 else 's'}: {text}"
    if (number(mapping.get("moe_tp")) or 1) > 1:
        text += f" · expert TP {mapping['moe_tp']:g}"
    if (number(mapping.get("tp")) or 1) > 1 and mapping.get("attention_split"):
        text += f" · KV by {mapping['attention_split']}"
    if (number(mapping.get("microbatches")) or 1) > 1:
        text += f" · {mapping['microbatches']:g} micro-batches"
    return text


def quantity(value: Any, unit: str, digits: int = 3) -> str:
    """A number with its unit and prefix for people; a dash for none."""
    found = number(value)
    if found is None:
        return "–"
    if unit == "m^2":
        return f"{found * 1e6:,.{digits}g} mm²"
    if unit in ("s/chip", "1", "", "chip", "token", "token/s", "token/s/MW", "sequence", "layer"):
        return plain(found, digits)
    return format_quantity(found, unit, digits)


def plain(value: Any, digits: int = 3) -> str:
    """A number with thousands separated: ``412,000``, ``3.14``, ``0.0031``; a dash for none."""
    found = number(value)
    if found is None:
        return "–"
    if found == 0:
        return "0"
    rounded = float(f"{found:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def percent(value: Any, digits: int = 1) -> str:
    """A share as a percentage; a dash for none."""
    found = number(value)
    return "–" if found is None else f"{found * 100:.{digits}f} %"


def milliseconds(seconds: Any) -> str:
    """A time in ms with its unit; a dash for none."""
    found = number(seconds)
    return "–" if found is None else f"{found * 1e3:.3g} ms"


def times(ratio: Any) -> str:
    """A ratio such as ``2.31 ×``; a dash for none."""
    found = number(ratio)
    return "–" if found is None else f"{found:.3g} ×"
