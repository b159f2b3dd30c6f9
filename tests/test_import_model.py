"""Configurations become model files with the counts of the catalog, or an error that names what is missing."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_counts import EXPECTED, Expected, load

from codesign.catalog.importing import ARCHITECTURES, Imported, import_model
from codesign.catalog.workloads import ModelFile
from codesign.cli import run
from codesign.errors import CodesignError
from codesign.model import Model, model_of, stages

CONFIGS = Path(__file__).parent / "data" / "hf-configs"


def path(name: str) -> Path:
    """A carried configuration."""
    return CONFIGS / f"{name}_config.json"


def raw(name: str) -> dict[str, Any]:
    """A carried configuration, to change."""
    return json.loads(path(name).read_text())


def written(folder: Path, config: dict[str, Any]) -> Path:
    """A configuration of one's own as a file."""
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def counted(found: Imported) -> Model:
    """The structure of an imported model."""
    return model_of(found.model)


def agree(found: Imported, expected: Expected, *, weights: bool = True) -> None:
    """Counts against those of the published structure: parameters within 0.1 %, caches and states exact."""
    counts = counted(found).counts({"kv": "bf16"})
    assert counts.total_parameters / 1e9 == pytest.approx(expected.total, rel=1e-3, abs=6e-4)
    assert counts.active_parameters / 1e9 == pytest.approx(expected.active, rel=1e-3, abs=6e-4)
    assert counts.routed_parameters / 1e9 == pytest.approx(expected.routed, rel=1e-5, abs=6e-4)
    assert counts.kv_bytes_per_token == expected.kv
    assert counts.window_bytes_per_sequence == expected.window
    assert counts.state_bytes_per_sequence == expected.state
    if weights:
        assert counts.weight_bytes / 1e9 == pytest.approx(expected.weight_gb, rel=1e-3, abs=0.06)


# --- configurations as released


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("deepseek-ai--DeepSeek-R1", "deepseek-v3"), ("deepseek-ai--DeepSeek-V3.2", "deepseek-v3.2"),
        ("deepseek-ai--DeepSeek-V4-Flash", "deepseek-v4-flash"), ("openai--gpt-oss-20b", "gpt-oss-20b"),
        ("meta-llama--Meta-Llama-3.1-70B", "llama3.1-70b"), ("moonshotai--Kimi-K3", "kimi-k3"),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron3-nano-30b"),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nemotron3-super-120b"),
        ("nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron3-ultra-550b"),
        ("Qwen--Qwen3-235B-A22B", "qwen3-235b-a22b"),
    ],
)  # fmt: skip
def test_released_configurations_have_the_counts_of_the_catalog(config: str, model: str) -> None:
    agree(import_model(path(config), "imported"), EXPECTED[model])


@pytest.mark.parametrize(
    ("config", "model", "gigabytes"),
    [
        # Routed experts in NVFP4, 4.5 bits, the rest in BF16.
        ("nvidia--Qwen3.5-397B-A17B-NVFP4", "qwen3.5-397b-a17b", 386.547 * 0.5625 + 9.799 * 2),
        ("nvidia--MiniMax-M2.5-NVFP4", "minimax-m2", 224.68 * 0.5625 + 4.009 * 2),
    ],
)
def test_quantised_configurations(config: str, model: str, gigabytes: float) -> None:
    found = import_model(path(config), "imported")
    agree(found, EXPECTED[model], weights=False)
    assert counted(found).counts().weight_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    dtypes = found.model.dtypes
    assert (dtypes.routed, dtypes.attention, dtypes.head, dtypes.published_kv) == ("nvfp4", "bf16", "bf16", "fp8")
    assert dtypes.expert_activation == "nvfp4"


def test_dense_tied_model() -> None:
    counts = counted(import_model(path("Qwen--Qwen3-0.6B"), "imported")).counts()
    # The checkpoint's model card: 0.6B parameters, 0.44B without the embedding.
    assert counts.total_parameters == 596_049_920
    assert (counts.total_parameters - counts.parameters["embedding"]) / 1e9 == pytest.approx(0.44, abs=0.005)
    assert counts.parameters["head"] == 1024  # the last norm: head and embedding are one


def test_gemma_has_norms_on_both_sides_and_keys_for_values() -> None:
    found = import_model(path("google--gemma-4-26B-A4B"), "imported")
    h, words = 2816, 262_144
    window = h * 256 * (16 + 2 * 8 + 16) + 2 * 256
    full = h * 512 * (16 + 2 + 16) + 2 * 512  # no projection of values
    layer = 3 * h * 2112 + 128 * 3 * h * 704 + h * 128 + 128 + (2 + 3 + 3) * h
    assert counted(found).counts().total_parameters == words * h + 25 * window + 5 * full + 30 * layer + h
    assert any("side by side" in note for note in found.notes)


