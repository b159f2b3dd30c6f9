"""Serving tables as strangers write them: spellings, headers, folders, cells, and what is taken for granted."""

import csv
import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from codesign.calibration import serving
from codesign.calibration.names import known_as
from codesign.calibration.serving.labels import checkpoint_of, framework_of, precision_of, unused_in
from codesign.calibration.serving.points import model_of, place
from codesign.catalog import Workspace
from codesign.catalog.names import KINDS
from codesign.cli import run
from codesign.errors import CodesignError, UnknownName

POINTS = Path(__file__).parent / "data/serving/points.csv"
KERNELS = Path(__file__).parent / "data/kernels/kernels-gemm.csv"


def line(**cells: str) -> dict[str, str]:
    """A point of Llama 70B in FP8 on four H200, with some cells changed."""
    own = {"hardware": "h200", "framework": "vllm", "model": "llama3.1-70b", "precision": "fp8", "tp": "4", "ep": "1",
           "dp_attention": "0", "isl": "1024", "osl": "1024", "concurrency": "16", "tpot_s": "0.02", "split": "check",
           "board_j_per_output_token": ""}  # fmt: skip
    return own | cells


def written(path: Path, *lines: dict[str, str], mark: str = ",") -> Path:
    """A table of lines."""
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n", delimiter=mark)
    writer.writeheader()
    writer.writerows(lines)
    path.write_text(text.getvalue())
    return path


def reasons(path: Path) -> list[dict[str, str]]:
    """Lines of a table with predictions."""
    return list(csv.DictReader(io.StringIO(path.read_text())))


# --------------------------------------------------------------------------------------------------- precisions


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("fp4", ("FP4", " nvfp4 ", "MXFP4", "w4a4", "NVFP4-W4A4")),
        ("fp8", ("FP8", "fp8_block", "fp8_e4m3", "FP8-E4M3", "mxfp8", "w8a8-fp8", " fp8\t")),
        ("bf16", ("BF16", "bfloat16", "fp16", "Half", "float16")),
        ("int4", ("INT4", "w4a16", "awq", "GPTQ", "int4_group32")),
    ],
)
def test_spellings_of_a_precision(name: str, spellings: tuple[str, ...]) -> None:
    assert {precision_of(s)[0] for s in spellings} == {name}


@pytest.mark.parametrize(
    "label", ["int8", "w8a8", "w4a8", "fp6", "auto", "w4a16-fp8", "fp4?", "!=", "fp8=", "fp\xe98", "\uff46p8", "fp8,"]
)
def test_what_is_no_known_precision_is_left_out_with_the_known_ones(label: str) -> None:
    points, left = place([line(precision=label)])
    assert points == []
    assert left[0] == f"precision: unknown precision {label!r} (allowed: bf16, fp8, fp4, int4)"


def test_sixteen_bits_of_another_kind_are_noted() -> None:
    points, left = place([line(precision=p) for p in ("bf16", "FP16", "half", "bfloat16")])
    assert left == {}
    assert list(points[0].notes) == ["", "FP16 taken as bf16", "half taken as bf16", ""]


def test_a_spelling_means_what_the_label_means_there() -> None:
    """FP4 is NVFP4 on NVIDIA and MXFP4 on AMD whichever of the two is named, and that is said."""
    for hardware, own, other in (("b200", "nvfp4", "mxfp4"), ("mi355x", "mxfp4", "nvfp4")):
        found, _ = place([line(hardware=hardware, precision=p) for p in ("fp4", own.upper(), other)])
        for leaf in jax.tree.leaves(found[0].precision):
            assert np.array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        assert list(found[0].labels) == ["fp4"] * 3
        assert list(found[0].notes) == ["", "", f"{other} taken as {own}"]


# --------------------------------------------------------------------------------------------------- frameworks


@pytest.mark.parametrize(
    ("name", "meant", "noted"),
    [
        ("vLLM", "vllm", False), ("TRTLLM", "trt", False), ("TensorRT-LLM", "trt", False), ("trt", "trt", False),
        ("SGLang", "sglang", False), ("Dynamo TRT-LLM", "trt", True), ("dynamo-sglang", "sglang", True),
        ("mori-sglang", "sglang", True), ("sglang-disagg", "sglang", True), ("LMDeploy", "lmdeploy", False),
        ("vllm+sglang", "vllm+sglang", False), ("trt_llm", "trt", False), ("dynamo-trtllm", "trt", True),
        ("sgl", "sglang", False), ("ATOM", "atom", False), ("vllm0.9", "vllm", True),
        ("anatomy", "anatomy", False), ("atomic", "atomic", False), ("mtrt", "mtrt", False),
        ("vllmx", "vllmx", False), ("\xe9vllm", "\xe9vllm", False),
    ],
)  # fmt: skip
def test_frameworks_go_by_the_engine(name: str, meant: str, noted: bool) -> None:
    engine, note = framework_of(name)
    assert engine == meant
    assert bool(note) == noted
    if noted:
        assert note.startswith(f"framework {name} taken as {meant}")
    assert ("prefill on the same chips" in note) == ("disagg" in name)


