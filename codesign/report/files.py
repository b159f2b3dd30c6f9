"""Every chart as PNG and SVG, every table as CSV; drawn by vl-convert, so without a browser."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from codesign.errors import CodesignError
from codesign.files import write_bytes
from codesign.glossary import ENTRIES
from codesign.report.charts import Figure, figures
from codesign.report.charts.base import config, parameters
from codesign.report.data import Tables, tables
from codesign.report.data.operations import operations
from codesign.report.page import choice, first_shown, setting
from codesign.report.style import context_words
from codesign.report.summary import Json, cases, read_summary
from codesign.report.words import basis

FORMATS = ("png", "svg", "csv")

#: Width of an image, and of a panel where several stand side by side [px]; pixels per px in PNG.
WIDTH, PANEL, SCALE = 900, 420, 2.0

INK = "#1b1f24"


def export(run_dir: Path, out_dir: Path, formats: Iterable[str]) -> list[Path]:
    """Write images and tables; see `codesign.report`."""
    wanted = list(dict.fromkeys(formats))
    for name in wanted:
        if name not in FORMATS:
            raise CodesignError(f"unknown format {name!r}", key="formats", allowed=", ".join(FORMATS))
    summary = read_summary(run_dir)
    rows = tables(summary)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CodesignError("not a folder", key=str(out_dir)) from None
    written: list[Path] = []
    if "csv" in wanted:
        written += [_write(out_dir / f"{n}.csv", to_csv(t)) for n, t in csv_tables(summary, rows).items()]
    images = [name for name in wanted if name != "csv"]
    if images:
        for name, spec in image_specs(summary, rows):
            drawn = draw(spec, images)
            written += [_write(out_dir / f"{name}.{kind}", drawn[kind]) for kind in images]
    return written


def _write(path: Path, content: bytes) -> Path:
    write_bytes(path, content)
    return path


def csv_tables(summary: Json, rows: Tables) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The tables that go to CSV: those of the charts with every operation kept apart, and the glossary."""
    return {**rows, "operations": operations(summary, small=0.0), "glossary": [e._asdict() for e in ENTRIES]}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A table as CSV in UTF-8; what a row lacks is empty, tables inside cells are JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = (row.get(name) for name in names)
        writer.writerow([json.dumps(v) if isinstance(v, dict | list) else "" if v is None else v for v in cells])
    return text.getvalue().encode("utf-8")


def image_specs(summary: Json, rows: Tables) -> Iterable[tuple[str, Json]]:
    """Name and complete specification of every image: one per figure and case, and per machine of the sensitivities."""
    made = figures(summary, rows)
    first = {"shown": first_shown(rows), "narrow": False} | setting(rows)
    for i, case in enumerate(cases(summary)):
        values = first | choice(rows, case)
        for figure in made.values():
            study = figure.scope == "study"
            if not (study and i) and figure.scope != "setting" and _drawn(figure, rows, values):
                yield figure.name + ("" if study else f"-{case.key}"), complete(figure, summary, rows, values)
    for arch, chosen in {str(r["arch"]): str(r["setting"]) for r in reversed(rows["sensitivity"])}.items():
        values = first | choice(rows, cases(summary)[0]) | {"chosen_arch": arch, "chosen_setting": chosen}
        yield f"sensitivity-{arch}", complete(made["sensitivity"], summary, rows, values)


#: Columns by which a figure of each scope takes its rows, and the parameters that they must equal.
SELECTS = {
    "study": {},
    "case": {"case": "chosen_case"},
    "problem": {"case": "chosen_case", "problem": "chosen_problem"},
    "part": {"case": "chosen_case", "problem": "chosen_problem", "part": "chosen_part"},
    "setting": {"arch": "chosen_arch", "setting": "chosen_setting"},
}


def selected(rows: Tables, name: str, scope: str, values: Json) -> list[dict[str, Any]]:
    """The rows of a table that a figure of this scope draws."""
    chosen = {column: values[parameter] for column, parameter in SELECTS[scope].items()}
    return [dict(r) for r in rows.get(name, []) if all(r.get(k, v) == v for k, v in chosen.items())]


def _drawn(figure: Figure, rows: Tables, values: Json) -> bool:
    return any(selected(rows, name, figure.scope, values) for name in figure.tables())


def complete(figure: Figure, summary: Json, rows: Tables, values: Json) -> Json:
    """A figure as one specification: data, parameters, title and the basis of its numbers included."""
    several = len(figure.panels) > 1 and figure.columns > 1
    width = PANEL if several else WIDTH
    panels = [panel | {"width": width} for panel in figure.panels]
    body = panels[0] if len(panels) == 1 else {"concat": panels, "columns": min(figure.columns, 3)}
    body = with_legend(body) if figure.keyed else body
    title = {
        "text": " · ".join([figure.title, *_where(figure, summary, rows, values)]),
        "subtitle": basis(summary, figure.basis),
    }
    return body | {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": title,
        "padding": 12,
        "config": config(INK) | {"background": "white", "font": "DejaVu Sans, Helvetica, Arial, sans-serif"},
        "params": parameters(values),
        "datasets": {name: selected(rows, name, figure.scope, values) for name in figure.tables()},
    }


def _where(figure: Figure, summary: Json, rows: Tables, values: Json) -> list[str]:
    """Case, target and part of an image, in words."""
    case = next(c for c in cases(summary) if c.key == values["chosen_case"])
    found = [f"{context_words(case.context)} context, {case.precision}"]
    row = next(
        (r for r in rows["answers"] if r["problem"] == values["chosen_problem"] and r["part"] == values["chosen_part"]),
        None,
    )
    if row is not None and figure.scope in ("problem", "part"):
        found.append(f"TPOT ≤ {row['target']:g} ms")
    if row is not None and figure.scope == "part":
        found.append(str(row["label"]))
    if figure.scope == "setting":
        label = next(str(r["label"]) for r in rows["sensitivity"] if r["arch"] == values["chosen_arch"])
        return [label, values["chosen_setting"]]
    return [] if figure.scope == "study" else found


def with_legend(spec: Any) -> Any:
    """The specification with a legend for the colours of parts, as an image needs that has no page around it."""
    if isinstance(spec, list):
        return [with_legend(x) for x in spec]
    if not isinstance(spec, dict):
        return spec
    found = {k: with_legend(v) for k, v in spec.items()}
    colour = found.get("color")
    if isinstance(colour, dict) and colour.get("field") == "label" and colour.get("legend", 0) is None:
        found["color"] = colour | {"legend": {"title": None, "orient": "top"}}
    return found


def draw(spec: Json, kinds: Sequence[str]) -> dict[str, bytes]:
    """Images of a specification by kind, ``svg`` or ``png``; laid out once."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec)
    kind = {"svg": lambda: svg.encode("utf-8"), "png": lambda: vl_convert.svg_to_png(svg, scale=SCALE)}
    return {name: kind[name]() for name in kinds}
