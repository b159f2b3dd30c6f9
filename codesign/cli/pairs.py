"""How a pair of pools and a frontier of pairs look in a terminal, drawn from their JSON alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from codesign.cli.tables import console, count, request_words, table, told, warnings
from codesign.glossary import TPOT_DEFINITION


def pair_words(d: Mapping[str, Any]) -> str:
    """Degrees of a pair in one line: ``72 + 16 chips: TP 4 × 18, EP 16, 2 micro-batches``."""
    words = f"{d['chips']} + {d['expert_chips']} chips: TP {d['tp']} × {d['dp']}, EP {d['ep']}"
    if d["moe_tp"] > 1:
        words += f" × expert TP {d['moe_tp']}"
    return words + (f", {d['microbatches']} micro-batches" if d["microbatches"] > 1 else "")


def _asked(document: Mapping[str, Any]) -> str:
    """What was asked, of which systems."""
    pools = f"attention on [bold]{document['arch']}[/bold], experts on [bold]{document['experts_on']}[/bold]"
    return f"[bold]{document['model']}[/bold] {request_words(document)}, {pools}"


def pair(document: Mapping[str, Any]) -> None:
    """Print one document of schema ``codesign.pair/1``."""
    d, m, memory = document["mapping"], document["metrics"], document["memory"]
    out = console()
    out.print(_asked(document), soft_wrap=True)
    if document["feasible"]:
        out.print(f"[green]feasible[/green]: {_here(document)}", soft_wrap=True)
    else:
        _refusal(document, out)
    rows = [
        ("TPOT", told(m["tpot_s"], "s")),
        ("tokens/s per user", told(m["tokens_per_s_per_user"], "token/s")),
        ("tokens/s of the pair", told(m["tokens_per_s"], "token/s")),
        ("tokens/s per provisioned MW", told(m["tokens_per_s_per_megawatt"], "token/s")),
        ("tokens/s per drawn MW", told(m["tokens_per_s_per_megawatt_drawn"], "token/s")),
        ("energy per token, per query", f"{told(m['energy_per_token_j'], 'J')}, {told(m['energy_per_query_j'], 'J')}"),
        ("batch of a micro-batch, micro-batches", f"{document['request']['batch']:g}, {d['microbatches']}"),
        ("attention: tp × instances", f"{d['tp']} × {d['dp']}"),
        ("experts: ranks × moe_tp", f"{d['ep']} × {d['moe_tp']}"),
        (
            "expert chips per attention chip at balance",
            f"{m['balance']:.3g} (here {d['expert_chips'] / d['chips']:.3g})",
        ),
        ("link per token, watts of it", f"{told(m['link_bytes_per_token'], 'B')}, {told(m['link_w'], 'W')}"),
    ]
    fits = document["margin"].get("missing_bytes") is None
    if fits:
        out.print(table("Pair", ("what", "value"), rows))
    seconds = [
        ("attention pool", told(m["attention_s"], "s"), f"{m['attention_busy']:.0%}"),
        ("expert pool", told(m["expert_s"], "s"), f"{m['expert_busy']:.0%}"),
        ("link out, back", f"{told(m['out_s'], 's')}, {told(m['back_s'], 's')}", ""),
        ("one micro-batch through all", told(m["pass_s"], "s"), ""),
        ("exposed: neither pool's", told(m["exposed_s"], "s"), ""),
    ]
    if fits:
        out.print(table("A pass of one micro-batch", ("where", "time", "busy"), seconds))
    held = [
        (name, told(part["weights"], "B"), told(part["kv"] + part["state"], "B"), told(part["total"], "B"),
         told(part["capacity"], "B"))
        for name, part in memory.items()
    ]  # fmt: skip
    out.print(table("Memory of a chip", ("pool", "weights", "KV and state", "in use, slack", "capacity"), held))
    warnings(document["warnings"], out)


def _here(document: Mapping[str, Any]) -> str:
    """Degrees and batch of a document."""
    return f"{pair_words(document['mapping'])}; batch {count(document['request']['batch'])} of a micro-batch"


def _refusal(document: Mapping[str, Any], out: Console) -> None:
    """What is missing, and the nearest pair that can serve."""
    margin, nearest = document["margin"], document["margin"]["nearest"]
    if margin.get("missing_bytes") is not None:
        lacking = {name: part["total"] - part["capacity"] for name, part in document["memory"].items()}
        short = [f"a chip of {name} lacks {told(bytes_, 'B')}" for name, bytes_ in lacking.items() if bytes_ > 0.0]
        out.print(f"[red]not feasible[/red]: does not fit, {', '.join(short)} of memory", soft_wrap=True)
        out.print(f"tried      {_here(document)}; the one that lacks least", soft_wrap=True)
    else:
        least, missed = told(margin["least_tpot_s"], "s"), told(margin["missing_s"], "s")
        words = f"the least TPOT reachable is {least}, the target is missed by {missed}"
        out.print(f"[red]not feasible[/red]: too slow, {words}", soft_wrap=True)
        batch = document["request"]["batch"]
        if not nearest or (nearest["mapping"], nearest["batch"]) != (document["mapping"], batch):
            out.print(f"fastest    {_here(document)}", soft_wrap=True)
    if nearest is None:
        most = f"{margin['max_chips']} + {margin['max_expert_chips']} chips"
        out.print(f"nearest    nothing serves: no pair up to {most} holds it, not even one sequence", soft_wrap=True)
        return
    words = f"{pair_words(nearest['mapping'])}; batch {count(nearest['batch'])}: TPOT {told(nearest['tpot_s'], 's')}"
    rate = f"{told(nearest['tokens_per_s_per_megawatt'], 'token/s')} tokens/s/MW"
    flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in nearest["relaxed"])
    out.print(f"nearest    {words}, {rate}" + (f"; gives up {flags}" if flags else ""), soft_wrap=True)


def refusal(document: Mapping[str, Any]) -> None:
    """Print why a frontier of pairs is empty, from the answer to the same request."""
    out = console()
    out.print(f"no feasible pair: {_asked(document)}", soft_wrap=True)
    if not document["feasible"]:
        _refusal(document, out)
    warnings(document["warnings"], out)


def frontier(results: Sequence[Mapping[str, Any]]) -> None:
    """Draw a Pareto frontier of pairs, fastest for the user first."""
    out = console()
    first = results[0]
    rows = [
        (
            pair_words(r["mapping"]), count(r["request"]["batch"]), told(r["metrics"]["tpot_s"], "s", 3),
            told(r["metrics"]["tokens_per_s_per_user"], "token/s"),
            told(r["metrics"]["tokens_per_s_per_megawatt"], "token/s"),
            f"{r['metrics']['attention_busy']:.0%}", f"{r['metrics']['expert_busy']:.0%}",
            told(r["margin"]["memory_bytes"], "B", 3),
        )
        for r in results
    ]  # fmt: skip
    columns = (
        "pair", "batch", "TPOT", "tok/s/user", "tok/s/MW", "attention busy", "experts busy", "memory to spare",
    )  # fmt: skip
    spare = ("memory to spare", "experts busy", "attention busy", "tok/s/user")
    out.print(_asked(first), soft_wrap=True)
    drawn = table("Frontier: chips of attention + of experts", columns, rows, spare=spare)
    drawn.columns[0].min_width = 24
    out.print(drawn)
    out.print(f"{TPOT_DEFINITION}; output tokens; batch of a micro-batch; MW as provisioned, of both pools")
    warnings(dict.fromkeys(line for r in results for line in r["warnings"]), out)
