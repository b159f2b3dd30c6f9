"""Collectives on a two-level fabric: bytes a chip sends on the scale-up and the scale-out lane, and the hops it waits.

Equations: all-reduce on a ring or in the switch, all-gather, all-to-all by message or once per rank, pipeline
hand-off.  A group that outgrows the scale-up domain sends the share of its peers beyond it on the scale-out lane.
Left out: contention between groups, adaptive routing; bisection below full (switched domains are taken as
non-blocking), and topologies with several hops inside a domain.
"""

import jax.numpy as jnp

from codesign.lanes import Number, Row
from codesign.machine import Machine
from codesign.numerics import share_above


def crossing(group: Number, domain: Number) -> Number:
    """Share of a chip's ``group - 1`` peers that lie beyond its scale-up domain: ``(G - D)/(G - 1)``, at least 0."""
    return jnp.maximum(group - domain, 0.0) / jnp.maximum(group - 1.0, 1.0)


def _hops(machine: Machine, group: Number, steps: Number) -> Number:
    beyond = share_above(group, machine.scale_up_domain)
    return steps * (machine.scale_up_hop + beyond * machine.scale_out_hop)


def all_reduce(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    r"""Sum ``payload`` bytes over ``group`` chips; nothing where the group is one chip.

    A ring sends :math:`2(G-1)/G` of the payload per chip; a two-step kernel with in-switch reduction
    :math:`1 + 1/G` (MSCCL-style two-shot multicast).  Latency: set-up and two one-way hops, reduce then broadcast.
    """
    many = group > 1.5
    ring = 2.0 * (group - 1.0) / group
    in_switch = 1.0 + 1.0 / group
    sent = payload * jnp.where(many, ring + machine.in_switch_reduction * jnp.minimum(in_switch - ring, 0.0), 0.0)
    out = crossing(group, machine.scale_up_domain)
    return Row(
        name,
        "collective",
        scale_up=sent * (1.0 - out),
        scale_out=sent * out,
        latency=jnp.where(many, machine.all_reduce_setup + _hops(machine, group, 2.0), 0.0),
    )


def all_gather(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    """Gather ``payload`` bytes in all over ``group`` chips: each chip sends its ``1/G`` to the ``G - 1`` others."""
    many = group > 1.5
    sent = payload * (group - 1.0) / group
    out = crossing(group, machine.scale_up_domain)
    return Row(
        name,
        "collective",
        scale_up=sent * (1.0 - out),
        scale_out=sent * out,
        latency=jnp.where(many, machine.all_reduce_setup + _hops(machine, group, 1.0), 0.0),
    )


def gather_scatter(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    """Gather queries before, and reduce-scatter partial results after, work that is split by context.

    Of ``payload`` bytes (queries of all heads and partial results of all heads, per instance) each chip sends
    ``(G - 1)/G``: its share of the queries to every other chip, and to each its share of the partial results.
    Latency as `all_reduce`: one kernel's set-up and two one-way hops.
    """
    return all_reduce(name, 0.0, group, machine)._replace(
        **{k: v for k, v in all_gather(name, payload, group, machine)._asdict().items() if k.startswith("scale_")}
    )


def all_to_all(name: str, sent: Number, group: Number, machine: Machine) -> Row:
    """One leg (dispatch or combine) of an exchange in which this chip sends ``sent`` bytes to its group.

    Latency: the kernel's set-up and one one-way hop; a second, longer hop where the group outgrows the domain.
    """
    many = group > 1.5
    out = crossing(group, machine.scale_up_domain)
    return Row(
        name,
        "collective",
        scale_up=sent * (1.0 - out),
        scale_out=sent * out,
        latency=jnp.where(many, machine.all_to_all_setup + _hops(machine, group, 1.0), 0.0),
    )


def hand_off(payload: Number, pp: Number, stage_chips: Number, machine: Machine) -> Row:
    r"""All ``pp - 1`` hand-offs of a pass: the activations of one micro-batch to the next stage.

    A domain of :math:`D` chips holds :math:`D/G` stages of :math:`G` chips; the share
    :math:`(P\,G/D - 1)/(P - 1)` of the boundaries lies between domains and goes on the scale-out lane.
    """
    boundaries = pp - 1.0
    out = jnp.clip((pp * stage_chips / machine.scale_up_domain - 1.0) / jnp.maximum(boundaries, 1.0), 0.0, 1.0)
    sent = payload * boundaries
    return Row(
        "hand_off",
        "collective",
        scale_up=sent * (1.0 - out),
        scale_out=sent * out,
        latency=boundaries * (machine.launch + machine.scale_up_hop + out * machine.scale_out_hop),
    )
