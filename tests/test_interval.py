"""Intervals of answers: the same as those of the fit's own predictions, wider where less is known."""

import csv
import io
import math
from typing import Any

import numpy as np
import pytest

from codesign.calibration import serving, store
from codesign.calibration.constants import LAWS
from codesign.calibration.interval import half_width, slopes
from codesign.evaluation.case import Degrees, load_case
from codesign.evaluation.request import Request
from codesign.mapping import take
from codesign.runtime import prepare

prepare()


def answered(arch: str, model: str, request: Request, **degrees: Any) -> tuple[Any, Any, Any]:
    """The case in the request's regime, its mapping and its load."""
    case, overheads = load_case(arch, model, kv_dtype="fp8", weights="head=bf16").asked(request)
    mappings = case.mappings(Degrees(**degrees))
    batch = request.batches(mappings)
    return case, take(mappings, 0), request.load(overheads, float(np.ravel(batch)[0]))


def test_differences_give_the_interval_that_forward_mode_gives() -> None:
    # `validate` propagates by forward mode through its own program; an answer by differences through that of evaluate.
    row = {
        "hardware": "b200", "framework": "vllm", "model": "gpt-oss-120b", "precision": "fp4", "tp": "8", "ep": "1",
        "dp_attention": "0", "isl": "1024", "osl": "1024", "concurrency": "64",
    }  # fmt: skip
    told = next(iter(csv.DictReader(io.StringIO(serving.validate([row], folder=store.bundled())[1]))))
    wanted = math.log(float(told["predicted_tpot_s_hi"]) / float(told["predicted_tpot_s"]))
    request = Request(phase="serve", isl=921.6, osl=921.6, concurrency=64, framework="vllm")
    case, mapping, load = answered("b200", "gpt-oss-120b", request, tp=8, dp=1, ep=1, pp=1, chunk=8192)
    half, _ = half_width(case, mapping, load, "vllm", store.bundled())
    assert half == pytest.approx(wanted, rel=2e-3)


def test_slower_kernels_take_longer_and_own_latencies_stay() -> None:
    request = Request(context=32768.0, batch=8.0)
    case, mapping, load = answered("jalapeno", "gpt-oss-120b", request, tp=8, dp=1, ep=8, pp=1)
    by_name = dict(zip([law.name for law in LAWS], slopes(case, mapping, load), strict=False))
    assert all(by_name[name] == 0.0 for name in ("launches_gemm", "all_reduce", "stream_ops"))
    assert by_name["memory_experts"] < 0.0 and by_name["memory_gemm"] < 0.0
    assert np.isfinite(list(by_name.values())).all()


def test_what_was_not_measured_is_less_certain() -> None:
    request = Request(context=32768.0, batch=8.0)
    halves = {}
    for arch, model in (("b200", "gpt-oss-120b"), ("jalapeno", "gpt-oss-120b"), ("b200", "kimi-k3")):
        case, mapping, load = answered(arch, model, request, tp=8, dp=1, ep=8, pp=1)
        halves[arch, model] = half_width(case, mapping, load, None, store.bundled())
    known, chip, new = halves.values()
    assert 0.05 < known[0] < 0.5
    assert chip[0] > known[0] and "chips" in chip[1]
    assert new[0] > known[0] and "models" in new[1]
