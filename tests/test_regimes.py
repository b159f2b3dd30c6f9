"""Prefill, midfill, decode and serve: limits into each other, counts by hand, pipelines, and what serving adds."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from cases import LATENCIES, RATES, case, changed, machine, mapping, step
from hypothesis import given
from hypothesis import strategies as st
from kinds import BF16, rows

from codesign.errors import CodesignError
from codesign.evaluation.request import Request
from codesign.evaluation.solve import leaves
from codesign.execution import ideal
from codesign.layers.gqa import GQA
from codesign.layers.mla import MLA
from codesign.layers.spans import grid_mean
from codesign.mapping import Mapping, stack, take
from codesign.model import Model
from codesign.objective.compiled import evaluate_points
from codesign.objective.decode import decode
from codesign.objective.metrics import Framework, Load, Metrics
from codesign.objective.phases import DECODE, PREFILL, SERVE, Phase
from codesign.objective.prefill import mean_and_last, prompt_step
from codesign.objective.timing import timed_pass

ONE_OF_EACH = (
    "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "glm-5.2", "gpt-oss-120b", "kimi-k3", "llama3.1-70b",
    "llama4-maverick", "minimax-m1", "minimax-m3", "nemotron3-super-120b", "qwen3.5-397b-a17b", "step3",
)  # fmt: skip
K3 = MLA(heads=96, q_rank=1536, kv_rank=512, nope=128, rope=64, value=128)


def _of(phase: Phase, model: Any, numbers: Any) -> Metrics:
    return phase.evaluate(model, *eqx.tree_at(lambda x: x[-1].skew, numbers, 0.0))


_compiled = jax.jit(_of, static_argnums=(0, 1))


def of(phase: Phase, c: Any, where: Mapping, what: Load, on: Any = None, execution: Any = None) -> Metrics:
    """A phase of a case, point by point, uniform routing known; what loops over passes is compiled once per model."""
    numbers = leaves((on or c.machine, execution or c.execution, c.precision, where, what))
    return (_of if phase is DECODE else _compiled)(phase, c.model, numbers)


def prompt(new: float, cached: float = 0.0, batch: float = 1.0) -> Load:
    return Load(batch, cached, 0.0, 0.0, 1000.0, new)


def chunked(where: Mapping, chunk: float) -> Mapping:
    return eqx.tree_at(lambda m: m.chunk, where, np.asarray(chunk))


# --------------------------------------------------------------------------------------------- one regime into another


#: Models that the fast tests ask: states, latents, sparse attention, windows; the others are for the slow ones.
FAST = ("deepseek-v3", "glm-5.2", "gpt-oss-120b", "kimi-k3", "minimax-m1", "nemotron3-super-120b")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in ONE_OF_EACH])
def test_one_new_token_is_a_decode_pass(name: str) -> None:
    c = case("gb200-nvl72", name)
    where = mapping(c.model, tp=2, dp=4, ep=8 if c.model.counts().routed_parameters else 1)
    for cached in (4096.0, 100_000.0):
        what = prompt(1.0, cached, 4.0)
        one, block = of(DECODE, c, where, what), of(PREFILL, c, where, what)
        assert float(block.ttft_s) == pytest.approx(float(one.tpot_s), rel=1e-12)
        assert float(block.board_power_w) == pytest.approx(float(one.board_power_w), rel=1e-12)
        assert float(block.memory.total) == pytest.approx(float(one.memory.total), rel=1e-12)


def test_an_empty_prefix_is_prefill() -> None:
    assert Request(phase="midfill", cached=0.0, new=8192.0).load(Framework()) == Request(
        phase="prefill", new=8192.0
    ).load(Framework())


@pytest.mark.parametrize(
    "name", ["gpt-oss-120b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("kimi-k3", "glm-5.2"))]
)
def test_time_is_continuous_and_grows_with_new_and_cached_tokens(name: str) -> None:
    c = case("gb200-nvl72", name)
    where = mapping(c.model, tp=2, dp=4, ep=8)

    def times(new: Any, cached: Any) -> np.ndarray:
        new, cached = np.broadcast_arrays(np.asarray(new, float), np.asarray(cached, float))
        numbers = leaves((c.machine, c.execution, c.precision, where))

        def one(n: Any, k: Any) -> Any:
            return PREFILL.evaluate(c.model, *numbers, eqx.tree_at(lambda x: x.skew, prompt(n, k), 0.0)).ttft_s

        return np.asarray(jax.vmap(one)(new, cached))

    new = np.unique(np.round(np.geomspace(1.0, 65536.0, 400)))
    found = times(new, 32768.0)
    assert np.all(np.diff(found) > 0.0)
    close = times(new * (1.0 + 1e-6), 32768.0)
    assert np.all(np.abs(close / found - 1.0) < 2e-3)
    cached = np.geomspace(1.0, 500_000.0, 400)
    found = times(4000.0, cached)
    assert np.all(np.diff(found) >= -1e-9 * found[1:])
    assert np.all(np.abs(times(4000.0, cached * (1.0 + 1e-6)) / found - 1.0) < 2e-3)


# --------------------------------------------------------------------------------------------------- counts by hand


@given(first=st.integers(0, 300), stride=st.integers(1, 50), count=st.integers(1, 40), limit=st.integers(1, 400))
def test_what_blocks_find_cached(first: int, stride: int, count: int, limit: int) -> None:
    want = np.mean([min(first + i * stride, limit) for i in range(count)])
    assert float(grid_mean(float(first), float(stride), float(count), float(limit))) == pytest.approx(want)


@pytest.mark.parametrize(("cached", "new", "chunks"), [(0, 4096, 1), (0, 512, 8), (1000, 512, 8), (70_000, 128, 3)])
def test_scan_of_a_chunked_prompt_by_adding_up_its_tokens(cached: int, new: int, chunks: int) -> None:
    layers = {None: GQA(64, 8, 64, 64), 128: GQA(64, 8, 64, 64, window=128)}
    for window, layer in layers.items():
        scan = rows(layer, 2880, cached=float(cached), new=float(new), chunks=float(chunks), block=True)["scan"]
        seen = np.arange(cached + 1, cached + new * chunks + 1)
        attended = np.minimum(seen, window) if window else seen
        assert scan.tensor * chunks == pytest.approx(2 * 128 * 64 * attended.sum())
        starts = cached + new * np.arange(chunks)
        read = (np.minimum(starts, window - 1) if window else starts) + new
        elements = 8 * 128 * (read + new).sum() + 64 * 128 * new * chunks
        assert scan.memory * chunks == pytest.approx(2 * elements)


@pytest.mark.parametrize(("cached", "chunk_of_attention", "new", "chunks"), [(0, 64, 128, 4), (0, 64, 16, 8)])
def test_chunks_of_attention_by_adding_up_their_tokens(
    cached: int, chunk_of_attention: int, new: int, chunks: int
) -> None:
    layer = GQA(8, 8, 64, 64, chunk=chunk_of_attention)
    scan = rows(layer, 512, cached=float(cached), new=float(new), chunks=float(chunks), block=True)["scan"]
    tokens = np.arange(new * chunks)
    assert scan.tensor * chunks == pytest.approx(2 * 128 * 8 * (tokens % chunk_of_attention + 1).sum())
    offsets = (new * np.arange(chunks)) % chunk_of_attention
    assert scan.memory * chunks == pytest.approx(2 * (8 * 128 * (offsets + 2 * new).sum() + 8 * 128 * new * chunks))


def test_queries_that_do_not_fit_read_the_cache_again() -> None:
    layer = GQA(64, 8, 128, 128)
    # 8 query heads per key head; a row holds 128 x 2 B of query and 130 x 4 B of sums.
    fitting = 8 * 4096 * (128 * 2 + 130 * 4)

    def read(sram: float) -> float:
        here = step(machine(sram=2.0 * sram), BF16, new=4096.0, cached=100_000.0, block=True)
        return float(layer.tokens_read(here))

    assert read(fitting) == read(10 * fitting) == 104_096
    # In two passes the second half of the queries sees the first, which alone reads its own part.
    assert read(fitting / 2) == 2 * 100_000 + 4096 * 1.5
    assert read(fitting / (1 + 1e-9)) == pytest.approx(104_096, rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [(K3, 171), (MLA(128, 1536, 512, 128, 64, 128), 171), (MLA(64, 2048, 512, 192, 64, 256), 398)],
)
def test_latent_attention_expands_for_long_blocks(layer: MLA, tokens: int) -> None:
    """Behind a long prefix from 171 new tokens on in K3 and V3, from 398 on in GLM-5: the published crossings."""
    # Arithmetic alone counts: neither memory nor vector units nor launches take time.
    fast = machine(memory_bandwidth=1e30, vector_rate=1e30, launch=0.0)
    model = Model("one", 7168, 128, False, (("mla", layer),), (((0,),),), (("attention", "bf16"),))
    where = mapping(model)

    def expands(new: int, cached: float = 1e7) -> bool:
        here = step(fast, BF16, new=float(new), cached=cached, block=True)
        timed = timed_pass(model, fast, ideal(), where, here)
        scan = next(row for row in timed.blocks[0] if row.row.name == "scan")
        return bool(scan.row.rows < new * 1.5)

    assert not expands(tokens - 1)
    assert expands(tokens + 1)
    assert all(expands(q, 0.0) for q in (1, 2, 100, 8192))
    # Projections: kv_b sees every token of the context once, the other matrices the new ones.
    hidden, q, c = 7168, 512.0, 4096.0
    here = step(fast, BF16, new=q, cached=c, block=True, form=1)
    qkv, expand, scan = layer.rows(here, hidden)[:3]
    others = sum(w.active for w in layer.weights(hidden)) - layer.heads * layer.value * hidden - layer.up
    norms = layer.norms * hidden + (layer.q_rank or 0) + layer.kv_rank
    assert float(qkv.tensor + expand.tensor) == pytest.approx(2 * q * (others - norms) + 2 * (c + q) * layer.up)
    assert float(expand.tensor) == pytest.approx(2 * c * layer.up)
    width = layer.nope + layer.rope + layer.value
    assert float(scan.tensor) == pytest.approx(2 * q * (c + (q + 1) / 2) * layer.heads * width)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-5.2"])
def test_one_more_request_never_serves_sooner(name: str) -> None:
    """Behind a long prefix: a chunk's latents are expanded once, whatever form the decode tokens of its step take."""
    c = case("gb200-nvl72", name)
    where = chunked(mapping(c.model, tp=8, ep=8), 8192.0)
    flying = np.arange(4.0, 40.0, 2.0)
    found = [of(SERVE, c, where, Load(n, 1e5, 0.0, 0.0, 64.0, 4000.0, Framework(0.0, 0.0, 1.0))) for n in flying]
    for metric in ("ttft_s", "tpot_s"):
        times = [float(getattr(m, metric)) for m in found]
        assert all(b > a for a, b in pairwise(times)), metric
    # A prompt waits half a step and then takes its chunk beside the others: no more than both together.
    alone = of(PREFILL, c, where, prompt(4000.0, 1e5))
    for m in found:
        assert float(alone.ttft_s) < float(m.ttft_s) < float(alone.ttft_s) + 2.5 * float(m.pass_s)


