r"""Collectives on a fabric: bytes that cross a chip's links on the scale-up and the scale-out lane, and hops it waits.

A topology says how many hops lie between the farthest two chips of a group and how much link traffic a byte of an
exchange makes.  A group of G chips is laid out as a square or cube of side :math:`n = G^{1/d}`:

=============  =====================  ==================================  ============================================
topology       hops                   link traffic per byte, all-to-all   ring all-reduce and all-gather
=============  =====================  ==================================  ============================================
``switched``   1                      1                                   1
``two-level``  1 in a domain          1; relayed inside the far domain    in a domain, between domains, in a domain
``full-mesh``  1                      :math:`(D-1)/(G-1)`: links to the   the same
                                      group's chips alone
``mesh``       :math:`2(n-1)`         :math:`n\,G/(G-1)`, its bisection   2: lines, not rings
``torus-2d``   :math:`n`              :math:`\frac{n}{2}\frac{G}{G-1}`    1: rings in every dimension, both ways
``torus``      :math:`\frac{3}{2} n`  :math:`\frac{3n}{4}\frac{G}{G-1}`   1
=============  =====================  ==================================  ============================================

All-to-all under uniform traffic: half of the bytes cross the bisection (in a torus, even sides, the mean distance says
the same).  A group that outgrows the scale-up domain sends the share of its peers beyond it on the scale-out lane.
Source: Dally and Towles, Principles and Practices of Interconnection Networks, chapters 3 and 5.
Left out: contention between groups, adaptive routing, groups that are no cube (two chips of a torus share one link).
"""

import jax.numpy as jnp

from codesign.lanes import Number, Row
from codesign.machine import Machine
from codesign.numerics import share_above

#: Dimensions of the fabrics whose chips pass traffic on.
DIMENSIONS = {"mesh": 2, "torus-2d": 2, "torus": 3}

#: Topologies on which a small all-reduce may be one-shot.  On the others the set-up of the measured kernel stands for
#: two steps.
ONE_SHOT = ("full-mesh", "mesh", "torus-2d", "torus")


def crossing(group: Number, domain: Number) -> Number:
    """Share of a chip's ``group - 1`` peers that lie beyond its scale-up domain: ``(G - D)/(G - 1)``, at least 0."""
    return jnp.maximum(group - domain, 0.0) / jnp.maximum(group - 1.0, 1.0)


def _inside(group: Number, machine: Machine) -> Number:
    """Chips of the group in one domain, at least 2: a group of one sends nothing."""
    return jnp.clip(group, 2.0, jnp.maximum(machine.scale_up_domain, 2.0))


def diameter(group: Number, machine: Machine) -> Number:
    """Hops between the farthest two of a group's chips in one domain, at least 1."""
    if machine.topology not in DIMENSIONS:
        return 1.0
    d = DIMENSIONS[machine.topology]
    side = _inside(group, machine) ** (1.0 / d)
    return jnp.maximum(d * (side - 1.0) if machine.topology == "mesh" else d * side / 2.0, 1.0)


def exchange_traffic(group: Number, machine: Machine) -> Number:
    """Traffic of the busiest links, in units of a chip's bandwidth, per byte that each chip sends to all others."""
    if machine.topology == "full-mesh":
        return ring_traffic(group, machine)
    if machine.topology not in DIMENSIONS:
        return 1.0
    d, inside = DIMENSIONS[machine.topology], _inside(group, machine)
    side = inside ** (1.0 / d)
    per_side = d / 2.0 if machine.topology == "mesh" else d / 4.0
    return jnp.maximum(per_side * side * inside / (inside - 1.0), 1.0)


def ring_traffic(group: Number, machine: Machine) -> Number:
    """The same per byte that a chip sends in a ring all-reduce or all-gather, which only ever talks to neighbours."""
    if machine.topology == "full-mesh":
        return jnp.maximum(machine.scale_up_domain - 1.0, 1.0) / (_inside(group, machine) - 1.0)
    return 2.0 if machine.topology == "mesh" else 1.0


def _hops(machine: Machine, group: Number, steps: Number) -> Number:
    beyond = share_above(group, machine.scale_up_domain)
    if machine.topology in DIMENSIONS:
        steps = steps * jnp.ones(())
        return steps * (machine.scale_up_hop * diameter(group, machine) + beyond * machine.scale_out_hop)
    return steps * (machine.scale_up_hop + beyond * machine.scale_out_hop)


def _sent(share: Number, payload: Number, group: Number, machine: Machine, traffic: Number) -> tuple[Number, Number]:
    """Bytes on the scale-up and scale-out lane of a collective in which a chip sends ``share`` of the payload.

    Where two levels are used one after the other (``two-level``), a domain's chips share out what goes beyond it:
    of ``n = G/D`` domains each chip sends the share of its own ``1/D`` of the payload.
    """
    out = crossing(group, machine.scale_up_domain)
    if machine.topology == "two-level":
        inside = jnp.minimum(group, machine.scale_up_domain)
        many = jnp.maximum(group / machine.scale_up_domain, 1.0)
        whole = jnp.maximum((group - 1.0) / group, 1e-30)
        local = share * ((inside - 1.0) / inside) / whole
        return payload * local, payload * share * ((many - 1.0) / many / inside) / whole
    sent = payload * share
    up = sent * (1.0 - out)
    return (up if isinstance(traffic, float) and traffic == 1.0 else up * traffic), sent * out


