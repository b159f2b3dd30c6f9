r"""The step of a linear-attention state, shared by the kinds that keep one instead of a cache.

Few new tokens run the recurrence: the state is read once and written once per position, so that a rejected draft costs
no replay; per token and state element a delta rule spends 4 matrix and 3 elementwise operations (read the correction,
read the answer; decay and rank-one update), the others 2 and 3.  Longer blocks run in chunks of L: per token
:math:`2 L w` inside the chunk (w the widths of its products) and 6 (delta) or 4 per state element between chunks, the
state read and written once per chunk.  Left out: the triangular solve inside a chunk of a delta rule.
"""

import jax.numpy as jnp

from codesign.lanes import Number, Row
from codesign.layers.base import Step

#: Longest block that runs token by token: as many states are written, one for each draft that may be the last.
LONGEST_DRAFT = 16

#: Tokens of a chunk in the blocked form; kernels use 64 to 256.
CHUNK = 64


def state_row(
    step: Step, *, cells: Number, conv: Number, inside: Number, delta: bool, moved: Number, elementwise: Number
) -> Row:
    """One pass over the states of the instance's sequences.

    Args:
        step: the pass.
        cells, conv: elements of state and of convolution state per sequence on this chip.
        inside: per token, the widths of the products inside a chunk, heads included.
        delta: whether the update corrects what the state already answers (a delta rule).
        moved: activations read and written per token [element].
        elementwise: further elementwise operations per token: gates, norms, convolutions [op].
    """
    p, t = step.precision, step.tokens
    kept = cells * p.bytes["state"] + conv * p.bytes["conv_state"]
    passes = jnp.maximum(1.0 + jnp.minimum(step.new, LONGEST_DRAFT), 2.0 * step.new / CHUNK)
    blocked = jnp.where(step.new > LONGEST_DRAFT, 1.0, 0.0)
    one_by_one, between = (4.0, 6.0) if delta else (2.0, 4.0)
    in_chunks = 2.0 * CHUNK * inside + between * cells
    return Row(
        "state",
        "attention",
        memory=step.batch * kept * passes + t * moved * p.bytes["activation"],
        tensor=t * (one_by_one * cells + blocked * (in_chunks - one_by_one * cells)),
        dtype=0.0,
        rows=t,
        vector=t * (3.0 * cells * (1.0 - blocked) + elementwise),
        launches=2.0,
    )
