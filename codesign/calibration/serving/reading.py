"""Serving tables as people write them: commas, tabs or semicolons, and columns in any case with blanks around them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from codesign.calibration.serving.points import COLUMNS, split_of
from codesign.catalog.names import printable
from codesign.errors import CodesignError

#: Columns that are read; others stay as they are written.
KNOWN = (*COLUMNS, "tpot_s", "board_j_per_output_token", "split")

#: What may stand between cells, in words.
BETWEEN = {",": "commas", "\t": "tabs", ";": "semicolons"}


def _named(cells: Sequence[str], label: str) -> list[str]:
    """Names of columns, those of `KNOWN` as they are called there."""
    names = []
    for cell in cells:
        name = "_".join(cell.strip().casefold().split())
        names.append(name if name in KNOWN else cell.strip())
    for name in KNOWN:
        if names.count(name) > 1:
            raise CodesignError("stands twice", file=label, key=f"line 1: {name}", allowed="each column once")
    return names


def _header(text: str) -> tuple[str, list[str]]:
    """What separates the cells of the first line, that which gives most columns that are known, and its cells."""
    lines = text.splitlines()
    first = lines[0] if lines else ""
    found = {mark: next(csv.reader([first], delimiter=mark), []) for mark in BETWEEN}
    mark = max(found, key=lambda m: sum("_".join(c.casefold().split()) in KNOWN for c in found[m]))
    return mark, found[mark]


def read(path: Path) -> list[dict[str, str]] | None:
    """Lines of a serving table, or None where the file has not its columns.

    Raises:
        CodesignError: the file cannot be read, has no lines, or one with more cells than the table has columns.
    """
    label = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        mark, cells = _header(text)
        lines = csv.reader(io.StringIO(text), delimiter=mark)
        next(lines, None)
        numbered = [(lines.line_num, cells) for cells in lines if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise CodesignError(f"cannot be read as a table: {reason}", file=label) from problem
    if not numbered:
        raise CodesignError("has no lines", file=label)
    columns = _named(cells, label)
    missing = [k for k in COLUMNS if k not in columns]
    if missing and len(missing) > len(COLUMNS) // 2:
        return None
    if missing:
        told = f"lacks {'columns' if len(missing) > 1 else 'column'} {', '.join(missing)} of a serving table"
        raise CodesignError(told, file=label, key="line 1", allowed=", ".join(COLUMNS))
    if len(numbered[0][1]) == 1:
        told = f"is separated by {BETWEEN[mark]} in line 1 and not in line {numbered[0][0]}"
        raise CodesignError(told, file=label, allowed="the same in all lines")
    for number, one in numbered:
        if len(one) > len(columns):
            allowed = f"{len(columns)} cells, as in the first line"
            raise CodesignError("has more cells than columns", file=label, key=f"line {number}", allowed=allowed)
    padded = [one + [""] * (len(columns) - len(one)) for _, one in numbered]
    rows = [dict(zip(columns, one, strict=True)) for one in padded]
    return [row | {"split": split_of(row)} if row.get("split") else row for row in rows]


def refused(path: Path, columns: Sequence[str]) -> CodesignError:
    """That a file is neither a serving table nor a kernel table, in one short line."""
    some = printable(", ".join(columns), 80)
    allowed = f"{', '.join(COLUMNS)} of serving points, or those of a kernel table, separated by commas"
    return CodesignError(f"no table has the columns {some}", file=str(path), key="line 1", allowed=allowed)
