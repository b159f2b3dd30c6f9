"""A made-up but consistent summary of a study: two technologies, three machines, three targets, two contexts.

Times follow from work and rates by a roofline small enough to read here, so that the accounts that a report draws up
(steps that end at TPOT, energy that ends at watts over tokens) can be checked by hand.
"""

import math
from typing import Any

TARGETS = (0.005, 0.02, 0.05)
CONTEXTS = (131072.0, 515000.0)
PRECISIONS = ("bf16", "fp8")
OUTPUT_WORDS = "TPOT = (total − TTFT)/(output − 1)"

MACHINE = {
    "memory_bandwidth": 15.4e12,
    "memory_capacity": 2.3e11,
    "tensor_bf16": 3.35e15,
    "tensor_fp8": 6.7e15,
    "tensor_fp4": 1.34e16,
    "vector_rate": 2.6e13,
    "exponential_ops": 4.0,
    "sram": 2e8,
    "scale_up_bandwidth": 6e11,
    "scale_up_domain": 128.0,
    "scale_up_hop": 4.8e-7,
    "scale_out_bandwidth": 2e11,
    "scale_out_domain": 2048.0,
    "scale_out_hop": 1.2e-6,
    "in_switch_reduction": 0.0,
    "launch": 1e-6,
    "all_reduce_setup": 9.7e-7,
    "all_to_all_setup": 3.9e-6,
    "memory_energy": 5.5e-11,
    "tensor_bf16_energy": 1.5e-13,
    "tensor_fp8_energy": 8e-14,
    "tensor_fp4_energy": 5e-14,
    "vector_energy": 1.2e-12,
    "scale_up_energy": 4e-11,
    "scale_out_energy": 4e-11,
    "static_power": 72.0,
    "power_limit": 700.0,
    "chip_power": 700.0,
    "provisioned_power": 1125.0,
    "dollars_per_hour": 1.56,
}

#: Work of one layer per sequence (bytes, FLOP, vector operations, scale-up bytes), bytes whatever the batch, launches.
LAYERS = {
    "kda.norm": (69, "bf16", 6e4, 0.0, 1e5, 0.0, 0.0, 1),
    "kda.qkv": (69, "bf16", 1e5, 2.2e8, 1e5, 0.0, 2.2e8, 3),
    "kda.state": (69, "bf16", 6.5e6, 6e6, 5e6, 0.0, 0.0, 2),
    "kda.output": (69, "bf16", 1e5, 1.2e8, 0.0, 0.0, 1.2e8, 1),
    "mla.qkv": (24, "bf16", 1e5, 1.6e8, 1e5, 0.0, 1.6e8, 4),
    "mla.scan": (24, "bf16", 576.0, 2.1e5, 600.0, 0.0, 0.0, 1),
    "mla.output": (24, "bf16", 1e5, 2.4e8, 0.0, 0.0, 2.4e8, 1),
    "moe.router": (92, "bf16", 1e4, 1.3e7, 1e4, 0.0, 1.3e7, 1),
    "moe.sort": (92, None, 2e5, 0.0, 1e5, 0.0, 0.0, 2),
    "moe.dispatch": (92, None, 4e4, 0.0, 0.0, 6e4, 0.0, 1),
    "moe.experts": (92, "fp8", 1e6, 1.1e9, 1e5, 0.0, 2.2e8, 2),
    "moe.combine": (92, None, 8e4, 0.0, 0.0, 1.2e5, 0.0, 1),
    "moe.shared": (92, "bf16", 1e5, 8.8e7, 1e4, 0.0, 8.8e7, 2),
    "head": (1, "bf16", 3e5, 2.3e9, 0.0, 0.0, 2.3e9, 1),
}


