"""The search: against dense grids, differences, another optimiser, problems solved by hand, and what can be built.

gpt-oss-120b on few chips keeps the compiler and the mappings small; nothing here depends on which model it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import numpy as np
import pytest
from cases import case, decoded, load
from scipy.optimize import linprog, minimize

from codesign.buildable import DOMAINS, LANE
from codesign.design import BUDGETS, anchor_design, load_package, load_technology
from codesign.evaluation.case import Case
from codesign.mapping import enumerate_mappings, take
from codesign.search.ascent import Settings, climb, random_starts
from codesign.search.finish import Finished, finish
from codesign.search.optimum import Optimum, find_optima
from codesign.search.problem import Problem, violation
from codesign.search.rounding import HOLDS
from codesign.search.space import VARIABLES, Space
from codesign.search.step import PENALTY, sample

CONTEXT = 131072.0
SHORT = Settings(starts=2, kept=4, rounds=2, steps=8)

#: Step of the differences in log variables, and what change of slope within two of them is a kink.
STEP, KINK = 1e-4, 1e-5


@lru_cache
def package() -> Any:
    return load_package()


@lru_cache
def space(technology: str = "hbm4") -> Space:
    return Space.of(load_technology(technology), package())


def anchor() -> np.ndarray:
    return np.log([float(getattr(anchor_design(package()), v)) for v in VARIABLES])


def gpt() -> Case:
    return case("jalapeno", "gpt-oss-120b")


def problem(target: float = 0.005, chips: int = 8) -> Problem:
    c = gpt()
    mappings = enumerate_mappings(c.model, chips)
    return Problem(c.model, c.execution, c.precision, load(1.0, CONTEXT), target, mappings)


@lru_cache
def optimum(technology: str = "hbm4", target: float = 0.005) -> Optimum:
    p, s = problem(target), space(technology)
    return find_optima(p, [s], [[anchor()]], np.random.default_rng(0), SHORT)[0]


CASES = [("hbm4", 0.005), ("hbm4", 0.05), ("hybrid-bonded-dram", 0.01), ("super-3d-ram", 0.003)]
cases = pytest.mark.parametrize(("technology", "target"), CASES)


def index(*names: str) -> list[int]:
    return [VARIABLES.index(name) for name in names]


# ---------------------------------------------------------------------------------------------------- dense search


def pinned(of: Space, at: np.ndarray, free: list[int]) -> Space:
    """A space in which only some variables move."""
    lo, hi = at.copy(), at.copy()
    lo[free], hi[free] = of.lo[free], of.hi[free]
    return replace(of, lo=lo, hi=hi)


def grid(p: Problem, of: Space, free: list[int], lo: np.ndarray, hi: np.ndarray, n: int) -> tuple[float, np.ndarray]:
    """The best score over all mappings on an n by n grid of two variables, and where; budgets hold everywhere."""
    axes = np.meshgrid(np.linspace(lo[0], hi[0], n), np.linspace(lo[1], hi[1], n), indexing="ij")
    x = np.repeat(of.lo[None], n * n, axis=0)
    x[:, free] = np.stack([a.ravel() for a in axes], axis=1)
    built = of.build(x)
    kept = np.flatnonzero(violation(built) <= 1e-12)
    x = x[kept]
    if not len(x):
        return -np.inf, of.lo
    m = len(np.asarray(p.mappings.pp))
    point, mapping = np.repeat(kept, m), np.tile(np.arange(m), len(kept))
    score = p.scores(built, point, mapping).reshape(len(kept), m).max(axis=1)
    return float(score.max()), x[int(score.argmax())]


def dense(p: Problem, of: Space, free: list[int]) -> float:
    """The best score by grids zooming in on the best cell and its neighbours, three times."""
    lo, hi, n = of.lo[free], of.hi[free], 21
    best, x = grid(p, of, free, lo, hi, n)
    for _ in range(3):
        wide = 2.0 * (hi - lo) / (n - 1)
        lo, hi = np.maximum(x[free] - wide, of.lo[free]), np.minimum(x[free] + wide, of.hi[free])
        n = 13
        found, at = grid(p, of, free, lo, hi, n)
        if found > best:
            best, x = found, at
    return best


@pytest.mark.parametrize(
    ("technology", "target", "free"),
    [
        ("hbm4", 0.005, ("memory_bandwidth", "tensor_fp4")),
        ("hbm4", 0.005, ("memory_capacity", "scale_up_domain")),
        ("super-3d-ram", 0.003, ("memory_bandwidth", "scale_up_bandwidth")),
    ],
)
def test_two_variables_against_a_dense_search(technology: str, target: float, free: tuple[str, str]) -> None:
    """Within 0.5 % of the best of every mapping on fine grids; the others stand where nothing is at its best."""
    p, i = problem(target), index(*free)
    middle = np.log([10e12, 80e9, 400e9, 16.0, 8e15, 200e6])
    s = pinned(space(technology), space(technology).clip(middle), i)
    assert violation(s.build(s.lo[None]))[0] <= HOLDS
    found = find_optima(p, [s], [[]], np.random.default_rng(1), SHORT)[0]
    want = dense(p, s, i)
    assert found.finished.overdraft <= HOLDS
    assert found.finished.score >= want + np.log(0.995)
    # The grid comes as close from its side: it measures the same thing.
    assert want >= found.finished.score + np.log(0.99)
    assert want > float(p.screen(s.build(s.lo[None]), 0).max()) + 0.01


# -------------------------------------------------------------------------------------------------------- gradients


def check_gradients(count: int, seed: int) -> None:
    """Slopes of the score along every log variable against differences of fourth order, at random designs."""
    rng = np.random.default_rng(seed)
    error, kinked, shortfalls = [], [], []
    for technology, target in (("hbm4", 0.004), ("super-3d-ram", 0.02)):
        p, s, n = problem(target), space(technology), count // 2
        x, mapping = random_starts(s, n, rng), rng.integers(0, len(np.asarray(p.mappings.pp)), n)

        def score(x: np.ndarray, p: Problem = p, s: Space = s, mapping: np.ndarray = mapping) -> np.ndarray:
            return p.scores(s.build(x), np.arange(len(x)), mapping)

        given = p.pieces(s.build(x), np.arange(n), mapping)
        assert np.all(np.isfinite(given.gradient))
        np.testing.assert_allclose(given.score, score(x), rtol=1e-13)
        want, jump = np.zeros((n, len(VARIABLES))), np.zeros(n)
        for i in range(len(VARIABLES)):
            e = STEP * np.eye(len(VARIABLES))[i]
            back2, back, ahead, ahead2 = (score(x + k * e) for k in (-2, -1, 1, 2))
            want[:, i] = (8.0 * (ahead - back) - (ahead2 - back2)) / (12.0 * STEP)
            left, right = (
                4.0 * (given.score - back) - given.score + back2,
                4.0 * (ahead - given.score) - ahead2 + given.score,
            )
            jump = np.maximum(jump, abs(right - left) / (2.0 * STEP))
        norm = np.linalg.norm(given.gradient, axis=1)
        # Slopes from either side agree to second order in the step but for a kink within two steps.
        kinked.append(jump > KINK * norm)
        error.append(np.linalg.norm(given.gradient - want, axis=1) / norm)
        shortfalls.append(given.scored.shortfall > 0)
    aside = np.concatenate(kinked)
    assert aside.mean() <= 0.05
    worst = np.concatenate(error)[~aside].max()
    assert worst < 1e-5, worst
    # Both designs that serve and designs that do not were among them.
    assert 0.1 < np.concatenate(shortfalls).mean() < 0.9


def test_gradients_by_the_variables() -> None:
    check_gradients(50, seed=2)


@pytest.mark.slow
def test_gradients_by_the_variables_at_a_thousand_designs() -> None:
    check_gradients(1000, seed=3)


def test_gradients_of_budgets() -> None:
    """Budgets are smooth but where stacks are set by capacity or by bandwidth, and a domain outgrows a switch tier."""
    rng = np.random.default_rng(4)
    for technology in ("hbm4", "hybrid-bonded-dram", "sram"):
        s = space(technology)
        x = random_starts(s, 64, rng)
        built = s.build(x)
        for i in range(len(VARIABLES)):
            e = 1e-5 * np.eye(len(VARIABLES))[i]
            want = (s.build(x + e).budgets - s.build(x - e).budgets) / 2e-5
            close = np.isclose(built.budgets_by_x[:, :, i], want, rtol=1e-6, atol=1e-7)
            assert close.all(axis=1).mean() > 0.98


# --------------------------------------------------------------------------------------------- optimality and prices


@cases
def test_the_end_stands_at_an_optimum(technology: str, target: float) -> None:
    o = optimum(technology, target)
    f, p = o.finished, problem(target)
    assert o.serves
    assert f.residual <= 1e-3
    assert f.overdraft <= HOLDS
    assert np.all((f.x >= o.space.lo) & (f.x <= o.space.hi))
    # No other mapping is better on the machine found.
    assert p.screen(o.space.build(f.x[None]), 0).max() <= f.score + 1e-9
    # The score is what an independent evaluation of that machine serves at its batch.
    found = p.pieces(o.space.build(f.x[None]), np.zeros(1, int), np.array([f.mapping])).scored
    machine = take(o.space.build(f.x[None]).machine, 0)
    d = decoded(gpt(), take(p.mappings, f.mapping), load(float(found.batch[0]), CONTEXT), on=machine)
    assert float(d.tokens_per_s_per_megawatt) == pytest.approx(np.exp(f.score), rel=1e-10)
    assert float(d.tpot_s) <= target * (1 + 1e-9)
    memory = d.memory
    needed = memory.fixed + found.batch[0] * memory.per_sequence
    assert needed <= memory.capacity * (1 + 1e-9)


GROWN: dict[str, Callable[[Space, float], Space]] = {
    "package_power": lambda s, k: replace(s, package=eqx.tree_at(lambda p: p.power, s.package, s.package.power * k)),
    "stack_capacity": lambda s, k: replace(
        s, technology=eqx.tree_at(lambda t: t.layers, s.technology, s.technology.layers * k)
    ),
    "stack_bandwidth": lambda s, k: replace(
        s, technology=eqx.tree_at(lambda t: t.bandwidth_per_area, s.technology, s.technology.bandwidth_per_area * k)
    ),
    "heat": lambda s, k: replace(
        s, technology=eqx.tree_at(lambda t: t.heat_limit, s.technology, s.technology.heat_limit * k)
    ),
}


def finish_again(p: Problem, s: Space, from_: Finished) -> Finished:
    """The optimum of a problem a little different, from where the other one's lies."""
    return finish(p, s, from_.x, from_.mapping)


