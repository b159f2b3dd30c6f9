"""From a configuration to a checked model file: the table of architectures and the steps between."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from codesign.catalog.importing import grouped, hybrid, latent
from codesign.catalog.importing.config import Config, parse_settings, read_json, unknown_architecture
from codesign.catalog.importing.modules import modules
from codesign.catalog.importing.quantization import dtypes_of, read_rules
from codesign.catalog.importing.structure import Structure
from codesign.catalog.importing.text import render
from codesign.catalog.loader import validate
from codesign.catalog.names import printable
from codesign.catalog.workloads import ModelFile
from codesign.catalog.workspace import parse_toml
from codesign.errors import CodesignError

Reader = Callable[[Config], Structure]

_READERS: tuple[tuple[Reader, tuple[str, ...]], ...] = (
    (grouped.llama, ("LlamaForCausalLM", "llama")),
    (grouped.mistral, ("MistralForCausalLM", "mistral")),
    (grouped.qwen2, ("Qwen2ForCausalLM", "qwen2", "MiMoForCausalLM", "mimo")),
    (grouped.qwen3, ("Qwen3ForCausalLM", "qwen3", "Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text")),
    (grouped.qwen3_moe, ("Qwen3MoeForCausalLM", "qwen3_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe",
                         "qwen3_vl_moe_text")),
    (grouped.mixtral, ("MixtralForCausalLM", "mixtral")),
    (grouped.minimax_m2, ("MiniMaxM2ForCausalLM", "minimax_m2")),
    (grouped.glm4_moe, ("Glm4MoeForCausalLM", "glm4_moe")),
    (grouped.gpt_oss, ("GptOssForCausalLM", "gpt_oss")),
    (grouped.llama4, ("Llama4ForConditionalGeneration", "Llama4ForCausalLM", "llama4", "llama4_text")),
    (grouped.mimo_v2_flash, ("MiMoV2FlashForCausalLM", "mimo_v2_flash")),
    (grouped.step3p7, ("Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration", "Step3p5ForCausalLM", "step3p7",
                       "step3p5")),
    (grouped.step3, ("Step3VLForConditionalGeneration", "Step3TextForCausalLM", "step3_vl", "step3_text", "step3")),
    (grouped.gemma4, ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "gemma4", "gemma4_text")),
    (grouped.nemotron_nas, ("DeciLMForCausalLM", "nemotron-nas")),
    (latent.deepseek_v3, ("DeepseekV3ForCausalLM", "deepseek_v3", "KimiK2ForCausalLM", "kimi_k2",
                          "KimiK25ForConditionalGeneration", "kimi_k25")),
    (latent.deepseek_v2, ("DeepseekV2ForCausalLM", "deepseek_v2", "MistralLarge3ForCausalLM", "Mistral4ForCausalLM",
                          "mistral4", "mistral_large_3")),
    (latent.sparse, ("DeepseekV32ForCausalLM", "deepseek_v32", "GlmMoeDsaForCausalLM", "glm_moe_dsa")),
    (latent.kimi_linear, ("KimiLinearForCausalLM", "kimi_linear", "KimiK3ForConditionalGeneration", "kimi_k3")),
    (latent.deepseek_v4, ("DeepseekV4ForCausalLM", "deepseek_v4")),
    (hybrid.qwen3_next, ("Qwen3NextForCausalLM", "qwen3_next", "Qwen3_5MoeForConditionalGeneration",
                         "Qwen3_5MoeForCausalLM", "qwen3_5_moe", "qwen3_5_moe_text", "Qwen3_5ForConditionalGeneration",
                         "Qwen3_5ForCausalLM", "qwen3_5", "qwen3_5_text")),
    (hybrid.minimax_m1, ("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxForCausalLM", "minimax_m1",
                         "minimax_text_01", "minimax")),
    (hybrid.minimax_m3, ("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM",
                         "MiniMaxM3SparseForConditionalGeneration", "minimax_m3", "minimax_m3_vl",
                         "minimax_m3_vl_text")),
    (hybrid.nemotron_h, ("NemotronHForCausalLM", "nemotron_h")),
)  # fmt: skip

#: Readers by the names that configurations give an architecture: the class, and the ``model_type``.
ARCHITECTURES: dict[str, Reader] = {name: reader for reader, names in _READERS for name in names}

#: Kinds of block that keep a state.
RECURRENT = ("kda", "gdn", "lightning", "mamba2")

#: Architectures without a tied variant, whose configurations may leave the field out.
UNTIED = ("Llama4", "llama4", "DeepseekV4", "deepseek_v4")

#: Endings of classes that have the whole model and a head for words, or no head of their own.  Classes with another
#: ending are other models: a head for classes of texts, a drafter.
ENDINGS = ("forcausallm", "forconditionalgeneration", "lmheadmodel", "model")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _stem(name: str) -> str:
    """A class or ``model_type`` as names are compared: without ending, case and marks."""
    plain = re.sub(r"[^a-z0-9]", "", name.casefold())
    return next((plain.removesuffix(ending) for ending in ENDINGS if plain.endswith(ending)), plain)


_STEMS = {_stem(name): name for name in reversed(ARCHITECTURES)}


def _known(c: Config) -> str:
    """The name of `ARCHITECTURES` that a configuration has.

    Where classes are named, one of them must be known: a known ``model_type`` does not make a drafter or a classifier
    of the family that model.

    Raises:
        CodesignError: neither a known class nor, without one, a known ``model_type``.
    """
    classes = c.classes()
    if classes and not any(_stem(name) in _STEMS for name in classes):
        raise unknown_architecture(c, ARCHITECTURES)
    for name in c.architectures():
        if name in ARCHITECTURES or _stem(name) in _STEMS:
            return name if name in ARCHITECTURES else _STEMS[_stem(name)]
    raise unknown_architecture(c, ARCHITECTURES)


@dataclass(frozen=True)
class Imported:
    """A configuration that became a model file.

    Attributes:
        text: the file.
        model: the same, checked.
        architecture: under which name its reader was found.
        notes: what was taken from the architecture's definition or counted otherwise than the checkpoint has it.
    """

    text: str
    model: ModelFile
    architecture: str
    notes: tuple[str, ...]


def import_model(
    config: str | Path,
    name: str,
    *,
    title: str | None = None,
    quantization: str | Path | None = None,
    settings: Iterable[str] = (),
) -> Imported:
    """Turn a Hugging Face ``config.json`` into a model file.

    Args:
        config: the configuration; nested ones of models with towers are read for their text model.
        name: the model's name in the catalog.
        title: one line for people; ``name`` where not given.
        quantization: ModelOpt's ``hf_quant_config.json``; where not given, one that lies beside the configuration
            under the same name is taken, if the configuration itself says nothing of quantisation.
        settings: ``config.key=value`` texts that give fields which the configuration lacks, or replace them.

    Raises:
        CodesignError: an unreadable file, an unknown architecture, a field that is missing or has no meaning.
    """
    path = Path(config)
    label = printable(path.name, 80)
    if not _NAME.fullmatch(name):
        raise CodesignError(f"{printable(name, 80)!r} is no name", key="--name", allowed="letters, digits, . _ and -")
    c = Config(read_json(path, label), label, parse_settings(settings))
    known = c.family = _known(c)
    drafts = "a drafter is no model of its own; model files tell it in [drafts]"
    c.refuse("draft_vocab_size", allowed="the configuration of the model that it drafts for", because=drafts)
    structure = ARCHITECTURES[known](c).prune()
    hidden = c.whole("hidden_size")
    rules = read_rules(c, *_beside(path, quantization))
    recurrent = any(table["kind"] in RECURRENT for table in structure.blocks.values())
    dtypes = dtypes_of(c, rules, modules(structure, hidden), recurrent=recurrent)
    predictors = c.optional("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", least=0)
    if predictors:
        c.note("multi-token prediction is left out: accepted lengths are measured, not configured")
    head = {
        "name": name, "title": title or name, "source": f"{known} config.json, imported from {label}",
        "hidden": hidden, "vocab": c.whole("vocab_size"),
        "tied_embeddings": _tied(c),
        "max_context": c.whole("max_position_embeddings", "model_max_length", "max_seq_len"),
    }  # fmt: skip
    text = render(head, c.notes, structure, dtypes)
    raw = parse_toml(text.encode(), f"{name}.toml")
    return Imported(text, validate(raw, ModelFile, label, "model", ()), known, tuple(c.notes))


def _tied(c: Config) -> bool:
    """Whether head and embedding are one matrix."""
    if c.get("tie_word_embeddings") is None and c.family.startswith(UNTIED):
        c.note(f"tie_word_embeddings is not given: false, as {c.family} defines it")
        return False
    return c.required_flag("tie_word_embeddings")


def _beside(path: Path, quantization: str | Path | None) -> tuple[Mapping[str, object] | None, str]:
    """The contents of ``hf_quant_config.json``, given or found beside the configuration, and its name in errors."""
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if quantization is not None:
        beside = Path(quantization)
    elif not path.name.endswith("config.json") or not beside.is_file():
        return None, ""
    label = printable(beside.name, 80)
    return read_json(beside, label), label
