"""Gated DeltaNet by hand arithmetic on Qwen3.5."""

from itertools import pairwise

import pytest
from kinds import parameters, rows, weight_flop

from codesign.layers.gdn import GDN

LAYER = GDN(heads=16, value_heads=64, key_width=128, value_width=128)
Q, V, H = 16 * 128, 64 * 128, 4096


def test_parameters() -> None:
    projections = H * (2 * Q + V) + H * V + 2 * H * 64 + V * H  # q k v, output gate, beta and decay, out
    small = 4 * (2 * Q + V) + 64 + 64 + 128  # taps, A_log, its bias, norm of a head
    assert parameters(LAYER, H) == projections + small + H
    assert weight_flop(rows(LAYER, H), "qkv", "output") == projections + 4 * (2 * Q + V)


def test_state() -> None:
    cells, conv = LAYER.state_elements()
    assert 45 * (cells * 4 + conv * 2) == 192_061_440  # all linear layers of Qwen3.5-397B, per sequence
    assert (LAYER.cache_elements(), LAYER.window_elements()) == (0.0, 0.0)


def test_decode_step() -> None:
    state = rows(LAYER, H, batch=3.0)["state"]
    assert state.tensor == 3 * 4 * 64 * 128 * 128
    # Decay and update of the state; gates, norm and taps are a few per cent more.
    assert 3 * 3 * 64 * 128 * 128 < state.vector < 3 * 3.3 * 64 * 128 * 128
    cells, conv = LAYER.state_elements()
    assert state.memory == pytest.approx(3 * 2 * (cells * 4 + conv * 2), rel=0.01)


def test_context_costs_nothing() -> None:
    assert rows(LAYER, H, cached=1e6) == rows(LAYER, H, cached=10.0)


def test_drafts_write_a_state_each_and_long_blocks_one_per_chunk() -> None:
    cells, conv = LAYER.state_elements()
    kept = cells * 4 + conv * 2

    def states(new: float, drafts: float) -> float:
        found = rows(LAYER, H, new=new, drafts=drafts, block=not drafts, form=int(not drafts))["state"].memory
        return float(found - new * (2 * Q + 3 * V + 128) * 2) / kept

    assert [states(q, q - 1.0) for q in (1.0, 2.0, 8.0)] == pytest.approx([2, 3, 9])
    assert states(8192.0, 0.0) == pytest.approx(2 * 8192 / 64)
    found = [states(float(q), 0.0) for q in range(1, 1200)]
    assert all(b >= a - 1e-6 for a, b in pairwise(found))


def test_chunks_trade_elementwise_work_for_matrix_work() -> None:
    short, long = (rows(LAYER, H, new=q, block=True, form=i)["state"] for i, q in enumerate((1.0, 4096.0)))
    # 2 L (2 d_k + d_v) inside a chunk of 64 and 6 d_k d_v between chunks, per value head.
    assert long.tensor / 4096 == 64 * (2 * 64 * 3 * 128 + 6 * 128 * 128)
    assert long.vector / 4096 < 0.3 * short.vector


def test_heads_split_over_tp() -> None:
    one, eight = rows(LAYER, H), rows(LAYER, H, tp=8)
    for name in ("qkv", "state", "output"):
        assert eight[name].tensor == pytest.approx(one[name].tensor / 8)
    assert eight["state"].memory == pytest.approx(one["state"].memory / 8)
    assert eight["all_reduce"].scale_up > one["all_reduce"].scale_up == 0
