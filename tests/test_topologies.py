"""Meshes, tori, direct links and two levels: hops and busiest links by counting every path of a simulated fabric."""

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from cases import ROUND, case, changed, decoded, load, machine, mapping

from codesign.catalog.build import machine_of
from codesign.catalog.loader import load_system
from codesign.fabric import all_gather, all_reduce, all_to_all, diameter, exchange_traffic, hand_off, ring_traffic
from codesign.machine import MACHINES, Machine


def on(topology: str, **changes: Any) -> Machine:
    return MACHINES[topology](**(ROUND | {"scale_up_domain": 4096.0} | changes))


def paths(side: int, d: int, wrap: bool) -> tuple[int, float]:
    """Farthest distance and traffic of the busiest link in an exchange where each chip sends 1 in all.

    Every pair's message goes dimension by dimension, both ways round where a ring offers two equal ones.
    """
    chips = list(product(range(side), repeat=d))
    share = 1.0 / (len(chips) - 1)
    links: dict[tuple, float] = {}
    far = 0
    for a, b in product(chips, chips):
        here, steps = list(a), 0
        for i in range(d):
            gap = (b[i] - a[i]) % side if wrap else b[i] - a[i]
            if wrap:
                routes = [(1, gap)] if 2 * gap < side else [(-1, side - gap)]
                routes = [(1, gap), (-1, gap)] if 2 * gap == side else routes
            else:
                routes = [(1 if gap > 0 else -1, abs(gap))]
            steps += routes[0][1]
            for sign, length in routes:
                at = list(here)
                for _ in range(length):
                    key = (*at, i, sign)
                    links[key] = links.get(key, 0.0) + share / len(routes)
                    at[i] = (at[i] + sign) % side
            here[i] = b[i]
        far = max(far, steps)
    # A chip's bandwidth is spread over its 2 d links.
    return far, max(links.values()) * 2 * d


@pytest.mark.parametrize(
    ("topology", "side", "d"), [("mesh", 4, 2), ("mesh", 8, 2), ("torus-2d", 4, 2), ("torus-2d", 8, 2), ("torus", 4, 3)]
)
def test_hops_and_bisection_of_every_path(topology: str, side: int, d: int) -> None:
    far, busiest = paths(side, d, topology != "mesh")
    group = float(side**d)
    assert float(diameter(group, on(topology))) == pytest.approx(far)
    assert float(exchange_traffic(group, on(topology))) == pytest.approx(busiest)
    row = all_to_all("a", 1e6, group, on(topology))
    assert float(row.scale_up) == pytest.approx(1e6 * busiest)
    assert float(row.latency) == pytest.approx(5e-6 + far * 1e-6)


@pytest.mark.parametrize(("side", "d"), [(4, 2), (8, 2), (4, 3)])
def test_rings_of_a_torus_reduce_at_full_rate(side: int, d: int) -> None:
    # Rings in each dimension in turn, the payload in 2 d parts that start in different dimensions and directions: in
    # every phase all links are busy, and part by part (n - 1)/n of what is left is sent along one dimension.
    part, sent = 1.0, 0.0
    for _ in range(d):
        sent += part * (side - 1) / side
        part /= side
    assert sent == pytest.approx((side**d - 1) / side**d)
    name = "torus" if d == 3 else "torus-2d"
    row = all_gather("g", 1e6, float(side**d), on(name))
    assert float(row.scale_up) == pytest.approx(1e6 * sent)
    # On lines the end links carry all of the far side's shards in one direction while the other idles.
    line = all_gather("g", 1e6, float(side**d), on("mesh")) if d == 2 else None
    assert line is None or float(line.scale_up) == pytest.approx(2e6 * sent)


def test_direct_links_to_a_part_of_the_domain_are_a_part_of_the_rate() -> None:
    # Eight chips, seven links each: four of them have three links to each other.
    direct = on("full-mesh", scale_up_domain=8.0)
    assert float(exchange_traffic(8.0, direct)) == 1.0
    assert float(exchange_traffic(4.0, direct)) == pytest.approx(7 / 3)
    assert float(all_to_all("a", 3e6, 4.0, direct).scale_up) == pytest.approx(7e6)
    assert float(ring_traffic(2.0, direct)) == pytest.approx(7.0)


@pytest.mark.parametrize("topology", ["full-mesh", "mesh", "torus-2d", "torus"])
def test_an_all_reduce_is_one_shot_where_that_is_faster(topology: str) -> None:
    fabric = on(topology, scale_up_domain=64.0)
    group = 16.0
    trip = float(diameter(group, fabric)) * 1e-6
    times, sent = {}, {}
    for payload in (1e3, 1e4, 3e4, 1e5, 1e6, 1e8):
        row = all_reduce("r", payload, group, fabric)
        sent[payload] = float(row.scale_up) / payload / float(ring_traffic(group, fabric))
        times[payload] = float(row.scale_up) / 1e11 + float(row.latency)
        # 15 of the payload and one trip, or 2 x 15/16 of it and two: 2 us of set-up either way.
        rate = payload * float(ring_traffic(group, fabric)) / 1e11
        assert times[payload] == pytest.approx(2e-6 + min(15 * rate + trip, 15 / 8 * rate + 2 * trip))
    assert sent[1e3] == pytest.approx(15.0)
    assert sent[1e8] == pytest.approx(15 / 8)
    # Continuous in the payload where it changes over, and with a finite slope on both sides.
    edge = trip / ((15 - 15 / 8) * float(ring_traffic(group, fabric)) / 1e11)

    def seconds(payload: float) -> jax.Array:
        row = all_reduce("r", payload, group, fabric)
        return row.scale_up / fabric.scale_up_bandwidth + row.latency

    low, high = (float(seconds(edge * x)) for x in (1 - 1e-9, 1 + 1e-9))
    assert low == pytest.approx(high, rel=1e-8)
    assert all(np.isfinite(float(jax.grad(seconds)(edge * x))) for x in (0.9, 1.1))


