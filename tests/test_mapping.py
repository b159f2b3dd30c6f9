"""Mappings: the array against a brute-force list of legal ones, and reasons where there are none."""

from itertools import product

import jax
import numpy as np
import pytest
from cases import case

from codesign.errors import CodesignError
from codesign.mapping import (
    EXPERT_TENSOR_WAYS,
    INSTANCES,
    PIPELINES,
    TENSOR_WAYS,
    Mapping,
    enumerate_mappings,
    legal,
    pad,
    stack,
    take,
    tensor_limit,
)
from codesign.model import Model


def model(name: str) -> Model:
    return case("h200", name).model


def degrees(found: Mapping) -> set[tuple[int, ...]]:
    """The mappings as a set; there are no doubles."""
    columns = (found.pp, found.tp, found.dp, found.ep, found.context_split, found.microbatches)
    rows = [tuple(int(x) for x in row) for row in np.stack([np.asarray(c) for c in columns], axis=1)]
    assert len(set(rows)) == len(rows)
    return set(rows)


#: Layers, heads, KV heads and experts from the published configurations.
STRUCTURE = {
    "kimi-k3": (93, 96, 0, 896), "deepseek-v3": (61, 128, 0, 256), "gpt-oss-120b": (36, 64, 8, 128),
    "llama3.1-70b": (80, 64, 8, 1), "minimax-m2": (62, 48, 8, 256),
}  # fmt: skip


@pytest.mark.parametrize("most", [1, 8, 24, 72])
@pytest.mark.parametrize("name", STRUCTURE)
def test_against_brute_force(name: str, most: int) -> None:
    """Every combination of numbers up to the machine, kept where the rules of the design hold."""
    layers, heads, kv, experts = STRUCTURE[name]
    want = set()
    for pp, tp, dp in product(range(1, most + 1), repeat=3):
        if pp * tp * dp > most or pp not in PIPELINES or tp not in TENSOR_WAYS or dp not in INSTANCES:
            continue
        if pp > layers or heads % tp or (kv and kv % tp and tp % kv):
            continue
        for ep in range(1, tp * dp + 1):
            sliced = tp * dp // ep
            if (tp * dp) % ep or ep > experts or (experts > 1 and sliced not in EXPERT_TENSOR_WAYS):
                continue
            want |= {(pp, tp, dp, ep, split, pp) for split in ((0, 1) if tp > 1 else (0,))}
    assert degrees(enumerate_mappings(model(name), most)) == want


@pytest.mark.parametrize("name", STRUCTURE)
def test_all_are_legal_and_well_formed(name: str) -> None:
    m = model(name)
    found = enumerate_mappings(m, 72, max_domain_tp=8)
    assert np.max(found.tp) <= 8
    for pp, tp, dp, ep, context, micro in degrees(found):
        assert legal(m, pp, tp, dp, ep) is None
        assert pp * tp * dp <= 72
        assert tp * dp % ep == 0
        assert micro == pp
        assert context in ((0, 1) if tp > 1 else (0,))
    np.testing.assert_array_equal(np.asarray(found.chips), found.pp * found.tp * found.dp)
    # The fullest of the distinct stages is at least an even share, and one of them has the head.
    layers = m.block_counts()
    stages = np.asarray(found.stages)
    assert np.all(stages[:, :, -1].max(axis=1) == 1)
    assert np.all(stages[:, :, :-1].max(axis=1) >= np.array(layers) / np.asarray(found.pp)[:, None] - 1e-9)
    alone = stages[np.asarray(found.pp) == 1]
    assert np.all(alone == np.array([*layers, 1]))


