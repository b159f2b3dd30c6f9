"""Sparse attention layers on one device, in float64, against loops over tokens and heads that mask a full softmax."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_reference_layers import CLOSE, HIDDEN, draw, numbers, of, run, softmax, turned

from codesign.layers import compressed, dsa, mla, msa
from codesign.reference.compressed import Compressed
from codesign.reference.compressor import Windows
from codesign.reference.dsa import DSA
from codesign.reference.mla import MLA
from codesign.reference.msa import MSA

#: With fewer index heads some tokens would score 0, all alike.
SPARSE = dsa.DSA(3, 10, 12, 6, 4, 5, index_heads=8, index_width=8, top_k=4)


def rooted(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def first_turned(x: np.ndarray, channels: int, at: int) -> np.ndarray:
    return np.concatenate([turned(x[..., :channels], at), x[..., channels:]], axis=-1)


def last_turned(x: np.ndarray, channels: int, at: int) -> np.ndarray:
    return np.concatenate([x[..., :-channels], turned(x[..., -channels:], at)], axis=-1)


def masked_softmax(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return softmax(np.where(seen, scores, -np.inf))


def dense_dsa(module: DSA, x: np.ndarray, latents: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, list[set[int]]]:
    """One sequence: answers, and which tokens each token attends to, from the definition of the indexer."""
    s = module.sparse
    q_down, q_, down, up_k, up_v, out = of(module, "q_down", "q", "down", "up_k", "up_v", "out")
    index_q, index_k, index_weights = of(module, "index_q", "index_k", "index_weights")
    seen_latents, seen_keys = list(latents), list(keys)
    answers, chosen = [], []
    for i, token in enumerate(x):
        at, low = module.cached + i, rooted(token @ q_down)
        made = token @ down
        seen_latents.append(np.concatenate([rooted(made[: s.kv_rank]), turned(made[s.kv_rank :], at)]))
        key = token @ index_k
        seen_keys.append(first_turned((key - key.mean()) / np.sqrt(key.var() + 1e-6), s.rope, at))
        queries = [first_turned(low @ index_q[:, n], s.rope, at) for n in range(s.index_heads)]
        weights = token @ index_weights
        scores = [sum(w * max(q @ k, 0.0) for w, q in zip(weights, queries, strict=True)) for k in seen_keys]
        chosen.append({int(j) for j in np.argsort(scores)[-s.top_k :]})
        seen, y = np.isin(np.arange(at + 1), list(chosen[-1])), np.zeros(HIDDEN)
        for head in range(s.heads):
            q = low @ q_[:, head]
            q = np.concatenate([q[: s.nope], turned(q[s.nope :], at)])
            k = np.array([np.concatenate([c[: s.kv_rank] @ up_k[:, head], c[s.kv_rank :]]) for c in seen_latents])
            v = np.array([c[: s.kv_rank] @ up_v[:, head] for c in seen_latents])
            y += masked_softmax(k @ q / np.sqrt(s.nope + s.rope), seen) @ v @ out[head]
        answers.append(y)
    return np.array(answers), chosen


@pytest.mark.parametrize(("cached", "new"), [(9, 1), (2, 4)])
def test_dsa_gathered_masked_and_dense(cached: int, new: int) -> None:
    """Four tokens behind two see fewer, as many and more tokens than are chosen."""
    modules = [DSA(SPARSE, HIDDEN, draw(), cached=cached, expanded=flag) for flag in (False, True)]
    x, latents, keys = numbers(1, 2, new, HIDDEN), numbers(2, 2, cached, 16), numbers(3, 2, cached, 8)
    (y, kept), (z, also) = (run(module, x, (latents, keys)) for module in modules)
    np.testing.assert_allclose(y, z, **CLOSE)
    for b in range(2):
        want, chosen = dense_dsa(modules[0], x[b], latents[b], keys[b])
        np.testing.assert_allclose(y[b], want, **CLOSE)
        for i, some in enumerate(chosen):
            assert {int(j) for j in kept[2][b, i] if j >= 0} == some
            assert len(some) == min(4, cached + i + 1)
    np.testing.assert_array_equal(kept[2], also[2])
    assert kept[0].shape == (2, cached + new, 16) and kept[1].shape == (2, cached + new, 8)
    if new == 1:  # a layer that shares an indexer does the same with the choice of another one
        shared = DSA(replace(SPARSE, shared_index=True), HIDDEN, draw(), cached=cached)
        answer, after = run(shared, x, (latents, kept[2]))
        np.testing.assert_allclose(answer, y, **CLOSE)
        assert len(after) == 2 and not hasattr(shared, "index_q")


def test_dsa_that_chooses_everything_is_latent_attention() -> None:
    x, latents, keys = numbers(1, 2, 3, HIDDEN), numbers(2, 2, 5, 16), numbers(3, 2, 5, 8)
    everything = DSA(replace(SPARSE, top_k=8), HIDDEN, draw(), cached=5)
    plain = MLA(mla.MLA(3, 10, 12, 6, 4, 5), HIDDEN, draw(), cached=5)
    np.testing.assert_allclose(run(everything, x, (latents, keys))[0], run(plain, x, latents)[0], **CLOSE)


BLOCKS: dict[str, Any] = {
    "heads": 4, "kv_heads": 2, "key_width": 6, "value_width": 4, "index_width": 8, "block": 3, "top_blocks": 2,
}  # fmt: skip


def dense_msa(module: MSA, x: np.ndarray, kept: list[np.ndarray]) -> np.ndarray:
    """One sequence, from the definition: a block is as good as its best token, the own one is always chosen."""
    s = module.sparse
    q_, k_, v_, out, index_q, index_k = of(module, "q", "k", "v", "out", "index_q", "index_k")
    norm = rooted if s.qk_norm else lambda y: y
    keys, values = (list(np.moveaxis(c, 1, 0)) for c in kept[:2])
    index_keys, answers = list(kept[2]), []
    for i, token in enumerate(x):
        at, y = module.cached + i, np.zeros(HIDDEN)
        keys.append(turned(norm(np.einsum("h,hnd->nd", token, k_)), at))
        values.append(np.einsum("h,hnd->nd", token, v_))
        index_keys.append(turned(norm(token @ index_k), at))
        for head in range(s.heads):
            group = head // (s.heads // s.kv_heads)
            query = turned(norm(token @ index_q[:, group // (s.kv_heads // s.index_heads)]), at)
            scores = np.array([query @ key for key in index_keys])
            block = np.arange(at + 1) // s.block
            worth = [np.inf if b == at // s.block else scores[block == b].max() for b in range(at // s.block + 1)]
            seen = np.isin(block, np.argsort(worth)[-s.top_blocks :])
            q = turned(norm(token @ q_[:, head]), at)
            weights = masked_softmax(np.array([q @ k[group] for k in keys]) / np.sqrt(s.key_width), seen)
            y += weights @ np.array([v[group] for v in values]) @ out[head]
        answers.append(y)
    return np.array(answers)


@pytest.mark.parametrize(
    ("more", "cached", "new"),
    [({"index_heads": 2, "qk_norm": True}, 1, 7), ({"index_heads": 2}, 10, 1), ({"index_heads": 1}, 10, 1)],
    ids=str,
)
def test_msa_is_attention_to_blocks(more: dict[str, Any], cached: int, new: int) -> None:
    """A block of which two places are still to come; and a prompt of which the first tokens see one block."""
    shape = msa.MSA(**(BLOCKS | more))
    module, x = MSA(shape, HIDDEN, draw(), cached=cached), numbers(1, 2, new, HIDDEN)
    kept = numbers(2, 2, 2, cached, 6), numbers(3, 2, 2, cached, 4), numbers(4, 2, cached, 8)
    y, after = run(module, x, kept)
    for b in range(2):
        np.testing.assert_allclose(y[b], dense_msa(module, x[b], [part[b] for part in kept]), **CLOSE)
    assert [c.shape[-2] for c in after] == [cached + new] * 3


COMPRESSED: dict[str, Any] = {"heads": 4, "width": 16, "q_rank": 10, "window": 3, "out_groups": 2, "out_rank": 5}
KINDS = {
    "window": compressed.Compressed(**COMPRESSED),
    "one series": compressed.Compressed(**COMPRESSED, ratio=3),
    "two series, chosen": compressed.Compressed(
        **COMPRESSED, ratio=2, overlap=True, index_heads=8, index_width=8, top_k=2
    ),
}


def dense_entries(x: np.ndarray, made: np.ndarray, bias: np.ndarray, overlap: bool, channels: int) -> np.ndarray:
    """Entries of all finished windows of a sequence, channel by channel, rotated at each window's first token."""
    ratio, width = len(bias), bias.shape[1] // (2 if overlap else 1)
    values, gates = np.einsum("th,hmc->mtc", x, made)
    found = []
    for first in range(0, len(x) - ratio + 1, ratio):
        entry = np.zeros(width)
        for c in range(width):
            own = c + (width if overlap else 0)
            terms = [(values[first + j, own], gates[first + j, own] + bias[j, own]) for j in range(ratio)]
            if overlap and first:
                terms += [
                    (values[first - ratio + j, c], gates[first - ratio + j, c] + bias[j, c]) for j in range(ratio)
                ]
            entry[c] = softmax(np.array([g for _, g in terms])) @ np.array([v for v, _ in terms])
        found.append(last_turned(rooted(entry), channels, first))
    return np.array(found).reshape(-1, width)


