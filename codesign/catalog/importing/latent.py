"""Architectures with latent or compressed attention: DeepSeek V2 to V4, Kimi, GLM-5, Mistral Large 3."""

from typing import Any

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.structure import Structure, by_first_dense, grouping, mlp, moe, noaux

PATHS = {"mla": "self_attn", "dsa": "self_attn", "shared": "self_attn", "dense": "mlp", "moe": "mlp"}

V4_LAYERS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")


def _latent(c: Config, kind: str, rank: int | None) -> dict[str, Any]:
    """The table of a latent attention block, without options."""
    return {
        "kind": kind, "heads": c.whole("num_attention_heads"), **({"q_rank": rank} if rank else {}),
        "kv_rank": c.whole("kv_lora_rank"), "nope": c.whole("qk_nope_head_dim"),
        "rope": c.whole("qk_rope_head_dim", least=0), "value": c.whole("v_head_dim"),
    }  # fmt: skip


def _mixture(c: Config, router_bias: bool) -> dict[str, Any]:
    """The table of DeepSeek's mixture."""
    inner = c.whole("moe_intermediate_size")
    return moe(
        c.whole("n_routed_experts"), c.whole("num_experts_per_tok"), inner,
        shared_inner=inner * (c.nullable("n_shared_experts", least=0) or 0), router_bias=router_bias, **grouping(c),
    )  # fmt: skip


def _refuse_biases(c: Config) -> None:
    for key in ("attention_bias", "mlp_bias"):
        c.refuse(key, allowed="false", because="biases of latent models are not modelled")


def deepseek_v3(c: Config) -> Structure:
    """DeepSeek V3, R1 and V3.1, Kimi K2 and the text model of K2.5."""
    return _deepseek(c, noaux(c, True))


def deepseek_v2(c: Config) -> Structure:
    """DeepSeek V2 and Mistral Large 3 in its layout: a softmax router without a correction bias."""
    return _deepseek(c, noaux(c, False))


def _deepseek(c: Config, router_bias: bool) -> Structure:
    _refuse_biases(c)
    depth = c.whole("num_hidden_layers")
    blocks = {
        "mla": _latent(c, "mla", c.nullable("q_lora_rank", least=0)),
        "dense": mlp(c.whole("intermediate_size")),
        "moe": _mixture(c, router_bias),
    }
    return Structure(blocks, [("mla", name) for name in by_first_dense(c, depth)], PATHS)


def sparse(c: Config) -> Structure:
    """DeepSeek V3.2, GLM-5 to 5.2: an indexer in every layer, or one that several layers share."""
    _refuse_biases(c)
    depth = c.whole("num_hidden_layers")
    attention = _latent(c, "dsa", c.whole("q_lora_rank")) | {
        "index_heads": c.whole("index_n_heads"), "index_width": c.whole("index_head_dim"),
        "top_k": c.whole("index_topk"),
    }  # fmt: skip
    kinds = c.kinds("indexer_types", length=depth, allowed={"full": "dsa", "shared": "shared"})
    if kinds is None:
        every, offset = c.optional("index_topk_freq") or 1, c.optional("index_skip_topk_offset", least=0)
        pattern = c.get("index_topk_pattern")
        if pattern is not None or (every > 1 and offset is None):
            raise c.error("is missing, which shared indexers need", "indexer_types", "full or shared for each layer")
        kinds = ["shared" if max(i - (offset or 0) + 1, 0) % every else "dsa" for i in range(depth)]
    blocks = {
        "dsa": attention,
        "shared": attention | {"shared_index": True},
        "dense": mlp(c.whole("intermediate_size")),
        "moe": _mixture(c, noaux(c, True)),
    }
    layers = list(zip(kinds, by_first_dense(c, depth), strict=True))
    starts = frozenset(("dsa",)) if "shared" in kinds else frozenset()
    return Structure(blocks, layers, PATHS, starts=starts)


