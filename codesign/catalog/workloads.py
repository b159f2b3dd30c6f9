"""What the files of ``workloads/`` must hold: the structure and dtypes of models, and requests.

Blocks mirror the frozen dataclasses of `codesign.layers` field by field: a block's `Block.structure` are the arguments
of that class.  A layer kind added there is added here (a test compares them).
"""

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from codesign.catalog.names import allowed_names
from codesign.catalog.quantity import Parameters, Sequences, Table, Text, Tokens, TokenSeries, refuse
from codesign.catalog.schema import CatalogFile

#: Storage formats; `codesign.precision.BYTES` says how many bytes each takes.
Dtype = Literal[
    "fp32", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "int8", "mxfp4", "nvfp4", "int4", "int4_group32",
    "int4_group64", "int4_group128", "int4_group32_zero", "int4_group64_zero", "int4_group128_zero", "int8_group32",
    "int8_group64", "int8_group128",
]  # fmt: skip

Width = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Some = Annotated[int, Field(ge=0, le=10_000_000)]


class Block(Table):
    """A layer kind with its structure; ``norms`` counts norm vectors around the layer, in residual widths."""

    norms: Some = 1

    @property
    def structure(self) -> dict[str, Any]:
        """The fields that the layer's dataclass takes."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}


class GQABlock(Block):
    """Grouped-query attention (`codesign.layers.gqa.GQA`)."""

    kind: Literal["gqa"]
    heads: Count
    kv_heads: Count
    key_width: Width
    value_width: Width
    window: Width | None = None
    bias: bool = False
    sinks: bool = False
    qk_norm: bool = False
    chunk: Width | None = None
    qkv_bias: bool = False
    gate: bool = False
    head_gate: bool = False
    tied_values: bool = False
    q_rank: Some | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "GQABlock":
        if self.heads % self.kv_heads:
            raise refuse(f"{self.kv_heads} does not divide {self.heads} heads", "a divisor of heads", "kv_heads")
        if self.window and self.chunk:
            raise refuse(f"{self.chunk} stands beside a window of {self.window}", "a window or a chunk", "chunk")
        return self


class MLABlock(Block):
    """Multi-head latent attention (`codesign.layers.mla.MLA`); ``q_rank`` absent or 0 means no low-rank query path."""

    kind: Literal["mla"]
    heads: Count
    q_rank: Some | None = None
    kv_rank: Width
    nope: Width
    rope: Some
    value: Width
    gate: bool = False


class KDABlock(Block):
    """Kimi Delta Attention (`codesign.layers.kda.KDA`)."""

    kind: Literal["kda"]
    heads: Count
    value_heads: Count
    key_width: Width
    value_width: Width
    conv_kernel: Count = 4
    decay_rank: Width = 128
    gate_rank: Width | None = None


class GDNBlock(Block):
    """Gated DeltaNet (`codesign.layers.gdn.GDN`)."""

    kind: Literal["gdn"]
    heads: Count
    value_heads: Count
    key_width: Width
    value_width: Width
    conv_kernel: Count = 4

    @model_validator(mode="after")
    def _consistent(self) -> "GDNBlock":
        if self.value_heads % self.heads:
            raise refuse(f"{self.value_heads} is no multiple of {self.heads} heads", "a multiple", "value_heads")
        return self


class LightningBlock(Block):
    """Lightning attention (`codesign.layers.lightning.Lightning`)."""

    kind: Literal["lightning"]
    heads: Count
    key_width: Width
    value_width: Width


class Mamba2Block(Block):
    """Mamba-2 (`codesign.layers.mamba2.Mamba2`)."""

    kind: Literal["mamba2"]
    heads: Count
    head_width: Width
    state_width: Width
    groups: Count = 1
    conv_kernel: Count = 4
    conv_bias: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> "Mamba2Block":
        if self.heads % self.groups:
            raise refuse(f"{self.groups} does not divide {self.heads} heads", "a divisor of heads", "groups")
        return self


class DSABlock(Block):
    """DeepSeek sparse attention (`codesign.layers.dsa.DSA`)."""

    kind: Literal["dsa"]
    heads: Count
    q_rank: Width
    kv_rank: Width
    nope: Width
    rope: Some
    value: Width
    index_heads: Count
    index_width: Width
    top_k: Width
    shared_index: bool = False


class MSABlock(Block):
    """Block-sparse attention (`codesign.layers.msa.MSA`)."""

    kind: Literal["msa"]
    heads: Count
    kv_heads: Count
    key_width: Width
    value_width: Width
    index_heads: Count
    index_width: Width
    block: Width
    top_blocks: Width
    qk_norm: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "MSABlock":
        if self.heads % self.kv_heads:
            raise refuse(f"{self.kv_heads} does not divide {self.heads} heads", "a divisor of heads", "kv_heads")
        if self.index_heads % self.kv_heads and self.kv_heads % self.index_heads:
            raise refuse(f"{self.index_heads} does not go with {self.kv_heads} KV heads", "as many", "index_heads")
        return self


class CompressedBlock(Block):
    """Compressed attention (`codesign.layers.compressed.Compressed`); ``ratio`` 0 leaves the window alone."""

    kind: Literal["compressed"]
    heads: Count
    width: Width
    q_rank: Width
    window: Width
    out_groups: Count
    out_rank: Width
    ratio: Some = 0
    overlap: bool = False
    index_heads: Some = 0
    index_width: Some = 0
    top_k: Some = 0

    @model_validator(mode="after")
    def _consistent(self) -> "CompressedBlock":
        if self.heads % self.out_groups:
            raise refuse(f"{self.out_groups} does not divide {self.heads} heads", "a divisor of heads", "out_groups")
        if bool(self.index_heads) != bool(self.index_width) or bool(self.index_heads) != bool(self.top_k):
            raise refuse("stands alone", "index_heads, index_width and top_k, or none of them", "index_heads")
        if not self.ratio and (self.overlap or self.index_heads):
            raise refuse("is 0, which leaves nothing to choose from", "tokens per entry", "ratio")
        return self


class MLPBlock(Block):
    """A dense feed-forward layer (`codesign.layers.mlp.MLP`)."""

    kind: Literal["mlp"]
    inner: Width
    gated: bool = True


class MoEBlock(Block):
    """A mixture of experts (`codesign.layers.moe.MoE`); ``width`` absent means the residual width."""

    kind: Literal["moe"]
    experts: Count
    top_k: Count
    inner: Width
    width: Width | None = None
    gated: bool = True
    shared_inner: Some = 0
    groups: Count = 1
    top_groups: Count = 1
    router_bias: bool = False
    latent_norm: bool = False
    bias: bool = False
    shared_gate: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "MoEBlock":
        if self.experts % self.groups:
            raise refuse(f"{self.groups} does not divide {self.experts} experts", "a divisor of experts", "groups")
        if self.top_groups > self.groups:
            raise refuse(f"{self.top_groups} is more than {self.groups} groups", "at most groups", "top_groups")
        reach = self.experts // self.groups * self.top_groups
        if self.top_k > reach:
            raise refuse(f"{self.top_k} is more than the {reach} experts in reach", f"at most {reach}", "top_k")
        return self


AnyBlock = Annotated[
    GQABlock | MLABlock | KDABlock | MLPBlock | MoEBlock | GDNBlock | LightningBlock | Mamba2Block
    | DSABlock | MSABlock | CompressedBlock,
    Field(discriminator="kind"),
]  # fmt: skip


def block_kinds() -> dict[str, type[Block]]:
    """Kinds of block by the name that a model file gives them."""
    blocks = get_args(get_args(AnyBlock)[0])
    return {get_args(block.model_fields["kind"].annotation)[0]: block for block in blocks}


class LayerGroup(Table):
    """A run of layers: ``group`` is a list of layers, each a list of block names, and is repeated."""

    repeat: Count = 1
    group: Annotated[list[Annotated[list[Text], Field(min_length=1)]], Field(min_length=1)]


class Dtypes(Table):
    """The storage format of every tensor class; weights as the published checkpoint has them.

    Weight classes that a model lacks are left out.  Defaults: BF16 for what moves, an FP8 cache, FP32 states.

    Attributes:
        routed, shared, dense, attention, router, latent, embedding, head, drafter: weights.
        activation, expert_activation, dispatch, combine: what moves between layers, into experts, out and back.
        kv, index, state, conv_state: what is kept per sequence.
        attention_math: in which the attention scan is multiplied.
        published_kv: the cache as the model's publisher counts it.
    """

    routed: Dtype | None = None
    shared: Dtype | None = None
    dense: Dtype | None = None
    attention: Dtype
    router: Dtype = "bf16"
    latent: Dtype = "bf16"
    embedding: Dtype
    head: Dtype
    drafter: Dtype = "bf16"
    activation: Dtype = "bf16"
    expert_activation: Dtype = "bf16"
    dispatch: Dtype = "bf16"
    combine: Dtype = "bf16"
    kv: Dtype = "fp8"
    index: Dtype = "bf16"
    state: Dtype = "fp32"
    conv_state: Dtype = "bf16"
    attention_math: Dtype = "bf16"
    published_kv: Dtype = "bf16"

    @property
    def names(self) -> dict[str, str]:
        """Every class that `codesign.precision.Precision.from_names` wants; classes that the model lacks say bf16."""
        return {name: getattr(self, name) or "bf16" for name in type(self).model_fields if name != "published_kv"}


class Published(Table):
    """Counts that the publisher states, to hold the derived ones against.

    Attributes:
        total_parameters: all, without multi-token prediction and vision.
        active_parameters: multiplied per token: without the input embedding, with the head.
    """

    total_parameters: Parameters
    active_parameters: Parameters | None = None


class Drafts(Table):
    """A drafter for speculative decoding.

    Attributes:
        name: what it is called.
        method: ``chain`` (one module applied again for each draft) | ``block`` (all drafts in one pass).
        layers: of the drafter.
        accepted_length: tokens accepted per pass with 1, 2, ... drafts, the one certain token included [token].
        parameters: that the drafter adds [parameter]; ``active_parameters`` of them are read per draft where fewer.
    """

    name: Text | None = None
    method: Literal["chain", "block"] = "chain"
    layers: Count
    accepted_length: TokenSeries
    parameters: Parameters
    active_parameters: Parameters | None = None
    source: Text | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Drafts":
        for i, length in enumerate(self.accepted_length.si_list):
            if length > i + 2:
                raise refuse(f"{length:g} tokens from {i + 1} drafts", f"at most {i + 2}", f"accepted_length.{i}")
        return self


class ModelFile(CatalogFile):
    """A model: its blocks, how they are stacked, and the dtype of every tensor class.

    Attributes:
        hidden: residual width.
        vocab: rows of the embedding and of the head.
        tied_embeddings: head and embedding are one matrix.
        max_context: longest context that the publisher supports [token].
        residual_streams: streams of the residual, more than one under hyper-connections.
        residual_run: layers per source of attention residuals, 0 for plain residuals.
        published: counts to compare with.
        blocks: layer kinds by name.
        layers: the stack, as runs of layer groups.
        dtypes: per tensor class.
        drafts: a drafter, where one is published.
    """

    kind_name: ClassVar[str] = "model"

    hidden: Width
    vocab: Width
    tied_embeddings: bool
    max_context: Annotated[int, Field(ge=1, le=10**9)] | None = None
    residual_streams: Annotated[int, Field(ge=1, le=64)] = 1
    residual_run: Annotated[int, Field(ge=0, le=10_000)] = 0
    published: Published | None = None
    blocks: Annotated[dict[Text, AnyBlock], Field(min_length=1)]
    layers: Annotated[list[LayerGroup], Field(min_length=1)]
    dtypes: Dtypes
    drafts: Drafts | None = None

    @property
    def layer_count(self) -> int:
        """Layers of the whole stack."""
        return sum(run.repeat * len(run.group) for run in self.layers)

    @model_validator(mode="after")
    def _consistent(self) -> "ModelFile":
        used: set[str] = set()
        for i, run in enumerate(self.layers):
            for j, layer in enumerate(run.group):
                for name in layer:
                    if name not in self.blocks:
                        where = f"layers.{i}.group.{j}"
                        raise refuse(f"unknown block {name!r}", allowed_names(name, self.blocks), where)
                used.update(layer)
        for name in self.blocks:
            if name not in used:
                raise refuse("is in no layer", "blocks that a layer group names", f"blocks.{name}")
        if self.layer_count > 10_000:
            raise refuse(f"make {self.layer_count} layers", "at most 10,000", "layers")
        for block in self.blocks.values():
            wanted = {"mlp": ["dense"], "moe": ["routed"]}.get(block.kind, [])
            if isinstance(block, MoEBlock) and block.shared_inner:
                wanted.append("shared")
            for tensor in wanted:
                if getattr(self.dtypes, tensor) is None:
                    told = f"is missing, which a block of kind {block.kind!r} needs"
                    raise refuse(told, "a dtype, e.g. bf16", f"dtypes.{tensor}")
        return self


class Request(CatalogFile):
    """What is asked of a model: a phase and its lengths.

    Attributes:
        phase: ``decode`` | ``prefill`` | ``midfill`` | ``serve``.
        context: tokens in the cache (decode) [token].
        cached, new: tokens in the cache and to be processed (midfill; prefill has ``new`` alone) [token].
        output: tokens that one query decodes [token].
        concurrency: sequences in flight (serve) [sequence].
        input: prompt tokens (serve) [token].
    """

    kind_name: ClassVar[str] = "request"

    phase: Literal["decode", "prefill", "midfill", "serve"]
    context: Tokens | None = None
    cached: Tokens | None = None
    new: Tokens | None = None
    output: Tokens | None = None
    concurrency: Sequences | None = None
    input: Tokens | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Request":
        needs = {
            "decode": ("context",), "prefill": ("new",), "midfill": ("cached", "new"),
            "serve": ("concurrency", "input", "output"),
        }[self.phase]  # fmt: skip
        for field in needs:
            if getattr(self, field) is None:
                raise refuse(f"is missing, which phase {self.phase!r} needs", ", ".join(needs), field)
        for field in ("context", "cached", "new", "concurrency", "input"):
            if getattr(self, field) is not None and field not in needs:
                raise refuse(f"has no meaning in phase {self.phase!r}", ", ".join(needs), field)
        return self
