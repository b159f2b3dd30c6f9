"""Architectures with linear or block-sparse attention: Qwen3-Next and 3.5, MiniMax M1 and M3, Nemotron-H."""

from typing import Any

from codesign.catalog.importing.config import MAX_LAYERS, Config
from codesign.catalog.importing.structure import Structure, by_first_dense, gqa, grouping, head_width, mlp, moe

LINEAR = {"linear_attention": "linear", "full_attention": "full"}


def qwen3_next(c: Config) -> Structure:
    """Qwen3-Next, Qwen3.5 and 3.6: gated DeltaNet, every n-th layer gated full attention; mixtures or dense blocks."""
    depth = c.whole("num_hidden_layers")
    kinds = c.kinds("layer_types", length=depth, allowed=LINEAR | {"linear_attention": "gdn"})
    if kinds is None:
        every = c.whole("full_attention_interval")
        kinds = ["gdn" if (i + 1) % every else "full" for i in range(depth)]
    gated = c.get("attn_output_gate")
    if gated is None:
        c.note(f"attn_output_gate is not given: on, as {c.family} defines it")
    blocks: dict[str, dict[str, Any]] = {
        "gdn": {
            "kind": "gdn", "heads": c.whole("linear_num_key_heads"), "value_heads": c.whole("linear_num_value_heads"),
            "key_width": c.whole("linear_key_head_dim"), "value_width": c.whole("linear_value_head_dim"),
            "conv_kernel": c.whole("linear_conv_kernel_dim"),
        },
        "full": gqa(c, bias=c.flag("attention_bias"), qk_norm=True, gate=gated is None or c.flag("attn_output_gate")),
    }  # fmt: skip
    experts = c.optional("num_experts", least=0)
    if experts:
        step, alone = c.optional("decoder_sparse_step") or 1, c.numbers("mlp_only_layers")
        names = ["dense" if i in alone or (i + 1) % step else "moe" for i in range(depth)]
        blocks["moe"] = moe(
            experts, c.whole("num_experts_per_tok"), c.whole("moe_intermediate_size"),
            shared_inner=c.whole("shared_expert_intermediate_size"), shared_gate=True,
        )  # fmt: skip
    else:
        if any(part in c.family.casefold() for part in ("moe", "next")):
            c.whole("num_experts")
        names = ["dense"] * depth
    if "dense" in names:
        blocks["dense"] = mlp(c.whole("intermediate_size"))
    paths = {"gdn": "linear_attn", "full": "self_attn", "moe": "mlp", "dense": "mlp"}
    layers = list(zip(kinds, names, strict=True))
    return Structure(blocks, layers, paths, shared="shared_expert", ends=frozenset(("full",)))


def minimax_m1(c: Config) -> Structure:
    """MiniMax-01 and M1: lightning attention, every eighth layer with softmax."""
    depth = c.whole("num_hidden_layers")
    kinds = c.kinds("layer_types", length=depth, allowed=LINEAR | {"linear_attention": "lightning"})
    if kinds is None:
        kinds = c.required_kinds("attn_type_list", length=depth, allowed={0: "lightning", 1: "full"})
    width = head_width(c)
    c.refuse("shared_intermediate_size", allowed="0", because="shared experts of this architecture are not read")
    blocks = {
        "lightning": {
            "kind": "lightning", "heads": c.whole("num_attention_heads"), "key_width": width, "value_width": width,
        },
        "full": gqa(c),
        "moe": moe(c.whole("num_local_experts"), c.whole("num_experts_per_tok"), c.whole("intermediate_size")),
    }  # fmt: skip
    paths = {"lightning": "self_attn", "full": "self_attn", "moe": "block_sparse_moe"}
    layers = [(kind, "moe") for kind in kinds]
    return Structure(blocks, layers, paths, leaves=("w1", "w2", "w3"), ends=frozenset(("full",)))


