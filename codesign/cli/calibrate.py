"""``calibrate`` and ``validate``: fit the constants to measured tables and points, tell the error on measured ones."""

from pathlib import Path
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.errors import CodesignError

#: Numbers of lines that are told where some are left out.
LINES = 8

#: Words for quantities whose names are not clear.
QUANTITIES = {
    "tpot_s": "TPOT", "board_w": "board watts,", "board_w_at_measured_time": "board watts at measured time,",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    arg.add_command(
        app,
        calibrate,
        "codesign calibrate --measured tables --out mine/arch/measurements",
        "codesign calibrate --from aiconfigurator-core --out mine/arch/measurements",
    )
    arg.add_command(
        app,
        validate,
        "codesign validate",
        "codesign validate --points serving.csv --out predicted.csv",
        "codesign validate --points serving.csv --leave-out b200 --leave-out deepseek-v3",
        "codesign validate --points kernels-gemm.csv --json",
    )


def calibrate(
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="DIR", help="Folder with measured kernel tables and serving points."),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option("--from", metavar="PACKAGE", help="Kernel tables of an installed package: aiconfigurator-core."),
    ] = None,
    chip: Annotated[
        list[str] | None,
        typer.Option("--chip", metavar="NAME", help="Of the package: a chip to read, again for more."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, metavar="N", help="Of the package: lines per table, chip, kernel and format."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for the fitted constants: a catalog's arch/measurements, which is the default for a folder "
            "of tables; a package's need one named.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TEXT", help="What the tables are, for the source of every fitted number."),
    ] = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Fit kernel constants to kernel tables, then what serving adds to serving points: minutes.

    Writes constants by chip, their covariances and the errors on what was held back.  Kernel tables come from a folder,
    or with --from from the installed package, sampled and split by a hash of each line; serving points from the folder.
    """
    from datetime import UTC, datetime
    from tempfile import TemporaryDirectory

    from codesign.calibration import serving
    from codesign.calibration.validate import calibrate as of_kernels
    from codesign.calibration.validate import placed_in
    from codesign.files import write_whole
    from codesign.runtime import prepare

    if measured is None and package is None:
        raise CodesignError("needs tables", key="--measured", allowed="a folder, or --from aiconfigurator-core")
    if measured is not None and not measured.is_dir():
        raise CodesignError("is no folder", file=str(measured), key="--measured", allowed="a folder of CSV files")
    folder = _folder(out, workspace, package)
    served = {p: rows for p in sorted(measured.glob("*.csv")) if (rows := serving.read(p))} if measured else {}
    if len(served) > 1:
        names = ", ".join(p.name for p in served)
        raise CodesignError(f"{len(served)} serving tables: {names}", file=str(measured), allowed="one")
    prepare()
    today = datetime.now(UTC).date().isoformat()
    found: dict[str, Any] = {"schema": "codesign.calibration/1", "kernels": None, "serving": None}
    with TemporaryDirectory() as name:
        made = Path(name)  # what both fits write, put in place together at the end
        if package is not None:
            from codesign.calibration import aiconfigurator

            read = aiconfigurator.read(chip or aiconfigurator.CHIPS, most=most or aiconfigurator.MOST)
            lines = f"{most or aiconfigurator.MOST} lines per table, chip, kernel and format at most"
            told = f"codesign calibrate on {source or f'{aiconfigurator.NAME} {read.version}, {lines}'}, {today}"
            found["kernels"] = of_kernels(aiconfigurator.samples(read), made, told) | {"package": read.document()}
        elif chip or most:
            raise CodesignError("chooses lines of a package", key="--chip, --most", allowed="with --from")
        elif measured is not None and any(measured.glob("kernels-*.csv")):
            told = f"codesign calibrate on {source or f'{measured.name}/kernels-*.csv'}, {today}"
            found["kernels"] = of_kernels(placed_in(measured), made, told)
        for path, rows in served.items():
            kernels = made if found["kernels"] else folder
            told = f"codesign calibrate on {source or path.name}, {today}"
            found["serving"] = serving.calibrate(rows, made, told, kernels)
        if found["kernels"] is None and found["serving"] is None:
            raise CodesignError("nothing to fit", file=str(measured), allowed="kernel tables or serving points")
        write_whole({folder / p.name: p.read_bytes() for p in sorted(made.iterdir())})
        kinds = tuple(kind for kind, fit in (("kernels", found["kernels"]), ("served", found["serving"])) if fit)
        others = (p.name for p in folder.glob("*.toml") if p.stem.startswith(kinds) and not (made / p.name).exists())
        found["left"] = sorted(others)
    arg.answer(found, as_json, _fits)


def _folder(out: Path | None, workspace: Path | None, package: str | None) -> Path:
    """Where the constants go; those that ship were fitted to a folder of tables and are not written over unasked."""
    from codesign.calibration.aiconfigurator import NAME

    if package not in (None, NAME):
        raise CodesignError(f"no tables are read from {package!r}", key="--from", allowed=NAME)
    if out is not None:
        return out
    if workspace is not None:
        return workspace / "arch/measurements"
    if package is not None:
        raise CodesignError("needs a folder for the constants", key="--out", allowed="a folder, or --workspace")
    return Path("arch/measurements")


def validate(
    points: Annotated[
        Path | None, typer.Option("--points", metavar="FILE|DIR", help="Serving points or kernel tables, or a folder.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the serving points with predictions beside them."),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            "--leave-out", metavar="NAME", help="Refit without a chip or a model, or with both named, predict it."
        ),
    ] = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Predict measured points and tell the error, with the coverage of the intervals.

    Without points: the errors that the shipped constants were told with, on what was held back of the fit; and
    published figures of components and deployments, which no fit has seen.
    """
    from codesign.calibration import serving, store
    from codesign.calibration.validate import filed, is_kernel_table, joined
    from codesign.calibration.validate import validate as of_kernels
    from codesign.runtime import prepare

    prepare()
    if points is None:
        if out or leave_out:
            raise CodesignError("needs points", key="--points", allowed="a file or a folder")
        from codesign.calibration.components import components
        from codesign.study.checks import published_checks

        seen = {"components": components(workspace), "single_user": published_checks(workspace)}
        arg.answer(serving.told(store.bundled(workspace, "serving")) | seen, as_json, _told)
        return
    tables = [points] if points.is_file() else sorted(points.glob("*.csv")) if points.is_dir() else []
    served = {path: rows for path in tables if (rows := serving.read(path))}
    if out is not None and len(served) != 1:
        what = f"holds {len(served)} serving tables" if points.is_dir() else "is no serving table"
        if points.exists():
            raise CodesignError(what, file=str(points), key="--out", allowed="one, to write predictions beside")
    document: dict[str, Any] | None = None
    if not served or (len(served) < len(tables) and any(is_kernel_table(p) for p in tables if p not in served)):
        if leave_out and len(leave_out) > 1:
            raise CodesignError("kernel tables have no models", key="--leave-out", allowed="one chip")
        document = of_kernels(points, folder=store.bundled(workspace), leave_out=leave_out[0] if leave_out else None)
    folder = store.bundled(workspace, "serving")
    for path, rows in served.items() if document is None or not leave_out else ():
        found, text = serving.validate(rows, folder=folder, leave_out=leave_out or ())
        if out is not None:
            from codesign.files import write_text

            write_text(out, text)
        if points.is_dir():
            found = filed(found, path.name)
        document = found if document is None else joined(document, found)
    title = "predicted against measured, serving" if points.is_file() and served else "predicted against measured"
    arg.answer(document or {}, as_json, lambda d: _draw(d, title))


