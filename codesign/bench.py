"""How fast the model is: evaluations per second of a regime, the price of their gradient, and compile time.

Each evaluation has its own machine, mapping, batch and context, and returns all metrics and memory in float64, with the
kernel constants that `codesign evaluate` uses.  Points go through ``lax.map`` over blocks that fit the cache, ``vmap``
inside.  A matrix product in the same process says how fast the computer was at that moment.
"""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codesign.errors import CodesignError
from codesign.evaluation.case import Case, Degrees, load_case
from codesign.evaluation.document import mapping_document, memory_document, metrics_document
from codesign.evaluation.solve import leaves
from codesign.execution import ideal
from codesign.mapping import take
from codesign.model import Model
from codesign.objective.compiled import uniform
from codesign.objective.metrics import Framework, Load, Metrics
from codesign.objective.phases import DECODE, PHASES, Phase
from codesign.runtime import prepare

SCHEMA = "codesign.bench/1"

#: Points per block, and blocks: the block's intermediate values fit a core's second-level cache.
BLOCK, BLOCKS = 256, 128

#: Each program is timed so often, and the best counts.
REPEATS = 20

#: Machines differ from the catalog's by up to this factor, in each rate and energy on its own.
SPREAD = 1.3

#: What a random machine keeps: structure, and powers, which move together.
_KEPT = ("scale_up_domain", "scale_out_domain", "in_switch_reduction", "exponential_ops")
_POWERS = ("static_power", "power_limit", "chip_power", "provisioned_power")


@partial(jax.jit, static_argnums=(0, 1))
def _values(phase: Phase, model: Model, execution: Any, precision: Any, points: Any) -> Metrics:
    def one(machine: Any, mapping: Any, load: Load) -> Metrics:
        return phase.evaluate(model, machine, execution, precision, mapping, uniform(load))

    return jax.lax.map(lambda block: jax.vmap(one)(*block), points)


@partial(jax.jit, static_argnums=(0, 1))
def _gradients(phase: Phase, model: Model, execution: Any, precision: Any, points: Any) -> Any:
    def one(machine: Any, mapping: Any, load: Load) -> Any:
        def objective(numbers: tuple[Any, Any]) -> tuple[Any, Metrics]:
            found = phase.evaluate(model, numbers[0], numbers[1], precision, mapping, uniform(load))
            return jnp.log(found.tokens_per_s_per_megawatt), found

        return jax.value_and_grad(objective, has_aux=True)((machine, execution))

    return jax.lax.map(lambda block: jax.vmap(one)(*block), points)


def phase_of(name: str) -> Phase:
    """A regime by name.

    Raises:
        CodesignError: there is no such regime.
    """
    if name not in PHASES:
        raise CodesignError(f"unknown phase {name!r}", key="--phase", allowed=", ".join(PHASES))
    return PHASES[name]


def points_of(case: Case, count: int, seed: int) -> tuple[Any, Any, Load]:
    """Random machines, mappings and loads around a case, in its regime.

    Args:
        case: catalog machine and model to start from, and the regime.
        count: how many.
        seed: of the draw.

    Returns:
        machines, mappings and loads, each stacked along a first axis of ``count``.
    """
    draw = np.random.default_rng(seed)

    def spread() -> np.ndarray:
        return np.exp(draw.uniform(-math.log(SPREAD), math.log(SPREAD), count))

    watts = spread()
    fields = {}
    for name, value in vars(case.machine).items():
        factor = 1.0 if name in _KEPT else watts if name in _POWERS else spread()
        fields[name] = np.broadcast_to(float(value) * factor, (count,))
    mappings = case.mappings(Degrees())
    chosen = take(mappings, draw.integers(0, len(np.asarray(mappings.pp)), count))
    batch = np.exp2(draw.uniform(0.0, 8.0, count))
    long = 8192.0 * np.exp2(draw.uniform(0.0, 6.0, count))
    if case.phase is DECODE:
        one = Load(batch, long, 0.0, 0.0, 1000.0)
    else:  # 128 to 8,192 tokens behind nothing or a long prefix; answers of 500
        short = 128.0 * np.exp2(draw.uniform(0.0, 6.0, count))
        behind = long if case.phase.name == "midfill" else 0.0
        one = Load(batch, behind, 0.0, 0.0, 500.0, short, Framework())
    load = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, dtype=float), (count,)), one)
    return type(case.machine)(**fields), chosen, load


