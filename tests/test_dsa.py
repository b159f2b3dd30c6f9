"""Sparse latent attention by hand arithmetic on DeepSeek V3.2 and GLM-5.2."""

from dataclasses import replace

import numpy as np
import pytest
from cases import case, decoded, machine, mapping, step
from cases import load as serve
from kinds import BF16, parameters, per_token, rows
from test_counts import load

from codesign.evaluation.case import dtypes_of
from codesign.layers.base import Indexed
from codesign.layers.dsa import DSA
from codesign.layers.mla import MLA

LAYER = DSA(128, 1536, 512, 128, 64, 128, index_heads=64, index_width=128, top_k=2048)
DENSE = MLA(128, 1536, 512, 128, 64, 128)
H = 7168


def test_indexer_adds_its_projections() -> None:
    more = 1536 * 64 * 128 + H * 128 + H * 64 + 2 * 128  # queries, key, a weight per head, the key's layer norm
    assert parameters(LAYER, H) - parameters(DENSE, H) == more
    # 61 of them are what V3.2 (671.878e9) has more than V3 (671.026e9).
    assert 61 * more == pytest.approx(0.852e9, abs=1e6)


def test_cache() -> None:
    assert isinstance(LAYER, Indexed)
    assert (LAYER.cache_elements(), LAYER.index_elements()) == (576.0, 128.0)
    assert not isinstance(DENSE, Indexed)


def test_indexer_scores_every_token_and_the_scan_stops_growing() -> None:
    assert 61 * per_token(LAYER, H, "index") == 999_424
    assert per_token(LAYER, H, "scan") == 0
    assert per_token(LAYER, H, "scan", "memory") == pytest.approx(0, abs=1e-9)
    found = rows(LAYER, H, cached=100_000.0)
    assert 61 * found["scan"].tensor / 2048 == 16_990_208
    assert per_token(LAYER, H, "index", "memory") == 128 * 2 + 8  # a key; one score out and back


@pytest.mark.parametrize("split", [{}, {"tp": 4}, {"tp": 4, "context": True}])
def test_short_contexts_are_dense(split: dict) -> None:
    sparse, dense = (rows(layer, H, cached=500.0, **split) for layer in (LAYER, DENSE))
    for lane in ("tensor", "memory", "vector"):
        assert getattr(sparse["scan"], lane) == pytest.approx(getattr(dense["scan"], lane))
    # The other rows are those of the dense layer, at any length.
    assert {name: row for name, row in sparse.items() if name not in ("scan", "index", "index_qk", "index_merge")} == {
        name: row for name, row in dense.items() if name != "scan"
    }


def test_a_block_reads_the_union_of_its_choices() -> None:
    one, five = (rows(LAYER, H, new=q, cached=100_000.0)["scan"] for q in (1.0, 5.0))
    queries = 128 * (576 + 512) * 2
    read = [(row.memory - q * (queries + 576 * 2)) / (576 * 2) for row, q in ((one, 1), (five, 5))]
    assert read[0] == pytest.approx(2048)
    assert 4 * 2048 < read[1] < 5 * 2048
    assert five.tensor == pytest.approx(5 * one.tensor)


def test_a_shared_choice_costs_nothing() -> None:
    shared = replace(LAYER, shared_index=True)
    assert parameters(shared, H) == parameters(DENSE, H)
    assert shared.index_elements() == 0
    own, its = rows(LAYER, H, cached=9000.0), rows(shared, H, cached=9000.0)
    assert set(own) - set(its) == {"index_qk", "index", "index_merge"}
    assert its["scan"] == own["scan"]


def test_context_split_divides_keys_and_gathers_candidates() -> None:
    heads, context = (rows(LAYER, H, cached=80_000.0, tp=8, context=flag) for flag in (False, True))
    assert heads["index"].tensor == 8 * context["index"].tensor
    assert heads["index_merge"].scale_up == 0
    # 2,048 candidates of 8 bytes from each of 8 chips: a chip sends its own to the 7 others.
    assert context["index_merge"].scale_up == 7 * 2048 * 8
    # A range of 500 tokens has no more than 500 candidates.
    assert rows(LAYER, H, cached=3999.0, tp=8, context=True)["index_merge"].scale_up == 7 * 500 * 8
    assert heads["scan"].tensor == context["scan"].tensor
    # By heads every chip reads the chosen latents for its 16 heads, by context its share of them for all 128.
    assert heads["scan"].memory == pytest.approx(2049 * 576 * 2 + 16 * (576 + 512) * 2)
    assert context["scan"].memory == pytest.approx(2049 * 576 * 2 / 8 + 128 * (576 + 512) * 2)
    for flag, share in ((False, 1.0), (True, 1 / 8)):
        assert float(np.asarray(LAYER.index_share(step(machine(), BF16, tp=8, context=flag)))) == share


def test_index_keys_go_along_with_the_cache_unless_told_otherwise() -> None:
    model = load("deepseek-v3.2")
    assert model.counts({"kv": "bf16"}).kv_bytes_per_token == 61 * 704 * 2
    assert model.counts({"kv": "bf16", "index": "fp8"}).kv_bytes_per_token == 61 * (576 * 2 + 128)
    assert dtypes_of(model, kv_dtype="bf16")["index"] == "bf16"
    # A model that stores them apart keeps them so.
    apart = replace(model, dtypes=tuple((dict(model.dtypes) | {"index": "bf16"}).items()))
    assert apart.counts({"kv": "fp8"}).kv_bytes_per_token == 61 * (576 + 128 * 2)


def test_index_keys_lie_in_memory() -> None:
    c = case("gb200-nvl72", "deepseek-v3.2")
    for tp, context, copies in ((1, False, 1.0), (8, False, 1.0), (8, True, 1 / 8)):
        found = decoded(c, mapping(c.model, tp=tp, ep=tp, context=context), serve(2.0, 9999.0)).memory
        assert float(found.kv) == pytest.approx(2 * 10_000 * 61 * 704 * copies)
