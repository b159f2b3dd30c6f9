r"""A mixture of experts: router, sort by expert, `jax.lax.ragged_dot`, combine; shared experts and a latent width.

Where one TP group holds the bank every chip has every token and the combine is the layer's all-reduce.  Otherwise the
chips of an instance share out its tokens; a token goes once to every chip that holds (a slice of) one of its experts,
into a place of a buffer of ``capacity`` tokens per destination, with its gates for that chip's experts beside; what
comes back is summed where the token came from.  Tokens beyond the capacity are dropped.

Sorting is a histogram, a prefix sum and a permutation: the routes of a chip, an (expert, token) table of gates, are
listed in order of experts.
"""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np

from codesign.layers import moe
from codesign.reference.mlp import activated
from codesign.reference.parts import ALONE, AXES, Draw, P, Part, Reference, all_reduce, exchange, rms_norm


def chosen(scores: jax.Array, top_k: int, groups: int, top_groups: int) -> jax.Array:
    """Indices (tokens, k) of the best experts, within the best groups where a token may visit only some.

    A group is as good as the sum of its best two experts (of its one expert, where it has no more).
    Source: DeepSeek-V3, arXiv:2412.19437.
    """
    if top_groups < groups:
        grouped = scores.reshape(scores.shape[0], groups, -1)
        best = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0].sum(axis=-1)
        _, kept = jax.lax.top_k(best, top_groups)
        allowed = jnp.any(jax.nn.one_hot(kept, groups, dtype=bool), axis=1)
        scores = jnp.where(jnp.repeat(allowed, grouped.shape[-1], axis=1), scores, -jnp.inf)
    return jax.lax.top_k(scores, top_k)[1]


