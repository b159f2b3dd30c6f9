"""One decode pass: the pipeline's law stage by stage, power and slowing, metrics by their definitions, floors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import case, changed, decoded, load, machine, mapping, timed, work

from codesign.catalog import list_catalog
from codesign.evaluation.case import Case
from codesign.layers.gqa import GQA
from codesign.layers.mlp import MLP
from codesign.model import Drafts, Model
from codesign.precision import MOVING_CLASSES, Precision
from codesign.work import accepted_tokens

#: Accepted length of Kimi K3 with 1 to 8 drafts (SPEED-Bench coding, temperature 1).
K3_ACCEPTED = (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88)


def on_round_machine(model: Model, dtypes: str = "bf16", **changes: float) -> Case:
    """A model of the tests' own on the round machine, at the speed of light."""
    base = case("h200", "llama3.1-70b", True)
    names = dict.fromkeys(dict(base.model.dtypes), dtypes)
    return replace(base, model=model, machine=machine(**changes), precision=Precision.from_names(names))


def uneven(*depths: int) -> Model:
    """Layer groups of so many layers each: a pipeline cuts between groups."""
    blocks = (("full", GQA(heads=32, kv_heads=8, key_width=128, value_width=128)), ("dense", MLP(16384)))
    return Model("uneven", 4096, 32000, False, blocks, tuple(((0, 1),) * depth for depth in depths), ())


def seconds(of: Case, where: Any, what: Any) -> tuple[float, float, float, float]:
    """Time of a layer, of the embedding, of the head and of a hand-off, from the rows."""
    t = timed(of, where, what)
    layer = sum(float(r.time) for b in t.blocks for r in b)
    return (
        layer,
        float(t.embed_s),
        sum(float(r.time) for r in t.head),
        float(t.hand_off.time) / max(float(where.pp) - 1, 1),
    )


@pytest.mark.parametrize("micro", [1, 2, 3, 4, 7])
def test_pipeline_of_uneven_stages(micro: int) -> None:
    # Three stages of 6, 3 and 2 layers, the first with the embedding, the last with the head.
    c = on_round_machine(uneven(6, 3, 2))
    where, what = mapping(c.model, pp=3, micro=micro), load(16.0, 8192.0)
    layer, embed, head, hop = seconds(c, where, what)
    stages = [embed + 6 * layer, 3 * layer, 2 * layer + head]
    found = decoded(c, where, what)
    assert float(found.pass_s) == pytest.approx(sum(stages) + 2 * hop, rel=1e-12)
    assert float(found.tpot_s) == pytest.approx(max(sum(stages) + 2 * hop, micro * max(stages)), rel=1e-12)
    # Below the number of stages it is latency that counts: more micro-batches cost nothing.
    if micro == 1:
        assert float(found.tpot_s) == float(found.pass_s)
    if micro == 7:
        assert float(found.tokens_per_s) == pytest.approx(16.0 / (embed + 6 * layer), rel=1e-12)
    assert float(found.tokens_per_s) == pytest.approx(micro * 16.0 / float(found.tpot_s), rel=1e-12)


def test_the_last_stage_sets_the_pace_where_its_head_is_slow() -> None:
    c = on_round_machine(uneven(1, 1))
    where, what = mapping(c.model, pp=2, micro=4), load(512.0, 16.0)
    layer, embed, head, hop = seconds(c, where, what)
    assert head > 0.3 * layer
    assert float(decoded(c, where, what).tpot_s) == pytest.approx(4 * (layer + head), rel=1e-12)
    # In flight as many as stages: the pass with its idle first stage, or twice the slower one.
    want = max(embed + 2 * layer + head + hop, 2 * (layer + head))
    assert float(decoded(c, mapping(c.model, pp=2), what).tpot_s) == pytest.approx(want, rel=1e-12)


def test_pipeline_of_kimi_k3() -> None:
    # Four stages of 24, 24, 24 and 21 layers; the first has the embedding and the dense one, the last the head.
    c = case("gb200-nvl72", "kimi-k3")
    where, what = mapping(c.model, pp=4, tp=2, dp=4, ep=8), load(32.0, 32768.0)
    t = timed(c, where, what)
    kda, mla, dense, moe = (
        sum(float(r.time) for r in b) - sum(float(h) for h in hs) for b, hs in zip(t.blocks, t.hidden, strict=True)
    )
    head = sum(float(r.time) for r in t.head)
    stages = [float(t.embed_s) + 18 * kda + 6 * mla + dense + 23 * moe, *[18 * kda + 6 * mla + 24 * moe] * 2]
    stages.append(15 * kda + 6 * mla + 21 * moe + head)
    found = decoded(c, where, what)
    assert float(found.pass_s) == pytest.approx(sum(stages) + float(t.hand_off.time), rel=1e-12)
    assert float(found.tpot_s) == pytest.approx(max(sum(stages) + float(t.hand_off.time), 4 * max(stages)), rel=1e-12)