@cases
def test_shadow_prices_are_what_growth_buys(technology: str, target: float) -> None:
    """One percent more of each budget, and of the target, found again: within the curvature of a percent."""
    o = optimum(technology, target)
    f, p, dearest = o.finished, problem(target), 0.0
    for name, price in f.prices.items():
        assert price[0] >= price[1] - 1e-9, "one less costs at least what one more buys"
        if name == "target_tpot":
            gains = {k: finish_again(replace(p, target=target * k), o.space, f).score - f.score for k in (1.01, 0.99)}
        elif name in GROWN:
            # Where a budget is a bound of one variable as well, the bound grows along.
            grown = {k: GROWN[name](replace(o.space, hi=o.space.hi + 0.02), k) for k in (1.01, 0.99)}
            gains = {k: finish_again(p, s, f).score - f.score for k, s in grown.items()}
        else:
            continue
        assert gains[1.01] / np.log(1.01) == pytest.approx(price[1], rel=0.02, abs=2e-3), name
        assert gains[0.99] / np.log(0.99) == pytest.approx(price[0], rel=0.02, abs=2e-3), name
        dearest = max(dearest, price[0])
    assert dearest > 0.1


def within(s: Space, x: np.ndarray) -> np.ndarray:
    """A design moved until budgets hold: by Newton's method on those overdrawn."""
    x = s.clip(x)
    for _ in range(20):
        built = s.build(x[None])
        over = built.budgets[0] > 1e-10
        x = s.clip(x - np.linalg.pinv(built.budgets_by_x[0, over]) @ built.budgets[0, over]) if over.any() else x
    return x


