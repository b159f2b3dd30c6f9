"""Architectures with grouped-query attention: dense ones, mixtures, windows, chunks, factorised queries."""

from math import ceil
from typing import Any

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.structure import Structure, by_first_dense, gqa, grouping, mlp, moe, noaux

WINDOWS = {"sliding_attention": "window", "full_attention": "full"}

#: Names of an expert's matrices in the checkpoints of Mixtral and MiniMax.
NUMBERED = ("w1", "w2", "w3")


def _dense(c: Config, attention: dict[str, Any], window: int | None = None, first: int = 0) -> Structure:
    """A stack of attention and feed-forward blocks; with a window, layers from ``first`` on have it."""
    c.refuse("mlp_bias", allowed="false", because="biases of feed-forward layers are not modelled")
    depth = c.whole("num_hidden_layers")
    blocks = {"full": attention, "window": attention | {"window": window}, "dense": mlp(c.whole("intermediate_size"))}
    layers = [("window" if window and i >= first else "full", "dense") for i in range(depth)]
    return Structure(blocks, layers, {"full": "self_attn", "window": "self_attn", "dense": "mlp"})


def llama(c: Config) -> Structure:
    """Llama 2 and 3: every projection of the attention has a bias, or none."""
    return _dense(c, gqa(c, derived=True, bias=c.flag("attention_bias")))


def mistral(c: Config) -> Structure:
    """Mistral: no biases, a window in every layer where one is given."""
    return _dense(c, gqa(c, derived=True), c.nullable("sliding_window"))


def _qwen_window(c: Config) -> tuple[int | None, int]:
    """The window of Qwen's dense models and the first layer that has it."""
    if not c.required_flag("use_sliding_window"):
        return None, 0
    return c.whole("sliding_window"), c.whole("max_window_layers", least=0)


def qwen2(c: Config) -> Structure:
    """Qwen2, Qwen2.5 and MiMo-7B: queries, keys and values have biases, the output has none."""
    return _dense(c, gqa(c, derived=True, qkv_bias=True), *_qwen_window(c))


def qwen3(c: Config) -> Structure:
    """Qwen3 and the text model of Qwen3-VL: norms on queries and keys."""
    attention = gqa(c, qk_norm=True, bias=c.flag("attention_bias"))
    return _dense(c, attention) if "vl" in c.family.casefold() else _dense(c, attention, *_qwen_window(c))


def qwen3_moe(c: Config) -> Structure:
    """Qwen3 mixtures and those of Qwen3-VL; dense layers where a list or the sparse step says so."""
    depth, step = c.whole("num_hidden_layers"), c.whole("decoder_sparse_step")
    alone = c.numbers("mlp_only_layers")
    c.refuse("use_sliding_window", allowed="false", because="windows of mixtures are not read")
    blocks = {
        "full": gqa(c, qk_norm=True, bias=c.flag("attention_bias")),
        "moe": moe(c.whole("num_experts"), c.whole("num_experts_per_tok"), c.whole("moe_intermediate_size")),
    }
    layers = [("full", "dense" if i in alone or (i + 1) % step else "moe") for i in range(depth)]
    if ("full", "dense") in layers:
        blocks["dense"] = mlp(c.whole("intermediate_size"))
    return Structure(blocks, layers, {"full": "self_attn", "dense": "mlp", "moe": "mlp"})


def mixtral(c: Config) -> Structure:
    """Mixtral: a softmax router over few wide experts."""
    blocks = {
        "full": gqa(c, derived=True, window=c.nullable("sliding_window")),
        "moe": moe(c.whole("num_local_experts"), c.whole("num_experts_per_tok"), c.whole("intermediate_size")),
    }
    layers = [("full", "moe")] * c.whole("num_hidden_layers")
    return Structure(blocks, layers, {"full": "self_attn", "moe": "block_sparse_moe"}, leaves=NUMBERED)


def minimax_m2(c: Config) -> Structure:
    """MiniMax M2: norms over all query and all key heads, here counted per head."""
    shared = c.optional("shared_intermediate_size", least=0) or 0
    blocks = {
        "full": gqa(c, qk_norm=c.required_flag("use_qk_norm")),
        "moe": moe(
            c.whole("num_local_experts"), c.whole("num_experts_per_tok"), c.whole("intermediate_size"),
            shared_inner=shared, router_bias=c.required_flag("use_routing_bias"),
        ),
    }  # fmt: skip
    layers = [("full", "moe")] * c.whole("num_hidden_layers")
    return Structure(blocks, layers, {"full": "self_attn", "moe": "block_sparse_moe"}, leaves=NUMBERED)


