"""Measured tables with bad cells.

A bad cell of a serving table is a line left out, told with its column; kernel tables, which are fitted to, are refused.
"""

import csv
import io
import json
from pathlib import Path

import pytest

from codesign.calibration import serving, tables
from codesign.calibration.serving.points import place, twins
from codesign.cli import run
from codesign.errors import CodesignError

POINTS = Path(__file__).parent / "data/serving/points.csv"


def table(path: Path, **cells: str) -> Path:
    """The first three points of one model and chip, the second with some cells changed."""
    rows = [r for r in serving.read(POINTS) or () if r["model"] == "llama3.1-70b" and r["hardware"] == "h200"][:3]
    rows[1] |= cells
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())
    return path


BAD = [
    ("tpot_s", "-1", "is below"), ("tpot_s", "0", "is below"),
    ("tpot_s", "soon", "is not a number"), ("tpot_s", "inf", "is above"), ("tpot_s", "1e9", "is above"),
    ("board_j_per_output_token", "-1", "is below"), ("isl", "1e30", "is above 1e+08"), ("isl", "", "is not a number"),
    ("osl", "1", "is below 2"), ("osl", "0.5", "is below 2"),
    ("tpot_s", "n.a", "is not a number"), ("concurrency", "0", "is below 1"), ("concurrency", "1e30", "is above"),
    ("tp", "1.5", "is not whole"), ("tp", "-8", "is below 1"), ("ep", "inf", "is above"),
    ("dp_attention", "7", "is above 1"), ("hardware", "", "is empty"), ("model", " ", "is empty"),
    ("dp_attention", "0.4", "is neither 0 nor 1"), ("isl", "1_024", "is not a number"),
    ("concurrency", "\u0661\u0666", "is not a number"), ("tpot_s", "0.0_2", "is not a number"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value", "told"), BAD)
def test_a_bad_cell_leaves_its_line_out(tmp_path: Path, column: str, value: str, told: str) -> None:
    rows = serving.read(table(tmp_path / "points.csv", **{column: value}))
    assert rows
    points, left = place(rows)
    assert sum(len(p) for p in points) == 2
    assert list(left) == [1]
    assert left[1].startswith(f"{column}: ")
    assert told in left[1]
    assert twins(rows) == set()


def test_what_was_not_measured_may_be_empty(tmp_path: Path) -> None:
    blank = dict.fromkeys(("tpot_s", "board_j_per_output_token"), " ")
    rows = serving.read(table(tmp_path / "points.csv", **blank))
    assert rows
    points, left = place(rows)
    assert sum(len(p) for p in points) == 3
    assert left == {}


def test_the_program_goes_on_and_names_lines_and_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = table(tmp_path / "points.csv", tpot_s="-1")
    assert run(["validate", "--points", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["placed"]) == (3, 2)
    assert [u["row"] for u in document["unplaced"]] == [3]
    assert run(["validate", "--points", str(path)]) == 0
    page = capsys.readouterr().out
    assert "1 line left out (line 3): tpot_s: '-1' is below" in page
    assert "TPOT concurrency " in page


def test_a_split_is_read_in_any_case_and_without_blanks(tmp_path: Path) -> None:
    rows = serving.read(table(tmp_path / "points.csv", split=" Fit "))
    assert rows
    rows[0]["split"], rows[2]["split"] = " CHECK", " "
    points, left = place(rows)
    assert left == {}
    assert list(points[0].splits) == ["check", "fit", "check"]
    assert rows[1]["split"] == "fit"
    # Of twins that of split fit is kept, however it is written.
    assert twins([rows[1] | {"split": "check"}, rows[1] | {"split": "FIT"}]) == {0}


def test_blank_lines_do_not_shift_the_line_of_a_refusal(tmp_path: Path) -> None:
    path = table(tmp_path / "points.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "", lines[1], "", lines[2] + ",1,2"]))
    with pytest.raises(CodesignError, match="line 5: has more cells"):
        serving.read(path)


def test_tables_that_are_none_are_refused_with_their_path(tmp_path: Path) -> None:
    path = table(tmp_path / "points.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2] + ",1,2"]))
    with pytest.raises(CodesignError, match="has more cells than columns") as caught:
        serving.read(path)
    assert str(caught.value).startswith(f"{path}: line 3: ")
    path.write_text(lines[0])
    for read in (serving.read, tables.read_columns):
        with pytest.raises(CodesignError, match="has no lines") as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
    # As a spreadsheet writes it, with a byte order mark.
    path.write_bytes("\ufeff".encode() + "\n".join(lines).encode())
    assert len(serving.read(path) or ()) == 3


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("num_heads", "abc", "num_heads: line 3 has 'abc' (allowed: a finite number from 1 to"),
        ("num_heads", "", "num_heads: line 3 has None"),
        ("num_key_value_heads", "-1", "num_key_value_heads: line 3 has -1"),
        ("head_dim", "1e30", "head_dim: line 3 has 1e+30"),
        ("batch_size", "nan", "batch_size: line 3 has 'nan'"),
        ("kv_len_tokens", "0", "kv_len_tokens: line 3 has 0"),
        ("latency_us", "0", "latency_us: line 3 has 0"),
        ("latency_us", "inf", "latency_us: line 3 has inf"),
        ("kv_cache_dtype", "fp3", "unknown name 'fp3'"),
    ],
)
def test_a_bad_cell_of_a_kernel_table_is_refused(tmp_path: Path, column: str, value: str, told: str) -> None:
    lines = (POINTS.parents[1] / "kernels/kernels-gqa-decode-attention.csv").read_text().splitlines()[:4]
    cells = lines[2].split(",")
    cells[lines[0].split(",").index(column)] = value
    path = tmp_path / "kernels-gqa-decode-attention.csv"
    path.write_text("\n".join([*lines[:2], ",".join(cells), lines[3]]))
    with pytest.raises(CodesignError) as caught:
        tables.place(path)
    assert str(caught.value).startswith(f"{path}: {told}")
    assert "\n" not in str(caught.value)


def test_an_unknown_format_is_told_with_what_is_known(tmp_path: Path) -> None:
    lines = (POINTS.parents[1] / "kernels/kernels-gemm.csv").read_text().splitlines()[:2]
    path = tmp_path / "kernels-gemm.csv"
    path.write_text("\n".join([lines[0], lines[1].replace(lines[1].split(",")[2], "int3")]))
    with pytest.raises(CodesignError, match=r"gemm_dtype: unknown format 'int3' \(allowed: "):
        tables.place(path)
