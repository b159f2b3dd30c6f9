"""An evaluation as a value and as the JSON of ``codesign evaluate`` (schema ``codesign.evaluation/1``)."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from codesign.evaluation.case import Case
from codesign.evaluation.operations import LANE_WORDS, binding, pass_table
from codesign.evaluation.request import Request
from codesign.glossary import EVALUATION
from codesign.lanes import TENSOR_DTYPES
from codesign.mapping import Mapping
from codesign.objective.metrics import Load, Metrics
from codesign.objective.prefill import chunks_of
from codesign.routing_choices import named_law

#: How the document calls constants of `codesign.execution.Execution` that it does not call as their fields.
CONSTANTS = {
    "overlap_p": "p", "hard": "ideal", "memory": "memory_efficiency", "tensor": "tensor_efficiency",
    "attention_tensor": "attention_tensor_efficiency", "vector": "vector_efficiency",
    "scale_up": "scale_up_efficiency", "scale_out": "scale_out_efficiency",
}  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """One request answered.

    Attributes:
        document: the JSON contract as a dict, SI units.
        point: the case in the request's regime, the mapping and the load that it is of.
    """

    document: dict[str, Any] = field(repr=False)
    point: tuple[Case, Mapping, Load] | None = field(default=None, repr=False)

    @property
    def feasible(self) -> bool:
        """Whether the target and the memory are met."""
        return self.document["feasible"]

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics by name, SI units."""
        return self.document["metrics"]

    @property
    def mapping(self) -> dict[str, Any]:
        """Degrees of the mapping."""
        return self.document["mapping"]

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Rows of the pass."""
        return self.document["operations"]

    @property
    def warnings(self) -> list[str]:
        """What the reader should know before relying on it."""
        return self.document["warnings"]

    def to_json(self) -> dict[str, Any]:
        """The document of schema ``codesign.evaluation/1``."""
        return self.document

    def __repr__(self) -> str:
        d, m = self.document, self.document["metrics"]
        name = "TPOT" if m["tpot_s"] else "TTFT"
        return (
            f"Evaluation({d['model']} on {d['arch']}, {name} {(m['tpot_s'] or m['ttft_s']) * 1e3:.3g} ms, "
            f"{m['tokens_per_s_per_megawatt']:,.0f} tokens/s/MW, limited by {d['limited_by']})"
        )


def mapping_document(mapping: Mapping, load: Load | None = None) -> dict[str, Any]:
    """Degrees of one mapping as the JSON names them; ``chunk`` in tokens where prompts come in chunks."""
    chunk = None
    if load is not None and float(np.asarray(load.new)):
        chunk = float(np.asarray(load.new)) / float(np.asarray(chunks_of(mapping, load)))
    pp, tp, dp, ep = (round(float(x)) for x in (mapping.pp, mapping.tp, mapping.dp, mapping.ep))
    return {
        "chips": pp * tp * dp, "pp": pp, "tp": tp, "dp": dp, "ep": ep, "moe_tp": tp * dp // ep,
        "attention_split": "context" if float(mapping.context_split) > 0.5 else "heads",
        "microbatches": round(float(mapping.microbatches)), "chunk": chunk,
    }  # fmt: skip


def metrics_document(found: Metrics, load: Load) -> dict[str, Any]:
    """Metrics of a phase under their contract names; null where a phase has no such time.

    A query is the tokens of an answer, in prefill and midfill one prompt.
    """
    f = {k: float(np.asarray(v)) for k, v in found._asdict().items() if k != "memory"}
    query = float(np.asarray(load.output if f["tpot_s"] else load.new))
    return {
        "tpot_s": f["tpot_s"] or None, "ttft_s": f["ttft_s"] or None, "pass_s": f["pass_s"],
        "accepted_tokens_per_pass": f["accepted"],
        "tokens_per_s": f["tokens_per_s"], "context_tokens_per_s": f["context_tokens_per_s"] or None,
        "tokens_per_s_per_chip": f["tokens_per_s_per_chip"], "tokens_per_s_per_user": f["tokens_per_s_per_user"],
        "tokens_per_s_per_megawatt": f["tokens_per_s_per_megawatt"],
        "tokens_per_s_per_megawatt_drawn": f["tokens_per_s_per_megawatt_drawn"],
        "energy_per_token_j": f["energy_per_token_j"],
        "energy_per_query_j": f["energy_per_token_j"] * query,
        "dollars_per_million_tokens": f["dollars_per_million_tokens"],
        "board_power_w": f["board_power_w"], "all_in_power_w": f["all_in_power_w"],
        "provisioned_power_w": f["provisioned_power_w"], "throttled": f["throttled"] > 0.5,
        "slowdown": f["slowdown"],
        "memory_per_chip_bytes": float(np.asarray(found.memory.total)) - float(np.asarray(found.memory.slack)),
        "network_peak_bytes_per_s": f["network_peak"], "network_mean_bytes_per_s": f["network_mean"],
        "prefill_share": f["prefill_share"], "bubble_share": f["bubble_share"],
    }  # fmt: skip


def memory_document(found: Metrics) -> dict[str, float]:
    """Bytes per chip, part by part."""
    m = {k: float(np.asarray(v)) for k, v in found.memory._asdict().items()}
    slack = m["capacity"] - (m["weights"] + m["kv"] + m["state"] + m["buffer"] + m["working"])
    return {
        "weights_bytes": m["weights"], "kv_bytes": m["kv"], "state_bytes": m["state"], "buffer_bytes": m["buffer"],
        "working_bytes": m["working"], "slack_bytes": slack, "capacity_bytes": m["capacity"],
    }  # fmt: skip


def rates_document(case: Case) -> dict[str, float]:
    """Peak rates per lane; tensor rates by dtype."""
    m = case.machine
    return {
        "memory": float(m.memory_bandwidth),
        **{f"tensor.{d}": float(getattr(m, f"tensor_{d}")) for d in TENSOR_DTYPES},
        "vector": float(m.vector_rate), "scale_up": float(m.scale_up_bandwidth),
        "scale_out": float(m.scale_out_bandwidth),
    }  # fmt: skip


def energies_document(case: Case) -> dict[str, float]:
    """Joules per unit of work of each lane, at board level, and static watts."""
    m = case.machine
    return {
        "memory": float(m.memory_energy),
        **{f"tensor.{d}": float(getattr(m, f"tensor_{d}_energy")) for d in TENSOR_DTYPES},
        "vector": float(m.vector_energy), "scale_up": float(m.scale_up_energy),
        "scale_out": float(m.scale_out_energy), "static_w": float(m.static_power),
    }  # fmt: skip


def execution_document(case: Case) -> dict[str, Any]:
    """Which constants turned work into time: every one of `codesign.execution.Execution`, and where they come from."""

    def told(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return {k: float(v) for k, v in value.items()} if isinstance(value, dict) else float(value)

    e = case.execution
    found = {CONSTANTS.get(f.name, f.name): told(getattr(e, f.name)) for f in fields(e)}
    return found | {"constants": case.constants} | ({"p": dict.fromkeys(found["p"])} if e.hard else {})


def constants_file(case: Case) -> str | None:
    """The file of ``arch/measurements`` that a case's kernel constants stand in; None at the speed of light.

    As `codesign.evaluation.case.constants_of` says it in words, ``fitted: b200`` or ``inherited: all chips measured``.
    """
    if case.execution.hard:
        return None
    _, told, owner = case.constants.removesuffix(", own latencies").partition(": ")
    if not told:
        return "execution"
    return "served" if owner == "all chips measured" else f"served-{owner}"


def rests_on(*cases: Case) -> dict[str, list[str]]:
    """Numbers of machines by kind, least trusted first, and the files of their kernel constants.

    A file of constants, ``measurement.served-b200``, counts as fitted where its numbers were, else as an estimate.
    """
    from codesign.catalog import kinds_used
    from codesign.catalog.quantity import KIND_ORDER

    found = kinds_used(*(case.system for case in cases))
    for case in cases:
        name = constants_file(case)
        if name is not None:
            found.setdefault("fitted" if case.execution.calibrated else "estimate", []).append(f"measurement.{name}")
    return {kind: found[kind] for kind in reversed(KIND_ORDER) if kind in found}


def counts_document(case: Case, mapping: Mapping, load: Load, routing: dict[str, float]) -> dict[str, Any]:
    """Counts of the model, and of its routing at this batch as `pass_table` has them (null without experts)."""
    counts = case.model.counts(case.dtypes)
    distinct = routing.get("distinct_experts_per_layer")
    return {
        "total_parameters": counts.total_parameters, "active_parameters": counts.active_parameters,
        "weight_bytes": counts.weight_bytes, "kv_bytes_per_token": counts.kv_bytes_per_token,
        "window_bytes_per_sequence": counts.window_bytes_per_sequence,
        "state_bytes_per_sequence": counts.state_bytes_per_sequence,
        "distinct_experts_per_layer": distinct,
        "distinct_experts_per_rank_mean": None if distinct is None else distinct / float(mapping.ep),
        "distinct_experts_fullest_rank": routing.get("distinct_experts_fullest_rank"),
        "routed_assignments_per_layer": routing.get("routed_assignments_per_layer"),
        "routes_fullest_rank": routing.get("routes_fullest_rank"),
        "overflow_share": routing.get("overflow_share"),
        "messages_per_token_once": routing.get("messages_per_token_once"),
        "messages_per_token_by_route": routing.get("messages_per_token_by_route"),
        "routing": named_law(float(load.skew), load.routing) if routing else None,
    }  # fmt: skip


def limited_by(rows: list[dict[str, Any]], stopped: str, *, throttled: bool = False) -> str:
    """What a user would improve first: the lane that binds most of the pass, and what stops a larger batch.

    Where the chip slows down to stay within its power limit, no lane binds but that limit.
    """
    shares = binding(rows)
    words = "power limit" if throttled else LANE_WORDS[max(shares, key=lambda lane: shares[lane])]
    return words + (f"; batch by {stopped}" if stopped else "")


def evaluation_document(
    case: Case,
    mapping: Mapping,
    request: Request,
    load: Load,
    found: Metrics,
    *,
    feasible: bool,
    stopped: str,
    margin: dict[str, Any],
    warnings: list[str],
) -> Evaluation:
    """Put one answer together."""
    rows, routing = pass_table(case, mapping, load)
    return Evaluation(
        {
            "schema": EVALUATION, "arch": case.arch, "model": case.model_name, "phase": request.phase,
            "feasible": feasible, "margin": margin,
            "limited_by": limited_by(rows, stopped, throttled=bool(found.throttled > 0.5)),
            "request": request.document(load),
            "mapping": mapping_document(mapping, load), "precision": case.dtypes,
            "machine": {"rates": rates_document(case), "energies": energies_document(case)},
            "execution": execution_document(case), "metrics": metrics_document(found, load),
            "memory": memory_document(found), "operations": rows, "binding": binding(rows),
            "counts": counts_document(case, mapping, load, routing), "rests_on": rests_on(case),
            "warnings": warnings,
        },
        (case, mapping, load),
    )  # fmt: skip
