"""Studies: what is refused, what is frozen, and what is planned."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import killing
import pytest
from studies import FULL, STUDY, same

from codesign.api import optimize
from codesign.errors import CodesignError
from codesign.study import run as running
from codesign.study.problems import Solver, Spec
from codesign.study.schema import load_study

# ---------------------------------------------------------------------------------------------------------- refusals


def test_what_a_run_refuses(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tmp_path / "done"
    running.run_study(quick, done)
    before = {p: p.read_bytes() for p in done.rglob("*") if p.is_file()}

    def refused(match: str, *args: Any, **options: Any) -> None:
        with pytest.raises(CodesignError, match=match) as caught:
            running.run_study(*args, **options)
        assert "\n" not in str(caught.value)

    # Another seed, another question, another catalog.
    refused("not the one this run was started with", quick, done, resume=True, seed=7)
    refused("not the one", quick, done, resume=True, overrides=("study.search.steps=9",))
    other = tmp_path / "other.toml"
    other.write_text(killing.STUDY.replace('"5 ms"', '"6 ms"'))
    refused("not the one", other, done, resume=True)
    monkeypatch.setattr(killing.Quick, "fingerprint", lambda self: "changed")
    refused("catalog have changed", quick, done, resume=True)
    monkeypatch.undo()
    assert {p: p.read_bytes() for p in done.rglob("*") if p.is_file()} == before
    # The same question in other words of the file is the same study.
    monkeypatch.setattr(running, "Solver", killing.Quick)
    monkeypatch.setattr(running, "summary_of", killing.summary)
    other.write_text("# A comment.\n" + killing.STUDY.replace('"5 ms"', '  "5 ms"'))
    running.run_study(other, done, resume=True)
    # Places that are none.
    file = tmp_path / "file"
    file.write_text("x")
    refused("is a file", quick, file)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    refused("not empty and is no run folder", quick, tmp_path / "full")
    refused("not empty and is no run folder", quick, tmp_path / "full", resume=True)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    refused("cannot be written", quick, file / "below")
    half = unfinishing(done, tmp_path / "half")
    refused("holds an unfinished run", quick, half)
    (half / "environment.json").write_text("{")
    refused("not the one", quick, half, resume=True)
    # An empty folder is a place; so is one that is not there yet, below folders that are not there either.
    (tmp_path / "empty").mkdir()
    running.run_study(quick, tmp_path / "empty")
    running.run_study(quick, tmp_path / "a" / "b", resume=True)
    same(tmp_path / "a" / "b", tmp_path / "empty")


def unfinishing(of: Path, to: Path) -> Path:
    shutil.copytree(of, to)
    (to / "summary.json").unlink()
    return to


def test_the_frozen_study_says_what_was_run(quick: Path, tmp_path: Path) -> None:
    changed = ("study.search.steps=9", 'study.targets=["7 ms", "9 ms"]')
    running.run_study(quick, tmp_path / "run", overrides=changed)
    frozen = load_study(tmp_path / "run" / "study.toml").study
    assert frozen.search.steps == 9
    assert frozen.targets_s == [0.007, 0.009]
    assert [p.name for p in frozen.precisions] == ["one", "two"]
    # It is the study that the run goes on with.
    (tmp_path / "run" / "summary.json").unlink()
    running.run_study(tmp_path / "run" / "study.toml", tmp_path / "run", resume=True)
    # All that can be said survives.
    path = tmp_path / "full.toml"
    path.write_text(FULL)
    loaded = load_study(path, overrides=("study.seed=11",))
    path.write_text(loaded.text)
    assert load_study(path).study.model_dump() == loaded.study.model_dump()
    assert load_study(path).study.seed == 11


def test_the_catalog_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    """Any number that answers rest on moves the fingerprint; a price tag of another part does not."""
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY)
    study = load_study(path).study
    before = Solver(study, None, 0).fingerprint()
    assert Solver(study, None, 5).fingerprint() == before
    source = Path(__file__).parents[1] / "arch"
    for kind, name, old, new in (
        ("memories", "hbm4", "GB", "GB"),
        ("memories", "hbm4", 'heat_limit = { value = "1.0', 'heat_limit = { value = "1.1'),
        ("accelerators", "b200", 'static_power = { value = "137', 'static_power = { value = "138'),
        ("accelerators", "h100", 'static_power = { value = "71.8', 'static_power = { value = "72'),
    ):
        workspace = tmp_path / f"{name}-{old[:6].strip()}"
        (workspace / "arch" / kind).mkdir(parents=True)
        text = (source / kind / f"{name}.toml").read_text()
        assert old in text
        (workspace / "arch" / kind / f"{name}.toml").write_text(text.replace(old, new, 1))
        moved = Solver(study, workspace, 0).fingerprint() != before
        assert moved == (old != new and name != "h100"), (kind, name)


BAD: list[tuple[str, str, str]] = [
    ('model = "gpt-oss-120b"', 'model = "gpt-oss-12b"', "unknown model"),
    ('technologies = ["hbm4"]', 'technologies = ["hbm9"]', "unknown memory"),
    ('technologies = ["hbm4"]', "technologies = []", "technologies"),
    ('technologies = ["hbm4"]', 'technologies = ["hbm4", "hbm4"]', "technologies: .*twice"),
    ('machines = ["b200"]', 'machines = ["b201"]', "unknown system"),
    ('machines = ["b200"]', 'machines = ["b200", "b200"]', "machines: .*twice"),
    ('machines = ["b200"]', "machines = 5", "machines"),
    ('"20 ms", ', '"20 GB", ', "targets.0"),
    ('"20 ms", ', '"20", ', "targets.0"),
    ('"20 ms", ', '"", ', "targets.0"),
    ('"20 ms", ', '"0 ms", ', "targets.0: .*not above zero"),
    ('"20 ms", ', '"-3 ms", ', "targets.0"),
    ('"20 ms", ', '"nan ms", ', "targets.0"),
    ('"20 ms", ', '"inf s", ', "targets.0"),
    ('"20 ms", ', '"1e999 s", ', "targets.0"),
    ('"20 ms", ', '"1e300 s", ', "targets.0: '1e300 s' is out of bounds .allowed: 1 us to 1000 s"),
    ('"20 ms", ', '"0.9 us", ', "targets.0: .*out of bounds"),
    ('"20 ms", ', '"-5 ms", ', "targets.0: .*negative .allowed: 1 us to 1000 s"),
    ('"20 ms", ', "true, ", "targets.0: is no quantity .allowed: a quantity, e.g. "),
    ('contexts = ["8Ki", "32Ki"]', "contexts = [1e30]", "contexts.0: .*out of bounds .allowed: 1 to 100,000,000"),
    ('contexts = ["8Ki", "32Ki"]', "contexts = [0.5]", "contexts.0: .*out of bounds"),
    ('contexts = ["8Ki", "32Ki"]', "contexts = [[8]]", "contexts.0: is a list .allowed: a quantity"),
    ('contexts = ["8Ki", "32Ki"]', "contexts = [-8]", "contexts.0: .*negative .allowed: 1 to"),
    ('name = "tiny"', 'name = "../../x"', "name: '../../x' is no name .allowed: letters, digits"),
    ('name = "tiny"', 'name = "a/b"', "name: .*is no name"),
    ('name = "tiny"', 'name = ".."', "name: .*is no name"),
    ('name = "published"', 'name = "../x"', "precisions.0.name: .*is no name"),
    ("max_chips = 8", f"max_chips = 8\nseed = {2**63}", "seed: .*out of bounds"),
    ("[search]", '[package]\npower = "1e300 W"\n[search]', "package.power: .*out of bounds"),
    ("[search]", '[package]\ndie_area = "1e300 m^2"\n[search]', "package.die_area: .*out of bounds"),
    ("[search]", '[sensitivity]\ncontext = "8Ki"\ntargets = ["1e300 s"]\n[search]', "sensitivity.targets.0: .*bounds"),
    ("[search]", '[sensitivity]\ncontext = 1e30\ntargets = ["5 ms"]\n[search]', "sensitivity.context: .*bounds"),
    ('"20 ms", ', '"0.2 ms", ', "targets: .*twice"),
    ('"20 ms", ', '"0.0002 s", ', "targets: .*twice"),
    ('contexts = ["8Ki", "32Ki"]', 'contexts = ["8Ki", 8192]', "contexts: .*twice"),
    ('contexts = ["8Ki", "32Ki"]', "contexts = [0]", "contexts.0"),
    ('contexts = ["8Ki", "32Ki"]', 'contexts = ["8 GB"]', "contexts.0"),
    ('contexts = ["8Ki", "32Ki"]', "contexts = []", "contexts"),
    ("starts = 1", "starts = 0", "search.starts"),
    ("starts = 1", "starts = 1.5", "search.starts"),
    ("steps = 2", "stepps = 2", "search.stepps"),
    ("max_chips = 8", "max_chip = 8", "max_chip"),
    ("max_chips = 8", "max_chips = 0", "max_chips"),
    ("max_chips = 8", "max_chips = 8\nskew = nan", "skew"),
    ("max_chips = 8", "max_chips = 8\nskew = -1", "skew"),
    ("max_chips = 8", "max_chips = 8\ndrafts = 2", "drafts"),
    ("max_chips = 8", "max_chips = 8\nseed = -1", "seed"),
    ("max_chips = 8", 'max_chips = 8\nphase = "prefill"', "phase"),
    ('name = "published"', 'name = "published"\nweights = "fp3"', "fp3"),
    ('name = "published"', 'name = "published"\nkv = "fp3"', "fp3"),
    ('name = "published"', 'name = "published"\n[[precisions]]\nname = "published"', "precisions: .*twice"),
    ('name = "tiny"', "", "name"),
    ('question = "Which mix?"', 'question = ""', "question"),
    ("[search]", '[variables.sram]\nlowest = "9 MB"\nhighest = "1 MB"\n[search]', "variables.sram: .*not in order"),
    ("[search]", '[variables.sram]\nlowest = "9 W"\nhighest = "1 MB"\n[search]', "variables.sram"),
    ("[search]", '[variables.sram]\nlowest = "0 MB"\nhighest = "9 MB"\n[search]', "variables.sram"),
    ("[search]", '[variables.sram]\nlowest = "9 MB"\n[search]', "variables.sram"),
    ("[search]", '[variables.watts]\nlowest = "9 W"\nhighest = "10 W"\n[search]', "variables"),
    ("[search]", '[variables.sram]\nlowest = "1 TB"\nhighest = "2 TB"\n[search]', "variables.sram: .*no room"),
    ("[search]", '[package]\npower = "700 kg"\n[search]', "package.power"),
    ("[search]", '[package]\npower = "0 W"\n[search]', "package.power"),
    ("[search]", '[package]\ndie_area = "-1 mm^2"\n[search]', "package.die_area"),
    ("[search]", '[sensitivity]\ncontext = "8Ki"\ntargets = ["5 kg"]\n[search]', "sensitivity.targets.0"),
    ("[search]", '[sensitivity]\ncontext = "8 W"\ntargets = ["5 ms"]\n[search]', "sensitivity.context"),
    ("[search]", "[search", "tiny.toml"),
    ("[search]", "[search]\n[search]", "tiny.toml"),
    ("\n", "\0", "tiny.toml"),
]


@pytest.mark.parametrize(("old", "new", "told"), BAD)
def test_bad_studies_are_refused_in_one_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in STUDY
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY.replace(old, new, 1))
    with pytest.raises(CodesignError, match=told) as caught:
        optimize(path, tmp_path / "run", dry_run=True)
    assert "\n" not in str(caught.value)
    assert "tiny.toml" in str(caught.value)
    assert not (tmp_path / "run").exists()


WEIRD = (
    "nan", "inf", "-1", "0", "1e999", "true", "[]", "{}", '""', '"20 parsecs"', "99999999999999999999", "-0.0", "'",
    '"""', '"ü"',
    "1e-300", '"1e300 s"', '["5 ms"]', '"8Ki"', "1979-05-27", "0x10", '"../../etc"', '"nan ms"', "[[]]", "= =",
)  # fmt: skip


