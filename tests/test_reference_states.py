"""Lightning attention and Mamba-2 on one device, in float64, against sums over all earlier tokens, without states."""

from typing import Any

import numpy as np
import pytest
from test_reference_layers import CLOSE, HIDDEN, draw, numbers, of, run, sigmoid

from codesign.layers import lightning, mamba2
from codesign.reference.lightning import Lightning
from codesign.reference.mamba2 import Mamba2

LIGHTNING = lightning.Lightning(heads=3, key_width=4, value_width=6)
MAMBAS = {
    "shared by groups": mamba2.Mamba2(heads=6, head_width=4, state_width=5, groups=2),
    "one group, no bias": mamba2.Mamba2(heads=2, head_width=4, state_width=3, groups=1, conv_bias=False, conv_kernel=3),
}


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def dense_lightning(module: Lightning, x: np.ndarray, state: np.ndarray) -> np.ndarray:
    """One sequence: every token looks back at all earlier ones and at the state from before them."""
    q, k, v = (silu(np.einsum("th,hnd->ntd", x, w)) for w in of(module, "q", "k", "v"))
    at = np.arange(len(x))
    answers = np.zeros((len(x), 3, 6))
    for head in range(3):
        slope = 2.0 ** (-8.0 * (head + 1) / 3)
        weights = np.tril(q[head] @ k[head].T * np.exp(-slope * np.abs(at[:, None] - at)))
        answers[:, head] = weights @ v[head] + np.exp(-slope * (at + 1))[:, None] * (q[head] @ state[head])
    answers = answers / np.sqrt(np.mean(answers**2, axis=(1, 2), keepdims=True) + 1e-6)
    answers = answers * sigmoid(np.einsum("th,hnd->tnd", x, *of(module, "gate")))
    return np.einsum("tnd,ndh->th", answers, *of(module, "out"))


def dense_mamba(module: Mamba2, x: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
    """The same of Mamba-2: a matrix of decays between any two tokens per head."""
    s, convolved = module.shape, []
    for name, before in zip(("x", "b", "c"), state[1:], strict=True):
        w, taps = of(module, name, f"{name}_taps")
        inputs = np.concatenate([before, np.einsum("th,hnd->tnd", x, w)])
        y = np.array([(inputs[t : t + s.conv_kernel] * taps).sum(axis=0) for t in range(len(x))])
        convolved.append(silu(y + of(module, f"{name}_bias")[0] if s.conv_bias else y))
    values, b, c = convolved
    step = np.log1p(np.exp(x @ of(module, "step")[0] + of(module, "step_bias")[0]))
    answers = np.zeros_like(values)
    for head in range(s.heads):
        group = head // (s.heads // s.groups)
        passed = np.cumsum(step[:, head]) * np.exp(of(module, "rate")[0][head])
        weights = np.tril(c[:, group] @ b[:, group].T * np.exp(-np.abs(passed[:, None] - passed)))
        answers[:, head] = weights @ (step[:, head, None] * values[:, head])
        answers[:, head] += np.exp(-passed)[:, None] * (c[:, group] @ state[0][head])
        answers[:, head] += of(module, "skip")[0][head] * values[:, head]
    answers = answers * silu(np.einsum("th,hnd->tnd", x, *of(module, "z")))
    grouped = answers.reshape(len(x), s.groups, -1)
    grouped = grouped / np.sqrt(np.mean(grouped**2, axis=2, keepdims=True) + 1e-6)
    return np.einsum("tnd,ndh->th", grouped.reshape(answers.shape), *of(module, "out"))


def mamba_state(s: mamba2.Mamba2, batch: int = 2) -> tuple[np.ndarray, ...]:
    kept = s.conv_kernel - 1
    return (
        numbers(5, batch, s.heads, s.state_width, s.head_width), numbers(6, batch, kept, s.heads, s.head_width),
        numbers(7, batch, kept, s.groups, s.state_width), numbers(8, batch, kept, s.groups, s.state_width),
    )  # fmt: skip


def in_chunks_too(one: Any, other: Any, x: np.ndarray, state: Any) -> np.ndarray:
    """The answer token by token, which that in chunks must equal, the state after it included."""
    y, after = run(one, x, state)
    z, also = run(other, x, state)
    np.testing.assert_allclose(z, y, **CLOSE)
    for a, b in zip(after, also, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)
    return y


def test_lightning_is_attention_with_decaying_weights() -> None:
    x, state = numbers(1, 2, 8, HIDDEN), numbers(2, 2, 3, 4, 6)
    modules = (Lightning(LIGHTNING, HIDDEN, draw(), chunk=chunk) for chunk in (None, 4))
    first, second = modules
    y = in_chunks_too(first, second, x, state)
    for b in range(2):
        np.testing.assert_allclose(y[b], dense_lightning(first, x[b], state[b]), **CLOSE)


@pytest.mark.parametrize("kind", MAMBAS)
def test_mamba_is_attention_with_decaying_weights(kind: str) -> None:
    s = MAMBAS[kind]
    x, state = numbers(1, 2, 8, HIDDEN), mamba_state(s)
    first, second = (Mamba2(s, HIDDEN, draw(), chunk=chunk) for chunk in (None, 4))
    y = in_chunks_too(first, second, x, state)
    for b in range(2):
        np.testing.assert_allclose(y[b], dense_mamba(first, x[b], [part[b] for part in state]), **CLOSE)


def test_a_state_carries_everything_over() -> None:
    """Two passes give what one does."""
    s = MAMBAS["shared by groups"]
    module, x, state = Mamba2(s, HIDDEN, draw()), numbers(1, 2, 6, HIDDEN), mamba_state(s)
    whole, _ = run(module, x, state)
    first, between = run(module, x[:, :3], state)
    second, _ = run(module, x[:, 3:], between)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, **CLOSE)
