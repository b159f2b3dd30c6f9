r"""The step of a linear-attention state, shared by the kinds that keep one instead of a cache.

Few new tokens run the recurrence: per token and state element a delta rule spends 4 matrix and 3 elementwise
operations (read the correction, read the answer; decay and rank-one update), the others 2 and 3.  Long blocks run in
chunks of L: per token :math:`2 L w` inside the chunk (w the widths of its products) and 6 (delta) or 4 per state
element between chunks, with the 3 elementwise operations once per chunk: a chunk of one token is the recurrent step
and more.  These are a layer's two forms.  The state is read and written once per pass or chunk, and
written once more for every draft, so that a rejected draft costs no replay.  Left out: the triangular solve inside a
chunk of a delta rule.
"""

import jax.numpy as jnp

from codesign.lanes import Number, Row
from codesign.layers.base import Step

#: Tokens of a chunk in the blocked form; kernels use 64 to 256.
CHUNK = 64


def state_row(
    step: Step,
    *,
    heads: Number,
    cells: Number,
    conv: Number,
    inside: Number,
    delta: bool,
    moved: Number,
    elementwise: Number,
) -> Row:
    """One pass over the states of the instance's sequences.

    Args:
        step: the pass.
        heads: of states on this chip.
        cells, conv: elements of state and of convolution state per sequence on this chip.
        inside: per token, the widths of the products inside a chunk, heads included.
        delta: whether the update corrects what the state already answers (a delta rule).
        moved: activations read and written per token [element].
        elementwise: further elementwise operations per token: gates, norms, convolutions [op].
    """
    p, t = step.precision, step.tokens
    kept = cells * p.bytes["state"] + conv * p.bytes["conv_state"]
    once = 2.0 + step.drafts
    one_by_one, between = (4.0, 6.0) if delta else (2.0, 4.0)
    tensor, vector = t * one_by_one * cells, 3.0 * t * cells
    launches, streams = 2.0 + step.drafts / 2.0, 0.0  # token by token the kernel waits for each
    if step.form:
        once = jnp.maximum(once, 2.0 * step.new / CHUNK)
        tensor = t * (2.0 * jnp.minimum(step.new, CHUNK) * inside + between * cells)
        vector = 3.0 * (step.batch * jnp.maximum(step.new / CHUNK, 1.0)) * cells
        streams = step.batch * heads * (step.new / CHUNK + 1.0)
    return Row(
        "state",
        "state",
        memory=step.batch * kept * once + t * moved * p.bytes["activation"],
        tensor=tensor,
        dtype=0.0,
        rows=t,
        vector=vector + t * elementwise,
        launches=launches,
        streams=streams,
    )
