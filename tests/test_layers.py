"""Work of the layer kinds: hand arithmetic on published structures, brute force over tokens, Monte Carlo of routing."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from cases import case, load, machine, mapping, step, total, work
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.evaluation.case import Case
from codesign.layers.gqa import GQA
from codesign.layers.moe import MoE
from codesign.mapping import Mapping
from codesign.precision import MOVING_CLASSES, Precision


def part(name: str, **flags: Any) -> Case:
    return case("gb200-nvl72", name, **flags)


def block(name: str, kind: str) -> Any:
    return dict(part(name).model.blocks)[kind]


@lru_cache
def precision(name: str) -> Precision:
    return part(name).precision


def weights_only(of: Case) -> Case:
    """The case with everything but its weights taken to need no bytes, so that memory rows hold weights alone."""
    bytes_ = of.precision.bytes | dict.fromkeys(MOVING_CLASSES, 0.0)
    return replace(of, precision=Precision(bytes=bytes_, math=of.precision.math))


def slope(of: Case, where: Mapping, lane: str, row: str = "", batch: float = 1.0) -> float:
    """Growth of a lane with every cached token, over all layers."""
    near, far = (work(of, where, load(batch, context)) for context in (4096.0, 6144.0))
    return sum(far[name][lane] - near[name][lane] for name in far if name.endswith(row)) / 2048.0


# --- one token on one chip, against counts made from the published configurations


@pytest.mark.parametrize(
    ("name", "flop"),
    [
        ("kimi-k3", 5_013_504), ("deepseek-v3", 16_990_208), ("kimi-k2.5", 8_495_104), ("gpt-oss-120b", 294_912),
        ("llama3.1-70b", 2_621_440),
    ],
)  # fmt: skip
def test_scan_flop_per_cached_token(name: str, flop: int) -> None:
    c = part(name)
    assert slope(c, mapping(c.model), "tensor", "scan") == flop
    assert slope(c, mapping(c.model), "tensor") == flop


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("kimi-k3", 27648),
        ("deepseek-v3", 70272),
        ("kimi-k2.5", 70272),
        ("gpt-oss-120b", 36864),
        ("llama3.1-70b", 327680),
    ],
)
def test_cache_read_per_cached_token(name: str, size: int) -> None:
    for dtype, share in (("bf16", 1.0), ("fp8", 0.5)):
        c = part(name, kv_dtype=dtype)
        assert slope(c, mapping(c.model), "memory", batch=3.0) == pytest.approx(3.0 * size * share, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "gflop"),
    [
        ("kimi-k3", 208.38),
        ("deepseek-v3", 73.25),
        ("kimi-k2.5", 63.37),
        ("gpt-oss-120b", 10.27),
        ("llama3.1-70b", 139.01),
    ],
)
def test_matrix_flop_per_token(name: str, gflop: float) -> None:
    c = part(name)
    rows = work(c, mapping(c.model), load())
    # The published counts are rounded to 0.01 and count vectors (norms) as multiplied too: 1e-4 of the whole.
    assert total(rows, "tensor", ".scan", ".state") / 1e9 == pytest.approx(gflop, rel=2e-4, abs=0.006)


def test_state_flop_of_kimi_k3() -> None:
    # 69 layers of 96 heads of 128 x 128: four matrix and three elementwise operations per element, 759,693,312 in all.
    c = part("kimi-k3")
    state = work(c, mapping(c.model), load())["kda.state"]
    cells = 69 * 96 * 128 * 128
    assert 7 * cells == 759_693_312
    assert state["tensor"] == 4 * cells
    # Beside the update stand decay, normalisation and the convolutions of 36,864 channels with 4 taps.
    beside = state["vector"] - 3 * cells
    assert 69 * 36864 * 2 * 3 <= beside <= 69 * 36864 * 2 * 8


def test_state_bytes_of_kimi_k3() -> None:
    # FP32 state and three columns of BF16 convolution state: 449,372,160 bytes a sequence, read and written once each.
    c = part("kimi-k3")
    one, two = (work(c, mapping(c.model), load(batch))["kda.state"]["memory"] for batch in (1.0, 2.0))
    activations = 69 * (3 * 12288 + 2 * 12288) * 2
    assert two - one == pytest.approx(2 * 449_372_160 + activations)
    # Each draft position writes a state of its own.
    drafted = work(c, mapping(c.model), load(1.0, drafts=3.0))["kda.state"]["memory"]
    assert drafted - one == pytest.approx(3 * 449_372_160 + 3 * activations)


def test_experts_read_by_one_token_of_kimi_k3() -> None:
    c = weights_only(part("kimi-k3"))
    rows = work(c, mapping(c.model), load())
    # 16 experts of 3 x 3584 x 3072 weights at 4.25 bits in 92 layers: 25.8 GB.
    assert rows["moe.experts"]["memory"] == pytest.approx(16 * 92 * 3 * 3584 * 3072 * 4.25 / 8, rel=1e-12)
    assert rows["moe.experts"]["memory"] / 1e9 == pytest.approx(25.8, abs=0.05)


@pytest.mark.parametrize(
    ("tokens", "distinct"), [(1, 16.0), (2, 31.7), (4, 62.3), (8, 120.3), (16, 224.4), (64, 613.2), (256, 887.1)]
)
def test_distinct_experts_of_kimi_k3(tokens: int, distinct: float) -> None:
    c = weights_only(part("kimi-k3"))
    read = work(c, mapping(c.model), load(float(tokens)))["moe.experts"]["memory"]
    assert read / (92 * 33_030_144 * 4.25 / 8) == pytest.approx(distinct, abs=0.06)


@pytest.mark.parametrize("name", ["kimi-k3", "deepseek-v3", "gpt-oss-120b", "llama3.1-70b", "mixtral-8x7b"])
def test_weights_read_by_a_large_batch_are_the_model(name: str) -> None:
    """Every expert is hit: all weights are read once but for the embedding, of which a few rows are, and the norms."""
    c = weights_only(part(name))
    rows = work(c, mapping(c.model), load(4096.0))
    counts = c.model.counts()
    size = c.precision.bytes["embedding"]
    want = counts.weight_bytes - counts.parameters["embedding"] * size + 4096 * c.model.hidden * size
    assert total(rows, "memory") == pytest.approx(want, rel=2e-4)


# --- how TP splits a layer


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_cache_over_tp(tp: int, context: bool) -> None:
    """Bytes summed over the ranks of a TP group are the whole cache, but where its heads no longer split."""
    llama, k3 = part("llama3.1-70b"), part("kimi-k3")
    copies = 1 if context or tp <= 8 else tp / 8  # 8 KV heads
    summed = tp * slope(llama, mapping(llama.model, tp=tp, context=context), "memory")
    assert summed == pytest.approx(copies * 163_840, rel=1e-9)
    copies = 1 if context else tp  # one latent head
    summed = tp * slope(k3, mapping(k3.model, tp=tp, context=context), "memory")
    assert summed == pytest.approx(copies * 13_824, rel=1e-9)
    # Arithmetic is divided either way.
    for c, flop in ((llama, 2_621_440), (k3, 5_013_504)):
        assert tp * slope(c, mapping(c.model, tp=tp, context=context), "tensor") == pytest.approx(flop, rel=1e-12)


def test_weights_over_tp_are_the_model_and_its_copies() -> None:
    k3, llama = weights_only(part("kimi-k3")), weights_only(part("llama3.1-70b"))
    # Down-projections of MLA to 1536 + 576 and of KDA's decay to 128, routers to 896 and both latent projections to
    # 3584 stay whole on every chip.  Llama's eight KV heads are copied four times on TP 32.
    whole = 7168 * (24 * (1536 + 576) + 69 * 128 + 92 * (896 + 2 * 3584)) * 2
    for tp in (2, 8, 32):
        one, split = (total(work(k3, mapping(k3.model, tp=n), load(1e-9)), "memory", "embed") for n in (1, tp))
        assert tp * split - one == pytest.approx((tp - 1) * whole, rel=1e-6)
        copies = max(tp / 8 - 1, 0) * 80 * 8192 * 8 * 256 * 2
        one, split = (total(work(llama, mapping(llama.model, tp=n), load(1e-9)), "memory", "embed") for n in (1, tp))
        assert tp * split - one == pytest.approx(copies, rel=1e-6, abs=1e3)


def test_states_split_by_head() -> None:
    c = part("kimi-k3")
    one, eight = (work(c, mapping(c.model, tp=tp), load(5.0))["kda.state"] for tp in (1, 8))
    for lane in ("memory", "tensor", "vector"):
        assert 8 * eight[lane] == pytest.approx(one[lane])


def test_context_merge_of_kimi_k3() -> None:
    # 96 heads x (2 x 512 + 64) in BF16 are 208,896 bytes per token and layer. Of eight chips each sends its 12 heads'
    # queries (576 wide) to seven others, and to each of them the partial results (512 wide) of that one's 12 heads.
    layer, p = block("kimi-k3", "mla"), precision("kimi-k3")
    rows = {r.name: r for r in layer.rows(step(machine(), p, batch=3.0, tp=8, context=True), 7168)}
    # With each result goes the sum of its softmax in FP32.
    by_hand = 3 * 2 * (7 * 12 * 576 + 7 * 12 * 512) + 3 * 4 * 7 * 12
    assert by_hand == 3 * (208_896 + 4 * 96) * 7 / 8
    assert float(rows["context_merge"].scale_up) == pytest.approx(by_hand)
    rows = {r.name: r for r in layer.rows(step(machine(), p, batch=3.0, tp=2), 7168)}
    assert float(rows["context_merge"].scale_up) == float(rows["context_merge"].latency) == 0.0


def test_scan_bytes_by_hand() -> None:
    # Two sequences of 4,096 + 1 tokens on TP 4: queries and results are those of the chip's heads, or of all heads on
    # its range of the context.
    mla, p = block("kimi-k3", "mla"), precision("kimi-k3")
    cache, moved = 2 * (4097 + 1) * 576, 2 * 96 * (512 + 64 + 512) * 2
    found = [
        float(mla.rows(step(machine(), p, batch=2.0, cached=4096.0, tp=4, context=c), 7168)[1].memory)
        for c in (False, True)
    ]
    assert found == pytest.approx([cache + moved / 4, cache / 4 + moved])
    gqa, p = block("llama3.1-70b", "full"), precision("llama3.1-70b")
    cache, moved = 2 * (4097 + 1) * 8 * 256, 2 * 64 * 256 * 2
    found = [
        float(gqa.rows(step(machine(), p, batch=2.0, cached=4096.0, tp=4, context=c), 8192)[1].memory)
        for c in (False, True)
    ]
    assert found == pytest.approx([cache / 4 + moved / 4, cache / 4 + moved])


# --- windows


@given(st.integers(0, 40), st.integers(1, 30), st.integers(1, 24))
@settings(max_examples=100)
def test_window_by_counting_tokens(cached: int, new: int, window: int) -> None:
    layer = GQA(heads=4, kv_heads=2, key_width=8, value_width=8, window=window)
    here = step(machine(), precision("gpt-oss-120b"), new=float(new), cached=float(cached))
    seen = [range(max(0, cached + i - window), cached + i) for i in range(1, new + 1)]  # by the i-th new token
    assert float(layer.attended(here)) == pytest.approx(np.mean([len(s) for s in seen]))
    assert float(layer.tokens_read(here)) == len(set().union(*seen))
    full = GQA(heads=4, kv_heads=2, key_width=8, value_width=8)
    assert float(full.attended(here)) == pytest.approx(np.mean([cached + i for i in range(1, new + 1)]))


def test_windows_do_not_grow() -> None:
    c = part("gpt-oss-120b")
    near, far = (work(c, mapping(c.model), load(1.0, context)) for context in (1000.0, 9000.0))
    assert near["window.scan"] == far["window.scan"]
    # 18 layers read 128 tokens of 8 x 128 elements in FP8, write one, and move 64 heads x 128 in BF16.
    assert near["window.scan"]["memory"] == pytest.approx(18 * ((128 + 1) * 1024 + 64 * 128 * 2))


# --- experts on many chips


def routed(layer: MoE, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Experts of each token, (tokens, k): uniform, within random groups where there are any."""
    scores = rng.random((tokens, layer.experts))
    if layer.top_groups < layer.groups:
        ranking = np.argsort(rng.random((tokens, layer.groups)), axis=1).argsort(axis=1)
        open_ = np.repeat(ranking < layer.top_groups, layer.experts // layer.groups, axis=1)
        scores[~open_] = -1.0
    return np.argpartition(-scores, layer.top_k - 1, axis=1)[:, : layer.top_k]


def moe_rows(layer: MoE, hidden: int, p: Precision, **degrees: Any) -> dict[str, Any]:
    return {r.name: r for r in layer.rows(step(machine(scale_up_domain=1024.0), p, **degrees), hidden)}


@pytest.mark.parametrize(
    ("name", "tp", "dp", "ep"),
    [
        ("deepseek-v3", 1, 8, 8), ("deepseek-v3", 1, 32, 32), ("deepseek-v3", 2, 4, 4), ("deepseek-v3", 1, 16, 2),
        ("kimi-k3", 1, 64, 64), ("kimi-k3", 8, 9, 72), ("gpt-oss-120b", 1, 8, 8), ("gpt-oss-120b", 4, 2, 4),
    ],
)  # fmt: skip
def test_dispatch_against_routed_tokens(name: str, tp: int, dp: int, ep: int) -> None:
    """Each token goes once to every other chip that holds a slice of one of its experts."""
    layer, hidden, p = block(name, "moe"), part(name).model.hidden, precision(name)
    rng = np.random.default_rng(1)
    chips, slices, tokens = tp * dp, tp * dp // ep, 6000
    rank = np.arange(layer.experts) * ep // layer.experts
    found = np.zeros((tokens, ep), bool)
    np.put_along_axis(found, rank[routed(layer, tokens, rng)], True, axis=1)
    home = rng.integers(0, chips, tokens)
    messages = found.sum(axis=1) * slices - found[np.arange(tokens), home // slices]
    width = layer.width or hidden
    batch = 12.0
    rows = moe_rows(layer, hidden, p, batch=batch, tp=tp, dp=dp, ep=ep)
    want = batch / tp * messages.mean()
    # The fullest rank receives and sends back more than the mean one, by as much as it has more routes.  Out go a
    # number and a gate for each route, 4 bytes each.
    beside = {"dispatch": 8.0 * layer.top_k, "combine": 0.0}
    for name, more in beside.items():
        message = width * p.bytes[name] + more
        assert float(rows[name].scale_up * rows[name].share) == pytest.approx(want * message, rel=0.01)


def test_groups_cap_the_ranks_of_a_token() -> None:
    # A DeepSeek V3 token visits four of eight groups: on eight ranks it has at most four destinations.
    layer = block("deepseek-v3", "moe")
    here = step(machine(), precision("deepseek-v3"), dp=8, ep=8)
    assert 3.0 < float(layer.destinations(here)) <= 4.0 * 7 / 8
    assert float(MoE(256, 8, 2048).destinations(here)) > 4.0


@pytest.mark.parametrize(
    ("name", "tokens", "ep"),
    [("deepseek-v3", 64, 8), ("deepseek-v3", 1024, 32), ("gpt-oss-120b", 32, 8), ("kimi-k3", 792, 72)],
)
def test_fullest_rank_against_routed_tokens(name: str, tokens: int, ep: int) -> None:
    layer, hidden, p = block(name, "moe"), part(name).model.hidden, precision(name)
    plain = MoE(layer.experts, layer.top_k, layer.inner, layer.width, bias=layer.bias)
    rng = np.random.default_rng(2)
    rank = np.arange(layer.experts) * ep // layer.experts
    routes, distinct = [], []
    for _ in range(150):
        hit = routed(plain, tokens, rng)
        routes.append(np.bincount(rank[hit].ravel(), minlength=ep).max())
        distinct.append(np.bincount(rank[np.unique(hit)], minlength=ep).max())
    row = moe_rows(plain, hidden, p, batch=tokens / ep, dp=ep, ep=ep)["experts"]
    one = plain.expert_parameters(hidden)
    found = float(row.tensor) / (2.0 * one)
    assert found == pytest.approx(np.mean(routes), rel=0.03)
    assert float(row.rows) == pytest.approx(found / np.mean(distinct), rel=0.03)
    moved = found * 2 * ((layer.width or hidden) + layer.inner) * p.bytes["expert_activation"]
    assert (float(row.memory) - moved) / (one * p.bytes["routed"]) == pytest.approx(np.mean(distinct), rel=0.03)
    # Energy is paid by the mean rank.
    assert found * float(row.share) == pytest.approx(tokens * layer.top_k / ep)


def test_mean_chip_computes_its_share_however_experts_are_split() -> None:
    # 32 tokens x 8 routes x 2 FLOP x 44,040,192 weights on eight chips, with whole experts or quarters of them.
    layer, p = block("deepseek-v3", "moe"), precision("deepseek-v3")
    for ep in (8, 2):
        row = moe_rows(layer, 7168, p, batch=4.0, dp=8, ep=ep)["experts"]
        assert float(row.tensor * row.share) == pytest.approx(32 * 8 * 2 * 44_040_192 / 8)


def test_one_group_holds_every_token() -> None:
    """With one instance nothing is dispatched: the combine is the all-reduce, over the latent width besides."""
    k3, v3 = (moe_rows(block(n, "moe"), 7168, precision(n), batch=5.0, tp=8, ep=8) for n in ("kimi-k3", "deepseek-v3"))
    for rows in (k3, v3):
        for name in ("dispatch", "combine"):
            assert float(rows[name].scale_up) == float(rows[name].scale_out) == float(rows[name].latency) == 0.0
    ring = 2 * 7 / 8 * 5 * 2
    assert float(v3["all_reduce"].scale_up) == pytest.approx(ring * 7168)
    assert float(k3["all_reduce"].scale_up) == pytest.approx(ring * (3584 + 7168))
    # One chip keeps everything to itself.
    alone = moe_rows(block("deepseek-v3", "moe"), 7168, precision("deepseek-v3"), batch=5.0)
    assert all(float(r.scale_up) == float(r.scale_out) == float(r.latency) == 0.0 for r in alone.values())


def test_ranks_of_an_instance_share_its_tokens_out() -> None:
    layer, p = block("kimi-k3", "moe"), precision("kimi-k3")
    alone, shared = (moe_rows(layer, 7168, p, batch=16.0, tp=tp, dp=72 // tp, ep=72) for tp in (1, 8))
    for name in ("router", "latent_down", "latent_up"):
        assert float(shared[name].tensor) == pytest.approx(float(alone[name].tensor) / 8)
    # The shared expert is split by tensor and sees all tokens of the instance.
    assert float(shared["shared"].tensor) == pytest.approx(float(alone["shared"].tensor) / 8)
    assert float(alone["shared"].tensor) == 2 * 16 * 3 * 7168 * 6144


def test_sorting_is_not_free() -> None:
    # Tokens are copied into expert order and back: four times the routed activations, and 16 bytes per route of keys.
    row = moe_rows(block("gpt-oss-120b", "moe"), 2880, precision("gpt-oss-120b"), batch=10.0)["sort"]
    assert float(row.memory) == pytest.approx(4 * 40 * 2880 * 2 + 16 * 40)
    assert float(row.vector) > 10 * 128
    assert row.launches >= 1
