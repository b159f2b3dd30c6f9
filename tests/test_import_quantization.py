"""Quantisation settings become one dtype per tensor class; bytes are those of a model that is counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_import_model import ROUTED, TINY, counted, path, raw, written

from codesign.catalog.importing import Imported, import_model
from codesign.catalog.workloads import ModelFile
from codesign.cli import run
from codesign.errors import CodesignError


def quantised(folder: Path, name: str, table: dict[str, Any] | None) -> ModelFile:
    config = raw(name)
    config.pop("quantization_config", None)
    return import_model(written(folder, config | ({"quantization_config": table} if table else {})), "imported").model


def test_block_fp8_and_plain(tmp_path: Path) -> None:
    fp8 = import_model(path("deepseek-ai--DeepSeek-R1"), "imported").model.dtypes
    assert {fp8.routed, fp8.shared, fp8.dense, fp8.attention} == {"fp8_block"}
    assert (fp8.router, fp8.embedding, fp8.head, fp8.activation, fp8.dispatch) == ("bf16", "bf16", "bf16", "fp8", "fp8")
    wide = quantised(tmp_path, "deepseek-ai--DeepSeek-R1", None).dtypes
    assert {wide.routed, wide.attention, wide.activation} == {"bf16"}


def test_modules_that_stay_wide(tmp_path: Path) -> None:
    wide = ["lm_head", "model.layers.*.self_attn*"]
    table = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": wide}
    found = quantised(tmp_path, "deepseek-ai--DeepSeek-R1", table).dtypes
    assert (found.attention, found.routed, found.shared, found.head) == ("bf16", "fp8", "fp8", "bf16")


def test_a_class_takes_what_most_of_it_has_and_says_so(tmp_path: Path) -> None:
    config = raw("deepseek-ai--DeepSeek-R1")
    wide = [f"model.layers.{i}.self_attn.{m}" for i in range(61) for m in ("q_a_proj", "q_b_proj", "kv_b_proj")]
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": wide}
    found = import_model(written(tmp_path, config), "imported")
    # Of 187.1 M the output projection has 117.4 M and the latent's 4.1 M: 65 %.
    assert found.model.dtypes.attention == "nvfp4"
    told = "ttention weights are mixed (nvfp4 65%, bf16 35%)"
    assert any(told in note for note in found.notes)
    assert f"# A{told}" in found.text


def test_precision_by_module(tmp_path: Path) -> None:
    layers = {f"model.layers.{i}.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16} for i in range(3, 61)}
    layers |= {f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(61)}
    table = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = quantised(tmp_path, "deepseek-ai--DeepSeek-R1", table).dtypes
    assert (found.routed, found.attention, found.shared, found.dense) == ("nvfp4", "fp8", "bf16", "bf16")
    assert (found.expert_activation, found.activation) == ("bf16", "fp8")


def test_quantisation_beside_the_configuration(tmp_path: Path) -> None:
    config = raw("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")
    file = written(tmp_path, config)
    assert import_model(file, "imported").model.dtypes.routed == "bf16"
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    found = import_model(file, "imported").model.dtypes
    assert (found.routed, found.latent, found.router, found.published_kv) == ("nvfp4", "bf16", "bf16", "fp8")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method: unknown method 'bitsandbytes'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size: unknown block \[64, 64\]"),
        ({"quant_algo": "W4A8_AWQ"}, "quant_algo: unknown algorithm 'W4A8_AWQ'"),
        ({"bits": 4}, "quant_method: is missing"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 3}}}},
            "config_groups.g.weights: unknown storage: int of 3 bits",
        ),
    ],
)
def test_unknown_quantisation(tmp_path: Path, table: dict[str, Any], problem: str) -> None:
    with pytest.raises(CodesignError, match=problem):
        quantised(tmp_path, "deepseek-ai--DeepSeek-R1", table)


# The small model's parameters; of its attention the matrices, norms of queries and keys, norms of layers.
ATTENTION = 2 * (64 * 16 * (4 + 2 + 2 + 4) + 2 * 16 + 2 * 64)
ROUTER, WORDS, LAST = 2 * 4 * 64, 256 * 64, 64
FP8 = {"weights": {"type": "float", "num_bits": 8}, "input_activations": {"type": "float", "num_bits": 8}}
NVFP4 = {"weights": {"type": "float", "num_bits": 4, "group_size": 16}}

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def grouped(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings of compressed-tensors."""
    return {"quant_method": "compressed-tensors", "config_groups": {f"g{i}": g for i, g in enumerate(groups)}} | more


