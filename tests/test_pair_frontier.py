"""The frontier of pairs of pools: against pairs asked for one by one, and against the best pair of each target."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cases import case

import codesign
from codesign.errors import CodesignError
from codesign.evaluation.choose import GAP
from codesign.evaluation.pair import disaggregate_cases, frontier_of_pairs
from codesign.evaluation.pair_degrees import PairDegrees
from codesign.evaluation.request import Request
from codesign.glossary import unknown

PAIR: dict[str, Any] = {"experts_on": "jalapeno", "model": "deepseek-v3", "context": 32768.0, "kv_dtype": "fp8"}


def answered(ask: Any, tpot: float | None, batch: float | None, ep: int | None, degrees: dict[str, int]) -> Any:
    """Ask in the way of the API, with machines and model loaded once."""
    pools = (case(name, "deepseek-v3", kv_dtype="fp8") for name in ("gb200-nvl72", "jalapeno"))
    request = Request(context=32768.0, tpot=tpot, batch=batch)
    return ask(*pools, request, PairDegrees(**degrees, expert_ep=ep))


def best(tpot: float | None = None, batch: float | None = None, ep: int | None = None, **degrees: int) -> Any:
    return answered(disaggregate_cases, tpot, batch, ep, degrees)


@lru_cache
def points(tpot: float | None = None, batch: float | None = None, ep: int | None = None, **degrees: int) -> Any:
    return answered(frontier_of_pairs, tpot, batch, ep, degrees)


def fixed(document: dict[str, Any]) -> dict[str, Any]:
    """The flags that ask for a point again."""
    m = document["mapping"]
    return {k: m[k] for k in ("chips", "tp", "expert_chips", "ep", "microbatches")} | {
        "batch": document["request"]["batch"]
    }


def at(document: dict[str, Any]) -> tuple[float, float]:
    return document["metrics"]["tpot_s"], document["metrics"]["tokens_per_s_per_megawatt"]


def test_it_rises_in_both_and_each_point_can_be_asked_for_again() -> None:
    found = points(chips=16)
    assert len(found) > 10
    for a, b in pairwise(map(at, found)):
        assert a[0] < b[0]
        assert a[1] < b[1]
    for document in found[:: len(found) // 5]:
        assert document["schema"] == "codesign.pair/1"
        assert document["feasible"]
        assert document["margin"]["memory_bytes"] >= 0.0
        assert document["request"]["batch"].is_integer()
        m = document["metrics"]
        assert m["tokens_per_s_per_user"] * m["tpot_s"] == pytest.approx(1.0)
        again = best(**fixed(document))
        assert again["mapping"] == document["mapping"]
        np.testing.assert_allclose(at(again), at(document), rtol=1e-9)
    sections = (found[0], *(found[0][k] for k in ("margin", "mapping", "request", "metrics", "link")))
    assert (
        unknown(k for section in sections for k in section if k not in ("schema", "request", "metrics", "memory")) == []
    )


def test_no_pair_asked_for_by_itself_beats_it() -> None:
    # Points closer than the gap are left out; no other may lie above.
    found = [at(d) for d in points(chips=16)]
    rng = np.random.default_rng(7)
    tried = 0
    while tried < 40:
        tp, chips, m = rng.choice([1, 2, 4, 8, 16]), rng.choice([4, 6, 8, 16, 24, 48]), rng.integers(1, 5)
        ep = int(chips) // int(rng.choice([1, 2]))
        batch = float(np.round(np.exp(rng.uniform(0.0, np.log(300.0)))))
        one = best(chips=16, tp=int(tp), expert_chips=int(chips), ep=ep, microbatches=int(m), batch=batch)
        if not one["feasible"]:
            continue
        tried += 1
        time, rate = at(one)
        assert max((r for t, r in found if t <= time * (1 + 1e-12)), default=0.0) * (1.0 + GAP) >= rate * (1 - 1e-12)
        # Nor is a single point of it beaten outright.
        assert not [1 for t, r in found if time < t * (1 - 1e-9) and rate > r * (1.0 + GAP)]


def test_degrees_and_one_batch_leave_the_pareto_set_of_all_that_remain() -> None:
    """With a batch that is given there are few pairs: the whole table, by hand."""
    asked = {"chips": 8, "expert_chips": 8, "batch": 16.0}
    found = points(**asked)
    every = [
        best(**asked, tp=tp, ep=ep, microbatches=m) for tp in (1, 2, 4, 8) for ep in (1, 2, 4, 8) for m in (1, 2, 3, 4)
    ]
    every = [at(d) for d in every if d["feasible"]]
    pareto = [p for p in every if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in every)]
    for point in map(at, found):
        assert any(point == pytest.approx(p, rel=1e-9) for p in pareto)
    for point in sorted(pareto):
        assert any(t <= point[0] * (1 + 1e-9) and r * (1.0 + GAP) >= point[1] for t, r in map(at, found))


@pytest.mark.parametrize("tpot", [0.008, 0.02, 0.05])
def test_it_ends_at_the_best_pair_of_its_target(tpot: float) -> None:
    found, one = points(chips=16, tpot=tpot), best(chips=16, tpot=tpot)
    assert one["feasible"]
    assert all(d["metrics"]["tpot_s"] <= tpot for d in found)
    np.testing.assert_allclose(at(found[-1]), at(one), rtol=1e-9)
    # Its batch is the largest: one sequence more is too slow or does not fit.
    more = fixed(one)
    assert not best(**more | {"batch": more["batch"] + 1.0}, tpot=tpot)["feasible"]
    assert at(one)[1] >= max(r for t, r in map(at, points(chips=16)) if t <= tpot) * (1 - 1e-9)


def test_nothing_that_serves_is_an_empty_frontier() -> None:
    assert points(chips=16, tpot=1e-5) == []
    assert points(chips=16, expert_chips=1) == []


def test_the_link_moves_the_frontier() -> None:
    where = {**PAIR, "chips": 16, "expert_chips": 16}
    slow = [at(d) for d in codesign.frontier("gb200-nvl72", **where, link_bandwidth="1 GB/s")]
    fast = [at(d) for d in codesign.frontier("gb200-nvl72", **where, link_bandwidth="1 TB/s", link_latency=0.0)]
    assert fast[0][0] < slow[0][0]
    for time, rate in slow:
        assert max(r for t, r in fast if t <= time) * (1.0 + GAP) >= rate


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"phase": "prefill", "context": None, "new": 8192}, "--experts-on: two pools in prefill .*--phase decode"),
        ({"dp": 2}, "--dp: has no meaning for two pools .*--expert-chips"),
        ({"framework": "vllm"}, "--framework: has no meaning for two pools"),
        ({"experts_on": "jalapenno"}, "unknown system 'jalapenno' .*nearest: jalapeno"),
        ({"experts_on": "kimi-k3"}, "--experts-on: 'kimi-k3' is a model"),
        ({"chips": 16, "ep": 7}, "--ep: 7 ranks on any expert pool of jalapeno"),
        ({"chips": 16, "ep": 7, "expert_chips": 16}, "--ep: 7 ranks on 16 expert chips"),
        ({"expert_chips": 0}, "--expert-chips: 0 chips of jalapeno .*1 to 128"),
        ({"drafts": 50}, "--drafts: 50 drafts"),
        ({"copies": 1000}, "--copies: 1000 redundant experts .*0 to 256"),
        ({"context": None}, "--context: is missing"),
        ({"link_latency": "2 GB"}, "link_latency: '2 GB' has the wrong dimension"),
        ({"experts_on": None, "expert_chips": 16}, "--expert-chips: has no meaning without another system"),
        ({"experts_on": None, "link_bandwidth": 1e9}, "link_bandwidth: has no meaning without another system"),
    ],
)
def test_what_has_no_meaning_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(CodesignError, match=words):
        codesign.frontier("gb200-nvl72", **(PAIR | given))