def test_chunks_do_not_change_what_each_token_costs() -> None:
    """Matrix work of a prompt is the same in any number of chunks; weights are read once for each."""
    c = case("gb200-nvl72", "llama3.1-70b")
    where = mapping(c.model, tp=8)
    whole, many = (prompt_step(c.machine, c.precision, chunked(where, k), prompt(16384.0)) for k in (np.inf, 2048.0))
    assert float(many.chunks) == 8.0
    layer = c.model.blocks[0][1]
    a, b = ({row.name: row for row in layer.rows(of, 8192)} for of in (whole, many))
    for name, row in b.items():
        assert float(row.tensor) * 8 == pytest.approx(float(a[name].tensor), rel=1e-12)
    # Seven times more: 64 heads and two of 8 for keys and values, 128 wide, from 8,192; and back; BF16, TP 8.
    for name, columns in (("qkv", (64 + 2 * 8) * 128), ("output", 64 * 128)):
        more = float(b[name].memory) * 8 - float(a[name].memory)
        assert more == pytest.approx(7 * 8192 * columns * 2 / 8, rel=1e-9)


# ------------------------------------------------------------------------------------------------------------ pipelines


def test_bubbles_of_a_chunked_prefill() -> None:
    """P = 4 stages and m = 8 equal chunks leave 3/11 of the time idle; so do 8 prompts of one chunk."""
    c = case("gb200-nvl72", "llama3.1-70b")
    free = changed(c.machine, scale_up_hop=0.0, launch=0.0)
    where = take(stack(c.model, [(4, 1, 1, 1, 0.0, 8)]), 0)
    found = of(PREFILL, c, where, prompt(8192.0), on=free, execution=ideal())
    # The head makes the last stage a little longer than the others.
    assert float(found.bubble_share) == pytest.approx(3 / 11, abs=0.002)
    one = take(stack(c.model, [(1, 1, 1, 1, 0.0, 8)]), 0)
    assert float(of(PREFILL, c, one, prompt(64.0)).bubble_share) == pytest.approx(0.0, abs=1e-12)


