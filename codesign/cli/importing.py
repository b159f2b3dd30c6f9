"""``import-model``: a Hugging Face configuration becomes a model file of the catalog."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.cli.show import COUNTS
from codesign.errors import CodesignError
from codesign.files import write_text


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    arg.add_command(
        app,
        import_model,
        "codesign import-model config.json --name my-model",
        "codesign import-model config.json --name my-model --out - > my-model.toml",
        "codesign import-model config.json --name my-model --set config.tie_word_embeddings=false",
        name="import-model",
    )


def import_model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The model's name in the catalog.")],
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="One line for people.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write, - for stdout; else workloads/models/NAME.toml."),
    ] = None,
    quantization: Annotated[
        Path | None,
        typer.Option("--quantization", metavar="FILE", help="ModelOpt's hf_quant_config.json, if it lies elsewhere."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Give a field that CONFIG lacks: --set config.dtype=bfloat16."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Replace a file that says something else.")
    ] = False,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Turn a Hugging Face config.json into a model file: structure, layers, and a dtype per tensor class.

    Nested text configurations and quantisation settings are read. An unknown architecture or a field that is missing is
    an error; what was taken from the architecture's definition is told.
    """
    from codesign.catalog.importing import import_model as read
    from codesign.model import model_of

    if as_json and out == Path("-"):
        raise CodesignError("and --json both write to stdout", key="--out -", allowed="one of them")
    found = read(config, name, title=title, quantization=quantization, settings=settings or ())
    if out == Path("-"):
        typer.echo(found.text, nl=False)
        return
    file = out or (workspace or Path()) / "workloads" / "models" / f"{name}.toml"
    _write(file, found.text, force)
    model = model_of(found.model)
    counts = model.counts({"kv": model.published_kv})
    document = {
        "schema": "codesign.import/1", "name": name, "file": str(file), "architecture": found.architecture,
        "counts": {key: getattr(counts, key) for key in COUNTS}, "published_kv": model.published_kv,
        "notes": [*found.notes, *_hidden(name, file)],
    }  # fmt: skip
    arg.answer(document, as_json, _draw)


def _hidden(name: str, file: Path) -> Iterator[str]:
    """A note where the program's own catalog has a model of that name or alias, which the file comes before."""
    from codesign.catalog.names import KINDS, normalise
    from codesign.catalog.workspace import Workspace, bundled_root

    for entry in Workspace((("bundled", bundled_root()),)).entries(KINDS["model"]):
        if normalise(name) in entry.keys and entry.origin.path.resolve() != file.expanduser().resolve():
            yield f"{name} also names the bundled model {entry.name}; in a workspace with this file it means this file"


def _write(file: Path, text: str, force: bool) -> None:
    """Write the file whole; one that is there and says something else is kept unless ``force``."""
    try:
        same = force or not file.exists() or file.read_text(encoding="utf-8") == text
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CodesignError(f"cannot be written: {why}", file=str(file)) from error
    if not same:
        raise CodesignError("is there already", file=str(file), allowed="another --out or --name, or --force")
    write_text(file, text)


def _draw(document: dict[str, Any]) -> None:
    from codesign.cli import tables

    counts = document["counts"].items()
    rows = [(key.replace("_", " "), f"{value:,.0f}" + (" B" if "bytes" in key else "")) for key, value in counts]
    out = tables.console()
    out.print(tables.table(f"{document['name']}: {document['architecture']}", ("derived counts", "value"), rows))
    for note in document["notes"]:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    out.print(f"wrote {document['file']}", markup=False, soft_wrap=True)
