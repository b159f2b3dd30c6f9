"""Options of grouped-query attention: chunks, gates, biases, tied values, factorised queries."""

from typing import Any

import pytest
from kinds import parameters, per_token, rows, weight_flop

from codesign.layers.gqa import GQA

PLAIN: dict[str, Any] = {"heads": 8, "kv_heads": 2, "key_width": 16, "value_width": 16}
H = 64


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ({"gate": True}, H * 8 * 16),
        ({"head_gate": True}, H * 8),
        ({"qkv_bias": True}, 8 * 16 + 2 * 2 * 16),
        ({"bias": True}, 8 * 16 + 2 * 2 * 16 + H),
        ({"tied_values": True}, -H * 2 * 16),
        ({"q_rank": 24}, H * 24 + 24 + 24 * 8 * 16 - H * 8 * 16),  # down, its norm, up, instead of one matrix
        ({"chunk": 32}, 0),
    ],
)
def test_parameters_of_each_option(option: dict, more: int) -> None:
    assert parameters(GQA(**PLAIN, **option), H) - parameters(GQA(**PLAIN), H) == more


@pytest.mark.parametrize("option", [{}, {"gate": True}, {"head_gate": True}, {"tied_values": True}, {"q_rank": 24}])
def test_every_matrix_is_multiplied_once(option: dict) -> None:
    layer = GQA(**PLAIN, **option, norms=0)
    norm = 24 if "q_rank" in option else 0
    assert weight_flop(rows(layer, H), "qkv", "output") == parameters(layer, H) - norm


def test_tied_values_are_cached_all_the_same() -> None:
    assert GQA(**PLAIN, tied_values=True).cache_elements() == GQA(**PLAIN).cache_elements() == 2 * 32


def test_chunks_hold_a_bounded_cache_and_attend_inside_it() -> None:
    layer = GQA(**PLAIN, chunk=32)
    assert (layer.cache_elements(), layer.window_elements()) == (0.0, 32 * 2 * 32)
    # Token 70 (counted from 0) is the seventh of its chunk of 32; a token at 96 sees itself alone.
    seventh, first = (rows(layer, H, cached=c)["scan"] for c in (70.0, 96.0))
    assert seventh.tensor / first.tensor == pytest.approx(7)
    assert first.tensor == 2 * 8 * 32
    # Seven tokens are read and one written; queries and outputs pass too.
    assert seventh.memory == (7 + 1) * 2 * 32 * 2 + 8 * 32 * 2


def test_step3_scans_one_head_for_all_queries() -> None:
    layer = GQA(64, 1, 256, 256, q_rank=2048)
    # 61 layers scan 3,997,696 FLOP per cached token and query token (arXiv:2507.19427, counted from the structure).
    assert 61 * per_token(layer, 7168, "scan") == 3_997_696
    assert 61 * per_token(layer, 7168, "scan", "memory") == 62_464
    # One KV head cannot be split by heads: every chip reads all of it; by context each reads its share.
    assert per_token(layer, 7168, "scan", "memory", tp=8) == 2 * 256 * 2
    assert per_token(layer, 7168, "scan", "memory", tp=8, context=True) == pytest.approx(2 * 256 * 2 / 8)
