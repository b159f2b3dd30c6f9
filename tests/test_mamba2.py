"""Mamba-2 by hand arithmetic on Nemotron 3 Nano."""

import pytest
from kinds import parameters, rows, weight_flop

from codesign.layers.mamba2 import Mamba2

LAYER = Mamba2(heads=64, head_width=64, state_width=128, groups=8)
INNER, SHARED, H = 64 * 64, 2 * 8 * 128, 2688


def test_parameters() -> None:
    matrices = H * (2 * INNER + SHARED + 64) + INNER * H  # z, x, B, C and the step size in; out
    small = 5 * (INNER + SHARED) + 3 * 64 + INNER  # four taps and a bias; A_log, D, step's bias; gated norm
    assert parameters(LAYER, H) == matrices + small + H
    assert weight_flop(rows(LAYER, H), "qkv", "output") == matrices
    bare = Mamba2(heads=64, head_width=64, state_width=128, groups=8, conv_bias=False)
    assert parameters(LAYER, H) - parameters(bare, H) == INNER + SHARED


def test_state() -> None:
    cells, conv = LAYER.state_elements()
    assert 23 * (cells * 4 + conv * 2) == 49_082_368  # all Mamba layers of Nano, per sequence


def test_decode_step_has_no_correction() -> None:
    state = rows(LAYER, H)["state"]
    cells = 64 * 64 * 128
    assert state.tensor == 2 * cells
    assert 3 * cells < state.vector < 3.4 * cells
    assert 23 * 5 * cells == 60_293_120


def test_chunks_share_the_scores_of_a_group() -> None:
    long = rows(LAYER, H, new=4096.0, block=True, form=1)["state"]
    # Scores of B and C per group, their product with x per head; then 4 per state element.
    assert long.tensor / 4096 == 2 * 64 * (8 * 128 + INNER) + 4 * 64 * 64 * 128


def test_groups_are_replicated_where_tp_outgrows_them() -> None:
    one, sixteen = rows(LAYER, H), rows(LAYER, H, tp=16)
    wide = H * (2 * INNER + 64)
    assert weight_flop(one, "qkv") == wide + H * SHARED
    assert weight_flop(sixteen, "qkv") == wide / 16 + H * SHARED / 8
    assert sixteen["state"].tensor == pytest.approx(one["state"].tensor / 16)
    kinds = {(w.split, w.limit) for w in LAYER.weights(H)}
    assert ("kv", 8) in kinds
