"""A catalog model made small: the same kinds of blocks and ratios of heads, widths that compile and run in no time.

Widths become powers of two, heads a multiple of 8 with the same ratio of query to key heads, experts 16 in as many
groups as before (at most 8), of which a token visits 2.  All splits over 8 devices then come out even.
"""

from dataclasses import replace
from math import log2
from typing import Any

from codesign.layers.compressed import Compressed
from codesign.layers.dsa import DSA
from codesign.layers.gdn import GDN
from codesign.layers.gqa import GQA
from codesign.layers.kda import KDA
from codesign.layers.lightning import Lightning
from codesign.layers.mamba2 import Mamba2
from codesign.layers.mla import MLA
from codesign.layers.mlp import MLP
from codesign.layers.moe import MoE
from codesign.layers.msa import MSA
from codesign.model import Model

#: Experts of a small mixture, and how many of them a token visits.
EXPERTS, TOP_K = 16, 2

#: Tokens of a small window or chunk.
WINDOW = 32

#: Tokens or entries that a small indexer chooses, a multiple of 8 chips.
CHOSEN = 16


def power_of_two(value: float, least: int) -> int:
    """The power of two nearest in ratio to a value, at least ``least``."""
    return max(least, 2 ** round(log2(max(value, 1.0))))


def _heads(heads: int, others: int) -> tuple[int, int]:
    """Heads for 8 chips: 16 or more and a multiple of 8, with as many per other head as before where that is whole."""
    ratio = heads // others if heads % others == 0 else 1
    few = 1
    while few * ratio % 8 or few * ratio < 16:
        few *= 2
    return few * ratio, few


def _width(width: int) -> int:
    return power_of_two(width / 8, 8)


def small_layer(layer: Any) -> Any | None:
    """A layer kind with small dimensions, or None where there is no executable reference of its kind."""
    if isinstance(layer, GQA):
        heads, kv_heads = _heads(layer.heads, layer.kv_heads)
        return replace(
            layer, heads=heads, kv_heads=kv_heads, key_width=_width(layer.key_width),
            value_width=_width(layer.value_width), window=layer.window and WINDOW, chunk=layer.chunk and WINDOW,
            q_rank=layer.q_rank and power_of_two(layer.q_rank / 32, 16),
        )  # fmt: skip
    if isinstance(layer, MLA):
        return replace(
            layer, heads=16, q_rank=layer.q_rank and power_of_two(layer.q_rank / 32, 16),
            kv_rank=power_of_two(layer.kv_rank / 8, 16), nope=_width(layer.nope), rope=_width(layer.rope),
            value=_width(layer.value),
        )  # fmt: skip
    if isinstance(layer, DSA):
        return replace(
            layer, heads=16, q_rank=power_of_two(layer.q_rank / 32, 16), kv_rank=power_of_two(layer.kv_rank / 8, 16),
            nope=_width(layer.nope), rope=_width(layer.rope), value=_width(layer.value), index_heads=8,
            index_width=_width(layer.index_width), top_k=CHOSEN,
        )  # fmt: skip
    if isinstance(layer, MSA):  # two key heads, each with as many query heads as before, and its index heads
        return replace(
            layer, heads=2 * max(8, layer.heads // layer.kv_heads), kv_heads=2, key_width=_width(layer.key_width),
            value_width=_width(layer.value_width), index_heads=1 if layer.index_heads < layer.kv_heads else 2,
            index_width=_width(layer.index_width), block=4, top_blocks=8,
        )  # fmt: skip
    if isinstance(layer, Compressed):  # two splits of four groups: some on every chip, or one on some chips
        return replace(
            layer, heads=4 * max(2, layer.heads // layer.out_groups), width=_width(layer.width),
            q_rank=power_of_two(layer.q_rank / 32, 16), window=WINDOW, out_groups=4,
            out_rank=power_of_two(layer.out_rank / 32, 16), ratio=min(layer.ratio, 16),
            index_heads=layer.index_heads and 8, index_width=layer.index_width and _width(layer.index_width),
            top_k=layer.top_k and CHOSEN // 2,
        )  # fmt: skip
    if isinstance(layer, KDA):
        value_heads, heads = _heads(layer.value_heads, layer.heads)
        heads, value_heads = (heads * (8 // heads), value_heads * (8 // heads)) if heads < 8 else (heads, value_heads)
        return replace(
            layer, heads=heads, value_heads=value_heads, key_width=_width(layer.key_width),
            value_width=_width(layer.value_width), decay_rank=power_of_two(layer.decay_rank / 8, 8),
            gate_rank=layer.gate_rank and power_of_two(layer.gate_rank / 8, 8),
        )  # fmt: skip
    if isinstance(layer, GDN):
        value_heads, heads = _heads(layer.value_heads, layer.heads)
        heads, value_heads = (heads * (8 // heads), value_heads * (8 // heads)) if heads < 8 else (heads, value_heads)
        return replace(
            layer, heads=heads, value_heads=value_heads, key_width=_width(layer.key_width),
            value_width=_width(layer.value_width),
        )  # fmt: skip
    if isinstance(layer, Lightning):
        return replace(layer, heads=16, key_width=_width(layer.key_width), value_width=_width(layer.value_width))
    if isinstance(layer, Mamba2):  # two splits of four groups: some on every chip, or one on some chips
        return replace(
            layer, heads=4 * max(2, layer.heads // layer.groups), groups=4, head_width=_width(layer.head_width),
            state_width=_width(layer.state_width),
        )  # fmt: skip
    if isinstance(layer, MLP):
        return replace(layer, inner=power_of_two(layer.inner / 64, 64))
    if isinstance(layer, MoE):
        groups = min(layer.groups, 8)
        return replace(
            layer, experts=EXPERTS, top_k=min(layer.top_k, TOP_K), inner=power_of_two(layer.inner / 64, 32),
            width=layer.width and power_of_two(layer.width / 64, 32),
            shared_inner=layer.shared_inner and power_of_two(layer.shared_inner / 64, 32),
            groups=groups, top_groups=min(layer.top_groups, groups),
        )  # fmt: skip
    return None


def small_model(model: Model) -> tuple[Model, tuple[str, ...]]:
    """The model made small, each block once, and the names of blocks that cannot be executed."""
    found, missing = [], []
    for name, layer in model.blocks:
        small = small_layer(layer)
        if small is None:
            missing.append(name)
        else:
            found.append((name, small))
    small = replace(
        model, hidden=power_of_two(model.hidden / 64, 32), vocab=power_of_two(model.vocab / 256, 128),
        blocks=tuple(found), layers=(tuple((i,) for i in range(len(found))),) if found else (), drafts=None,
    )  # fmt: skip
    return small, tuple(missing)
