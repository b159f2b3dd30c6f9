"""``import-model``: a Hugging Face configuration becomes a model file of the catalog."""

from pathlib import Path
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.errors import CodesignError


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
    from codesign import api

    if as_json and out == Path("-"):
        raise CodesignError("and --json both write to stdout", key="--out -", allowed="one of them")
    document = api.import_model(
        config, name, title=title, out=out, quantization=quantization, set=settings or (), force=force,
        workspace=workspace,
    )  # fmt: skip
    if document["file"] is None:
        typer.echo(document["text"], nl=False)
        return
    arg.answer(document, as_json, _draw)


def _draw(document: dict[str, Any]) -> None:
    from codesign.cli import tables

    counts = document["counts"].items()
    rows = [(key.replace("_", " "), f"{value:,.0f}" + (" B" if "bytes" in key else "")) for key, value in counts]
    out = tables.console()
    out.print(tables.table(f"{document['name']}: {document['architecture']}", ("derived counts", "value"), rows))
    for note in document["notes"]:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    out.print(f"wrote {document['file']}", markup=False, soft_wrap=True)