@cases
def test_another_optimiser_finds_nothing_better(technology: str, target: float) -> None:
    """SciPy's SLSQP, from the optimum and from around it, on the best mappings: at most 0.1 % more."""
    o = optimum(technology, target)
    f, p, s = o.finished, problem(target), o.space
    order = np.argsort(-p.screen(s.build(f.x[None]), 0), kind="stable")[:2]
    rng = np.random.default_rng(6)
    ends = []
    for mapping in order:
        for start in (f.x, s.clip(f.x + rng.uniform(-0.15, 0.15, len(f.x)))):

            def value(x: np.ndarray, mapping: int = int(mapping)) -> tuple[float, np.ndarray]:
                got = p.pieces(s.build(x[None]), np.zeros(1, int), np.array([mapping]))
                return -float(got.score[0]), -got.gradient[0]

            limits = {
                "type": "ineq",
                "fun": lambda x: -s.build(x[None]).budgets[0],
                "jac": lambda x: -s.build(x[None]).budgets_by_x[0],
            }
            found = minimize(
                value, start, jac=True, method="SLSQP", bounds=list(zip(s.lo, s.hi, strict=True)), constraints=limits,
                options={"maxiter": 40},
            )  # fmt: skip
            built = s.build(within(s, found.x)[None])
            assert violation(built)[0] <= 1e-8
            ends.append(float(p.scores(built, np.zeros(1, int), np.array([mapping]))[0]))
    assert max(ends) <= f.score + 1e-3
    # It is an optimiser all the same: from the side it comes close.
    assert max(ends) > f.score - 0.05