def glm4_moe(c: Config) -> Structure:
    """GLM-4.5 to 4.7: biases on queries, keys and values only; dense layers first."""
    depth, inner = c.whole("num_hidden_layers"), c.whole("moe_intermediate_size")
    blocks = {
        "full": gqa(c, qkv_bias=c.required_flag("attention_bias"), qk_norm=c.required_flag("use_qk_norm")),
        "dense": mlp(c.whole("intermediate_size")),
        "moe": moe(
            c.whole("n_routed_experts"), c.whole("num_experts_per_tok"), inner,
            shared_inner=inner * c.whole("n_shared_experts", least=0), router_bias=True, **grouping(c),
        ),
    }  # fmt: skip
    layers = [("full", name) for name in by_first_dense(c, depth)]
    return Structure(blocks, layers, {"full": "self_attn", "dense": "mlp", "moe": "mlp"})


def gpt_oss(c: Config) -> Structure:
    """gpt-oss: windows and full attention by turns, sinks, biases everywhere."""
    depth = c.whole("num_hidden_layers")
    attention = gqa(c, bias=c.required_flag("attention_bias"), sinks=True)
    experts, top_k = c.whole("num_local_experts"), c.whole("num_experts_per_tok", "experts_per_token")
    blocks = {
        "window": attention | {"window": c.whole("sliding_window")},
        "full": attention,
        "moe": moe(experts, top_k, c.whole("intermediate_size"), router_bias=True, bias=True),
    }
    layers = [(kind, "moe") for kind in c.required_kinds("layer_types", length=depth, allowed=WINDOWS)]
    paths = {"window": "self_attn", "full": "self_attn", "moe": "mlp"}
    ends = frozenset(("full",))
    return Structure(blocks, layers, paths, experts="experts", router="router", ends=ends)


def llama4(c: Config) -> Structure:
    """Llama 4: chunks with rotation, full attention without; a mixture in every n-th layer, dense blocks between."""
    depth = c.whole("num_hidden_layers")
    attention = gqa(c, bias=c.flag("attention_bias"))
    kinds = c.kinds("layer_types", length=depth, allowed={"chunked_attention": "chunk", "full_attention": "full"})
    if kinds is None:
        # 0 marks a layer without rotation, which attends to everything.
        # An empty list is none: the architecture then takes its pattern.
        if c.get("no_rope_layers") != []:
            kinds = c.kinds("no_rope_layers", length=depth, allowed={0: "full", 1: "chunk"})
        if kinds is None:
            every = c.optional("no_rope_layer_interval") or 4
            c.note(f"layer_types is not given: every {every}th layer attends to everything, as {c.family} defines it")
            kinds = ["chunk" if (i + 1) % every else "full" for i in range(depth)]
    step = c.whole("interleave_moe_layer_step")
    # Here an empty list is one: no mixtures.
    given = c.get("moe_layers") is not None
    mixed = c.numbers("moe_layers", depth) if given else set(range(step - 1, depth, step))
    inner = c.whole("intermediate_size")
    blocks = {
        "chunk": attention | {"chunk": c.whole("attention_chunk_size")},
        "full": attention,
        "moe": moe(c.whole("num_local_experts"), c.whole("num_experts_per_tok"), inner, shared_inner=inner),
        "dense": mlp(c.whole("intermediate_size_mlp")),
    }
    layers = [(kind, "moe" if i in mixed else "dense") for i, kind in enumerate(kinds)]
    return Structure(
        blocks, layers, {"chunk": "self_attn", "full": "self_attn", "moe": "feed_forward", "dense": "feed_forward"},
        shared="shared_expert", router="router", ends=frozenset(("full",)),
    )  # fmt: skip


