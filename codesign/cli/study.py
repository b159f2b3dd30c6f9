"""``optimize``, ``status`` and ``report``: a study from its file to its pages."""

import time
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
    arg.add_command(app, status, "codesign status runs/tokens-per-megawatt", "watch codesign status runs/mine")
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
        bool,
        typer.Option(
            "--resume", metavar="", help="Go on from the run folder's last checkpoint; where there is none, begin."
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of the starts; the study's own where not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Check everything and say what would be done.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Chains of targets solved side by side; results stay the same.")
    ] = 2,
    override: arg.Set = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Search the mix of memory, fabric and compute that serves the most tokens per megawatt at each target TPOT.

    The run folder holds the frozen study, checkpoints, results and the report. A run that was stopped goes on with
    --resume and ends with the same result, bit for bit.

    A finished run is told again with --resume and run anew without it: the old one can then be read in the folder's
    previous/ until the new results are whole.
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
                workers=workers,
            )
    except KeyboardInterrupt as error:
        raise arg.Interrupted("what was solved is kept: give the same command again with --resume") from error
    if dry_run:
        arg.answer(found, as_json, summaries.plan)
        return
    run = out or Path("runs") / found["name"]
    arg.answer(found, as_json, lambda summary: summaries.summary(summary, str(run), str(run / "report.html")))


def status(run: Run, as_json: arg.Json = False, workspace: arg.Workspace = None) -> None:
    """Tell how far a study is, from outside: it may be running in another terminal, or have been stopped."""
    arg.answer(_progress(_folder(run, workspace)), as_json, _draw_status)


def _progress(run: Path) -> dict[str, Any]:
    """What a run folder says of its progress: what is solved from its results and checkpoints, times from its log."""
    from codesign.study import store
    from codesign.study.schema import load_study, plan

    if not (run / "study.toml").is_file():
        raise CodesignError("is no run folder", file=str(run), allowed="a folder written by 'codesign optimize'")
    total = plan(load_study(run / "study.toml").study)["problems"]
    solved, before, begun, last = 0, 0, None, None
    for event in store.read_log(run / "log.jsonl"):
        last = event
        if event["event"] in ("started", "resumed"):
            known = event.get("solved", 0)
            solved = before = known if isinstance(known, int) else 0
            begun = event["time"]
        elif event["event"] == "solved":
            solved += 1
    kept, damaged = store.solved_problems(run), store.damaged_results(run)
    state = "unfinished"
    if not damaged:
        state, solved = "finished", total
    elif (run / "summary.json").exists():
        state = "damaged"
    if damaged and kept is not None:
        solved = min(kept, total)
    remaining = None
    if state == "unfinished" and begun is not None and last is not None and solved > before:
        remaining = (last["time"] - begun) / (solved - before) * (total - solved)
    previous = run / store.PREVIOUS
    return {
        "schema": "codesign.status/1",
        "run": str(run),
        "state": state,
        "solved": solved,
        "problems": total,
        "damaged": damaged if state == "damaged" else [],
        "remaining_s": remaining,
        "last_event": str(last["event"]) if last else None,
        "last_event_age_s": time.time() - last["time"] if last else None,
        "report": str(run / "report.html") if (run / "report.html").is_file() else None,
        "previous": str(previous) if (previous / "summary.json").is_file() else None,
    }


def _draw_status(document: dict[str, Any]) -> None:
    typer.echo(
        f"{document['run']}: {document['state']}, {document['solved']} of {document['problems']} problems solved"
    )
    if document["state"] == "damaged":
        names = " and ".join(document["damaged"])
        typer.echo(f"missing or not as written: {names}; codesign optimize with --resume makes it again")
    if document["state"] == "unfinished":
        if document["last_event_age_s"] is not None:
            typer.echo(f"last news {document['last_event_age_s']:.0f} s ago: {document['last_event']}")
        if document["remaining_s"] is not None:
            typer.echo(f"about {document['remaining_s']:.0f} s of work left; a stopped run goes on with --resume")
    if document["report"]:
        typer.echo(f"report {document['report']}")
    if document["previous"]:
        typer.echo(f"the finished run that this one replaces is in {document['previous']}")


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
    try:
        page = pages.write_report(run)
    except CodesignError as error:
        if error.file != f"{run.name}/summary.json":
            raise
        file = str(run / "summary.json")  # with the folder as it was named, which may be ``.``
        raise CodesignError(error.problem, file=file, key=error.key, allowed=error.allowed) from error
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
