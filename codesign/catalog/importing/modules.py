"""The matrices of a structure as the checkpoint names them, with their tensor class and size."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from codesign.catalog.importing.structure import Structure


class Module(NamedTuple):
    """A matrix of a layer.

    Attributes:
        name: without the model's prefix, e.g. ``layers.3.self_attn.o_proj``.
        kind: tensor class of a model file.
        parameters: of all that this one stands for (one expert stands for its layer's).
        experts: how many that are.
    """

    name: str
    kind: str
    parameters: int
    experts: int = 1


def modules(structure: Structure, hidden: int) -> Iterator[Module]:
    """Every matrix of every layer; what a class has beside matrices (norms, biases) is left out."""
    for i, layer in enumerate(structure.layers):
        for block in layer:
            table = structure.blocks[block]
            path = ".".join(part for part in (f"layers.{i}", structure.paths[block]) if part)
            for leaf, kind, parameters in _matrices(structure, table, hidden):
                yield Module(f"{path}.{leaf}", kind, parameters, table["experts"] if kind == "routed" else 1)


def _matrices(s: Structure, t: dict[str, Any], hidden: int) -> Iterator[tuple[str, str, int]]:
    kind = t["kind"]
    if kind == "mlp":
        for leaf in s.leaves if s.leaves[0] != "w1" else ("gate_proj", "up_proj", "down_proj"):
            yield leaf, "dense", hidden * t["inner"]
    elif kind == "moe":
        yield from _mixture(s, t, hidden)
    else:
        for leaf, parameters in _attention(kind, t, hidden):
            yield leaf, "attention", parameters


def _mixture(s: Structure, t: dict[str, Any], hidden: int) -> Iterator[tuple[str, str, int]]:
    width = t.get("width") or hidden
    for leaf in s.leaves:
        yield f"{s.experts}.{leaf}", "routed", t["experts"] * width * t["inner"]
        if t.get("shared_inner"):
            named = leaf if leaf[0] != "w" else {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[leaf]
            yield f"{s.shared}.{named}", "shared", hidden * t["shared_inner"]
    yield s.router, "router", hidden * t["experts"]
    if t.get("width"):
        for leaf in ("fc1_latent_proj", "fc2_latent_proj"):
            yield leaf, "latent", hidden * width


def _attention(kind: str, t: dict[str, Any], hidden: int) -> Iterator[tuple[str, int]]:
    heads = t["heads"]
    if kind in ("gqa", "msa"):
        q, kv, out = heads * t["key_width"], t["kv_heads"], heads * t["value_width"]
        yield "q_proj", hidden * (q + (out if t.get("gate") else 0))
        yield "k_proj", hidden * kv * t["key_width"]
        yield "v_proj", hidden * kv * t["value_width"]
        yield "o_proj", hidden * out
        if kind == "msa":
            yield "index_q_proj", hidden * t["index_heads"] * t["index_width"]
            yield "index_k_proj", hidden * t["index_width"]
    elif kind in ("mla", "dsa"):
        rank, key = t.get("q_rank"), t["nope"] + t["rope"]
        if rank:
            yield "q_a_proj", hidden * rank
        yield "q_b_proj" if rank else "q_proj", (rank or hidden) * heads * key
        yield "kv_a_proj_with_mqa", hidden * (t["kv_rank"] + t["rope"])
        yield "kv_b_proj", t["kv_rank"] * heads * (t["nope"] + t["value"])
        yield "o_proj", heads * t["value"] * hidden
        if kind == "dsa" and not t.get("shared_index"):
            yield "indexer.wq_b", rank * t["index_heads"] * t["index_width"]
            yield "indexer.wk", hidden * t["index_width"]
    elif kind in ("gdn", "kda"):
        q, v = heads * t["key_width"], t["value_heads"] * t["value_width"]
        for leaf in ("in_proj_qkv",) if kind == "gdn" else ("q_proj", "k_proj", "v_proj"):
            yield leaf, hidden * (2 * q + v) if kind == "gdn" else hidden * q
        yield "in_proj_z" if kind == "gdn" else "g_proj", hidden * v
        yield "out_proj" if kind == "gdn" else "o_proj", hidden * v
    elif kind == "lightning":
        yield "qkv_proj", hidden * heads * (2 * t["key_width"] + t["value_width"])
        yield "output_gate", hidden * heads * t["value_width"]
        yield "out_proj", hidden * heads * t["value_width"]
    elif kind == "mamba2":
        inner = heads * t["head_width"]
        yield "in_proj", hidden * (2 * inner + 2 * t["groups"] * t["state_width"] + heads)
        yield "out_proj", hidden * inner
    elif kind == "compressed":
        wide = heads * t["width"]
        yield "wq_a", hidden * t["q_rank"]
        yield "wq_b", t["q_rank"] * wide
        yield "wkv", hidden * t["width"]
        yield "wo_a", wide * t["out_rank"]
        yield "wo_b", t["out_groups"] * t["out_rank"] * hidden
