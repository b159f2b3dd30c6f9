"""Calibration to serving points: what is placed, that known numbers are found again, and the error that ships."""

import csv
import io
import json
import shutil
import tomllib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codesign
from codesign.calibration import serving, store
from codesign.calibration.constants import LAWS
from codesign.calibration.serving import store as store_of_fits
from codesign.calibration.serving.fit import Power, Served, fit, with_power
from codesign.calibration.serving.points import COLUMNS, place, twins
from codesign.calibration.serving.predict import NEW_CHIP, NEW_MODEL, LeftOut, Out, leave_out, predict, scatter_of
from codesign.calibration.serving.program import Program, lines_of
from codesign.calibration.serving.store import load, save
from codesign.calibration.serving.terms import Line, kernels_of, shifts_of
from codesign.calibration.serving.validate import of_new_but
from codesign.cli import run
from codesign.errors import CodesignError

POINTS = Path(__file__).parent / "data/serving/points.csv"


@lru_cache
def rows() -> tuple[dict[str, str], ...]:
    return tuple(serving.read(POINTS) or ())


@lru_cache
def programs() -> tuple[Program, ...]:
    """Llama's points on NVIDIA and on AMD: two programs that compile quickly."""
    return tuple(Program(p) for p in place(rows())[0] if p.model.name == "llama3.1-70b")


@lru_cache
def shipped() -> tuple[Served, dict[str, float], dict[str, Any]]:
    return load(store.bundled())


# --------------------------------------------------------------------------------------------------------- placing


