"""What a checkpoint says of its weights, as one dtype per tensor class.

Three dialects are read: block FP8 and MXFP4 (``quant_method`` fp8, mxfp4), ModelOpt (``quant_algo``, per module where
precision is mixed, also from ``hf_quant_config.json``) and compressed-tensors (``config_groups``).  Each names modules
that stay wide.  A class takes the dtype that most of its parameters have; where they differ, a note tells the shares.
Routers, norms and embeddings stay wide in all dialects, and so do latent projections that are not named.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, NamedTuple

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.modules import Module
from codesign.catalog.messages import told

#: Dtypes of unquantised tensors by the names that configurations use.
WIDE = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


class Scheme(NamedTuple):
    """How a module is stored, and in what its input is quantised (None: not at all)."""

    weight: str
    input: str | None


#: ModelOpt's algorithms.
ALGORITHMS = {
    "NVFP4": Scheme("nvfp4", "nvfp4"),
    "W4A16_NVFP4": Scheme("nvfp4", None),
    "W4A8_NVFP4_FP8": Scheme("nvfp4", "fp8"),
    "FP8": Scheme("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("fp8", "fp8"),
    "MXFP8": Scheme("mxfp8", "mxfp8"),
    "MXFP4": Scheme("mxfp4", "mxfp4"),
    "W4A8_MXFP4_FP8": Scheme("mxfp4", "fp8"),
}

#: Weights by type, bits and group, 0 for a scale per tensor or channel.
GROUPED = {
    ("float", 4, 16): "nvfp4", ("float", 4, 32): "mxfp4", ("float", 8, 0): "fp8", ("float", 8, 32): "mxfp8",
    ("int", 4, 32): "int4_group32", ("int", 8, 0): "int8",
}  # fmt: skip

#: What stands before ``layers.`` in the names of modules.
PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer)\.)+")


@dataclass
class Rules:
    """Which module is stored how.

    Attributes:
        general: of modules that nothing else names, None for wide.
        named: by module; a name covers what lies below it.
        wide: patterns of modules that stay wide though ``general`` would take them.
        head: whether ``general`` covers the output head too.
        cache: dtype of the cache that the checkpoint was calibrated for.
    """

    general: Scheme | None = None
    named: dict[str, Scheme] = field(default_factory=dict)
    wide: list[str] = field(default_factory=list)
    head: bool = False
    cache: str | None = None

    def __post_init__(self) -> None:
        self._wide = re.compile("|".join(_pattern(p) for p in self.wide)) if self.wide else None

    def of(self, name: str, unnamed: bool = True) -> Scheme | None:
        """The scheme of a module ``layers.3.self_attn.o_proj``; ``unnamed`` modules fall under ``general``."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            found = self.named.get(".".join(parts[:end]))
            if found:
                return found
        if not unnamed or self.general is None or (self._wide and self._wide.match(name)):
            return None
        return self.general


def _pattern(text: str) -> str:
    """A pattern as a regular expression over names without their prefix, covering what lies below."""
    if text.startswith("re:"):
        return f"(?:{text[3:]})"
    bare = PREFIX.sub("", text)
    if "*" in bare or "?" in bare:
        return translate(bare) + "|" + translate(bare + ".*")
    below = re.escape(bare)
    anywhere = r"(?:.*\.)?" if "." not in bare else ""
    return rf"{anywhere}{below}(?:\..*)?\Z"


