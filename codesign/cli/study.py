"""``optimize``, ``status`` and ``report``: a study from its file to its pages."""

from pathlib import Path
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.errors import CodesignError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, e.g. runs/tokens-per-megawatt.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    study = "codesign optimize optimize/tokens-per-megawatt.toml"
    arg.add_command(
        app,
        optimize,
        study,
        f"{study} --out runs/mine --seed 1",
        f"{study} --out runs/mine --resume",
        f"{study} --dry-run",
    )
    arg.add_command(
        app,
        report,
        "codesign report runs/tokens-per-megawatt",
        "codesign report runs/tokens-per-megawatt --png charts --csv tables",
    )


def optimize(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="TOML file, or the name of a bundled study.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; runs/ and the study's name where not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on from the run folder's last checkpoint.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of the starts; the study's own where not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Check everything and say what would be done.")
    ] = False,
    override: arg.Set = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Search the mix of memory, fabric and compute that serves the most tokens per megawatt at each target TPOT.

    The run folder holds the frozen study, checkpoints, results and the report. A run that was stopped goes on with
    --resume and ends with the same result, bit for bit.
    """
    from codesign import api
    from codesign.cli import progress, summaries

    try:
        with progress.bar(quiet=as_json) as tell:
            found = api.optimize(
                study,
                out,
                resume=resume,
                seed=seed,
                dry_run=dry_run,
                workspace=workspace,
                progress=tell,
                set=tuple(override or ()),
            )
    except KeyboardInterrupt as error:
        where = f" --out {out}" if out else ""
        raise arg.Interrupted(f"go on with: codesign optimize {study}{where} --resume") from error
    if dry_run:
        arg.answer(found, as_json, summaries.plan)
        return
    run = out or Path("runs") / found["name"]
    arg.answer(found, as_json, lambda summary: summaries.summary(summary, str(run), str(run / "report.html")))


def report(
    run: Run,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every chart as PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every chart as SVG.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every table as CSV.")] = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Write a run's report.html again, from its summary; export its charts and tables. No browser is needed."""
    from codesign import report as pages

    run = _folder(run, workspace)
    page = pages.write_report(run)
    files: list[Path] = []
    for kind, folder in (("png", png), ("svg", svg), ("csv", csv)):
        if folder is not None:
            files += pages.export(run, folder, (kind,))
    document = {"schema": "codesign.report/1", "report": str(page), "files": [str(path) for path in files]}
    arg.answer(document, as_json, _draw_report)


def _draw_report(document: dict[str, Any]) -> None:
    for path in (*document["files"], document["report"]):
        typer.echo(path)


def _folder(run: Path, workspace: Path | None) -> Path:
    """A run folder, in the workspace where it is not here."""
    if not run.exists() and workspace is not None:
        run = workspace / run
    if not run.is_dir():
        raise CodesignError("is no run folder", file=str(run), allowed="a folder written by 'codesign optimize'")
    return run
