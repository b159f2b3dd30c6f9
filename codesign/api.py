"""The Python interface, under the same names as the commands.

Quantities are SI floats here; the command line parses texts with units into them.  Heavy imports happen on the
first call.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Where = str | Path | None

#: Keyword arguments of a request that are lengths, targets and the like, and those that are mapping flags.
#: Cached tokens of decode where none are given.
DEFAULT_CONTEXT = 131072.0

_ASKED = (
    "context", "cached", "new", "concurrency", "isl", "osl", "framework", "tpot", "ttft", "batch", "drafts", "skew",
    "output", "copies", "capacity_factor", "overflow", "dispatch",
)  # fmt: skip
_DEGREES = ("chips", "pp", "tp", "dp", "ep", "attention_split", "microbatches", "chunk")


def _prepared(arch: str, model: str, phase: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The case, the request and the degrees out of the arguments of `evaluate` and `frontier`."""
    from codesign.evaluation.case import Degrees, load_case
    from codesign.evaluation.request import Request
    from codesign.runtime import prepare

    if phase == "decode" and given["context"] is None:
        given["context"] = DEFAULT_CONTEXT
    request = Request(phase=phase, **{k: given[k] for k in _ASKED})
    prepare()
    case = load_case(
        arch, model, weights=given["weights"], kv_dtype=given["kv_dtype"], attention_dtype=given["attention_dtype"],
        use_ideal=given["ideal"], overrides=given["set"], workspace=given["workspace"],
    )  # fmt: skip
    return case, request, Degrees(**{k: given[k] for k in _DEGREES})


def evaluate(
    arch: str,
    model: str,
    phase: str = "decode",
    context: float | None = None,
    *,
    cached: float | None = None,
    new: float | None = None,
    concurrency: float | None = None,
    isl: float | None = None,
    osl: float | None = None,
    framework: str | None = None,
    tpot: float | None = None,
    ttft: float | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    chunk: float | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: float = 1000.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    set: Sequence[str] = (),
    workspace: Where = None,
) -> Any:
    """Predict one model on one machine.

    Args:
        arch, model: names or aliases in the catalog.
        phase: ``prefill`` | ``midfill`` | ``decode`` | ``serve``.
        context: cached tokens per sequence (decode); 131,072 where not given.
        cached, new: cached and new tokens of a prompt; prefill takes ``new``, midfill both.
        concurrency, isl, osl: requests in flight on the whole mapping, tokens of prompt and answer (serve).
        framework: whose host time is added to each step (serve): ``sglang``, ``vllm``, ``trt``, ``atom``.
        tpot: target of decode and serve [s/token]; the batch is the largest that meets it.
        ttft: target of prefill and midfill [s].
        batch: sequences per micro-batch of one attention instance; searched where not given.
        chips, pp, tp, dp, ep, attention_split, microbatches: mapping; searched where not given.
        chunk: most tokens of a prompt per pass (prefill, midfill, serve); searched where not given.
        drafts: drafted tokens per pass.
        weights, kv_dtype, attention_dtype: precisions other than the model file's.
        ideal: speed of light instead of achieved rates.
        skew: exponent of expert popularity, 0 for uniform.
        output: tokens of one answer, for energy per query.
        copies: redundant experts per layer that balance popular ones over the ranks (EPLB).
        capacity_factor: an expert takes so many times the mean of routes; all where not given.
        overflow: routes beyond are ``drop``-ped, or ``reroute``-d to experts with room.
        dispatch: a ``token`` is sent once to every rank that holds one of its experts, or once per ``route``.
        set: overrides such as ``accelerator.memory_bandwidth=30 TB/s``.
        workspace: folder with ``arch/`` and ``workloads/`` looked up first.

    Returns:
        `codesign.evaluation.document.Evaluation`; ``.to_json()`` is schema ``codesign.evaluation/1``.

    Raises:
        CodesignError: bad input, in one line.
    """
    given = dict(locals())
    case, request, degrees = _prepared(arch, model, phase, given)
    from codesign.evaluation.choose import evaluate_case

    return evaluate_case(case, request, degrees)


