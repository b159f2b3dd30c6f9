"""Block-sparse attention by hand arithmetic on MiniMax M3."""

import pytest
from kinds import parameters, per_token, rows

from codesign.layers.base import Indexed
from codesign.layers.gqa import GQA
from codesign.layers.msa import MSA

LAYER = MSA(64, 4, 128, 128, index_heads=4, index_width=128, block=128, top_blocks=16, qk_norm=True)
DENSE = GQA(64, 4, 128, 128, qk_norm=True)
H = 6144


def test_indexer_adds_its_projections_and_norms() -> None:
    assert parameters(LAYER, H) - parameters(DENSE, H) == H * 4 * 128 + H * 128 + 2 * 128


def test_cache() -> None:
    assert isinstance(LAYER, Indexed)
    assert 57 * LAYER.index_elements() + 60 * LAYER.cache_elements() == 68_736


def test_scores_grow_with_context_and_the_scan_does_not() -> None:
    assert 57 * per_token(LAYER, H, "index") == 58_368
    assert per_token(LAYER, H, "scan") == 0
    assert per_token(LAYER, H, "scan", "memory") == pytest.approx(0, abs=1e-9)
    assert 57 * rows(LAYER, H, cached=50_000.0)["scan"].tensor / 2048 == 1_867_776
    # A key and, out of a block's best score per index head, one in 128 out and back.
    assert per_token(LAYER, H, "index", "memory") == pytest.approx(128 * 2 + 8 * 4 / 128)


@pytest.mark.parametrize("split", [{}, {"tp": 4}, {"tp": 4, "context": True}])
def test_short_contexts_are_dense(split: dict) -> None:
    sparse, dense = (rows(layer, H, cached=1000.0, **split) for layer in (LAYER, DENSE))
    for lane in ("tensor", "memory", "vector"):
        assert getattr(sparse["scan"], lane) == pytest.approx(getattr(dense["scan"], lane))
    assert sparse["qkv"] == dense["qkv"]


def test_kv_heads_and_their_indexers_split_together() -> None:
    one, four, eight = (rows(LAYER, H, cached=50_000.0, tp=tp) for tp in (1, 4, 8))
    assert four["index"].tensor == one["index"].tensor / 4
    assert eight["index"].tensor == four["index"].tensor  # four heads at most
    assert four["scan"].memory == pytest.approx(one["scan"].memory / 4)
    # Every chip keeps all index keys, so their reads do not shrink.
    assert per_token(LAYER, H, "index", "memory", tp=4) > 128 * 2


def test_context_split() -> None:
    one, split = rows(LAYER, H, cached=50_000.0), rows(LAYER, H, cached=50_000.0, tp=4, context=True)
    assert split["index"].tensor == pytest.approx(one["index"].tensor / 4)
    assert split["index_merge"].scale_up == 3 * 4 * 16 * 8
    # Queries and answers of 64 heads, and queries of 4 index heads: a chip sends its share of the queries to 3 others.
    # Each answer comes with its sum in FP32, and the key and value of the one head here go to the chip that keeps them.
    queries = (64 * 256 + 4 * 128) * 2 + 64 * 4
    assert split["context_merge"].scale_up == pytest.approx(3 / 4 * (queries + 256 * 2))
    # 2,048 tokens are four blocks on each of four chips.
    assert rows(LAYER, H, cached=2047.0, tp=4, context=True)["index_merge"].scale_up == 3 * 4 * 4 * 8