def operations(machine: dict[str, float], batch: float, context: float, wide: float) -> list[dict[str, Any]]:
    """Rows of a pass; ``wide`` are bytes per non-routed weight."""
    rows = []
    for name, (layers, dtype, moved, flop, vector, sent, fixed, launches) in LAYERS.items():
        per = context if name == "mla.scan" else 1.0
        work = {
            "memory": layers * (moved * per * batch + fixed * wide),
            "tensor": layers * flop * per * batch,
            "vector": layers * vector * per * batch,
            "scale_up": layers * sent * batch,
            "scale_out": 0.0,
        }
        rates = {
            "memory": 0.85 * machine["memory_bandwidth"],
            "tensor": 0.6 * machine[f"tensor_{dtype or 'bf16'}"],
            "vector": 0.6 * machine["vector_rate"],
            "scale_up": 0.8 * machine["scale_up_bandwidth"],
            "scale_out": 1e11,
        }
        lanes = {lane: work[lane] / rates[lane] for lane in work}
        setup = machine["all_to_all_setup"] if name in ("moe.dispatch", "moe.combine") else 0.0
        latency = layers * (launches * machine["launch"] + setup)
        time = max(lanes.values()) + latency
        waits = lanes | {"latency": latency}
        energy = (
            work["memory"] * machine["memory_energy"] + work["tensor"] * machine[f"tensor_{dtype or 'bf16'}_energy"]
        )
        energy += work["vector"] * machine["vector_energy"] + work["scale_up"] * machine["scale_up_energy"]
        rows.append(
            {
                "name": name,
                "layers": layers,
                "stage": "every stage",
                "dtype": dtype,
                "bound_by": max(waits, key=lambda lane: waits[lane]),
                "time_s": time,
                "lane_time_s": lanes,
                "efficiency": {"memory": 0.85, "tensor": 0.6, "vector": 0.6, "scale_up": 0.8, "scale_out": 1.0},
                "hidden_s": 0.5 * time if name == "moe.shared" else 0.0,
                "latency_s": latency,
                "memory_bytes": work["memory"],
                "tensor_flop": work["tensor"],
                "vector_op": work["vector"],
                "scale_up_bytes": work["scale_up"],
                "scale_out_bytes": 0.0,
                "energy_j": energy,
            }
        )
    return rows


def answer(machine: dict[str, float], context: float, wide: float, target: float) -> dict[str, Any]:
    """A machine on 64 chips (TP 1, DP 64, EP 64) with the largest batch that meets the target, or what is missing."""

    def tpot(batch: float) -> float:
        rows = operations(machine, batch, context, wide)
        return sum(r["time_s"] - r["hidden_s"] for r in rows)

    least = tpot(1.0)
    if least > target:
        metrics = {
            "tpot_s": least,
            "pass_s": least,
            "tokens_per_s_per_megawatt": 1.0 / least,
            "accepted_tokens_per_pass": 1.0,
        }
        return {
            "feasible": False,
            "least_tpot_s": least,
            "metrics": metrics,
            "operations": operations(machine, 1.0, context, wide),
            "missing": f"{(least - target) * 1e3:.2f} ms beyond the target",
        }
    low, high = 1.0, 4096.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tpot(middle) <= target else (low, middle)
    rows, seconds = operations(machine, low, context, wide), tpot(low)
    per_chip = low / seconds
    board = machine["static_power"] + sum(r["energy_j"] for r in rows) / seconds
    all_in = board + machine["provisioned_power"] - machine["chip_power"]
    metrics = {
        "tpot_s": seconds,
        "ttft_s": None,
        "pass_s": seconds,
        "accepted_tokens_per_pass": 1.0,
        "tokens_per_s": 64 * per_chip,
        "context_tokens_per_s": None,
        "tokens_per_s_per_chip": per_chip,
        "tokens_per_s_per_user": 1 / seconds,
        "tokens_per_s_per_megawatt": per_chip / machine["provisioned_power"] * 1e6,
        "tokens_per_s_per_megawatt_drawn": per_chip / all_in * 1e6,
        "energy_per_token_j": all_in / per_chip,
        "energy_per_query_j": 1000 * all_in / per_chip,
        "dollars_per_million_tokens": machine["dollars_per_hour"] / 3600 / per_chip * 1e6,
        "board_power_w": board,
        "all_in_power_w": all_in,
        "provisioned_power_w": machine["provisioned_power"],
        "throttled": False,
        "memory_per_chip_bytes": 1.5e11,
        "network_peak_bytes_per_s": 4e11,
        "network_mean_bytes_per_s": 3e10,
        "prefill_share": 0.0,
    }
    mapping = {
        "chips": 64,
        "pp": 1,
        "tp": 1,
        "dp": 64,
        "ep": 64,
        "moe_tp": 1,
        "attention_split": "heads",
        "microbatches": 1,
        "chunk": None,
    }
    memory = {
        "weights_bytes": 9e10,
        "kv_bytes": 5e10,
        "state_bytes": 1e10,
        "buffer_bytes": 0.0,
        "working_bytes": 1e9,
        "slack_bytes": machine["memory_capacity"] - 1.51e11,
        "capacity_bytes": machine["memory_capacity"],
    }
    return {
        "feasible": True,
        "least_tpot_s": least,
        "mapping": mapping,
        "request": {"batch": low},
        "metrics": metrics,
        "limited_by": "memory bandwidth; batch by the target",
        "operations": rows,
        "memory": memory,
        "machine": machine,
    }


