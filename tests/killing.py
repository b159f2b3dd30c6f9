"""Kill runs of a study at random moments, resume them, and print what came out: a program that `test_study` starts.

Its problems are stand-ins that take milliseconds, so that kills fall on the keeping of records, checkpoints and
results, many times over.  Each run is a child forked from this process, which has the libraries loaded.

Usage: ``python killing.py FOLDER KILLS SEED``; prints one JSON object.
"""

import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from orbax import checkpoint  # noqa: F401 - loaded here, so that no child spends its life loading it

from codesign.errors import CodesignError
from codesign.study import run
from codesign.study.problems import Solver, Spec
from codesign.study.store import digest

STUDY = """
name = "killed"
title = "A study to kill"
question = "What is left?"
model = "gpt-oss-120b"
targets = ["20 ms", "10 ms", "5 ms"]
contexts = ["8Ki", "32Ki"]
technologies = ["hbm4"]
machines = ["b200"]
[[precisions]]
name = "one"
[[precisions]]
name = "two"
"""

RESULTS = ("summary.json", "results.parquet")


class Quick(Solver):
    """A solver that answers at once: with numbers that depend on the problem, the seed and the chain's last optimum."""

    def check(self) -> None:
        """Nothing to load."""

    def begin(self) -> None:
        """Nothing to make ready."""

    def fingerprint(self) -> str:
        """No catalog is loaded."""
        return "none"

    def solve(self, spec: Spec, starts: dict[str, list[float]]) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """A record as it would be, with a good many digits in it."""
        draw = random.Random(digest([spec.id, self.seed, starts]))  # noqa: S311 - no secret
        time.sleep(0.04 * random.random())  # noqa: S311
        x = [draw.uniform(-30.0, 30.0) for _ in range(400)]
        design = {
            "technology": "hbm4", "feasible": True, "limited_by": "TPOT", "kkt_residual": draw.random() * 1e-9,
            "mapping": {"chips": 8, "tp": 2}, "metrics": {"tokens_per_s": x[0], "none": None}, "numbers": x,
            "rounded": None,
        }  # fmt: skip
        record = {
            "id": spec.id, "context": spec.context, "precision": spec.precision, "target_s": spec.target,
            "designs": [design], "machines": [], "evaluations": draw.randrange(10**6),
        }  # fmt: skip
        return record, {"hbm4": x[:6]}


def summary(solver: Solver, records: dict[str, Any], tell: Any) -> dict[str, Any]:
    """The records in the study's order."""
    problems = [records[spec.id] for chain in solver.chains for spec in chain]
    return {"schema": "codesign.study/1", "seed": solver.seed, "problems": problems}


def child(study: Path, folder: Path, resume: bool, largest: int = resource.RLIM_INFINITY) -> int:
    """Start a run in a process of its own, which may write files of ``largest`` bytes at most; its number.

    It ends with 0, with 2 after one clear line, and with 1 after anything else.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads: they sleep, and the child starts its own
        process = os.fork()
    if process:
        return process
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        run.run_study(study, folder, resume=resume)
        status = 0
    except CodesignError:
        status = 2
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(process: int) -> int:
    """How a child ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def compare(folder: Path, alone: Path, found: dict[str, Any]) -> None:
    """Note what a run that was taken up again left otherwise than one left alone."""
    if any((folder / n).read_bytes() != (alone / n).read_bytes() for n in RESULTS):
        found["different"].append(folder.name)
    found["left"] += sorted({p.name for p in folder.iterdir()} - {p.name for p in alone.iterdir()})


def main(place: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill ``kills`` times, each run up to three times in a row, and compare with a run left alone.

    Then let some runs go on a disk that takes no larger files than so many bytes, and after that on a sound one.
    """
    setattr(run, "Solver", Quick)  # noqa: B010 - the type checker knows that it is another class
    run.summary_of = summary
    study, alone = place / "killed.toml", place / "alone"
    study.write_text(STUDY)
    lasts = 0.0
    for folder in (place / "first", alone):
        began = time.monotonic()
        if wait(child(study, folder, resume=False)):
            raise SystemExit("a run left alone failed")
        lasts = time.monotonic() - began
    draw = random.Random(seed)  # noqa: S311
    found: dict[str, Any] = {"kills": 0, "late": 0, "solved": [], "full": [], "failed": [], "different": [], "left": []}
    for trial in range(10 * kills):
        if found["kills"] >= kills:
            break
        folder = place / f"run-{trial}"
        for again in range(1 + draw.randrange(3)):
            process = child(study, folder, resume=again > 0)
            time.sleep(draw.uniform(0.0, 1.05 * lasts))
            os.kill(process, signal.SIGKILL)
            found["kills" if wait(process) == -signal.SIGKILL else "late"] += 1
            log = folder / "log.jsonl"
            found["solved"].append(log.read_text().count('"problem"') if log.exists() else -1)
        if wait(child(study, folder, resume=True)):
            found["failed"].append(folder.name)
        else:
            compare(folder, alone, found)
    tries, most = max(kills // 5, 5), max(p.stat().st_size for p in alone.rglob("*"))
    for trial in range(tries):
        folder = place / f"full-{trial}"
        found["full"].append(wait(child(study, folder, resume=False, largest=int(most * (trial + 0.5) / tries))))
        if wait(child(study, folder, resume=True)):
            found["failed"].append(folder.name)
        else:
            compare(folder, alone, found)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))  # noqa: T201