def test_every_point_is_placed_on_its_machine_and_mapping() -> None:
    points, left = place(rows())
    assert left == {}
    assert sum(len(p) for p in points) == len(rows())
    for p in points:
        for k, i in enumerate(p.lines):
            row = rows()[i]
            assert p.mapping.tp[k] * p.mapping.dp[k] == float(row["tp"])
            assert p.load.new[k] == pytest.approx(0.9 * float(row["isl"]))
            assert p.load.batch[k] * p.mapping.dp[k] == float(row["concurrency"])
            assert p.tpot[k] == float(row["tpot_s"])


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("hardware", "h900", "unknown"), ("model", "llama9", "unknown"), ("precision", "fp3", "unknown precision"),
        ("tp", "3", "tp 3"), ("concurrency", "nan", "not a number"), ("isl", "", "not a number"),
        ("ep", "0", "below 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_named(column: str, value: str, told: str) -> None:
    points, left = place([*rows()[:3], {**rows()[0], column: value}])
    assert list(left) == [3]
    assert told in left[3]
    assert sum(len(p) for p in points) == 3


def test_frameworks_go_by_their_short_names() -> None:
    points, _ = place([{**rows()[0], "framework": name} for name in ("dynamo-trt", "TensorRT-LLM", "trt")])
    assert [str(f) for p in points for f in p.frameworks] == ["trt"] * 3


def test_twins_are_found() -> None:
    row = rows()[0]
    other = {**row, "ep": "2", "tpot_s": str(float(row["tpot_s"]) * 1.0005)}
    third = {**row, "ep": "2", "tpot_s": str(float(row["tpot_s"]) * 1.05)}
    assert twins([row, other, third]) == {1}


# --------------------------------------------------------------------------------------------------------- the fit


def test_levels_add_up() -> None:
    lines = [Line("h100", "nvidia", "vllm"), Line("h200", "nvidia", "vllm"), Line("mi355x", "amd", "vllm")]
    shifts = shifts_of(lines)
    sees = shifts.sees(lines)
    level = np.array([s.level for s in shifts.shifts])
    # Relatives see the same generation, strangers only what all share.
    assert np.array_equal(sees[0][level == "generation"], sees[1][level == "generation"])
    assert not np.any(sees[0][level == "vendor"] * sees[2][level == "vendor"])
    assert np.all(sees[:, level == "all"] == 1.0)
    without = shifts.sees(lines, without="h200")
    assert not np.any(without[1][level == "chip"])
    assert np.array_equal(without[0], sees[0])
    assert shifts.chip_specific() <= 4 * 3


@pytest.mark.slow
def test_known_numbers_are_found_again() -> None:
    """Points that the model itself makes from drawn shifts, with noise: the fit predicts lines that it did not see."""
    draw = np.random.default_rng(3)
    shifts = shifts_of(line for p in programs() for line in lines_of(p.points))
    theta = shifts.mean + draw.normal(0.0, 0.7, len(shifts)) * shifts.spread
    made, true = [], []
    for p in programs():
        log_tpot = p.predict(p.arguments(shifts, theta))
        noisy = np.exp(log_tpot + draw.normal(0.0, 0.02, len(log_tpot)))
        splits = np.where(np.arange(len(noisy)) % 3 == 0, "check", "fit").astype(object)
        copy = object.__new__(Program)
        copy.__dict__ |= p.__dict__ | {"points": replace(p.points, tpot=noisy, splits=splits)}
        made.append(copy)
        true.append(log_tpot)
    found = fit(made)
    for p, t in zip(made, true, strict=True):
        held = p.points.splits == "check"
        error = p.predict(p.arguments(found.shifts, found.theta))[held] - t[held]
        assert np.median(np.abs(error)) < 0.05
    # Laplace's deviations are no larger than the priors', and the numbers lie within them.
    deviation = np.sqrt(np.diag(found.covariance))
    assert np.all(deviation <= shifts.spread * (1 + 1e-9))
    assert np.mean(np.abs(found.theta - theta) < 2.0 * deviation) > 0.85


def test_slopes_are_derivatives() -> None:
    p = programs()[0]
    found = shipped()[0]
    w = p.arguments(found.shifts, found.theta)
    slopes = p.slopes(w)
    for j in range(0, w.shape[1], 7):
        h = 1e-5
        up, down = w.copy(), w.copy()
        up[:, j] += h
        down[:, j] -= h
        np.testing.assert_allclose(slopes[:, j], (p.predict(up) - p.predict(down)) / (2 * h), atol=2e-6)


def test_power_in_a_server_is_found_again() -> None:
    found = shipped()[0]
    made = []
    for p in programs():
        board, rate, _ = p.watts(p.arguments(found.shifts, found.theta))
        m = p.points.machine
        watts = Power(0.3, 1.4).board(board, np.asarray(m.static_power), np.asarray(m.power_limit))
        copy = object.__new__(Program)
        splits = np.full(len(watts), "fit", dtype=object)
        copy.__dict__ |= p.__dict__ | {"points": replace(p.points, joules=watts / rate, splits=splits)}
        made.append(copy)
    again = with_power(made, found)
    assert again.power.awake == pytest.approx(0.3, rel=1e-3)
    assert again.power.effort == pytest.approx(1.4, rel=1e-3)
    assert all(0.0 <= d < 1e-2 for d in again.power_deviation)  # nothing scatters
    # Without the lines that energies stand on there is nothing to fit.
    none = with_power(made, found, keep=lambda points: np.zeros(len(points), dtype=bool))
    assert none.power == Power(0.0, 1.0) and np.all(np.isnan(none.power_deviation))


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(CodesignError, match="no lines to fit"):
        fit(list(programs()), keep=lambda p: np.zeros(len(p), dtype=bool))


# ----------------------------------------------------------------------------------------------------- what ships


def test_shipped_constants_predict_llama() -> None:
    found, scatter, _ = shipped()
    for p in programs():
        told = predict(p, found, scatter)
        error = np.abs(told.tpot / p.points.tpot - 1.0)
        assert np.median(error) < 0.12
        assert np.mean(np.abs(np.log(told.tpot / p.points.tpot)) <= told.half) > 0.75


@pytest.mark.slow
def test_shipped_constants_predict_what_they_have_not_seen() -> None:
    document, text = serving.validate(rows(), folder=store.bundled())
    assert document["schema"] == "codesign.validation/1"
    assert document["placed"] == document["rows"] == len(rows())
    check = next(g for g in document["groups"] if g["by"] == {"split": "check"} and g["quantity"] == "tpot_s")
    assert check["n"] >= 15
    assert check["median_ape"] < 0.12
    assert document["overall"]["coverage_90"] > 0.75
    told = list(csv.DictReader(io.StringIO(text)))
    assert len(told) == len(rows())
    for row in told:
        lo, mid, hi = (float(row[f"predicted_tpot_s{end}"]) for end in ("_lo", "", "_hi"))
        assert 0.0 < lo < mid < hi
        assert float(row["predicted_board_j_per_output_token"]) > 0.0
        assert (row["placed"], row["reason"]) == ("1", "")


def test_a_relative_has_wider_intervals() -> None:
    found, scatter, _ = shipped()
    p = programs()[0]
    known = predict(p, found, scatter)
    blind = predict(p, found, {k: v for k, v in scatter.items() if "h200" not in k}, without="h200")
    mine = p.points.chips == "h200"
    assert np.all(blind.half[mine] > known.half[mine])


def test_fitted_shares_stay_below_one_and_own_numbers_few() -> None:
    errors = shipped()[2]
    for chip in ("h100", "h200", "b200", "mi300x", "mi355x"):
        from codesign import catalog

        numbers = catalog.load_measurement(f"served-{chip}").numbers
        for law in LAWS:
            if law.form == "share":
                assert 0.0 < numbers[law.name].si <= 1.0
    document = json.loads((store.bundled() / "serving-fit.json").read_text())
    kernels = json.loads((store.bundled() / "kernels-fit.json").read_text())
    assert document["chip_specific_numbers"] + kernels["chip_specific_numbers"] < 60
    assert {t["name"] for t in errors["left_out"]} >= {"b200", "mi300x", "gpt-oss-120b"}


def test_a_fit_survives_being_written(tmp_path: Path) -> None:
    found, scatter, errors = shipped()
    files = save(tmp_path, found, scatter, "test", errors)
    again, scatter_again, errors_again = load(tmp_path)
    assert again.shifts.shifts == found.shifts.shifts
    np.testing.assert_allclose(again.covariance, found.covariance, rtol=1e-5, atol=1e-9)
    assert (scatter_again, errors_again, again.power) == (scatter, errors, found.power)
    for path in files:
        if path.suffix == ".toml":
            assert path.read_text() == (store.bundled() / path.name).read_text().replace(
                _source(store.bundled() / path.name), "test"
            )
    (tmp_path / "serving-fit.json").write_text("{")
    with pytest.raises(CodesignError, match="damaged"):
        load(tmp_path)


def _source(path: Path) -> str:
    import re

    found = re.search(r'kind = "fitted", source = "([^"]+)"', path.read_text())
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("model", "precision", "tp", "isl", "weights"),
    [
        ("gpt-oss-120b", "fp4", 8, 1024, "head=bf16"),
        ("llama3.1-70b", "fp8", 1, 8192, "dense=fp8_block,attention=fp8_block,activation=fp8,head=bf16"),
    ],
)
def test_evaluation_serves_with_the_same_constants(model: str, precision: str, tp: int, isl: int, weights: str) -> None:
    """`codesign evaluate --phase serve` and `codesign validate` agree to the digits that files keep.

    In time and in energy: the second point's board would draw more than its limit.
    """
    row = {
        "hardware": "b200", "framework": "vllm", "model": model, "precision": precision, "tp": str(tp), "ep": "1",
        "dp_attention": "0", "isl": str(isl), "osl": "1024", "concurrency": "64",
    }  # fmt: skip
    told = next(iter(csv.DictReader(io.StringIO(serving.validate([row], folder=store.bundled())[1]))))
    one = codesign.evaluate(
        "b200", model, "serve", isl=0.9 * isl, osl=921.6, concurrency=64, framework="vllm", tp=tp, dp=1, ep=1,
        chunk=8192, kv_dtype="fp8", weights=weights,
    )  # fmt: skip
    assert one.metrics["tpot_s"] == pytest.approx(float(told["predicted_tpot_s"]), rel=0.01)
    joules = one.metrics["board_power_w"] / one.metrics["tokens_per_s_per_chip"]
    assert joules == pytest.approx(float(told["predicted_board_j_per_output_token"]), rel=0.01)
    assert one.document["execution"]["constants"] == "fitted: b200"