MACHINES = {
    "gb300-nvl72": (
        "GB300 NVL72",
        "shipping",
        MACHINE
        | {
            "memory_bandwidth": 8e12,
            "scale_up_bandwidth": 9e11,
            "chip_power": 1400.0,
            "power_limit": 1400.0,
            "provisioned_power": 2100.0,
        },
    ),
    "vera-rubin-nvl72": (
        "Vera Rubin NVL72",
        "announced",
        MACHINE
        | {
            "memory_bandwidth": 22e12,
            "scale_up_bandwidth": 1.8e12,
            "chip_power": 2300.0,
            "power_limit": 2300.0,
            "provisioned_power": 3100.0,
        },
    ),
    "jalapeno": ("OpenAI Jalapeno (128 local)", "announced", MACHINE),
}

TECHNOLOGIES = {"hbm4": 1.2, "super-3d-ram": 2.4}


def design(technology: str, context: float, wide: float, target: float) -> dict[str, Any]:
    """An optimum: the reference machine with its bandwidth raised, and the diagnostics of a search."""
    gain = TECHNOLOGIES[technology] * (1.0 + 0.02 / (target + 0.02))
    machine = MACHINE | {
        "memory_bandwidth": MACHINE["memory_bandwidth"] * gain,
        "provisioned_power": 1050.0 + 60 * gain,
    }
    found = answer(machine, context, wide, target)
    if not found["feasible"]:
        return {"technology": technology, "feasible": False, "metrics": None, "operations": None}
    value = found["metrics"]["tokens_per_s_per_megawatt"]
    variables = {
        "memory_bandwidth": machine["memory_bandwidth"],
        "memory_capacity": 2e11 * (target / 0.02) ** 0.3,
        "scale_up_bandwidth": 6e11,
        "scale_up_domain": 128.0,
        "tensor_fp4": 1.0e16 * gain,
    }
    loss = 0.01 + 0.1 * target
    built = found["metrics"] | {"tokens_per_s_per_megawatt": found["metrics"]["tokens_per_s_per_megawatt"] * (1 - loss)}
    return found | {
        "technology": technology,
        "variables": variables,
        "budget_use": {
            "package_power": 1.0,
            "die_area": 0.83,
            "shoreline": 0.4 if technology != "hbm4" else 1.0,
            "thermal": 0.31,
        },
        "active_constraints": ["package_power"] + (["shoreline"] if technology == "hbm4" else []),
        "shadow_prices": {
            "package_power": {"left": 0.62, "right": 0.4},
            "shoreline": {"left": 0.1, "right": 0.1},
            "target_tpot": 0.35,
        },
        "kkt_residual": 3e-4,
        "elasticities": {
            "memory_bandwidth": 0.61,
            "provisioned_power": -1.0,
            "launch": -0.12,
            "tensor_bf16": 0.08,
            "vector_rate": 0.0,
            "scale_up_domain": 5.98,
        },
        "starts": [{"objective": value * math.exp(d), "overdraft": max(d, 0.0)} for d in (1e-4, -0.002, -0.03)],
        "convergence": [value * math.exp(-2.0 * 0.8**i) for i in range(60)],
        "violation": [0.3 * 0.8**i for i in range(60)],
        "interval": {"tokens_per_s_per_megawatt": [0.7 * value, 1.2 * value]},
        "rounded": {
            "variables": variables | {"memory_capacity": 216e9},
            "mapping": found["mapping"],
            "request": {"batch": math.floor(found["request"]["batch"])},
            "metrics": built,
            "loss": loss,
        },
    }


