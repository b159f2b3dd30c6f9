"""Bytes in a chip's memory, by hand for two models, and how they change with the mapping."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import case, load, machine, mapping

from codesign.evaluation.case import Case
from codesign.layers.gqa import GQA
from codesign.layers.mlp import MLP
from codesign.model import Model
from codesign.objective.timing import step_of
from codesign.precision import Precision
from codesign.residency import Residency, batch_that_fits, residency


def found(of: Case, where: Any, what: Any) -> Residency:
    return residency(of.model, step_of(of.machine, of.precision, where, what), where)


def weights(name: str, arch: str = "gb200-nvl72", **degrees: Any) -> float:
    c = case(arch, name)
    return float(found(c, mapping(c.model, **degrees), load()).weights)


def test_llama_on_tp_8_by_hand() -> None:
    c = case("b200", "llama3.1-70b")
    r = found(c, mapping(c.model, tp=8), load(100.0, 131072.0))
    layer = 8192 * (64 * 128 + 2 * 8 * 128 + 64 * 128) + 3 * 8192 * 28672
    norms = 2 * 8192
    ends = 2 * 128256 * 8192
    assert float(r.weights) == pytest.approx(2 * (80 * (layer / 8 + norms) + ends / 8), rel=1e-12)
    # 163,840 bytes a token in FP8: 320 KiB in BF16 halved; one KV head a chip.
    assert float(r.kv) == pytest.approx(100 * (131072 + 1) * 163840 / 8, rel=1e-12)
    assert float(r.state) == 0.0
    assert float(r.buffer) == pytest.approx((131072 + 1) * 163840 / 8, rel=1e-12)
    assert float(r.slack) == pytest.approx(0.05 * 180e9)
    assert float(r.capacity) == 180e9


def kimi_k3(*, kda: int, mla: int, dense: int, mixtures: int, tables: int, tp: int, experts: int) -> float:
    """Bytes of so many layers of Kimi K3 on one of ``tp`` chips that keeps so many whole experts of each mixture."""
    h, heads = 7168, 96 * 128
    linear = h * 4 * heads + 128 * heads + 96 * h + 4 * 3 * heads + heads * h  # q, k, v, gate, decay, beta, taps, out
    latent = 1536 * 96 * 192 + 512 * 96 * 256 + 2 * h * heads  # queries, keys and values, gate and out
    split = kda * linear + mla * latent + dense * 3 * h * 33792 + mixtures * 3 * h * 6144 + tables * 163840 * h
    copied = kda * h * 128 + mla * h * (1536 + 512 + 64) + mixtures * (h * 896 + 2 * h * 3584)
    return mixtures * experts * 3 * 3584 * 3072 * 4.25 / 8 + 2 * (split / tp + copied)


def test_kimi_k3_by_hand() -> None:
    # 72 chips: nine instances of TP 8, EP 72.  The fullest rank keeps 13 of 896 experts.
    c = case("gb200-nvl72", "kimi-k3")
    r = found(c, mapping(c.model, tp=8, dp=9, ep=72), load(88.0, 131072.0))
    whole = kimi_k3(kda=69, mla=24, dense=1, mixtures=92, tables=2, tp=8, experts=13)
    assert float(r.weights) == pytest.approx(whole, rel=1e-3)  # norms and biases besides
    # The latent cache has one head: whole on every chip.  States are divided.
    assert float(r.kv) == pytest.approx(88 * 131073 * 13824, rel=1e-12)
    assert float(r.state) == pytest.approx(88 * 449_372_160 / 8, rel=1e-12)
    by_context = found(c, mapping(c.model, tp=8, dp=9, ep=72, context=True), load(88.0, 131072.0))
    assert float(by_context.kv) == pytest.approx(88 * 131073 * 13824 / 8, rel=1e-12)
    assert float(by_context.weights) == float(r.weights)


def test_weights_of_all_chips_are_the_model() -> None:
    # Everything of Llama is split over TP 8 (it has eight KV heads) but 160 norms of 8,192, which have seven copies.
    c = case("gb200-nvl72", "llama3.1-70b")
    copies = 7 * 160 * 8192 * 2
    assert 8 * weights("llama3.1-70b", tp=8) - copies == pytest.approx(c.model.counts().weight_bytes, rel=1e-6)
    assert weights("llama3.1-70b") == pytest.approx(c.model.counts().weight_bytes, rel=1e-6)
    # DeepSeek V3: the experts, 97.4 % of it, are divided over EP and by tensor alike.
    counts = case("gb200-nvl72", "deepseek-v3").model.counts()
    routed = counts.routed_parameters * (1 + 4 / 16384)
    rest = weights("deepseek-v3", dp=8, ep=8) - routed / 8
    assert rest == pytest.approx(counts.weight_bytes - routed, rel=1e-5)
    for ep in (4, 2, 1):
        assert weights("deepseek-v3", dp=8, ep=ep) == pytest.approx(weights("deepseek-v3", dp=8, ep=8), rel=1e-12)


@pytest.mark.parametrize(("ep", "most"), [(72, 13), (64, 14), (448, 2), (896, 1), (5, 180)])
def test_fullest_rank_keeps_whole_experts(ep: int, most: int) -> None:
    one = 92 * 33_030_144 * 4.25 / 8
    assert weights("kimi-k3", dp=ep, ep=ep) - weights("kimi-k3", dp=896, ep=896) == pytest.approx((most - 1) * one)


def test_a_pipeline_divides_weights_but_not_the_cache_in_flight() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    one, four = (found(c, mapping(c.model, pp=pp, tp=4, dp=4, ep=16), load(10.0, 65536.0)) for pp in (1, 4))
    # 24 latent layers: six in each of four stages, for four micro-batches.
    assert float(four.kv) == pytest.approx(float(one.kv), rel=1e-12)
    # 18 of 69 recurrent layers in the fullest stage.
    assert float(four.state) == pytest.approx(float(one.state) * 18 * 4 / 69, rel=1e-12)
    # The fullest stages have 18 recurrent and six latent layers and 24 mixtures, no dense layer and no table.
    whole = kimi_k3(kda=18, mla=6, dense=0, mixtures=24, tables=0, tp=4, experts=56)
    assert float(four.weights) == pytest.approx(whole, rel=1e-3)
    half = found(c, mapping(c.model, pp=4, tp=4, dp=4, ep=16, micro=2), load(10.0, 65536.0))
    assert float(half.kv) == pytest.approx(float(one.kv) / 2, rel=1e-12)


def test_first_and_last_stage_keep_the_ends() -> None:
    # Llama on two stages: 40 layers each and one table of 128,256 x 8,192 on either end.
    layer = 8192 * (64 * 128 + 2 * 8 * 128 + 64 * 128) + 3 * 8192 * 28672 + 2 * 8192
    assert weights("llama3.1-70b", pp=2) == pytest.approx(2 * (40 * layer + 128256 * 8192))
    # Ten stages of eight layers: an end on the first and on the last of them.
    assert weights("llama3.1-70b", pp=10) == pytest.approx(2 * (8 * layer + 128256 * 8192))
    # Three stages of 27, 27 and 26 layers: the first with its table is the fullest.
    assert weights("llama3.1-70b", pp=3) == pytest.approx(2 * (27 * layer + 128256 * 8192))


def test_a_tied_head_is_kept_once_where_both_ends_share_a_chip() -> None:
    blocks = (("full", GQA(heads=8, kv_heads=8, key_width=64, value_width=64)), ("dense", MLP(1024)))
    layer = 512 * 512 * 4 + 3 * 512 * 1024 + 2 * 512
    for tied, pp, tables in ((True, 1, 1), (False, 1, 2), (True, 2, 1), (False, 2, 1)):
        model = Model("small", 512, 10_000, tied, blocks, (((0, 1),), ((0, 1),)), ())
        of = case("b200", "llama3.1-70b")
        r = found(replace(of, model=model, machine=machine()), mapping(model, pp=pp), load())
        assert float(r.weights) == pytest.approx(2 * (layer * 2 / pp + tables * 512 * 10_000))


def test_drafting_keeps_a_state_for_each_position_and_the_drafter() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    where = mapping(c.model, tp=8, dp=9, ep=72)
    plain, drafted = (found(c, where, load(16.0, 8192.0, drafts=d)) for d in (0.0, 3.0))
    assert float(drafted.state) == pytest.approx(4 * float(plain.state))
    assert float(drafted.weights) - float(plain.weights) == pytest.approx(2.7e9 * 2 / 8)
    assert float(drafted.kv) / float(plain.kv) == pytest.approx((8192 + 4) / (8192 + 1))


def test_windows_are_bounded() -> None:
    c = case("h200", "gpt-oss-120b")
    near, far = (found(c, mapping(c.model), load(1.0, context)) for context in (1000.0, 2000.0))
    # 18 full layers grow by 18 x 1,024 bytes a token; 18 windows keep 128 tokens.
    assert float(far.kv) - float(near.kv) == pytest.approx(1000 * 18 * 1024)
    assert float(near.kv) == pytest.approx(1001 * 18 * 1024 + 18 * 128 * 1024)


def test_precisions_move_their_own_part() -> None:
    c, k = case("gb200-nvl72", "kimi-k3"), mapping(case("gb200-nvl72", "kimi-k3").model)
    names = dict(c.model.dtypes) | dict.fromkeys(("shared", "dense", "attention", "latent", "head"), "fp8")
    narrow = found(replace(c, precision=Precision.from_names(names)), k, load())
    wide = found(c, k, load())
    # 56.7 B parameters outside the experts, less 1.2 B of embedding and 0.6 B of routers, give a byte each.
    saved = float(wide.weights) - float(narrow.weights)
    assert saved == pytest.approx(56.744e9 - 163840 * 7168 - 92 * 896 * 7168, rel=1e-3)
    assert float(wide.kv) == float(narrow.kv)


@pytest.mark.parametrize("name", ["kimi-k3", "llama3.1-70b", "gpt-oss-120b"])
def test_the_batch_that_fits_fills_the_memory(name: str) -> None:
    c = case("gb200-nvl72", name)
    for where in (mapping(c.model, tp=8, dp=4), mapping(c.model, pp=4, tp=8, context=True)):
        batch = float(batch_that_fits(found(c, where, load(1.0, 50_000.0))))
        assert batch > 1
        full = found(c, where, load(batch, 50_000.0))
        assert float(full.total) == pytest.approx(float(full.capacity), rel=1e-12)
        assert float(full.fixed + batch * full.per_sequence) == pytest.approx(float(full.total), rel=1e-12)
        parts = [float(getattr(full, x)) for x in ("weights", "kv", "state", "buffer", "working", "slack")]
        assert np.min(parts) >= 0.0
        assert sum(parts) == pytest.approx(float(full.total))


def test_what_does_not_fit_has_no_batch() -> None:
    # 1,560 GB of Kimi K3 on one chip of 186 GB.
    c = case("gb200-nvl72", "kimi-k3")
    r = found(c, mapping(c.model), load(1.0, 8192.0))
    assert float(batch_that_fits(r)) < 0
    assert float(r.weights) == pytest.approx(1559.9e9, rel=1e-3)