def mutated(text: str, draw: random.Random) -> str:
    """A study file after one to three accidents."""
    for _ in range(draw.randint(1, 3)):
        lines = text.splitlines()
        i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.randrange(7)
        if kind == 0:
            lines.insert(j, lines[i])
        elif kind == 1:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 2 and len(lines) > 1:
            del lines[i]
        elif kind == 3 and "=" in lines[i]:
            lines[i] = lines[i].split("=")[0] + "= " + draw.choice(WEIRD)
        elif kind == 4 and lines[i]:
            k = draw.randrange(len(lines[i]))
            lines[i] = lines[i][:k] + draw.choice("\"'[]{}=.,#x0-\t\\é") + lines[i][k + draw.randrange(2) :]
        elif kind == 5 and "=" in lines[i]:
            key, _, value = lines[i].partition("=")
            lines[i] = f"{key}= {draw.choice(lines).partition('=')[2] or value}"
        elif kind == 6 and "=" in lines[i]:
            lines[i] = lines[i].replace("1", draw.choice(("9", "-1", "1e9", ".", ""))).replace("ms", draw.choice(WEIRD))
        text = "\n".join(lines) + "\n"
    return text


def check_mutated(folder: Path, count: int, seed: int) -> None:
    """Each is refused in one clear line or has a plan; nothing is written, nothing is NaN."""
    draw, planned, refused = random.Random(seed), 0, 0  # noqa: S311
    path = folder / "full.toml"
    for n in range(count):
        text = mutated(FULL, draw)
        path.write_text(text, encoding="utf-8")
        plan = error = None
        try:
            plan = optimize(path, folder / "run", dry_run=True)
        except CodesignError as refusal:
            error = refusal
        if error is not None:
            refused += 1
            assert "\n" not in str(error)
            assert error.file, (n, str(error), text)
        if plan is not None:
            planned += 1
            json.dumps(plan, allow_nan=False)
            assert plan["problems"] >= 1
            assert all(0.0 < t < float("inf") for t in plan["targets_s"])
        assert [p.name for p in folder.iterdir()] == ["full.toml"]
    assert planned > count // 50
    assert refused > count // 4