def test_a_pipeline_by_simulating_it() -> None:
    """Chunks walk through stages one after the other: a schedule chunk by chunk ends when the formula says."""
    c = case("gb200-nvl72", "deepseek-v3")
    n = 16
    where = chunked(take(stack(c.model, [(4, 1, 8, 8, 0.0, 1)]), 0), 2048.0)
    what = prompt(2048.0 * n)
    found = of(PREFILL, c, where, what)
    numbers = leaves((c.machine, c.execution, where))
    compiled = jax.jit(mean_and_last, static_argnums=0)
    ready = np.zeros(4)
    sizes = np.asarray(where.stages)
    for i in range(n):
        here = prompt_step(c.machine, c.precision, where, prompt(2048.0, 2048.0 * i))
        here = eqx.tree_at(lambda s: s.chunks, here, np.ones(()))
        single = compiled(c.model, numbers[0], numbers[1], numbers[2], here)
        # Stages as even as this model's cut makes them: 61 layers in four.
        stage = np.asarray([float(single.stage[0])] * 4) * (np.array([16, 15, 15, 15]) / 16)
        at = 0.0
        for s in range(4):
            at = max(at, ready[s]) + stage[s]
            ready[s] = at
    assert sizes.shape[1] == len(c.model.blocks) + 1
    assert float(found.ttft_s) == pytest.approx(ready[-1], rel=0.05)


