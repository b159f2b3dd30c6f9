"""The design space: the anchor fits its own budgets, sums by hand, derivatives, what can be built."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codesign.buildable import HEIGHT, bounds, roundings
from codesign.catalog.loader import load_machine
from codesign.design import (
    BUDGETS,
    Design,
    anchor_design,
    areas,
    constraints,
    edge,
    fabric_power,
    load_package,
    load_technology,
    machine_of,
    stacks,
)
from codesign.errors import CodesignError

TECHNOLOGIES = ("hbm4", "hybrid-bonded-dram", "super-3d-ram", "sram")


@pytest.fixture(scope="module")
def package():
    return load_package()


def change(design: Design, **values: float) -> Design:
    for name, value in values.items():
        design = eqx.tree_at(lambda d, n=name: getattr(d, n), design, jnp.asarray(value, dtype=float))
    return design


def inside(name: str, package) -> Design:
    """A design well inside the bounds of its technology, off every kink."""
    low, high = bounds(load_technology(name), package)
    return jax.tree.map(lambda a, b: jnp.exp(0.55 * jnp.log(a) + 0.45 * jnp.log(b)), low, high)


def test_jalapeno_as_a_design_fits_and_has_its_ratings(package):
    design, technology = anchor_design(package), load_technology("hbm4")
    g = constraints(design, technology, package)
    assert tuple(g) == BUDGETS
    assert all(float(v) < 1e-6 for v in g.values()), g
    # It is close to the edge where its makers were: its watts, its die and its shoreline.
    assert float(g["package_power"]) == pytest.approx(0.0, abs=1e-6)
    assert float(g["die_area"]) > -0.03
    assert float(g["shoreline"]) > -0.12
    machine, catalog = machine_of(design, technology, package), load_machine("jalapeno")
    assert float(machine.provisioned_power) == pytest.approx(1125.0, rel=1e-6)
    assert float(machine.chip_power) == pytest.approx(700.0, rel=1e-6)
    for field in vars(catalog):
        assert float(getattr(machine, field)) == pytest.approx(float(getattr(catalog, field)), rel=2e-4), field


def test_area_and_edge_by_hand(package):
    technology = load_technology("hbm4")
    design = change(anchor_design(package), memory_bandwidth=22e12, memory_capacity=100e9, scale_up_bandwidth=900e9)
    # 22 TB/s / 2.75 TB/s = 8 stacks x 24 mm^2; 200 MB / 3.98; (900 + 200) GB/s / 56; 13,400 TF x 0.0397.
    mm2 = {k: float(v) * 1e6 for k, v in areas(design, technology, package).items()}
    assert float(stacks(design, technology)) == pytest.approx(8.0)
    assert mm2 == pytest.approx(
        {"fixed": 100, "compute": 531.98, "sram": 50.25, "memory": 192, "serdes": 19.64}, rel=1e-3
    )
    used, usable = edge(design, technology, package)
    # 8 x 8.5 mm + 1,100 / 50 mm; 0.6 x 4 x sqrt(840) mm.
    assert float(used) * 1e3 == pytest.approx(90.0)
    assert float(usable) * 1e3 == pytest.approx(69.56, rel=1e-4)
    g = constraints(design, technology, package)
    assert float(g["shoreline"]) == pytest.approx(90.0 / 69.56 - 1, rel=1e-3)
    assert float(g["die_area"]) == pytest.approx(893.87 / 840 - 1, rel=1e-3)
    # Capacity can ask for the stacks too: 600 GB of 16-high stacks of 3 GiB layers.
    tall = change(design, memory_bandwidth=2e12, memory_capacity=16 * 48 * 2**30)
    assert float(stacks(tall, technology)) == pytest.approx(16.0)


def test_stacked_budgets_by_hand(package):
    technology = load_technology("super-3d-ram")
    design = change(anchor_design(package), memory_bandwidth=27.216e12, memory_capacity=68.9472e9)
    g = constraints(design, technology, package)
    # 840 mm^2 x 0.9 x 72 GB/s/mm^2 = 54.43 TB/s; x 11.4 MB/mm^2 x 8 layers = 68.95 GB.
    assert float(g["stack_bandwidth"]) == pytest.approx(-0.5)
    assert float(g["stack_capacity"]) == pytest.approx(0.0, abs=1e-9)
    # 72 W static + 27.2 TB/s x 11.9 pJ/B is less than the FP4 GEMM, which bears 680 W of the anchor's 717:
    # 664 W against 0.8 W/mm^2 x 840 mm^2 = 672 W.
    machine = machine_of(design, technology, package)
    assert float(machine.chip_power) == pytest.approx(664, abs=2)
    assert float(g["heat"]) == pytest.approx(float(machine.chip_power) / 672 - 1, abs=1e-9)
    # Twice the bandwidth is memory alone: 72 + 54.4 x (11.89 + 16 x 0.1473 + 2 x 1.4) pJ = 1,000 W, too hot.
    hot = machine_of(change(design, memory_bandwidth=54.432e12), technology, package)
    assert float(hot.chip_power) / float(machine.chip_power) == pytest.approx((72 + 54.432 * 17.046) / 680, rel=0.01)


def test_watts_of_the_place_by_hand(package):
    # 600 GB/s x 90 pJ/B = 54 W; 200 GB/s x (2 x 90 + 2 x 128) pJ/B = 87.2 W.
    assert float(fabric_power(600e9, 128.0, 200e9, package)) == pytest.approx(141.2)
    # Domain 256: half of the peers lie beyond the tier of 128 and pay 436 pJ/B more.
    assert float(fabric_power(600e9, 256.0, 0.0, package)) == pytest.approx(54 + 0.5 * 600e9 * 436e-12)
    # Host of the anchor: 1,125 - 1.15 x (700 + 141.2) = 157.6 W, and the same for every design.
    technology = load_technology("hbm4")
    wide = machine_of(change(anchor_design(package), scale_up_bandwidth=1.2e12), technology, package)
    want = 157.62 + 1.15 * (float(wide.chip_power) + 108 + 87.2)
    assert float(wide.provisioned_power) == pytest.approx(want, rel=1e-4)
    # A domain of two tiers: half of the peers one scale-out hop further.
    two = machine_of(change(anchor_design(package), scale_up_domain=256.0), technology, package)
    assert float(two.scale_up_hop - package.anchor.scale_up_hop) == pytest.approx(0.6e-6)


def test_dollars_by_hand(package):
    # 100 GB less of HBM4 at 18 $/GB over four years: 1,800 $ / 35,064 h.
    technology = load_technology("hbm4")
    less = change(anchor_design(package), memory_capacity=float(package.anchor.memory_capacity) - 100e9)
    saved = float(package.anchor.dollars_per_hour - machine_of(less, technology, package).dollars_per_hour)
    assert saved == pytest.approx(1800 / 35064, rel=1e-3)


@pytest.mark.parametrize("name", TECHNOLOGIES)
def test_derivatives_agree_with_differences(name, package):
    technology, design = load_technology(name), inside(name, package)

    def everything(d: Design) -> jax.Array:
        machine = machine_of(d, technology, package)
        watts = jnp.stack([machine.chip_power, machine.provisioned_power, machine.dollars_per_hour, machine.tensor_fp8])
        return jnp.concatenate([jnp.log(watts), jnp.stack(list(constraints(d, technology, package).values()))])

    exact = jax.jacfwd(everything)(design)
    reverse = jax.jacrev(everything)(design)
    for field in vars(design):
        value, step = float(getattr(design, field)), 1e-5
        up, down = (everything(change(design, **{field: value * (1 + s)})) for s in (step, -step))
        numeric = np.asarray(up - down) / (2 * step * value)
        scale = np.abs(np.asarray(getattr(exact, field))).max() + 1e-30
        np.testing.assert_allclose(np.asarray(getattr(exact, field)), numeric, rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(getattr(exact, field), getattr(reverse, field), rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("name", TECHNOLOGIES)
def test_maps_over_designs_and_jits(name, package):
    technology = load_technology(name)
    low, high = bounds(technology, package)
    many = jax.tree.map(lambda a, b: jnp.geomspace(a, b, 7), low, high)
    g = jax.jit(jax.vmap(lambda d: constraints(d, technology, package)))(many)
    assert all(v.shape == (7,) and bool(jnp.isfinite(v).all()) for v in g.values())
    one = constraints(jax.tree.map(lambda x: x[3], many), technology, package)
    for key in BUDGETS:
        assert float(g[key][3]) == pytest.approx(float(one[key]), rel=1e-12)


def test_more_of_anything_draws_on_a_budget(package):
    technology, design = load_technology("hbm4"), inside("hbm4", package)
    before = constraints(design, technology, package)
    for field, budget in (
        ("memory_bandwidth", "stack_bandwidth"), ("memory_capacity", "stack_capacity"),
        ("scale_up_bandwidth", "shoreline"), ("tensor_fp4", "die_area"), ("sram", "die_area"),
    ):  # fmt: skip
        after = constraints(change(design, **{field: 1.1 * float(getattr(design, field))}), technology, package)
        assert float(after[budget]) > float(before[budget])


def test_rounding_the_anchor_gives_six_stacks_of_twelve(package):
    technology, design = load_technology("hbm4"), anchor_design(package)
    (built,) = [b for b in roundings(design, technology) if float(b.memory_bandwidth) == pytest.approx(15.4e12)]
    assert 5 < float(stacks(built, technology)) <= 6
    assert float(built.memory_capacity) / float(technology.layer_capacity) == pytest.approx(6 * 12)
    assert float(built.memory_capacity) == pytest.approx(216 * 2**30)
    assert float(built.scale_up_domain) == 128
    assert float(built.scale_up_bandwidth) == pytest.approx(24 * 25e9)


@pytest.mark.parametrize("name", ["hbm4", "hybrid-bonded-dram", "super-3d-ram"])
def test_everything_built_is_whole_and_near(name, package):
    technology = load_technology(name)
    design = change(inside(name, package), scale_up_domain=100.0, scale_up_bandwidth=613e9)
    built = roundings(design, technology, package)
    assert len(built) >= 4
    assert {float(b.scale_up_domain) for b in built} == {72.0, 128.0}
    for b in built:
        assert float(b.scale_up_bandwidth) == pytest.approx(25e9 * 25)
        per_layer = float(technology.layer_capacity) * (1 if name == "hbm4" else 0.9 * 840e-6)
        layers = float(b.memory_capacity) / per_layer
        assert layers == pytest.approx(round(layers))
        assert float(b.memory_bandwidth) <= float(design.memory_bandwidth) * (1 + 1e-12)
        if name == "hbm4":
            # As many stacks as the bandwidth needs, all of one height.
            count = np.ceil(float(stacks(b, technology)) - 1e-9)
            assert round(layers) % (count * HEIGHT) == 0


def test_ends_of_the_ranges_move_the_right_way(package):
    low, mid, high = (load_technology("super-3d-ram", at=end) for end in ("low", "value", "high"))
    assert float(low.bandwidth_per_area) < float(mid.bandwidth_per_area) < float(high.bandwidth_per_area)
    assert float(low.heat_limit) < float(mid.heat_limit) < float(high.heat_limit)
    design = change(anchor_design(package), memory_bandwidth=54e12, memory_capacity=60e9)
    heats = [float(constraints(design, t, package)["heat"]) for t in (low, mid, high)]
    assert heats[0] > heats[1] > 0 > heats[2]
    with pytest.raises(CodesignError, match="unknown end"):
        load_technology("super-3d-ram", at="best")
    with pytest.raises(CodesignError, match="no layers known"):
        load_technology("gddr7")


def test_budgets_can_be_set(package):
    big = load_package(die_area=858e-6, power=1400.0)
    design, technology = anchor_design(package), load_technology("hbm4")
    g = constraints(design, technology, big)
    assert float(g["reticle"]) == pytest.approx(0.0, abs=1e-12)
    assert float(g["package_power"]) == pytest.approx(float(machine_of(design, technology, big).chip_power) / 1400 - 1)
