"""The executable layers on one device, in float64, against plain formulations: loops over heads, tokens and experts."""

from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from codesign.layers import gdn, gqa, kda, mla, mlp, moe
from codesign.reference.delta import Delta
from codesign.reference.gqa import GQA
from codesign.reference.mla import MLA
from codesign.reference.mlp import MLP
from codesign.reference.moe import MoE, chosen, design, routed_tokens
from codesign.reference.parts import Draw
from codesign.reference.programs import QUICK
from codesign.routing import expected_ranks, expected_ranks_grouped

HIDDEN = 24
#: Of numbers of order one in float64.
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11}


def draw(seed: int = 0) -> Draw:
    return Draw(seed, np.float64)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def run(module: Any, *inputs: Any) -> Any:
    """What the compiled module answers, as NumPy arrays."""
    graph, state = nnx.split(module)
    call = jax.jit(lambda state, *args: nnx.merge(graph, state)(*args), compiler_options=QUICK)
    return jax.tree.map(np.asarray, call(state, *inputs))


def of(module: Any, *names: str) -> list[np.ndarray]:
    return [np.asarray(getattr(module, name)[...]) for name in names]


def turned(x: np.ndarray, at: int) -> np.ndarray:
    """Rotation of pairs, as a product of complex numbers."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * at * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def dense_gqa(module: GQA, x: np.ndarray, cache: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """One sequence, one token and one head at a time, over all keys with those that are not seen left out."""
    s, cached = module.shape, module.cached
    q_, k_, out = of(module, "q", "k", "out")
    keys, values = list(np.moveaxis(cache[0], 1, 0)), list(np.moveaxis(cache[1], 1, 0))
    answers = []
    for i, token in enumerate(x):
        at = cached + i
        k = np.einsum("h,hnd->nd", token, k_)
        v = k if s.tied_values else np.einsum("h,hnd->nd", token, *of(module, "v"))
        if s.bias:
            k, v = k + of(module, "k_bias")[0], v + of(module, "v_bias")[0]
        keys.append(turned(k, at))
        values.append(v)
        y = np.zeros(x.shape[1])
        for head in range(s.heads):
            group = head // (s.heads // s.kv_heads)
            q = token @ q_[:, head] + (of(module, "q_bias")[0][head] if s.bias else 0.0)
            q = turned(q, at)
            seen = [
                j for j in range(at + 1)
                if (s.window is None or j > at - s.window) and (s.chunk is None or j // s.chunk == at // s.chunk)
            ]  # fmt: skip
            scores = [q @ keys[j][group] / np.sqrt(s.key_width) for j in seen]
            if s.sinks:
                scores.append(of(module, "sink")[0][head])
            weights = softmax(np.array(scores))
            answer = sum(w * values[j][group] for w, j in zip(weights, seen, strict=False))
            if s.gate:
                answer = answer * sigmoid(token @ of(module, "gate")[0][:, head])
            if s.head_gate:
                answer = answer * sigmoid(token @ of(module, "head_gate")[0][:, head])
            y += answer @ out[head]
        answers.append(y + of(module, "out_bias")[0] if s.bias else y)
    return np.array(answers)


PLAIN: dict[str, Any] = {"heads": 4, "kv_heads": 2, "key_width": 6, "value_width": 4}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"window": 3},
        {"chunk": 4},
        {"bias": True, "sinks": True, "window": 4},
        {"gate": True, "kv_heads": 4},
        {"head_gate": True, "kv_heads": 1},
        {"tied_values": True, "value_width": 6},
    ],
    ids=str,
)
def test_gqa_in_tiles_is_dense_attention(more: dict[str, Any]) -> None:
    check_gqa(more, 5, 6, 4)


@pytest.mark.parametrize("more", [{}, {"window": 3}], ids=str)
@pytest.mark.parametrize(("cached", "new", "tile"), [(9, 1, 1), (5, 3, 1), (0, 7, 7)])
def test_gqa_decode_and_causal_prefill(more: dict[str, Any], cached: int, new: int, tile: int) -> None:
    """One token, some one by one, a whole prompt under a mask."""
    check_gqa(more, cached, new, tile)


def check_gqa(more: dict[str, Any], cached: int, new: int, tile: int) -> None:
    shape = gqa.GQA(**(PLAIN | more))
    module = GQA(shape, HIDDEN, draw(), cached=cached, tile=tile)
    x = numbers(1, 2, new, HIDDEN)
    cache = tuple(numbers(i, 2, shape.kv_heads, cached, w) for i, w in ((2, shape.key_width), (3, shape.value_width)))
    y, kept = run(module, x, cache)
    for b in range(2):
        want = dense_gqa(module, x[b], (cache[0][b], cache[1][b]))
        np.testing.assert_allclose(y[b], want, **CLOSE)
    assert kept[0].shape == (2, shape.kv_heads, cached + new, shape.key_width)


def test_gqa_fills_a_cache_where_it_lies() -> None:
    shape = gqa.GQA(**PLAIN, qk_norm=True, q_rank=8)
    x, cache = numbers(1, 2, 1, HIDDEN), (numbers(2, 2, 2, 5, 6), numbers(3, 2, 2, 5, 4))
    room = tuple(np.pad(c, ((0, 0), (0, 0), (0, 1), (0, 0))) for c in cache)
    y, kept = run(GQA(shape, HIDDEN, draw(), cached=5), x, cache)
    z, filled = run(GQA(shape, HIDDEN, draw(), cached=5, room=True), x, room)
    np.testing.assert_allclose(y, z, **CLOSE)
    np.testing.assert_array_equal(kept[1], filled[1])


@pytest.mark.parametrize("more", [{"q_rank": None}, {"q_rank": 10, "gate": True}], ids=str)
@pytest.mark.parametrize(("cached", "new", "tile"), [(6, 1, 1), (3, 5, 2)])
def test_mla_absorbed_expanded_and_dense(more: dict[str, Any], cached: int, new: int, tile: int) -> None:
    shape = mla.MLA(heads=3, kv_rank=10, nope=6, rope=4, value=5, **more)
    absorbed = MLA(shape, HIDDEN, draw(), cached=cached, tile=tile)
    expanded = MLA(shape, HIDDEN, draw(), cached=cached, tile=tile, expanded=True)
    x, cache = numbers(1, 2, new, HIDDEN), numbers(2, 2, cached, 14)
    y, kept = run(absorbed, x, cache)
    z, also = run(expanded, x, cache)
    np.testing.assert_allclose(y, z, **CLOSE)
    np.testing.assert_array_equal(kept, also)

    # Dense, from the definition: keys and values of each head, one token at a time.
    q_, up_k, up_v, out = of(absorbed, "q", "up_k", "up_v", "out")
    want = np.zeros((new, HIDDEN))
    for i, token in enumerate(x[0]):
        low = token
        if shape.q_rank:
            low = token @ of(absorbed, "q_down")[0]
            low = low / np.sqrt(np.mean(low**2) + 1e-6)
        for head in range(3):
            q = low @ q_[:, head]
            q = np.concatenate([q[:6], turned(q[6:], cached + i)])
            latents = kept[0][: cached + i + 1]
            keys = np.concatenate([latents[:, :10] @ up_k[:, head], latents[:, 10:]], axis=1)
            answer = softmax(keys @ q / np.sqrt(10.0)) @ (latents[:, :10] @ up_v[:, head])
            if shape.gate:
                answer = answer * sigmoid(token @ of(absorbed, "gate")[0][:, head])
            want[i] += answer @ out[head]
    np.testing.assert_allclose(y[0], want, **CLOSE)


DELTAS = {
    "kda": kda.KDA(heads=2, value_heads=2, key_width=4, value_width=6, decay_rank=5),
    "kda with a low-rank gate": kda.KDA(heads=2, value_heads=4, key_width=4, value_width=6, decay_rank=5, gate_rank=3),
    "gated DeltaNet": gdn.GDN(heads=2, value_heads=4, key_width=6, value_width=4),
}


def delta_state(shape: Any, seed: int = 5) -> Any:
    widths = (shape.heads * shape.key_width,) * 2 + (shape.value_heads * shape.value_width,)
    state = numbers(seed, 2, shape.value_heads, shape.key_width, shape.value_width)
    return state, *(numbers(seed + 1 + i, 2, shape.conv_kernel - 1, w) for i, w in enumerate(widths))


def dense_delta(module: Delta, x: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
    """One sequence, token by token and head by head, from the definition of the delta rule."""
    s, answers = module.shape, []
    memory, pasts = state[0].copy(), [list(past) for past in state[1:]]
    names = ("q", "k", "v")
    for token in x:
        made = []
        for name, past in zip(names, pasts, strict=True):
            projection, taps = of(module, name, f"{name}_taps")
            past.append(token @ projection.reshape(HIDDEN, -1))
            window = np.array(past[-s.conv_kernel :])
            y = (window * taps.reshape(s.conv_kernel, -1)).sum(axis=0)
            made.append((y * sigmoid(y)).reshape(projection.shape[1:]))
        beta = sigmoid(token @ of(module, "beta")[0])
        gate = token @ of(module, "gate_down")[0] if hasattr(module, "gate_down") else token
        gate = sigmoid(np.einsum("h,hnd->nd", gate, of(module, "gate")[0]))
        rate, bias = of(module, "rate", "decay_bias")
        y = np.zeros(HIDDEN)
        for head in range(s.value_heads):
            key_head = head // (s.value_heads // s.heads)
            if isinstance(s, kda.KDA):
                low = token @ of(module, "decay_down")[0] @ of(module, "decay")[0][:, key_head]
                decay = np.exp(-np.exp(rate[key_head]) * np.log1p(np.exp(low + bias[key_head])))
            else:
                low = token @ of(module, "decay")[0][:, head] + bias[head]
                decay = np.exp(-np.exp(rate[head]) * np.log1p(np.exp(low))) * np.ones(s.key_width)
            q, k = (m[key_head] / np.sqrt((m[key_head] ** 2).sum() + 1e-6) for m in made[:2])
            before = decay[:, None] * memory[head]
            memory[head] = before + np.outer(k, beta[head] * (made[2][head] - before.T @ k))
            answer = memory[head].T @ q / np.sqrt(s.key_width)
            answer = answer / np.sqrt(np.mean(answer**2) + 1e-6) * gate[head]
            y += answer @ of(module, "out")[0][head]
        answers.append(y)
    return np.array(answers)


@pytest.mark.parametrize("kind", DELTAS)
def test_delta_rules_token_by_token_and_in_chunks(kind: str) -> None:
    shape = DELTAS[kind]
    x, state = numbers(1, 2, 12, HIDDEN), delta_state(shape)
    module = Delta(shape, HIDDEN, draw())
    y, after = run(module, x, state)
    for b in range(2):
        want = dense_delta(module, x[b], [part[b] for part in state])
        np.testing.assert_allclose(y[b], want, **CLOSE)
    for chunk in (4,):
        z, also = run(Delta(shape, HIDDEN, draw(), chunk=chunk), x, state)
        np.testing.assert_allclose(z, y, **CLOSE)
        for one, other in zip(after, also, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)


def test_a_state_carries_everything_over() -> None:
    """Two passes give what one does."""
    kind = "kda with a low-rank gate"
    module = Delta(DELTAS[kind], HIDDEN, draw())
    x, state = numbers(1, 2, 6, HIDDEN), delta_state(DELTAS[kind])
    whole, _ = run(module, x, state)
    first, between = run(module, x[:, :3], state)
    second, _ = run(module, x[:, 3:], between)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, **CLOSE)


@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward(gated: bool) -> None:
    module = MLP(mlp.MLP(inner=10, gated=gated), HIDDEN, draw())
    x = numbers(1, 5, HIDDEN)
    up, down = of(module, "up", "down")
    g, u = x @ up[:, 0], x @ up[:, -1]
    inner = g * sigmoid(g) * u if gated else np.maximum(g, 0.0) ** 2
    np.testing.assert_allclose(run(module, x), inner @ down, **CLOSE)


MIXTURES = {
    "plain": moe.MoE(experts=8, top_k=3, inner=6),
    "two matrices": moe.MoE(experts=8, top_k=2, inner=6, gated=False),
    "biases": moe.MoE(experts=8, top_k=2, inner=6, bias=True, router_bias=True),
    "shared": moe.MoE(experts=8, top_k=2, inner=6, shared_inner=10, shared_gate=True),
    "latent": moe.MoE(experts=8, top_k=2, inner=6, width=12, latent_norm=True, shared_inner=4),
    "groups": moe.MoE(experts=8, top_k=2, inner=6, groups=4, top_groups=2, router_bias=True),
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_mixture_is_a_loop_over_tokens_and_experts(kind: str) -> None:
    s = MIXTURES[kind]
    module = MoE(s, HIDDEN, draw())
    if s.router_bias:
        module.router_bias[...] = jnp.asarray(numbers(9, s.experts) * 0.3)
    x = numbers(1, 11, HIDDEN)
    up, down, router = of(module, "up", "down", "router")
    want = []
    for token in x:
        scores = sigmoid(token @ router)
        by = scores + (of(module, "router_bias")[0] if s.router_bias else 0.0)
        allowed = range(s.experts)
        if s.top_groups < s.groups:
            size = s.experts // s.groups
            worth = [np.sort(by[g * size : (g + 1) * size])[-2:].sum() for g in range(s.groups)]
            kept = np.argsort(worth)[-s.top_groups :]
            allowed = [e for e in range(s.experts) if e // size in kept]
        picked = sorted(allowed, key=lambda e: -by[e])[: s.top_k]
        low = token @ of(module, "latent_down")[0] if s.width else token
        y = np.zeros(len(low))
        for e in picked:
            g, u = (low @ up[e, :, m] for m in (0, -1))
            if s.bias:
                g, u = (v + of(module, "up_bias")[0][e, m] for v, m in ((g, 0), (u, -1)))
            inner = g * sigmoid(g) * u if s.gated else np.maximum(g, 0.0) ** 2
            answer = inner @ down[e] + (of(module, "down_bias")[0][e] if s.bias else 0.0)
            y += scores[e] / scores[picked].sum() * answer
        if s.width:
            y = y / np.sqrt(np.mean(y**2) + 1e-6) @ of(module, "latent_up")[0]
        if s.shared_inner:
            first, last = of(module, "shared_up", "shared_down")
            g, u = token @ first[:, 0], token @ first[:, -1]
            more = (g * sigmoid(g) * u) @ last
            y = y + (more * sigmoid(token @ of(module, "shared_gate")[0]) if s.shared_gate else more)
        want.append(y)
    np.testing.assert_allclose(run(module, x), want, **CLOSE)


def test_a_design_has_every_choice_once() -> None:
    wanted, picked = design(moe.MoE(experts=16, top_k=2, inner=1))
    assert len(picked) == comb(16, 2) == len({tuple(row) for row in picked})
    assert set(picked.sum(axis=0)) == {len(picked) * 2 // 16}
    grouped = moe.MoE(experts=16, top_k=2, inner=1, groups=8, top_groups=4)
    _, within = design(grouped)
    assert len(within) == comb(8, 4) * comb(8, 2)
    # The averages over a design are the expectations of the law.
    for ranks in (2, 4, 8):
        for table, want in (
            (picked, expected_ranks(16, 2, ranks)), (within, expected_ranks_grouped(16, 2, ranks, 8, 4)),
        ):  # fmt: skip
            reached = table.reshape(len(table), ranks, -1).any(axis=2)
            assert reached.sum(axis=1).mean() == pytest.approx(float(want), rel=1e-12)
            assert len(set(reached.sum(axis=0))) == 1  # every rank is reached as often
    assert wanted.shape == picked.shape


def test_tokens_of_a_design_are_routed_as_wanted() -> None:
    for shape in (moe.MoE(16, 2, 1), moe.MoE(16, 3, 1), moe.MoE(16, 2, 1, groups=8, top_groups=4)):
        wanted, picked = design(shape)
        router = np.random.default_rng(0).standard_normal((32, 16))
        scores = jax.nn.sigmoid(jnp.asarray(routed_tokens(router, wanted) @ router))
        ids = np.asarray(chosen(scores, shape.top_k, shape.groups, shape.top_groups))
        found = np.zeros_like(picked)
        np.put_along_axis(found, ids, True, axis=1)
        np.testing.assert_array_equal(found, picked)