def held(routed: float, attention: float, head: float = 2.0) -> float:
    """Bytes of the small model with so many bytes per parameter; router and embedding are BF16."""
    return ROUTED * routed + ATTENTION * attention + 2 * (ROUTER + WORDS) + (WORDS + LAST) * head


def small(folder: Path, table: Any, key: str = "quantization_config", **more: Any) -> Imported:
    return import_model(written(folder, TINY | {key: table} | more), "imported")


@pytest.mark.parametrize("before", ["", "model.", "language_model.model.", "model.language_model."])
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (grouped(FP8 | {"targets": ["re:.*mlp.*"]}), held(1, 2)),
        (grouped(FP8 | {"targets": [r"re:^<>layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj$"]}), held(1, 2)),
        (
            grouped(NVFP4 | {"targets": [r"re:.*mlp\.experts\..*"]}, FP8 | {"targets": ["re:.*self_attn.*"]}),
            held(0.5625, 1),
        ),
        # A name wins over an expression, and an expression over the class.
        (grouped(FP8 | {"targets": ["Linear"]}, NVFP4 | {"targets": [r"re:.*\.experts\..*"]}), held(0.5625, 1, 1)),
        (grouped(FP8 | {"targets": ["Linear"]}, ignore=["lm_head", r"re:<>layers\..*self_attn.*"]), held(1, 2)),
        (grouped(FP8 | {"targets": ["Linear"]}, ignore=["re:.*lm_head", "re:^(?!.*experts).*$"]), held(1, 2)),
        (grouped(FP8 | {"targets": ["Linear"]}, ignore=[r"re:.*(qkv|o)_proj$"]), held(1, 2, 1)),
        # What is to stay wide does so whatever else names it.
        (grouped(FP8 | {"targets": ["re:.*mlp.*", "re:.*attn.*"]}, ignore=["re:.*attn.*"]), held(1, 2)),
        ({"quant_method": "fp8", "ignored_layers": ["<>layers.0.self_attn", "<>layers.1.self_attn"]}, held(1, 2)),
        ({"quant_method": "fp8", "ignored_layers": ["<>layers.*.self_attn"], "ignore": ["lm_head"]}, held(1, 2)),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": [f"<>layers.{i}.self_attn.{m}_proj" for i in (0, 1) for m in ("qkv", "o")],
            },
            held(1, 2),
        ),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": [
                    f"<>layers.{i}.mlp.experts.{n}.{m}_proj"
                    for i in (0, 1) for n in range(4) for m in ("gate_up", "down")
                ],
            },
            held(2, 1),
        ),
    ],
)  # fmt: skip
def test_bytes_by_names_of_modules(before: str, table: dict[str, Any], expected: float, tmp_path: Path) -> None:
    def filled(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("<>", before))

    found = small(tmp_path, filled(table))
    assert counted(found).counts().weight_bytes == expected
    assert not any("matches no" in note or "mixed" in note for note in found.notes)
    # The older name of the settings.
    assert small(tmp_path, filled(table), "compression_config").model == found.model


