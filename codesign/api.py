"""The Python interface, under the same names as the commands.

Quantities are SI floats here; the command line parses texts with units into them.  Heavy imports happen on the
first call.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from codesign.errors import CodesignError

Where = str | Path | None

PHASES = ("decode",)


def _case_and_request(arch: str, model: str, phase: str, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if phase not in PHASES:
        raise CodesignError(f"unknown phase {phase!r}", key="--phase", allowed=", ".join(PHASES))
    from codesign.evaluation.case import Degrees, load_case
    from codesign.runtime import prepare

    prepare()
    case = load_case(
        arch, model, weights=given.pop("weights"), kv_dtype=given.pop("kv_dtype"),
        attention_dtype=given.pop("attention_dtype"), use_ideal=given.pop("ideal"), overrides=given.pop("set"),
        workspace=given.pop("workspace"),
    )  # fmt: skip
    degrees = Degrees(**{k: given.pop(k) for k in ("chips", "pp", "tp", "dp", "ep", "attention_split", "microbatches")})
    return case, given | {"degrees": degrees}


def evaluate(
    arch: str,
    model: str,
    phase: str = "decode",
    context: float = 131072.0,
    *,
    tpot: float | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: float = 1000.0,
    set: Sequence[str] = (),
    workspace: Where = None,
) -> Any:
    """Predict one model on one machine.

    Args:
        arch, model: names or aliases in the catalog.
        phase: ``decode``.
        context: cached tokens per sequence.
        tpot: target [s/token]; the batch is the largest that meets it.
        batch: sequences per micro-batch of one attention instance; searched where not given.
        chips, pp, tp, dp, ep, attention_split, microbatches: mapping; searched where not given.
        drafts: drafted tokens per pass.
        weights, kv_dtype, attention_dtype: precisions other than the model file's.
        ideal: speed of light instead of achieved rates.
        skew: exponent of expert popularity, 0 for uniform.
        output: tokens of one answer, for energy per query.
        set: overrides such as ``accelerator.memory_bandwidth=30 TB/s``.
        workspace: folder with ``arch/`` and ``workloads/`` looked up first.

    Returns:
        `codesign.evaluation.document.Evaluation`; ``.to_json()`` is schema ``codesign.evaluation/1``.

    Raises:
        CodesignError: bad input, in one line.
    """
    given = dict(locals())
    for name in ("arch", "model", "phase"):
        given.pop(name)
    case, request = _case_and_request(arch, model, phase, given)
    from codesign.evaluation.choose import evaluate_case

    return evaluate_case(case, request.pop("context"), **request)


def frontier(
    arch: str,
    model: str,
    phase: str = "decode",
    context: float = 131072.0,
    *,
    tpot: float | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: float = 1000.0,
    set: Sequence[str] = (),
    workspace: Where = None,
) -> list[Any]:
    """The Pareto frontier over mappings and batch: TPOT against tokens per second and megawatt.

    Arguments as in `evaluate`; returns one `Evaluation` per point, in order of TPOT, empty where nothing fits.
    """
    given = dict(locals())
    for name in ("arch", "model", "phase"):
        given.pop(name)
    case, request = _case_and_request(arch, model, phase, given)
    from codesign.evaluation.choose import frontier_case

    return frontier_case(case, request.pop("context"), **request)


def optimize(
    study: str | Path,
    out: Where = None,
    *,
    resume: bool = False,
    seed: int | None = None,
    dry_run: bool = False,
    workspace: Where = None,
    progress: Callable[..., None] | None = None,
    set: Sequence[str] = (),
    workers: int = 2,
) -> dict[str, Any]:
    """Run a study: the best mix of memory bandwidth, capacity, scale-up and compute at each target.

    Args:
        study: TOML file, or the name of a bundled one.
        out: run folder; ``runs/NAME`` where not given.
        resume: go on from the folder's last checkpoint.
        seed: of the starts; the study's own where not given.
        dry_run: check everything, run nothing, return what would be done.
        workspace: as in `evaluate`.
        progress: called with (done, total, words) after each problem.
        set: overrides of the study file.
        workers: chains of problems solved side by side; results do not depend on it.

    Returns:
        the run's summary, schema ``codesign.study/1`` (or the plan of a dry run, ``codesign.plan/1``).
    """
    from codesign.runtime import prepare

    prepare()
    from codesign.report import write_report
    from codesign.study.run import run_folder, run_study
    from codesign.study.schema import load_study

    folder = run_folder(load_study(study, workspace, set), out)
    found = run_study(
        study, folder, resume=resume, seed=seed, dry_run=dry_run, workspace=workspace, progress=progress,
        overrides=set, workers=workers,
    )  # fmt: skip
    if not dry_run:
        write_report(folder)
    return found


def load_machine(name: str, workspace: Where = None, set: Sequence[str] = ()) -> Any:
    """A `codesign.machine.Machine` in SI units by catalog name."""
    from codesign import catalog
    from codesign.catalog.build import machine_of
    from codesign.runtime import prepare

    prepare()
    return machine_of(catalog.load_system(name, workspace, overrides=catalog.parse_overrides(set)))


def load_model(name: str, workspace: Where = None, set: Sequence[str] = ()) -> Any:
    """A `codesign.model.Model` by catalog name."""
    from codesign import catalog
    from codesign.model import model_of

    return model_of(catalog.load_model_file(name, workspace, overrides=catalog.parse_overrides(set)))


def list_catalog(section: str | None = None, workspace: Where = None) -> list[Any]:
    """Entries of the catalog; see `codesign.catalog.list_catalog`."""
    from codesign import catalog

    return catalog.list_catalog(section, workspace)
