"""The package as a user gets it: README, needs and pins, and nothing that belongs to one machine."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)(?: ; python_version (<|>=) \"3\.12\")?$")


def _pins() -> dict[str, list[tuple[str, str | None]]]:
    pins: dict[str, list[tuple[str, str | None]]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = PIN.fullmatch(line)
            assert match, f"not a pin: {line}"
            pins.setdefault(match[1], []).append((match[2], match[3]))
    return pins


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_first_screen_of_the_readme_has_the_two_commands() -> None:
    first = "\n".join(README.splitlines()[:30])
    assert re.search(r"^make run\b", first, re.MULTILINE)
    assert re.search(r"^make test\b", first, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "test-slow", "lint", "bench", "clean"} <= set(targets)


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - the example that users copy
    told = capsys.readouterr().out
    rate = re.search(r"^([\d,]+) tokens/s/MW$", told, re.MULTILINE)
    assert rate and int(rate[1].replace(",", "")) > 0
    assert told.count("bound by") == 3


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "docs/glossary.md"):
        path = ROOT / document
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{document} links to {target}"


def test_the_glossary_page_is_that_of_the_code() -> None:
    page = runpy.run_path(str(ROOT / "docs/render_glossary.py"))["render"]()
    assert page == (ROOT / "docs/glossary.md").read_text(), "make docs"


def test_every_need_is_bounded_and_pinned_within_its_bounds() -> None:
    pins = _pins()
    needs = [*PROJECT["dependencies"], *(n for group in PROJECT["optional-dependencies"].values() for n in group)]
    for need in needs:
        match = re.match(r"([A-Za-z0-9-]+)(?:\[[a-z]+\])?(?:>=([\d.]+),<([\d.]+))?", need)
        assert match, need
        name, low, high = match[1].lower(), match[2], match[3]
        if name == "codesign":
            continue
        assert low and high, f"{need} is not bounded"
        for version, _ in pins[name]:
            assert _release(low) <= _release(version) < _release(high), f"{name} {version} against {need}"


#: Distributions whose module has another name.
MODULES = {"orbax-checkpoint": "orbax", "vl-convert-python": "vl_convert", "pydantic-core": "pydantic_core"}


def test_what_the_code_imports_is_what_the_package_needs() -> None:
    imported = set()
    for path in (ROOT / "codesign").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.partition(".")[0])
    imported -= {*sys.stdlib_module_names, "codesign"}
    needed = {re.match(r"[a-z0-9-]+", need)[0] for need in PROJECT["dependencies"]}  # type: ignore[index]
    modules = {MODULES.get(name, name) for name in needed}
    optional = {"ray", "cmaes", "optuna", "aiconfigurator_core"}
    # pydantic-core is pydantic's own, pinned by it to one version; jaxlib is jax's.
    assert imported - modules - optional <= {"pydantic_core"}
    # jax.export writes programs with flatbuffers, without which jax installs.
    programs = (ROOT / "codesign/programs.py").read_text(encoding="utf-8")
    lent = {"flatbuffers"} if "from jax import export" in programs else set()
    assert modules - lent <= imported


def test_pins_serve_both_the_oldest_and_newer_pythons() -> None:
    for name, versions in _pins().items():
        marks = sorted(mark or "" for _, mark in versions)
        assert marks in ([""], ["<", ">="]), f"{name} is pinned for some Python versions only"
    # jax 0.10 is the last that Python 3.11 can have.
    oldest = next(version for version, mark in _pins()["jax"] if mark == "<")
    assert _release(oldest)[:2] == (0, 10)


def test_version_is_told_once_everywhere() -> None:
    version = PROJECT["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def _sources() -> list[Path]:
    folders = ("arch", "codesign", "docs", "optimize", "tests", "workloads", ".ci")
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.iterdir() if p.is_file()]
    return [p for p in files if p.suffix not in (".pyc", ".png", ".parquet", ".npz") and p.name != "LICENSE"]


def test_no_path_of_a_machine_and_no_package_index_stands_in_the_tree() -> None:
    # Put together here, so that this file does not hold what it looks for.
    homes = re.compile("(^|[^A-Za-z0-9_.])/(" + "|".join(("home", "work", "root", "Users")) + ")/")
    index = re.compile("-" + "-(extra-)?index" + "-url|/" + "simple/")
    for path in _sources():
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            assert not homes.search(line), f"{path.relative_to(ROOT)}: {line.strip()[:80]}"
            assert not index.search(line), f"{path.relative_to(ROOT)}: {line.strip()[:80]}"


def test_the_accuracy_in_the_readme_is_that_of_the_fits() -> None:
    placed = runpy.run_path(str(ROOT / "docs/render_accuracy.py"))["placed"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert placed(readme) == readme, "make docs"


def test_rows_of_the_accuracy_beyond_their_bar_are_marked() -> None:
    number = r"(?:([\d.]+) %)?"
    row = rf"^\| ([a-z][^|]*): [^|]* \|[^|]*\| {number} \| ?{number} \| (\*\*missed\*\*: )?(\d+) %(?: / (\d+) %)? \|$"
    bars = {
        "kernels held back": "15",
        "serving, points of a chip left out": "15",
        "serving, points of a model left out": "20",
    }
    rows = re.findall(row, README, re.MULTILINE)
    missed = 0
    for words, median, mean, marked, bar, mean_bar in rows:
        beyond = float(median) > float(bar) or bool(mean_bar and float(mean) > float(mean_bar))
        assert bool(marked) == beyond, words
        assert bar == bars.get(words, bar), words
        missed += beyond
    assert ("9", "12") in {(bar, mean_bar) for *_, bar, mean_bar in rows}
    assert f"Bars missed: {missed} of {len(rows)}" in README
    table = README.split("| predicted against measured", 1)[1].split("\n\n", 1)[0]
    # Rows that say where the error sits have no bar.
    kinds = [line for line in table.splitlines() if "that goes most by" in line]
    assert kinds and all(line.endswith("|  |") for line in kinds)
    assert len(rows) + len(kinds) == table.count("\n") - 1


def test_modules_stay_readable_in_one_sitting() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in (ROOT / "codesign").rglob("*.py")}
    assert lengths
    for path, length in lengths.items():
        assert length <= 600, f"{path.relative_to(ROOT)} has {length} lines"


#: Modules and packages in the order in which data flows; none imports one further right.
STREAM = (
    "lanes", "errors", "units", "glossary", "numerics", "runtime", "files", "programs", "catalog", "machine",
    "precision", "fabric", "routing_tables", "routing", "routing_reference", "routing_copies", "routing_capacity",
    "routing_choices", "layers", "model", "work", "execution", "power", "power_fit", "technology", "design",
    "buildable", "mapping", "residency", "objective", "evaluation", "calibration", "comparison", "bench", "reference",
    "search", "study", "report", "tools", "api", "cli",
)  # fmt: skip


def _imports(path: Path) -> set[str]:
    """Names of this package's modules that a file imports, but for those that only type checkers see."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "codesign":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codesign."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("codesign.")}
    return found