def _best(programs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Least seconds of each program, run in turns so that all see the same computer."""
    least = dict.fromkeys(programs, math.inf)
    for _ in range(repeats):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def bench(
    arch: str = "gb200-nvl72",
    model: str = "kimi-k3",
    phase: str = "decode",
    *,
    blocks: int = BLOCKS,
    block: int = BLOCK,
    repeats: int = REPEATS,
    seed: int = 0,
    workspace: Any = None,
) -> dict[str, Any]:
    """Measure this computer, warm, on all its cores.

    Args:
        arch, model: catalog names to draw points around.
        phase: regime of the points.
        blocks, block: blocks, and points in each.
        repeats: runs of each program, interleaved; the best counts.
        seed: of the points.
        workspace: folder looked up before the bundled catalog.

    Returns:
        schema ``codesign.bench/1``: ``evaluations_per_second`` (calibrated path), ``evaluations_per_second_ideal``,
        ``gradient_cost_ratio`` (value and gradient of log tokens/s/MW by every number of machine and kernel constants,
        over the value), ``compile_s`` (of the value's program, cache off), ``reference_gflops`` (float64 matrix
        product), ``points`` (five of them with inputs and results).

    Raises:
        CodesignError: unknown name or regime.
    """  # fmt: skip
    regime = phase_of(phase)
    prepare(quick_to_compile=False)
    jax.config.update("jax_enable_compilation_cache", False)
    case = replace(load_case(arch, model, workspace=workspace), phase=regime)
    count = blocks * block
    drawn = points_of(case, count, seed)
    points = jax.tree.map(lambda x: jnp.asarray(x, dtype=float).reshape(blocks, block, *x.shape[1:]), drawn)
    execution, precision, perfect = leaves((case.execution, case.precision, ideal()))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(c for c in range(1, cores + 1) if blocks % c == 0)
    shares = [jax.tree.map(lambda x, i=i: x[i::cores], points) for i in range(cores)]

    start = time.perf_counter()
    values = _values.lower(regime, case.model, execution, precision, shares[0]).compile()
    compile_s = time.perf_counter() - start
    values_ideal = _values.lower(regime, case.model, perfect, precision, shares[0]).compile()
    gradients = _gradients.lower(regime, case.model, execution, precision, shares[0]).compile()
    a = jnp.asarray(np.random.default_rng(seed).standard_normal((1024, 1024)))
    product = jax.jit(jnp.matmul)
    with ThreadPoolExecutor(cores) as pool:

        def all_cores(program: Any, execution: Any) -> Callable[[], Any]:
            return lambda: list(
                pool.map(lambda share: jax.block_until_ready(program(execution, precision, share)), shares)
            )

        programs = {
            "value": all_cores(values, execution),
            "gradient": all_cores(gradients, execution),
            "ideal": all_cores(values_ideal, perfect),
            "product": lambda: product(a, a),
        }
        for program in programs.values():
            jax.block_until_ready(program())
        least = _best(programs, repeats)
    parts = [values(execution, precision, share) for share in shares]
    joined = jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs], axis=1), *parts)
    results = jax.tree.map(lambda x: x.reshape(count, *x.shape[3:]), joined)
    return {
        "schema": SCHEMA,
        "arch": case.arch,
        "model": case.model_name,
        "phase": regime.name,
        "count": count,
        "evaluations_per_second": count / least["value"],
        "evaluations_per_second_ideal": count / least["ideal"],
        "gradient_cost_ratio": least["gradient"] / least["value"],
        "compile_s": compile_s,
        "reference_gflops": 2 * 1024**3 / least["product"] / 1e9,
        "points": [_point(drawn, results, i) for i in range(0, count, max(count // 5, 1))][:5],
    }


def _point(drawn: tuple[Any, Any, Load], results: Metrics, i: int) -> dict[str, Any]:
    """One point with what went in and what came out."""
    machine, mapping, load = (take(x, i) for x in drawn)
    found = take(results, i)
    return {
        "inputs": {
            "machine": {name: float(value) for name, value in vars(machine).items()},
            "mapping": mapping_document(mapping),
            "batch": float(load.batch),
            "context": float(load.context),
            "new": float(load.new),
        },
        "results": metrics_document(found, load) | memory_document(found),
    }
