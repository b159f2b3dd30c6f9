"""Derivatives of the score by every number of machine and kernels, the batch following along, against differences."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import case, changed, load, mapping

from codesign.evaluation.case import Case, Degrees
from codesign.execution import Execution
from codesign.machine import Machine
from codesign.mapping import take
from codesign.objective.compiled import DIRECTIONS, elasticities, leaves, score_points, solve_points
from codesign.objective.decode import decode
from codesign.objective.gradient import SHORTFALL
from codesign.objective.metrics import Load

#: Structure, not numbers: steps of the domain and the choice of a reduction have no useful derivative.
FIXED = ("scale_up_domain", "scale_out_domain", "in_switch_reduction")
FIELDS = tuple(name for name in vars(case("gb200-nvl72", "kimi-k3").machine) if name not in FIXED)

#: Relative step of the differences, and how close to a kink a design is set aside.
STEP, NEAR = 1e-4, 1e-4


class Points(NamedTuple):
    """Random designs, each with a machine, a mapping, a load and a target."""

    of: Case
    machine: Any
    mapping: Any
    load: Any
    target: np.ndarray


def draw(count: int, seed: int) -> Points:
    """Machines within a factor of 2 of GB200 in every number, mappings of Kimi K3, targets of 4 to 100 ms or none."""
    c, rng = case("gb200-nvl72", "kimi-k3"), np.random.default_rng(seed)

    def spread(factor: float = 2.0) -> np.ndarray:
        return np.exp(rng.uniform(-np.log(factor), np.log(factor), count))

    numbers: dict[str, Any] = {
        k: float(v) * (np.ones(count) if k in FIXED else spread()) for k, v in vars(c.machine).items()
    }
    numbers["power_limit"] = numbers["static_power"] + rng.uniform(200.0, 1500.0, count)
    numbers["provisioned_power"] = numbers["chip_power"] * rng.uniform(1.3, 2.0, count)
    all_: Any = c.mappings(Degrees())
    columns: Any = (
        np.ones(count), 8192.0 * np.exp2(rng.uniform(0, 6, count)), rng.integers(0, 4, count).astype(float),
        np.zeros(count), np.full(count, 1000.0),
    )  # fmt: skip
    target = np.where(rng.random(count) < 0.2, np.inf, np.exp(rng.uniform(np.log(4e-3), np.log(0.1), count)))
    return Points(c, Machine(**numbers), take(all_, rng.integers(0, len(all_.pp), count)), Load(*columns), target)


def score(p: Points, machine: Any = None, target: np.ndarray | None = None) -> np.ndarray:
    """The score without any derivative: tokens per megawatt at the largest batch, less the weighted shortfall."""
    found = solve_points(
        p.of.model, p.of.execution, p.of.precision, machine or p.machine, p.mapping, p.load,
        p.target if target is None else target,
    )  # fmt: skip
    return np.log(found.result.tokens_per_s_per_megawatt) - SHORTFALL * (found.late + found.full)


def scored(p: Points, directions: np.ndarray) -> Any:
    """Scores with their derivatives along relative changes of the fields, (points, all fields, directions)."""
    values = np.stack([np.broadcast_to(getattr(p.machine, name), len(p.target)) for name in vars(p.machine)], axis=1)
    return score_points(
        p.of.model, p.of.execution, p.of.precision, p.machine, p.mapping, p.load, p.target,
        values[:, :, None] * directions,
    )  # fmt: skip


def by_field(p: Points, names: tuple[str, ...] = FIELDS) -> tuple[np.ndarray, Any]:
    """Change of the score by relative change of each field, (fields, points), and the score itself."""
    rows, found = [], None
    everything = list(vars(p.machine))
    for start in range(0, len(names), DIRECTIONS):
        some = names[start : start + DIRECTIONS]
        unit = np.zeros((len(p.target), len(everything), len(some)))
        for k, name in enumerate(some):
            unit[:, everything.index(name), k] = 1.0
        found = scored(p, unit)
        rows.append(found.slopes.T)
    assert found is not None
    return np.concatenate(rows), found


def slopes(p: Points, move: Any) -> tuple[np.ndarray, np.ndarray]:
    """Difference of fourth order in logarithms, and the jump of the slope between the two sides.

    ``move(factor)`` gives the arguments of `score` with one number scaled.
    """
    base = score(p)
    back2, back, ahead, ahead2 = (score(p, **move(np.exp(n * STEP))) for n in (-2, -1, 1, 2))
    slope = (8.0 * (ahead - back) - (ahead2 - back2)) / (12.0 * STEP)
    jump = np.maximum(abs(ahead - 2.0 * base + back), abs(ahead2 - 2.0 * base + back2) / 2.0) / STEP
    return slope, jump


def check(count: int, seed: int) -> None:
    """The whole bar: 1e-5 of the gradient's norm at every design that no kink lies close to; at most 5 % do."""
    p = draw(count, seed)
    given, found = by_field(p)
    np.testing.assert_allclose(found.score, score(p), rtol=1e-12)
    assert np.all(np.isfinite(given))
    assert all(np.all(np.isfinite(x)) for x in found)
    pairs = []
    for name in FIELDS:
        at = getattr(p.machine, name)

        def move(factor: float, name: str = name, at: np.ndarray = at) -> dict[str, Machine]:
            return {"machine": changed(p.machine, **{name: at * factor})}

        pairs.append(slopes(p, move))
    want, jumps = np.stack([x[0] for x in pairs]), np.stack([x[1] for x in pairs])
    norm = np.linalg.norm(given, axis=0)
    # Curvature moves the slope by about a step's worth; a kink moves it by its own size.
    kinked = jumps.max(axis=0) > 30.0 * STEP * np.maximum(norm, 1.0)
    assert kinked.mean() <= 0.05
    error = np.linalg.norm(given - want, axis=0) / norm
    assert error[~kinked].max() < 1e-5, (error[~kinked].max(), int(np.argmax(np.where(kinked, 0, error))))
    # All kinds of designs were among them.
    assert 0.2 < found.limited_by_time.mean() < 0.9
    assert 0.1 < (found.shortfall > 0).mean() < 0.7
    by_time = (found.shortfall == 0) & (found.limited_by_time > 0.5)
    assert np.all(found.by_target[by_time] > 0.0)