def test_starts_and_their_history() -> None:
    p, s = problem(), space()
    starts = random_starts(s, 2, np.random.default_rng(7))
    found = climb(p, [s], [starts], SHORT)[0]
    assert len(found.history) == SHORT.rounds * SHORT.steps + 1
    merit = np.array(found.history) - PENALTY * np.array(found.violations)
    assert np.all(merit[-1] > merit[0])
    assert found.score[found.best()] - PENALTY * found.overdraft[found.best()] == merit[-1].max()
    # Model evaluations: all mappings at a screening of each start, later of the best; then kept mappings a step.
    mappings = len(np.asarray(p.mappings.pp))
    assert found.evaluations == mappings * (2 + 1) + SHORT.rounds * SHORT.steps * 2 * SHORT.kept
    again = climb(p, [s], [starts], SHORT)[0]
    np.testing.assert_array_equal(found.x, again.x)


def test_two_technologies_at_once_are_two_searches() -> None:
    """What is searched beside a technology does not change its result: a study may be cut differently."""
    p, names = problem(0.01), ("hbm4", "super-3d-ram")
    starts = {n: random_starts(space(n), 2, np.random.default_rng(8)) for n in names}
    together = climb(p, [space(n) for n in names], [starts[n] for n in names], SHORT)
    for name, found in zip(names, together, strict=True):
        alone = climb(p, [space(name)], [starts[name]], SHORT)[0]
        np.testing.assert_allclose(found.x, alone.x, rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- rounding


@cases
def test_what_is_rounded_can_be_built(technology: str, target: float) -> None:
    o = optimum(technology, target)
    r, p, s = o.rounded, problem(target), o.space
    assert r is not None
    d = r.design
    assert min(abs(np.log(d["scale_up_domain"] / np.array(DOMAINS)))) < 1e-12
    lanes = d["scale_up_bandwidth"] / LANE
    assert lanes == pytest.approx(round(lanes), abs=1e-9)
    t = s.technology
    if t.attachment == "edge":
        # Some whole number of equal stacks, 4, 8, 12 or 16 high, gives the capacity and can carry the bandwidth.
        dies = d["memory_capacity"] / float(t.layer_capacity)
        fits = [
            n for high in (4, 8, 12, 16) if high <= float(t.layers)
            if (n := dies / high) == pytest.approx(round(dies / high), abs=1e-6)
            and d["memory_bandwidth"] <= round(n) * float(t.bandwidth_per_stack) * (1 + 1e-9)
        ]  # fmt: skip
        assert fits
    else:
        layers = d["memory_capacity"] / float(package().covered * package().die_area * t.layer_capacity)
        assert layers == pytest.approx(round(layers), abs=1e-9)
        assert 1 <= round(layers) <= float(t.layers)
    # Budgets hold, and what is told of it is what this machine does.
    x = np.log([d[v] for v in VARIABLES])
    assert violation(s.build(x[None]))[0] <= HOLDS
    assert r.batch == round(r.batch)
    assert r.batch >= 1
    machine = take(s.build(x[None]).machine, 0)
    found = decoded(gpt(), take(p.mappings, r.mapping), load(r.batch, CONTEXT), on=machine)
    assert float(found.tokens_per_s_per_megawatt) == pytest.approx(r.rate, rel=1e-10)
    assert float(found.tpot_s) <= target * (1 + 1e-9)
    assert found.memory.fixed + r.batch * found.memory.per_sequence <= found.memory.capacity * (1 + 1e-9)
    assert r.loss == pytest.approx(1.0 - r.rate / np.exp(o.finished.score), abs=1e-12)
    # No rounding beats the relaxed optimum; this one loses little, since whole sequences are many here.
    assert -1e-6 <= r.loss < 0.05


# ------------------------------------------------------------------------------------- problems with known solutions


@dataclass
class Plain:
    """A space and problem in one, of functions given: ``pieces`` (k functions, their gradients), ``limits`` alike."""

    lo: np.ndarray
    hi: np.ndarray
    f: Callable[[np.ndarray], tuple[float, np.ndarray]]
    g: Callable[[np.ndarray], list[tuple[float, np.ndarray]]] = lambda x: []
    by_target: Callable[[np.ndarray], float] = lambda x: 0.0

    def clip(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, self.lo, self.hi)

    def build(self, x: np.ndarray) -> Any:
        value, slope = -np.ones((len(x), len(BUDGETS))), np.zeros((len(x), len(BUDGETS), len(self.lo)))
        for i, y in enumerate(x):
            for j, (v, s) in enumerate(self.g(y)):
                value[i, j], slope[i, j] = v, s
        return SimpleNamespace(x=x, budgets=value, budgets_by_x=slope)

    def pieces(self, built: Any, point: np.ndarray, mapping: np.ndarray) -> Any:
        found = [self.f(built.x[i]) for i in point]
        scored = SimpleNamespace(by_target=np.array([self.by_target(built.x[i]) for i in point]))
        return SimpleNamespace(
            score=np.array([v for v, _ in found]), gradient=np.stack([s for _, s in found]), scored=scored
        )

    def solve(self, x: np.ndarray) -> Finished:
        this: Any = self
        return finish(this, this, np.asarray(x, dtype=float), 0)


def least(*pieces: tuple[float, np.ndarray]) -> tuple[float, np.ndarray]:
    """The smallest of some functions, with its gradient."""
    return min(pieces, key=lambda p: p[0])


@pytest.mark.parametrize("seed", range(8))
def test_the_least_of_planes(seed: int) -> None:
    """Maximum over a box and a budget of the least of planes: a linear programme, solved apart with its dual."""
    rng, n, k = np.random.default_rng(seed), 6, 9
    a, b = rng.normal(size=(k, n)), rng.normal(size=k)
    c = rng.uniform(0.1, 1.0, n)
    plain = Plain(
        -np.ones(n), np.ones(n), lambda x: least(*((float(a[i] @ x + b[i]), a[i]) for i in range(k))),
        lambda x: [(float(c @ x) - 0.1, c)],
    )  # fmt: skip
    want = linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=np.vstack([np.hstack([-a, np.ones((k, 1))]), np.append(c, 0.0)]), b_ub=np.append(b, 0.1),
        bounds=[*[(-1.0, 1.0)] * n, (None, None)],
    )  # fmt: skip
    found = plain.solve(rng.uniform(-1, 1, n))
    assert found.score == pytest.approx(-want.fun, abs=1e-7)
    assert found.residual < 1e-6
    assert found.overdraft < 1e-7
    dual = -float(want.ineqlin.marginals[-1])
    if "package_power" in found.prices:
        assert np.mean(found.prices["package_power"]) == pytest.approx(dual, abs=1e-4)
    else:
        assert dual == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_concave_quadratic_under_a_plane(seed: int) -> None:
    r"""With :math:`f = -\frac12 (x-a)^T H (x-a)` under :math:`c^T x \le d` the multiplier has a closed form."""
    rng, n = np.random.default_rng(seed), 6
    root = rng.normal(size=(n, n))
    h, a, c = root @ root.T / n + 0.1 * np.eye(n), rng.uniform(-1, 1, n), rng.uniform(0.2, 1.0, n)
    d = float(c @ a) - 0.5
    plain = Plain(
        np.full(n, -8.0), np.full(n, 8.0), lambda x: (float(-0.5 * (x - a) @ h @ (x - a)), -h @ (x - a)),
        lambda x: [(float(c @ x) - d, c)],
    )  # fmt: skip
    across = np.linalg.solve(h, c)
    price = 0.5 / float(c @ across)
    found = plain.solve(rng.uniform(-3, 0, n))
    np.testing.assert_allclose(found.x, a - price * across, atol=2e-3)
    assert found.score == pytest.approx(-0.5 * price**2 * float(c @ across), abs=1e-6)
    assert found.residual < 1e-3
    assert found.prices["package_power"] == pytest.approx((price, price), rel=2e-3)