def test_points_held_back_are_kept_with_their_predictions(tmp_path: Path) -> None:
    assert store_of_fits.held_back(tmp_path) == []
    point = ("b200", "gpt-oss-120b", "vllm", 64.0, 0.0123456, 0.01, 0.2)
    text = store_of_fits.held_back_file([dict(zip(store_of_fits.HELD_BACK, point, strict=True))])
    (tmp_path / "serving-held-back.csv").write_text(text)
    (row,) = store_of_fits.held_back(tmp_path)
    assert tuple(row.values()) == (*point[:4], 0.01235, 0.01, 0.2)
    (tmp_path / "serving-held-back.csv").write_text(text.replace("64", "many"))
    with pytest.raises(CodesignError, match="damaged"):
        store_of_fits.held_back(tmp_path)


def test_the_points_that_ship_have_the_error_that_the_fit_tells() -> None:
    rows = store_of_fits.held_back(store.bundled())
    (check,) = (
        g for g in store_of_fits.load(store.bundled())[2]["check"]
        if g["by"] == {"split": "check"} and g["quantity"] == "tpot_s"
    )  # fmt: skip
    errors = [abs(r["predicted_s"] / r["measured_s"] - 1.0) for r in rows]
    assert len(rows) == check["n"]
    assert float(np.median(errors)) == pytest.approx(check["median_ape"], rel=0.01)
    assert float(np.mean(errors)) == pytest.approx(check["mean_ape"], rel=0.01)