@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_of_integers_have_a_scale_and_a_zero_point_each(group: int, tmp_path: Path) -> None:
    """Counted as they lie in the checkpoint: packed weights, a scale of two bytes and a packed zero point per group."""
    plain, zero = (group / 2 + 2) / group, (group / 2 + 2 + 1 / 2) / group

    def size(table: dict[str, Any]) -> float:
        found = small(tmp_path, table)
        assert not any("matches no" in note or "mixed" in note for note in found.notes)
        assert (found.model.dtypes.activation, found.model.dtypes.expert_activation) == ("bf16", "bf16")
        return counted(found).counts().weight_bytes

    weights = {"type": "int", "num_bits": 4, "group_size": group, "strategy": "group", "symmetric": True}
    packed = grouped({"targets": ["Linear"], "weights": weights}, format="pack-quantized", ignore=["lm_head"])
    uneven = grouped({"targets": ["Linear"], "weights": weights | {"symmetric": False}}, ignore=["lm_head"])
    assert size(packed) == size(GPTQ | {"group_size": group}) == pytest.approx(held(plain, plain), rel=1e-12)
    assert size(uneven) == size(AWQ | {"group_size": group}) == pytest.approx(held(zero, zero), rel=1e-12)
    assert size(AWQ | {"group_size": group, "zero_point": False}) == size(packed)
    assert size(GPTQ | {"group_size": group, "sym": False, "desc_act": True}) == size(uneven)
    wide = (group + 2) / group
    assert size(GPTQ | {"group_size": group, "bits": 8}) == pytest.approx(held(wide, wide), rel=1e-12)
    # The names that AutoAWQ itself gives.
    assert size({"quant_method": "awq", "w_bit": 4, "q_group_size": group, "zero_point": True}) == size(uneven)


#: Bytes of a weight: half of one, and a scale of two for 128 weights.
FOUR = 0.5 + 2 / 128
EIGHT = 1 + 2 / 128