# --- what runs beside what


def test_shared_experts_hide_behind_the_exchange() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    t = timed(c, mapping(c.model, tp=8, dp=9, ep=72), load(64.0))
    rows, hidden = t.blocks[3], t.hidden[3]
    exchange = sum(float(r.time) for r in rows if r.row.name in ("dispatch", "combine"))
    for row, hid in zip(rows, hidden, strict=True):
        want = min(float(row.time), exchange) if row.row.name == "shared" else 0.0
        assert float(hid) == pytest.approx(want)
    # Where nothing is exchanged nothing hides.
    t = timed(c, mapping(c.model, tp=8, ep=8), load(64.0))
    assert sum(float(h) for h in t.hidden[3]) == 0.0


@pytest.mark.parametrize("overlap", [0.25, 1.0])
def test_two_batches_hide_the_exchange_behind_the_other_rows(overlap: float) -> None:
    c = case("gb200-nvl72", "kimi-k3")
    where, what = mapping(c.model, tp=1, dp=72, ep=72), load(64.0)
    t = timed(c, where, what, replace(c.execution, overlap=overlap))
    times = {r.row.name: float(r.time) for r in t.blocks[3]}
    exchange = times["dispatch"] + times["combine"]
    left = exchange - min(times["shared"], exchange)
    others = sum(times.values()) - exchange - min(times["shared"], exchange)
    want = min(times["shared"], exchange) + overlap * min(left, others)
    assert sum(float(h) for h in t.hidden[3]) == pytest.approx(want)
    assert all(0 <= float(h) <= float(r.time) * (1 + 1e-12) for r, h in zip(t.blocks[3], t.hidden[3], strict=True))


# --- power


def joules(of: Case, where: Any, what: Any) -> float:
    """Energy of one pass on one chip of each stage."""
    t = timed(of, where, what)
    found = sum(n * float(r.energy) for n, b in zip(of.model.block_counts(), t.blocks, strict=True) for r in b)
    return found + sum(float(r.energy) for r in t.ends) + float(t.hand_off.energy)


@pytest.mark.parametrize(("pp", "micro"), [(1, 1), (4, 4), (4, 2), (2, 5)])
def test_power_and_slowing(pp: int, micro: int) -> None:
    c = case("h200", "deepseek-v3")
    where, what = mapping(c.model, pp=pp, tp=2, dp=4, ep=8, micro=micro), load(48.0, 4096.0)
    spent = joules(c, where, what) * micro / pp  # by a chip, while every micro-batch passes once
    static = float(c.machine.static_power)
    free = decoded(c, where, what, on=changed(c.machine, power_limit=1e9))
    pace = float(free.pace_s)
    assert float(free.throttled) == 0.0
    assert float(free.slowdown) == 1.0
    assert float(free.board_power_w) == pytest.approx(static + spent / pace, rel=1e-12)
    # A limit halfway between idle and free slows the pass to twice its time, and the chip draws the limit.
    limit = static + 0.5 * (float(free.board_power_w) - static)
    tight = decoded(c, where, what, on=changed(c.machine, power_limit=limit))
    assert float(tight.throttled) == 1.0
    assert float(tight.tpot_s) == pytest.approx(spent / (limit - static), rel=1e-12)
    assert float(tight.tpot_s) == pytest.approx(2.0 * pace, rel=1e-12)
    assert float(tight.board_power_w) == pytest.approx(limit, rel=1e-12)
    assert float(tight.slowdown) == pytest.approx(2.0, rel=1e-12)
    assert float(tight.pass_s) == float(free.pass_s)
    # Exactly the power that it draws is enough.
    enough = decoded(c, where, what, on=changed(c.machine, power_limit=float(free.board_power_w) * (1 + 1e-12)))
    assert float(enough.throttled) == 0.0