@pytest.mark.parametrize("topology", [t for t in MACHINES if t != "switched"])
def test_every_collective_is_continuous_and_differentiable_in_group_and_links(topology: str) -> None:
    for collective in (all_reduce, all_gather, all_to_all):
        for group in (2.0, 3.0, 8.0, 17.0, 63.0, 64.0, 65.0, 100.0, 128.0):

            def seconds(x: Any, collective=collective) -> jax.Array:
                fabric = on(topology, scale_up_domain=64.0, scale_up_bandwidth=x[1], scale_up_hop=x[2])
                row = collective("c", 1e7, x[0], fabric)
                return row.scale_up / x[1] + row.scale_out / 1e10 + row.latency

            x = np.array([group, 1e11, 1e-6])
            here = float(seconds(x))
            for i in range(3):
                near = [float(seconds(x * (1 + s * 1e-9 * np.eye(3)[i]))) for s in (-1, 1)]
                np.testing.assert_allclose(near, here, rtol=1e-6)
            slope = np.asarray(jax.grad(seconds)(x))
            assert np.all(np.isfinite(slope))
            assert slope[1] <= 0.0 <= slope[2]


def test_two_levels_share_out_what_goes_beyond() -> None:
    # Four domains of 64: reduce-scatter inside (63/64), all-reduce of a 64th over four (2 x 3/4), all-gather inside.
    row = all_reduce("r", 64e6, 256.0, on("two-level", scale_up_domain=64.0))
    assert float(row.scale_up) == pytest.approx(64e6 * 2 * 63 / 64)
    assert float(row.scale_out) == pytest.approx(1e6 * 1.5)
    flat = all_reduce("r", 64e6, 256.0, machine(scale_up_domain=64.0))
    assert float(flat.scale_out) > 60 * float(row.scale_out)
    gather = all_gather("g", 256e6, 256.0, on("two-level", scale_up_domain=64.0))
    assert float(gather.scale_out) == pytest.approx(3e6)  # its own share to the three chips of the same place
    assert float(gather.scale_up) == pytest.approx(256e6 * 63 / 64)
    # Inside one domain nothing tells it from a switch.
    for collective in (all_reduce, all_gather, all_to_all):
        a, b = (
            collective("c", 1e6, 48.0, x)
            for x in (on("two-level", scale_up_domain=64.0), machine(scale_up_domain=64.0))
        )
        assert [float(x) for x in (a.scale_up, a.scale_out, a.latency)] == pytest.approx(
            [float(x) for x in (b.scale_up, b.scale_out, b.latency)], rel=1e-14
        )


@pytest.mark.parametrize(
    ("pp", "chips", "domain"),
    [(3, 4, 8), (3, 4, 6), (5, 3, 8), (4, 16, 72), (8, 12, 72), (2, 16, 8), (7, 5, 12), (9, 8, 72), (16, 5, 8)],
)
def test_hand_offs_by_counting_the_chips_that_cross(pp: int, chips: int, domain: int) -> None:
    positions = range((pp - 1) * chips)
    crossed = sum(x // domain != (x + chips) // domain for x in positions) / chips
    row = hand_off(1e6, float(pp), float(chips), machine(scale_up_domain=float(domain)))
    assert float(row.scale_out) == pytest.approx(1e6 * crossed, abs=1e-3)
    assert float(row.scale_up) == pytest.approx(1e6 * (pp - 1 - crossed), abs=1e-3)


@pytest.mark.parametrize(("topology", "hops"), [("torus", 6.0), ("torus-2d", 8.0), ("mesh", 14.0)])
def test_a_hundred_nanoseconds_a_hop_in_tpot(topology: str, hops: float) -> None:
    # Kimi K3 on 64 chips, experts over all of them: out and back in 92 layers, each over the diameter of 64;
    # hops of 4 us and more, so that shared experts beside the exchange are done before it.
    c = case("gb200-nvl72", "kimi-k3")
    base = MACHINES[topology](**vars(changed(c.machine, scale_up_domain=64.0)))
    where = mapping(c.model, dp=64, ep=64)
    a, b = (
        float(decoded(c, where, load(4.0, 8192.0), on=changed(base, scale_up_hop=hop)).tpot_s) for hop in (4e-6, 4.1e-6)
    )
    assert b - a == pytest.approx(2 * 92 * hops * 1e-7, rel=1e-9)


def test_catalog_systems_have_the_fabric_that_their_files_name() -> None:
    found = {name: machine_of(load_system(name)) for name in ("tpu-v7", "mi355x", "gb200-nvl72", "jalapeno")}
    # Nothing outgrows Jalapeno's local fabric of 128 where 128 chips are all that a deployment has.
    assert {k: v.topology for k, v in found.items()} == {
        "tpu-v7": "torus", "mi355x": "full-mesh", "gb200-nvl72": "switched", "jalapeno": "switched",
    }  # fmt: skip
    # A cube of 64 chips of a TPU v7 torus: six hops of 0.3 us to the farthest, three links' traffic per byte.
    assert float(diameter(64.0, found["tpu-v7"])) == pytest.approx(6.0)
    assert float(exchange_traffic(64.0, found["tpu-v7"])) == pytest.approx(3 * 64 / 63)
