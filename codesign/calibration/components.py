"""Published figures of components and of whole deployments beside what the model says of them; no fit has seen them.

DeepEP's exchanges on H800, one message per route, 128 tokens of 7,168 channels on each chip, FP8 out and BF16 back; and
DeepSeek's own service of V3 and R1 on H800: decode on 18 nodes and prefill on 4, 32 redundant experts each.  What a
publisher leaves open is assumed, and said beside the row.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codesign.evaluation.case import Case, Degrees, load_case
from codesign.evaluation.choose import evaluate_case
from codesign.evaluation.document import Evaluation
from codesign.evaluation.request import Request
from codesign.execution import software_setup, time_of
from codesign.layers.base import Step
from codesign.layers.moe import MoE
from codesign.routing_choices import Routing

_DEEPEP = "DeepEP README and docs/legacy.md, V1 low-latency kernels, H800 with NVLink and 400 Gb/s CX7"
_SERVICE = "DeepSeek, DeepSeek-V3/R1 Inference System Overview (open-infra-index, 2025-03-01)"

#: Microseconds of dispatch and of combine by ranks.
DEEPEP = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}

#: Tokens per chip of those exchanges.
TOKENS = 128

#: Of DeepSeek's service: chips of a unit, tokens/s of a node of eight, seconds per output token, cached tokens in the
#: mean, share of the prompts' tokens that the cache had.
DECODE_CHIPS, DECODE_RATE, DECODE_TPOT, DECODE_CONTEXT = 144, 14_800.0, 1.0 / 21.0, 4989.0
PREFILL_CHIPS, PREFILL_RATE, CACHED = 32, 73_700.0, 0.563

#: Tokens of a prompt that are new, which the publisher does not say, and prompts together on a chip.
NEW, TOGETHER = 2048.0, 4.0

#: A row that is further from 1 than this needs a reason.
MISS = 0.3


def _row(name: str, predicted: float, published: float, unit: str, told: str, source: str) -> dict[str, Any]:
    return {
        "name": name, "predicted": predicted, "published": published, "unit": unit, "ratio": predicted / published,
        "told": told, "source": source,
    }  # fmt: skip


def exchanges(case: Case) -> Iterator[dict[str, Any]]:
    """DeepEP's dispatch and combine by ranks."""
    layer = next(layer for _, layer in case.model.blocks if isinstance(layer, MoE))
    machine = software_setup(case.machine, case.execution)
    for ranks, published in DEEPEP.items():
        step = Step(
            batch=float(TOKENS), new=1.0, cached=0.0, tp=1.0, dp=float(ranks), ep=float(ranks), context_split=0.0,
            skew=0.0, machine=machine, precision=case.precision, routing=Routing(per_route=1.0),
        )  # fmt: skip
        rows = {row.name: row for row in layer.rows(step, case.model.hidden)}
        for name, microseconds in zip(("dispatch", "combine"), published, strict=True):
            # Every chip is told alike: the mean chip's bytes, since the benchmark's routes are balanced.
            row = rows[name]
            even = row._replace(scale_up=row.scale_up * row.share, scale_out=row.scale_out * row.share)
            seconds = float(np.asarray(time_of(even, case.machine, case.execution).time))
            sent = float(np.asarray(even.scale_up + even.scale_out))
            out = float(np.asarray(even.scale_out))
            told = f"{sent / 1e6:.3g} MB to other chips, {out / 1e6:.3g} MB of them beyond the node"
            if abs(seconds * 1e6 / microseconds - 1.0) > MISS:
                rates = (sent / t / 1e9 for t in (seconds, microseconds * 1e-6))
                told += "; {:.0f} GB/s where the kernel sends {:.0f}".format(*rates)
                told += ": the share of a link is carried over from H200, whose links are 2.25 times as wide"
            yield _row(f"DeepEP {name}, EP {ranks}", seconds * 1e6, microseconds, "us", told, _DEEPEP)


def _apart(case: Case, request: Request, chips: int) -> Evaluation:
    """A request on one chip per instance and expert rank, whose exchanges hide behind another micro-batch."""
    degrees = Degrees(chips=chips, pp=1, tp=1, dp=chips, ep=chips, microbatches=1)
    return evaluate_case(case, replace(request, copies=32.0), degrees)


def service(case: Case) -> Iterator[dict[str, Any]]:
    """DeepSeek's decode and prefill of a node of eight chips, with the two-batch overlap that it tells of."""
    hidden = replace(case, execution=replace(case.execution, overlap=1.0))
    request = Request(context=DECODE_CONTEXT, tpot=DECODE_TPOT)
    decode, bare = (8.0 * _apart(c, request, DECODE_CHIPS).metrics["tokens_per_s_per_chip"] for c in (hidden, case))
    told = f"all exchanges hidden behind another micro-batch, without that {bare / DECODE_RATE:.2f} x; no drafts"
    name = "DeepSeek's decode of a node, EP 144, 21 tokens/s/user"
    yield _row(name, decode, DECODE_RATE, "token/s", told, _SERVICE)
    cached = NEW * CACHED / (1.0 - CACHED)
    request = Request(phase="midfill", cached=cached, new=NEW, batch=TOGETHER)
    rates = (_apart(c, request, PREFILL_CHIPS).metrics["context_tokens_per_s"] for c in (hidden, case))
    prefill, bare = (8.0 * rate / PREFILL_CHIPS for rate in rates)
    told = f"{NEW:g} new tokens behind {cached:.0f} cached and {TOGETHER:g} prompts a chip assumed; overlap as above, "
    told += f"without {bare / PREFILL_RATE:.2f} x"
    name = "DeepSeek's prefill of a node, EP 32, cached tokens counted"
    yield _row(name, prefill, PREFILL_RATE, "token/s", told, _SERVICE)


def components(workspace: str | Path | None = None) -> list[dict[str, Any]]:
    """All rows: name, predicted, published, unit, ratio, told (what was assumed, what decides), source."""
    case = load_case("h800", "deepseek-v3", workspace=workspace)
    return [*exchanges(case), *service(case)]
