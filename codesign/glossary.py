"""Every name that a result carries, once: its unit and what it means.

The report prints this as its glossary, and a test checks that every metric, operation column and count of the JSON and
every column of ``results.parquet`` is here.  Units are SI as in the files; ``1`` is a plain number, ``text`` a word.
"""

from collections.abc import Iterable
from typing import NamedTuple

#: The one definition of time per output token, said on every chart.
TPOT_DEFINITION = "TPOT = (total − TTFT)/(output − 1)"

#: Schemas of documents that one module writes and another reads.
EVALUATION, STUDY, VERIFY = "codesign.evaluation/1", "codesign.study/1", "codesign.verify/1"

#: Counts that are told of a model by itself; bytes of the cache in the dtype that its publisher counts in.
COUNTS = (
    "total_parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token", "window_bytes_per_sequence",
    "state_bytes_per_sequence",
)  # fmt: skip


class Entry(NamedTuple):
    """One name of the results.

    Attributes:
        name: as written in JSON and in the columns of a table.
        unit: SI, ``1`` for a plain number, ``text`` for words.
        meaning: what it is, in one sentence.
        group: where it belongs: metrics, request, mapping, memory, operations, execution, counts, pair, machine,
            search, study.
    """

    name: str
    unit: str
    meaning: str
    group: str


def _group(group: str, *rows: tuple[str, str, str]) -> tuple[Entry, ...]:
    return tuple(Entry(name, unit, meaning, group) for name, unit, meaning in rows)