def test_a_curved_budget() -> None:
    """The sum of coordinates within a ball: the radius over sqrt(n) each, and a price of half the optimum."""
    n, r = 5, 2.0
    plain = Plain(
        np.full(n, -5.0), np.full(n, 5.0), lambda x: (float(x.sum()), np.ones(n)),
        lambda x: [(float(x @ x) / r**2 - 1.0, 2.0 * x / r**2)],
    )  # fmt: skip
    found = plain.solve(np.linspace(-1.0, 1.0, n))
    np.testing.assert_allclose(found.x, r / np.sqrt(n), atol=1e-3)
    assert found.score == pytest.approx(r * np.sqrt(n), abs=1e-6)
    assert found.residual < 1e-3
    # g = |x|^2/r^2 - 1: relative growth of the limit by e makes r grow by e/2.
    assert found.prices["package_power"] == pytest.approx((r * np.sqrt(n) / 2.0,) * 2, rel=1e-3)


@pytest.mark.parametrize("start", [(-1.2, 1.0), (2.0, 2.0), (0.0, -1.5)])
def test_along_a_curved_ridge(start: tuple[float, float]) -> None:
    """Rosenbrock's valley with a kink along its floor: steps must follow the kink round the bend, to (1, 1)."""

    def ridge(x: np.ndarray) -> tuple[float, np.ndarray]:
        off, side = x[1] - x[0] ** 2, np.sign(x[1] - x[0] ** 2)
        slope = [20.0 * side * x[0] + 2.0 * (1.0 - x[0]), -10.0 * side]
        return float(-10.0 * abs(off) - (1.0 - x[0]) ** 2), np.array(slope)

    found = Plain(np.full(2, -3.0), np.full(2, 3.0), ridge).solve(np.array(start))
    np.testing.assert_allclose(found.x, 1.0, atol=2e-3)
    assert found.residual < 1e-2


