"""Run a study: chains of problems solved side by side, a checkpoint after each, then evidence, summary and report.

A run that is killed and resumed ends with the same ``summary.json`` and ``results.parquet`` as an undisturbed one, bit
for bit: problems depend only on the study, the seed and their own chain, points are evaluated in blocks of one shape,
and results hold no times, hosts or durations.
"""

import json
import logging
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any

from codesign.errors import CodesignError
from codesign.files import write_json, write_text
from codesign.study.problems import Solver, Spec
from codesign.study.results import write_results
from codesign.study.schema import LARGEST_SEED, LoadedStudy, load_study, plan
from codesign.study.store import (
    PREVIOUS,
    Checkpoints,
    Log,
    clear_drafts,
    damaged_results,
    digest,
    digests,
    drop_previous,
    read_summary,
    set_aside,
)
from codesign.study.summary import summary_of

Progress = Callable[[int, int, str], None]
Where = str | Path | None

#: Packages whose versions decide the last bits.
DECIDING = ("codesign", "jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "orbax-checkpoint")


def run_study(
    name: str | Path,
    out: Where = None,
    *,
    resume: bool = False,
    seed: int | None = None,
    dry_run: bool = False,
    workspace: Where = None,
    progress: Progress | None = None,
    overrides: Any = (),
    workers: int = 2,
) -> dict[str, Any]:
    """Run, resume or plan a study; see `codesign.api.optimize`.

    A finished run that is not resumed is run anew; the old one can be read in the folder's ``previous`` until the new
    results are whole.  Where there is nothing to resume, a new run begins; either is told in a warning.

    Args:
        workers: chains solved side by side (threads; results do not depend on it).

    Raises:
        CodesignError: bad input, an unfinished run in the way, a study that changed since, a full disk.
    """
    loaded = load_study(name, workspace, overrides)
    seed = loaded.study.seed if seed is None else seed
    if not 0 <= seed <= LARGEST_SEED:
        raise CodesignError(f"{seed} is out of bounds", key="--seed", allowed=f"0 to {LARGEST_SEED}")
    solver = Solver(loaded.study, workspace, seed)
    try:
        solver.check()
    except CodesignError as error:
        if error.file:
            raise
        raise CodesignError(error.problem, file=loaded.label, key=error.key, allowed=error.allowed) from error
    if dry_run:
        return plan(loaded.study) | {"seed": seed, "run": str(run_folder(loaded, out))}
    tell = progress or _silence
    folder = run_folder(loaded, out)
    asked = digest(loaded.study.model_dump(mode="json"))
    identity = {"study": asked, "seed": seed, "catalog": solver.fingerprint()}
    state = _open(folder, loaded, identity, resume)
    log = Log(folder / "log.jsonl")
    if state == "resumed" and (done := _finished(folder, log)):
        drop_previous(folder)
        return done

    def damaged(words: str) -> None:
        log("checkpoint", words=words)
        _warn(folder, words)

    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        found = checkpoints.restore(damaged) if state == "resumed" else None
        kept = found[1] if found else {"records": {}, "starts": {}}
        records, starts = {k: json.loads(v) for k, v in kept["records"].items()}, kept["starts"]
        log(state, solved=len(records), environment=environment())
        _solve_all(solver, records, starts, checkpoints, log, tell, workers)
    finally:
        checkpoints.close()
    summary = summary_of(solver, records, tell)
    write_results(folder / "results.parquet", summary["problems"])
    write_json(folder / "summary.json", summary)
    log("finished", digests=digests(folder))
    drop_previous(folder)
    return summary


def run_folder(loaded: LoadedStudy, out: Where) -> Path:
    """Where a study runs: ``out``, or ``runs/`` and its name."""
    return Path(out) if out is not None else Path("runs") / loaded.study.name


def _silence(_done: int, _total: int, _words: str) -> None:
    """Nobody watches."""


def environment() -> dict[str, Any]:
    """Versions that decide the last bits, and the command."""
    found = {}
    for package in DECIDING:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return {"python": platform.python_version(), "versions": found, "command": [Path(sys.argv[0]).name, *sys.argv[1:]]}


def _warn(folder: Path, words: str) -> None:
    """Tell in one line what the user may not expect of a run folder."""
    logging.getLogger("codesign").warning("%s: %s", folder, words)


def _finished(folder: Path, log: Log) -> dict[str, Any] | None:
    """The summary of a run that has all its results, None of one that has not, or whose summary is damaged.

    A table that is missing or damaged is written again from the summary.
    """
    bad = damaged_results(folder)
    summary = None if "summary.json" in bad else read_summary(folder)
    if summary is None:
        if (folder / "summary.json").exists():
            _warn(folder, "summary.json is damaged; it is made again from the checkpoints")
        return None
    if "results.parquet" in bad:
        _warn(folder, "results.parquet is missing or damaged; it is written again from the summary")
        write_results(folder / "results.parquet", summary["problems"])
        log("finished", digests=digests(folder))
    return summary


def _open(folder: Path, loaded: LoadedStudy, identity: dict[str, Any], resume: bool) -> str:
    """Make or check the run folder; returns ``started`` or ``resumed``.

    ``environment.json`` makes it a run folder: it is written first and, when a finished run is replaced, after the old
    results are set aside, so that a run killed in between is resumed or refused, never mixed with another.
    """
    if folder.exists() and not folder.is_dir():
        raise CodesignError("is a file", file=str(folder), key="--out", allowed="a folder to write the run to")
    clear_drafts(folder)
    marker, frozen = folder / "environment.json", folder / "study.toml"
    if marker.exists():
        if resume:
            _same(folder, identity)
            if not frozen.exists():
                write_text(frozen, loaded.text)
            return "resumed"
        if not (folder / "summary.json").exists():
            raise CodesignError(
                "holds an unfinished run", file=str(folder), key="--out", allowed="--resume to go on, or another folder"
            )
        set_aside(folder)
        _warn(folder, f"is a finished run; it is run anew, and kept in {folder / PREVIOUS} until the new one is whole")
    elif folder.exists() and any(folder.iterdir()):
        raise CodesignError(
            "is not empty and is no run folder", file=str(folder), key="--out", allowed="a new or empty folder"
        )
    elif resume:
        _warn(folder, "holds no run to resume; a new one begins")
    write_json(marker, environment() | {"identity": identity, "seed": identity["seed"]})
    write_text(frozen, loaded.text)
    return "started"


def _same(folder: Path, identity: dict[str, Any]) -> None:
    """Refuse to go on with a run that was started with something else."""
    try:
        known = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known == identity:
        return
    if isinstance(known, dict) and known | {"catalog": ""} == identity | {"catalog": ""}:
        problem, allowed = "numbers of the catalog have changed since this run was started", "a new --out"
    else:
        problem = "the study or its seed is not the one this run was started with"
        allowed = "the frozen study.toml in the run folder, or a new --out"
    raise CodesignError(problem, file=str(folder), key="--resume", allowed=allowed)


def _solve_all(
    solver: Solver,
    records: dict[str, Any],
    starts: dict[str, Any],
    checkpoints: Checkpoints,
    log: Log,
    tell: Progress,
    workers: int,
) -> None:
    total = sum(len(chain) for chain in solver.chains)
    texts = {k: json.dumps(v, allow_nan=False) for k, v in records.items()}  # each record is written out once
    lock = Lock()
    tell(len(records), total, "searching")

    def run(chain: list[Spec]) -> None:
        for spec in chain:
            if spec.id in records:
                continue
            if stop:
                return
            record, following = solver.solve(spec, starts.get(spec.chain, {}))
            text = json.dumps(record, allow_nan=False)
            with lock:
                records[spec.id], texts[spec.id] = record, text
                starts[spec.chain] = following
                checkpoints.save(len(records), {"records": texts, "starts": starts})
                log("solved", problem=spec.id, evaluations=record["evaluations"])
                tell(
                    len(records),
                    total,
                    f"TPOT {spec.target * 1e3:g} ms at {spec.context:,.0f} tokens, {spec.precision}",
                )

    stop: list[bool] = []
    solver.begin()
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        futures = [pool.submit(run, chain) for chain in solver.chains]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.append(True)
            raise
