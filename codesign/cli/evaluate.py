"""``evaluate``, ``frontier`` and ``compare``: one request on one machine, its alternatives, and two of them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from codesign.cli import arguments as arg
from codesign.errors import CodesignError
from codesign.evaluation.pair_request import pair_arguments, refuse_alone


def register(app: typer.Typer) -> None:
    """Add this module's commands to the program."""
    arg.add_command(
        app,
        evaluate,
        'codesign evaluate --arch gb200-nvl72 --model kimi-k3 --context 128Ki --tpot "20 ms"',
        "codesign evaluate --arch b200 --model deepseek-v3 --context 8Ki --tp 8 --dp 1 --batch 1 --ideal",
        "codesign evaluate --arch jalapeno --model kimi-k3 --context 515000 --weights fp8 --json",
        'codesign evaluate --arch h200 --model kimi-k3 --context 8Ki --set system.scale_up_hop="0.1 us"',
        "codesign evaluate --arch jalapeno --model kimi-k3 --phase midfill --cached 511000 --new 4000",
        "codesign evaluate --arch b200 --model gpt-oss-120b --phase serve --isl 8Ki --osl 1Ki --concurrency 64 --tp 8",
    )
    arg.add_command(
        app,
        frontier,
        "codesign frontier --arch gb200-nvl72 --model kimi-k3 --context 128Ki",
        "codesign frontier --arch b300 --model kimi-k3 --context 32Ki --pp 4 --json > frontier.json",
        "codesign frontier --arch gb200-nvl72 --experts-on jalapeno --model kimi-k3 --context 128Ki",
    )
    arg.add_command(
        app,
        compare,
        "codesign evaluate --arch b200 --model kimi-k3 --context 128Ki --json > b200.json",
        "codesign evaluate --arch jalapeno --model kimi-k3 --context 128Ki --json > jalapeno.json",
        "codesign compare b200.json jalapeno.json",
    )


