r"""Linear attention with one decay per head and no correction: lightning attention and Mamba-2, by token and in chunks.

Heads of a group share keys and queries.  Per head and token, with decay :math:`a_t`,

.. math:: S_t = a_t S_{t-1} + k_t v_t^T, \qquad o_t = S_t^T q_t .

In a chunk of L tokens with :math:`g_t = \sum_{s \le t} \ln a_s`,

.. math:: o_i = e^{g_i} S^T q_i + \sum_{j \le i} e^{g_i - g_j} (q_i \cdot k_j)\, v_j, \qquad
          S' = e^{g_L} S + \sum_j e^{g_L - g_j} k_j v_j^T .

No exponent is positive, so that nothing overflows.  Sources: arXiv:2405.21060 and arXiv:2501.08313.
"""

import jax
import jax.numpy as jnp


def recurrent(
    q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Token by token.

    Args:
        q, k: (batch, groups, tokens, key width).
        v: (batch, groups, heads of a group, tokens, value width).
        log_decay: (batch, groups, heads of a group, tokens), never positive.
        state: (batch, groups, heads of a group, key width, value width).

    Returns:
        answers, shaped like ``v``, and the last state.
    """

    def one(state: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, log_decay = at
        state = jnp.exp(log_decay)[..., None, None] * state + k[:, :, None, :, None] * v[..., None, :]
        return state, jnp.einsum("bgd,bgsde->bgse", q, state)

    by_token = (*(jnp.moveaxis(x, 2, 0) for x in (q, k)), jnp.moveaxis(v, 3, 0), jnp.moveaxis(log_decay, 3, 0))
    state, answers = jax.lax.scan(one, state, by_token)
    return jnp.moveaxis(answers, 0, 3), state


def chunked(
    q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array, state: jax.Array, length: int
) -> tuple[jax.Array, jax.Array]:
    """The same by chunks of ``length`` tokens, which must divide the tokens."""

    def one(state: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, log_decay = at
        total = jnp.cumsum(log_decay, axis=-1)
        apart = total[..., :, None] - total[..., None, :]
        causal = jnp.tril(jnp.ones((length, length), dtype=bool))
        weights = jnp.einsum("bgid,bgjd->bgij", q, k)[:, :, None] * jnp.exp(jnp.where(causal, apart, -jnp.inf))
        before = jnp.exp(total)[..., None] * jnp.einsum("bgid,bgsde->bgsie", q, state)
        answer = before + jnp.einsum("bgsij,bgsje->bgsie", weights, v)
        last = total[..., -1:]
        added = jnp.einsum("bgjd,bgsje->bgsde", k, jnp.exp(last - total)[..., None] * v)
        return jnp.exp(last)[..., None] * state + added, answer

    def cut(x: jax.Array, axis: int) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, length, *x.shape[axis + 1 :]), axis, 0)

    state, answers = jax.lax.scan(one, state, (cut(q, 2), cut(k, 2), cut(v, 3), cut(log_decay, 3)))
    return jnp.moveaxis(answers, 0, 3).reshape(v.shape), state