def test_data_flows_one_way() -> None:
    rank = {name: i for i, name in enumerate(STREAM)}
    homes = {p.relative_to(ROOT / "codesign").parts[0].removesuffix(".py") for p in (ROOT / "codesign").rglob("*.py")}
    assert homes == {*STREAM, "__init__"}
    # The one step from files to what JAX computes with: it stands between the catalog and the machine.
    steps = {"catalog/build.py": "machine"}
    for path in (ROOT / "codesign").rglob("*.py"):
        inside = path.relative_to(ROOT / "codesign")
        home = steps.get(inside.as_posix(), inside.parts[0].removesuffix(".py"))
        if home == "__init__":  # the package itself: the API, loaded when it is asked for
            continue
        # Names that are no module are those of the package, such as its version.
        for name in _imports(path) & homes:
            assert rank[name] <= rank[home], f"{path.relative_to(ROOT)} imports codesign.{name}"


def test_the_flow_that_contributors_read_is_that_of_the_code() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## How the code flows", 1)[1].split("```")[1]
    assert re.split(r"[,\s→]+", told.strip()) == list(STREAM)


def test_help_list_and_show_need_no_array_library() -> None:
    for command in (["--help"], ["list"], ["show", "b200"], ["evaluate", "--help"]):
        script = (
            "import sys; from codesign.cli import run; run(sys.argv[1:]); "
            "sys.exit(any(m in sys.modules for m in ('jax', 'polars', 'altair', 'orbax', 'scipy')))"
        )
        done = subprocess.run([sys.executable, "-c", script, *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout
