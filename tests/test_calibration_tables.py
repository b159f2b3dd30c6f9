"""Tables: recognised by their columns, placed as the package's own rows, refused in one line where they are damaged."""

from pathlib import Path

import numpy as np
import pytest

from codesign.calibration import tables
from codesign.calibration.constants import published, terms_of
from codesign.calibration.fit import Fit
from codesign.calibration.validate import GROUPINGS, Point, of_chip, summary, validate
from codesign.errors import CodesignError

DATA = Path(__file__).parent / "data" / "kernels"


def written(tmp_path: Path, name: str, change) -> Path:
    """A copy of a sample table with its lines changed."""
    lines = (DATA / f"kernels-{name}.csv").read_text().splitlines()
    path = tmp_path / "table.csv"
    path.write_text("\n".join(change(lines)) + "\n")
    return path


def test_the_sample_is_small_and_has_every_kind() -> None:
    files = sorted(DATA.glob("*.csv"))
    assert sum(f.stat().st_size for f in files) < 60_000
    kinds = {kind.name for f in files if (kind := tables.recognise(tables.read_columns(f)))}
    assert kinds == {kind.name for kind in tables.KINDS}


def test_every_line_is_placed_once() -> None:
    for path in sorted(DATA.glob("*.csv")):
        samples, left = tables.place(path)
        lines = np.sort(np.concatenate([s.lines for s in samples]))
        assert lines.tolist() == list(range(len(path.read_text().splitlines()) - 1))
        assert not left


def test_a_product_is_counted_by_hand() -> None:
    (wide,) = [s for s in tables.place(DATA / "kernels-gemm.csv")[0] if len(s.rows) == 1]
    columns = tables.read_columns(DATA / "kernels-gemm.csv")
    m, n, k = (columns[c][wide.lines].astype(float) for c in "mnk")
    assert wide.rows[0].tensor == pytest.approx(2 * m * n * k)
    assert wide.rows[0].memory == pytest.approx(2 * (n * k + m * (n + k)))
    assert wide.rows[0].width == pytest.approx(n)
    assert wide.seconds == pytest.approx(columns["latency_us"][wide.lines].astype(float) * 1e-6)


def test_a_scan_is_counted_by_hand() -> None:
    (scan,) = tables.place(DATA / "kernels-gqa-decode-attention.csv")[0]
    columns = tables.read_columns(DATA / "kernels-gqa-decode-attention.csv")
    batch, length, kv = (columns[c][scan.lines].astype(float) for c in
                         ("batch_size", "kv_len_tokens", "num_key_value_heads"))  # fmt: skip
    width = np.where(columns["kv_cache_dtype"][scan.lines] == "fp8", 1.0, 2.0)
    read = batch * (length + 1.0) * kv * 256 * width
    assert scan.rows[0].memory == pytest.approx(read + batch * 64 * 256 * 2, rel=1e-12)
    assert scan.rows[0].tensor == pytest.approx(2 * batch * length * 64 * 256, rel=1e-12)
    assert scan.rows[0].streams == pytest.approx(batch * kv)


def test_a_collective_pays_its_machines_setup() -> None:
    samples = tables.place(DATA / "kernels-collectives.csv")[0]
    for s in samples:
        reduce = s.rows[0].name != "dispatch"
        assert (s.setups[0]["all_reduce"] > 0).all() == reduce
        assert (s.setups[0]["all_to_all"] > 0).all() == (not reduce)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: [t[0].replace("gemm_dtype", "dtype"), *t[1:]], "no kernel table has these columns"),
        (lambda t: [t[0], t[1].replace(t[1].split(",")[0], "warp-drive"), *t[2:]], "warp-drive"),
        (lambda t: [t[0], ",".join([*t[1].split(",")[:7], "nan", *t[1].split(",")[8:]])], "latency_us"),
        (lambda t: [t[0], ",".join([*t[1].split(",")[:7], "-3", *t[1].split(",")[8:]])], "latency_us"),
        (lambda t: [t[0], ",".join([*t[1].split(",")[:7], "", *t[1].split(",")[8:]])], "latency_us"),
        (lambda t: [t[0], t[1].replace(t[1].split(",")[2], "int3")], "gemm_dtype"),
        (lambda t: [t[0], ",".join([*t[1].split(",")[:4], "many", *t[1].split(",")[5:]])], "m"),
        (lambda t: [t[0]], "has no lines"),
    ],
)
def test_bad_tables_are_one_clear_line(tmp_path, change, said: str) -> None:
    with pytest.raises(CodesignError) as caught:
        tables.place(written(tmp_path, "gemm", change))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_lines_of_unknown_systems_are_named(tmp_path) -> None:
    path = written(tmp_path, "gemm", lambda t: [t[0], t[1].replace(t[1].split(",")[0], "warp-drive"), *t[2:]])
    document = validate(path)
    assert document["schema"] == "codesign.validation/1"
    assert document["rows"] == document["placed"] + 1
    assert document["unplaced"][0]["row"] == 2 and "warp-drive" in document["unplaced"][0]["reason"]
    assert document["overall"]["n"] == document["placed"]
    for keys in GROUPINGS:
        parts = [g for g in document["groups"] if tuple(g["by"]) == keys]
        assert sum(g["n"] for g in parts) == document["placed"]


def test_summary_by_hand() -> None:
    points = [Point({}, 1.0, 1.1, 0.2), Point({}, 1.0, 0.8, 0.2), Point({}, 2.0, 2.0, 0.1)]
    found = summary(points)
    assert found["n"] == 3
    assert found["median_ape"] == pytest.approx(0.1)
    assert found["mean_ape"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.0)
    assert found["coverage_90"] == pytest.approx(2 / 3)  # ln 0.8 = -0.223 lies outside 0.2


def test_a_chip_left_out_is_predicted_from_its_relatives(tmp_path) -> None:
    (tmp_path / "kernels-gemm.csv").write_text((DATA / "kernels-gemm.csv").read_text())
    document = validate(tmp_path, leave_out="gb200")
    assert {g["by"]["hardware"] for g in document["groups"] if "hardware" in g["by"]} == {"gb200"}
    assert document["overall"]["n"] >= 20
    assert document["overall"]["median_ape"] < 0.2
    with pytest.raises(CodesignError, match="no lines of 'tpu'"):
        validate(tmp_path, leave_out="tpu")


def test_kernels_of_one_chip_alone_are_not_predicted_without_it() -> None:
    samples = tables.place(DATA / "kernels-moe-all-to-all.csv")[0]
    terms = terms_of(published(None), ["h200"], {k for s in samples for ks in s.kernels for k in ks if "deepep" in k})
    found, strange = of_chip(samples, "gb200", Fit(terms, terms.mean, np.zeros((len(terms), len(terms))), 0))
    back_ends = tables.read_columns(DATA / "kernels-moe-all-to-all.csv")["comm_backend"]
    assert strange and all("nvlink" in str(back_ends[i]).lower() for _, i in strange)
    assert all("deepep" in str(back_ends[i]).lower() for s in found for i in s.lines)


def test_a_folder_without_tables_is_refused(tmp_path) -> None:
    with pytest.raises(CodesignError, match="no kernel tables here"):
        validate(tmp_path)
    with pytest.raises(CodesignError, match="no such file"):
        validate(tmp_path / "nowhere.csv")
