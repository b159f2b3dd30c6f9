"""Tables small enough to travel inside the page: columns instead of rows, words once, numbers to five digits, gzip.

The page's script turns them back into rows (``page.js``, ``unpack``).
"""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

#: Significant digits that a drawn number keeps.
DIGITS = 5


def pack_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A table by columns: a list of values, or ``{"words": [...], "codes": [...]}`` where values are words.

    A value that a row lacks is null; numbers that are not finite are null too.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {"n": len(rows), "columns": {name: _column([row.get(name) for row in rows]) for name in names}}


def _column(values: Sequence[Any]) -> Any:
    if any(isinstance(v, str) for v in values):
        words = list(dict.fromkeys(values))
        place = {word: i for i, word in enumerate(words)}
        return {"words": words, "codes": [place[v] for v in values]}
    return [_number(v) for v in values]


def _number(value: Any) -> Any:
    if value is None or isinstance(value, bool | dict | list):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short


def compress(document: Any) -> str:
    """JSON of the document, gzipped without a time stamp, as base64."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")
