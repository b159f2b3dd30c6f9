"""Published components and deployments beside the model: bytes by hand, and every miss with its reason."""

import pytest

from codesign.calibration.components import DEEPEP, MISS, components
from codesign.runtime import prepare

prepare()


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    return {row["name"]: row for row in components()}


def test_every_published_figure_has_a_row(rows: dict[str, dict]) -> None:
    assert len(rows) == 2 * len(DEEPEP) + 2
    for row in rows.values():
        assert row["ratio"] == pytest.approx(row["predicted"] / row["published"])
        assert row["source"] and row["told"]


def test_bytes_of_an_exchange_by_hand(rows: dict[str, dict]) -> None:
    # 128 tokens x 8 routes x 7,168 channels in FP8, 255 of 256 ranks elsewhere, 248 of these 255 in other nodes; out
    # go the number and the gate of each route, 8 B.
    channels = 128 * 8 * 7168 * 255 / 256 / 1e6
    sent = channels * (7168 + 8) / 7168
    told = rows["DeepEP dispatch, EP 256"]["told"]
    assert told.startswith(f"{sent:.3g} MB to other chips, {sent * 248 / 255:.3g} MB of them beyond the node")
    assert rows["DeepEP combine, EP 256"]["told"].startswith(f"{2 * channels:.3g} MB")


def test_misses_have_reasons(rows: dict[str, dict]) -> None:
    for name, row in rows.items():
        if name.startswith("DeepEP") and abs(row["ratio"] - 1.0) > MISS:
            assert "GB/s where the kernel sends" in row["told"]
    across = [row["ratio"] for name, row in rows.items() if name.startswith("DeepEP") and "EP 8" not in name]
    assert max(abs(r - 1.0) for r in across) < 0.15
    for name in rows:
        if name.startswith("DeepSeek"):
            assert "without" in rows[name]["told"] and 0.7 < rows[name]["ratio"] < 1.3
