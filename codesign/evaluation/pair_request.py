"""Which arguments of a request have a meaning for a pair of pools: attention on one part, experts on another."""

from collections.abc import Mapping
from typing import Any

from codesign.errors import CodesignError

#: Arguments that a pair takes.
OF_A_PAIR = (
    "context", "tpot", "batch", "chips", "tp", "ep", "microbatches", "drafts", "skew", "output", "copies",
    "capacity_factor", "overflow", "dispatch", "weights", "kv_dtype", "attention_dtype", "ideal", "set", "workspace",
)  # fmt: skip

#: Arguments of an evaluation that a pair does not take.
FOREIGN = (
    "attention_split", "cached", "chunk", "concurrency", "dp", "framework", "isl", "new", "osl", "pp", "ttft",
)  # fmt: skip


#: Arguments of the link between two pools.
LINK = ("link_bandwidth", "link_latency")


def refuse_alone(given: Mapping[str, Any]) -> None:
    """Refuse arguments that have a meaning only where experts are on another system.

    Args:
        given: arguments by name; None is not given.

    Raises:
        CodesignError: one is given.
    """
    for name in ("expert_chips", *LINK):
        if given.get(name) is not None:
            key = name if name in LINK else f"--{name.replace('_', '-')}"
            raise CodesignError("has no meaning without another system", key=key, allowed="with --experts-on")


def pair_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a pair takes of the arguments of an evaluation.

    Args:
        given: ``phase``, and arguments by name; None is not given.

    Raises:
        CodesignError: another phase than decode, or an argument that has no meaning for two pools.
    """
    if given["phase"] != "decode":
        raise CodesignError(f"two pools in {given['phase']}", key="--experts-on", allowed="--phase decode")
    for name in FOREIGN:
        if given[name] is not None:
            told = ", ".join(f"--{n.replace('_', '-')}" for n in ("expert_chips", *OF_A_PAIR))
            raise CodesignError("has no meaning for two pools", key=f"--{name.replace('_', '-')}", allowed=told)
    return {name: given[name] for name in OF_A_PAIR}