def dense_compressed(module: Compressed, x: np.ndarray) -> np.ndarray:
    """A whole sequence from nothing: every token, every head, over the window's and the entries' own definitions."""
    s = module.shape
    q_down, q_, key, sink, out_down, out_up = of(module, "q_down", "q", "key", "sink", "out_down", "out_up")
    entries = np.zeros((0, s.width))
    if s.ratio:
        made, bias = of(module, "made", "bias")
        entries = dense_entries(x, made, bias, s.overlap, 2)
    plain = [last_turned(rooted(token @ key), 2, i) for i, token in enumerate(x)]
    answers = []
    for i, token in enumerate(x):
        low, seen = rooted(token @ q_down), entries[: (i + 1) // s.ratio] if s.ratio else entries
        if s.index_heads and len(seen):
            made, bias = of(module, "index_made", "index_bias")
            index = dense_entries(x, made, bias, s.overlap, 4)[: len(seen)]
            queries, weights = (
                np.einsum("r,rnd->nd", low, *of(module, "index_q")),
                token @ of(module, "index_weights")[0],
            )
            queries = last_turned(queries, 4, i)
            scores = weights @ np.maximum(queries @ index.T, 0.0)
            seen = seen[np.sort(np.argsort(scores)[-s.top_k :])]
        keys = np.concatenate([np.array(plain[max(0, i + 1 - s.window) : i + 1]), seen])
        ranks = np.zeros((s.out_groups, s.out_rank))
        for head in range(s.heads):
            q = last_turned(rooted(low @ q_[:, head]), 2, i)
            answer = softmax(np.append(keys @ q / np.sqrt(s.width), sink[head]))[:-1] @ keys
            ranks[head // (s.heads // s.out_groups)] += last_turned(answer, 2, -i) @ out_down[head]
        answers.append(np.einsum("gr,grh->h", ranks, out_up))
    return np.array(answers)


def nothing(s: compressed.Compressed) -> dict[str, Any]:
    """What is kept before the first token."""
    kept: dict[str, Any] = {"window": np.zeros((2, 0, s.width))}
    series = 2 if s.overlap else 1
    for name, windows, width in (("entries", "windows", s.width), ("index", "index_windows", s.index_width)):
        if s.ratio and width:
            empty = Windows(jnp.zeros((2, 0, 2, series * width)), jnp.zeros((2, 0, 2, width)))
            kept |= {name: np.zeros((2, 0, width)), windows: empty}
    return kept


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_attention_is_a_masked_softmax(kind: str) -> None:
    """A prompt at once, and in two passes cut inside a window."""
    s, x = KINDS[kind], numbers(1, 2, 7, HIDDEN)
    y, _ = run(Compressed(s, HIDDEN, draw(), cached=0), x, nothing(s))
    for b in range(2):
        np.testing.assert_allclose(y[b], dense_compressed(Compressed(s, HIDDEN, draw(), cached=0), x[b]), **CLOSE)
    if not s.ratio:
        return
    first, between = run(Compressed(s, HIDDEN, draw(), cached=0), x[:, :5], nothing(s))
    second, after = run(Compressed(s, HIDDEN, draw(), cached=5), x[:, 5:], between)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), y, **CLOSE)
    assert after["window"].shape[1] == s.window - 1
    assert after["entries"].shape[1] == 7 // s.ratio