@pytest.mark.slow
def test_leaving_a_chip_out_uses_none_of_its_lines() -> None:
    found = fit(list(programs()), steps=8)
    one = leave_out(programs(), Out(chip="h200"))
    assert (
        len(one.log_ratio)
        == len(one.held_back)
        == len(one.half(programs(), scatter_of(programs(), found)))
        == sum(int((p.points.chips == "h200").sum()) for p in programs())
    )
    assert np.all(np.isfinite(one.log_ratio))
    assert not any(s.owner == "h200" for s in one.fit.shifts.shifts)
    assert set(scatter_of(programs(), found)) >= {""}
    assert kernels_of("h200") != kernels_of("b200")


def test_widths_for_new_chips_rest_on_lines_of_the_fit_alone() -> None:
    ratio = np.log(np.array([1.1, 0.8, 1.3, 9.0]))
    held = np.array([False, False, False, True])
    found = shipped()[0]
    told = [LeftOut(Out(chip="h200"), found, r, held).scatter() for r in (ratio, ratio * [1, 1, 1, 3])]
    assert told[0] == told[1] == pytest.approx(np.quantile(np.abs(ratio[:3]), 0.85))
    assert LeftOut(Out(chip="h200"), found, ratio, ~held).scatter() == pytest.approx(np.log(9.0))


def test_what_is_left_out_has_no_say_in_its_own_width() -> None:
    told = [{"by": "chip", "name": n, "scatter": x} for n, x in (("h100", 0.1), ("h200", 0.2), ("mi300x", 0.9))]
    told += [{"by": "model", "name": "llama3.1-70b", "scatter": 0.4}, {"by": "chip and model", "name": "each"}]
    assert of_new_but(Out(chip="mi300x"), told) == {NEW_CHIP: pytest.approx(0.15), NEW_MODEL: 0.4}
    assert of_new_but(Out(model="llama3.1-70b"), told) == {NEW_CHIP: 0.2}


def test_of_twins_the_one_that_is_fitted_stays() -> None:
    row = dict.fromkeys(COLUMNS, "1") | {"tpot_s": "0.01"}
    rows = [row | {"ep": "1", "split": "check"}, row | {"ep": "8", "split": "fit"}, row | {"ep": "4", "split": "check"}]
    assert twins(rows) == {0, 2}
    assert twins([r | {"split": ""} for r in rows]) == {1, 2}


def test_what_a_fit_is_not_shown() -> None:
    for p in programs():
        points, model = p.points, programs()[0].points.model.name
        out = Out("h200", model)
        # Neither the chip nor the model is fitted; what they share is predicted.
        mine = points.model.name == model
        assert list(out.shown(points)) == [not mine and c != "h200" for c in points.chips]
        assert list(out.predicted(points)) == [mine and c == "h200" for c in points.chips]
        assert not np.any(out.shown(points) & out.predicted(points))


