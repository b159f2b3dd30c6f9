"""``list`` and ``show``: what the catalog holds, and each of its numbers with unit, kind and source."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.glossary import COUNTS


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    arg.add_command(app, list_names, "codesign list", "codesign list arch", "codesign list models --json", name="list")
    arg.add_command(
        app,
        show,
        "codesign show gb200-nvl72",
        "codesign show kimi-k3",
        "codesign show accelerator/b200                 one kind, where several share a name",
        "codesign show jalapeno --toml > mine.toml      to copy and edit",
    )


def list_names(
    section: Annotated[
        str | None,
        typer.Argument(metavar="[arch|workloads|optimize]", help="One part of the catalog, or a kind of file."),
    ] = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """List machines, memories, models, requests and studies, with the aliases by which each is found."""
    from codesign.catalog import list_catalog

    entries = [
        {
            "kind": entry.kind,
            "name": entry.name,
            "title": entry.title,
            "aliases": list(entry.aliases),
            "file": entry.origin.label,
            "origin": entry.origin.source,
            "problem": entry.problem,
        }
        for entry in list_catalog(section, workspace)
    ]
    arg.answer({"schema": "codesign.list/1", "entries": entries}, as_json, _draw_list)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias of anything that 'codesign list' lists.")],
    toml: Annotated[bool, typer.Option("--toml", metavar="", help="Print the file itself, to copy and edit.")] = False,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Show one entry: each number with its unit, kind and source; for a model the counts that follow from it."""
    from codesign.catalog import find_entry

    entry = find_entry(name, workspace)
    if toml:
        typer.echo(entry.origin.path.read_text(encoding="utf-8"), nl=False)
        return
    arg.answer(_document(entry, workspace), as_json, _draw)


def _document(entry: Any, workspace: Any) -> dict[str, Any]:
    """What ``show`` tells of an entry: its file, and for a system also its accelerator's and memory's numbers."""
    from codesign import catalog
    from codesign.catalog.workspace import read_toml

    raw = read_toml(entry.origin)
    document = {
        "schema": "codesign.show/1",
        "kind": entry.kind,
        "name": entry.name,
        "title": entry.title,
        "aliases": list(entry.aliases),
        "files": [entry.origin.label],
        "settings": dict(_settings(raw)),
        "numbers": [],
    }
    if entry.kind == "study":
        return document
    loaded = (catalog.load_system if entry.kind == "system" else partial(catalog.load_file, entry.kind))(
        entry.name, workspace
    )
    if isinstance(loaded, catalog.LoadedSystem):
        document["files"] = [file.origin.label for file in loaded.files]
    document["numbers"] = [_number(row) for row in catalog.provenance(loaded)]
    if isinstance(loaded, catalog.ModelFile):
        from codesign.model import model_of

        model = model_of(loaded)
        counts = model.counts({"kv": model.published_kv})
        document["counts"] = {name: getattr(counts, name) for name in COUNTS}
    return document


def _number(row: Any) -> dict[str, Any]:
    """One number of a file: as written, converted, and where it comes from."""
    from codesign import units

    many = ", " in row.value
    return {
        "key": row.field,
        "value": row.value,
        "si": [units.parse(v, row.unit) for v in row.value.split(", ")] if many else units.parse(row.value, row.unit),
        "unit": row.unit,
        "kind": row.kind,
        "source": row.source,
        "range": list(row.range) if row.range else None,
        "note": row.note,
    }


def _settings(raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a file that is not a number with a source: names, structure, dtypes."""
    for key, value in raw.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            if not ("value" in value and "kind" in value):
                yield from _settings(value, here)
        elif here not in ("name", "title", "aliases"):
            yield here, value


def _draw_list(document: Mapping[str, Any]) -> None:
    from codesign.cli import tables

    out = tables.console()
    entries = document["entries"]
    mixed = len({entry["origin"] for entry in entries}) > 1
    for kind in dict.fromkeys(entry["kind"] for entry in entries):
        rows = []
        for entry in entries:
            if entry["kind"] == kind:
                row = [entry["name"], entry["problem"] or entry["title"], ", ".join(entry["aliases"])]
                rows.append([*row, entry["origin"]] if mixed else row)
        columns = ("name", "title", "aliases", "from") if mixed else ("name", "title", "aliases")
        out.print(tables.table(kind, columns, rows, left=4))


def _draw(document: Mapping[str, Any]) -> None:
    from rich.markup import escape

    from codesign.cli import tables

    out = tables.console()
    title = document["title"] or document["name"]
    out.print(f"[bold]{escape(title)}[/bold]  {document['kind']} {escape(document['name'])}")
    out.print("files    " + ", ".join(document["files"]), markup=False, soft_wrap=True)
    if document["aliases"]:
        out.print("aliases  " + ", ".join(document["aliases"]), markup=False, soft_wrap=True)
    if "counts" in document:
        rows = [(name.replace("_", " "), _count(name, value)) for name, value in document["counts"].items()]
        out.print(tables.table("derived counts", ("", "value"), rows))
    sources: dict[str, int] = {}
    tables_of: dict[str, list[list[str]]] = {}
    for n in document["numbers"]:
        kind, _, key = n["key"].partition(".")
        cited = sources.setdefault(n["source"], len(sources) + 1)
        span = f"{n['range'][0]} to {n['range'][1]}" if n["range"] else ""
        tables_of.setdefault(kind, []).append([key, n["value"], span, n["kind"], f"({cited}) {n['note'] or ''}"])
    for kind, rows in tables_of.items():
        drawn = tables.table(f"{kind}: numbers", ("key", "value", "range", "kind", "source, note"), rows, left=5)
        for column in drawn.columns[:4]:
            column.no_wrap = True
        out.print(drawn)
    if document["settings"]:
        rows = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in document["settings"].items()]
        out.print(tables.table("settings", ("key", "value"), rows, left=2))
    for source, number in sources.items():
        out.print(f"({number}) {source}", markup=False, soft_wrap=True)


def _count(name: str, value: float) -> str:
    if "bytes" in name:
        return f"{value:,.0f} B"
    return f"{value / 1e9:,.2f} B parameters"