# ---------------------------------------------------------------------------------------------------------------- serve


def served(
    c: Any, where: Mapping, flying: float, *, isl: float = 1000.0, osl: float = 1000.0, **framework: float
) -> Metrics:
    return of(SERVE, c, where, Load(flying, 0.0, 0.0, 0.0, osl, isl, Framework(**framework)))


def test_a_single_request_is_served_at_its_own_pace() -> None:
    c = case("b200", "gpt-oss-120b")
    where = mapping(c.model, tp=8)
    found = served(c, where, 1.0)
    alone = of(DECODE, c, where, Load(1.0, 1500.0, 0.0, 0.0, 1000.0))
    assert float(found.tpot_s) == pytest.approx(float(alone.tpot_s), rel=1e-12)
    assert float(found.prefill_share) == 0.0
    slow = served(c, where, 1.0, step_overhead=2e-3, sequence_overhead=1e-4)
    assert float(slow.tpot_s) == pytest.approx(float(found.tpot_s) + 2.1e-3, rel=1e-12)
    # One request after the other: prompt, then the answer.
    rate = 1000.0 / (float(found.ttft_s) + 999 * float(found.tpot_s))
    assert float(found.tokens_per_s) == pytest.approx(rate, rel=1e-12)


#: Only memory takes time: 1 TB/s, so that seconds are bytes.
MEMORY_ALONE = machine(
    **dict.fromkeys(RATES, 1e30) | {"memory_bandwidth": 1e12, "power_limit": 1e30} | dict.fromkeys(LATENCIES, 0.0)
)


