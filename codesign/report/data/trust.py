"""How far to trust the answer: published figures against the model's."""

import math
from typing import Any

from codesign.report.summary import Json, items, number, part


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


def held_back(summary: Json) -> list[dict[str, Any]]:
    """Serving points that the fit did not see: rows of chip, model, framework, concurrency, measured, predicted [ms],
    low, high (90 % interval [ms]), error (predicted over measured less one).
    """
    rows = []
    for p in items(summary, "held_back"):
        measured, predicted, half = (number(p.get(k)) for k in ("measured_s", "predicted_s", "half_width"))
        if measured and predicted and half is not None:
            rows.append(
                {
                    **{k: p.get(k) for k in ("chip", "model", "framework", "concurrency")},
                    "measured": measured * 1e3,
                    "predicted": predicted * 1e3,
                    "low": predicted * math.exp(-half) * 1e3,
                    "high": predicted * math.exp(half) * 1e3,
                    "error": predicted / measured - 1.0,
                }
            )
    return rows


def check_terms(summary: Json) -> list[dict[str, Any]]:
    """What a pass waits for at each published point: rows of name, term, ms, order, published (pass it implies [ms]).

    From ``seconds`` of a check, by term; they sum to the predicted pass.  The published rate implies a pass of that sum
    times predicted over published.
    """
    rows = []
    for c in items(summary, "checks"):
        seconds = {k: x for k, x in ((k, number(v)) for k, v in part(c, "seconds").items()) if x}
        predicted, published = number(c.get("predicted")), number(c.get("published"))
        if seconds and predicted and published:
            implied = sum(seconds.values()) * predicted / published * 1e3
            rows += [
                {"name": c.get("name") or "", "term": k, "ms": v * 1e3, "order": i, "published": implied}
                for i, (k, v) in enumerate(seconds.items())
            ]
    return rows
