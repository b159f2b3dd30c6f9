"""``verify``: counts against executed layers, this device as a machine, derivatives against differences."""

from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.glossary import VERIFY

Measure = Annotated[
    bool, typer.Option("--measure", metavar="", help="Time layers on this device and predict them from its rates.")
]
Gradients = Annotated[
    bool, typer.Option("--gradients", metavar="", help="Check derivatives against central differences.")
]


def register(app: typer.Typer) -> None:
    """Add this module's command to the program."""
    arg.add_command(
        app, verify, "codesign verify", "codesign verify --model deepseek-v3", "codesign verify --measure",
        "codesign verify --gradients --json",
    )  # fmt: skip


def verify(
    model: arg.Model = "kimi-k3",
    arch: arg.Arch = "gb200-nvl72",
    measure: Measure = False,
    gradients: Gradients = False,
    phase: arg.Phase = "decode",
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Hold the counts against executed layers: the model made small, split over 8 devices, compiled and run.

    Matmul FLOP and collective bytes of every operation must agree exactly, and every layer that is split must answer as
    it does on one device; exit code 1 where one does not. With --measure, this device is measured and its layers' times
    are predicted; with --gradients, derivatives in --phase at random machines around --arch are held against
    differences, exit code 1 above 1e-5 of the gradient's norm.
    """
    from codesign import catalog

    name = catalog.load_model_file(model, workspace).name  # a wrong name is told here, in one line
    document: dict[str, Any] = {"schema": VERIFY, "model": name, "counts": None, "measure": None, "gradients": None}
    ok = True
    if measure or not gradients:
        from codesign.reference.processes import ask

        if measure:
            document["measure"] = ask({"task": "measure"}, devices=None)
        else:
            where = None if workspace is None else str(workspace)
            document["counts"] = ask({"task": "counts", "model": name, "workspace": where})
            ok = document["counts"]["exact"]
    if gradients:
        from codesign.runtime import prepare

        prepare()
        from codesign.reference.derivatives import check

        document["gradients"] = check(arch, name, phase, workspace=workspace)
        ok = ok and document["gradients"]["within"]
    document["ok"] = ok
    arg.answer(document, as_json, _draw)
    if not ok:
        raise typer.Exit(1)


def _draw(document: dict[str, Any]) -> None:
    if document["counts"]:
        _draw_counts(document["counts"])
    if document["measure"]:
        _draw_measure(document["measure"])
    if document["gradients"]:
        _draw_gradients(document["gradients"])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value else ""


def _ratio(pair: dict[str, float | None]) -> str | None:
    compiled, counted = pair["compiled"], pair["counted"]
    return f"{compiled / counted:.2f}" if compiled is not None and counted else None


def _draw_counts(counts: dict[str, Any]) -> None:
    from codesign.cli import tables

    out = tables.console()
    rows = []
    for row in counts["operations"]:
        flop, sent = row["flop"], row["sent_bytes"]
        off = (flop["compiled"] - flop["counted"], sent["compiled"] - sent["counted"])
        difference = row["status"] if row["status"] != "differs" else f"differs by {off[0]:g} FLOP, {off[1]:g} B"
        rows.append(
            (
                row["block"], row["split"], row["operation"], _number(flop["compiled"]), _number(flop["counted"]),
                _number(flop["spent"] or 0.0), _number(sent["compiled"]), _number(sent["counted"]), difference,
            )
        )  # fmt: skip
    columns = ("block", "split", "operation", "FLOP compiled", "counted", "spent", "bytes compiled", "counted", "")
    title = f"{counts['model']} made small: matmul FLOP and bytes sent per chip"
    out.print(tables.table(title, columns, rows, left=3, text=("",)))
    rows = [
        (
            program["block"], program["split"], f"{program['deviation']:.1e}", _ratio(program["elementwise"]),
            _ratio(program["bytes"]),
        )
        for program in counts["programs"]
    ]  # fmt: skip
    columns = ("block", "split", "split against one device", "elementwise", "bytes")
    out.print(tables.table("Beside the products: compiled over counted", columns, rows, left=2))
    for entry in counts["not_executed"]:
        out.print(f"not executed: {entry['what']} ({entry['kind']}), {entry['reason']}", soft_wrap=True)
    for note in counts["notes"]:
        out.print(note, soft_wrap=True)
    verdict = "every operation agrees" if counts["exact"] else "NOT ALL AGREE"
    out.print(f"[bold]{verdict}[/bold]: {len(counts['operations'])} operations, {len(counts['programs'])} programs")


def _draw_measure(found: dict[str, Any]) -> None:
    from codesign.cli import tables

    out, rates, fitted = tables.console(), found["rates"], found["fitted"]
    told = (
        ("copy bandwidth", f"{rates['copy_bytes_per_s'] / 1e9:.1f} GB/s"),
        ("float32 matrix product", f"{rates['matmul_flop_per_s'] / 1e9:.1f} GFLOP/s"),
        ("exponentials", f"{rates['exponentials_per_s'] / 1e9:.2f} G/s"),
        ("one dependent kernel", f"{rates['launch_s'] * 1e6:.2f} µs"),
        ("start of a program", f"{rates['start_s'] * 1e6:.1f} µs"),
        ("fitted: share of the product's rate", f"{fitted['products']:.2f}"),
        ("fitted: rows at half of it", f"{fitted['rows_half']:.1f}"),
        ("fitted: share in a scan", f"{fitted['scan']:.3f}"),
    )
    out.print(tables.table(f"This device ({found['device']['kind']})", ("", "measured"), told))
    rows = [
        (
            row["kind"], row["size"], f"{row['layers']}", "held out" if row["held_out"] else "fitted",
            f"{row['measured_s'] * 1e3:.2f}", f"{row['predicted_s'] * 1e3:.2f}", f"{row['error']:+.0%}",
        )
        for row in found["layers"]
    ]  # fmt: skip
    columns = ("layers", "size", "stacked", "use", "measured ms", "predicted ms", "error")
    out.print(tables.table("Layers, predicted from the rates above", columns, rows, left=2, text=("use",)))
    held = found["held_out"]
    out.print(
        f"[bold]median error {held['median_ape']:.1%}[/bold], worst {held['worst_ape']:.0%}, "
        f"on {held['n']} sizes that were not fitted"
    )


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


def _draw_gradients(found: dict[str, Any]) -> None:
    from codesign.cli import tables

    rows = (
        ("designs", f"{found['designs']}"),
        ("numbers of the machine", f"{found['numbers']}"),
        ("set aside at a kink", f"{found['kinked']}"),
        ("worst error, of the gradient's norm", _error(found["worst"])),
        ("median error", _error(found["median"])),
        ("allowed", f"{found['bar']:.0e}"),
    )
    title = f"Derivatives of log tokens/s/MW against central differences, {found['model']} around {found['arch']}"
    tables.console().print(tables.table(title, ("", ""), rows))