def kimi_linear(c: Config) -> Structure:
    """Kimi Linear and K3: KDA and latent attention without rotation; K3 with gates, residual attention and latents."""
    _refuse_biases(c)
    depth = c.whole("num_hidden_layers")
    part = c.part("linear_attn_config")
    kinds = _kimi_layers(part, depth)
    third = any("KimiK3" in name or "kimi_k3" in name for name in c.architectures())
    whole, flag = (c.whole, c.required_flag) if third else (c.optional, c.flag)
    # A block's own norm, and two vectors for its share of the residual attention.
    run = whole("attn_res_block_size")
    norms = {"norms": 3} if run else {}
    heads, width = part.whole("num_heads"), part.whole("head_dim")
    full_gate = part.required_flag("use_full_rank_gate") if third else part.flag("use_full_rank_gate")
    gate = {} if full_gate else {"gate_rank": width}
    kda = {
        "kind": "kda", "heads": heads, "value_heads": heads, "key_width": width, "value_width": width,
        "conv_kernel": part.whole("short_conv_kernel_size"), "decay_rank": width,
    } | gate | norms  # fmt: skip
    inner = c.whole("moe_intermediate_size")
    latent = whole("routed_expert_hidden_size")
    blocks = {
        "kda": kda,
        "mla": _latent(c, "mla", c.nullable("q_lora_rank"))
        | ({"gate": True} if flag("mla_use_output_gate") else {}) | norms,
        "dense": mlp(c.whole("intermediate_size"), **norms),
        "moe": moe(
            c.whole("num_experts"), c.whole("num_experts_per_token", "num_experts_per_tok"), inner, width=latent,
            shared_inner=inner * c.whole("num_shared_experts", least=0), router_bias=noaux(c, True),
            latent_norm=bool(latent) and flag("latent_moe_use_norm"), **grouping(c, "num_expert_group"), **norms,
        ),
    }  # fmt: skip
    layers = list(zip(kinds, by_first_dense(c, depth), strict=True))
    paths = {"kda": "self_attn", "mla": "self_attn", "dense": "mlp", "moe": "block_sparse_moe"}
    return Structure(blocks, layers, paths, leaves=("w1", "w2", "w3"), ends=frozenset(("mla",)), run=run or 0)


def _kimi_layers(part: Config, depth: int) -> list[str]:
    """``kda`` or ``mla`` per layer; the lists count from 1 and must name each layer once."""
    found: list[str | None] = [None] * depth
    for key, name in (("kda_layers", "kda"), ("full_attn_layers", "mla")):
        for number in part.required_list(key, "layers, counted from 1"):
            if not isinstance(number, int) or not 1 <= number <= depth or found[number - 1]:
                raise part.error(f"{number!r} is no layer, or named twice", key, f"1 to {depth}, each once")
            found[number - 1] = name
    names = [name for name in found if name]
    if len(names) < depth:
        told = f"layer {found.index(None) + 1} is in neither list"
        raise part.error(told, "kda_layers", "every layer in it or in full_attn_layers")
    return names


def deepseek_v4(c: Config) -> Structure:
    """DeepSeek V4: windows, compressed entries behind them, an indexer for the denser ones, four residual streams."""
    _refuse_biases(c)
    depth = c.whole("num_hidden_layers")
    if c.whole("num_key_value_heads") != 1:
        raise c.error("is not 1", "num_key_value_heads", "1: one key that is also the value")
    ratios = c.listed("compress_ratios", length=depth)
    if ratios is None:
        names = {name: name for name in V4_LAYERS}
        named = c.required_kinds("layer_types", "compress_ratios", length=depth, allowed=names)
        rates = c.part("compress_rates")
        ratios = [0 if kind == "sliding_attention" else rates.whole(kind) for kind in named]
    streams = c.whole("hc_mult")
    norms = 1 + (2 + streams) * streams * streams if streams > 1 else 1
    base = {
        "kind": "compressed", "heads": c.whole("num_attention_heads"), "width": c.whole("head_dim"),
        "q_rank": c.whole("q_lora_rank"), "window": c.whole("sliding_window"), "out_groups": c.whole("o_groups"),
        "out_rank": c.whole("o_lora_rank"),
    }  # fmt: skip
    index = {
        "index_heads": c.whole("index_n_heads"), "index_width": c.whole("index_head_dim"),
        "top_k": c.whole("index_topk"),
    }  # fmt: skip
    blocks: dict[str, dict[str, Any]] = {}
    kinds = []
    for i, ratio in enumerate(ratios):
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio < 0:
            raise c.error(f"{ratio!r} is no number of tokens", f"compress_ratios.{i}", "a whole number, 0 for none")
        dense = 0 < ratio < base["window"]  # entries that are chosen, made of two series
        name = f"{'csa' if dense else 'hca'}{ratio}" if ratio else "window"
        more = {"ratio": ratio} if ratio else {}
        blocks[name] = base | more | ({"overlap": True} | index if dense else {}) | {"norms": norms}
        kinds.append(name)
    inner = c.whole("moe_intermediate_size")
    blocks["moe"] = moe(
        c.whole("n_routed_experts"), c.whole("num_experts_per_tok"), inner,
        shared_inner=inner * c.whole("n_shared_experts", least=0), router_bias=noaux(c, True), norms=norms,
    )  # fmt: skip
    if c.optional("num_hash_layers", least=0):
        c.note("mixtures that choose experts by token id are counted like the others")
    paths = dict.fromkeys(blocks, "attn") | {"moe": "ffn"}
    ends = frozenset(name for name in blocks if name.startswith("csa"))
    return Structure(blocks, [(kind, "moe") for kind in kinds], paths, streams=streams, ends=ends)
