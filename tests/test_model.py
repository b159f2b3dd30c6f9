"""A model's structure: built from a table, cut into stages, counted."""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_counts import EXPECTED, load

from codesign.catalog.workloads import ModelFile
from codesign.errors import CodesignError
from codesign.layers.gqa import GQA
from codesign.layers.mlp import MLP
from codesign.model import MAX_COMPOSITIONS, WIDEST, Model, model_of, split, stage_table, stages

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def file(**changes: object) -> ModelFile:
    """A small model file."""
    base = {
        "name": "small",
        "title": "Small",
        "hidden": 8,
        "vocab": 100,
        "tied_embeddings": False,
        "blocks": {
            "full": {"kind": "gqa", "heads": 4, "kv_heads": 2, "key_width": 2, "value_width": 2},
            "dense": {"kind": "mlp", "inner": 16},
        },
        "layers": [{"repeat": 3, "group": [["full", "dense"]]}],
        "dtypes": dict.fromkeys(("dense", "attention", "embedding", "head", "kv"), "bf16"),
    }
    return ModelFile.model_validate(base | changes)


def stack(groups: list[int], kinds: int = 1) -> Model:
    """A model of groups with so many layers each; layer i is the attention of kind ``i mod kinds`` and an MLP."""
    blocks = tuple((f"full{i}", GQA(heads=i + 1, kv_heads=1, key_width=4, value_width=4)) for i in range(kinds))
    place = iter(range(sum(groups)))
    return Model(
        name="stack",
        hidden=8,
        vocab=16,
        tied=False,
        blocks=(*blocks, ("dense", MLP(16))),
        layers=tuple(tuple((next(place) % kinds, kinds) for _ in range(size)) for size in groups),
        dtypes=(),
    )


def test_counts_by_hand() -> None:
    # Attention 8 x (8 + 4 + 4) + 8 x 8 + norm 8, MLP 3 x 8 x 16 + norm 8, three layers; two ends 8 x 100, last norm 8.
    found = model_of(file()).counts()
    layer = 8 * 16 + 8 * 8 + 8 + 3 * 8 * 16 + 8
    assert found.total_parameters == 3 * layer + 2 * 800 + 8
    assert found.active_parameters == 3 * layer + 800 + 8
    assert found.weight_bytes == 2 * found.total_parameters
    assert found.kv_bytes_per_token == 3 * 2 * 4 * 2
    assert found.routed_parameters == found.window_bytes_per_sequence == found.state_bytes_per_sequence == 0


def test_tied_head_is_stored_once_and_multiplied_all_the_same() -> None:
    free, tied = model_of(file()).counts(), model_of(file(tied_embeddings=True)).counts()
    assert free.total_parameters - tied.total_parameters == 800
    assert free.active_parameters == tied.active_parameters


def test_dtype_override_moves_its_own_class_only() -> None:
    model = model_of(file())
    wide, narrow = model.counts(), model.counts({"attention": "fp8"})
    assert wide.weight_bytes - narrow.weight_bytes == wide.parameters["attention"]
    assert model.counts({"kv": "fp8"}).kv_bytes_per_token * 2 == wide.kv_bytes_per_token
    with pytest.raises(CodesignError, match="unknown dtype 'fp7'"):
        model.counts({"kv": "fp7"})


def test_model_is_static() -> None:
    a, b = load("kimi-k3"), load("kimi-k3")
    assert a == b
    assert hash(a) == hash(b)
    assert a != load("kimi-k2.5")


def test_kimi_k3_layers_in_order() -> None:
    model = load("kimi-k3")
    names = [name for name, _ in model.blocks]
    layers = [tuple(names[b] for b in layer) for group in model.layers for layer in group]
    attention = [1 + i for i, layer in enumerate(layers) if "mla" in layer]
    assert attention == [*range(4, 93, 4), 93]
    assert [i for i, layer in enumerate(layers) if "dense" in layer] == [0]
    assert dict(zip(names, model.block_counts(), strict=True)) == {"kda": 69, "mla": 24, "dense": 1, "moe": 92}


def test_mimo_full_layers_in_order() -> None:
    model = load("mimo-v2-flash")
    names = [name for name, _ in model.blocks]
    layers = [tuple(names[b] for b in layer) for group in model.layers for layer in group]
    assert [i for i, layer in enumerate(layers) if "full" in layer] == [0, 5, 11, 17, 23, 29, 35, 41, 47]


def test_accepted_length_never_falls() -> None:
    drafts = {
        "accepted_length": {"value": [1.8, 2.3, 2.2, 2.6], "kind": "measured", "source": "four runs"},
        "parameters": {"value": "1e6", "kind": "estimate", "source": "a guess"},
        "layers": 1,
    }
    found = model_of(file(drafts=drafts)).drafts
    assert found is not None
    assert found.accepted_length == (1.8, 2.3, 2.3, 2.6)
    assert found.active_parameters == found.parameters == 1e6
    assert found.passes(3) == 3
    block = model_of(file(drafts=drafts | {"method": "block"})).drafts
    assert block is not None
    assert [block.passes(d) for d in (0, 1, 3)] == [0, 1, 1]


@pytest.mark.parametrize("name", EXPECTED)
def test_drafts_gain_less_than_one_token_each(name: str) -> None:
    found = load(name).drafts
    if found is not None:
        gains = [b - a for a, b in pairwise((1.0, *found.accepted_length))]
        assert all(0 <= gain < 1 for gain in gains)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.data())