def test_a_tie_has_two_prices() -> None:
    """The least of x and 1 under x <= 1: one less costs all of it, one more buys nothing."""
    plain = Plain(
        np.array([-2.0, -1.0]), np.array([4.0, 1.0]),
        lambda x: least((float(x[0] - x[1] ** 2), np.array([1.0, -2.0 * x[1]])),
                        (float(1.0 - x[1] ** 2), np.array([0.0, -2.0 * x[1]]))),
        lambda x: [(float(x[0]) - 1.0, np.array([1.0, 0.0]))],
    )  # fmt: skip
    found = plain.solve(np.array([-1.0, 0.7]))
    assert found.score == pytest.approx(1.0, abs=1e-6)
    assert found.prices["package_power"] == pytest.approx((1.0, 0.0), abs=1e-4)


def test_a_budget_that_is_a_bound_by_another_name_has_its_price() -> None:
    """A bound and a budget stop the same variable at the same place: the budget is told at its price."""
    plain = Plain(
        np.array([-2.0, -2.0]), np.array([1.0, 2.0]),
        lambda x: (float(3.0 * x[0] - x[1] ** 2), np.array([3.0, -2.0 * x[1]])),
        lambda x: [(float(x[0]) - 1.0, np.array([1.0, 0.0]))],
    )  # fmt: skip
    found = plain.solve(np.array([-1.0, 1.0]))
    assert found.x[0] == pytest.approx(1.0, abs=1e-6)
    assert found.prices["package_power"] == pytest.approx((3.0, 3.0), abs=1e-3)


