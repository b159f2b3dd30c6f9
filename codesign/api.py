"""The Python interface, under the same names as the commands.

Quantities are SI floats here, or texts with units as on the command line: ``context="128Ki"``, ``tpot="20 ms"``.
Heavy imports happen on the first call.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from codesign.evaluation.pair_request import LINK, pair_arguments, refuse_alone
from codesign.glossary import COUNTS

Where = str | Path | None

#: A number in SI units, or a text with its unit.
Quantity = float | str

#: Keyword arguments of a request that are lengths, targets and the like, and those that are mapping flags.
_ASKED = (
    "context", "cached", "new", "concurrency", "isl", "osl", "framework", "tpot", "ttft", "batch", "drafts", "skew",
    "output", "copies", "capacity_factor", "overflow", "dispatch",
)  # fmt: skip
_DEGREES = ("chips", "pp", "tp", "dp", "ep", "attention_split", "microbatches", "chunk")

#: Unit of each argument that is a quantity, and arguments that are whole numbers.
_UNITS = {
    **dict.fromkeys(("context", "cached", "new", "isl", "osl", "chunk", "output"), "token"),
    **dict.fromkeys(("tpot", "ttft", "link_latency"), "s"), "link_bandwidth": "B/s",
    **dict.fromkeys(("batch", "concurrency", "drafts", "skew", "copies", "capacity_factor"), "1"),
}  # fmt: skip
_WHOLE = ("chips", "pp", "tp", "dp", "ep", "microbatches", "expert_chips")
_DTYPES = ("weights", "kv_dtype", "attention_dtype")


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments with texts read as quantities; what is no number, no whole number or an empty dtype is refused."""
    from codesign import units
    from codesign.errors import CodesignError

    found = dict(given)
    for name, value in given.items():
        key = name if name.startswith("link_") else f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if name in _UNITS:
            unit = _UNITS[name]
            if isinstance(value, str):
                try:
                    found[name] = units.parse(value, unit)
                except CodesignError as error:
                    raise CodesignError(error.problem, key=key, allowed=error.allowed) from error
            elif isinstance(value, bool) or not isinstance(value, Real):
                example = f'a number in SI units or a text such as "{units.EXAMPLES[unit]}"'
                raise CodesignError(f"{str(value)[:60]} is not a number", key=key, allowed=example)
        elif name in _WHOLE:
            if isinstance(value, bool) or not (isinstance(value, Integral) or _is_whole(value)):
                raise CodesignError(f"{str(value)[:60]!r} is not a whole number", key=key, allowed="1 or more")
            found[name] = int(value)
        elif name in _DTYPES and not (isinstance(value, str) and value.strip()):
            what = "is empty" if isinstance(value, str) else f"{str(value)[:60]} is no dtype"
            raise CodesignError(what, key=key, allowed="a dtype such as fp8; not given, the checkpoint's own")
    if found.get("chunk") is not None and not found["chunk"] >= 1.0:
        raise CodesignError(f"{found['chunk']:g} tokens", key="--chunk", allowed="1 or more")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and float(value).is_integer()


def _case(given: dict[str, Any], arch: str, model: str, flag_of_arch: str = "--arch") -> Any:
    """The machine and the model; a name of another kind of file is told as such."""
    from codesign.catalog import find_entry
    from codesign.errors import CodesignError, UnknownName
    from codesign.evaluation.case import load_case

    try:
        return load_case(
            arch, model, weights=given["weights"], kv_dtype=given["kv_dtype"],
            attention_dtype=given["attention_dtype"], use_ideal=given["ideal"], overrides=given["set"],
            workspace=given["workspace"],
        )  # fmt: skip
    except UnknownName as error:
        for flag, kind, name in ((flag_of_arch, "system", arch), ("--model", "model", model)):
            if error.problem != f"unknown {kind} {str(name)[:80]!r}":
                continue
            try:
                other = find_entry(name, given["workspace"])
            except CodesignError:
                continue
            listed = f"a {kind}, as in 'codesign list {kind}'"
            raise CodesignError(f"{other.name!r} is a {other.kind}, not a {kind}", key=flag, allowed=listed) from error
        raise