def evaluate(
    arch: arg.Arch,
    model: arg.Model,
    phase: arg.Phase = "decode",
    context: arg.Context = None,
    cached: arg.Cached = None,
    new: arg.New = None,
    concurrency: arg.Concurrency = None,
    isl: arg.Isl = None,
    osl: arg.Osl = None,
    framework: arg.Framework = None,
    tpot: arg.Tpot = None,
    ttft: arg.Ttft = None,
    chips: arg.Chips = None,
    pp: arg.Pp = None,
    tp: arg.Tp = None,
    dp: arg.Dp = None,
    ep: arg.Ep = None,
    attention_split: arg.AttentionSplit = None,
    batch: arg.Batch = None,
    microbatches: arg.Microbatches = None,
    chunk: arg.Chunk = None,
    drafts: arg.Drafts = 0,
    weights: arg.Weights = None,
    kv_dtype: arg.KvDtype = None,
    attention_dtype: arg.AttentionDtype = None,
    skew: arg.Skew = 0.0,
    output: arg.Output = "1000",
    copies: arg.Copies = 0,
    capacity_factor: arg.CapacityFactor = None,
    overflow: arg.Overflow = "drop",
    dispatch: arg.Dispatch = "token",
    experts_on: arg.ExpertsOn = None,
    expert_chips: arg.ExpertChips = None,
    ideal: arg.Ideal = False,
    override: arg.Set = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Predict one model on one machine in one regime: TPOT or TTFT, tokens per second and megawatt, energy, and why.

    Without mapping flags the best mapping is found and named. An infeasible request is an answer: what is missing,
    and the nearest point that can serve, with what it gives up of what was asked.
    """
    request = _request(
        phase=phase, context=context, cached=cached, new=new, concurrency=concurrency, isl=isl, osl=osl,
        framework=framework, tpot=tpot, ttft=ttft, batch=batch, chips=chips, pp=pp, tp=tp, dp=dp, ep=ep,
        attention_split=attention_split, microbatches=microbatches, chunk=chunk, drafts=drafts, weights=weights,
        kv_dtype=kv_dtype, attention_dtype=attention_dtype, skew=skew, output=output, copies=copies,
        capacity_factor=capacity_factor, overflow=overflow, dispatch=dispatch, ideal=ideal, set=override,
        workspace=workspace,
    )  # fmt: skip
    from codesign import api
    from codesign.cli import tables

    if experts_on is not None:
        from codesign.cli import pairs

        arg.answer(_pair(arch, experts_on, expert_chips, model, request), as_json, pairs.pair)
        return
    refuse_alone({"expert_chips": expert_chips})
    arg.answer(api.evaluate(arch, model, **request).to_json(), as_json, tables.evaluation)


def frontier(
    arch: arg.Arch,
    model: arg.Model,
    phase: arg.Phase = "decode",
    context: arg.Context = None,
    cached: arg.Cached = None,
    new: arg.New = None,
    concurrency: arg.Concurrency = None,
    isl: arg.Isl = None,
    osl: arg.Osl = None,
    framework: arg.Framework = None,
    tpot: arg.Tpot = None,
    ttft: arg.Ttft = None,
    chips: arg.Chips = None,
    pp: arg.Pp = None,
    tp: arg.Tp = None,
    dp: arg.Dp = None,
    ep: arg.Ep = None,
    attention_split: arg.AttentionSplit = None,
    batch: arg.Batch = None,
    microbatches: arg.Microbatches = None,
    chunk: arg.Chunk = None,
    drafts: arg.Drafts = 0,
    weights: arg.Weights = None,
    kv_dtype: arg.KvDtype = None,
    attention_dtype: arg.AttentionDtype = None,
    skew: arg.Skew = 0.0,
    output: arg.Output = "1000",
    copies: arg.Copies = 0,
    capacity_factor: arg.CapacityFactor = None,
    overflow: arg.Overflow = "drop",
    dispatch: arg.Dispatch = "token",
    experts_on: arg.ExpertsOn = None,
    expert_chips: arg.ExpertChips = None,
    ideal: arg.Ideal = False,
    override: arg.Set = None,
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Pareto frontier over mappings and batch: tokens per second per megawatt against tokens per second per user.

    With --experts-on it is that of pairs: attention on the one system, experts on the other, over the degrees of both,
    micro-batches in flight and batch. Where nothing is feasible, what is missing and what is nearest.
    """
    request = _request(
        phase=phase, context=context, cached=cached, new=new, concurrency=concurrency, isl=isl, osl=osl,
        framework=framework, tpot=tpot, ttft=ttft, batch=batch, chips=chips, pp=pp, tp=tp, dp=dp, ep=ep,
        attention_split=attention_split, microbatches=microbatches, chunk=chunk, drafts=drafts, weights=weights,
        kv_dtype=kv_dtype, attention_dtype=attention_dtype, skew=skew, output=output, copies=copies,
        capacity_factor=capacity_factor, overflow=overflow, dispatch=dispatch, ideal=ideal, set=override,
        workspace=workspace,
    )  # fmt: skip
    from codesign import api
    from codesign.cli import tables

    if experts_on is not None:
        from codesign.cli import pairs

        asked = pair_arguments(request)
        found = api.frontier(arch, model, **asked, experts_on=experts_on, expert_chips=expert_chips)
        if found or as_json:
            arg.answer(found, as_json, pairs.frontier)
        else:
            pairs.refusal(_pair(arch, experts_on, expert_chips, model, request))
        return
    found = [point.to_json() for point in api.frontier(arch, model, **request, expert_chips=expert_chips)]
    if found or as_json:
        arg.answer(found, as_json, tables.frontier)
    else:
        _nothing(api.evaluate(arch, model, **request).to_json())


def compare(
    results: Annotated[
        list[Path], typer.Argument(metavar="A B...", help="JSON files of 'evaluate', or run folders of 'optimize'.")
    ],
    as_json: arg.Json = False,
    workspace: arg.Workspace = None,
) -> None:
    """Explain the difference of two results: a waterfall over operations. More than two: each against the first."""
    if len(results) < 2:
        raise CodesignError("compares at least two results", key="compare", allowed="two JSON files or run folders")
    from codesign.cli import comparisons
    from codesign.comparison import compare_documents

    first, *others = [(str(path), _read(path, workspace)) for path in results]
    found = [compare_documents(first[1], other, (first[0], name)) for name, other in others]
    if as_json:
        arg.write_json(found[0] if len(found) == 1 else found)
        return
    for document in found:
        comparisons.comparison(document)


def _request(*, phase: str, context: str | None, batch: float | None, **given: Any) -> dict[str, Any]:
    """Arguments of the API in SI units, checked as far as no file is needed."""
    if batch is not None and not 0 < batch < float("inf"):
        raise CodesignError(f"{batch} is no batch", key="--batch", allowed="more than 0 sequences")
    if phase == "decode" and context is None:
        raise CodesignError("is missing: decode needs it", key="--context", allowed="tokens, e.g. 128Ki")
    for name in ("cached", "new", "isl", "osl", "chunk", "output"):
        given[name] = arg.quantity(given[name], "token", f"--{name}", zero=name == "cached", whole=True)
    for name in ("tpot", "ttft"):
        given[name] = arg.quantity(given[name], "s", f"--{name}")
    length = arg.quantity(context, "token", "--context", whole=True)
    asked = {"phase": phase, "context": length, "batch": batch, **given}
    return asked | {"set": tuple(given["set"] or ())}


def _nothing(result: dict[str, Any]) -> None:
    """Why a frontier is empty: what `evaluate` says of the same request."""
    from codesign.cli import tables

    out = tables.console()
    where = f"[bold]{result['model']}[/bold] {tables.request_words(result)} on [bold]{result['arch']}[/bold]"
    out.print(f"no feasible mapping: {where}", soft_wrap=True)
    if not result["feasible"]:
        batch = tables.count(result["request"]["batch"])
        tables.refusal(result, f"{tables.mapping_words(result['mapping'])}; batch {batch} per instance", out)
    tables.warnings(result["warnings"], out)


def _pair(arch: str, experts_on: str, expert_chips: int | None, model: str, request: dict[str, Any]) -> dict[str, Any]:
    """Attention on one system, experts on another."""
    from codesign import api

    return api.disaggregate(arch, experts_on, model, **pair_arguments(request), expert_chips=expert_chips)


def _read(path: Path, workspace: Path | None) -> Any:
    """A JSON document, or the summary of a run folder."""
    if not path.exists() and workspace is not None:
        path = workspace / path
    if path.is_dir():
        from codesign.report.summary import read_summary

        return read_summary(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CodesignError("no such file", file=str(path)) from error
    except (ValueError, OSError) as error:
        raise CodesignError(f"cannot be read as JSON: {error}", file=str(path)) from error