def all_reduce(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    r"""Sum ``payload`` bytes over ``group`` chips; nothing where the group is one chip.

    A ring sends :math:`2(G-1)/G` of the payload per chip; a two-step kernel with in-switch reduction
    :math:`1 + 1/G` (MSCCL-style two-shot multicast).  Latency: set-up and two one-way trips, reduce then broadcast.
    On a fabric of direct links a chip may also send the whole payload to every other at once, :math:`G - 1` of it and
    one trip: whichever takes less at the link's rate.
    """
    many = group > 1.5
    ring = 2.0 * (group - 1.0) / group
    in_switch = 1.0 + 1.0 / group
    share = jnp.where(many, ring + machine.in_switch_reduction * jnp.minimum(in_switch - ring, 0.0), 0.0)
    traffic, steps = ring_traffic(group, machine), 2.0
    if machine.topology in ONE_SHOT:
        trip = machine.scale_up_hop * diameter(group, machine)
        rate = payload * traffic / machine.scale_up_bandwidth
        at_once = jnp.where(many, (rate * (group - 1.0) + trip < rate * share + 2.0 * trip), False)
        at_once = at_once & (group <= machine.scale_up_domain)
        share, steps = jnp.where(at_once, group - 1.0, share), jnp.where(at_once, 1.0, 2.0)
    up, out = _sent(share, payload, group, machine, traffic)
    latency = machine.all_reduce_setup + _hops(machine, group, steps)
    return Row(name, "collective", scale_up=up, scale_out=out, latency=jnp.where(many, latency, 0.0))


def all_gather(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    """Gather ``payload`` bytes in all over ``group`` chips: each chip sends its ``1/G`` to the ``G - 1`` others."""
    many = group > 1.5
    up, out = _sent((group - 1.0) / group, payload, group, machine, ring_traffic(group, machine))
    latency = machine.all_reduce_setup + _hops(machine, group, 1.0)
    return Row(name, "collective", scale_up=up, scale_out=out, latency=jnp.where(many, latency, 0.0))


def gather_scatter(name: str, payload: Number, group: Number, machine: Machine) -> Row:
    """Gather queries before, and reduce-scatter partial results after, work that is split by context.

    Of ``payload`` bytes (queries of all heads and partial results of all heads, per instance) each chip sends
    ``(G - 1)/G``: its share of the queries to every other chip, and to each its share of the partial results.
    Latency as a two-step `all_reduce`: one kernel's set-up and two one-way trips.
    """
    row = all_gather(name, payload, group, machine)
    latency = machine.all_reduce_setup + _hops(machine, group, 2.0)
    return row._replace(latency=jnp.where(group > 1.5, latency, 0.0))


def all_to_all(name: str, sent: Number, group: Number, machine: Machine, once: Number = 1.0) -> Row:
    """One leg (dispatch or combine) of an exchange in which this chip sends ``sent`` bytes to its group.

    Latency: the kernel's set-up and one one-way trip; a second, longer hop where the group outgrows the domain.  On two
    levels what is bound for another domain goes to the chip of the same place there, which passes it on.

    Args:
        name: of the row.
        sent: bytes to other chips, wherever they are.
        group: chips.
        machine: its fabric.
        once: on two levels, bytes that cross between domains over those that are bound beyond: less than 1 where a
            token crosses once for all its experts in a domain.
    """
    many = group > 1.5
    out = crossing(group, machine.scale_up_domain)
    up, beyond = sent * (1.0 - out), sent * out
    if machine.topology == "two-level":
        domain = machine.scale_up_domain
        up, beyond = up + beyond * (1.0 - 1.0 / domain), beyond * once
    elif machine.topology != "switched":
        up = up * exchange_traffic(group, machine)
    latency = machine.all_to_all_setup + _hops(machine, group, 1.0)
    return Row(name, "collective", scale_up=up, scale_out=beyond, latency=jnp.where(many, latency, 0.0))


def hand_off(payload: Number, pp: Number, stage_chips: Number, machine: Machine) -> Row:
    r"""All ``pp - 1`` hand-offs of a pass: the activations of one micro-batch to the next stage.

    Stages of :math:`G` chips lie one after the other on domains of :math:`D`; every chip sends its copy to the one
    ``G`` further on.  The k-th border between domains is crossed by :math:`\mathrm{clip}(P - k D/G, 0, 1)` of a
    stage's chips, in all :math:`K + \mathrm{clip}(P - (K + 1) D/G, 0, 1)` with
    :math:`K = \lfloor (P - 1) G/D \rfloor`; where a stage fills a domain, every hand-off crosses.
    """
    boundaries = pp - 1.0
    reach = jnp.maximum(machine.scale_up_domain / stage_chips, 1.0)
    whole = jnp.floor(boundaries / reach + 1e-9)
    crossed = whole + jnp.clip(pp - (whole + 1.0) * reach, 0.0, 1.0)
    out = crossed / jnp.maximum(boundaries, 1.0)
    sent = payload * boundaries
    return Row(
        "hand_off",
        "collective",
        scale_up=sent * (1.0 - out),
        scale_out=sent * out,
        latency=boundaries * (machine.launch + machine.scale_up_hop + out * machine.scale_out_hop),
    )