def _fits(document: dict[str, Any]) -> None:
    from codesign.cli import tables

    for name in ("kernels", "serving"):
        if document[name]:
            _draw(document[name], f"{name}: {document[name]['numbers']} numbers fitted, error on lines")
            if "package" in document[name]:
                _package(document[name]["package"])
    if document["left"]:
        words = f"left as an earlier fit wrote them, no line here is of theirs: {', '.join(document['left'])}"
        tables.console().print(words, markup=False, soft_wrap=True)


def _package(read: dict[str, Any]) -> None:
    """Lines of a package that were read, and those that were not by reason."""
    from codesign.cli import tables

    out = tables.console()
    out.print(f"{read['name']} {read['version']}: {read['taken']:,} of {read['rows']:,} lines taken")
    reasons: dict[tuple[str, str], int] = {}
    for left in read["left_out"]:
        for what in ("rows", "files"):
            if left.get(what):
                reasons[left["reason"], what] = reasons.get((left["reason"], what), 0) + left[what]
    for (reason, what), n in sorted(reasons.items(), key=lambda x: -x[1]):
        out.print(f"{n:,} {'lines' if what == 'rows' else what} left out: {reason}", markup=False, soft_wrap=True)


def _told(document: dict[str, Any]) -> None:
    from codesign.cli import tables

    out = tables.console()
    rows = [("kernels", name, "", f"{100 * value:.1f}", "", "") for name, value in document["kernels"].items()]
    rows += [("serving", f"held back: {g['quantity']}", *_shares(g)) for g in document["serving"]["check"]]
    limits = [g for g in document["serving"].get("limits", ()) if g["quantity"] == "tpot_s"]
    rows += [("serving", f"of these TPOT goes most by {g['by']['limited_by']}", *_shares(g)) for g in limits]
    rows += [("serving", f"{g['by']} left out: {g['name']}", *_shares(g)) for g in document["serving"]["left_out"]]
    heads = ("", "", "n", "median %", "mean %", "bias %")
    out.print(tables.table("error of the shipped constants on what they have not seen", heads, rows, left=2))
    seen = document["components"] + [row | {"told": row["terms"]} for row in document["single_user"]]
    rows = [
        (r["name"], f"{r['predicted']:,.0f}", f"{r['published']:,.0f} {r['unit']}", f"{r['ratio']:.2f}") for r in seen
    ]
    heads = ("published, seen by no fit", "predicted", "published", "ratio")
    out.print(tables.table("components, deployments and single users", heads, rows))
    for r in seen:
        out.print(f"{r['name']}: {r['told']}", markup=False, soft_wrap=True)