def _prepared(arch: str, model: str, phase: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The case, the request and the degrees out of the arguments of `evaluate` and `frontier`."""
    from codesign.evaluation.case import Degrees
    from codesign.evaluation.request import Request
    from codesign.runtime import prepare

    given = _checked(given)
    request = Request(phase=phase, **{k: given[k] for k in _ASKED})
    prepare()
    case = _case(given, arch, model)
    return case, request, Degrees(**{k: given[k] for k in _DEGREES})


def evaluate(
    arch: str,
    model: str,
    phase: str = "decode",
    context: Quantity | None = None,
    *,
    cached: Quantity | None = None,
    new: Quantity | None = None,
    concurrency: float | None = None,
    isl: Quantity | None = None,
    osl: Quantity | None = None,
    framework: str | None = None,
    tpot: Quantity | None = None,
    ttft: Quantity | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    chunk: Quantity | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: Quantity = 1000.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    set: Sequence[str] = (),
    workspace: Where = None,
) -> Any:
    """Predict one model on one machine.

    Lengths and times are numbers in tokens and seconds, or texts such as ``"128Ki"`` and ``"20 ms"``.

    Args:
        arch, model: names or aliases in the catalog.
        phase: ``prefill`` | ``midfill`` | ``decode`` | ``serve``.
        context: cached tokens per sequence; decode needs it.
        cached, new: cached and new tokens of a prompt; prefill takes ``new``, midfill both.  In serve ``cached`` is the
            part of ``isl`` that is found in the cache.
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

    found = evaluate_case(case, request, degrees)
    if found.feasible and case.execution.calibrated and found.point is not None:
        from codesign.calibration.interval import interval_document

        found.document["interval"] = interval_document(*found.point, found.metrics, framework, workspace)
    return found


def frontier(
    arch: str,
    model: str,
    phase: str = "decode",
    context: Quantity | None = None,
    *,
    cached: Quantity | None = None,
    new: Quantity | None = None,
    concurrency: float | None = None,
    isl: Quantity | None = None,
    osl: Quantity | None = None,
    framework: str | None = None,
    tpot: Quantity | None = None,
    ttft: Quantity | None = None,
    batch: float | None = None,
    chips: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    attention_split: str | None = None,
    microbatches: int | None = None,
    chunk: Quantity | None = None,
    drafts: int = 0,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    ideal: bool = False,
    skew: float = 0.0,
    output: Quantity = 1000.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    experts_on: str | None = None,
    expert_chips: int | None = None,
    link_bandwidth: Quantity | None = None,
    link_latency: Quantity | None = None,
    set: Sequence[str] = (),
    workspace: Where = None,
) -> list[Any]:
    """The Pareto frontier over mappings and batch: TPOT, or TTFT of prompts, against tokens per second and megawatt.

    Arguments as in `evaluate`; returns one `Evaluation` per point, in order of that time, empty where nothing fits.

    With ``experts_on`` the frontier is that of pairs, attention on ``arch`` and feed-forward blocks on that system,
    over degrees of both pools, micro-batches in flight and batch.  ``expert_chips``, ``link_bandwidth``,
    ``link_latency`` and what else a pair takes are as in `disaggregate`, and so are the points: documents of schema
    ``codesign.pair/1``, in order of TPOT.
    """
    given = dict(locals())
    if experts_on is not None:
        from codesign.evaluation.pair import frontier_of_pairs

        beside = {name: given[name] for name in ("expert_chips", *LINK)}
        return frontier_of_pairs(*_prepared_pair(arch, experts_on, model, pair_arguments(given) | beside))
    refuse_alone(given)
    case, request, degrees = _prepared(arch, model, phase, given)
    from codesign.evaluation.choose import frontier_case

    return frontier_case(case, request, degrees)


def disaggregate(
    arch: str,
    experts_on: str,
    model: str,
    context: Quantity,
    *,
    tpot: Quantity | None = None,
    batch: float | None = None,
    chips: int | None = None,
    tp: int | None = None,
    expert_chips: int | None = None,
    ep: int | None = None,
    microbatches: int | None = None,
    drafts: int = 0,
    skew: float = 0.0,
    output: Quantity = 1000.0,
    copies: float = 0.0,
    capacity_factor: float | None = None,
    overflow: str = "drop",
    dispatch: str = "token",
    link_bandwidth: Quantity | None = None,
    link_latency: Quantity | None = None,
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
        drafts, skew, output, copies, capacity_factor, overflow, dispatch, weights, kv_dtype, attention_dtype, ideal,
            set, workspace: as in `evaluate`; overrides apply to both systems.

    Returns:
        a document of schema ``codesign.pair/1``, SI units. Where no pair meets the target and fits, ``feasible`` is
        False, and its margin says what is missing and the nearest pair that serves.

    Raises:
        CodesignError: bad input, in one line.
    """
    given = dict(locals())
    from codesign.evaluation.pair import disaggregate_cases

    return disaggregate_cases(*_prepared_pair(arch, experts_on, model, given))


def _prepared_pair(arch: str, experts_on: str, model: str, given: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
    """Both cases, the request, the degrees and the link out of the arguments of `disaggregate`."""
    import equinox as eqx

    from codesign.errors import CodesignError
    from codesign.evaluation.pair_degrees import PairDegrees
    from codesign.evaluation.request import Request
    from codesign.objective.pools import link_between
    from codesign.runtime import prepare

    given = _checked(given)
    asked = {k: given[k] for k in _ASKED if k in given}
    request = Request(phase="decode", **asked)
    for name in LINK:
        value = given[name]
        if value is not None and not value >= 0.0:
            raise CodesignError(f"{value!r}", key=name, allowed="0 or more")
    prepare()
    case, experts = _case(given, arch, model), _case(given, experts_on, model, "--experts-on")
    link = link_between(case.machine, experts.machine)
    if given["link_bandwidth"] is not None:
        sides = (given["link_bandwidth"], given["link_bandwidth"])
        link = eqx.tree_at(lambda x: (x.attention_bandwidth, x.expert_bandwidth), link, sides)
    if given["link_latency"] is not None:
        link = eqx.tree_at(lambda x: x.latency, link, given["link_latency"])
    degrees = PairDegrees(*(given[k] for k in ("chips", "tp", "expert_chips", "ep", "microbatches")))
    return case, experts, request, degrees, link


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


def import_model(
    config: str | Path,
    name: str,
    *,
    title: str | None = None,
    out: Where = None,
    quantization: Where = None,
    set: Sequence[str] = (),
    force: bool = False,
    workspace: Where = None,
) -> dict[str, Any]:
    """Turn a Hugging Face ``config.json`` into a model file of the catalog, and write it.

    Args:
        config: the file; nested text configurations and quantisation settings are read.
        name: the model's name in the catalog: letters, digits, ``.``, ``_`` and ``-``.
        title: one line for people; ``name`` where not given.
        out: file to write; ``workloads/models/NAME.toml`` of the workspace, or of the folder at hand, where not given.
            With ``"-"`` nothing is written: the file is the answer's ``text``.
        quantization: ModelOpt's ``hf_quant_config.json``, if it does not lie beside ``config``.
        set: fields that ``config`` lacks, or others than it has: ``config.dtype=bfloat16``.
        force: replace a file that says something else.
        workspace: folder with ``workloads/``.

    Returns:
        a document of schema ``codesign.import/1``: ``name``, ``file``, ``architecture``, derived ``counts``,
        ``published_kv`` and ``notes`` of what was taken from the architecture's definition; ``text`` where ``file`` is
        None.

    Raises:
        CodesignError: an unreadable file, an unknown architecture, a field that is missing or has no meaning, a file
            that is there already and says something else.
    """
    from codesign.catalog.importing import import_model as read
    from codesign.errors import CodesignError
    from codesign.model import model_of

    if not isinstance(name, str):
        raise CodesignError(f"{str(name)[:60]} is no name", key="--name", allowed="letters, digits, . _ and -")
    for key, path in (("config", config), ("--quantization", quantization), ("--out", out)):
        if not isinstance(path, str | Path | None) or (path is None and key == "config"):
            raise CodesignError(f"{str(path)[:60]} is no path", key=key, allowed="a file's path")
    settings = (set,) if isinstance(set, str) else set
    found = read(config, name, title=title, quantization=quantization, settings=settings)
    file = None if str(out) == "-" else Path(out or Path(workspace or "") / "workloads" / "models" / f"{name}.toml")
    if file is not None:
        _write_model(file, found.text, force)
    model = model_of(found.model)
    counts = model.counts({"kv": model.published_kv})
    hidden = [] if file is None else _hidden(name, file)
    document = {
        "schema": "codesign.import/1", "name": name, "file": None if file is None else str(file),
        "architecture": found.architecture, "counts": {key: getattr(counts, key) for key in COUNTS},
        "published_kv": model.published_kv, "notes": [*found.notes, *hidden],
    }  # fmt: skip
    return document if file is not None else document | {"text": found.text}


def _hidden(name: str, file: Path) -> list[str]:
    """A note where the program's own catalog has a model of that name or alias, which the file comes before."""
    from codesign.catalog.names import KINDS, normalise
    from codesign.catalog.workspace import Workspace, bundled_root

    return [
        f"{name} also names the bundled model {entry.name}; in a workspace with this file it means this file"
        for entry in Workspace((("bundled", bundled_root()),)).entries(KINDS["model"])
        if normalise(name) in entry.keys and entry.origin.path.resolve() != file.expanduser().resolve()
    ]


def _write_model(file: Path, text: str, force: bool) -> None:
    """Write the file whole; one that is there and says something else is kept unless ``force``."""
    from codesign.errors import CodesignError
    from codesign.files import write_text

    try:
        same = force or not file.exists() or file.read_text(encoding="utf-8") == text
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CodesignError(f"cannot be written: {why}", file=str(file)) from error
    if not same:
        raise CodesignError("is there already", file=str(file), allowed="another --out or --name, or --force")
    write_text(file, text)


def list_catalog(section: str | None = None, workspace: Where = None) -> list[Any]:
    """Entries of the catalog; see `codesign.catalog.list_catalog`."""
    from codesign import catalog

    return catalog.list_catalog(section, workspace)
