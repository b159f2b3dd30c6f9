"""Hyper-connections: several residual streams cost bytes around every block and between stages."""

from dataclasses import replace
from typing import Any

import pytest
from cases import machine, step
from kinds import BF16
from test_counts import load

from codesign.model import Model
from codesign.work import Pass, pass_rows


def passed(model: Model) -> Pass:
    """A pass of 5 tokens over two stages."""
    return pass_rows(model, step(machine(), BF16, batch=5.0), 2.0)


def test_one_stream_is_the_plain_residual() -> None:
    model = replace(load("deepseek-v4-flash"), streams=1)
    norm = passed(model).blocks[0][0]
    assert norm.memory == 4 * 5 * 4096 * 2
    assert norm.tensor == 0


def test_four_streams() -> None:
    model = load("deepseek-v4-flash")
    assert model.streams == 4
    four, one = passed(model), passed(replace(model, streams=1))
    norm, h = four.blocks[0][0], 4096
    # 4 + 4 + 16 mixing weights per token, each a product with all four streams.
    mixing = 24 * 4 * h
    assert norm.tensor == 2 * 5 * mixing
    # Four streams and the block's output read, four and the block's input written, the mixing matrix read once.
    assert norm.memory == (4 + 1 + 4 + 1) * 5 * h * 2 + mixing * 2
    assert four.hand_off.scale_up == pytest.approx(4 * one.hand_off.scale_up)
    # The blocks themselves see one stream.
    assert [row.memory for row in four.blocks[0][1:]] == [row.memory for row in one.blocks[0][1:]]


def test_streams_are_counted_among_the_norms() -> None:
    model = load("deepseek-v4-flash")
    blocks: tuple[tuple[str, Any], ...] = model.blocks
    plain = replace(model, blocks=tuple((name, replace(block, norms=1)) for name, block in blocks))
    more = model.counts().total_parameters - plain.counts().total_parameters
    assert more == 2 * 43 * 24 * 4 * 4096
