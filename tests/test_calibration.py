"""Fit and uncertainty: known constants come back from synthetic tables, intervals cover, derivatives are right."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from codesign.calibration import constants, store, tables
from codesign.calibration.constants import BY_NAME, FORMS, LAWS, Term, generation_of
from codesign.calibration.fit import Fit, covariance, fit, fitted_lines, subset
from codesign.calibration.model import Program, log_seconds
from codesign.calibration.predict import Scatter, predict, scatter_of
from codesign.calibration.tables.base import Sample
from codesign.errors import CodesignError
from codesign.execution import NAMES
from codesign.layers.base import Step
from codesign.layers.moe import MoE
from codesign.routing import fullest_rank_distinct, fullest_rank_routes

DATA = Path(__file__).parent / "data" / "kernels"


def placed(name: str) -> list[Sample]:
    return tables.place(DATA / f"kernels-{name}.csv")[0]


def one_chip(name: str, chip: str = "h200") -> list[Sample]:
    found = [subset(s, np.array(s.chips) == chip) for s in placed(name)]
    return [s for s in found if len(s)]


@pytest.fixture(scope="module")
def shipped() -> tuple[Fit, Scatter]:
    return store.load(store.bundled())


@pytest.fixture(scope="module")
def everything() -> list[Sample]:
    return tables.place_folder(DATA)


def test_every_law_is_a_constant_and_its_form_can_be_undone() -> None:
    assert set(BY_NAME) <= set(NAMES)
    for name, form in FORMS.items():
        for value in (0.03, 0.5, 0.97) if name == "share" else (1.3, 4.0, 2e6):
            assert float(form.read(form.write(value))) == pytest.approx(value, rel=1e-12)
    u = np.linspace(-30, 30, 7)
    assert ((np.asarray(FORMS["share"].read(u)) >= 0) & (np.asarray(FORMS["share"].read(u)) <= 1)).all()
    assert (np.asarray(FORMS["exponent"].read(u)) >= 1).all()
    assert (np.asarray(FORMS["positive"].read(u)) > 0).all()


def test_kernels_shift_known_constants() -> None:
    for shifted in constants.KERNELS.values():
        assert set(shifted) <= set(BY_NAME)
    for kernels in constants.DEFAULT_KERNELS.values():
        assert set(kernels) <= set(constants.KERNELS)


def test_relatives_share_their_generation() -> None:
    assert generation_of("h100") == generation_of("h200") == "hopper"
    assert generation_of("gb300") == "blackwell"
    assert generation_of("mi300x") is None
    terms = constants.terms_of(constants.published(None), ["h200", "gb200"], [])
    theta = np.arange(1.0, len(terms) + 1.0)
    j = [law.name for law in LAWS].index("memory_gemm")
    by = {t: x for t, x in zip(terms.terms, theta, strict=True) if t.law == "memory_gemm"}
    everyone, era = by[Term("all", "", "memory_gemm")], by[Term("generation", "hopper", "memory_gemm")]
    own = by[Term("chip", "h200", "memory_gemm")]
    assert (terms.matrix("h200") @ theta)[j] == everyone + era + own
    assert (terms.matrix("h100") @ theta)[j] == everyone + era
    assert (terms.matrix("mi300x") @ theta)[j] == everyone
    assert (terms.matrix(None) @ theta)[j] == everyone


def test_fewer_than_sixty_numbers_belong_to_one_chip(shipped) -> None:
    assert 20 < shipped[0].terms.chip_specific() < 60


@pytest.mark.parametrize("name", ["collectives", "gemm"])
def test_derivatives_agree_with_differences(shipped, name: str) -> None:
    found, _ = shipped
    for sample in placed(name)[:1]:
        program = Program(sample, found.terms)
        jacobian = program.jacobian(found.theta)
        assert np.isfinite(jacobian).all()
        draw = np.random.default_rng(1)
        along = draw.standard_normal(len(found.theta))
        h = 1e-5
        slope = (program.predict(found.theta + h * along) - program.predict(found.theta - h * along)) / (2 * h)
        assert jacobian @ along == pytest.approx(slope, rel=1e-6, abs=1e-7)
        traced = jax.jvp(lambda x, lines=program.lines: log_seconds(x, lines), (found.theta,), (along,))[1]
        assert np.asarray(traced) == pytest.approx(jacobian @ along, rel=1e-9, abs=1e-12)


def synthetic(scatter: float, seed: int, repeat: int = 12) -> tuple[Sample, Fit]:
    """A table of matrix products on one chip that the model itself made, with known numbers and noise."""
    sample = one_chip("gemm")[0]
    turn = np.repeat(np.arange(repeat), len(sample))
    sample = subset(sample, np.tile(np.arange(len(sample)), repeat))
    kernels = {k for ks in sample.kernels for k in ks}
    terms = constants.terms_of(constants.published(None), ["h200"], kernels)
    draw = np.random.default_rng(seed)
    truth = terms.mean + 0.5 * terms.spread * draw.standard_normal(len(terms))
    exact = Program(sample, terms).predict(truth)
    seconds = np.exp(exact + scatter * draw.standard_normal(len(sample)))
    splits = np.where(turn % 2 == 0, "fit", "check").astype(object)
    return replace(sample, seconds=seconds, splits=splits), Fit(terms, truth, np.zeros((len(terms), len(terms))), 0)


def test_known_constants_come_back() -> None:
    made, truth = synthetic(0.01, 0)
    found = fit([made])
    assert found.terms.terms == truth.terms.terms
    # Times come back better than single numbers, of which some are told apart by their priors alone.
    program = Program(made, found.terms)
    assert np.median(np.abs(program.predict(found.theta) - program.predict(truth.theta))) < 0.01
    deviation = np.sqrt(np.diag(found.covariance))
    assert (deviation <= found.terms.spread * (1 + 1e-9)).all()
    own = np.stack([found.terms.matrix("h200") @ x for x in (found.theta, truth.theta)], axis=1)
    place = {law.name: i for i, law in enumerate(LAWS)}
    for name, within in (("tensor_bf16", 0.03), ("launches_gemm", 0.06), ("memory_gemm", 0.06)):
        fitted, true = (float(FORMS[BY_NAME[name].form].read(u)) for u in own[place[name]])
        assert fitted == pytest.approx(true, rel=within), name


def test_intervals_cover_synthetic_lines() -> None:
    made, _ = synthetic(0.12, 3)
    found = fit([made])
    scatter = scatter_of(fitted_lines([made]), found)
    inside = predict(made, found, scatter).covered[made.splits == "check"]
    assert len(inside) > 40
    assert 0.72 <= inside.mean() <= 0.98


def test_covariance_is_that_of_a_linear_model() -> None:
    """Where one number is free and lines are at the optimum, Laplace's variance is 1/(1/s^2 + n g^2/sigma^2)."""
    samples = [synthetic(0.01, 0)[0]]
    terms = constants.terms_of(constants.published(None), ["h200"], [])
    exact = [replace(s, seconds=np.exp(Program(s, terms).predict(terms.mean))) for s in samples]
    programs = [Program(s, terms) for s in exact]
    found = covariance(programs, terms, terms.mean)
    from codesign.calibration.fit import SIGMA

    gradient = programs[0].jacobian(terms.mean)
    want = np.linalg.inv(np.diag(terms.spread**-2.0) + gradient.T @ gradient / SIGMA**2)
    assert found == pytest.approx(want, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("group", ["gemm", "attention", "moe", "collectives", "kda"])
def test_error_on_lines_held_back(shipped, everything, group: str) -> None:
    found, scatter = shipped
    told = [predict(s, found, scatter) for s in everything if s.kind.group == group]
    errors = np.concatenate([np.abs(t.error[t.sample.splits == "check"]) for t in told])
    inside = np.concatenate([t.covered for t in told])
    assert len(errors) >= 10
    assert np.median(errors) <= 0.15
    assert 0.7 <= inside.mean() <= 0.97


def test_the_interval_of_a_line_is_its_gradient_through_the_covariance(shipped) -> None:
    """By central differences of the line's log time; a chip that was left out has a wider one."""
    found, _ = shipped
    line = subset(one_chip("gemm")[0], np.array([3]))
    program = Program(line, found.terms)
    gradient = np.array(
        [
            (float(program.predict(found.theta + h)[0]) - float(program.predict(found.theta - h)[0])) / 2e-5
            for h in 1e-5 * np.eye(len(found.theta))
        ]
    )
    half = float(predict(line, found, Scatter({}, {"gemm": {-1: 0.0}})).half[0])
    assert half == pytest.approx(1.6448536 * np.sqrt(gradient @ found.covariance @ gradient), rel=1e-5)
    wide = float(predict(line, found, Scatter({}, {"gemm": {-1: 0.3}})).half[0])
    assert wide == pytest.approx(np.hypot(half, 0.3))
    assert float(predict(line, found, Scatter({}, {"gemm": {-1: 0.0}}), without="h200").half[0]) > half


def test_saved_fit_comes_back(tmp_path, shipped) -> None:
    found, scatter = shipped
    store.save(tmp_path, found, scatter, "a test", {"gemm": 0.1})
    again, others = store.load(tmp_path)
    assert again.terms.terms == found.terms.terms
    assert again.theta == pytest.approx(found.theta, rel=1e-12)
    assert again.covariance == pytest.approx(found.covariance, rel=1e-5, abs=1e-9)
    assert others == scatter


def test_a_fit_beside_the_covariance_of_another_is_refused(tmp_path, shipped) -> None:
    found, scatter = shipped
    store.save(tmp_path / "a", found, scatter, "a test", {})
    store.save(tmp_path / "b", replace(found, covariance=2.0 * found.covariance), scatter, "a test", {})
    assert 'note = "no lines held back"' in (tmp_path / "a/kernels.toml").read_text()
    (tmp_path / "a/kernels-covariance.npz").write_bytes((tmp_path / "b/kernels-covariance.npz").read_bytes())
    with pytest.raises(CodesignError, match="does not belong to its covariance"):
        store.load(tmp_path / "a")


@pytest.mark.parametrize("damage", ["missing", "not json", "cut"])
def test_a_damaged_fit_is_one_clear_line(tmp_path, shipped, damage: str) -> None:
    if damage != "missing":
        store.save(tmp_path, shipped[0], shipped[1], "a test", {})
        path = tmp_path / "kernels-fit.json"
        path.write_text("{" if damage == "not json" else path.read_text().replace('"numbers"', '"other"'))
    with pytest.raises(CodesignError, match=r"kernels-fit\.json"):
        store.load(tmp_path)


def test_constants_that_ship_are_those_of_the_fit(shipped) -> None:
    """A chip's file has the constants of the fit, and a chip without tables its generation's."""
    from codesign.catalog import load_measurement

    found, _ = shipped
    for chip, file in (("h200", "kernels-h200"), ("h100", "kernels-hopper"), ("gb300", "kernels-blackwell")):
        m = load_measurement(f"kernels-{chip}")
        assert m.name == file
        own = chip if file.endswith(chip) else None
        kernels = constants.DEFAULT_KERNELS[generation_of(chip)]
        u = found.terms.matrix(own, kernels, generation_of(chip)) @ found.theta
        for name, value in constants.read(u).items():
            assert m.numbers[name].si == pytest.approx(float(value), rel=2e-3), (chip, name)
            assert m.numbers[name].kind == "fitted"


def test_known_routing_is_the_layers_own() -> None:
    """The rows of experts with given routes are those of the layer where the routes are what it expects."""
    layer = MoE(experts=64, top_k=6, inner=1408)
    from codesign.calibration.tables.base import machine_named, precision
    from codesign.calibration.tables.moe import expert_rows

    _, machine = machine_named("h200")
    step = Step(batch=96.0, new=1.0, cached=0.0, tp=8.0, dp=1.0, ep=8.0, context_split=0.0, skew=0.0, machine=machine,
                precision=precision(routed="fp8"))  # fmt: skip
    routes = fullest_rank_routes(96.0, 64, 6, 8.0)
    distinct = fullest_rank_distinct(96.0, 64, 6, 8.0)
    own = {row.name: row for row in layer.rows(step, 2048)}
    for row in expert_rows(layer, step, 2048, routes, distinct):
        for lane in ("memory", "tensor", "rows", "vector", "launches"):
            assert float(getattr(row, lane)) == pytest.approx(float(getattr(own[row.name], lane)), rel=1e-12), lane


def test_drawn_routes() -> None:
    from codesign.calibration.tables.moe import drawn

    assert drawn(1, 256, 8, 1, "balanced") == (8.0, 8.0)
    assert drawn(1, 256, 8, 64, "power_law_1.2") == (1.0, 1.0)
    assert drawn(4096, 256, 8, 64, "balanced") == (512.0, 4.0)
    routes, distinct = drawn(4, 256, 8, 1, "power_law_1.2")
    assert routes == 32.0 and 20.0 < distinct <= 32.0
    even, skewed = drawn(4096, 256, 8, 16, "balanced")[0], drawn(4096, 256, 8, 16, "power_law_1.01")[0]
    assert even < skewed < 4096 * 8