@settings(max_examples=150, deadline=None)
def test_split_is_the_most_even_of_all(weights: list[int], data: st.DataObject) -> None:
    """Against every way to cut the row: lightest heaviest part, then least sum of squares, then lightest tail."""
    parts = data.draw(st.integers(1, len(weights)))

    def loads(bounds: tuple[int, ...]) -> list[int]:
        return [sum(weights[a:b]) for a, b in pairwise((0, *bounds, len(weights)))]

    def rank(shares: list[int]) -> tuple:
        return max(shares), sum(x * x for x in shares), shares[::-1]

    sizes = split(weights, parts)
    assert len(sizes) == parts
    assert min(sizes) >= 1
    assert sum(sizes) == len(weights)
    bounds = tuple(int(b) for b in np.cumsum(sizes)[:-1])
    best = min((loads(cut) for cut in combinations(range(1, len(weights)), parts - 1)), key=rank)
    assert loads(bounds) == best


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 3), st.data())
@settings(max_examples=150, deadline=None)
def test_stages_add_up_to_the_model(groups: list[int], kinds: int, data: st.DataObject) -> None:
    model = stack(groups, kinds)
    pp = data.draw(st.integers(1, min(16, model.depth)))
    sizes = [1] * model.depth if len(groups) < pp else groups
    bounds = (0, *np.cumsum(np.array(split(sizes, pp))))
    bounds = [sum(sizes[:b]) for b in bounds]
    runs = [tuple(Counter(i % kinds for i in range(a, b)).items()) for a, b in pairwise(bounds)]
    distinct = len({tuple(sorted(run)) for run in runs[:-1]}) + 1  # the last carries the head
    if distinct > MAX_COMPOSITIONS:
        with pytest.raises(CodesignError, match=f"have {distinct} different compositions"):
            stages(model, pp)
        return
    found = stages(model, pp)
    blocks = len(model.blocks)
    assert found.table.shape == (MAX_COMPOSITIONS, blocks + 1)
    assert found.multiplicity.shape == (MAX_COMPOSITIONS,)
    assert tuple((found.multiplicity @ found.table)[:blocks]) == model.block_counts()
    assert found.multiplicity.sum() == pp
    assert found.multiplicity @ found.table[:, -1] == 1
    assert sum(found.depths) == model.depth
    assert len(found.depths) == pp
    assert int((found.multiplicity > 0).sum()) == distinct
    assert len({tuple(row) for row in found.table[:distinct]}) == distinct
    assert {tuple(row) for row in found.table} == {tuple(row) for row in found.table[:distinct]}
    # The MLP runs in every layer, so its column holds the depths of the stages.
    depths = np.repeat(found.table[:, blocks - 1], found.multiplicity.astype(int))
    assert sorted(depths) == sorted(found.depths)
    assert found.table[0, blocks - 1] == found.depths[0]
    ends = set(np.cumsum(found.depths))
    if pp <= len(groups):
        assert ends <= set(np.cumsum(groups))
    else:
        assert max(found.depths) - min(found.depths) <= 1


@pytest.mark.parametrize("name", EXPECTED)
def test_catalog_models_cut_at_every_depth(name: str) -> None:
    model = load(name)
    for pp in range(1, 17):
        found = stages(model, pp)
        assert tuple((found.multiplicity @ found.table)[:-1]) == model.block_counts()
        assert found.depths[-1] <= max(found.depths)
        # Whatever the blocks and the head cost, the fullest stage is among those that a mapping carries.
        costs = np.random.default_rng(pp).exponential(size=(found.table.shape[1], 50))
        every = found.table[found.multiplicity > 0]
        kept = stage_table(model, pp)
        assert kept.shape == (WIDEST, found.table.shape[1])
        np.testing.assert_allclose((kept @ costs).max(axis=0), (every @ costs).max(axis=0), rtol=1e-15)
        np.testing.assert_array_equal(kept[0], found.table[0])


def test_stages_by_hand() -> None:
    # 23 groups of 4 layers, the last of 5: four stages of six, six, six and five groups.
    found = stages(load("kimi-k3"), 4)
    assert found.depths == (24, 24, 24, 21)
    names = [name for name, _ in load("kimi-k3").blocks]
    rows = [dict(zip([*names, "head"], row, strict=True)) for row in found.table[:3]]
    assert rows[0] == {"kda": 18, "mla": 6, "dense": 1, "moe": 23, "head": 0}
    assert rows[1] == {"kda": 18, "mla": 6, "dense": 0, "moe": 24, "head": 0}
    assert rows[2] == {"kda": 15, "mla": 6, "dense": 0, "moe": 21, "head": 1}
    assert tuple(found.multiplicity) == (1, 2, 1, 0, 0, 0)
    # One layer a group: 61 layers in four stages.
    assert stages(load("deepseek-v3"), 4).depths == (16, 15, 15, 15)


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(CodesignError, match="cannot be cut into 4 stages"):
        stages(model_of(file()), 4)
    with pytest.raises(CodesignError, match="pp"):
        stages(model_of(file()), 0)


def test_stage_table_cannot_be_changed_by_its_reader() -> None:
    with pytest.raises(ValueError, match="read-only"):
        stage_table(load("kimi-k3"), 2)[0, 0] = 1.0
