"""``bench``, ``init`` and ``doctor``: how fast it is, a catalog of one's own, whether this installation works."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from codesign.cli import arguments as arg
from codesign.errors import CodesignError

#: What must be there to predict, search and report: name to import, and name of the distribution.
NEEDED = {
    "jax": "jax", "equinox": "equinox", "optax": "optax",
    "orbax.checkpoint": "orbax-checkpoint", "pydantic": "pydantic", "pint": "pint", "scipy": "scipy",
    "flax": "flax", "polars": "polars", "altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2",
}  # fmt: skip

#: What some commands can use: import name, and what for.
OPTIONAL = {"ray": "studies over a cluster", "cmaes": "search controls", "optuna": "search controls"}


class Check(NamedTuple):
    """One thing that ``doctor`` looked at: ``ok`` is None for what is welcome but not needed."""

    name: str
    ok: bool | None
    found: str


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    arg.add_command(app, bench, "codesign bench", "codesign bench --model deepseek-v3 --arch h200 --json")
    arg.add_command(
        app,
        init,
        "codesign init mine",
        "codesign evaluate --workspace mine --arch gb200-nvl72 --model kimi-k3 --context 128Ki",
    )
    arg.add_command(app, doctor, "codesign doctor", "codesign doctor --workspace mine --json")


def version() -> str:
    """The installed version of this program."""
    from importlib import metadata

    try:
        return metadata.version("codesign")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def bench(
    arch: arg.Arch = "gb200-nvl72",
    model: arg.Model = "kimi-k3",
    phase: arg.Phase = "decode",
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Measure evaluations per second and the cost of their gradient, on all cores, warm: about half a minute."""
    from codesign.bench import bench as measure

    arg.answer(measure(arch, model, phase, workspace=workspace), as_json, _draw_bench)


def _draw_bench(document: dict[str, Any]) -> None:
    from codesign.cli import tables

    rows = [
        ("evaluations per second", f"{document['evaluations_per_second']:,.0f}"),
        ("evaluations per second, ideal", f"{document['evaluations_per_second_ideal']:,.0f}"),
        ("value and gradient over value", f"{document['gradient_cost_ratio']:.2f} ×"),
        ("compilation", f"{document['compile_s']:.2f} s"),
        ("reference: float64 matrix product", f"{document['reference_gflops']:.0f} GFLOP/s"),
    ]
    what = f"{document['model']} {document['phase']} around {document['arch']}"
    title = f"{what}, {document['count']:,} points, best of its runs"
    tables.console().print(tables.table(title, ("", "measured"), rows))


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or one without a catalog.")],
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Make a catalog of your own: a copy of the bundled arch/, workloads/ and optimize/, to change and add to.

    Commands run inside it, or with --workspace DIR, look there first and then in the bundled catalog, so that files you
    delete are still found.
    """
    from codesign.catalog import init_workspace

    if workspace is not None:
        directory = workspace / directory
    files = init_workspace(directory)
    document = {
        "schema": "codesign.init/1",
        "workspace": str(directory),
        "files": [path.relative_to(directory.expanduser()).as_posix() for path in files],
    }
    arg.answer(document, as_json, _draw_init)


def _draw_init(document: dict[str, Any]) -> None:
    directory = document["workspace"]
    typer.echo(f"{directory}: {len(document['files'])} files in arch/, workloads/ and optimize/")
    typer.echo(f"next: edit a copy in {directory}/arch/systems, then codesign list arch --workspace {directory}")


def doctor(as_json: arg.Json = False, workspace: arg.Workspace = None) -> None:
    """Check this installation: Python, libraries, float64, compilation, every file of the catalog.

    Exit code 1 where something that is needed does not work.
    """
    checks = [*_environment(), *_arithmetic(), *_catalog(workspace)]
    ok = all(check.ok is not False for check in checks)
    document = {"schema": "codesign.doctor/1", "ok": ok, "checks": [check._asdict() for check in checks]}
    arg.answer(document, as_json, _draw_doctor)
    if not ok:
        raise typer.Exit(1)


def _environment() -> Iterator[Check]:
    """Python and the libraries, each imported, since an import is what fails on a broken installation."""
    from importlib import import_module, metadata, util

    yield Check("codesign", True, version())
    yield Check("python", sys.version_info >= (3, 11), sys.version.split()[0])
    for module, distribution in NEEDED.items():
        try:
            import_module(module)
            yield Check(distribution, True, metadata.version(distribution))
        except (ImportError, OSError) as error:
            yield Check(distribution, False, f"{error}; install codesign again")
    for module, purpose in OPTIONAL.items():
        there = util.find_spec(module) is not None
        yield Check(module, None, metadata.version(module) if there else f"absent ({purpose})")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    yield Check("browser", None, Path(browser).name if browser else "absent (only a test opens reports in one)")


def _arithmetic() -> Iterator[Check]:
    """Devices, float64 and a compilation."""
    try:
        import jax
        import jax.numpy as jnp

        from codesign.runtime import prepare

        prepare()
        yield Check("devices", True, ", ".join(sorted({d.platform for d in jax.devices()})))
        dtype = jnp.asarray(1.0).dtype
        yield Check("float64", dtype == jnp.float64, str(dtype))
        start = time.perf_counter()
        right = float(jax.jit(lambda x: jnp.sum(x * x))(jnp.arange(4.0))) == 14.0
        yield Check("compilation", right, f"{time.perf_counter() - start:.2f} s")
    except (ImportError, RuntimeError) as error:
        yield Check("compilation", False, " ".join(str(error).split())[:200])


def _catalog(workspace: Path | None) -> Iterator[Check]:
    """Every file, validated, with the files that it refers to."""
    from codesign import catalog
    from codesign.study.schema import load_study

    loaders: dict[str, Callable[..., Any]] = {"system": catalog.load_system, "study": load_study}
    counted = 0
    for entry in catalog.list_catalog(None, workspace, strict=False):
        try:
            if entry.kind in loaders:
                loaders[entry.kind](entry.name, workspace)
            else:
                catalog.load_file(entry.kind, entry.name, workspace)
            counted += 1
        except CodesignError as error:
            yield Check(f"{entry.kind} {entry.name}", False, str(error))
    yield Check("catalog", counted > 0, f"{counted} files are sound")


def _draw_doctor(document: dict[str, Any]) -> None:
    from rich.text import Text

    from codesign.cli import tables

    words = {True: Text("ok", "green"), False: Text("fails", "red"), None: Text("optional", "dim")}
    rows = [(check["name"], words[check["ok"]], check["found"]) for check in document["checks"]]
    out = tables.console()
    out.print(tables.table("this installation", ("", "", "found"), rows, left=3))
    out.print("all that is needed works" if document["ok"] else "something that is needed does not work")