def test_chunks_and_single_experts() -> None:
    model = counted(import_model(path("meta-llama--Llama-4-Scout-17B-16E-Instruct"), "imported"))
    counts = model.counts()
    # The model card: 109B in all with the vision tower, 17B active.
    assert counts.total_parameters == pytest.approx(107.77e9, rel=1e-4)
    assert counts.active_parameters + counts.parameters["embedding"] == pytest.approx(17.17e9, rel=1e-3)
    assert counts.window_bytes_per_sequence == 36 * 8192 * 2 * 8 * 128


def test_the_step_stub_is_refused_for_its_missing_heads_and_complete_with_them() -> None:
    with pytest.raises(CodesignError, match="num_sliding_attention_heads: is missing"):
        import_model(path("stepfun-ai--Step-3.7-Flash"), "imported")
    given = ["config.num_sliding_attention_heads=96", "config.tie_word_embeddings=false"]
    found = counted(import_model(path("stepfun-ai--Step-3.7-Flash"), "imported", settings=given)).counts({"kv": "bf16"})
    catalog = load("step-3.7-flash").counts({"kv": "bf16"})
    # A gate per query head, which the catalog's file leaves out: 12 full layers and 33 with a window.
    gates = 4096 * (12 * 64 + 33 * 96)
    assert found.total_parameters - gates == catalog.total_parameters
    assert found.active_parameters - gates == catalog.active_parameters
    assert found.kv_bytes_per_token == catalog.kv_bytes_per_token
    assert found.window_bytes_per_sequence == catalog.window_bytes_per_sequence


# --- architectures without a carried file, by the fields that their configurations have