def minimax_m3(c: Config) -> Structure:
    """MiniMax M3: block-sparse attention by an indexer, the first layers dense in both senses."""
    depth = c.whole("num_hidden_layers")
    c.refuse("attention_output_gate", allowed="false", because="output gates of this architecture are not read")
    part = c.part("sparse_attention_config")
    names = {0: "full", 1: "msa", "minimax_m3_sparse": "msa", "full_attention": "full"}
    kinds = c.kinds("layer_types", length=depth, allowed=names) or part.required_kinds(
        "sparse_attention_freq", length=depth, allowed=names
    )

    def index(flat: str, nested: str) -> int:
        return c.optional(flat) or part.whole(nested)

    attention = gqa(c, qk_norm=c.flag("use_qk_norm"))
    inner = c.whole("moe_intermediate_size", "intermediate_size")
    blocks = {
        "full": attention,
        "msa": attention | {
            "kind": "msa", "index_heads": index("index_n_heads", "sparse_num_index_heads"),
            "index_width": index("index_head_dim", "sparse_index_dim"),
            "block": index("index_block_size", "sparse_block_size"),
            "top_blocks": index("index_topk_blocks", "sparse_topk_blocks"),
        },
        "dense": mlp(c.whole("dense_intermediate_size")),
        "moe": moe(
            c.whole("num_local_experts"), c.whole("num_experts_per_tok"), inner,
            shared_inner=c.whole("shared_intermediate_size") * c.whole("n_shared_experts", least=0),
            router_bias=c.required_flag("use_routing_bias"),
        ),
    }  # fmt: skip
    layers = list(zip(kinds, by_first_dense(c, depth), strict=True))
    paths = {"full": "self_attn", "msa": "self_attn", "dense": "mlp", "moe": "block_sparse_moe"}
    return Structure(blocks, layers, paths, leaves=("w1", "w2", "w3"))


def nemotron_h(c: Config) -> Structure:
    """Nemotron-H and Nemotron 3: layers of one operation each; experts and dense blocks of two matrices."""
    for key in ("mamba_proj_bias", "use_bias", "mlp_bias"):
        c.refuse(key, allowed="false", because="biases of this architecture are not modelled")
    words = {
        "mamba": "mamba", "linear_attention": "mamba", "attention": "full", "full_attention": "full", "moe": "moe",
        "mlp": "dense",
    }  # fmt: skip
    listed = c.listed("layers_block_type", "layer_types")
    if listed is not None:
        names = c.required_kinds("layers_block_type", "layer_types", length=len(listed), allowed=words)
    else:
        pattern = c.word("hybrid_override_pattern")
        if pattern is None:
            told = f"is missing (or hybrid_override_pattern), which {c.family} needs"
            raise c.error(told, "layers_block_type", "mamba, attention, moe or mlp for each layer")
        if len(pattern) > MAX_LAYERS:
            raise c.error(f"has {len(pattern)} letters", "hybrid_override_pattern", f"at most {MAX_LAYERS:,}")
        letters = {"M": "mamba", "*": "full", "E": "moe", "-": "dense"}
        bad = next((letter for letter in pattern if letter not in letters), None)
        if bad:
            raise c.error(f"unknown letter {bad!r}", "hybrid_override_pattern", ", ".join(letters))
        names = [letters[letter] for letter in pattern]
    depth = c.optional("num_hidden_layers")
    if depth is not None and depth != len(names):
        raise c.error(f"{depth} is not the {len(names)} layers of the list", "num_hidden_layers", str(len(names)))
    two = ("up_proj", "down_proj")
    blocks: dict[str, dict[str, Any]] = {}
    if "mamba" in names:
        blocks["mamba"] = {
            "kind": "mamba2", "heads": c.whole("mamba_num_heads"), "head_width": c.whole("mamba_head_dim"),
            "state_width": c.whole("ssm_state_size"), "groups": c.whole("n_groups", "mamba_n_groups"),
            "conv_kernel": c.whole("conv_kernel", "mamba_d_conv"),
            "conv_bias": c.required_flag("use_conv_bias", "mamba_conv_bias"),
        }  # fmt: skip
    if "full" in names:
        blocks["full"] = gqa(c, bias=c.flag("attention_bias"), window=c.optional("sliding_window"))
    if "dense" in names:
        blocks["dense"] = mlp(c.whole("intermediate_size"), gated=False)
    if "moe" in names:
        shared = c.whole("moe_shared_expert_intermediate_size") if c.whole("n_shared_experts", least=0) else 0
        latent = c.optional("moe_latent_size")
        if latent is None:
            c.note(f"moe_latent_size is not given: experts work on the residual width, as {c.family} defines it")
        blocks["moe"] = moe(
            c.whole("n_routed_experts"), c.whole("num_experts_per_tok"), c.whole("moe_intermediate_size"),
            width=latent, gated=False, shared_inner=shared, router_bias=True, **grouping(c),
        )  # fmt: skip
    layers = [(name,) for name in names]
    return Structure(
        blocks, layers, dict.fromkeys(blocks, "mixer"), leaves=two, starts=frozenset(("mamba",)),
    )  # fmt: skip