ENTRIES: tuple[Entry, ...] = (
    *_group(
        "metrics",
        (
            "tpot_s",
            "s",
            f"Time per output token of one user: {TPOT_DEFINITION}; in decode the pace of a pass over the tokens it "
            f"gets accepted.",
        ),
        ("ttft_s", "s", "Time to first token: to the last stage's last chunk of the prompt; absent in decode."),
        (
            "pass_s",
            "s",
            "One pass of one micro-batch through all stages: the sum of its operations, less what is hidden.",
        ),
        ("accepted_tokens_per_pass", "token", "Tokens that a sequence gains in one pass: 1 without drafts."),
        (
            "tokens_per_s",
            "token/s",
            "Output tokens (decode, serve) or new prompt tokens (prefill, midfill) of the whole mapping.",
        ),
        (
            "context_tokens_per_s",
            "token/s",
            "Cached and new prompt tokens served; in serve those of the answers too; absent in decode.",
        ),
        ("tokens_per_s_per_chip", "token/s", "tokens_per_s over the chips of the mapping."),
        ("tokens_per_s_per_user", "token/s", "1 / TPOT: the speed that one user sees."),
        (
            "tokens_per_s_per_megawatt",
            "token/s/MW",
            "Tokens per second per provisioned megawatt: tokens_per_s_per_chip over the all-in power set aside for a "
            "chip. The study maximizes this.",
        ),
        (
            "tokens_per_s_per_megawatt_drawn",
            "token/s/MW",
            "The same per megawatt drawn while serving, with host, NIC, switch and cooling.",
        ),
        ("energy_per_token_j", "J", "All-in energy drawn per output token."),
        (
            "energy_per_query_j",
            "J",
            "All-in energy drawn per query: --output tokens in decode (default 1,000), one prompt else.",
        ),
        ("dollars_per_million_tokens", "dollar", "Cost of owning the chips for the time that a million tokens take."),
        ("board_power_w", "W", "Drawn per chip at board level: static power and the energies of all lanes over time."),
        ("all_in_power_w", "W", "Drawn per chip with its share of host, NIC, switch and cooling."),
        (
            "provisioned_power_w",
            "W",
            "Set aside per chip, all-in: the published figure of a part, the envelope of a hypothetical one.",
        ),
        ("throttled", "1", "True where the power limit slows the pass."),
        ("slowdown", "1", "Pace over the pace without a power limit; 1 where nothing throttles."),
        ("memory_per_chip_bytes", "B", "Fast memory in use on the fullest chip, without slack."),
        (
            "network_peak_bytes_per_s",
            "B/s",
            "Largest over operations of the bytes that a chip sends over the operation's time.",
        ),
        ("network_mean_bytes_per_s", "B/s", "Bytes that a chip sends in a pass over the time of the pass."),
        ("prefill_share", "1", "Share of the time that prefill takes where one worker does both."),
        ("bubble_share", "1", "Share of the time of all pipeline stages in which they wait for each other."),
    ),
    *_group(
        "request",
        ("schema", "text", "Name and version of the document's layout."),
        ("arch", "text", "The machine, by its name in the catalog."),
        ("title", "text", "A name for people."),
        ("model", "text", "The model served, by its name in the catalog."),
        ("phase", "text", "prefill, midfill, decode or serve."),
        ("feasible", "1", "Whether the target and the memory are met."),
        (
            "limited_by",
            "text",
            "What to improve first: the lane that binds most of the pass, and what stops a larger batch.",
        ),
        ("margin", "text", "How far from, or beyond, each limit the answer stands."),
        ("context", "token", "Tokens cached per sequence before the pass."),
        ("new", "token", "Tokens that a sequence brings to the pass: 1 + drafts in decode."),
        (
            "batch",
            "sequence",
            "Sequences per micro-batch of one attention instance; real in the search, whole in rounded results.",
        ),
        ("drafts", "token", "Drafted tokens per sequence and pass."),
        ("output", "token", "Tokens of one answer, for energy per query."),
        ("skew", "1", "Zipf exponent of the experts' popularity; 0 is uniform."),
        ("copies", "1", "Redundant experts per layer, which balance the expert ranks (EPLB)."),
        ("capacity_factor", "1", "Most routes of an expert over the mean of all; absent where there is no limit."),
        ("overflow", "text", "What becomes of routes beyond that: drop, or reroute to experts with room."),
        ("dispatch", "text", "Messages to the experts: one per token and rank (token), or one per route (route)."),
        ("precision", "text", "Number format of each tensor class; in a study the name of one set of them."),
        ("weights", "text", "Number format of the weights that are not routed experts, where a study varies it."),
        ("kv", "text", "Number format of the KV cache."),
        ("attention", "text", "Number format of the attention scan's arithmetic."),
        ("execution", "text", "Kernel constants that turned work into time, and whether they are calibrated."),
        ("warnings", "text", "What to know before relying on the result."),
        (
            "rests_on",
            "text",
            "Inputs of the machine, and the file of its kernel constants, by the kind of their source: datasheet, "
            "measured, estimate, rumour, assumption, fitted.",
        ),
        ("kinds", "text", "Kinds of source that a machine's numbers rest on."),
    ),
    *_group(
        "mapping",
        ("mapping", "text", "How the model lies on the chips: the degrees below."),
        ("chips", "chip", "pp × tp × dp."),
        ("pp", "1", "Pipeline stages."),
        ("tp", "chip", "Chips that share one attention instance by tensor parallelism."),
        ("dp", "1", "Attention instances per stage."),
        ("ep", "1", "Ranks over which the experts are spread; divides tp × dp."),
        ("moe_tp", "chip", "Chips that share one expert by tensor: tp × dp / ep."),
        ("attention_split", "text", "How TP divides the KV scan: by heads or by context."),
        ("context_split", "1", "1 where TP divides the KV scan by context, 0 by heads."),
        ("microbatches", "1", "Micro-batches in flight in the pipeline."),
        ("chunk", "token", "Tokens of one chunk of a prompt; absent in decode."),
    ),
    *_group(
        "memory",
        ("weights_bytes", "B", "Weights on the fullest chip."),
        ("kv_bytes", "B", "KV cache of all sequences in flight on the fullest chip."),
        ("state_bytes", "B", "Recurrent and convolution states on the fullest chip."),
        ("buffer_bytes", "B", "Transfer buffers for KV."),
        ("working_bytes", "B", "Activations and kernels' scratch."),
        ("slack_bytes", "B", "Capacity left free."),
        ("capacity_bytes", "B", "Fast memory of a chip."),
    ),
    *_group(
        "operations",
        (
            "name",
            "text",
            "Block and operation, such as mla.scan; of a study its name; of a row of results its technology or "
            "machine.",
        ),
        ("layers", "layer", "How many layers run the operation in a pass."),
        ("stage", "text", "Where in the pipeline it runs."),
        ("dtype", "text", "Format of its matrix arithmetic."),
        ("family", "text", "Kernel family of an operation: it has an overlap exponent and efficiencies of its own."),
        ("bound_by", "text", "The lane, or the latency, that takes longest."),
        (
            "time_s",
            "s",
            "Its time in a pass over all its layers, on the fullest chip: smooth maximum of its lanes, and latency.",
        ),
        ("lane_time_s", "s", "Work over achieved rate on each lane: memory, tensor, vector, scale-up, scale-out."),
        ("efficiency", "1", "Achieved over peak rate on each lane."),
        ("hidden_s", "s", "What of its time passes behind other operations."),
        ("latency_s", "s", "Launches, hops and set-up that no rate shortens."),
        ("memory_bytes", "B", "Bytes moved to and from fast memory."),
        ("mean_memory_bytes", "B", "Bytes that the mean chip of a stage moves to and from fast memory."),
        ("mean_share", "1", "Work of the mean chip over the fullest one's, of all that is not memory; energy is its."),
        ("tensor_flop", "FLOP", "Matrix arithmetic."),
        ("vector_op", "op", "Elementwise operations."),
        ("scale_up_bytes", "B", "Bytes that a chip sends inside its scale-up domain."),
        ("scale_out_bytes", "B", "Bytes that a chip sends beyond it."),
        ("energy_j", "J", "Energy of one pass on the mean chip of each stage, without static power."),
        ("binding", "1", "Share of the pass by the lane that bound its operations."),
    ),
    *_group(
        "execution",
        ("calibrated", "1", "Whether the kernel constants were fitted to measurements."),
        ("constants", "text", "Where the kernel constants come from: fitted on this chip, or inherited from others."),
        ("ideal", "1", "Whether the answer is the speed of light: every efficiency 1, the hard maximum over lanes."),
        ("p", "1", "Exponent of the smooth maximum over lanes, by kernel family; absent at the speed of light."),
        ("overlap", "1", "Share of communication hidden behind another micro-batch's compute."),
        ("setup", "1", "Share of the collectives' software set-up that is paid."),
        ("all_reduce", "1", "Set-up of all-reduces and their kin over the machine's all_reduce_setup."),
        ("all_to_all", "1", "Set-up of dispatch and combine over the machine's all_to_all_setup."),
        ("launches", "1", "Seconds of one launch over the machine's launch, by kernel family."),
        ("memory_efficiency", "1", "Achieved share of memory bandwidth, by kernel family."),
        ("tensor_efficiency", "1", "Achieved share of the tensor rate for many rows, by format."),
        ("rows_half", "token", "Rows at which a matrix product reaches half of that, by format."),
        ("outputs_half", "1", "Elements of a product's result at which it reaches half, over what rows_half allows."),
        ("grouped", "1", "What grouped products of experts reach of tensor_efficiency."),
        ("expert_rows_half", "token", "Rows per expert at which grouped products reach half of that, by format."),
        ("group_ops", "op", "Elementwise operations that each expert on the chip costs, hit or not."),
        ("attention_tensor_efficiency", "1", "Achieved share of the tensor rate in attention scans and states."),
        ("vector_efficiency", "1", "Achieved share of the vector rate."),
        ("stream_ops", "op", "Elementwise operations that each stream of a scan costs beside its own."),
        ("scale_up_efficiency", "1", "Achieved share of the scale-up bandwidth, of long messages."),
        ("message_half", "B", "Bytes at which scale-up messages are half way from short to long."),
        ("message_least", "1", "What the shortest messages reach of scale_up_efficiency."),
        ("exchange", "1", "Achieved share of the scale-up bandwidth of dispatch and combine, of long messages."),
        ("exchange_half", "B", "The same as message_half, of dispatch and combine."),
        ("exchange_least", "1", "What the shortest of them reach of exchange."),
        ("scale_out_efficiency", "1", "Achieved share of the scale-out bandwidth."),
    ),
    *_group(
        "counts",
        ("total_parameters", "parameter", "Parameters of the model, without drafter and vision tower."),
        (
            "active_parameters",
            "parameter",
            "Parameters that one token uses: without the input embedding, with the head.",
        ),
        ("weight_bytes", "B", "All weights at their formats."),
        ("kv_bytes_per_token", "B/token", "Growth of the cache per token, at the named format."),
        ("window_bytes_per_sequence", "B/sequence", "Cache that a sliding window bounds."),
        ("state_bytes_per_sequence", "B/sequence", "Recurrent and convolution state of one sequence."),
        ("distinct_experts_per_layer", "1", "Expected experts hit by all tokens in step on one bank."),
        ("distinct_experts_per_rank_mean", "1", "The same per expert rank, on average."),
        ("distinct_experts_fullest_rank", "1", "The same on the fullest rank, in expectation."),
        ("routed_assignments_per_layer", "1", "Tokens in step times routes per token."),
        ("routes_fullest_rank", "1", "Routes that the fullest expert rank computes, in expectation."),
        ("overflow_share", "1", "Expected share of all routes beyond the capacity of their expert; 0 without one."),
        ("messages_per_token_once", "1", "Messages of a token to other chips, sent once per expert rank."),
        ("messages_per_token_by_route", "1", "Messages of a token to other chips where every route is one."),
        ("routing", "text", "The law by which experts are chosen, and how it is served where not plainly."),
    ),
    *_group(
        "pair",
        ("experts_on", "text", "The machine of the expert pool, where attention and experts are on different ones."),
        ("expert_chips", "chip", "Chips of the expert pool."),
        ("max_expert_chips", "chip", "Chips that the system of the expert pool offers."),
        ("link", "text", "What lies between the pools: bandwidth of a chip on either side, latency one way."),
        ("attention_s", "s", "A micro-batch's pass keeps the attention pool busy for so long."),
        ("expert_s", "s", "The same of the expert pool."),
        ("out_s", "s", "Time of a micro-batch's pass on the link to the expert pool, all layers together."),
        ("back_s", "s", "The same on the way back."),
        ("exposed_s", "s", "Pace of all micro-batches less what the busier pool computes in it."),
        ("attention_busy", "1", "Share of the time in which the attention pool works."),
        ("expert_busy", "1", "Share of the time in which the expert pool works."),
        ("balance", "1", "Expert chips per attention chip at which both pools would be busy alike."),
        ("accepted", "token", "Tokens that a sequence gains in one pass."),
        ("attention_board_w", "W", "Drawn by a chip of the attention pool, at board level."),
        ("expert_board_w", "W", "Drawn by a chip of the expert pool, at board level."),
        ("link_bytes_per_token", "B/token", "Hidden states out and back over the link, all layers together."),
        ("link_w", "W", "Power of the link's bytes, all chips of both pools together."),
        ("attention_bandwidth", "B/s", "Of the link, per chip of the attention pool."),
        ("expert_bandwidth", "B/s", "Of the link, per chip of the expert pool."),
    ),
    *_group(
        "machine",
        ("memory_bandwidth", "B/s", "Peak of the fast memory, per chip."),
        ("memory_capacity", "B", "Fast memory, per chip."),
        ("tensor_bf16", "FLOP/s", "Peak dense BF16 matrix arithmetic."),
        ("tensor_fp8", "FLOP/s", "Peak dense FP8 matrix arithmetic."),
        ("tensor_fp4", "FLOP/s", "Peak dense FP4 matrix arithmetic."),
        ("vector_rate", "op/s", "Elementwise operations."),
        ("exponential_ops", "op", "Elementwise operations that one exponential is worth."),
        ("sram", "B", "On-chip memory that can hold resident tiles."),
        ("scale_up_bandwidth", "B/s", "Of the scale-up fabric, per chip and direction."),
        ("scale_up_domain", "chip", "Chips that one scale-up fabric joins."),
        ("scale_up_hop", "s", "One-way latency between two chips of a domain."),
        ("scale_out_bandwidth", "B/s", "Of the scale-out network, per chip and direction."),
        ("scale_out_domain", "chip", "Chips that the scale-out network joins."),
        ("scale_out_hop", "s", "One-way latency beyond the domain."),
        ("in_switch_reduction", "1", "1 where the fabric reduces in its switch."),
        ("launch", "s", "One dependent kernel or grid barrier."),
        ("all_reduce_setup", "s", "What a shipping all-reduce adds to its hops."),
        ("all_to_all_setup", "s", "What a shipping all-to-all adds to its hops."),
        ("memory_energy", "J/B", "Fast memory, all told at board level."),
        ("scale_up_energy", "J/B", "Scale-up fabric, at board level."),
        ("scale_out_energy", "J/B", "Scale-out network, at board level."),
        ("tensor_bf16_energy", "J/FLOP", "BF16 matrix arithmetic, at board level."),
        ("tensor_fp8_energy", "J/FLOP", "FP8 matrix arithmetic, at board level."),
        ("tensor_fp4_energy", "J/FLOP", "FP4 matrix arithmetic, at board level."),
        ("vector_energy", "J/op", "Elementwise operations, at board level."),
        ("static_power", "W", "Drawn by an idle chip."),
        ("power_limit", "W", "Above which the chip slows down."),
        ("chip_power", "W", "Published rating of a chip, or the envelope of a hypothetical one."),
        ("provisioned_power", "W", "All-in per chip, with host, NIC, switch and cooling."),
        ("dollars_per_hour", "dollar/h", "Cost of owning one chip."),
        ("max_chips", "chip", "Chips that a system offers."),
        ("die_area", "m^2", "Of the compute die or dies."),
    ),
    *_group(
        "search",
        (
            "technology",
            "text",
            "Memory technology that a design is built with; each has its own exchange rates of area, edge, watts and "
            "heat.",
        ),
        ("variables", "text", "What the search may choose, each between bounds, in log space."),
        ("target_s", "s", "TPOT that must be met."),
        ("target_tpot", "s", "The target as a constraint, for its shadow price."),
        ("best", "text", "The design with the most tokens per second per megawatt."),
        ("gain_over_best_machine", "1", "The best design over the best catalog machine at the same target."),
        ("budget_use", "1", "Use of a budget over its limit; 1 binds."),
        ("active_constraints", "text", "Constraints that bind at the optimum."),
        ("shadow_prices", "1", "d ln(tokens/s/MW) per d ln(budget), from below (left) and from above (right)."),
        ("elasticities", "1", "d ln(tokens/s/MW) per d ln(number of the machine), all else held."),
        (
            "kkt_residual",
            "1",
            "Norm of what is left of the gradient in log variables after constraints and bounds; 0 at an optimum.",
        ),
        ("starts", "text", "Where each start of the search stood when the best was chosen."),
        ("objective", "token/s/MW", "What the search maximizes, per start."),
        ("convergence", "token/s/MW", "Objective of the best start, per iteration, then of its finish."),
        ("overdraft", "1", "Largest share by which a design overdraws a budget; 0 is none."),
        ("evaluations", "1", "Evaluations of the model that the search spent, all starts counted."),
        ("at_bounds", "text", "Variables that a bound of the search holds."),
        (
            "clock",
            "1",
            "Share of its memory and arithmetic rates at which a rounded design runs, so that the budgets hold.",
        ),
        ("violation", "1", "Largest violation of a constraint, per iteration, relative to its limit."),
        (
            "rounded",
            "text",
            "The buildable design next to the optimum: whole stacks, domains and batches, evaluated exactly.",
        ),
        ("loss", "1", "What rounding costs: the relative loss of tokens/s/MW."),
        ("least_tpot_s", "s", "Lowest TPOT that a machine reaches on any mapping."),
        ("missing", "text", "What an infeasible request lacks."),
        ("missing_bytes", "B", "Memory that the fullest chip lacks, where nothing fits."),
        ("missing_s", "s", "By how much the least time reachable misses the target."),
        ("nearest", "text", "The nearest point that serves where a request cannot be met."),
        ("nearest_mapping", "text", "Degrees of the fastest mapping that fits, or of the one that lacks least memory."),
        ("relaxed", "text", "Flags that the nearest point gives up: their values differ from what was asked."),
    ),
    *_group(
        "study",
        ("problem", "text", "One context, precision and target of a study."),
        ("id", "text", "Name of a problem."),
        ("what", "text", "What a row is: a design of the search, its rounded form, or a machine of the catalog."),
        ("memory_technology", "text", "Memory technology of a machine, by its name in arch/memories."),
        ("routing_skew", "1", "Zipf exponent of the experts' popularity in the study."),
        ("regime", "text", "What sets a power envelope: the decode scan, a GEMM or an all-to-all."),
        ("status", "text", "shipping, announced or hypothetical."),
        ("seed", "1", "Of the search's random starts."),
        ("power_basis", "text", "Whether megawatts are provisioned or drawn."),
        ("published_w", "W", "Chip power that the maker publishes."),
        ("envelope_w", "W", "Chip power by the formula: static and the largest over regimes of rates times energies."),
        ("fitted", "1", "Whether the constants were fitted to this part's published power."),
        ("predicted", "1", "The model's value of a published figure."),
        ("published", "1", "The published figure."),
    ),
)