@pytest.mark.parametrize("rest", ["mtp", "EAGLE3", "spec-decode", "draft"])
def test_a_framework_with_speculation_is_predicted_without(rest: str) -> None:
    assert framework_of(f"sglang-{rest}") == (
        "sglang", f"framework sglang-{rest} taken as sglang, predicted without speculation",
    )  # fmt: skip
    engine, note = framework_of(f"lmdeploy-{rest}")
    assert engine == f"lmdeploy-{rest}".casefold()
    assert note.endswith("predicted without speculation")
    assert "speculation" not in framework_of("vllm special build")[1]


# --------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "model", "precision"),
    [
        ("deepseek-r1-0528", "deepseek-v3", None), ("dsr1", "deepseek-v3", None),
        ("deepseek-v3-0324", "deepseek-v3", None),
        ("amd/DeepSeek-R1-0528-MXFP4-Preview", "deepseek-v3", "fp4"), ("gptoss", "gpt-oss-120b", None),
        ("gptoss120b", "gpt-oss-120b", None), ("unsloth/gpt-oss-120b", "gpt-oss-120b", None),
        ("llama70b", "llama3.1-70b", None), ("llama-3.1-70b-instruct", "llama3.1-70b", None),
        ("amd/Llama-3.3-70B-Instruct-FP8-KV", "llama3.1-70b", "fp8"), ("minimaxm2.5", "minimax-m2", None),
        ("minimax-m2.1", "minimax-m2", None), ("kimik2.5", "kimi-k2.5", None), ("glm5", "glm-5", None),
        ("zai-org/GLM-5-FP8", "glm-5", "fp8"), ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", "fp8"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nemotron3-nano-30b", "fp4"),
        ("my.org_2/kimi-k2", "kimi-k2", None), ("glm-5-0528", "glm-5", None), ("glm-5-2512-chat", "glm-5", None),
        ("glm-5-fp8-dynamic-kv", "glm-5", "fp8"), ("glm-5-NVFP4-v2", "glm-5", "fp4"),
    ],
)  # fmt: skip
def test_checkpoints_of_a_structure(name: str, model: str, precision: str | None) -> None:
    assert model_of(name) == (model, precision)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "qwen3-30b-a3b", "llama-4-scout", "llama2-70b", "gpt-oss-21b",
        "deepseek-v2", "glm-52", "llama-3-170b", "deepsek-v3-fp8", "fp8", "org/", "-instruct",
        "/nowhere/llama3.1-70b", "./models/kimi-k2", "arch/kimi-k2", "models/kimi-k2", "a/b/kimi-k2", "../kimi-k2",
        "/kimi-k2", "o rg!/kimi-k2", "glm-5-9999", "glm-5-2713", "glm-5-0532", "glm-5-2507-0528", "glm-5-chat-chat",
        "glm-fp4-5", "kimi-fp4-k2.5", "deepseek-fp8-v2-v3", "glm-5-half", "glm-5-fp8!",
    ],
)  # fmt: skip
def test_other_structures_and_typos_are_not_guessed(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        model_of(name)
    assert str(caught.value).startswith(f"unknown model {name!r} (allowed: ")


def test_a_typo_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownName, match=r"nearest: .*deepseek-v3"):
        model_of("deepsek-v3-fp8")