def _bytes_of_a_chunk(name: str, of_stage: float, isl: float, chunks: float, flying: float) -> float:
    """Bytes that a chunk adds to a decode step on one of eight chips, per stage, by hand.

    The chunks alone read every weight; in a step that reads them anyway only activations, keys and values are left, and
    experts that the step's own tokens leave out.  ``of_stage`` is the share of the layers that a stage has.
    """
    c = case("gb200-nvl72", name)
    where = chunked(mapping(c.model, tp=8), isl / chunks)
    alone = 1e12 * float(of(PREFILL, c, where, prompt(isl), on=MEMORY_ALONE, execution=ideal()).ttft_s)
    width, vocab = (8192, 128_256) if name.startswith("llama") else (2880, 201_088)
    # The head and sampling, of one token: weights, activations in and out, logits read and written; BF16 all.
    head = 2.0 * (vocab * width / 8 + width + vocab / 8 + 2 * vocab / 8)
    embedded = 4.0 * isl * width
    if name.startswith("llama"):
        weights = 80 * 2.0 * (width * (64 + 16) * 128 + width * width + 3 * width * 28672) / 8
        known = 0.0
    else:
        # 36 layers; each chip keeps the whole router and an eighth of each of 128 experts, 4.25 bits, 4 routes.
        weights = 36 * 2.0 * (width * (64 + 16) * 64 / 8 + 64 * 64 * width / 8 + width * 128)
        expert = 36 * (3 * width * 2880 + 2 * 2880 + width) * 4.25 / 8 / 8

        def hit(tokens: float) -> float:
            return 128 * (1 - (1 - 4 / 128) ** tokens)

        known = expert * chunks * (hit(isl / chunks) - (hit(flying + isl / chunks) - hit(flying)))
    layers = alone - head - embedded - chunks * weights - known
    # The embedding stands on the first stage, which is not the longest of several.
    return layers / chunks * of_stage + (embedded / chunks if of_stage == 1.0 else 0.0)


@pytest.mark.parametrize(
    ("name", "pp", "isl", "chunks", "osl", "flying"),
    [
        ("llama3.1-70b", 1, 512.0, 1, 512.0, 64.0), ("llama3.1-70b", 1, 4096.0, 2, 512.0, 64.0),
        ("llama3.1-70b", 1, 4096.0, 2, 1024.0, 7.0), ("llama3.1-70b", 2, 4096.0, 4, 512.0, 32.0),
        ("gpt-oss-120b", 1, 512.0, 1, 512.0, 64.0), ("gpt-oss-120b", 1, 2048.0, 4, 256.0, 3.0),
    ],
)  # fmt: skip
def test_prompts_of_others_stretch_a_share_of_the_steps(
    name: str, pp: int, isl: float, chunks: int, osl: float, flying: float
) -> None:
    """TPOT = t + (C - 1)/osl (n + P - 1) x, with x by hand: a mixed step reads weights once."""
    c = case("gb200-nvl72", name)
    where = chunked(mapping(c.model, pp=pp, tp=8), isl / chunks)
    found = of(SERVE, c, where, Load(flying, 0.0, 0.0, 0.0, osl, isl, Framework()), MEMORY_ALONE, ideal())
    steps = of(DECODE, c, where, Load(flying, isl + osl / 2.0, 0.0, 0.0, osl), MEMORY_ALONE, ideal())
    longer = _bytes_of_a_chunk(name, 1.0 / pp, isl, chunks, flying) / 1e12
    # As many micro-batches as stages are in flight.
    burst = (flying * pp - 1.0) / osl * (chunks + pp - 1.0) * longer
    assert float(found.tpot_s) - float(steps.tpot_s) == pytest.approx(burst, rel=1e-6)
    assert float(found.prefill_share) * float(found.tpot_s) == pytest.approx(burst, rel=1e-6)


