"""A mixture served with copies, capacities and one message per route: rows, memory and results, against counting."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cases import ROUND, case, decoded, document, load, machine, mapping, step, work

from codesign.errors import CodesignError
from codesign.evaluation.choose import evaluate_case
from codesign.evaluation.request import Request
from codesign.layers.moe import MoE
from codesign.machine import TwoLevel
from codesign.objective.metrics import Framework, Load
from codesign.routing_choices import Routing

LAYER = MoE(experts=256, top_k=8, inner=2048)
HIDDEN = 7168


def served(what: Load, **choices) -> Load:
    return replace(what, routing=Routing(**choices))


def rows_of(routing: Routing | None, on=None, **degrees) -> dict:
    precision = case("h200", "deepseek-v3").precision
    here = replace(step(on or machine(scale_up_domain=64.0), precision, **degrees), routing=routing)
    return {row.name: row for row in LAYER.rows(here, HIDDEN)}


def mean(row, lane: str = "scale_up") -> float:
    """Work of the mean chip."""
    return float(getattr(row, lane) * row.share)


def test_the_energy_of_a_bank_is_that_of_its_experts_read_once() -> None:
    # One token on 64 ranks visits eight experts: the ranks read these eight, whatever the fullest of them reads.
    c = case("h200", "deepseek-v3")
    expert = LAYER.expert_parameters(HIDDEN) * c.precision.bytes["routed"]
    handled = 2.0 * (HIDDEN + LAYER.inner) * c.precision.bytes["expert_activation"]
    row = LAYER.rows(step(machine(), c.precision, dp=1, tp=64, ep=64, batch=1.0), HIDDEN)
    experts = next(r for r in row if r.name == "experts")
    assert experts.mean_memory is not None
    assert float(experts.mean_memory) * 64 == pytest.approx(8 * (expert + handled))
    assert float(experts.memory) > 1.2 * float(experts.mean_memory)


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_the_fullest_rank_receives_what_it_sends_back(skew: float) -> None:
    rows = rows_of(None, dp=32, ep=32, batch=16.0, skew=skew)
    p = case("h200", "deepseek-v3").precision.bytes
    # Beside its channels a token brings the numbers and gates of eight routes.
    messages = {"dispatch": HIDDEN * p["dispatch"] + 8 * 8, "combine": HIDDEN * p["combine"]}
    received, returned = (float(rows[x].scale_up) / message for x, message in messages.items())
    assert received == pytest.approx(returned)
    assert float(rows["dispatch"].share) < (0.9 if skew else 1.0)


def test_plain_choices_change_no_row() -> None:
    for degrees in ({"dp": 32, "ep": 32, "batch": 16.0}, {"dp": 8, "tp": 4, "ep": 32, "batch": 64.0, "skew": 0.7}):
        plain, chosen = rows_of(None, **degrees), rows_of(Routing(), **degrees)
        for name, row in plain.items():
            for a, b in zip(row[2:], chosen[name][2:], strict=True):
                assert a == b or float(a) == float(b), name


def test_a_message_per_route_sends_k_times_what_one_token_carries() -> None:
    once, each = (rows_of(Routing(per_route=x), dp=32, ep=32, batch=16.0) for x in (0.0, 1.0))
    width = HIDDEN * case("h200", "deepseek-v3").precision.bytes["dispatch"]
    # 16 tokens of a chip, 8 routes, 31 of 32 ranks are elsewhere; a number and a gate of 4 B go along per route.
    assert mean(each["dispatch"]) == pytest.approx(16 * 8 * 31 / 32 * (width + 8))
    # Once per rank: R (1 - C(248, 8)/C(256, 8)) ranks.
    missed = np.prod([(248 - i) / (256 - i) for i in range(8)])
    assert mean(once["dispatch"]) == pytest.approx(16 * 32 * (1 - missed) * 31 / 32 * (width + 64))
    messages = LAYER.messages(step(machine(), case("h200", "deepseek-v3").precision, dp=32, ep=32))
    assert float(messages[1]) == 8 * 31 / 32


def test_copies_flatten_the_work_and_cost_memory() -> None:
    c = case("h200", "deepseek-v3")
    where, what = mapping(c.model, dp=32, ep=32), replace(load(64.0, 4096.0), skew=0.9)
    plain, more = (work(c, where, w) for w in (what, served(what, copies=32.0)))
    assert more["moe.experts"]["tensor"] < 0.6 * plain["moe.experts"]["tensor"]
    a, b = (decoded(c, where, w) for w in (what, served(what, copies=32.0)))
    # Nine experts of 58 layers on a chip instead of eight.
    expert = LAYER.expert_parameters(HIDDEN) * c.precision.bytes["routed"]
    assert float(b.memory.weights - a.memory.weights) == pytest.approx(58 * expert)
    assert float(b.tpot_s) < float(a.tpot_s)
    held = [float(decoded(c, where, served(what, copies=x)).memory.weights) for x in (0.0, 0.5, 1.0, 32.0, 33.0)]
    assert held[0] == float(a.memory.weights)
    assert held[1] == pytest.approx((held[0] + held[2]) / 2)
    assert held[2] == held[3] < held[4]


def test_dropped_routes_are_neither_sent_nor_computed() -> None:
    degrees = {"dp": 32, "ep": 32, "batch": 16.0, "skew": 0.8}
    plain = rows_of(None, **degrees)
    dropped, moved = (rows_of(Routing(capacity=1.25, rerouted=x), **degrees) for x in (0.0, 1.0))
    sent = [mean(x["dispatch"]) for x in (dropped, moved, plain)]
    assert sent[0] < 0.75 * sent[1] == pytest.approx(0.75 * sent[2])
    flop = [float(x["experts"].tensor) for x in (dropped, moved, plain)]
    assert all(a < b for a, b in pairwise(flop))
    # Energy is paid by the mean chip: all routes where they are moved, fewer where dropped.
    paid = [mean(x["experts"], "tensor") for x in (dropped, moved, plain)]
    assert paid[1] == pytest.approx(paid[2])
    assert 0.6 < paid[0] / paid[2] < 0.7


def test_a_token_crosses_between_two_levels_once_per_domain() -> None:
    on = TwoLevel(**(ROUND | {"scale_up_domain": 32.0}))
    flat = machine(scale_up_domain=32.0)
    degrees = {"dp": 128, "ep": 128, "batch": 16.0}
    a, b = rows_of(None, on=flat, **degrees)["dispatch"], rows_of(None, on=on, **degrees)["dispatch"]
    # Eight routes over four domains reach 4 (1 - C(192, 8)/C(256, 8)) of them, three quarters of those elsewhere.
    missed = np.prod([(192 - i) / (256 - i) for i in range(8)])
    width = HIDDEN * case("h200", "deepseek-v3").precision.bytes["dispatch"]
    assert mean(b, "scale_out") == pytest.approx(16 * 4 * (1 - missed) * 0.75 * (width + 64))
    assert float(b.scale_out) < 0.6 * float(a.scale_out)
    # All of what is bound beyond is passed on by the chip it reaches, but for that chip's own.
    assert float(b.scale_up - a.scale_up) == pytest.approx(float(a.scale_out) * 31 / 32)
    every = rows_of(Routing(per_route=1.0), on=on, **degrees)["dispatch"]
    assert mean(every, "scale_out") == pytest.approx(16 * 8 * 127 / 128 * (width + 8) * 96 / 127)


def test_results_name_the_choices() -> None:
    c = case("h200", "deepseek-v3")
    where = mapping(c.model, dp=32, ep=32)
    asked = Request(context=4096.0, batch=64.0, skew=0.8, copies=32.0, capacity_factor=1.5, dispatch="route")
    what = asked.load(Framework(), 64.0)
    counts = document(c, where, what)["counts"]
    assert counts["routing"] == (
        "power law, exponent 0.8; 32 redundant experts; capacity factor 1.5, overflow dropped; one message per route"
    )
    assert 0.0 < counts["overflow_share"] < 0.5
    assert counts["messages_per_token_by_route"] == pytest.approx(8 * 31 / 32)
    assert counts["messages_per_token_once"] < counts["messages_per_token_by_route"]
    told = asked.document(what)
    assert (told["copies"], told["capacity_factor"], told["dispatch"]) == (32.0, 1.5, "route")
    plain = document(c, where, load(64.0, 4096.0))["counts"]
    assert plain["routing"] == "uniform"
    assert plain["overflow_share"] == 0.0
    with pytest.raises(CodesignError, match="0 to 256"):
        evaluate_case(c, Request(context=4096.0, batch=64.0, copies=300.0))


def test_tpot_is_continuous_in_every_choice() -> None:
    c = case("h200", "deepseek-v3")
    where, what = mapping(c.model, dp=32, ep=32), replace(load(64.0, 4096.0), skew=0.8)
    for name, values in (("copies", (0.0, 1.0, 7.3, 32.0)), ("capacity", (1.0, 1.7, 5.0)), ("per_route", (0.0, 1.0))):
        for value in values:
            a, b = (float(decoded(c, where, served(what, **{name: value + d})).tpot_s) for d in (0.0, 1e-7))
            assert b == pytest.approx(a, rel=1e-5), (name, value)
    plain = float(decoded(c, where, what).tpot_s)
    assert float(decoded(c, where, served(what)).tpot_s) == plain
    assert float(decoded(c, where, served(what, capacity=1e3)).tpot_s) == pytest.approx(plain, rel=1e-12)
