"""Lightning attention by hand arithmetic on MiniMax M1."""

import pytest
from kinds import parameters, rows, weight_flop

from codesign.layers.lightning import Lightning

LAYER = Lightning(heads=64, key_width=128, value_width=128)
D, H = 64 * 128, 6144


def test_parameters() -> None:
    # q, k, v, gate and out, a norm over all heads and the layer's own.
    assert parameters(LAYER, H) == 5 * H * D + D + H
    assert weight_flop(rows(LAYER, H), "qkv", "output") == 5 * H * D


def test_state() -> None:
    assert LAYER.state_elements() == (64 * 128 * 128, 0.0)
    assert 70 * LAYER.state_elements()[0] * 4 == 293_601_280  # all linear layers of M1, per sequence
    assert (LAYER.cache_elements(), LAYER.window_elements()) == (0.0, 0.0)


def test_decode_step_has_no_correction() -> None:
    state = rows(LAYER, H)["state"]
    cells = 64 * 128 * 128
    assert state.tensor == 2 * cells
    assert state.vector == pytest.approx(3 * cells, rel=0.1)
    # Five operations per state element in all: 367,001,600 over the 70 layers.
    assert 70 * 5 * cells == 367_001_600
    assert state.memory == pytest.approx(2 * cells * 4, rel=0.01)


def test_chunks() -> None:
    long = rows(LAYER, H, new=4096.0, block=True, form=1)["state"]
    assert long.tensor / 4096 == 64 * (2 * 64 * (128 + 128) + 4 * 128 * 128)


def test_heads_split_over_tp() -> None:
    one, four = rows(LAYER, H), rows(LAYER, H, tp=4)
    for name in ("qkv", "state", "output"):
        assert four[name].memory == pytest.approx(one[name].memory / 4, rel=0.01)