def mimo_v2_flash(c: Config) -> Structure:
    """MiMo-V2-Flash: windows with heads of their own, keys wider than values, sinks where a flag says so."""
    depth = c.whole("num_hidden_layers")
    kinds = c.kinds("layer_types", length=depth, allowed=WINDOWS) or c.required_kinds(
        "hybrid_layer_pattern", length=depth, allowed={0: "full", 1: "window"}
    )
    c.refuse("attention_bias", allowed="false", because="biases of this architecture are not read")

    def attention(prefix: str, sinks: str) -> dict[str, Any]:
        return {
            "kind": "gqa", "heads": c.whole(f"{prefix}num_attention_heads"),
            "kv_heads": c.whole(f"{prefix}num_key_value_heads"), "key_width": c.whole(f"{prefix}head_dim"),
            "value_width": c.whole(f"{prefix}v_head_dim"),
        } | ({"sinks": True} if c.flag(sinks) else {})  # fmt: skip

    window = attention("swa_", "add_swa_attention_sink_bias") | {"window": c.whole("sliding_window")}
    inner = c.whole("moe_intermediate_size")
    blocks = {
        "full": attention("", "add_full_attention_sink_bias"),
        "window": window,
        "dense": mlp(c.whole("intermediate_size")),
        "moe": moe(
            c.whole("n_routed_experts"), c.whole("num_experts_per_tok"), inner,
            shared_inner=inner * (c.nullable("n_shared_experts", least=0) or 0), router_bias=noaux(c, True),
            **grouping(c),
        ),
    }  # fmt: skip
    layers = list(zip(kinds, by_first_dense(c, depth), strict=True))
    paths = {"full": "self_attn", "window": "self_attn", "dense": "mlp", "moe": "mlp"}
    return Structure(blocks, layers, paths, starts=frozenset(("full",)))


def _enumerated(c: Config, depth: int) -> list[str]:
    """``dense`` or ``moe`` per layer of StepFun's models, whose mixtures are numbered in a text."""
    given = c.get("moe_layers_enum")
    if given is None:
        return by_first_dense(c, depth)
    numbers = given.split(",") if isinstance(given, str) else given
    try:
        mixed = {int(i) for i in numbers}
    except (TypeError, ValueError, OverflowError) as error:
        raise c.error("is no list of layers", "moe_layers_enum", "numbers with commas between them") from error
    return ["moe" if i in mixed else "dense" for i in range(depth)]


def step3p7(c: Config) -> Structure:
    """Step-3.5 and 3.7: windows with a number of query heads of their own, a gate per head."""
    depth = c.whole("num_hidden_layers")
    attention = gqa(c, qk_norm=True, head_gate=True, bias=c.flag("attention_bias"))
    other = c.get("attention_other_setting")
    heads = c.optional("num_sliding_attention_heads")
    if heads is None and isinstance(other, dict) and isinstance(other.get("num_attention_heads"), int):
        heads = other["num_attention_heads"]
    heads = heads or c.whole("num_sliding_attention_heads", "attention_other_setting")
    blocks = {
        "full": attention,
        "window": attention | {"heads": heads, "window": c.whole("sliding_window")},
        "dense": mlp(c.whole("intermediate_size")),
        "moe": moe(
            c.whole("num_experts", "moe_num_experts", "n_routed_experts"),
            c.whole("num_experts_per_tok", "moe_top_k"), c.whole("moe_intermediate_size"),
            shared_inner=c.whole("share_expert_dim", "share_expert_dims"), router_bias=c.flag("use_moe_router_bias"),
        ),
    }  # fmt: skip
    kinds = c.required_kinds("layer_types", length=depth, allowed=WINDOWS)
    layers = list(zip(kinds, _enumerated(c, depth), strict=True))
    paths = {"full": "self_attn", "window": "self_attn", "dense": "mlp", "moe": "moe"}
    return Structure(blocks, layers, paths, shared="share_expert", starts=frozenset(("full",)))


def step3(c: Config) -> Structure:
    """Step-3: one head of keys and values under queries from a low rank."""
    depth = c.whole("num_hidden_layers")
    blocks = {
        "mfa": gqa(c, q_rank=c.whole("share_q_dim")),
        "dense": mlp(c.whole("intermediate_size")),
        "moe": moe(
            c.whole("moe_num_experts"), c.whole("moe_top_k"), c.whole("moe_intermediate_size"),
            shared_inner=c.whole("share_expert_dim"),
        ),
    }  # fmt: skip
    layers = [("mfa", name) for name in _enumerated(c, depth)]
    return Structure(blocks, layers, {"mfa": "self_attn", "dense": "mlp", "moe": "moe"}, shared="share_expert")


