r"""Linear attention with a gated delta rule, token by token and in chunks: a state instead of a cache.

Per head and token, with decay :math:`a_t` per key channel and strength :math:`\beta_t`,

.. math:: S_t = \mathrm{diag}(a_t) S_{t-1} + k_t u_t^T, \quad
          u_t = \beta_t (v_t - (\mathrm{diag}(a_t) S_{t-1})^T k_t), \quad o_t = S_t^T q_t .

In a chunk with :math:`\Gamma_t = \prod_{s \le t} a_s`, rows :math:`K^+ = \Gamma k`, :math:`K^- = k / \Gamma`,
:math:`Q^+ = \Gamma q`: solve :math:`(I + \beta\,\mathrm{tril}(K^+ K^{-T}, -1))\, U = \beta (V - K^+ S)`, then
:math:`O = Q^+ S + \mathrm{tril}(Q^+ K^{-T}) U` and :math:`S' = \mathrm{diag}(\Gamma_L) (S + K^{-T} U)`.
Both give the same numbers.  Decays that reach :math:`e^{-80}` within a chunk would overflow ``1/Gamma``; kernels cut
such chunks up, which this does not.  Sources: arXiv:2412.06464; Kimi Linear, arXiv:2510.26692.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular


def short_convolution(x: jax.Array, before: jax.Array, taps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Causal depthwise convolution and SiLU; each output is the product of a channel's window with its taps.

    Args:
        x: (batch, tokens, channels).
        before: the ``kernel - 1`` inputs that came before.
        taps: (kernel, channels).

    Returns:
        the activations, and the inputs that the next pass needs.
    """
    kernel, tokens = taps.shape[0], x.shape[1]
    inputs = jnp.concatenate([before, x], axis=1)
    windows = jnp.stack([inputs[:, i : i + tokens] for i in range(kernel)], axis=-1)
    return jax.nn.silu(jnp.einsum("btck,kc->btc", windows, taps)), inputs[:, tokens:]


def recurrent(
    q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Token by token.

    Args:
        q, k, log_decay: (batch, heads, tokens, key width).
        v: (batch, heads, tokens, value width).
        beta: (batch, heads, tokens).
        state: (batch, heads, key width, value width).

    Returns:
        answers (batch, heads, tokens, value width) and the last state.
    """

    def one(state: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, log_decay, beta = at
        state = jnp.exp(log_decay)[..., None] * state
        u = beta[..., None] * (v - jnp.einsum("bnd,bnde->bne", k, state))
        state = state + k[..., None] * u[..., None, :]
        return state, jnp.einsum("bnd,bnde->bne", q, state)

    by_token = tuple(jnp.moveaxis(x, 2, 0) for x in (q, k, v, log_decay, beta))
    state, answers = jax.lax.scan(one, state, by_token)
    return jnp.moveaxis(answers, 0, 2), state


def chunked(
    q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array, beta: jax.Array, state: jax.Array, length: int
) -> tuple[jax.Array, jax.Array]:
    """The same by chunks of ``length`` tokens, which must divide the tokens."""

    def one(state: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, log_decay, beta = at
        total = jnp.cumsum(log_decay, axis=2)
        ahead, q_ahead, back = jnp.exp(total) * k, jnp.exp(total) * q, jnp.exp(-total) * k
        within = jnp.tril(jnp.einsum("bnid,bnjd->bnij", ahead, back), -1)
        answered = jnp.einsum("bnid,bnde->bnie", ahead, state)
        system = jnp.eye(length, dtype=q.dtype) + beta[..., None] * within
        u = solve_triangular(system, beta[..., None] * (v - answered), lower=True, unit_diagonal=True)
        seen = jnp.tril(jnp.einsum("bnid,bnjd->bnij", q_ahead, back))
        answer = jnp.einsum("bnid,bnde->bnie", q_ahead, state) + jnp.einsum("bnij,bnje->bnie", seen, u)
        state = state + jnp.einsum("bnid,bnie->bnde", back, u)
        return jnp.exp(total[:, :, -1])[..., None] * state, answer

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, length, *x.shape[3:]), 2, 0)

    state, answers = jax.lax.scan(one, state, tuple(cut(x) for x in (q, k, v, log_decay, beta)))
    answers = jnp.moveaxis(answers, 0, 2)
    return answers.reshape(*answers.shape[:2], -1, answers.shape[-1]), state


def unit(x: jax.Array) -> jax.Array:
    """Divide by the Euclidean length along the last axis."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