def sweep(
    arch: str,
    parameter: str,
    values: list[float],
    metric: list[float | None],
    value: float,
    crossing: float | None = None,
    **more: float,
) -> dict[str, Any]:
    """One unknown moved over its range at two targets, against Vera Rubin."""
    cases = [
        {
            "attention": "bf16",
            "target_s": target,
            "metric": metric,
            "reference": {"vera-rubin-nvl72": 1.0e5},
            "crossings": {"vera-rubin-nvl72": [crossing]} if crossing else {},
            **more,
        }
        for target in (0.02, 0.05)
    ]
    return {
        "arch": arch,
        "parameter": parameter,
        "values": values,
        "value": value,
        "range": [values[0], values[-1]],
        "metric": metric,
        "reference": {"vera-rubin-nvl72": 1.0e5},
        "cases": cases,
        "note": "against vera-rubin-nvl72 turns at 20 ms",
        "swing": 0.4,
        "kind": "assumption",
    }


def make_summary() -> dict[str, Any]:
    """The whole summary, of schema ``codesign.study/1``."""
    problems, frontiers = [], []
    for context in CONTEXTS:
        for precision in PRECISIONS:
            wide = 2.0 if precision == "bf16" else 1.0
            for target in TARGETS:
                designs = [design(t, context, wide, target) for t in TECHNOLOGIES]
                machines = [
                    {
                        "arch": arch,
                        "title": title,
                        "status": status,
                        "memory_technology": "hbm4" if arch != "gb300-nvl72" else "hbm3e",
                        "kinds": ["datasheet", "assumption"],
                        **answer(m, context, wide, target),
                    }
                    for arch, (title, status, m) in MACHINES.items()
                ]
                good = [d for d in designs if d["feasible"]]
                best = max(good, key=lambda d: d["metrics"]["tokens_per_s_per_megawatt"], default=None)
                problems.append(
                    {
                        "id": f"c{context:.0f}-{precision}-t{target:g}",
                        "context": context,
                        "precision": precision,
                        "target_s": target,
                        "best": best,
                        "designs": designs,
                        "machines": machines,
                        "gain_over_best_machine": None,
                        "note": "",
                    }
                )
            for arch, (_, _, machine) in MACHINES.items():
                points = [answer(machine, context, wide, 0.004 * 1.25**i) for i in range(14)]
                frontiers.append(
                    {
                        "arch": arch,
                        "context": context,
                        "precision": precision,
                        "points": [
                            {
                                **{
                                    k: p["metrics"][k]
                                    for k in ("tpot_s", "tokens_per_s_per_megawatt", "tokens_per_s_per_chip")
                                },
                                "mapping": p["mapping"],
                                "batch": p["request"]["batch"],
                            }
                            for p in points
                            if p["feasible"]
                        ],
                    }
                )
    return {
        "schema": "codesign.study/1",
        "name": "made-up",
        "title": "Tokens per megawatt, made up",
        "question": "Which mix serves the most?",
        "seed": 0,
        "power_basis": "provisioned",
        "model": "kimi-k3",
        "phase": "decode",
        "targets_s": list(TARGETS),
        "contexts": list(CONTEXTS),
        "precisions": [
            {"name": "bf16", "weights": "bf16", "kv": "fp8", "attention": "bf16"},
            {"name": "fp8", "weights": "fp8", "kv": "fp8", "attention": "bf16"},
        ],
        "technologies": list(TECHNOLOGIES),
        "machines": list(MACHINES),
        "variables": [
            {"name": "memory_bandwidth", "unit": "B/s", "lo": 1e12, "hi": 1e14},
            {"name": "memory_capacity", "unit": "B", "lo": 3e10, "hi": 1e12},
            {"name": "scale_up_bandwidth", "unit": "B/s", "lo": 1e11, "hi": 4e12},
            {"name": "scale_up_domain", "unit": "chip", "lo": 8, "hi": 128},
            {"name": "tensor_fp4", "unit": "FLOP/s", "lo": 1e15, "hi": 1e17},
        ],
        "budgets": [
            {"name": "package_power", "limit": 700.0, "unit": "W", "note": "as Jalapeno"},
            {"name": "die_area", "limit": 8.4e-4, "unit": "m^2", "note": ""},
        ],
        "problems": problems,
        "frontiers": frontiers,
        "power_table": [
            {
                "part": "H100",
                "published_w": 700.0,
                "envelope_w": 690.0,
                "ratio": 690 / 700,
                "fitted": True,
                "source": "maker",
            },
            {
                "part": "B300",
                "published_w": 1100.0,
                "envelope_w": 1210.0,
                "ratio": 1.1,
                "fitted": False,
                "source": "maker",
            },
        ],
        "sensitivity": [
            sweep("jalapeno", "all_unknowns", [0.0, 0.5, 1.0], [1.3e5, 1.1e5, 0.8e5], 0.0, worst=0.8e5, best=1.6e5),
            sweep("jalapeno", "tensor_fp8", [3.35e15, 5e15, 6.7e15], [0.91e5, 1.2e5, 1.3e5], 6.7e15, crossing=3.9e15),
            sweep("jalapeno", "scale_up_hop", [2e-7, 4.8e-7, 8e-7], [1.32e5, 1.3e5, None], 4.8e-7),
            {
                "arch": "vera-rubin-nvl72",
                "parameter": "launch",
                "values": [5e-7, 1e-6],
                "metric": [1.1e5, 1.0e5],
                "note": "",
            },
        ],
        "held_back": [
            {
                "chip": "h200",
                "model": "gpt-oss-120b",
                "framework": "vllm",
                "concurrency": 8.0,
                "measured_s": 0.01,
                "predicted_s": 0.011,
                "half_width": 0.2,
            },
            {
                "chip": "b200",
                "model": "gpt-oss-120b",
                "framework": "vllm",
                "concurrency": 64.0,
                "measured_s": 0.02,
                "predicted_s": 0.015,
                "half_width": 0.2,
            },
        ],
        "checks": [
            {
                "name": "K3 on GB300, TP 8, batch 1",
                "predicted": 128.0,
                "published": 111.0,
                "unit": "token/s",
                "source": "measured",
                "terms": "launches 61 %",
                "seconds": {"launches": 4.7e-3, "weights": 2.6e-3, "hops": 0.5e-3},
            },
            {
                "name": "gpt-oss-120b, Jalapeno, one user",
                "predicted": 1210.0,
                "published": 1459.0,
                "unit": "token/s",
                "source": "vendor",
                "terms": "hops",
            },
        ],
        "findings": ["Super 3D RAM leads at 20 ms.", "Launches bind at 5 ms <& more>."],
        "rests_on": {
            "assumption": ["jalapeno.tensor_fp8", "super-3d-ram.bandwidth_per_area"],
            "datasheet": ["jalapeno.memory_bandwidth"],
        },
        "execution": {"calibrated": False, "p": {"gemm": 8.0}},
        "warnings": ["not calibrated"],
    }
