"""How far to trust the answer: published figures against the model's, and what unknown numbers would change."""

from typing import Any

from codesign.glossary import describe
from codesign.report.data.designs import scale_of
from codesign.report.style import parts_of, pretty, words
from codesign.report.summary import Json, items, number


def checks(summary: Json) -> list[dict[str, Any]]:
    """Rows: name, predicted, published, unit, ratio (predicted over published), terms, source; in the study's order."""
    rows = []
    for c in items(summary, "checks"):
        predicted, published = number(c.get("predicted")), number(c.get("published"))
        rows.append(
            {
                "name": c.get("name") or "",
                "predicted": predicted,
                "published": published,
                "unit": c.get("unit") or "",
                "ratio": predicted / published if predicted is not None and published else None,
                "terms": c.get("terms") or "",
                "source": c.get("source") or "",
            }
        )
    return rows


def sensitivity(summary: Json) -> list[dict[str, Any]]:
    """Rows: panel, arch, label, parameter, title, unit, value (on the axis), metric, series, note.

    One panel per entry.  ``reference`` of an entry, if given, maps machines to their value, drawn as level lines; then
    ``series`` is their label.
    """
    labels = {p.key: p.label for p in parts_of(summary)}
    rows: list[dict[str, Any]] = []
    for i, s in enumerate(items(summary, "sensitivity")):
        values = [number(v) for v in items(s, "values")]
        pairs = [(v, number(y)) for v, y in zip(values, items(s, "metric"), strict=False) if v is not None]
        pairs = [(v, y) for v, y in pairs if y is not None]
        if not pairs:
            continue
        leaf = str(s.get("parameter"))
        entry = describe(leaf.split(".")[-1])
        unit = s.get("unit") or (entry.unit if entry else "1")
        factor, shown = (1e-6, "µs") if unit == "s" else scale_of([v for v, _ in pairs if v > 0], unit)
        head = {
            "panel": i,
            "arch": s.get("arch"),
            "parameter": leaf,
            "title": words(leaf.split(".")[-1]),
            "unit": shown,
            "note": s.get("note") or "",
            "label": labels.get(str(s.get("arch")), pretty(str(s.get("arch")))),
        }
        rows += [head | {"value": v / factor, "metric": y, "series": head["label"]} for v, y in pairs]
        for arch, level in (s.get("reference") or {}).items():
            y = number(level)
            if y is not None:
                name = labels.get(arch, pretty(arch))
                rows += [head | {"value": v / factor, "metric": y, "series": name} for v, _ in (pairs[0], pairs[-1])]
    return rows