@pytest.mark.parametrize(
    ("name", "system"),
    [("H100-80GB", "h100"), ("h200-141gb", "h200"), ("b200-nvl8", "b200"), ("NVIDIA B200", "b200"), ("b-200", "b200"),
     ("AMD Instinct MI355X", "mi355x"), ("h200_sxm", "h200"), ("mi350x", None), ("h100-nvl", None), ("h100-pcie", None),
     ("gb200-nvl4", None), ("nvidia", None), ("amd-mi300x", "mi300x"), ("instinct-mi325x", "mi325x"),
     ("NVIDIA GB200 NVL72", "gb200-nvl72"), ("NVIDIA DGX B200", "b200"),
     ("nvidia-vera-rubin-nvl72", "vera-rubin-nvl72"), ("amd-b200", None), ("instinct-h100", None),
     ("nvidia-mi300x", None), ("nvidia-amd-h100", None), ("nvidia-nvidia-h100", None), ("nvidia-tpu-8i", None)],
)  # fmt: skip
def test_parts_by_other_names(name: str, system: str | None) -> None:
    catalog, kind = Workspace.open(), KINDS["system"]
    if system is not None:
        assert catalog.find(kind, name).name == system
    else:
        with pytest.raises(UnknownName):
            catalog.find(kind, name)