COMMON = {"tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 131072}

OTHERS: dict[str, dict[str, Any]] = {
    "qwen3-next-80b-a3b": {
        "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 2048, "vocab_size": 151936, "num_hidden_layers": 48,
        "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "attention_bias": False,
    },
    "minimax-m1": {
        "architectures": ["MiniMaxM1ForCausalLM"], "hidden_size": 6144, "vocab_size": 200064, "num_hidden_layers": 80,
        "attn_type_list": ([0] * 7 + [1]) * 10, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "num_local_experts": 32, "num_experts_per_tok": 2, "intermediate_size": 9216, "shared_intermediate_size": 0,
    },
    "minimax-m3": {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "text_config": {
            "hidden_size": 6144, "vocab_size": 200064, "num_hidden_layers": 60, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 128, "use_qk_norm": True, "attention_output_gate": False,
            "moe_layer_freq": [0] * 3 + [1] * 57, "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
            "intermediate_size": 3072, "n_shared_experts": 1, "num_local_experts": 128, "num_experts_per_tok": 4,
            "use_routing_bias": True, "max_position_embeddings": 1048576, "sparse_attention_config": {
                "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_num_index_heads": 4, "sparse_index_dim": 128,
                "sparse_block_size": 128, "sparse_topk_blocks": 16,
            },
        },
    },
    "step3": {
        "architectures": ["Step3VLForConditionalGeneration"], "text_config": {
            "hidden_size": 7168, "vocab_size": 128815, "num_hidden_layers": 61, "num_attention_heads": 64,
            "num_attention_groups": 1, "head_dim": 256, "share_q_dim": 2048, "intermediate_size": 18432,
            "moe_layers_enum": ",".join(map(str, range(4, 60))), "moe_num_experts": 48, "moe_top_k": 3,
            "moe_intermediate_size": 5120, "share_expert_dim": 5120, "max_seq_len": 65536,
        },
    },
    "glm-4.5": {
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 5120, "vocab_size": 151552, "num_hidden_layers": 92,
        "first_k_dense_replace": 3, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "attention_bias": True, "use_qk_norm": True, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "n_routed_experts": 160, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    },
    "mimo-v2-flash": {
        "architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 4096, "vocab_size": 152576,
        "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
        "v_head_dim": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
        "swa_v_head_dim": 128, "sliding_window": 128, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0],
        "moe_layer_freq": [0] + [1] * 47, "intermediate_size": 16384, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": None, "n_group": 1, "topk_group": 1,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "kimi-linear-48b": {
        "architectures": ["KimiLinearForCausalLM"], "hidden_size": 2304, "vocab_size": 163840,
        "num_hidden_layers": 27, "first_k_dense_replace": 1, "num_attention_heads": 32, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "linear_attn_config": {
            "kda_layers": [i for i in range(1, 28) if i % 4 and i != 27], "full_attn_layers": [*range(4, 27, 4), 27],
            "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        },
        "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8,
        "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1,
    },
    "kimi-k2.5": {
        "architectures": ["KimiK25ForConditionalGeneration"], "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "vocab_size": 163840,
            "num_hidden_layers": 61, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 64,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "max_position_embeddings": 262144, "quantization_config": {
                "quant_method": "compressed-tensors", "ignore": [
                    "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                ], "config_groups": {"group_0": {
                    "targets": ["Linear"], "input_activations": None,
                    "weights": {"type": "int", "num_bits": 4, "group_size": 32, "strategy": "group"},
                }},
            },
        },
    },
    "glm-5.2": {
        "architectures": ["GlmMoeDsaForCausalLM"], "hidden_size": 6144, "vocab_size": 154880, "num_hidden_layers": 78,
        "first_k_dense_replace": 3, "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    },
    "mixtral-8x22b": {
        "architectures": ["MixtralForCausalLM"], "hidden_size": 6144, "vocab_size": 32768, "num_hidden_layers": 56,
        "num_attention_heads": 48, "num_key_value_heads": 8, "sliding_window": None, "num_local_experts": 8,
        "num_experts_per_tok": 2, "intermediate_size": 16384,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_architectures_by_their_fields(name: str, tmp_path: Path) -> None:
    found = import_model(written(tmp_path, COMMON | OTHERS[name]), "imported")
    agree(found, EXPECTED[name])
    # Cut into the same stages as the catalog's own file.
    for pp in (1, 2, 4):
        assert stages(counted(found), pp).depths == stages(load(name), pp).depths


def test_every_reader_has_a_configuration() -> None:
    carried = [json.loads(file.read_text()) for file in sorted(CONFIGS.glob("*.json"))]
    names = {a for config in (*carried, *OTHERS.values()) for a in config["architectures"]}
    tried = {ARCHITECTURES[name] for name in names if name in ARCHITECTURES}
    untried = {reader.__name__ for reader in ARCHITECTURES.values()} - {reader.__name__ for reader in tried}
    # Dense siblings of readers that are tried: their one difference is tested below.
    assert untried <= {"mistral", "qwen2", "deepseek_v2", "nemotron_nas"}


def test_dense_siblings(tmp_path: Path) -> None:
    llama = raw("meta-llama--Meta-Llama-3.1-70B")
    plain = counted(import_model(path("meta-llama--Meta-Llama-3.1-70B"), "imported")).counts()
    qwen = llama | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
    biased = counted(import_model(written(tmp_path, qwen), "imported")).counts()
    assert biased.total_parameters - plain.total_parameters == 80 * (64 + 2 * 8) * 128
    windowed = counted(
        import_model(written(tmp_path, llama | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}), "x")
    ).counts()
    assert windowed.total_parameters == plain.total_parameters
    assert windowed.kv_bytes_per_token == 0
    assert windowed.window_bytes_per_sequence == 4096 * plain.kv_bytes_per_token


def test_layers_of_their_own_width(tmp_path: Path) -> None:
    wide = {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}}
    bare = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.5, "no_op": False}}
    config = COMMON | {
        "architectures": ["DeciLMForCausalLM"], "hidden_size": 8192, "vocab_size": 128256, "num_hidden_layers": 3,
        "num_attention_heads": 64, "block_configs": [wide, bare, wide],
    }  # fmt: skip
    found = counted(import_model(written(tmp_path, config), "imported"))
    # The rule of the architecture: two thirds of the multiple, rounded up to 256. 5.25 gives Llama's 28,672.
    narrow = 2816
    attention = 8192 * 128 * (64 + 2 * 8 + 64) + 8192
    layers = 2 * (attention + 3 * 8192 * 28672 + 8192) + 3 * 8192 * narrow + 8192
    assert found.counts().total_parameters == 2 * 128256 * 8192 + 8192 + layers
    assert found.depth == 3


# --- quantisation


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
        ({"quant_method": "awq", "bits": 4}, "quant_method: unknown method 'awq'"),
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


# --- never a silent default


