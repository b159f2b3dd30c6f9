"""A mixture of experts: router, sort, dispatch, routed experts, combine, shared experts; latent width optional.

Where one TP group holds the bank (``dp = 1``) every rank already has every token: nothing is dispatched and the
combine is the layer's all-reduce.  Otherwise the ranks of an instance share out its tokens, send each once to every
rank that holds one of its experts, and put them together after: with shared experts in the all-reduce of their parts,
without in an all-gather.  The pass waits for the fullest rank: its routes and its distinct
experts are expectations from `codesign.routing`.  A latent mixture projects to ``width`` before dispatch and back
after combine; these two projections are kept whole on every chip.  A step may ask for copies of popular experts, a
capacity per expert, and one message per route instead (`codesign.routing_choices`).
"""

from dataclasses import dataclass

import jax.numpy as jnp

from codesign.fabric import all_gather, all_reduce, all_to_all, crossing
from codesign.lanes import Number, Row
from codesign.layers.base import Step, Weights, gemm
from codesign.routing import expected_ranks_grouped
from codesign.routing_choices import fullest


@dataclass(frozen=True)
class MoE:
    """Structure of a routed feed-forward layer.

    Attributes:
        experts: routed experts E.
        top_k: experts a token visits.
        inner: inner width of one expert.
        width: width of an expert's input and output; None for the residual width, less for a latent mixture.
        gated: three matrices per expert, else two.
        shared_inner: inner width of all shared experts together (full residual width), 0 for none.
        groups, top_groups: experts come in groups of which a token may visit ``top_groups``.
        router_bias: one correction bias per expert.
        latent_norm: a norm of ``width`` between combine and the projection back.
        bias: biases in the experts.
        shared_gate: the shared experts' output is gated by one value per token.
        norms: norms around the layer, in units of the residual width.
    """

    experts: int
    top_k: int
    inner: int
    width: int | None = None
    gated: bool = True
    shared_inner: int = 0
    groups: int = 1
    top_groups: int = 1
    router_bias: bool = False
    latent_norm: bool = False
    bias: bool = False
    norms: int = 1
    shared_gate: bool = False

    def expert_width(self, hidden: int) -> int:
        """Width of what is dispatched."""
        return self.width or hidden

    def expert_parameters(self, hidden: int) -> int:
        """Parameters of one routed expert."""
        width = self.expert_width(hidden)
        bias = (2 if self.gated else 1) * self.inner + width if self.bias else 0
        return (3 if self.gated else 2) * width * self.inner + bias

    def weights(self, hidden: int) -> tuple[Weights, ...]:
        one = self.expert_parameters(hidden)
        router = hidden * self.experts + (self.experts if self.router_bias else 0)
        norms = self.norms * hidden + (self.width if self.width and self.latent_norm else 0)
        found = [
            Weights("routed", self.experts * one, self.top_k * one, "experts", self.experts),
            Weights("router", router, router, "copy"),
            Weights("attention", norms, norms, "copy"),
        ]
        if self.shared_inner:
            shared = (3 if self.gated else 2) * hidden * self.shared_inner
            found.append(Weights("shared", shared, shared))
            if self.shared_gate:
                found.append(Weights("shared", hidden, hidden, "copy"))
        if self.width:
            latent = 2 * hidden * self.width
            found.append(Weights("latent", latent, latent, "copy"))
        return tuple(found)

    def cache_elements(self) -> float:
        return 0.0

    def window_elements(self) -> float:
        return 0.0

    def state_elements(self) -> tuple[float, float]:
        return 0.0, 0.0

    def cache_share(self, step: Step) -> Number:  # noqa: ARG002 - the protocol's argument
        return 0.0

    def destinations(self, step: Step) -> Number:
        """Other chips that one token is sent to: ``D (EP moe_tp - 1)/EP``.

        D is the expected distinct ranks of its routes, or all of them where every route is a message of its own.
        Copies leave it as it is.
        """
        once, by_route = self.messages(step)
        if step.routing is None:
            return once
        return once + step.routing.per_route * (by_route - once)

    def messages(self, step: Step) -> tuple[Number, Number]:
        """Messages of one token to other chips: sent once per rank, and once per route."""
        ranks = expected_ranks_grouped(self.experts, self.top_k, step.ep, self.groups, self.top_groups)
        chips = step.ep * step.moe_tp - 1.0
        return ranks * chips / step.ep, self.top_k * chips / step.ep

    def dispatched(self, step: Step, hidden: int) -> Number:
        """Bytes that one token sends out: in each message its activations, and the number and the gate of routes.

        These are 8 bytes for each of its routes where a rank gets it once, for one where every route is a message.
        """
        once, by_route = self.messages(step)
        width = self.expert_width(hidden) * step.precision.bytes["dispatch"]
        plain = once * (width + 8.0 * self.top_k)
        if step.routing is None:
            return plain
        return plain + step.routing.per_route * (by_route * (width + 8.0) - plain)

    def crossing_once(self, step: Step, group: Number) -> Number:
        """Of what goes beyond the domain, the share that does where a token crosses once for all ranks there.

        Expected distinct domains but its own, over the destinations beyond it; 1 where every route is sent by itself.
        """
        if step.machine.topology != "two-level":
            return 1.0
        domains = jnp.maximum(group / step.machine.scale_up_domain, 1.0)
        reached = expected_ranks_grouped(self.experts, self.top_k, domains, self.groups, self.top_groups)
        beyond = self.messages(step)[0] * crossing(group, step.machine.scale_up_domain)
        once = jnp.minimum(reached * (domains - 1.0) / domains / jnp.maximum(beyond, 1e-9), 1.0)
        once = jnp.where(beyond > 1e-9, once, 1.0)
        return once if step.routing is None else once + step.routing.per_route * (1.0 - once)

    def rows(self, step: Step, hidden: int) -> list[Row]:
        p, machine = step.precision, step.machine
        act = p.bytes["activation"]
        width = self.expert_width(hidden)
        here = step.tokens / step.shared_out
        bank = step.tokens * step.dp
        spread = jnp.where(step.dp > 1.5, 1.0, 0.0)

        most = fullest(bank, self.experts, self.top_k, step.ep, step.skew, step.routing)
        routes, distinct = most.routes, most.distinct
        share = bank * self.top_k / step.ep / routes
        few = most.layer / step.ep
        inner = self.inner / step.moe_tp
        held = self.expert_parameters(hidden) / step.moe_tp
        handled = (2.0 * width + 2.0 * inner) * p.bytes["expert_activation"]
        sharing = spread * here
        if step.routing is not None:
            share, sharing = share * most.kept, sharing * most.kept
        group = jnp.where(step.dp > 1.5, step.ep * step.moe_tp, 1.0)
        once = self.crossing_once(step, group)
        out, back = sharing * self.dispatched(step, hidden), sharing * self.destinations(step) * width
        back = back * p.bytes["combine"]

        rows = [
            gemm("router", hidden * self.experts, here, hidden, self.experts, "router", step),
            Row(
                "sort",
                "elementwise",
                memory=16.0 * here * self.top_k + 4.0 * routes * width * act,
                mean_memory=16.0 * here * self.top_k + 4.0 * routes * share * width * act,
                vector=here * self.experts * (machine.exponential_ops + 4.0) + 16.0 * here * self.top_k,
                launches=2.0,
            ),
        ]
        if self.width:
            rows.append(gemm("latent_down", hidden * width, here, hidden, width, "latent", step))
        rows += [
            all_to_all("dispatch", out / share, group, machine, once)._replace(share=share),
            Row(
                "experts",
                "experts",
                memory=distinct * held * p.bytes["routed"] + routes * handled,
                mean_memory=few * held * p.bytes["routed"] + routes * share * handled,
                tensor=2.0 * routes * held,
                dtype=p.math["routed"],
                rows=routes / distinct,
                vector=routes * inner * (machine.exponential_ops + 3.0),
                launches=2.0,
                streams=self.experts / step.ep,
                share=share,
                narrow=p.bytes["routed"] / 2.0 ** (1.0 - p.math["routed"]),
            ),
            all_to_all("combine", back / share, group, machine, once)._replace(share=share),
        ]
        if self.width:
            rows.append(gemm("latent_up", hidden * width, here, width, hidden, "latent", step))
        if self.shared_inner:
            wide = (3 if self.gated else 2) * self.shared_inner / step.tp
            rows.append(
                gemm(
                    "shared", hidden * wide, step.tokens, hidden, hidden + wide, "shared", step, launches=2.0
                )._replace(
                    beside="all_to_all",
                    vector=step.tokens * self.shared_inner / step.tp * (machine.exponential_ops + 3.0),
                )
            )
        whole = (width + (hidden if self.shared_inner else 0)) if self.width else hidden
        payload = step.tokens * act * jnp.where(step.dp > 1.5, float(hidden), float(whole))
        if self.shared_inner:
            return [*rows, all_reduce("all_reduce", payload, step.tp, machine)]
        gathered = jnp.where(step.dp > 1.5, step.tp, 1.0)
        return [
            *rows,
            all_reduce("all_reduce", payload, step.tp / gathered, machine),
            all_gather("all_gather", payload, gathered, machine),
        ]