def test_mutated_studies(tmp_path: Path) -> None:
    check_mutated(tmp_path, 100, seed=1)


@pytest.mark.slow
def test_thousands_of_mutated_studies(tmp_path: Path) -> None:
    check_mutated(tmp_path, 5000, seed=2)


# ----------------------------------------------------------------------------------------------------------- the plan


def test_the_bundled_study_is_sound() -> None:
    study = load_study("tokens-per-megawatt").study
    assert study.targets_s == [0.002, 0.003, 0.005, 0.01, 0.02, 0.05]
    assert study.contexts_tokens == [131072.0, 515000.0]
    assert [p.weights for p in study.precisions] == ["bf16", "fp8"]
    plan = optimize("tokens-per-megawatt", dry_run=True)
    assert plan["problems"] == 24
    assert plan["searches"] == 72


def test_a_plan_says_what_would_be_done(tmp_path: Path) -> None:
    path = tmp_path / "full.toml"
    path.write_text(FULL)
    plan = optimize(path, tmp_path / "run", dry_run=True, seed=8)
    assert plan["schema"] == "codesign.plan/1"
    assert plan["problems"] == 2 * 2 * 2
    assert plan["searches"] == plan["evaluations_of_machines"] == 16
    assert (plan["seed"], plan["run"]) == (8, str(tmp_path / "run"))
    assert plan["contexts"] == [8192.0, 32768.0]
    assert [p.name for p in tmp_path.iterdir()] == ["full.toml"]


