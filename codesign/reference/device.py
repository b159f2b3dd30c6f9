"""The device at hand as a machine: its rates measured, compiled layers timed, their times predicted from those rates.

Measured: copy bandwidth, the rate of a float32 matrix product, exponentials, what one dependent kernel inside a program
costs, and what it costs to start a program.  They make a `codesign.machine.Machine`, and `codesign.execution.time_of`
makes seconds of the layers' own rows, with every tensor in 4 bytes.  A few efficiencies are fitted on half of the
sizes, and the error is told on the others.  Layers come in stacks whose weights or caches outgrow the caches of a CPU.

Timed are feed-forward layers, grouped-query decode in place, and a bank of experts that each get the same tokens (as
a batched product: XLA's CPU backend has no grouped one, see `codesign.reference.programs`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.optimize import least_squares

from codesign.execution import Execution, ideal, time_of
from codesign.lanes import TENSOR_DTYPES, Row
from codesign.layers import gqa, mlp, moe
from codesign.machine import Machine
from codesign.reference.case import round_machine, step_of
from codesign.reference.gqa import GQA
from codesign.reference.mlp import MLP, activated
from codesign.reference.parts import ALONE, Draw

SCHEMA = "codesign.measure/1"

#: Bytes that the weights or caches of one timed stack have at least, so that they do not stay in a CPU's cache.
LEAST_BYTES = 100e6

#: What is fitted, with where each begins: the share of the matmul rate that products with many rows reach, the rows
#: at which they reach half of it, and the share that a scan reaches.
FITTED = {"products": 0.9, "rows_half": 8.0, "scan": 0.3}


@dataclass(frozen=True)
class Timed:
    """A stack of equal layers: what it is, its rows, how many there are, and its least seconds.

    ``product`` is the matmul rate just before and after [FLOP/s]: a computer that others use too is not always as fast.
    """

    kind: str
    size: str
    rows: tuple[Row, ...]
    layers: int
    seconds: float
    held_out: bool = False
    product: float = 0.0


def least_seconds(program: Callable[[], Any], repeats: int = 5) -> float:
    """Least time of a warm program [s]."""
    jax.block_until_ready(program())
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program())
        found.append(time.perf_counter() - start)
    return min(found)


def rates() -> dict[str, float]:
    """Measure the device.

    Returns:
        ``copy_bytes_per_s`` (read and written), ``matmul_flop_per_s``, ``exponentials_per_s``, ``launch_s`` of one
        dependent kernel, ``start_s`` of one program.
    """
    draw = Draw(0)
    big, square, wide = draw.normal(1 << 25), draw.normal(2048, 2048), draw.normal(1 << 22)
    held, double = [big], jax.jit(lambda x: x * 1.5, donate_argnums=0)

    def in_place() -> jax.Array:  # no new pages, which an operating system would have to clear
        held[0] = double(held[0])
        return held[0]

    copy = least_seconds(in_place)
    product = least_seconds(partial(jax.jit(jnp.matmul), square, square))
    exponentials = least_seconds(partial(jax.jit(lambda x: jnp.sum(jnp.exp(x))), wide))
    few, small = draw.normal(32, 32), draw.normal(32, 32) * 0.1

    def chain(x: jax.Array, y: jax.Array, count: int) -> jax.Array:
        for _ in range(count):
            x = x @ y
        return x

    short, long = (least_seconds(partial(jax.jit(partial(chain, count=count)), few, small), 50) for count in (1, 65))
    return {
        "copy_bytes_per_s": 2 * held[0].nbytes / copy,
        "matmul_flop_per_s": 2 * 2048**3 / product,
        "exponentials_per_s": wide.size / exponentials,
        "launch_s": max(long - short, 1e-9) / 64,
        "start_s": short,
    }


def machine_of(measured: dict[str, float]) -> Machine:
    """The device as a machine whose only speeds are the measured ones; an exponential is one vector operation."""
    return round_machine(
        memory_bandwidth=measured["copy_bytes_per_s"], tensor_bf16=measured["matmul_flop_per_s"],
        tensor_fp8=measured["matmul_flop_per_s"], tensor_fp4=measured["matmul_flop_per_s"],
        vector_rate=measured["exponentials_per_s"], exponential_ops=1.0, launch=measured["launch_s"],
        all_reduce_setup=0.0, all_to_all_setup=0.0, scale_up_hop=0.0, scale_out_hop=0.0,
    )  # fmt: skip


def execution_of(fitted: dict[str, float]) -> Execution:
    """The speed of light with the fitted efficiencies."""
    products: dict[str, Any] = dict.fromkeys(TENSOR_DTYPES, fitted["products"])
    half: dict[str, Any] = dict.fromkeys(TENSOR_DTYPES, fitted["rows_half"])
    return replace(ideal(), tensor=products, rows_half=half, attention_tensor=fitted["scan"])


def predicted(stack: Timed, measured: dict[str, float], fitted: dict[str, float]) -> float:
    """Seconds of a stack: the start of a program and every row of every layer."""
    here = measured | ({"matmul_flop_per_s": stack.product} if stack.product else {})
    machine, execution = machine_of(here), execution_of(fitted)
    return measured["start_s"] + stack.layers * sum(float(time_of(row, machine, execution).time) for row in stack.rows)


def _mlp(hidden: int, tokens: int) -> Timed:
    shape = mlp.MLP(inner=4 * hidden)
    layers = max(1, round(LEAST_BYTES / (12 * hidden * hidden * 4)))
    split = [nnx.split(MLP(shape, hidden, Draw(i))) for i in range(layers)]
    states = [state for _, state in split]

    @jax.jit
    def run(states: Any, x: jax.Array) -> jax.Array:
        for (graph, _), state in zip(split, states, strict=True):
            x = nnx.merge(graph, state)(x)
        return x

    seconds = least_seconds(partial(run, states, Draw(99).normal(tokens, hidden)))
    rows = tuple(shape.rows(step_of(ALONE, batch=tokens), hidden))
    return Timed("feed-forward", f"hidden {hidden}, {tokens} tokens", rows, layers, seconds)


def _experts(width: int, tokens: int, experts: int = 8) -> Timed:
    shape = moe.MoE(experts=experts, top_k=experts, inner=2 * width)
    layers = max(1, round(LEAST_BYTES / (experts * 6 * width * width * 4)))
    banks = [
        (draw.normal(experts, width, 2, 2 * width) * 0.05, draw.normal(experts, 2 * width, width) * 0.05)
        for draw in map(Draw, range(layers))
    ]

    @jax.jit
    def run(banks: Any, x: jax.Array) -> jax.Array:
        for up, down in banks:
            flat = jnp.einsum("eth,ehi->eti", x, up.reshape(experts, width, -1))
            x = jnp.einsum("eti,eih->eth", activated(flat.reshape(experts, -1, 2, 2 * width), gated=True), down)
        return x

    seconds = least_seconds(partial(run, banks, Draw(99).normal(experts, tokens, width)))
    step = step_of(ALONE, batch=tokens)
    # A batched product is a plain one here: no routes are told apart.
    rows = tuple(row._replace(family="gemm") for row in shape.rows(step, width) if row.name == "experts")
    return Timed("experts", f"{experts} of width {width}, {tokens} tokens each", rows, layers, seconds)


def _decode(batch: int, context: int, hidden: int = 512) -> Timed:
    shape = gqa.GQA(heads=16, kv_heads=4, key_width=64, value_width=64)
    layers = max(1, round(LEAST_BYTES / (batch * context * 4 * 128 * 4)))
    split = [nnx.split(GQA(shape, hidden, Draw(i), cached=context - 1, room=True)) for i in range(layers)]
    states = [state for _, state in split]
    draw = Draw(98)
    one = draw.normal(batch, 4, context, 64)
    caches = [(one + float(i), one - float(i)) for i in range(layers)]

    @partial(jax.jit, donate_argnums=2)
    def run(states: Any, x: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
        kept = []
        for (graph, _), state, cache in zip(split, states, caches, strict=True):
            y, cache = nnx.merge(graph, state)(x, cache)
            x = x + y
            kept.append(cache)
        return x, kept

    x, held = draw.normal(batch, 1, hidden), [caches]

    def once() -> jax.Array:
        y, held[0] = run(states, x, held[0])
        return y

    seconds = least_seconds(once)
    rows = tuple(shape.rows(step_of(ALONE, batch=batch, cached=context - 1), hidden))
    return Timed("decode", f"{batch} sequences of {context} tokens", rows, layers, seconds)


def stacks(small: bool = False) -> list[Timed]:
    """Time all stacks; every other size is held out.

    Args:
        small: only two sizes of each kind.
    """
    sizes: list[tuple[Any, list[tuple[int, int]]]] = [
        (_mlp, [(1024, 8), (1024, 32), (512, 64), (512, 128), (1024, 128), (1024, 64)]),
        (_experts, [(256, 4), (256, 16), (512, 16), (512, 8), (512, 32), (256, 64)]),
        (_decode, [(4, 1024), (4, 2048), (16, 1024), (8, 1024), (32, 512), (16, 512)]),
    ]
    square = Draw(0).normal(1024, 1024)
    product = partial(jax.jit(jnp.matmul), square, square)
    found, before = [], least_seconds(product)
    for kind, all_ in sizes:
        for i, size in enumerate(all_[2:4] if small else all_):
            stack = kind(*size)
            after = least_seconds(product)
            rate = 2 * 1024**3 / ((before + after) / 2.0)
            found.append(replace(stack, held_out=bool(i % 2), product=rate))
            before = after
    return found


def fit(timed: list[Timed], measured: dict[str, float]) -> dict[str, float]:
    """The efficiencies that make the logarithms of the times agree best on the sizes that are not held out."""
    used = [stack for stack in timed if not stack.held_out]

    def errors(logarithms: np.ndarray) -> np.ndarray:
        fitted = dict(zip(FITTED, np.exp(logarithms), strict=True))
        return np.array([np.log(predicted(stack, measured, fitted) / stack.seconds) for stack in used])

    found = least_squares(errors, np.log(list(FITTED.values())), loss="soft_l1", f_scale=0.2, max_nfev=60)
    return {name: float(np.exp(x)) for name, x in zip(FITTED, found.x, strict=True)}


def measure(small: bool = False) -> dict[str, Any]:
    """Measure, time, fit and predict; schema ``codesign.measure/1``."""
    began = time.perf_counter()
    measured = rates()
    timed = stacks(small)
    again = rates()  # other work may have come or gone meanwhile
    measured = {name: (measured[name] + again[name]) / 2.0 for name in measured}
    fitted = fit(timed, measured)
    rows = []
    for stack in timed:
        time_s = predicted(stack, measured, fitted)
        rows.append(
            {
                "kind": stack.kind, "size": stack.size, "layers": stack.layers, "held_out": stack.held_out,
                "measured_s": stack.seconds, "predicted_s": time_s, "error": time_s / stack.seconds - 1.0,
            }
        )  # fmt: skip
    held_out = [abs(row["error"]) for row in rows if row["held_out"]]
    device = jax.devices()[0]
    return {
        "schema": SCHEMA,
        "device": {"platform": device.platform, "kind": device.device_kind},
        "rates": measured,
        "fitted": fitted,
        "layers": rows,
        "held_out": {"n": len(held_out), "median_ape": float(np.median(held_out)), "worst_ape": max(held_out)},
        "seconds": time.perf_counter() - began,
    }
