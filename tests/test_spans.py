"""Attended lengths against sums over tokens, and the union of selections against draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.layers.spans import chunk_mean, chunk_read, clipped_mean, union_read

LENGTHS = st.integers(0, 300), st.integers(1, 90), st.integers(1, 64)


@given(*LENGTHS)
def test_clipped_mean_is_the_mean_over_tokens(cached: int, new: int, limit: int) -> None:
    by_token = np.minimum(cached + np.arange(1, new + 1), limit)
    assert float(clipped_mean(float(cached), float(new), float(limit))) == pytest.approx(by_token.mean(), rel=1e-12)


@given(*LENGTHS)
def test_chunk_mean_is_the_mean_over_tokens(cached: int, new: int, chunk: int) -> None:
    positions = cached + np.arange(new)  # counted from 0
    by_token = 1 + positions % chunk
    assert float(chunk_mean(float(cached), float(new), chunk)) == pytest.approx(by_token.mean(), rel=1e-12)
    # What is read starts with the chunk of the first new token and ends with the last one.
    first = positions[0] // chunk * chunk
    assert float(chunk_read(float(cached), float(new), chunk)) == pytest.approx(positions[-1] + 1 - first)


def test_whole_chunks_have_the_mean_of_one_to_w() -> None:
    assert float(chunk_mean(8192.0 * 3, 8192.0 * 2, 8192)) == pytest.approx((8192 + 1) / 2)


@given(st.floats(0, 1e6), st.floats(1, 1e4), st.sampled_from((128, 8192)))
def test_lengths_are_continuous(cached: float, new: float, limit: int) -> None:
    for law in (clipped_mean, chunk_mean):
        here, there = (float(law(cached + d, new, limit)) for d in (0.0, 1e-6))
        # A single token at the border of a chunk is where attended lengths fall from w to 1.
        assert abs(there - here) < 1e-6 * (2 + limit / new) + 1e-9 * cached


@pytest.mark.parametrize(("seen", "chosen", "new"), [(64, 8, 1), (64, 8, 5), (50, 20, 12), (16, 16, 3)])
def test_union_of_independent_selections(seen: int, chosen: int, new: int) -> None:
    draw = np.random.default_rng(1)
    sizes = [
        len({int(i) for _ in range(new) for i in draw.choice(seen, chosen, replace=False)}) for _ in range(4000)
    ]  # fmt: skip
    expected = float(union_read(float(seen), float(chosen), float(new)))
    assert expected == pytest.approx(float(np.mean(sizes)), abs=4 * float(np.std(sizes)) / 63 + 1e-9)
    assert chosen <= expected + 1e-9 <= min(seen, new * chosen) + 2e-9


def test_fewer_tokens_than_choices_are_all_read() -> None:
    assert float(union_read(100.0, 2048.0, 7.0)) == 100.0