def outcome(folder: Path, config: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The structure that a configuration gives, without names, and the notes."""
    found = import_model(written(folder, config), "imported")
    return found.text[found.text.index("hidden =") :], found.notes


def refusal(folder: Path, config: dict[str, Any]) -> CodesignError | None:
    """The error that a configuration is refused with."""
    try:
        import_model(written(folder, config), "imported")
    except CodesignError as error:
        return error
    return None


@pytest.mark.parametrize("name", sorted(file.name.removesuffix("_config.json") for file in CONFIGS.glob("*.json")))
def test_a_missing_field_is_an_error_or_told_or_does_not_matter(name: str, tmp_path: Path) -> None:
    config = raw(name)
    if name.startswith("stepfun"):
        config |= {"num_sliding_attention_heads": 96, "tie_word_embeddings": False}
    whole = outcome(tmp_path, config)[0]
    for table in [config] + [t for t in (config.get("text_config"),) if t]:
        for key in [k for k in table if k != "text_config"]:
            value = table.pop(key)
            error = refusal(tmp_path, config)
            if error is None:
                text, notes = outcome(tmp_path, config)
                assert text == whole or any(key in note for note in notes), key
            else:
                # Without its quantisation an MXFP4 checkpoint no longer says what the rest is stored in.
                assert ("dtype" if key == "quantization_config" else key) in str(error)
                assert error.file == "config.json"
            table[key] = value


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architectures": ["FooForCausalLM"], "model_type": "foo"}, "unknown architecture FooForCausalLM, foo"),
        ({"architectures": ["DeepseekV33ForCausalLM"], "model_type": "x"}, "nearest: DeepseekV3"),
        ({"architectures": None, "model_type": None}, "architectures: is missing, and so is model_type"),
        ({"hidden_size": "7168"}, "hidden_size: '7168' is of the wrong type"),
        ({"num_attention_heads": True}, "num_attention_heads: true is of the wrong type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 is out of range"),
        ({"n_routed_experts": None}, "n_routed_experts: is missing, which DeepseekV3ForCausalLM needs"),
        ({"attention_bias": True}, "attention_bias: true: biases of latent models are not modelled"),
        ({"torch_dtype": "int3"}, "dtype: unknown dtype 'int3'"),
        ({"n_group": 7}, "7 does not divide 256 experts"),
        ({"mlp_layer_types": ["dense"] * 4}, "mlp_layer_types: has 4 entries"),
        ({"mlp_layer_types": ["mixed"] * 61}, "mlp_layer_types.0: unknown 'mixed'"),
    ],
)
def test_bad_fields(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CodesignError, match=problem):
        import_model(written(tmp_path, raw("deepseek-ai--DeepSeek-R1") | changes), "imported")


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"', "{}", "[" * 100_000])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(CodesignError, match=r"config\.json: "):
        import_model(file, "imported")
    with pytest.raises(CodesignError, match=r"nothing\.json: cannot be read"):
        import_model(tmp_path / "nothing.json", "imported")


@pytest.mark.parametrize("setting", ["hidden_size=1", "config.hidden_size", "config.=1", "model.hidden=2"])
def test_settings_name_a_field(setting: str) -> None:
    with pytest.raises(CodesignError, match="--set"):
        import_model(path("deepseek-ai--DeepSeek-R1"), "imported", settings=[setting])


# --- the command


def test_command_writes_a_file_that_the_catalog_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "workloads").mkdir()
    command = ["import-model", str(path("Qwen--Qwen3-235B-A22B")), "--name", "mine", "--workspace", str(tmp_path)]
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["architecture"]) == ("codesign.import/1", "Qwen3MoeForCausalLM")
    assert told["counts"]["kv_bytes_per_token"] == 192_512
    file = tmp_path / "workloads" / "models" / "mine.toml"
    assert tomllib.loads(file.read_text())["blocks"]["moe"]["experts"] == 128
    assert run(["show", "mine", "--workspace", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == told["counts"]
    # Once more is no change; another model under the same name is refused unless it is meant.
    assert run(command) == 0
    other = [*command[:1], str(path("Qwen--Qwen3-0.6B")), *command[2:]]
    assert run(other) == 2
    assert "is there already" in capsys.readouterr().err
    assert run([*other, "--force"]) == 0
    assert "mlp" in file.read_text()


def test_command_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import-model", str(path("openai--gpt-oss-20b")), "--name", "mine"]
    assert run([*command, "--title", "Mine", "--out", "-"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert (shown["name"], shown["title"], shown["dtypes"]["routed"]) == ("mine", "Mine", "mxfp4")
    assert ModelFile.model_validate(shown).layer_count == 24


def test_command_tells_errors_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import-model", str(path("stepfun-ai--Step-3.7-Flash")), "--name", "mine", "--out", "-"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "num_sliding_attention_heads" in error
    assert run(["import-model", str(path("openai--gpt-oss-20b")), "--name", "../mine", "--out", "-"]) == 2