@pytest.mark.parametrize("before", ["", "model.", "model.language_model."])
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # A scale per output channel is not counted, as for the other formats that have one.
        (GPTQ | {"group_size": -1}, held(0.5, 0.5)),
        (GPTQ | {"group_size": -1, "bits": 8}, held(1, 1)),
        (grouped({"weights": {"type": "int", "num_bits": 4}}, ignore=["lm_head"]), held(0.5, 0.5)),
        (GPTQ | {"lm_head": True}, held(FOUR, FOUR, FOUR)),
        (GPTQ | {"lm_head": False}, held(FOUR, FOUR)),
        (GPTQ | {"dynamic": {}}, held(FOUR, FOUR)),
        (GPTQ | {"dynamic": {r"-:.*self_attn.*": {}}}, held(FOUR, 2)),
        (GPTQ | {"dynamic": {r"-:^<>layers\.\d+\.self_attn\.": {}}}, held(FOUR, 2)),
        (GPTQ | {"dynamic": {r"+:.*self_attn.*": {"bits": 8}}}, held(FOUR, 1 + 2 / 128)),
        # The first that takes a module decides, whatever sign it has.
        (GPTQ | {"dynamic": {"+:.*(mlp|attn).*": {"bits": 8}, "-:.*": {}}}, held(EIGHT, EIGHT)),
        (GPTQ | {"dynamic": {"-:.*": {}, "+:.*(mlp|attn).*": {"bits": 8}}}, held(2, 2)),
        (GPTQ | {"dynamic": {".*attn.*": {"bits": 8}, "-:.*attn.*": {}, "-:.*mlp.*": {}}}, held(2, EIGHT)),
        (GPTQ | {"dynamic": {".*attn.*": {"bits": 8}, "+:.*": {"group_size": 32}}}, held(0.5625, EIGHT)),
        (GPTQ | {"dynamic": {"+:.*": {"group_size": 32}, ".*attn.*": {"bits": 8}}}, held(0.5625, 0.5625)),
        (GPTQ | {"dynamic": {".*attn.*": {"bits": 8}, "-:^(?!model).*attn.*": {}}}, held(FOUR, EIGHT)),
        (GPTQ | {"dynamic": {"-:.*": {}, "lm_head": {"bits": 8}}, "lm_head": True}, held(2, 2)),
        (
            GPTQ | {"dynamic": {"-:.*o_proj": {}, "-:.*[qkv]_proj": {}},
                    "modules_in_block_to_quantize": ["mlp.experts", "self_attn"]},
            held(FOUR, 2),
        ),
        # Expressions reach neither routers nor the head, which the method does not quantise.
        (GPTQ | {"dynamic": {r".*(gate|lm_head|self_attn|experts).*": {"group_size": 32}}}, held(0.5625, 0.5625)),
        (GPTQ | {"dynamic": {"lm_head": {"bits": 8}}}, held(FOUR, FOUR)),
        (GPTQ | {"dynamic": {"lm_head": {"bits": 8}}, "lm_head": True}, held(FOUR, FOUR, 1 + 2 / 128)),
        (
            GPTQ | {"modules_in_block_to_quantize": [[f"mlp.experts.{i}.{m}_proj" for i in range(4)]
                                                     for m in ("gate", "up", "down")]},
            held(FOUR, 2),
        ),
        (
            GPTQ | {"modules_in_block_to_quantize": ["self_attn.qkv_proj", "self_attn.o_proj"], "lm_head": True},
            held(2, FOUR, FOUR),
        ),
        (AWQ | {"modules_to_not_convert": None}, held(0.51953125, 0.51953125)),
        (AWQ | {"modules_to_not_convert": ["gate", "lm_head"]}, held(0.51953125, 0.51953125)),
        (AWQ | {"modules_to_not_convert": ["mlp.gate", "self_attn"]}, held(0.51953125, 2)),
        (AWQ | {"modules_to_not_convert": [f"<>layers.{i}.mlp" for i in (0, 1)]}, held(2, 0.51953125)),
        (AWQ | {"modules_to_not_convert": [f"<>layers.{i}." for i in (0, 1)]}, held(2, 2)),
    ],
)  # fmt: skip
def test_what_weight_only_methods_leave_wide(
    before: str, table: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    found = small(tmp_path, json.loads(json.dumps(table).replace("<>", before)))
    assert counted(found).counts().weight_bytes == pytest.approx(expected, rel=1e-12)
    assert not any("matches no" in note or "mixed" in note for note in found.notes)
    assert (found.model.dtypes.activation, found.model.dtypes.router) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("config", "table", "gigabytes"),
    [
        # Published parameters: 70.55e9, of which embedding and head 2 x 128256 x 8192 stay in 16 bits.
        ("meta-llama--Meta-Llama-3.1-70B", GPTQ, (70.553 - 2.101) * (4 + 16 / 128) / 8 + 2.101 * 2),
        ("meta-llama--Meta-Llama-3.1-70B", AWQ, (70.553 - 2.101) * (4 + 20 / 128) / 8 + 2.101 * 2),
        # 235.09e9: besides embedding and head, 2 x 151936 x 4096, so do 94 routers of 4096 x 128.
        ("Qwen--Qwen3-235B-A22B", GPTQ, (235.094 - 1.294) * (4 + 16 / 128) / 8 + 1.294 * 2),
    ],
)  # fmt: skip
def test_sizes_of_four_bit_checkpoints(config: str, table: dict[str, Any], gigabytes: float, tmp_path: Path) -> None:
    found = import_model(written(tmp_path, raw(config) | {"quantization_config": table}), "imported")
    assert counted(found).counts().weight_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_up_is_no_part_of_another_name(tmp_path: Path) -> None:
    found = small(tmp_path, grouped(FP8 | {"targets": ["re:.*up_proj$", "re:.*v_proj$"]}))
    # One of three equal matrices of an expert; 2 of 12 heads of the attention.
    assert any("outed weights are mixed (bf16 67%, fp8 33%)" in note for note in found.notes)
    assert any("ttention weights are mixed (bf16 83%, fp8 17%)" in note for note in found.notes)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"quant_method": "fp8", "ignore": ["model.layers.0.self_attn.nothing"]}, "'model.layers.0.self_attn.nothing'"),
        (
            {"quant_method": "fp8", "ignore": ["re:.*nothing.*", "*.nothing"]},
            "'re:.*nothing.*' (and 1 more) matches no",
        ),
        (grouped(FP8 | {"targets": ["LlamaAttention"]}), "config_groups: 'LlamaAttention' matches no"),
        ({"quantized_layers": {"model.layers.0.mpl": {"quant_algo": "FP8"}}}, "quantized_layers: 'model.layers.0.mpl'"),
        (
            {"quant_method": "fp8", "ignore": ["model.layers.0.mlp.experts.1"]},
            "'model.layers.0.mlp.experts.1' names some",
        ),
        ({"quant_method": "fp8", "ignore": [r"re:.*experts\.[01]\..*"]}, "names some experts of a layer only"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo: NVFP4 is not read"),
        (grouped(FP8, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config is left out"),
    ],
)
def test_what_is_passed_over_is_told(tmp_path: Path, table: dict[str, Any], told: str) -> None:
    assert any(told in note for note in small(tmp_path, table).notes)


def test_parts_that_are_never_counted_need_no_note(tmp_path: Path) -> None:
    names = ["lm_head", "model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.1.mlp.gate", "mtp.*"]
    names += ["model.layers.2*", "model.visual*", "re:.*vision_tower.*", "gate", "model.layers.2.eh_proj"]
    found = small(tmp_path, {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": names})
    assert found.notes == ()


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        (5, "", "5 is of the wrong type (allowed: a table)"),
        ([], "", "a list is of the wrong type (allowed: a table)"),
        ({}, ".quant_method", "is missing (allowed: fp8,"),
        ({"quant_method": ["fp8"]}, ".quant_method", "unknown method a list"),
        ({"quant_method": "quark", "config_groups": {"g": FP8}}, ".quant_method", "unknown method 'quark'"),
        ({"quant_method": "modelopt"}, ".quant_algo", "is missing (allowed: NVFP4,"),
        ({"quant_method": "fp8", "ignore": 5}, ".ignore", "5 is of the wrong type (allowed: a list of names)"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, ".ignore", "'lm_head' is of the wrong type"),
        ({"quant_method": "fp8", "ignored_layers": ["a", 5]}, ".ignored_layers.1", "5 is of the wrong type"),
        ({"quant_method": "fp8", "ignore": ["re:(["]}, ".ignore.0", "'re:([' is no regular expression"),
        ({"quant_method": "fp8", "ignore": ["re:"]}, ".ignore.0", "is empty"),
        ({"quant_method": "fp8", "ignore": ["."]}, ".ignore.0", "is empty"),
        ({"quant_method": "fp8", "ignore": [r"re:^(?!model\.).*"]}, ".ignore", "'re:^(?!model"),
        ({"quant_method": "fp8", "weight_block_size": {"a": 1}}, ".weight_block_size", "unknown block"),
        ({"quant_algo": ["NVFP4"]}, ".quant_algo", "unknown algorithm a list (allowed: NVFP4,"),
        ({"quant_algo": "MIXED_PRECISION"}, ".quantized_layers", "is missing"),
        ({"quantized_layers": {"a": {"quant_algo": ["x"]}}}, ".quantized_layers.a.quant_algo", "unknown algorithm"),
        ({"quantized_layers": {"a": 5}}, ".quantized_layers.a", "5 is of the wrong type"),
        ({"quantized_layers": [1]}, ".quantized_layers", "a list is of the wrong type"),
        ({"quant_algo": "FP8", "kv_cache_scheme": [8]}, ".kv_cache_scheme", "a list is of the wrong type"),
        (GPTQ | {"bits": 3}, ".bits", "no gptq of 3 bits (allowed: 4 or 8)"),
        (GPTQ | {"bits": "4"}, ".bits", "'4' is of the wrong type (allowed: 4 or 8)"),
        (GPTQ | {"bits": True}, ".bits", "true is of the wrong type (allowed: 4 or 8)"),
        (GPTQ | {"group_size": None}, ".group_size", "is missing (allowed: -1, 32, 64, 128)"),
        (GPTQ | {"group_size": 0}, ".group_size", "unknown storage: 4 bits in groups of 0 (allowed: -1, 32, 64, 128)"),
        (GPTQ | {"group_size": 48}, ".group_size", "unknown storage: 4 bits in groups of 48"),
        (GPTQ | {"sym": None}, ".sym", "is missing (allowed: true or false)"),
        (GPTQ | {"sym": "yes"}, ".sym", "'yes' is of the wrong type (allowed: true or false)"),
        (GPTQ | {"bits": 8, "sym": False}, ".group_size", "unknown storage: 8 bits in groups of 128 with zero points"),
        (GPTQ | {"lm_head": 1}, ".lm_head", "1 is of the wrong type (allowed: true or false)"),
        (GPTQ | {"modules_in_block_to_quantize": 5}, ".modules_in_block_to_quantize", "5 is of the wrong type"),
        (GPTQ | {"modules_in_block_to_quantize": [[5]]}, ".modules_in_block_to_quantize.0", "5 is of the wrong type"),
        (GPTQ | {"dynamic": [1]}, ".dynamic", "a list is of the wrong type (allowed: a table)"),
        (GPTQ | {"dynamic": {"+:.*o_proj": 5}}, ".dynamic.+:.*o_proj", "5 is of the wrong type (allowed: a table)"),
        (GPTQ | {"dynamic": {"+:.*o_proj": {"bits": 2}}}, ".dynamic.+:.*o_proj.bits", "no gptq of 2 bits"),
        (GPTQ | {"dynamic": {"-:([": {}}}, ".dynamic.-:([", "'re:([' is no regular expression"),
        (
            GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"]], "dynamic": {".*q_proj": {"bits": 8}}},
            ".dynamic..*q_proj", "stands beside modules_in_block_to_quantize",
        ),
        (AWQ | {"bits": 8}, ".bits", "no awq of 8 bits (allowed: 4)"),
        (AWQ | {"zero_point": None}, ".zero_point", "is missing (allowed: true or false)"),
        ({"quant_method": "awq", "zero_point": True}, ".bits", "is missing (or w_bit) (allowed: 4)"),
        (
            grouped({"weights": {"type": "int", "num_bits": 8, "group_size": 128, "symmetric": False}}),
            ".config_groups.g0.weights", "unknown storage: int of 8 bits in groups of 128 with zero points",
        ),
        (
            grouped({"weights": {"type": "int", "num_bits": 4, "group_size": 128, "symmetric": "no"}}),
            ".config_groups.g0.weights.symmetric", "'no' is of the wrong type (allowed: true or false)",
        ),
        *(
            (grouped({"weights": {"type": "int", "num_bits": 4} | more}), ".config_groups.g0.weights.group_size", told)
            for more, told in (
                ({"group_size": 0}, "0 is out of range (allowed: a positive number; -1 or null"),
                ({"group_size": False}, "false is of the wrong type (allowed: a positive number; -1 or null"),
                ({"strategy": "group"}, "is missing, which strategy group needs (allowed: a positive number)"),
                ({"strategy": "group", "group_size": None}, "is missing, which strategy group needs"),
                ({"strategy": "group", "group_size": -1}, "-1 is out of range, which strategy group needs"),
            )
        ),
        (grouped(), ".config_groups", "is empty (allowed: at least one group)"),
        ({"quant_method": "compressed-tensors"}, ".config_groups", "is missing"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, ".config_groups", "a list is of the wrong type"),
        (grouped(FP8 | {"input_activations": "x"}), ".config_groups.g0.input_activations", "'x' is of the wrong type"),
        (
            grouped(FP8 | {"input_activations": {"num_bits": ["x"]}}),
            ".config_groups.g0.input_activations", "unknown storage",
        ),
        (
            grouped({"weights": {"type": {}, "num_bits": [8], "group_size": "x"}}),
            ".config_groups.g0.weights", "unknown storage",
        ),
        (grouped(FP8 | {"targets": 5}), ".config_groups.g0.targets", "5 is of the wrong type"),
        (grouped(FP8 | {"targets": []}), ".config_groups.g0.targets", "is empty"),
        (
            grouped(FP8 | {"targets": ["re:.*mlp.*"]}, NVFP4 | {"targets": ["re:.*experts.*"]}),
            ".config_groups", "'re:.*mlp.*' and 're:.*experts.*' store",
        ),
        (
            grouped(FP8 | {"targets": ["model.layers.0.mlp"]}, NVFP4 | {"targets": ["layers.0.mlp"]}),
            ".config_groups.g1.targets.0", "'layers.0.mlp' is stored in two ways",
        ),
    ],
)  # fmt: skip
def test_settings_of_the_wrong_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Any, key: str, problem: str
) -> None:
    file = written(tmp_path, TINY | {"quantization_config": table})
    assert run(["import-model", str(file), "--name", "mine", "--out", "-"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"config.json: quantization_config{key}: {problem}" in error


def test_errors_name_the_file_beside(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8", "ignore": 5}}))
    with pytest.raises(CodesignError, match=r"^hf_quant_config\.json: quantization\.ignore: 5 is of the wrong type"):
        import_model(written(tmp_path, TINY), "imported")