def gemma4(c: Config) -> Structure:
    """Gemma 4: windows and wider full heads, norms before and after, a mixture beside the dense block."""
    depth = c.whole("num_hidden_layers")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        c.whole(key, least=0)
        c.refuse(key, allowed="0", because="embeddings per layer and shared caches are not modelled")
    tied = c.required_flag("attention_k_eq_v")
    bias = {"bias": True} if c.flag("attention_bias") else {}
    heads, kv = c.whole("num_attention_heads"), c.whole("num_key_value_heads")

    def attention(kv_heads: int, width: int, **more: Any) -> dict[str, Any]:
        table = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "key_width": width, "value_width": width}
        return table | {"qk_norm": True, "norms": 2} | bias | more

    wide = c.whole("global_head_dim")
    full = attention(c.whole("num_global_key_value_heads") if tied else kv, wide)
    mixed = c.required_flag("enable_moe_block")
    blocks = {
        "window": attention(kv, c.whole("head_dim"), window=c.whole("sliding_window")),
        "full": full | ({"tied_values": True} if tied else {}),
        "dense": mlp(c.whole("intermediate_size"), norms=3 if mixed else 2),
    }
    if mixed:
        # A norm before, one after, the router's scale of the residual width and one scale per expert.
        sizes = c.whole("num_experts"), c.whole("top_k_experts"), c.whole("moe_intermediate_size")
        blocks["moe"] = moe(*sizes, router_bias=True, norms=3)
        c.note("the dense block and the mixture of a layer run one after the other; the model runs them side by side")
    after = ("dense", "moe") if mixed else ("dense",)
    layers = [(kind, *after) for kind in c.required_kinds("layer_types", length=depth, allowed=WINDOWS)]
    paths = {"window": "self_attn", "full": "self_attn", "dense": "mlp", "moe": ""}
    return Structure(blocks, layers, paths, router="router", ends=frozenset(("full",)))


def nemotron_nas(c: Config) -> Structure:
    """Llama-Nemotron (DeciLM): each layer with its own KV heads and feed-forward width, or without one of them."""
    depth, hidden, heads = c.whole("num_hidden_layers"), c.whole("hidden_size"), c.whole("num_attention_heads")
    c.refuse("mlp_bias", allowed="false", because="biases of feed-forward layers are not modelled")
    bias = {"bias": True} if c.flag("attention_bias") else {}
    c.required_list("block_configs", "a list with one table per layer")
    given = c.listed("block_configs", length=depth) or []
    blocks: dict[str, dict[str, Any]] = {}
    layers = []
    for i, entry in enumerate(given):
        layer = []
        for part in ("attention", "ffn"):
            table = entry.get(part) if isinstance(entry, dict) else None
            where = f"block_configs.{i}.{part}"
            if not isinstance(table, dict):
                raise c.error("is missing", where, "a table")
            for key in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
                if table.get(key):
                    raise c.error(f"{table[key]!r} is not modelled", f"{where}.{key}", "null or false")
            if table.get("no_op"):
                continue
            key = "n_heads_in_group" if part == "attention" else "ffn_mult"
            value = table.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
                raise c.error("is missing or out of range", f"{where}.{key}", "a positive number, at most 1e6")
            if part == "attention":
                if not 1 <= value <= heads:
                    raise c.error(f"{value} is out of range", f"{where}.{key}", f"1 to {heads}")
                kv = heads // int(value)
                name = f"full{kv}"
                width = c.optional("head_dim") or hidden // heads
                blocks[name] = {
                    "kind": "gqa", "heads": heads, "kv_heads": kv, "key_width": width, "value_width": width,
                } | bias  # fmt: skip
            else:
                inner = ceil(int(2 * value * hidden / 3) / 256) * 256
                name = f"dense{inner}"
                blocks[name] = mlp(inner)
            layer.append(name)
        if layer:
            layers.append(tuple(layer))
    paths = {name: "self_attn" if table["kind"] == "gqa" else "mlp" for name, table in blocks.items()}
    return Structure(blocks, layers, paths)