def test_the_rule_holds_for_show_and_a_precision_is_not_dropped_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no column says the precision, a name that says one must not lose it."""
    assert run(["show", "meta-llama/Llama-3.3-70B-Instruct", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "llama3.1-70b"
    assert run(["show", "Llama-3.3-70B-Instruct-FP8"]) == 2
    assert "nearest: " in capsys.readouterr().err


def test_two_files_alike_mean_neither(tmp_path: Path) -> None:
    folder = tmp_path / "arch/accelerators"
    folder.mkdir(parents=True)
    for stem in ("part-x", "partx"):
        (folder / f"{stem}.toml").write_text(f'name = "{stem}"\n')
    catalog, kind = Workspace.open(tmp_path), KINDS["accelerator"]
    assert catalog.find(kind, "partx").name == "partx"
    with pytest.raises(UnknownName):
        catalog.find(kind, "p-artx")


def test_a_tag_against_the_column_is_noted() -> None:
    points, left = place([line(model="nvidia/Llama-3.1-70B-Instruct-FP8"), line(model="llama-3.1-70b-FP4")])
    assert left == {}
    assert list(points[0].notes) == ["", "precision is fp8 as its column says, the name of the model says fp4"]
    assert checkpoint_of("Kimi-K2-v2") == ("kimi-k2-v2", None)


# --------------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("cell", ["NA", "n/a", "nan", "NaN", "null", "None", "-", "", " "])
def test_a_measurement_that_is_none_is_not_needed(cell: str) -> None:
    points, left = place([line(tpot_s=cell, board_j_per_output_token=cell)])
    assert left == {}
    assert np.isnan(points[0].tpot).all() and np.isnan(points[0].joules).all()


@pytest.mark.parametrize(
    ("cell", "instances"), [("true", 4), ("Yes", 4), ("1", 4), ("1.0", 4), ("FALSE", 1), ("no", 1), ("0", 1)]
)
def test_dp_attention_in_words(cell: str, instances: int) -> None:
    points, left = place([line(dp_attention=cell)])
    assert left == {}
    assert float(points[0].mapping.dp[0]) == instances


def test_one_token_has_no_tpot() -> None:
    _, left = place([line(osl="1")])
    assert left[0].startswith("osl: '1' is below 2 (allowed: a number from 2 to ")
    assert "first counts as TTFT" in left[0]
    _, left = place([line(dp_attention="maybe")])
    assert left[0] == "dp_attention: 'maybe' is not a number (allowed: 0, 1, true, false, yes or no)"


@pytest.mark.parametrize(
    ("column", "used", "harmless"),
    [
        ("spec_decoding", "mtp", ("none", "off", "0", "False", "")), ("MTP", "3", ("0", "off", "none")),
        ("num_speculative_tokens", "2", ("0", "0.0", "NA")), ("disagg", "true", ("false", "no")),
        ("pp", "2", ("1", "1.0", "")), ("kv_cache_dtype", "bf16", ("fp8", "FP8_e4m3")),
        ("random_range_ratio", "1.0", ("0.8", ".80")), ("throughput", "12", ()), ("chip_spec", "SXM", ()),
    ],
)  # fmt: skip
def test_columns_that_change_the_meaning(column: str, used: str, harmless: tuple[str, ...]) -> None:
    notes = unused_in(line() | {column: used})
    if harmless:
        assert len(notes) == 1
        assert notes[0].startswith(f"column {column} = {used} is not used, ")
    else:
        assert notes == []
    assert [unused_in(line() | {column: x}) for x in harmless] == [[]] * len(harmless)


# --------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("mark", [",", "\t", ";"])
def test_headers_in_any_case_and_other_separators(tmp_path: Path, mark: str) -> None:
    row = line(note="a, b; c")
    shouted = {(f" {k.upper()} " if k != "note" else "Note"): v for k, v in row.items()}
    found = serving.read(written(tmp_path / "points.csv", shouted, mark=mark))
    assert found == [{("Note" if k == "note" else k): v for k, v in row.items()}]


def test_a_column_twice_and_columns_of_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "points.csv", line() | {"TP": "8"})
    with pytest.raises(CodesignError, match="line 1: tp: stands twice"):
        serving.read(path)
    path.write_text("a;b;c\n1;2;3\n")
    for more in ([], ["--out", str(tmp_path / "out.csv")]):
        assert run(["validate", "--points", str(path), *more]) == 2
        told = capsys.readouterr().err
        assert str(path) in told and told.count("\n") == 1 and len(told) - len(str(path)) < 300
    assert "is no serving table" in told


def test_a_folder_with_serving_points_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out.csv"
    folder.mkdir()
    assert run(["validate", "--points", str(folder)]) == 2
    assert "no kernel tables here (allowed: CSV files with their columns, or serving points)" in capsys.readouterr().err
    written(folder / "serving.csv", line(), line(precision="int8"))
    assert run(["validate", "--points", str(folder), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["placed"]) == (2, 1)
    assert document["unplaced"][0] | {"reason": ""} == {"row": 3, "reason": "", "file": "serving.csv"}
    assert [r["placed"] for r in reasons(out)] == ["1", "0"]
    # A second one is predicted too, but only one can be written.
    written(folder / "more.csv", line(concurrency="1"))
    assert run(["validate", "--points", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["placed"]) == (3, 2)
    assert run(["validate", "--points", str(folder), "--out", str(out)]) == 2
    assert f"{folder}: --out: holds 2 serving tables (allowed: one" in capsys.readouterr().err
    assert run(["validate", "--points", str(KERNELS), "--out", str(out)]) == 2
    assert "is no serving table" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- notes


def test_what_was_taken_for_granted_stands_beside_the_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path = written(
        tmp_path / "points.csv",
        line(spec_decoding="none"),
        line(spec_decoding="mtp", framework="Dynamo vLLM"),
        line(spec_decoding="none", framework="lmdeploy", hardware="b300"),
        line(spec_decoding="none", dp_attention="true", concurrency="2"),
    )
    out = tmp_path / "out.csv"
    assert run(["validate", "--points", str(path), "--out", str(out)]) == 0
    page = capsys.readouterr().out
    assert [r["placed"] for r in reasons(out)] == ["1"] * 4
    told = [r["reason"].split("; ") for r in reasons(out)]
    assert told[0] == [""]
    assert told[1] == [
        "framework Dynamo vLLM taken as vllm", "column spec_decoding = mtp is not used, predicted without speculation",
    ]  # fmt: skip
    assert told[2] == [
        "b300 has no measurements of its own, constants are those of its generation, blackwell",
        "framework lmdeploy was not measured on nvidia chips, overheads are the mean of all",
    ]
    assert told[3][-1] == "2 in flight on 4 instances, each is taken to have one"
    assert "1 line predicted (line 3): column spec_decoding = mtp is not used" in page
    assert run(["validate", "--points", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"schema", "rows", "placed", "unplaced", "overall", "groups"} <= document.keys()
    assert [a["row"] for a in document["assumed"]] == [3, 4, 5]


# --------------------------------------------------------------------------------------------------- leaving out


def test_what_is_left_out_goes_by_any_name() -> None:
    chips, models = {"b200", "h200", "gb200"}, {"deepseek-v3", "gpt-oss-120b"}
    given = {"B200": "b200", "b200-sxm": "b200", "gb200-nvl72": "gb200", "DeepSeek-R1": "deepseek-v3",
             "gptoss": "gpt-oss-120b", "H200": "h200", "mi355x": "mi355x", "nobody": "nobody"}  # fmt: skip
    assert {name: known_as(name, chips, models) for name in given} == given


def test_leaving_out_goes_through_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left to fit without the only chip of a table, whichever of its names is given."""
    path = written(tmp_path / "points.csv", line(split="fit"))
    for name in ("H200-SXM", "h200"):
        assert run(["validate", "--points", str(path), "--leave-out", name]) == 2
        assert "no lines to fit" in capsys.readouterr().err
    assert run(["validate", "--points", str(path), "--leave-out", "B200"]) == 2
    assert "no lines of 'B200'" in capsys.readouterr().err
