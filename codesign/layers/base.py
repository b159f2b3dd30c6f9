"""What a layer must tell: its parameters, what it keeps per token and per sequence, and the rows of one pass.

A layer kind is a frozen dataclass of whole numbers (static under JAX) in a file of its own; the file holds the
structure, the counts and the work of that kind, so that adding a kind touches one file and its test.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import equinox as eqx

from codesign.lanes import Number, Row
from codesign.machine import Machine
from codesign.precision import Precision
from codesign.routing_choices import Routing


class Step(eqx.Module):
    """One pass of one micro-batch through one attention instance, as a layer sees it.

    ``batch`` sequences bring ``new`` tokens each behind ``cached`` ones.  In decode ``new`` is one plus the drafts.  A
    prompt that comes in n chunks is told as its mean chunk: ``cached`` stands before the first one, and what a layer
    counts is the mean over all of them, so that n times a row is the work of the whole prompt.

    Attributes:
        batch: sequences B per micro-batch of one attention instance.
        new: new tokens q per sequence, in one chunk.
        cached: tokens c already in the cache before the first chunk, per sequence.
        tp: chips that share one attention instance.
        dp: attention instances per stage that share one expert bank.
        ep: ranks over which experts are split by expert; ``moe_tp = tp dp / ep`` splits each by tensor.
        context_split: 1 where the KV scan is split by context range over ``tp``, 0 where by heads.
        skew: exponent of the power law of expert popularity, 0 for uniform.
        machine: the chip and its fabric.
        precision: bytes and arithmetic formats.
        drafts: drafted tokens among the new ones, per sequence; each keeps a state of its own and has its logits.
        chunks: chunks n of a prompt.
        block: whether long blocks may come (static): KV tiles are then re-read by what the on-chip memory holds, and
            layers that have two forms may take either.
        form: which of them is counted (static): 0 is that of decode, 1 that of long blocks (latent attention expanded,
            states in chunks).  A pass takes the one that needs less time (`codesign.objective.timing`).
        routing: copies, capacity and dispatch of the experts; None where all are plain.
    """

    batch: Number
    new: Number
    cached: Number
    tp: Number
    dp: Number
    ep: Number
    context_split: Number
    skew: Number
    machine: Machine
    precision: Precision
    drafts: Number = 0.0
    chunks: Number = 1.0
    block: bool = eqx.field(static=True, default=False)
    routing: Routing | None = None
    form: int = eqx.field(static=True, default=0)

    @property
    def whole(self) -> Number:
        """New tokens per sequence over all chunks, ``n q``."""
        return self.new if _is_one(self.chunks) else self.new * self.chunks

    @property
    def behind(self) -> Number:
        """Tokens cached before a chunk, in the mean over all chunks: ``c + (n - 1) q/2``."""
        return self.cached if _is_one(self.chunks) else self.cached + (self.chunks - 1.0) / 2.0 * self.new

    @property
    def answered(self) -> Number:
        """Tokens of the instance whose logits are needed: the last one of a sequence and its drafts."""
        return self.batch * (1.0 + self.drafts)

    @property
    def tokens(self) -> Number:
        """New tokens of the instance, ``T = B q``."""
        return self.batch * self.new

    @property
    def attended(self) -> Number:
        """Mean attended length of a new token under the causal mask, ``c + (n q + 1)/2``."""
        return self.cached + (self.whole + 1.0) / 2.0

    @property
    def moe_tp(self) -> Number:
        """Chips that share one expert by tensor."""
        return self.tp * self.dp / self.ep

    @property
    def shared_out(self) -> Number:
        """Chips of an instance among which its tokens are shared out for the experts.

        ``tp`` where several instances share the bank; 1 where one TP group holds it and every rank has every token.
        """
        import jax.numpy as jnp

        return jnp.where(self.dp > 1.5, self.tp, 1.0)


def _is_one(x: Number) -> bool:
    return isinstance(x, float) and x == 1.0


@dataclass(frozen=True)
class Weights:
    """Parameters of one class in one layer.

    Attributes:
        kind: one of `codesign.precision.WEIGHT_CLASSES`.
        count: parameters in all.
        active: parameters that one token multiplies by.
        split: how chips share them: ``tp`` | ``experts`` | ``copy`` (every chip of the stage keeps all) |
            ``kv`` (over TP, but no further than ``kv_heads``).
        limit: for ``kv``: the most ways it splits.
    """

    kind: str
    count: float
    active: float
    split: str = "tp"
    limit: int = 0


@runtime_checkable
class Layer(Protocol):
    """An attention or feed-forward layer kind."""

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        """Parameters by class for a residual width ``hidden``, norms and biases included."""
        ...

    def cache_elements(self) -> float:
        """Elements kept per token of context, without bound (0 for windows, states and feed-forward layers)."""
        ...

    def window_elements(self) -> float:
        """Elements kept per sequence by a bounded window (0 where there is none)."""
        ...

    def state_elements(self) -> tuple[float, float]:
        """Elements of recurrent state and of convolution state per sequence."""
        ...

    def cache_share(self, step: Step) -> Number:
        """Share of a sequence's cache, window or state that one chip of the instance keeps."""
        ...

    def rows(self, step: Step, hidden: int) -> list[Row]:
        """The work of one layer on the fullest chip."""
        ...


def formed(layer: Layer, step: Step) -> tuple[str, ...]:
    """Names of the rows that a layer has in another form too where long blocks may come: its kind's ``formed``."""
    return getattr(layer, "formed", ()) if step.block else ()


@runtime_checkable
class Indexed(Protocol):
    """A layer kind that also keeps index keys, by which it chooses what to attend to."""

    def index_elements(self) -> float:
        """Elements of index keys kept per token of context, beside the cache and in a dtype of their own."""
        ...

    def index_share(self, step: Step) -> Number:
        """Share of a sequence's index keys that one chip of the instance keeps."""
        ...


def gemm(
    name: str,
    parameters: Number,
    tokens: Number,
    width_in: Number,
    width_out: Number,
    kind: str,
    step: Step,
    launches: float = 1.0,
    family: str = "gemm",
) -> Row:
    """A matrix product of ``tokens`` rows with ``parameters`` weights that lie on this chip.

    Bytes: weights once, activations in and out; FLOP: ``2 T params``.
    """
    p = step.precision
    act = p.bytes["activation"]
    return Row(
        name,
        family,
        memory=parameters * p.bytes[kind] + tokens * (width_in + width_out) * act,
        tensor=2.0 * tokens * parameters,
        dtype=p.math[kind],
        rows=tokens,
        launches=launches,
        width=width_out,
    )
