"""What an architecture's reader finds: blocks, the stack of layers, and where modules lie in the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codesign.catalog.importing.config import Config


@dataclass
class Structure:
    """A model's structure, as the tables of its file.

    Attributes:
        blocks: fields of each block, ``kind`` among them.
        layers: blocks of each layer, in order.
        paths: for each block, the path of its module inside a layer of the checkpoint, e.g. ``self_attn``.
        experts, shared, router: paths of these inside a mixture's module.
        leaves: names of an expert's, or a dense layer's, matrices.
        starts, ends: blocks whose layer begins, or ends, a group that a pipeline would rather not cut.
        streams: residual streams.
        run: layers per source of attention residuals, 0 for plain residuals.
    """

    blocks: dict[str, dict[str, Any]]
    layers: list[tuple[str, ...]]
    paths: dict[str, str]
    experts: str = "experts.0"
    shared: str = "shared_experts"
    router: str = "gate"
    leaves: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    starts: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    streams: int = 1
    run: int = 0

    def prune(self) -> "Structure":
        """Drop blocks that no layer uses."""
        used = {name for layer in self.layers for name in layer}
        self.blocks = {name: table for name, table in self.blocks.items() if name in used}
        return self


def head_width(c: Config, derived: bool = False) -> int:
    """Width of a head; where the architecture derives it and the field is absent, hidden over heads."""
    given = c.optional("head_dim", "attention_head_dim")
    if given is not None or not derived:
        return given or c.whole("head_dim", "attention_head_dim")
    c.note(f"head_dim is not given: hidden_size over num_attention_heads, as {c.family} defines it")
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    if hidden % heads:
        raise c.error(f"{heads} does not divide hidden_size {hidden}", "num_attention_heads", "head_dim, or a divisor")
    return hidden // heads


def gqa(c: Config, *, derived: bool = False, **more: Any) -> dict[str, Any]:
    """The table of a grouped-query attention block with equal key and value widths."""
    width = head_width(c, derived)
    table = {
        "kind": "gqa", "heads": c.whole("num_attention_heads"),
        "kv_heads": c.whole("num_key_value_heads", "num_attention_groups"), "key_width": width, "value_width": width,
    }  # fmt: skip
    return table | {key: value for key, value in more.items() if value}


def mlp(inner: int, **more: Any) -> dict[str, Any]:
    """The table of a dense feed-forward block."""
    return {"kind": "mlp", "inner": inner} | more


def moe(experts: int, top_k: int, inner: int, **more: Any) -> dict[str, Any]:
    """The table of a mixture of experts; what is false or nothing is left out."""
    return {"kind": "moe", "experts": experts, "top_k": top_k, "inner": inner} | {
        key: value for key, value in more.items() if value not in (None, 0) or key == "gated"
    }


def groups(structure: Structure) -> list[list[tuple[str, ...]]]:
    """The stack cut into layer groups: each layer alone, or between ``starts`` and ``ends``."""
    if not structure.starts and not structure.ends:
        return [[layer] for layer in structure.layers]
    found: list[list[tuple[str, ...]]] = [[]]
    for layer in structure.layers:
        if found[-1] and structure.starts.intersection(layer):
            found.append([])
        found[-1].append(layer)
        if structure.ends.intersection(layer):
            found.append([])
    return [group for group in found if group]


def runs(found: Sequence[Any]) -> list[tuple[int, Any]]:
    """Run lengths of equal neighbours."""
    counted: list[tuple[int, Any]] = []
    for entry in found:
        if counted and counted[-1][1] == entry:
            counted[-1] = (counted[-1][0] + 1, entry)
        else:
            counted.append((1, entry))
    return counted


def by_first_dense(c: Config, depth: int) -> list[str]:
    """``dense`` or ``moe`` per layer, by list or by ``first_k_dense_replace`` and ``moe_layer_freq``."""
    allowed = {"dense": "dense", "sparse": "moe", "moe": "moe", "hash_moe": "moe"}
    given = c.kinds("mlp_layer_types", length=depth, allowed=allowed)
    if given is not None:
        return given
    if isinstance(c.get("moe_layer_freq"), list):
        return c.required_kinds("moe_layer_freq", length=depth, allowed={0: "dense", 1: "moe"})
    first = c.whole("first_k_dense_replace", least=0)
    every = c.optional("moe_layer_freq") or 1
    return ["moe" if i >= first and i % every == 0 else "dense" for i in range(depth)]


def grouping(c: Config, key: str = "n_group") -> dict[str, int]:
    """Groups of experts and how many of them a token may visit; nothing where there is one group."""
    count = c.whole(key)
    return {"groups": count, "top_groups": c.whole("topk_group")} if count > 1 else {}


def noaux(c: Config, default: bool) -> bool:
    """Whether the router has a correction bias per expert: ``topk_method``, else as the architecture defines it."""
    method = c.word("topk_method")
    return default if method is None else method == "noaux_tc"