def test_a_single_user_waits_for_no_prompt_of_others() -> None:
    """However short the answer: the own prompt slows no step after it, and passes stages as in prefill."""
    c = case("b200", "deepseek-v3")
    for pp, tp in ((1, 8), (4, 2)):
        where = take(stack(c.model, [(pp, tp, 1, tp, 0.0, 1, 8192.0)]), 0)
        for isl, osl in ((131_072.0, 4.0), (32_768.0, 16.0), (8192.0, 1024.0)):
            found = served(c, where, 1.0, isl=isl, osl=osl)
            alone = of(DECODE, c, where, Load(1.0, isl + osl / 2.0, 0.0, 0.0, osl))
            assert float(found.tpot_s) == pytest.approx(float(alone.tpot_s), rel=1e-12)
            ttft = float(of(PREFILL, c, where, prompt(isl)).ttft_s)
            # A pipeline's drain goes by the last chunk there and by the mean one here.
            least = ttft if pp == 1 else 0.8 * ttft
            assert least < float(found.ttft_s) < 1.12 * ttft + 2.0 * float(alone.tpot_s)


def test_an_answer_costs_the_same_joules_however_slow_the_host() -> None:
    c = case("b200", "gpt-oss-120b")
    where = mapping(c.model, tp=8)
    joules = []
    for overhead in (0.0, 5e-3):
        found = served(c, where, 16.0, step_overhead=overhead, awake=0.0, effort=1.0)
        assert float(found.throttled) == 0.0
        joules.append((float(found.board_power_w) - float(c.machine.static_power)) / float(found.tokens_per_s))
    assert joules[0] == pytest.approx(joules[1], rel=1e-9)


def test_short_prompts_share_a_chunk_where_several_come_per_step() -> None:
    """Dense, memory alone: weights are read once however many prompts join, so x is what one prompt adds, p times."""
    c = case("gb200-nvl72", "llama3.1-70b")
    isl, osl, flying = 128.0, 64.0, 257.0

    def found(chunk: float, flying: float = flying) -> tuple[float, float]:
        where = chunked(mapping(c.model, tp=8), chunk)
        on = (MEMORY_ALONE, ideal())
        serve = of(SERVE, c, where, Load(flying, 0.0, 0.0, 0.0, osl, isl, Framework()), *on)
        steps = of(DECODE, c, where, Load(flying, isl + osl / 2.0, 0.0, 0.0, osl), *on)
        return float(serve.tpot_s), float(steps.tpot_s)

    longer = _bytes_of_a_chunk("llama3.1-70b", 1.0, isl, 1, flying) / 1e12
    for chunk in (8192.0, 256.0, 128.0):  # four prompts per step: one chunk of four, two of two, four of one
        tpot, step = found(chunk)
        assert tpot - step == pytest.approx(4.0 * longer, rel=1e-6)
    # An expert that one prompt has called is there for the others: four together cost less than four apart.
    c = case("gb200-nvl72", "gpt-oss-120b")
    (together, step), (apart, _) = found(8192.0), found(128.0)
    assert 0.0 < together - step < apart - step


@pytest.mark.parametrize("pp", [1, 3])
def test_one_more_request_never_serves_sooner_where_prompts_are_short(pp: int) -> None:
    c = case("b200", "deepseek-v3.2")
    where = stack(c.model, [(pp, 1, 1, 1, 0.0, pp, 8192.0)] * 120)
    load = Load(np.geomspace(1.0, 2000.0, 120), 5894.0, 0.0, 0.0, 10.0, 18.2, Framework())
    found = evaluate_points(c.model, c.execution, c.precision, c.machine, where, load, phase=SERVE).tpot_s
    assert np.all(np.diff(found) >= 0.0)


def test_more_requests_in_flight_answer_more_tokens_and_each_more_slowly() -> None:
    c = case("h200", "deepseek-v3")
    where = mapping(c.model, tp=8, ep=8)
    found = [served(c, where, x, isl=8192.0, osl=1024.0, decoding=0.96) for x in (2.0, 4.0, 16.0, 64.0, 256.0)]
    tpot, rate = ([float(getattr(f, k)) for f in found] for k in ("tpot_s", "tokens_per_s"))
    assert tpot == sorted(tpot)
    assert rate == sorted(rate)


