"""What is served and what comes of it: the load of a phase, and the metrics of `codesign evaluate`.

Every phase makes the same metrics out of a round: the seconds that it takes, slowed where the chip would draw more
than its limit (physics: power), the joules of a chip, and the tokens of the whole mapping.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.lanes import Number
from codesign.machine import Machine
from codesign.mapping import Mapping
from codesign.residency import Residency
from codesign.routing_choices import Routing


class Framework(eqx.Module):
    """What a serving framework adds to the passes of the model.

    Attributes:
        step_overhead: host time per step that no kernel hides [s].
        sequence_overhead: of it, per sequence of a step [s].
        decoding: share of the requests in flight that decode at any time.
        awake: share of its power limit that a busy board draws whatever it does, where that is more than static power.
        effort: dynamic energy in a server over that of the work alone.
    """

    step_overhead: Number = 0.0
    sequence_overhead: Number = 0.0
    decoding: Number = 1.0
    awake: Number = 0.0
    effort: Number = 1.0


class Load(eqx.Module):
    """What is served: sequences, their lengths, drafts and the law of routing.

    Attributes:
        batch: sequences per micro-batch of one instance; in ``serve`` its requests in flight.
        context: cached tokens per sequence; in ``serve`` tokens that a prompt finds cached.
        drafts: drafted tokens per sequence and pass.
        skew: exponent of expert popularity, 0 for uniform.
        output: tokens of one answer: for energy per query, and the length of an answer in ``serve``.
        new: tokens of a prompt (prefill, midfill, serve).
        framework: overheads of serving (serve).
        routing: copies, capacity and dispatch of the experts; None where all are plain.
    """

    batch: Number
    context: Number
    drafts: Number
    skew: Number
    output: Number
    new: Number = 0.0
    framework: Framework = Framework()
    routing: Routing | None = None


class Metrics(NamedTuple):
    """Metrics of a phase. Rates are of the whole mapping, watts per chip.

    Attributes:
        time_s: what a target is about: TPOT in decode and serve, TTFT in prefill and midfill.
        tpot_s: seconds per output token and user; 0 where there is none.
        ttft_s: seconds to the first token; 0 where there is none.
        pass_s: seconds of one pass through all stages, of all chunks of a prompt.
        pace_s: seconds of a round, after any slowing: between two passes of one micro-batch in decode, of all prompts
            in flight in prefill.
        accepted: tokens accepted per sequence and pass.
        tokens_per_s, tokens_per_s_per_chip, tokens_per_s_per_user: output tokens; new prompt tokens in prefill.
        context_tokens_per_s: cached and new tokens; in serve prompt and output tokens.
        tokens_per_s_per_megawatt: on provisioned power.
        tokens_per_s_per_megawatt_drawn: on drawn all-in power.
        energy_per_token_j: drawn all-in energy.
        board_power_w, all_in_power_w, provisioned_power_w.
        throttled: 1 where the power limit slowed the pass.
        slowdown: pace over the pace without a power limit.
        network_peak: largest bytes/time over rows [B/s]. network_mean: bytes/pass [B/s].
        dollars_per_million_tokens.
        prefill_share: share of a step's time that prompts take.
        bubble_share: share of the stages' time in which they wait for each other.
        memory: `Residency`.
    """

    time_s: Number
    tpot_s: Number
    ttft_s: Number
    pass_s: Number
    pace_s: Number
    accepted: Number
    tokens_per_s: Number
    context_tokens_per_s: Number
    tokens_per_s_per_chip: Number
    tokens_per_s_per_user: Number
    tokens_per_s_per_megawatt: Number
    tokens_per_s_per_megawatt_drawn: Number
    energy_per_token_j: Number
    board_power_w: Number
    all_in_power_w: Number
    provisioned_power_w: Number
    throttled: Number
    slowdown: Number
    network_peak: Number
    network_mean: Number
    dollars_per_million_tokens: Number
    prefill_share: Number
    bubble_share: Number
    memory: Residency


class Powered(NamedTuple):
    """A round within the power limit.

    Attributes:
        seconds: of the round, after any slowing.
        board: drawn per chip [W].
        throttled: 1 where the limit slowed it.
        slowdown: seconds over the seconds without a limit.
    """

    seconds: Number
    board: Number
    throttled: Number
    slowdown: Number


def powered(machine: Machine, seconds: Number, joules: Number) -> Powered:
    r"""Slow a round down until it draws no more than the limit: :math:`t' = \max(t, E / (P_{limit} - P_{static}))`.

    Args:
        machine: its limit and static power.
        seconds: of a round.
        joules: dynamic energy of a chip in it.
    """
    least = joules / (machine.power_limit - machine.static_power)
    slowed = jnp.maximum(seconds, least)
    return Powered(
        slowed, machine.static_power + joules / slowed, jnp.where(least > seconds, 1.0, 0.0), slowed / seconds
    )


def rates(machine: Machine, mapping: Mapping, tokens: Number, board: Number) -> dict[str, Number]:
    """Metrics that follow from tokens per second of the whole mapping and the watts that a chip draws."""
    per_chip = tokens / mapping.chips
    all_in = board + (machine.provisioned_power - machine.chip_power)
    return {
        "tokens_per_s": tokens,
        "tokens_per_s_per_chip": per_chip,
        "tokens_per_s_per_megawatt": per_chip / machine.provisioned_power * 1e6,
        "tokens_per_s_per_megawatt_drawn": per_chip / all_in * 1e6,
        "energy_per_token_j": all_in / per_chip,
        "board_power_w": board,
        "all_in_power_w": all_in,
        "provisioned_power_w": machine.provisioned_power,
        "dollars_per_million_tokens": machine.dollars_per_hour / 3600.0 / per_chip * 1e6,
    }
