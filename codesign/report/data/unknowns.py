"""How the answer moves with numbers that nobody has published: a row per machine, setting and number.

A setting is the target and the format of the attention scan under which a number was moved over its range.  Entries of
the summary that list ``cases`` give one setting each; plain ones (``values``, ``metric``) give one in all.
"""

from typing import Any

from codesign.glossary import describe
from codesign.report.style import parts_of, pretty, words
from codesign.report.summary import Json, items, number, part
from codesign.report.words import quantity
from codesign.study.verdicts import TOGETHER


def settings_of(entry: Json) -> list[Json]:
    """The cases of an entry, each with ``setting`` (words), ``metric`` and ``reference``."""
    cases = items(entry, "cases") or [entry]
    return [case | {"setting": _setting(case)} for case in cases if items(case, "metric")]


def _setting(case: Json) -> str:
    target = number(case.get("target_s"))
    told = [f"{target * 1e3:g} ms"] if target else []
    told += [f"attention in {str(case['attention']).upper()}"] if case.get("attention") else []
    return ", ".join(told) or "as stated"


def _named(summary: Json) -> dict[str, str]:
    return {p.key: p.label for p in parts_of(summary)}


def _title(entry: Json) -> str:
    name = str(entry.get("parameter"))
    return "all unknowns together" if name == TOGETHER else words(name.split(".")[-1])


def _unit(entry: Json) -> str:
    found = describe(str(entry.get("parameter")).split(".")[-1])
    return str(entry.get("unit") or (found.unit if found else "1"))


def sensitivity(summary: Json) -> list[dict[str, Any]]:
    """Rows: arch, label, setting, title, low, high (tokens/s/MW over the range), base (at the catalog's value), at_low,
    at_high (the values there, in words), unserved (values at which the target is missed, in words), swing, order.

    Of all unknowns together ``low`` and ``high`` are the corners where each stands at its worse and its better end.
    """
    labels = _named(summary)
    rows: list[dict[str, Any]] = []
    for i, entry in enumerate(items(summary, "sensitivity")):
        arch = str(entry.get("arch"))
        for case in settings_of(entry):
            row = _range(entry, case)
            if row is not None:
                head = {"arch": arch, "label": labels.get(arch, pretty(arch)), "setting": case["setting"]}
                rows.append(head | {"title": _title(entry), "order": i} | row)
    return rows


def _range(entry: Json, case: Json) -> dict[str, Any] | None:
    pairs = [(number(v), number(m)) for v, m in zip(items(entry, "values"), case["metric"], strict=False)]
    served = [(v, m) for v, m in pairs if v is not None and m]
    if not served:
        return None
    unit = _unit(entry)
    (least, low), (most, high) = min(served, key=lambda p: p[1]), max(served, key=lambda p: p[1])
    missed = [quantity(v, unit) for v, m in pairs if v is not None and not m]
    catalog = number(entry.get("value"))
    base = min(served, key=lambda p: abs(p[0] - catalog))[1] if catalog is not None else None
    told = {"at_low": quantity(least, unit), "at_high": quantity(most, unit)}
    if entry.get("parameter") == TOGETHER:
        worst, best = number(case.get("worst")), number(case.get("best"))
        low, high = worst or low, best or high
        missed = ["their worse ends"] if not worst else []
        told = {"at_low": "all worst", "at_high": "all best" if best else "catalog"}
    return {
        "low": low,
        "high": high,
        "base": base,
        **told,
        "unserved": ", ".join(missed),
        "swing": number(entry.get("swing")),
    }


def rivals(summary: Json) -> list[dict[str, Any]]:
    """Rows: arch, setting, series (label of the other machine), metric [tokens/s/MW]."""
    labels = _named(summary)
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in items(summary, "sensitivity"):
        arch = str(entry.get("arch"))
        for case in settings_of(entry):
            for rival, level in part(case, "reference").items():
                if number(level):
                    row = {"arch": arch, "setting": case["setting"], "series": labels.get(rival, pretty(rival))}
                    found.setdefault((arch, case["setting"], rival), row | {"metric": number(level)})
    return list(found.values())


def unknowns(summary: Json) -> list[dict[str, Any]]:
    """Rows: arch, label, title, value, range, kind, swing (of ln rate, largest), turns, note; one per entry.

    ``turns`` tells at which values the machine passes another, per setting, in words.
    """
    labels = _named(summary)
    rows = []
    for entry in items(summary, "sensitivity"):
        arch, unit = str(entry.get("arch")), _unit(entry)
        together = entry.get("parameter") == TOGETHER
        ends = [number(x) for x in items(entry, "range") or items(entry, "values")]
        told = [x for x in ends if x is not None]
        turns = [
            f"{labels.get(rival, pretty(rival))} at {', '.join(quantity(x, unit) for x in values)} ({case['setting']})"
            for case in settings_of(entry)
            for rival, values in part(case, "crossings").items()
            if values
        ]
        rows.append(
            {
                "arch": arch,
                "label": labels.get(arch, pretty(arch)),
                "title": _title(entry),
                "value": None if together else quantity(entry.get("value"), unit),
                "range": f"{quantity(told[0], unit)} – {quantity(told[-1], unit)}" if told and not together else None,
                "kind": entry.get("kind") or "",
                "swing": number(entry.get("swing")),
                "turns": "; ".join(turns),
                "note": entry.get("note") or "",
            }
        )
    return rows