def test_what_is_given_is_kept() -> None:
    k3 = model("kimi-k3")
    assert degrees(enumerate_mappings(k3, 72, pp=3, tp=6, dp=4, ep=8, attention_split="heads", microbatches=5)) == {
        (3, 6, 4, 8, 0, 5)
    }
    assert all(d[1] == 3 for d in degrees(enumerate_mappings(k3, 72, tp=3)))
    assert all(d[0] * d[1] * d[2] == 40 for d in degrees(enumerate_mappings(k3, 72, chips=40)))
    assert all(d[4] == 1 for d in degrees(enumerate_mappings(k3, 72, tp=8, attention_split="context")))
    # A TP that was asked for may leave the domain.
    assert degrees(enumerate_mappings(k3, 64, tp=32, dp=1, pp=1, ep=32, max_domain_tp=8))
    # 7 instances are no entry of the table, but 7 chips have no other mapping.
    assert {d[:3] for d in degrees(enumerate_mappings(k3, 72, chips=7))} == {(1, 1, 7)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tp": 5}, "tp 5 does not divide the model's 96 heads"),
        ({"pp": 94}, "pp 94 exceeds the model's 93 layers"),
        ({"ep": 897, "chips": 72}, "ep 897 exceeds the model's 896 experts"),
        ({"ep": 7, "tp": 8, "dp": 4}, "ep 7 does not divide tp x dp = 32"),
        ({"chips": 97}, "pp x tp x dp = 97 chips, the machine offers 96"),
        ({"pp": 2, "tp": 8, "dp": 8}, "pp x tp x dp = 128 chips, the machine offers 96"),
        ({"pp": 2, "tp": 8, "dp": 2, "chips": 16}, "pp x tp x dp = 32 is not the 16 chips asked for"),
        ({"pp": 2, "tp": 8, "chips": 24}, "no pp x tp x dp makes 24 chips"),
    ],
)  # fmt: skip
def test_impossible_mappings_say_why(given: dict[str, int], words: str) -> None:
    with pytest.raises(CodesignError) as caught:
        enumerate_mappings(model("kimi-k3"), 96, **given)
    assert caught.value.problem == words
    assert caught.value.key == "mapping"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["chips", "pp", "tp", "dp", "ep", "microbatches"])
@pytest.mark.parametrize("value", [0, -1])
def test_degrees_below_one_are_refused(name: str, value: int) -> None:
    with pytest.raises(CodesignError, match=f"--{name}: {name} {value} .*at least 1"):
        enumerate_mappings(model("kimi-k3"), 72, **({"chips": 8} | {name: value}))


def test_other_refusals() -> None:
    with pytest.raises(CodesignError, match="unknown split 'rings'"):
        enumerate_mappings(model("kimi-k3"), 72, attention_split="rings")
    # Three ways divide 48 query heads but not 8 KV heads.
    with pytest.raises(CodesignError, match="tp 3 neither divides the model's 8 KV heads nor is a multiple"):
        enumerate_mappings(model("minimax-m2"), 72, tp=3)
    # Six stages of a stack whose groups are all alike have no more than three compositions; none is refused for that.
    assert legal(model("llama3.1-70b"), 6, 1, 1, 1) is None
    assert legal(model("llama3.1-70b"), 1, 1, 1, 2) == "ep 2 exceeds the model's 1 experts"
    assert legal(model("llama3.1-70b"), 0, 1, 1, 1) == "every degree is at least 1"


def test_heads_limit_tp() -> None:
    assert {name: tensor_limit(model(name)) for name in STRUCTURE} == {n: s[1] for n, s in STRUCTURE.items()}


def test_stacks_are_padded_and_taken_apart() -> None:
    rows: list[tuple[float, ...]] = [(1, 8, 9, 72, 0, 1), (4, 2, 4, 8, 1, 6)]
    stacked = stack(model("kimi-k3"), rows)
    second = take(stacked, 1)
    assert (second.pp, second.tp, second.dp, second.ep, second.context_split, second.microbatches) == rows[1]
    assert second.chips == 32
    wide = pad(stacked, 5)
    assert {len(x) for x in jax.tree.leaves(wide)} == {5}
    for a, b in zip(jax.tree.leaves(take(wide, 4)), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert list(np.asarray(pad(stacked, 2).tp)) == [8, 2]