class MoE(Reference):
    """Executable `codesign.layers.moe.MoE`.

    Args:
        shape: the structure.
        hidden: residual width.
        draw: of the random weights.
        capacity: tokens that a chip may send to another one, or None for all of them.
        routes: routes that a chip makes room for, or None for the most that there can be.
    """

    def __init__(
        self, shape: moe.MoE, hidden: int, draw: Draw, *, capacity: int | None = None, routes: int | None = None
    ):
        self.shape, self.capacity, self.routes = shape, capacity, routes
        s, width = shape, shape.expert_width(hidden)
        matrices = 2 if s.gated else 1
        self.router = draw.weight(hidden, s.experts, fan=hidden)
        self.up = draw.weight(s.experts, width, matrices, s.inner, fan=width)
        self.down = draw.weight(s.experts, s.inner, width, fan=s.inner)
        if s.router_bias:
            self.router_bias = draw.constant(0.0, s.experts)
        if s.bias:
            self.up_bias = draw.weight(s.experts, matrices, s.inner, fan=16)
            self.down_bias = draw.weight(s.experts, width, fan=16)
        if s.width:
            self.latent_down = draw.weight(hidden, width, fan=hidden)
            self.latent_up = draw.weight(width, hidden, fan=width)
            if s.latent_norm:
                self.latent_scale = draw.constant(1.0, width)
        if s.shared_inner:
            self.shared_up = draw.weight(hidden, matrices, s.shared_inner, fan=hidden)
            self.shared_down = draw.weight(s.shared_inner, hidden, fan=s.shared_inner)
            if s.shared_gate:
                self.shared_gate = draw.weight(hidden, fan=hidden)

    def specs(self, part: Part) -> dict[str, P]:  # noqa: ARG002
        chips = P(AXES)
        return {
            "up": chips, "down": chips, "up_bias": chips, "down_bias": chips,
            "shared_up": P(None, None, "tp"), "shared_down": P("tp"),
        }  # fmt: skip

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:
        """Experts in order of chips: rank ``i // moe_tp`` of chip i, and of its experts slice ``i % moe_tp``."""
        axis = {"up": 3, "down": 1, "up_bias": 2}.get(name)
        if axis is None and name != "down_bias":
            return weight
        ranks = jnp.split(weight, part.ep)
        if axis is None:  # added once, by the first of the chips that share an expert
            found = [r if m == 0 else jnp.zeros_like(r) for r in ranks for m in range(part.moe_tp)]
        else:
            found = [piece for r in ranks for piece in jnp.split(r, part.moe_tp, axis=axis)]
        return jnp.concatenate(found)

    def _gates(self, x: jax.Array) -> jax.Array:
        """Gates (tokens, experts), 0 where a token does not go."""
        s = self.shape
        with jax.named_scope("router"):
            logits = x @ self.router[...]
            scores = jax.nn.sigmoid(logits)
            ids = chosen(scores + self.router_bias[...] if s.router_bias else scores, s.top_k, s.groups, s.top_groups)
            best = jnp.take_along_axis(scores, ids, axis=1)
            best = best / jnp.sum(best, axis=1, keepdims=True)
            return jnp.zeros_like(scores).at[jnp.arange(x.shape[0])[:, None], ids].set(best)

    def _experts(self, x: jax.Array, gates: jax.Array) -> jax.Array:
        """This chip's share of what its experts answer to tokens (rows, width) with gates (rows, experts here)."""
        s, rows = self.shape, x.shape[0]
        here = gates.shape[1]
        room = self.routes or rows * min(s.top_k, here)
        with jax.named_scope("sort"):
            by_expert = gates.T
            sizes = jnp.sum(by_expert > 0, axis=1, dtype=jnp.int32)
            order = jnp.nonzero(by_expert.reshape(-1) > 0, size=room, fill_value=here * rows)[0]
            token, expert = order % rows, jnp.minimum(order // rows, here - 1)
            gate = jnp.where(order < here * rows, by_expert.reshape(-1)[jnp.minimum(order, here * rows - 1)], 0.0)
            sorted_x = x[token]
        with jax.named_scope("experts"):
            up = self.up[...]
            inner = jax.lax.ragged_dot(sorted_x, up.reshape(*up.shape[:2], -1), sizes).reshape(room, *up.shape[2:])
            if s.bias:
                inner = inner + self.up_bias[...][expert]
            y = jax.lax.ragged_dot(activated(inner, s.gated), self.down[...], sizes)
            if s.bias:
                y = y + self.down_bias[...][expert]
        with jax.named_scope("sort"):
            # Places that no route fills hold whatever the kernel left there.
            y = jnp.where(gate[:, None] > 0, y * gate[:, None].astype(y.dtype), 0.0)
            return jnp.zeros_like(x).at[token].add(y)

    def _shared(self, x: jax.Array) -> jax.Array:
        with jax.named_scope("shared"):
            inner = activated(jnp.einsum("th,hmi->tmi", x, self.shared_up[...]), self.shape.gated)
            y = inner @ self.shared_down[...]
            if self.shape.shared_gate:
                y = y * jax.nn.sigmoid(jnp.sum(x * self.shared_gate[...], axis=1, keepdims=True))
            return y

    def _down(self, x: jax.Array) -> jax.Array:
        if not self.shape.width:
            return x
        with jax.named_scope("latent_down"):
            return x @ self.latent_down[...]

    def _up(self, y: jax.Array) -> jax.Array:
        if not self.shape.width:
            return y
        if self.shape.latent_norm:
            y = rms_norm(y, self.latent_scale[...])
        with jax.named_scope("latent_up"):
            return y @ self.latent_up[...]

    def __call__(self, x: jax.Array, part: Part = ALONE) -> jax.Array:
        """Map an instance's tokens (T, hidden) to (T, hidden)."""
        return self._together(x, part) if part.dp == 1 else self._dispatched(x, part)

    def _together(self, x: jax.Array, part: Part) -> jax.Array:
        """Every chip has every token; partial sums of experts, and of shared ones, are added up at the end."""
        s = self.shape
        gates, low = self._gates(x), self._down(x)
        rank = jax.lax.axis_index("tp") // part.moe_tp if part.tp > 1 else 0
        here = s.experts // part.ep
        y = self._experts(low, jax.lax.dynamic_slice_in_dim(gates, rank * here, here, axis=1))
        if s.width:
            y = self._up(all_reduce(y, part))
            return y + all_reduce(self._shared(x), part) if s.shared_inner else y
        return all_reduce(y + self._shared(x) if s.shared_inner else y, part)

    def _dispatched(self, x: jax.Array, part: Part) -> jax.Array:
        """Tokens are shared out, sent to their experts' chips, brought back, and put together again."""
        s = self.shape
        shared = x.shape[0] // part.tp
        mine = jax.lax.axis_index("tp") * shared if part.tp > 1 else 0
        own = jax.lax.dynamic_slice_in_dim(x, mine, shared, axis=0)
        gates, low = self._gates(own), self._down(own)
        here, room = s.experts // part.ep, self.capacity or shared
        with jax.named_scope("sort"):
            wanted = jnp.any(gates.reshape(shared, part.ep, here) > 0, axis=2).T
            order = jnp.argsort(~wanted, axis=1, stable=True)[:, :room]
            order = jnp.repeat(order, part.moe_tp, axis=0)
            best, ids = jax.lax.top_k(gates, s.top_k)
            sent = low[order], best[order], ids[order]
        with jax.named_scope("dispatch"):
            arrived, arrived_best, arrived_ids = (exchange(a, AXES) for a in sent)
        with jax.named_scope("sort"):
            first = jax.lax.axis_index(AXES) // part.moe_tp * here
            mine_of = jax.nn.one_hot(arrived_ids - first, here, dtype=best.dtype)  # nothing for other ranks' experts
            arrived_gates = jnp.sum(arrived_best[..., None] * mine_of, axis=2)
        y = self._experts(arrived.reshape(-1, low.shape[1]), arrived_gates.reshape(-1, here))
        with jax.named_scope("combine"):
            back = exchange(y.reshape(arrived.shape), AXES)
        with jax.named_scope("sort"):
            y = jnp.zeros_like(low).at[order.reshape(-1)].add(back.reshape(-1, low.shape[1]))
        y = self._up(y)
        if part.tp == 1:
            return y + self._shared(x) if s.shared_inner else y
        if not s.shared_inner:
            with jax.named_scope("all_gather"):
                return jax.lax.all_gather(y, "tp", axis=0, tiled=True)
        # One all-reduce sums the shared experts' parts and puts the tokens together.
        return all_reduce(
            jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(x), y, mine, axis=0) + self._shared(x), part
        )


def design(shape: moe.MoE) -> tuple[np.ndarray, np.ndarray]:
    """All choices of experts that the law of uniform routing gives the same chance, each once.

    Over such a batch every expert is met equally often and every average is the law's expectation, exactly.

    Returns:
        wanted scores (choices, experts): 2 for an expert that is to be chosen, 1 for the others of a group that is,
        else 0; and which experts are chosen.
    """
    size = shape.experts // shape.groups
    scores = []
    for groups in combinations(range(shape.groups), shape.top_groups):
        open_ = [g * size + i for g in groups for i in range(size)]
        for experts in combinations(open_, shape.top_k):
            row = np.zeros(shape.experts)
            row[open_] = 1.0
            row[list(experts)] = 2.0
            scores.append(row)
    table = np.array(scores)
    return table, table > 1.5


def routed_tokens(router: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Tokens (choices, hidden) that a router (hidden, experts) scores as wanted; hidden is at least experts."""
    return wanted @ np.linalg.pinv(np.asarray(router, dtype=float))
