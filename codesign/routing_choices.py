"""How routing is served: copies of popular experts, a capacity per expert, and what a message carries.

`Routing` travels in the load; a load without one is served plainly: no copies, no capacity, a token sent once to every
rank that holds one of its experts.  Only then the program has nothing of this in it.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from codesign.errors import CodesignError
from codesign.lanes import Number
from codesign.routing import expected_distinct, fullest_rank_distinct, fullest_rank_routes, routing_law
from codesign.routing_capacity import capped_routes, overflow
from codesign.routing_copies import copied_distinct, fullest_rank_distinct_copied, fullest_rank_routes_copied

#: How a token reaches its experts, by the name of the option: once per rank, or once per route.
DISPATCH = ("token", "route")

#: What becomes of routes beyond an expert's capacity.
OVERFLOW = ("drop", "reroute")

#: The largest capacity factor that is told from none: with 1,000 times the mean an expert takes all there is.
MAX_CAPACITY = 1000.0


class Routing(eqx.Module):
    """Choices of the expert bank.

    Attributes:
        copies: redundant experts c per layer, spread over the ranks.
        capacity: factor f: an expert takes f times the mean; None where it takes all.
        rerouted: 1 where routes beyond go to experts with room, 0 where they are dropped.
        per_route: 1 where every route is a message of its own, 0 where a token goes once to a rank.
        copied: False where there are no copies for certain: then the program has nothing of them in it; static.
    """

    copies: Number = 0.0
    capacity: Number | None = None
    rerouted: Number = 0.0
    per_route: Number = 0.0
    copied: bool = eqx.field(default=True, static=True)


class Fullest(NamedTuple):
    """What the expert bank gets in a pass.

    Attributes:
        routes, distinct: on the fullest rank: routes to compute, experts to read.
        layer: distinct experts over all ranks, copies counted apart.
        kept: share of all routes that are computed.
        beyond: share of all routes beyond a capacity.
    """

    routes: Number
    distinct: Number
    layer: Number
    kept: Number
    beyond: Number


def fullest(
    tokens: Number, experts: int, top_k: int, ranks: Number, skew: Number, routing: Routing | None = None
) -> Fullest:
    """Routes and distinct experts on the fullest of ``ranks`` ranks; arguments as in `codesign.routing`."""
    bank = (tokens, experts, top_k)
    if routing is None:
        return Fullest(
            fullest_rank_routes(*bank, ranks, skew), fullest_rank_distinct(*bank, ranks, skew),
            expected_distinct(*bank, skew), 1.0, 0.0,
        )  # fmt: skip
    copies, layer = routing.copies, expected_distinct(*bank, skew)
    if routing.copied:
        routes = fullest_rank_routes_copied(*bank, ranks, copies, skew)
        distinct = fullest_rank_distinct_copied(*bank, ranks, copies, skew)
        layer = layer + jnp.clip(copies, 0.0, 1.0) * (copied_distinct(*bank, copies, skew) - layer)
    else:
        copies = 0.0
        routes, distinct = fullest_rank_routes(*bank, ranks, skew), fullest_rank_distinct(*bank, ranks, skew)
    if routing.capacity is None:
        return Fullest(routes, distinct, layer, 1.0, 0.0)
    beyond = overflow(*bank, routing.capacity, copies, skew)
    routes = capped_routes(routes, *bank, ranks, beyond, copies, routing.rerouted)
    return Fullest(routes, distinct, layer, 1.0 - beyond.share * (1.0 - routing.rerouted), beyond.share)


def named_law(skew: Number, routing: Routing | None = None) -> str:
    """The law of routing and how it is served, as results state it."""
    found = routing_law(skew)
    if routing is None:
        return found
    copies, words = float(routing.copies), []
    if copies:
        words.append(f"{copies:g} redundant experts")
    if routing.capacity is not None:
        what = "re-routed" if float(routing.rerouted) > 0.5 else "dropped"
        words.append(f"capacity factor {float(routing.capacity):g}, overflow {what}")
    if float(routing.per_route) > 0.5:
        words.append("one message per route")
    return "; ".join([found, *words])


def routing_of(
    copies: float = 0.0, capacity_factor: float | None = None, dispatch: str = "token", overflow: str = "drop"
) -> Routing | None:
    """The choices by their options; None where all are plain.

    Raises:
        CodesignError: a number of copies below 0, a factor outside 1 to 1,000 (or infinite: none), an unknown word.
    """
    if not 0.0 <= copies < float("inf"):
        raise CodesignError(f"{copies!r} redundant experts", key="--copies", allowed="0 or more")
    limit = None if capacity_factor in (None, float("inf")) else capacity_factor
    if limit is not None and not 1.0 <= limit <= MAX_CAPACITY:
        allowed = f"1 to {MAX_CAPACITY:,.0f}, or none for experts that take all"
        raise CodesignError(f"a capacity of {limit!r} means", key="--capacity-factor", allowed=allowed)
    if dispatch not in DISPATCH:
        raise CodesignError(f"unknown dispatch {dispatch!r}", key="--dispatch", allowed=", ".join(DISPATCH))
    if overflow not in OVERFLOW:
        raise CodesignError(f"unknown overflow {overflow!r}", key="--overflow", allowed=", ".join(OVERFLOW))
    if capacity_factor is None and overflow != OVERFLOW[0]:
        raise CodesignError("has no meaning without a capacity", key="--overflow", allowed="with --capacity-factor")
    if copies == 0.0 and limit is None and dispatch == "token":
        return None
    return Routing(
        float(copies), None if limit is None else float(limit), float(overflow == "reroute"),
        float(dispatch == "route"), copies > 0.0,
    )  # fmt: skip
