"""How a pair of pools looks in a terminal, drawn from its JSON alone."""

from collections.abc import Mapping
from typing import Any

from codesign.cli.tables import console, table, told


def pair(document: Mapping[str, Any]) -> None:
    """Print one document of schema ``codesign.pair/1``."""
    d, m, memory = document["mapping"], document["metrics"], document["memory"]
    out = console()
    verdict = "feasible" if document["feasible"] else "not feasible"
    out.print(
        f"{document['model']} decode, attention on {d['chips']} × {document['arch']}, experts on {d['expert_chips']} × "
        f"{document['experts_on']}: {verdict}"
    )
    rows = [
        ("TPOT", told(m["tpot_s"], "s")),
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
    out.print(table("Pair", ("what", "value"), rows))
    seconds = [
        ("attention pool", told(m["attention_s"], "s"), f"{m['attention_busy']:.0%}"),
        ("expert pool", told(m["expert_s"], "s"), f"{m['expert_busy']:.0%}"),
        ("link out, back", f"{told(m['out_s'], 's')}, {told(m['back_s'], 's')}", ""),
        ("one micro-batch through all", told(m["pass_s"], "s"), ""),
        ("exposed: neither pool's", told(m["exposed_s"], "s"), ""),
    ]
    out.print(table("A pass of one micro-batch", ("where", "time", "busy"), seconds))
    held = [
        (name, told(part["weights"], "B"), told(part["kv"] + part["state"], "B"), told(part["total"], "B"),
         told(part["capacity"], "B"))
        for name, part in memory.items()
    ]  # fmt: skip
    out.print(table("Memory of a chip", ("pool", "weights", "KV and state", "in use, slack", "capacity"), held))