_BY_NAME = {entry.name: entry for entry in ENTRIES}

#: What columns of flat tables are prefixed with, where one row holds several groups.
PREFIXES = (
    "metrics",
    "execution",
    "memory",
    "mapping",
    "request",
    "machine",
    "variables",
    "counts",
    "rounded",
    "budget_use",
    "shadow_prices",
    "elasticities",
    "lane_time_s",
    "efficiency",
    "binding",
    "precision",
)

#: Names that label an entry of a group rather than being one: ``budget_use.package_power`` is a budget's use.
_KEYED = (
    "budget_use",
    "shadow_prices",
    "elasticities",
    "lane_time_s",
    "efficiency",
    "binding",
    "precision",
    "variables",
)


def describe(column: str) -> Entry | None:
    """The entry of a column or JSON key; None where the glossary does not know it.

    Args:
        column: a bare name (``tpot_s``) or one behind its groups (``metrics.tpot_s``, ``rounded.metrics.tpot_s``,
            ``budget_use.package_power``), joined by ``.``, ``/`` or ``__``.
    """
    parts = column.replace("__", ".").replace("/", ".").split(".")
    for i in range(len(parts) - 1, -1, -1):
        if parts[i] in _BY_NAME and all(p in PREFIXES for p in parts[:i]):
            tail = parts[i + 1 :]
            if not tail or parts[i] in _KEYED:
                return _BY_NAME[parts[i]]
    return None


def unknown(columns: Iterable[str]) -> list[str]:
    """The columns that the glossary does not describe, in order."""
    return [column for column in columns if describe(column) is None]