def test_metrics_by_definition() -> None:
    c = case("gb200-nvl72", "kimi-k3")
    where, what = mapping(c.model, pp=2, tp=4, dp=9, ep=36, micro=3), load(10.5, 65536.0, drafts=2.0)
    m, found = c.machine, decoded(c, where, what)
    tpot, chips = float(found.tpot_s), 2 * 4 * 9
    assert float(found.accepted) == pytest.approx(K3_ACCEPTED[1])
    assert tpot == pytest.approx(float(found.pace_s) / K3_ACCEPTED[1])
    tokens = 3 * 10.5 * 9 / tpot  # micro-batches x sequences x instances
    assert float(found.tokens_per_s) == pytest.approx(tokens)
    assert float(found.tokens_per_s_per_chip) == pytest.approx(tokens / chips)
    assert float(found.tokens_per_s_per_user) == pytest.approx(1 / tpot)
    assert float(found.tokens_per_s_per_megawatt) == pytest.approx(tokens / (chips * 1870.0 / 1e6))
    board = float(found.board_power_w)
    all_in = board + 1870.0 - 1200.0  # the share of host, NIC, switch and cooling is always drawn
    assert float(found.all_in_power_w) == pytest.approx(all_in)
    assert float(found.provisioned_power_w) == 1870.0
    assert float(found.tokens_per_s_per_megawatt_drawn) == pytest.approx(tokens / (chips * all_in / 1e6))
    assert float(found.energy_per_token_j) == pytest.approx(chips * all_in / tokens)
    assert float(m.static_power) < board <= float(m.power_limit)
    dollars = chips * float(m.dollars_per_hour) / 3600 / tokens * 1e6
    assert float(found.dollars_per_million_tokens) == pytest.approx(dollars)


# --- floors


#: Dependent kernels of Kimi K3 at the very least: norm, projection, state or scan, and output of 93 attention layers
#: (latent attention projects twice, down and up); norm, router, sort and two products of 92 mixtures; norm and two
#: products of the dense layer; the head.
K3_KERNELS = 69 * 4 + 24 * 5 + 92 * 5 + 3 + 1

#: Hops on TP: there and back after each attention and each feed-forward layer.
K3_HOPS = 2 * (93 + 93)


@pytest.mark.parametrize("arch", [e.name for e in list_catalog("arch") if e.kind == "system"])
def test_no_machine_is_faster_than_its_launches_and_hops(arch: str) -> None:
    c = case(arch, "kimi-k3", True)
    m = c.machine
    alone = decoded(c, mapping(c.model), load(1.0, 1.0))
    assert float(alone.tpot_s) >= K3_KERNELS * float(m.launch)
    many = decoded(c, mapping(c.model, tp=32, ep=32), load(1.0, 1.0))
    assert float(many.tpot_s) >= K3_KERNELS * float(m.launch) + K3_HOPS * float(m.scale_up_hop)
    drafted = decoded(c, mapping(c.model, tp=32, ep=32), load(1.0, 1.0, drafts=8.0))
    assert float(drafted.tpot_s) >= (K3_KERNELS * float(m.launch) + K3_HOPS * float(m.scale_up_hop)) / 3.88


def test_infinite_rates_leave_the_latencies() -> None:
    # Llama 70B on TP 8: in each of 80 layers norm, projections, two scan kernels and output; norm, up and down: 1 us;
    # two all-reduces of a 2 us set-up and two 1 us hops.  Then embedding and its all-reduce, head, two for sampling; a
    # gather with a hop.
    c = case("h200", "llama3.1-70b")
    fast = machine(**dict.fromkeys(("memory_bandwidth", "tensor_bf16", "vector_rate", "scale_up_bandwidth"), 1e40))
    found = decoded(c, mapping(c.model, tp=8), load(8.0, 8192.0), on=fast)
    assert float(found.tpot_s) == pytest.approx(80 * (8 + 2 * 4) * 1e-6 + 4e-6 + 4e-6 + 3e-6, rel=1e-9)


