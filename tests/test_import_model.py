"""Configurations become model files with the counts of the catalog, or an error that names what is missing."""

import json
import re
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
from codesign.routing_choices import routing_of

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

#: Architectures without a carried configuration: their fields, by the catalog's model that they give.
OTHERS: dict[str, dict[str, Any]] = json.loads((CONFIGS.parent / "import-others.json").read_text())


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


# A model to count by hand: 2 layers of width 64, 4 query and 2 KV heads of 16, 4 experts of 3 x 64 x 32, 256 words.
TINY = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "vocab_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
    "use_sliding_window": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "max_position_embeddings": 1024,
}  # fmt: skip
ROUTED = 2 * 4 * 3 * 64 * 32


@pytest.mark.parametrize("name", sorted(file.name.removesuffix("_config.json") for file in CONFIGS.glob("*.json")))
def test_too_many_layers_are_refused_before_lists_are_built(name: str, tmp_path: Path) -> None:
    config = raw(name)
    table = config.get("text_config", config)
    if "num_hidden_layers" not in table:
        table["hybrid_override_pattern"] = "M" * 10_001
        table.pop("layers_block_type", None)
    table["num_hidden_layers"] = 100_000_000
    error = refusal(tmp_path, config)
    assert error is not None
    assert "10,000" in str(error)


def test_lists_of_layers(tmp_path: Path) -> None:
    assert "mlp_only_layers.0: a list" in str(refusal(tmp_path, TINY | {"mlp_only_layers": [[1]]}))
    assert "at most 10,000" in str(refusal(tmp_path, TINY | {"mlp_only_layers": [0] * 10_001}))


@pytest.mark.parametrize("factor", [0.5, 1000.5, 1e300, float("nan")])
def test_a_capacity_has_a_range(factor: float) -> None:
    with pytest.raises(CodesignError, match=r"--capacity-factor.*1 to 1,000"):
        routing_of(capacity_factor=factor)
    most = routing_of(capacity_factor=1000.0)
    assert most is not None
    assert most.capacity == 1000.0
    assert routing_of(capacity_factor=float("inf")) is None


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


