"""What a checkpoint says of its weights, as one dtype per tensor class.

Four dialects are read: block FP8 and MXFP4 (``quant_method`` fp8, mxfp4), ModelOpt (``quant_algo``, per module where
precision is mixed, also from ``hf_quant_config.json``), compressed-tensors (``config_groups``) and the weight-only
integers of GPTQ and AWQ (`codesign.catalog.importing.integers`).  Each names modules that stay wide.  A class takes the
dtype that most of its parameters have; where they differ, a note tells the shares.  Routers, norms and embeddings stay
wide in all dialects, and so do latent projections that are not named.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.integers import INTEGERS, integers
from codesign.catalog.importing.modules import Module
from codesign.catalog.importing.names import LEFT_OUT, Names
from codesign.catalog.importing.rules import GROUPED, ZEROED, Rules, Scheme, names_of, stored, table_of, wide_names
from codesign.catalog.messages import told
from codesign.catalog.names import printable

#: Dtypes of unquantised tensors by the names that configurations use.
WIDE = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}

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

#: ModelOpt's word for an algorithm per module.
MIXED = "MIXED_PRECISION"

#: Methods that are read; ModelOpt's has several spellings.
METHODS = ("fp8", "mxfp4", "modelopt", "compressed-tensors", *INTEGERS)


def _weights(c: Config, group: Any, key: str) -> Scheme:
    """The scheme of a ``config_groups`` entry."""
    table = table_of(c, group, key)
    weights = table_of(c, table.get("weights"), f"{key}.weights")
    block, kind, bits = weights.get("block_structure"), weights.get("type"), weights.get("num_bits")
    size = 0 if block else _group(c, weights, f"{key}.weights")
    even = weights.get("symmetric", True)
    if even is not None and not isinstance(even, bool):
        raise c.error(f"{told(even)} is of the wrong type", f"{key}.weights.symmetric", "true or false")
    zeros = even is False and kind == "int"
    if block:
        found = "fp8_block" if (block, kind, bits) == ([128, 128], "float", 8) else None
    else:
        found = stored(kind, bits, size, zeros)
    if found is None:
        groups = printable(str(block or size), 40)
        have = f"{printable(str(kind), 40)} of {printable(str(bits), 40)} bits in groups of {groups}"
        have += " with zero points" if zeros else ""
        names = ", ".join(f"{t} {b} bits in groups of {g}" for t, b, g in (ZEROED if zeros else GROUPED))
        raise c.error(f"unknown storage: {have}", f"{key}.weights", f"{names}; float 8 bits in blocks of [128, 128]")
    if table.get("input_activations") is None:
        return Scheme(found, None)
    inputs = table_of(c, table["input_activations"], f"{key}.input_activations")
    fed = (inputs.get("type"), inputs.get("num_bits"))
    if fed[1] == bits and fed[0] in (None, kind):
        # Integers of activations have a scale per token.
        return Scheme(found, f"int{bits}" if kind == "int" else found)
    names = {("float", 8): "fp8", (None, 8): "fp8", ("int", 8): "int8"}
    fed_as = next((name for key, name in names.items() if key == fed), None)
    if fed_as is None:
        have = f"{printable(str(fed[0]), 40)} of {printable(str(fed[1]), 40)} bits"
        raise c.error(
            f"unknown storage: {have}", f"{key}.input_activations", "float or int of 8 bits, or as the weights"
        )
    return Scheme(found, fed_as)


def _group(c: Config, weights: Mapping[str, Any], key: str) -> Any:
    """Weights per scale, 0 for a scale per tensor or channel, which is told by -1 or by no size at all."""
    size, strategy = weights.get("group_size"), weights.get("strategy")
    where, by_group = f"{key}.group_size", strategy in ("group", "tensor_group")
    allowed = "a positive number" if by_group else "a positive number; -1 or null for a scale per channel or tensor"
    if isinstance(size, bool):
        raise c.error(f"{told(size)} is of the wrong type", where, allowed)
    if size == 0:
        raise c.error("0 is out of range", where, allowed)
    if size not in (None, -1):
        return size
    if by_group:
        have = "is missing" if size is None else "-1 is out of range"
        raise c.error(f"{have}, which strategy {strategy} needs", where, allowed)
    return 0


def _algorithm(c: Config, name: Any, key: str) -> Scheme:
    if name is None:
        raise c.error("is missing", key, ", ".join(ALGORITHMS))
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise c.error(f"unknown algorithm {told(name)}", key, ", ".join(ALGORITHMS))
    return ALGORITHMS[name]


def _cache(c: Config, q: Mapping[str, Any], key: str) -> str | None:
    """The dtype of the cache that a checkpoint has scales for; a note where it is another than FP8."""
    for name in ("kv_cache_quant_algo", "kv_cache_scheme"):
        scheme = q.get(name)
        if not scheme and scheme in (None, "", {}):
            continue
        if not isinstance(scheme, str | dict):
            raise c.error(f"{told(scheme)} is of the wrong type", f"{key}.{name}", "a table, FP8 or null")
        if scheme == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8):
            return "fp8"
        said = scheme if isinstance(scheme, str) else f"{scheme.get('num_bits')} bits"
        c.note(f"{key}.{name}: {printable(said, 40)} is not read; the published cache is counted as not quantised")
    return None


def _settings(c: Config, beside: Mapping[str, Any] | None, label: str) -> tuple[dict[str, Any] | None, str, Config]:
    """The table of quantisation, its key and whom errors go to: the configuration or the file beside it."""
    given = [key for key in ("quantization_config", "compression_config") if c.get(key) is not None]
    if len(given) > 1 and c.get(given[0]) != c.get(given[1]):
        c.note("compression_config is left out: quantization_config says something else")
    if given:
        at = c.told_of(given[0])
        return table_of(at, c.get(given[0]), given[0]), given[0], at
    if beside is not None:
        at = c.told_of("", label)
        return table_of(at, beside.get("quantization", beside), "quantization"), "quantization", at
    return None, "quantization_config", c


def read_rules(config: Config, beside: Mapping[str, Any] | None = None, label: str = "hf_quant_config.json") -> Rules:
    """Read ``quantization_config``, or the contents of ``hf_quant_config.json`` where the configuration has none.

    Args:
        config: the configuration.
        beside: the contents of the file beside it.
        label: how that file is called in errors.

    Raises:
        CodesignError: a method, algorithm or storage that is not known, a value of the wrong type.
    """
    q, key, c = _settings(config, beside, label)
    if q is None:
        c.note(
            "quantization_config is not given: weights are in the dtype of the configuration; a hf_quant_config.json "
            "goes beside it or into --quantization"
        )
        return Rules()
    method, algorithm = q.get("quant_method"), q.get("quant_algo")
    known = isinstance(method, str) and (method in METHODS or method.startswith("modelopt"))
    if method is not None and not known:
        raise c.error(f"unknown method {told(method)}", f"{key}.quant_method", ", ".join(METHODS))
    sparsity = q.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        c.note(f"{key}.sparsity_config is left out: zeros are counted like other weights")
    wide, cache = wide_names(c, q, key), _cache(c, q, key)
    layers, groups = q.get("quantized_layers"), q.get("config_groups")
    if layers:
        named = Names(c, f"{key}.quantized_layers", LEFT_OUT)
        for name, entry in table_of(c, layers, f"{key}.quantized_layers").items():
            where = f"{key}.quantized_layers.{printable(name, 80)}"
            named.add(name, _algorithm(c, table_of(c, entry, where).get("quant_algo"), f"{where}.quant_algo"), where)
        if method == "fp8":
            # Beside a method of its own, the list of wide modules is that of the named algorithms.
            return Rules(_fp8(c, q, key), named, cache=cache)
        plain = algorithm in (None, MIXED)
        general = None if plain else _algorithm(c, algorithm, f"{key}.quant_algo")
        return Rules(general, named, wide, cache=cache)
    if method == "fp8":
        return Rules(_fp8(c, q, key), None, wide, _expert_dtype(config), cache=cache)
    if method in INTEGERS:
        return integers(c, q, key, wide, cache)
    if method == "mxfp4":
        return Rules(Scheme("mxfp4", None), None, wide, cache=cache)
    if algorithm is not None and not (algorithm == MIXED and groups):
        if algorithm == MIXED:
            raise c.error("is missing, which mixed precision needs", f"{key}.quantized_layers", "a table")
        return Rules(_algorithm(c, algorithm, f"{key}.quant_algo"), None, wide, cache=cache)
    if groups is not None or method == "compressed-tensors":
        return _groups(c, table_of(c, groups, f"{key}.config_groups"), wide, cache, f"{key}.config_groups")
    if method is None:
        raise c.error("is missing", f"{key}.quant_method", ", ".join(METHODS))
    raise c.error("is missing", f"{key}.quant_algo", ", ".join(ALGORITHMS))


def _fp8(c: Config, q: Mapping[str, Any], key: str) -> Scheme:
    block = q.get("weight_block_size")
    if block is None:
        c.note("weight_block_size is not given: FP8 weights with one scale per tensor")
    if block is not None and block != [128, 128]:
        told = f"unknown block {printable(str(block), 60)}"
        raise c.error(told, f"{key}.weight_block_size", "[128, 128], or none for one scale")
    return Scheme("fp8" if block is None else "fp8_block", "fp8")


def _expert_dtype(c: Config) -> Scheme | None:
    """DeepSeek V4 names the format of its experts apart: four bits with a scale for 32."""
    given = c.word("expert_dtype")
    if given is None and "v4" in c.family.casefold():
        c.note("expert_dtype is not given: experts are stored like the other weights")
    if given is None or given == "fp8":
        return None
    if given != "fp4":
        raise c.error(f"unknown format {told(given)}", "expert_dtype", "fp4, fp8")
    return Scheme("mxfp4", "fp8")


def _groups(c: Config, groups: Mapping[str, Any], wide: Names | None, cache: str | None, key: str) -> Rules:
    """compressed-tensors: groups of modules with one storage each, by the class ``Linear`` or by name."""
    if not groups:
        raise c.error("is empty", key, "at least one group")
    general, named = None, Names(c, key, LEFT_OUT)
    for label, group in groups.items():
        where = f"{key}.{printable(label, 80)}"
        scheme = _weights(c, group, where)
        targets = names_of(c, group.get("targets", ["Linear"]), f"{where}.targets")
        if not targets:
            raise c.error("is empty", f"{where}.targets", "Linear, or names of modules")
        if "Linear" in targets:
            if general is not None and general != scheme:
                raise c.error("is a second group for all layers", where, "one for Linear")
            general = scheme
        for i, target in enumerate(targets):
            if target != "Linear":
                named.add(target, scheme, f"{where}.targets.{i}")
    return Rules(general, named, wide, head=True, cache=cache)


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
    wide, depth = _wide(c, rules), 0
    weights: dict[str, Counter[str]] = {}
    inputs: dict[str, Counter[str]] = {}
    for module in modules:
        layer = re.match(r"layers\.(\d+)\.", module.name)
        depth = max(depth, int(layer[1]) + 1 if layer else 0)
        scheme = rules.of(module, unnamed=module.kind not in ("router", "latent"))
        stored, fed = (scheme.weight, scheme.input or "bf16") if scheme else (wide, "bf16")
        weights.setdefault(module.kind, Counter())[stored] += module.parameters
        inputs.setdefault(module.kind, Counter())[fed] += module.parameters
    found = {kind: most(counter) for kind, counter in weights.items()}
    for kind, counter in weights.items():
        if len(counter) > 1:
            whole = counter.total()
            shares = ", ".join(f"{name} {count / whole:.0%}" for name, count in counter.most_common())
            c.note(f"{kind} weights are mixed ({shares}) and counted as {found[kind]}")
    head = rules.of(Module("head" if "v4" in c.family.casefold() else "lm_head", "head", 0), unnamed=rules.head)
    rules.tell(depth)
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
