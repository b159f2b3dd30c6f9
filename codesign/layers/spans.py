r"""How far new tokens look: clipped attended lengths, averaged over a block of them, and what such a block reads.

New token i of q (counted from 1) stands behind c cached tokens.  Everything is closed, continuous in c and q, and
differentiable almost everywhere; lengths may be real numbers.
"""

import jax.numpy as jnp

from codesign.lanes import Number


def clipped_mean(cached: Number, new: Number, limit: Number) -> Number:
    r"""Mean over the new tokens of :math:`\min(c+i, w)` [token].

    With :math:`n = \mathrm{clip}(w-c, 0, q)` tokens still inside it is :math:`(n c + n(n+1)/2 + (q-n) w)/q`.
    """
    inside = jnp.clip(limit - cached, 0.0, new)
    return (inside * cached + inside * (inside + 1.0) / 2.0 + (new - inside) * limit) / new


def _summed(tokens: Number, chunk: int) -> Number:
    """Attended lengths of the first ``tokens`` positions of a sequence, added up: 1 to w in every chunk."""
    whole = jnp.floor(tokens / chunk)
    rest = tokens - whole * chunk
    return whole * (chunk * (chunk + 1.0) / 2.0) + rest * (rest + 1.0) / 2.0


def chunk_mean(cached: Number, new: Number, chunk: int) -> Number:
    r"""Mean attended length where a token sees its own chunk of w only: the mean of :math:`1 + ((c+i-1) \bmod w)`.

    One token behind a whole number of chunks sees itself alone; over whole chunks the mean is :math:`(w+1)/2`.
    """
    return (_summed(cached + new, chunk) - _summed(cached, chunk)) / new


def chunk_read(cached: Number, new: Number, chunk: int) -> Number:
    """Tokens that a block of new ones reads: from the start of the chunk that its first token falls into."""
    return cached - jnp.floor(cached / chunk) * chunk + new


def union_read(seen: Number, chosen: Number, new: Number) -> Number:
    r"""Distinct entries that q new tokens select among n when each selects k: :math:`n (1 - (1 - k/n)^q)`, at most n.

    Selections are taken as independent, which real ones are not: neighbours choose alike, so this is an upper bound
    between k (all alike) and q k.
    """
    return seen * (1.0 - (1.0 - jnp.minimum(chosen / seen, 1.0)) ** new)


def grid_mean(first: Number, stride: Number, count: Number, limit: Number) -> Number:
    r"""Mean over i < n of :math:`\min(a + i s, w)`: what blocks of s tokens find cached, at most w of it.

    With :math:`j = \mathrm{clip}(\lceil (w-a)/s \rceil, 0, n)` blocks that start inside the limit it is
    :math:`(j a + s j(j-1)/2 + (n-j) w)/n`, continuous in every argument.
    """
    inside = jnp.clip(jnp.ceil((limit - first) / stride), 0.0, count)
    return (inside * first + stride * inside * (inside - 1.0) / 2.0 + (count - inside) * limit) / count