def _other_kernels(folder: Path) -> Path:
    """The kernels' fit that ships, but that matrix products in BF16 need twice the rows, in a folder of its own."""
    document = json.loads((store.bundled() / "kernels-fit.json").read_text())
    for n in document["numbers"]:
        if n["level"] == "all" and n["constant"] == "rows_half_bf16":
            n["u"] += float(np.log(2.0))
    (folder / "kernels-fit.json").write_text(json.dumps(document))
    shutil.copy(store.bundled() / "kernels-covariance.npz", folder)
    return folder


def test_serving_stands_on_the_kernels_beside_it(tmp_path: Path) -> None:
    for chip in ("h200", "mi300x"):
        there, here = kernels_of(chip, folder=_other_kernels(tmp_path)), kernels_of(chip)
        moved = {law.name: b - a for law, a, b in zip(LAWS, here, there, strict=True) if a != b}
        assert moved == {"rows_half_bf16": pytest.approx(np.log(2.0))}
    # A folder with one of the two fits gives that one; the other is the one that ships.
    there = tmp_path / store.FOLDER
    there.mkdir(parents=True)
    _other_kernels(there)
    assert store.bundled(tmp_path) == there
    assert store.bundled(tmp_path, "serving") == store.bundled()


@pytest.mark.slow
def test_a_fit_to_two_chips_and_one_model(tmp_path: Path) -> None:
    few = [r for r in rows() if r["model"] == "llama3.1-70b" and r["hardware"] in ("b200", "h200")][::4]
    told = serving.calibrate(few, tmp_path / "out", "test", _other_kernels(tmp_path))
    # No model can be left out, and each of the chips can.
    assert {(t["by"], t["name"]) for t in told["left_out"]} == {("chip", "b200"), ("chip", "h200")}
    names = {p.name for p in (tmp_path / "out").glob("served*.toml")}
    assert "served-hopper.toml" in names and not any("cdna" in n for n in names)
    numbers = tomllib.loads((tmp_path / "out" / "served-h200.toml").read_text())["numbers"]
    assert numbers["exchange"]["kind"] == "assumption"
    assert numbers["launches_gemm"]["kind"] == "fitted"
    kernels = dict(zip([law.name for law in LAWS], kernels_of("h200"), strict=True))
    assert float(numbers["rows_half_bf16"]["value"]) == pytest.approx(2.0 * np.exp(kernels["rows_half_bf16"]), rel=1e-3)


def test_points_that_cannot_be_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = rows()[0] | {"hardware": "h200", "model": "llama3.1-70b", "precision": "bf16", "tp": "1", "ep": "1",
                       "dp_attention": "0", "tpot_s": ""}  # fmt: skip
    document, text = serving.validate([row], folder=store.bundled())
    # 141 GB of weights on 141 GB, of which a share is kept free, and the cache beside them.
    assert 5e9 < document["beyond_memory"][0]["lacks_bytes"] < 60e9
    assert "does not fit: each chip lacks" in text
    for told, lines in (
        ("lacks column osl", [k for k in rows()[0] if k != "osl"]), ("semicolons", [";".join(rows()[0])])
    ):  # fmt: skip
        table = tmp_path / "bad.csv"
        table.write_text(",".join(lines) + "\n" + ",".join("1" for _ in lines) + "\n")
        assert run(["validate", "--points", str(table)]) == 2
        assert told in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_without_points_the_shipped_errors_and_what_others_published(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["validate"]) == 0
    told = capsys.readouterr().out
    for words in (
        "mi300x",
        "goes most by launches",
        "DeepEP dispatch, EP 256",
        "Kimi K3 on GB300, TP 8, batch 1, 7 drafts",
    ):
        assert words in told


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.csv"
    few.write_text(
        "\n".join(POINTS.read_text().splitlines()[:4]) + "\nx,h900,vllm,llama3.1-70b,fp8,8,1,0,1,1,1,1,,,check\n"
    )
    assert run(["validate", "--points", str(few), "--out", str(tmp_path / "out.csv"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["placed"]) == (4, 3)
    assert document["unplaced"][0]["row"] == 5
    assert "h900" in document["unplaced"][0]["reason"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 5
    for bad in (["--points", str(tmp_path / "none.csv")], ["--out", "x.csv"]):
        assert run(["validate", *bad]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run(["calibrate", "--measured", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