def test_mixtral_reads_the_experts_that_are_hit() -> None:
    """Milliseconds of memory alone, H100, TP 4, BF16, context 4,096: 1.94, 6.60 and 8.23 at batch 1, 8 and 32.

    Counting k experts gives 2.22 at batch 8, all experts 6.99 at batch 1.
    """
    c = case("h100", "mixtral-8x7b", True, "bf16")
    still = dict.fromkeys((*MOVING_CLASSES, "embedding"), 0.0) | {"kv": 2.0}
    bare = replace(c, precision=Precision(c.precision.bytes | still, c.precision.math))
    for batch, ms in ((1.0, 1.94), (8.0, 6.60), (32.0, 8.23)):
        where, what = mapping(c.model, tp=4), load(batch, 4096.0)
        read, moved = (sum(row["memory"] for row in work(x, where, what).values()) / 3.35e12 for x in (bare, c))
        assert round(read * 1e3, 2) == ms
        # Activations add little, and the lanes of the timed pass hold just that.
        assert read < moved < 1.01 * read
        t = timed(c, where, what)
        lanes = sum(n * float(r.lanes[0]) for n, b in zip(c.model.block_counts(), t.blocks, strict=True) for r in b)
        assert lanes + sum(float(r.lanes[0]) for r in t.ends) == pytest.approx(moved, rel=1e-12)


# --- drafts


def test_accepted_tokens_of_kimi_k3() -> None:
    model = case("gb200-nvl72", "kimi-k3").model
    found = [float(accepted_tokens(model, d)) for d in range(9)]
    assert found == pytest.approx([1.0, *K3_ACCEPTED])
    # Between whole drafts by the line, beyond the table no more.
    assert float(accepted_tokens(model, 2.5)) == pytest.approx((2.45 + 2.87) / 2)
    assert float(accepted_tokens(model, 20.0)) == pytest.approx(3.88)
    assert accepted_tokens(case("h200", "llama3.1-70b").model, 4.0) == 1.0


def test_accepted_tokens_from_conditional_chances() -> None:
    """``1 + sum of products``, by letting chains of drafts be accepted one after the other."""
    chances, rng = np.array([0.8, 0.7, 0.55, 0.5]), np.random.default_rng(3)
    kept = (rng.random((200_000, 4)) < chances).cumprod(axis=1).sum(axis=1)
    table = tuple(1.0 + np.cumsum(np.cumprod(chances)))
    model = Model("drafted", 64, 100, False, uneven(1).blocks, uneven(1).layers, (), drafts=Drafts(table, 1e6, 1e6, 1))
    for d in range(5):
        assert float(accepted_tokens(model, d)) == pytest.approx(1 + np.minimum(kept, d).mean(), rel=5e-3)


def drafter(name: str, drafts: float, batch: float = 4.0) -> dict[str, float]:
    c = case("gb200-nvl72", name)
    return work(c, mapping(c.model, tp=2), load(batch, drafts=drafts))["drafter"]


def test_a_chain_drafts_once_per_draft_and_a_block_once_for_all() -> None:
    # DeepSeek V3's module: 0.69e9 active weights in block FP8 and the BF16 head of 129,280 x 7,168, on TP 2.
    one, three = drafter("deepseek-v3", 1.0), drafter("deepseek-v3", 3.0)
    weights = (0.69e9 * (1 + 4 / 16384) + 129_280 * 7168 * 2) / 2
    assert one["memory"] == pytest.approx(weights, rel=2e-3)
    assert one["tensor"] == pytest.approx(2 * 4 * (0.69e9 + 129_280 * 7168) / 2)
    for lane in ("memory", "tensor", "launches"):
        assert three[lane] == pytest.approx(3 * one[lane])
    # Kimi K3's reads its 2.7e9 weights once for all drafts; arithmetic goes by tokens.
    one, three = drafter("kimi-k3", 1.0), drafter("kimi-k3", 3.0)
    assert one["memory"] == pytest.approx((2.7e9 + 163_840 * 7168) * 2 / 2, rel=2e-3)
    assert three["memory"] == pytest.approx(one["memory"], rel=2e-3)
    assert three["tensor"] == pytest.approx(3 * one["tensor"])
    assert three["launches"] == one["launches"]
    for name in ("deepseek-v3", "kimi-k3"):
        assert not any(drafter(name, 0.0).values())


def test_drafts_pay_at_small_batch_where_weights_are_read_anyway() -> None:
    c = case("h200", "deepseek-v3")
    where = mapping(c.model, tp=8, ep=8)
    plain, drafted = (decoded(c, where, load(1.0, 4096.0, drafts=d)) for d in (0.0, 1.0))
    assert float(plain.tpot_s) / 1.92 < float(drafted.tpot_s) < float(plain.tpot_s)