def test_a_plain_number_of_tokens_may_have_a_point(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY.replace('"8Ki", "32Ki"', "8192.5, 515000"))
    assert load_study(path).study.contexts_tokens == [8192.5, 515000.0]
    for seed in (-1, 2**63):
        with pytest.raises(CodesignError, match=r"--seed: .* is out of bounds"):
            optimize(path, dry_run=True, seed=seed)


def test_problems_and_their_order(tmp_path: Path) -> None:
    """A chain per context and precision, loosest target first; every problem has a name of its own."""
    path = tmp_path / "full.toml"
    path.write_text(FULL.replace('"20 ms", "0.01 s"', '"5 ms", "5.0000001 ms", "20 ms"').replace("32768", '"8192.25"'))
    solver = Solver(load_study(path).study, None, 0)
    assert [[s.target for s in chain] for chain in solver.chains] == [[0.02, 5.0000001e-3, 0.005]] * 4
    found = [(s.id, s.chain) for chain in solver.chains for s in chain]
    assert len({i for i, _ in found}) == 12
    assert len({c for _, c in found}) == 4
    assert Spec(131072.0, "bf16", 0.02).id == "c131072-bf16-t0.02"


def test_narrower_bounds_and_budgets_reach_the_search(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "full.toml"
    path.write_text(FULL)
    narrow, wide = Solver(load_study(path).study, None, 0).spaces[0], Solver(load_study(path).study, None, 0).spaces[1]
    assert np.exp(narrow.lo[0]) == pytest.approx(2e12)
    assert np.exp(narrow.hi[0]) == pytest.approx(12e12)
    assert float(narrow.package.power) == 650.0
    assert float(wide.package.die_area) == pytest.approx(800e-6)
    path.write_text(STUDY)
    free = Solver(load_study(path).study, None, 0).spaces[0]
    assert float(free.package.power) == 700.0
    assert np.exp(free.hi[0]) > 12.1e12