def _shares(g: dict[str, Any]) -> tuple[str, ...]:
    return f"{g['n']:,}", *(f"{100 * g[k]:.1f}" for k in ("median_ape", "mean_ape", "bias"))


def _draw(document: dict[str, Any], title: str) -> None:
    from codesign.cli import tables

    rows = []
    for g in document["groups"]:
        by = g["by"]
        names = ("hardware", "model", "framework", "concurrency", "limited_by", "group", "table", "operation")
        where = " ".join(f"concurrency {by[k]}" if k == "concurrency" else by[k] for k in names if k in by)
        quantity = QUANTITIES.get(g["quantity"], g["quantity"])
        shares = (f"{100 * g[k]:.1f}" for k in ("median_ape", "mean_ape", "p90_ape", "bias"))
        inside = f"{100 * g['coverage_90']:.0f}" if g.get("coverage_90") is not None else "–"
        rows.append((by.get("split", "all"), f"{quantity} {where}".strip(), f"{g['n']:,}", *shares, inside))
    heads = ("split", "", "n", "median %", "mean %", "P90 %", "bias %", "in interval %")
    out = tables.console()
    if rows:
        out.print(tables.table(title, heads, rows, left=2))
    else:
        out.print(f"{document['placed']} of {document['rows']} points predicted; no measured times to compare with")
    reasons: dict[str, list[int]] = {}
    for u in document["unplaced"]:
        reasons.setdefault(u["reason"], []).append(u["row"])
    notes: dict[str, list[int]] = {}
    for u in document.get("assumed", ()):
        for note in u["reason"].split("; "):
            notes.setdefault(note, []).append(u["row"])
    if beyond := [u["row"] for u in document.get("beyond_memory", ())]:
        some = ", ".join(str(n) for n in beyond[:LINES]) + (", ..." if len(beyond) > LINES else "")
        out.print(f"{len(beyond):,} predicted although the model does not fit there (line {some})", soft_wrap=True)
    for told, by in (("predicted", notes), ("left out", reasons)):
        for reason, lines in by.items():
            some = ", ".join(str(n) for n in lines[:LINES]) + (", ..." if len(lines) > LINES else "")
            what = f"{len(lines):,} lines" if len(lines) > 1 else "1 line"
            out.print(f"{what} {told} (line {some}): {reason}", markup=False, soft_wrap=True)
    if "files" in document:
        own = document["chip_specific_numbers"]
        out.print(f"{own} numbers belong to one chip; wrote {', '.join(document['files'])}")
