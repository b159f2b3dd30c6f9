"""Compressed attention by hand arithmetic on DeepSeek V4 Pro."""

from typing import Any

import pytest
from kinds import parameters, per_token, rows, weight_flop

from codesign.layers.base import Indexed
from codesign.layers.compressed import Compressed

BASE: dict[str, Any] = {"heads": 128, "width": 512, "q_rank": 1536, "window": 128, "out_groups": 16, "out_rank": 1024}
WINDOW = Compressed(**BASE)
HCA = Compressed(**BASE, ratio=128)
CSA = Compressed(**BASE, ratio=4, overlap=True, index_heads=64, index_width=128, top_k=1024)
H = 7168

MATRICES = H * 1536 + 1536 * 128 * 512 + H * 512 + 128 * 512 * 1024 + 16 * 1024 * H
INDEX = 4 * H * 128 + 1536 * 64 * 128 + H * 64


def test_parameters() -> None:
    small = 1536 + 512 + 128 + H  # norms of rank and key, a sink per head, the layer's own
    assert parameters(WINDOW, H) == MATRICES + small
    # One series of values and gates, a bias per position, a norm.
    assert parameters(HCA, H) - parameters(WINDOW, H) == 2 * H * 512 + 128 * 512 + 512
    # Two series, and an indexer with a compressor of its own.
    more = 4 * H * 512 + 4 * 2 * 512 + 512 + INDEX + 4 * 2 * 128 + 128
    assert parameters(CSA, H) - parameters(WINDOW, H) == more


@pytest.mark.parametrize(
    ("layer", "matrices"),
    [(WINDOW, MATRICES), (HCA, MATRICES + 2 * H * 512), (CSA, MATRICES + 4 * H * 512 + INDEX)],
)
def test_every_matrix_is_multiplied_once(layer: Compressed, matrices: int) -> None:
    found = rows(layer, H)
    assert weight_flop(found, *(name for name in ("qkv", "index_qk", "output") if name in found)) == matrices


def test_cache() -> None:
    assert isinstance(CSA, Indexed)
    entries = 30 * (CSA.cache_elements() + CSA.index_elements()) + 31 * (HCA.cache_elements() + HCA.index_elements())
    assert entries == 4924.0
    assert 30 * CSA.window_elements() + 31 * HCA.window_elements() == 3_997_696
    assert WINDOW.cache_elements() == WINDOW.index_elements() == 0


def test_scan_and_indexer_flop() -> None:
    assert 31 * per_token(HCA, H, "scan") == 63_488
    assert 30 * per_token(CSA, H, "index") == 122_880
    assert per_token(CSA, H, "scan") == 0
    window = rows(WINDOW, H, cached=50_000.0)["scan"].tensor
    assert 61 * window / 128 == 15_990_784
    chosen = rows(CSA, H, cached=50_000.0)["scan"].tensor - window
    assert 30 * chosen / 1024 == 7_864_320


def test_short_contexts_choose_all_entries() -> None:
    # 2,000 tokens make 500 entries, fewer than the 1,024 that may be chosen.
    found = rows(CSA, H, cached=1999.0)["scan"].tensor - rows(WINDOW, H, cached=1999.0)["scan"].tensor
    assert found == pytest.approx(4 * 128 * 512 * 2000 / 4)


def test_bytes_of_the_scan() -> None:
    assert per_token(HCA, H, "scan", "memory") == 512 * 2 / 128
    assert per_token(WINDOW, H, "scan", "memory") == 0
    assert per_token(CSA, H, "scan", "memory") == pytest.approx(0, abs=1e-9)
    assert per_token(CSA, H, "index", "memory") == (128 * 2 + 8) / 4
    # 128 plain entries and 1,024 chosen ones are read, 1 + 1/4 written; queries, outputs, values and gates pass.
    found = rows(CSA, H, cached=50_000.0)["scan"].memory
    assert found == pytest.approx(((128 + 1024 + 1.25) * 512 + 2 * 128 * 512 + 4 * 512) * 2)


def test_splits() -> None:
    one = rows(HCA, H, cached=50_000.0)
    heads, context = (rows(HCA, H, cached=50_000.0, tp=32, context=flag) for flag in (False, True))
    assert heads["scan"].tensor == one["scan"].tensor / 32
    # One key for all heads: every chip reads it whole, or its range.
    assert per_token(HCA, H, "scan", "memory", tp=32) == 8.0
    assert per_token(HCA, H, "scan", "memory", tp=32, context=True) == pytest.approx(8.0 / 32)
    # Sixteen output groups split no further.
    assert weight_flop(heads, "output") == 128 * 512 * 1024 / 32 + 1024 * H
    assert heads["context_merge"].scale_up == 0 < context["context_merge"].scale_up
    # Candidates of 8 bytes from each of 8 chips: 1,024, or the 128 entries that 512 tokens make.
    for cached, candidates in ((79_999.0, 1024), (4095.0, 128)):
        found = rows(CSA, H, cached=cached, tp=8, context=True)["index_merge"].scale_up
        assert found == pytest.approx(7 * candidates * 8)