# ------------------------------------------------------------------------------------------------ derivatives, refusals


@pytest.mark.parametrize("phase", [PREFILL, SERVE])
def test_derivatives_of_every_regime(phase: Phase) -> None:
    c = case("gb200-nvl72", "kimi-k3")
    where = chunked(mapping(c.model, pp=2, tp=2, dp=2, ep=4), 4096.0)
    what = Load(3.0, 10_000.0, 0.0, 0.0, 700.0, 9000.0)
    on, execution, precision, where, what = leaves((c.machine, c.execution, c.precision, where, what))
    what = eqx.tree_at(lambda x: x.skew, what, 0.0)

    def log_time(numbers: Any) -> Any:
        return jax.numpy.log(phase.evaluate(c.model, *numbers, precision, where, what).time_s)

    flat, tree = jax.tree.flatten((on, execution))
    slopes = np.asarray(jax.tree.leaves(jax.grad(log_time)((on, execution))))
    scale = np.asarray([abs(float(x)) or 1.0 for x in flat])
    assert np.all(np.isfinite(slopes))
    norm = np.linalg.norm(slopes * scale)
    call = jax.jit(lambda numbers: log_time(jax.tree.unflatten(tree, numbers)))
    for i in range(len(flat)):
        h = 1e-6 * scale[i]
        up, down = ([x + (s if j == i else 0.0) for j, x in enumerate(flat)] for s in (h, -h))
        difference = (float(call(up)) - float(call(down))) / (2 * h)
        assert abs(difference - slopes[i]) * scale[i] < 1e-5 * norm, i


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"phase": "prefill"}, "--new: is missing"),
        ({"phase": "midfill", "new": 10.0}, "--cached: is missing"),
        ({"phase": "decode"}, "--context: is missing"),
        ({"phase": "serve", "isl": 10.0}, "--osl: is missing"),
        ({"phase": "prefill", "new": 10.0, "cached": 5.0}, "--cached: has no meaning"),
        ({"phase": "prefill", "new": 10.0, "tpot": 0.1}, "--tpot: has no meaning"),
        ({"phase": "decode", "context": 10.0, "ttft": 0.1}, "--ttft: has no meaning"),
        ({"phase": "decode", "context": 10.0, "framework": "vllm"}, "--framework: has no meaning"),
        ({"phase": "prefill", "new": float("nan")}, "--new: nan is not"),
        ({"phase": "prefill", "new": 0.0}, "--new: 0.0 is not"),
        ({"phase": "midfill", "new": 1.0, "cached": -1.0}, "--cached: -1.0"),
        ({"phase": "prefill", "new": 9.0, "drafts": 2.0}, "--drafts"),
        ({"phase": "serve", "isl": 9.0, "osl": 9.0, "batch": 2.0, "concurrency": 2.0}, "--batch"),
        ({"phase": "training", "new": 9.0}, "--phase: unknown phase"),
    ],
)
def test_what_a_regime_cannot_mean(words: dict[str, Any], told: str) -> None:
    with pytest.raises(CodesignError) as caught:
        Request(**words)
    assert told in str(caught.value)


def test_decode_is_the_same_pass_in_every_regime() -> None:
    """`decode` of a case and the step that serving runs agree; a check that the phases share one pass."""
    c = case("b200", "kimi-k2.5")
    where = mapping(c.model, tp=8, ep=8)
    numbers = leaves((c.machine, c.execution, c.precision, where, Load(7.0, 5000.0, 0.0, 0.0, 1000.0)))
    numbers = eqx.tree_at(lambda x: x[-1].skew, numbers, 0.0)
    assert float(served(c, where, 7.0, isl=4500.0).pass_s) == pytest.approx(
        float(decode(c.model, *numbers).pass_s), rel=1e-12
    )
