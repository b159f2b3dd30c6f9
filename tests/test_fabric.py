"""Collectives against simulated ones that pass real blocks from chip to chip, and hops as they show in TPOT."""

import numpy as np
import pytest
from cases import case, changed, decoded, load, machine, mapping

from codesign.fabric import all_gather, all_reduce, all_to_all, crossing, hand_off
from codesign.lanes import Row

GROUPS = (2, 3, 4, 8)


def sent(row: Row) -> float:
    return float(row.scale_up) + float(row.scale_out)


def ring(data: np.ndarray) -> float:
    """All-reduce on a ring, block by block; returns the blocks that one chip sends. ``data``: (chips, chips) blocks."""
    n, here = len(data), data.copy()
    want = data.sum(axis=0)
    count = 0
    for s in range(n - 1):
        moving = [here[i, (i - s) % n] for i in range(n)]
        for i in range(n):
            here[(i + 1) % n, (i - s) % n] += moving[i]
        count += 1
    for s in range(n - 1):
        moving = [here[i, (i + 1 - s) % n] for i in range(n)]
        for i in range(n):
            here[(i + 1) % n, (i + 1 - s) % n] = moving[i]
        count += 1
    np.testing.assert_allclose(here, np.tile(want, (n, 1)))
    return count


@pytest.mark.parametrize("n", GROUPS)
def test_ring_all_reduce_sends_what_a_simulated_ring_sends(n: int) -> None:
    blocks = ring(np.random.default_rng(0).normal(size=(n, n)))
    row = all_reduce("r", 1e6, n, machine(scale_up_domain=64.0))
    assert sent(row) == pytest.approx(1e6 * blocks / n)
    assert sent(row) == pytest.approx(1e6 * 2 * (n - 1) / n)
    assert float(row.scale_out) == 0.0


def test_in_switch_all_reduce() -> None:
    # Each chip gives every block to the switch once, which adds, then sends its own summed block to all: 1 + 1/n.
    for n in (4, 8, 64):
        row = all_reduce("r", 1e6, n, machine(scale_up_domain=64.0, in_switch_reduction=1.0))
        assert sent(row) == pytest.approx(1e6 * (1 + 1 / n))
    # Between two chips the ring sends less: 1 against 1.5; between three 4/3 both ways.
    assert sent(all_reduce("r", 1e6, 2, machine(in_switch_reduction=1.0))) == pytest.approx(1e6)
    assert sent(all_reduce("r", 1e6, 3, machine(in_switch_reduction=1.0))) == pytest.approx(1e6 * 4 / 3)


def test_all_gather_and_all_to_all() -> None:
    for n in GROUPS:
        # Each chip holds 1/n of the payload and sends it to n - 1 others.
        assert sent(all_gather("g", 1e6, n, machine())) == pytest.approx(1e6 / n * (n - 1))
        assert sent(all_to_all("a", 1e6, n, machine())) == 1e6


@pytest.mark.parametrize("collective", [all_reduce, all_gather, all_to_all])
def test_one_chip_alone_neither_sends_nor_waits(collective) -> None:
    row = collective("c", 1e6 if collective is not all_to_all else 0.0, 1.0, machine())
    assert sent(row) == 0.0
    assert float(row.latency) == 0.0


@pytest.mark.parametrize(("group", "domain"), [(72, 8), (72, 72), (8, 72), (16, 8), (9, 8), (2, 1), (64, 8), (1, 8)])
def test_share_beyond_the_domain_by_counting_peers(group: int, domain: int) -> None:
    peers = range(1, group)  # of chip 0, whose domain holds chips 0 to domain - 1
    beyond = sum(p >= domain for p in peers) / max(len(peers), 1)
    assert float(crossing(group, domain)) == pytest.approx(beyond, abs=1e-15)
    row = all_to_all("a", 1e6, group, machine(scale_up_domain=float(domain)))
    assert float(row.scale_out) == pytest.approx(1e6 * beyond, abs=1e-9)
    assert sent(row) == pytest.approx(1e6)


def test_seventy_two_chips_on_domains_of_eight_and_of_seventy_two() -> None:
    small, large = (all_to_all("a", 71.0, 72, machine(scale_up_domain=d)) for d in (8.0, 72.0))
    assert (float(small.scale_up), float(small.scale_out)) == pytest.approx((7.0, 64.0))
    assert (float(large.scale_up), float(large.scale_out)) == (71.0, 0.0)


@pytest.mark.parametrize(
    ("pp", "chips", "domain"),
    [(4, 8, 8), (9, 8, 72), (4, 4, 8), (8, 2, 8), (1, 8, 8), (16, 4, 64), (2, 16, 8), (2, 4, 8)],
)
def test_hand_offs_between_domains_by_counting_boundaries(pp: int, chips: int, domain: int) -> None:
    """Stages lie one after the other on whole domains."""
    boundaries = [(s * chips // domain, (s * chips - 1) // domain) for s in range(1, pp)]
    out = sum(a != b for a, b in boundaries)
    row = hand_off(1e6, pp, chips, machine(scale_up_domain=float(domain)))
    assert float(row.scale_out) == pytest.approx(1e6 * out, abs=1e-6)
    assert float(row.scale_up) == pytest.approx(1e6 * (pp - 1 - out), abs=1e-6)
    # A launch and a hop per boundary; the longer hop besides where it leaves the domain (1 us, 1 us, 10 us).
    assert float(row.latency) == pytest.approx(1e-6 * (2 * (pp - 1) + 10 * out))


def test_latencies_by_hand() -> None:
    # Set-up 2 and 5 us, hops 1 us inside a domain of eight and 10 us more beyond it.
    assert float(all_reduce("r", 1.0, 8, machine()).latency) == pytest.approx(4e-6)
    assert float(all_reduce("r", 1.0, 9, machine()).latency) == pytest.approx(24e-6)
    assert float(all_gather("g", 1.0, 8, machine()).latency) == pytest.approx(3e-6)
    assert float(all_to_all("a", 1.0, 8, machine()).latency) == pytest.approx(6e-6)
    assert float(all_to_all("a", 1.0, 64, machine()).latency) == pytest.approx(16e-6)


@pytest.mark.parametrize("ns", [100.0, 200.0])
def test_every_hop_is_visible_in_tpot(ns: float) -> None:
    # Llama 70B on TP 8, PP 2: 80 layers with two all-reduces of two hops each, two for that of the embedding, one
    # hop to gather the samples, one hand-off.
    c = case("h200", "llama3.1-70b")
    where = mapping(c.model, pp=2, tp=8, micro=1)
    base, more = (
        float(
            decoded(c, where, load(4.0, 8192.0), on=changed(c.machine, scale_up_domain=16.0, scale_up_hop=hop)).tpot_s
        )
        for hop in (1e-6, 1e-6 + ns * 1e-9)
    )
    assert more - base == pytest.approx((80 * 2 * 2 + 2 + 1 + 1) * ns * 1e-9, rel=1e-9)
    # Kimi K3 on TP 8 with nine instances: two hops in each of 93 attention layers, one dense and 92 mixtures, one hop
    # each way to the experts of 92 layers, two for the embedding, one for the samples.
    c = case("gb200-nvl72", "kimi-k3")
    where = mapping(c.model, tp=8, dp=9, ep=72)
    base, more = (
        float(decoded(c, where, load(4.0, 8192.0), on=changed(c.machine, scale_up_hop=hop)).tpot_s)
        for hop in (1e-6, 1e-6 + ns * 1e-9)
    )
    assert more - base == pytest.approx((2 * (93 + 1 + 92) + 2 * 92 + 2 + 1) * ns * 1e-9, rel=1e-9)