def _weights(c: Config, group: Any, key: str) -> Scheme:
    """The scheme of a ``config_groups`` entry."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise c.error("is missing", f"{key}.weights", "a table")
    inputs = group.get("input_activations")
    block, kind, bits = weights.get("block_structure"), weights.get("type"), weights.get("num_bits")
    size = 0 if block else weights.get("group_size") or 0
    if block:
        found = "fp8_block" if (block, bits) == ([128, 128], 8) else None
    else:
        found = next((name for key, name in GROUPED.items() if key == (kind, bits, size)), None)
    if found is None:
        have = f"{kind} of {bits} bits in groups of {block or size}"
        names = ", ".join(f"{t} {b} bits in groups of {g}" for t, b, g in GROUPED)
        raise c.error(f"unknown storage: {have}", f"{key}.weights", names)
    if inputs is None:
        return Scheme(found, None)
    return Scheme(found, "fp8" if inputs.get("num_bits") == 8 and found in ("nvfp4", "mxfp4") else found)


def _algorithm(c: Config, name: Any, key: str) -> Scheme:
    if name not in ALGORITHMS:
        raise c.error(f"unknown algorithm {told(name)}", key, ", ".join(ALGORITHMS))
    return ALGORITHMS[name]


def _cache(q: Mapping[str, Any]) -> str | None:
    scheme = q.get("kv_cache_quant_algo") or q.get("kv_cache_scheme")
    eight = scheme == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8)
    return "fp8" if eight else None


def _strings(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def read_rules(c: Config, beside: Mapping[str, Any] | None = None) -> Rules:
    """Read ``quantization_config``, or the contents of ``hf_quant_config.json`` where the configuration has none.

    Raises:
        CodesignError: a method, algorithm or storage that is not known.
    """
    q, key = c.get("quantization_config"), "quantization_config"
    if q is None and beside is not None:
        q, key = beside.get("quantization", beside), "quantization"
    if q is None:
        c.note(
            "quantization_config is not given: weights are in the dtype of the configuration; a hf_quant_config.json "
            "goes beside it or into --quantization"
        )
        return Rules()
    if not isinstance(q, dict):
        raise c.error(f"{told(q)} is of the wrong type", key, "a table")
    method, algorithm = q.get("quant_method"), q.get("quant_algo")
    wide = _strings(q.get("ignore") or q.get("modules_to_not_convert") or q.get("exclude_modules"))
    if isinstance(q.get("quantized_layers"), dict):
        named = {
            PREFIX.sub("", name): _algorithm(c, entry.get("quant_algo"), f"{key}.quantized_layers.{name}")
            for name, entry in q["quantized_layers"].items() if isinstance(entry, dict)
        }  # fmt: skip
        # Beside a method of its own, the list of wide modules is that of the named algorithms.
        general = _fp8(c, q, key) if method == "fp8" else None
        return Rules(general, named, cache=_cache(q))
    if method == "fp8":
        return Rules(_fp8(c, q, key), _expert_dtype(c), wide, cache=_cache(q))
    if method == "mxfp4":
        return Rules(Scheme("mxfp4", None), wide=wide, cache=_cache(q))
    if algorithm is not None:
        return Rules(_algorithm(c, algorithm, f"{key}.quant_algo"), wide=wide, cache=_cache(q))
    if isinstance(q.get("config_groups"), dict) and q["config_groups"]:
        return _groups(c, q, wide, key)
    if method is None:
        raise c.error("is missing", f"{key}.quant_method", "fp8, mxfp4, modelopt, compressed-tensors")
    raise c.error(f"unknown method {told(method)}", f"{key}.quant_method", "fp8, mxfp4, modelopt, compressed-tensors")


def _fp8(c: Config, q: Mapping[str, Any], key: str) -> Scheme:
    block = q.get("weight_block_size")
    if block is None:
        c.note("weight_block_size is not given: FP8 weights with one scale per tensor")
    if block is not None and block != [128, 128]:
        raise c.error(f"unknown block {block}", f"{key}.weight_block_size", "[128, 128], or none for one scale")
    return Scheme("fp8" if block is None else "fp8_block", "fp8")


def _expert_dtype(c: Config) -> dict[str, Scheme]:
    """DeepSeek V4 names the format of its experts apart: four bits with a scale for 32."""
    given = c.word("expert_dtype")
    if given is None and "v4" in c.family.casefold():
        c.note("expert_dtype is not given: experts are stored like the other weights")
    if given is None or given == "fp8":
        return {}
    if given != "fp4":
        raise c.error(f"unknown format {given!r}", "expert_dtype", "fp4, fp8")
    return {EXPERTS: Scheme("mxfp4", "fp8")}


#: Stands for all routed experts among the names of modules.
EXPERTS = "<experts>"


def _groups(c: Config, q: Mapping[str, Any], wide: list[str], key: str) -> Rules:
    """compressed-tensors: groups of modules with one storage each, by the class ``Linear`` or by name."""
    general, named = None, {}
    for label, group in q["config_groups"].items():
        scheme = _weights(c, group, f"{key}.config_groups.{label}")
        targets = _strings(group.get("targets")) or ["Linear"]
        if "Linear" in targets:
            if general is not None and general != scheme:
                raise c.error("is a second group for all layers", f"{key}.config_groups.{label}", "one for Linear")
            general = scheme
        named |= {PREFIX.sub("", target): scheme for target in targets if target != "Linear"}
    return Rules(general, named, wide, head=True, cache=_cache(q))


def dtypes_of(c: Config, rules: Rules, modules: Iterable[Module], *, recurrent: bool) -> dict[str, str]:
    """One dtype per tensor class of a model file.

    Args:
        c: the configuration, for the dtype of what is not quantised and for errors.
        rules: which module is stored how.
        modules: matrices of every layer, with their class and size.
        recurrent: whether the model keeps states, whose dtype is then told.

    Raises:
        CodesignError: the dtype of unquantised tensors is missing or unknown.
    """
    wide = _wide(c, rules)
    weights: dict[str, Counter[str]] = {}
    inputs: dict[str, Counter[str]] = {}
    for module in modules:
        everywhere = rules.named.get(EXPERTS) if module.kind == "routed" else None
        scheme = everywhere or rules.of(module.name, unnamed=module.kind not in ("router", "latent"))
        stored, fed = (scheme.weight, scheme.input or "bf16") if scheme else (wide, "bf16")
        weights.setdefault(module.kind, Counter())[stored] += module.parameters
        inputs.setdefault(module.kind, Counter())[fed] += module.parameters
    found = {kind: most(counter) for kind, counter in weights.items()}
    for kind, counter in weights.items():
        if len(counter) > 1:
            whole = counter.total()
            shares = ", ".join(f"{name} {count / whole:.0%}" for name, count in counter.most_common())
            c.note(f"{kind} weights are mixed ({shares}) and counted as {found[kind]}")
    head = rules.of("lm_head", unnamed=rules.head)
    others = [most(inputs[kind]) for kind in ("attention", "shared", "dense") if kind in inputs]
    narrow = [dtype for dtype in others if dtype != "bf16"]
    fed = most(inputs["routed"]) if "routed" in inputs else "bf16"
    dtypes = found | {
        "embedding": wide, "head": head.weight if head else wide, "drafter": found.get("attention", wide),
        "activation": narrow[0] if narrow else "bf16", "expert_activation": fed, "dispatch": fed,
        "kv": "fp8", "index": "fp8", "published_kv": rules.cache or ("bf16" if wide == "fp32" else wide),
    }  # fmt: skip
    return dtypes | (_states(c) if recurrent else {})


def _states(c: Config) -> dict[str, str]:
    """Dtype of recurrent states where the configuration names it."""
    given = c.word("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    if given is None:
        c.note("the dtype of recurrent states is not given: FP32")
        return {"state": "fp32"}
    if given not in WIDE:
        raise c.error(f"unknown dtype {given!r}", "mamba_ssm_cache_dtype", ", ".join(WIDE))
    return {"state": WIDE[given]}


def _wide(c: Config, rules: Rules) -> str:
    given = c.word("dtype", "torch_dtype")
    if given is None and (rules.general or rules.named):
        c.note("dtype is not given: what the quantisation leaves wide is taken as BF16")
        return "bf16"
    if given is None:
        told = "is missing (or torch_dtype), which says how unquantised weights are stored"
        raise c.error(told, "dtype", f"{', '.join(WIDE)}; --set config.dtype=... gives it")
    if given not in WIDE:
        raise c.error(f"unknown dtype {given!r}", "dtype", ", ".join(WIDE))
    return WIDE[given]


def most(counter: Counter[str]) -> str:
    """The most frequent entry; by name where two are as frequent."""
    return max(sorted(counter), key=lambda name: counter[name])