def test_a_point_short_of_the_optimum_is_not_certified() -> None:
    """The residual is the slope that is left: the proof can fail."""
    plain: Any = Plain(
        np.full(2, -2.0), np.full(2, 2.0), lambda x: (float(-abs(x[0]) + 0.3 * x[1]), np.array([-np.sign(x[0]), 0.3]))
    )
    for x, left in (((0.0, 0.0), 0.3), ((0.5, 2.0), 1.0), ((0.0, 2.0), 0.0)):
        residual = finish(plain, plain, np.array(x), 0, steps=0).residual
        assert residual == pytest.approx(left, abs=1e-6)


def test_samples_stay_within_bounds() -> None:
    plain: Any = Plain(np.zeros(3), np.ones(3), lambda x: (float(x.sum()), np.ones(3)))
    s = sample(plain, plain, np.array([0.0, 0.5, 1.0]), 0, 1e-3)
    np.testing.assert_array_equal(s.y[0], [0.0, 0.5, 1.0])
    assert np.all((s.y >= 0.0) & (s.y <= 1.0))
    assert np.abs(s.y - s.y[0]).max() == pytest.approx(1e-3)


# ----------------------------------------------------------------------------------------------------------- controls


@pytest.mark.slow
def test_against_cma_es() -> None:
    """CMA-ES with the same bounds and the same inner mapping and batch needs five times the evaluations, or more."""
    cmaes = pytest.importorskip("cmaes", reason="the controls need the optional extra: pip install codesign[search]")
    p, s = problem(0.005), space()
    mappings = len(np.asarray(p.mappings.pp))
    found = find_optima(p, [s], [[]], np.random.default_rng(11), Settings())[0]
    best, spent = found.finished.score, found.evaluations
    reached: list[float] = []
    for seed in range(5):
        control = cmaes.CMA(
            mean=np.full(6, 0.5), sigma=0.25, bounds=np.tile([0.0, 1.0], (6, 1)), seed=seed, population_size=13
        )
        evaluations, top = 0, -np.inf
        while evaluations < 60 * spent and top < best + np.log(0.995) and not control.should_stop():
            asked = [control.ask() for _ in range(control.population_size)]
            built = s.build(s.lo + np.array(asked) * (s.hi - s.lo))
            n = len(asked)
            scores = p.scores(built, np.repeat(np.arange(n), mappings), np.tile(np.arange(mappings), n))
            score = scores.reshape(n, mappings).max(axis=1)
            over = violation(built)
            control.tell([(u, float(v)) for u, v in zip(asked, PENALTY * over - score, strict=True)])
            top = max(top, *(score[over <= HOLDS].tolist() or [-np.inf]))
            evaluations += n * mappings
        assert top <= best + 5e-3, "the control found better"
        reached.append(evaluations if top >= best + np.log(0.995) else np.inf)
    assert float(np.median(reached)) >= 5 * spent, (reached, spent)