def frontier(
    arch: str,
    model: str,
    phase: str = "decode",
    context: float | None = None,
    *,
    cached: float | None = None,
    new: float | None = None,
    concurrency: float | None = None,
    isl: float | None = None,
    osl: float | None = None,
    framework: str | None = None,
    tpot: float | None = None,
    ttft: float | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    chunk: float | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: float = 1000.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    set: Sequence[str] = (),
    workspace: Where = None,
) -> list[Any]:
    """The Pareto frontier over mappings and batch: TPOT, or TTFT of prompts, against tokens per second and megawatt.

    Arguments as in `evaluate`; returns one `Evaluation` per point, in order of that time, empty where nothing fits.
    """
    given = dict(locals())
    case, request, degrees = _prepared(arch, model, phase, given)
    from codesign.evaluation.choose import frontier_case

    return frontier_case(case, request, degrees)


def disaggregate(
    arch: str,
    experts_on: str,
    model: str,
    context: float = DEFAULT_CONTEXT,
    *,
    tpot: float | None = None,
    batch: float | None = None,
    chips: int | None = None,
    tp: int | None = None,
    expert_chips: int | None = None,
    ep: int | None = None,
    microbatches: int | None = None,
    drafts: int = 0,
    skew: float = 0.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    link_bandwidth: float | None = None,
    link_latency: float | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    set: Sequence[str] = (),
    workspace: Where = None,
) -> dict[str, Any]:
    """Decode with attention on one part and the feed-forward blocks on another: `codesign.objective.pools`.

    Args:
        arch, experts_on: systems of the attention pool and of the expert pool.
        model: its name.
        context: cached tokens per sequence.
        tpot: target [s/token].
        batch: sequences per micro-batch of one attention instance; searched where not given.
        chips: of the attention pool; one scale-up domain where not given.
        tp: of its instances; searched where not given.
        expert_chips, ep: chips of the expert pool and ranks by expert; searched where not given.
        microbatches: in flight; searched from 1 to 4 where not given.
        link_bandwidth: of a chip on either side of the link [B/s]; each side's scale-out where not given.
        link_latency: one way [s].
        drafts, skew, copies, capacity_factor, overflow, dispatch, weights, kv_dtype, attention_dtype, ideal, set,
            workspace: as in `evaluate`; overrides apply to both systems.

    Returns:
        a document of schema ``codesign.pair/1``, SI units.

    Raises:
        CodesignError: bad input, in one line.
    """
    import equinox as eqx

    from codesign.errors import CodesignError
    from codesign.evaluation.case import load_case
    from codesign.evaluation.pair import PairDegrees, disaggregate_cases
    from codesign.evaluation.request import Request
    from codesign.objective.pools import link_between
    from codesign.runtime import prepare

    request = Request(
        phase="decode", context=context, tpot=tpot, batch=batch, drafts=drafts, skew=skew, copies=copies,
        capacity_factor=capacity_factor, overflow=overflow, dispatch=dispatch,
    )  # fmt: skip
    for name, value in (("link_bandwidth", link_bandwidth), ("link_latency", link_latency)):
        if value is not None and not value >= 0.0:
            raise CodesignError(f"{value!r}", key=name, allowed="0 or more")
    prepare()
    case, experts = (
        load_case(
            name, model, weights=weights, kv_dtype=kv_dtype, attention_dtype=attention_dtype, use_ideal=ideal,
            overrides=set, workspace=workspace,
        )
        for name in (arch, experts_on)
    )  # fmt: skip
    link = link_between(case.machine, experts.machine)
    if link_bandwidth is not None:
        sides = (link_bandwidth, link_bandwidth)
        link = eqx.tree_at(lambda x: (x.attention_bandwidth, x.expert_bandwidth), link, sides)
    if link_latency is not None:
        link = eqx.tree_at(lambda x: x.latency, link, link_latency)
    return disaggregate_cases(case, experts, request, PairDegrees(chips, tp, expert_chips, ep, microbatches), link)


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