LLAVA = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
BARE = {key: value for key, value in TINY.items() if key != "architectures"}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            TINY | {"architectures": ["TotallyNewForCausalLM"], "model_type": "qwen3_moe"},
            "architectures: unknown architecture TotallyNewForCausalLM, qwen3_moe",
        ),
        (
            TINY | {"architectures": ["Qwen3MoeForSequenceClassification"], "model_type": "qwen3_moe"},
            "architectures: unknown architecture Qwen3MoeForSequenceClassification",
        ),
        (
            TINY | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32000},
            "architectures: unknown architecture LlamaForCausalLMEagle3",
        ),
        # The same drafter under the name of its target.
        (TINY | {"draft_vocab_size": 32000}, "draft_vocab_size: 32000: a drafter is no model of its own"),
        (TINY | {"architectures": ["DeepseekV3ForCausalLMNextN"]}, "unknown architecture DeepseekV3ForCausalLMNextN"),
        (BARE | {"model_type": "qwen3_more"}, "model_type: unknown architecture qwen3_more"),
        (TINY | {"architectures": [5], "model_type": "qwen3_moe"}, "architectures: a list is of the wrong type"),
        # Outer classes count where the text model has none.
        (
            LLAVA | {"text_config": BARE | {"model_type": "qwen3_moe"}},
            "json: architectures: unknown architecture LlavaForConditionalGeneration",
        ),
        (
            {"architectures": ["Qwen3VLMoeForConditionalGeneration"]}
            | {"text_config": TINY | {"architectures": ["X"]}},
            "json: text_config.architectures: unknown architecture X",
        ),
    ],
)
def test_a_class_that_is_unknown_is_not_read_as_its_type(
    config: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import-model", str(written(tmp_path, config)), "--name", "mine", "--out", "-"]
    assert run(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert problem in error
    assert "(allowed: " in error


@pytest.mark.parametrize(
    "config",
    [
        TINY | {"architectures": ["TotallyNewForCausalLM"], "model_type": "qwen3_moe"},
        LLAVA | {"text_config": BARE | {"model_type": "qwen3_moe"}},
    ],
)
def test_the_setting_that_the_error_names_reads_a_class_as_its_type(config: dict[str, Any], tmp_path: Path) -> None:
    told = str(refusal(tmp_path, config))
    assert "; --set config.architectures=qwen3_moe has it read as its model_type" in told
    found = import_model(written(tmp_path, config), "imported", settings=["config.architectures=qwen3_moe"])
    assert found.architecture == "qwen3_moe"
    assert counted(found).counts().routed_parameters == ROUTED


@pytest.mark.parametrize(
    "config",
    [
        TINY, BARE | {"model_type": "qwen3_moe"}, BARE | {"architectures": None, "model_type": "qwen3_moe"},
        BARE | {"architectures": [], "model_type": "qwen3_moe"}, TINY | {"architectures": ["Qwen3MoeModel"]},
        TINY | {"model_type": "novel"}, TINY | {"architectures": ["NewForCausalLM", "Qwen3MoeForCausalLM"]},
        LLAVA | {"text_config": TINY}, {"model_type": "llava", "text_config": BARE | {"model_type": "qwen3_moe"}},
        {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": BARE},
    ],
)  # fmt: skip
def test_a_class_or_a_type_that_is_known(config: dict[str, Any], tmp_path: Path) -> None:
    expected = outcome(tmp_path, TINY)[0]
    assert outcome(tmp_path, config)[0] == expected


def test_an_empty_list_of_layers_without_rotation_is_the_pattern(tmp_path: Path) -> None:
    """As the architecture defines it: an empty ``no_rope_layers`` is none, an empty ``moe_layers`` is one."""
    config = raw("meta-llama--Llama-4-Scout-17B-16E-Instruct")
    text = config["text_config"]
    text.pop("layer_types", None)
    text.pop("no_rope_layers", None)
    for every, rotated in ((4, 36), (6, 40)):
        text |= {"no_rope_layer_interval": every, "no_rope_layers": []}
        found = import_model(written(tmp_path, config), "imported")
        assert counted(found).counts().window_bytes_per_sequence == rotated * 8192 * 2 * 8 * 128
        given = [int(i % every != every - 1) for i in range(48)]
        text["no_rope_layers"] = given
        assert import_model(written(tmp_path, config), "imported").model == found.model
    text["no_rope_layers"] = [1] * 47
    with pytest.raises(CodesignError, match=r"text_config\.no_rope_layers: has 47 entries"):
        import_model(written(tmp_path, config), "imported")
    text |= {"no_rope_layers": [], "moe_layers": []}
    assert counted(import_model(written(tmp_path, config), "imported")).counts().routed_parameters == 0


@pytest.mark.parametrize(
    ("key", "entry", "problem"),
    [
        ("no_rope_layers", "0", "unknown '0' (allowed: 0, 1)"),
        ("no_rope_layers", None, "unknown None (allowed: 0, 1)"),
        ("no_rope_layers", 2, "unknown 2 (allowed: 0, 1)"),
        ("no_rope_layers", -1, "unknown -1 (allowed: 0, 1)"),
        ("no_rope_layers", [1], "unknown a list (allowed: 0, 1)"),
        ("moe_layers", -1, "-1 is out of range (allowed: 0 to 47)"),
        ("moe_layers", 48, "48 is out of range (allowed: 0 to 47)"),
        ("moe_layers", 1.5, "1.5 is of the wrong type (allowed: the number of a layer)"),
        ("moe_layers", True, "true is of the wrong type (allowed: the number of a layer)"),
    ],
)
def test_lists_of_layers_hold_layers(tmp_path: Path, key: str, entry: Any, problem: str) -> None:
    config = raw("meta-llama--Llama-4-Scout-17B-16E-Instruct")
    text = config["text_config"]
    text.pop("layer_types", None)
    text |= {"no_rope_layers": [1, 1, 1, 0] * 12, "moe_layers": list(range(48))}
    expected = import_model(written(tmp_path, config), "imported").model
    text |= {"no_rope_layers": [True, True, True, False] * 12}
    assert import_model(written(tmp_path, config), "imported").model == expected
    text[key][3] = entry
    with pytest.raises(CodesignError, match=re.escape(f"text_config.{key}.3: {problem}")):
        import_model(written(tmp_path, config), "imported")


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