def test_by_every_number_of_the_machine() -> None:
    check(100, seed=1)


@pytest.mark.slow
def test_by_every_number_of_the_machine_at_a_thousand_designs() -> None:
    check(1000, seed=2)


def test_along_any_direction() -> None:
    """Four random directions through all numbers at once, as a search goes."""
    p, rng = draw(64, seed=3), np.random.default_rng(4)
    everything = list(vars(p.machine))
    directions = rng.normal(size=(64, len(everything), 4))
    directions[:, [everything.index(name) for name in FIXED]] = 0.0
    found = scored(p, directions)
    assert found.slopes.shape == (64, 4)
    for k in range(4):

        def move(factor: float, k: int = k) -> dict[str, Machine]:
            scale = {name: factor ** directions[:, i, k] for i, name in enumerate(everything)}
            return {"machine": Machine(**{name: getattr(p.machine, name) * scale[name] for name in everything})}

        want, jump = slopes(p, move)
        ok = jump < 300.0 * STEP
        assert ok.mean() > 0.9
        np.testing.assert_allclose(found.slopes[ok, k], want[ok], rtol=1e-6, atol=1e-5)


def test_by_the_target() -> None:
    p = draw(64, seed=5)
    found = scored(p, np.zeros((64, len(vars(p.machine)), 1)))
    want, jump = slopes(p, lambda factor: {"target": p.target * factor})
    ok = np.isfinite(p.target) & (jump < 30.0 * STEP)
    assert ok.sum() > 30
    np.testing.assert_allclose(found.by_target[ok], want[ok], atol=1e-6)
    np.testing.assert_array_equal(found.by_target[~np.isfinite(p.target)], 0.0)


def test_what_cannot_matter_has_no_derivative() -> None:
    p = draw(64, seed=6)
    idle = ("sram", "scale_out_domain", "dollars_per_hour", "chip_power")
    np.testing.assert_array_equal(by_field(p, idle)[0], 0.0)
    # Energies matter where the chip slows down for its power, and nowhere else.
    throttled = solve_points(
        p.of.model, p.of.execution, p.of.precision, p.machine, p.mapping, p.load, p.target
    ).result.throttled  # fmt: skip
    for slope in by_field(p, ("memory_energy", "static_power", "power_limit"))[0]:
        np.testing.assert_array_equal(slope != 0.0, throttled > 0.5)
    # A watt more of provisioned power costs its share of tokens per megawatt, and nothing else.
    np.testing.assert_allclose(by_field(p, ("provisioned_power",))[0], -1.0, rtol=1e-12)


def test_elasticities_of_one_machine() -> None:
    p = draw(1, seed=7)
    told = elasticities(p.of.model, p.of.execution, p.of.precision, take(p.machine, 0), p.mapping, p.load, p.target)
    assert list(told) == list(vars(p.machine))
    np.testing.assert_allclose([told[name] for name in FIELDS], by_field(p)[0][:, 0], rtol=1e-12, atol=1e-15)


def test_by_kernel_constants() -> None:
    """The gradient through a whole pass, by every constant of the kernels, for a mixture over two instances."""
    c = case("h100", "mixtral-8x7b")
    where = mapping(c.model, tp=2, dp=2, ep=4)

    def rate(execution: Execution) -> jax.Array:
        args = leaves((c.machine, c.precision, where, load(24.0, 4096.0)))
        what = eqx.tree_at(lambda x: x.skew, args[3], 0.0)
        return jnp.log(decode(c.model, args[0], execution, args[1], args[2], what).tokens_per_s_per_megawatt)

    at = jax.tree.map(jnp.asarray, eqx.tree_at(lambda e: e.overlap, c.execution, 0.3))
    found, tree = jax.tree.flatten(jax.grad(rate)(at))
    numbers = [float(x) for x in jax.tree.leaves(at)]
    slopes_, want = np.array(found) * np.array(numbers), []
    for i, x in enumerate(numbers):
        ends = [rate(jax.tree.unflatten(tree, [*numbers[:i], x * f, *numbers[i + 1 :]])) for f in (1 + 1e-5, 1 - 1e-5)]
        want.append((float(ends[0]) - float(ends[1])) / 2e-5)
    np.testing.assert_allclose(slopes_, want, atol=1e-7 * float(np.linalg.norm(slopes_)))
    assert sum(abs(x) > 1e-4 for x in slopes_) > 5
