"""How a layer is split over chips, and the collectives of one chip's part of it.

Axis ``tp`` joins the chips of one attention instance, axis ``dp`` the instances of a stage.  A collective over one
chip does nothing and leaves no trace in the program, as in `codesign.fabric`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, PartitionSpec

P = PartitionSpec

#: Axes of the mesh: instances, then the chips of each.
AXES = ("dp", "tp")


class Part(NamedTuple):
    """Degrees by which a layer is split; all 1 on a single device.

    Attributes:
        tp: chips of an attention instance.
        dp: attention instances.
        ep: expert ranks; each expert is split by tensor over ``tp dp / ep`` chips.
        context: whether a cache is split by context range over ``tp`` instead of by heads.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    context: bool = False

    @property
    def chips(self) -> int:
        """Chips in all."""
        return self.tp * self.dp

    @property
    def moe_tp(self) -> int:
        """Chips that share one expert by tensor."""
        return self.chips // self.ep

    def mesh(self) -> Mesh:
        """The mesh of ``dp x tp`` devices."""
        devices = np.array(jax.devices()[: self.chips]).reshape(self.dp, self.tp)
        return Mesh(devices, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


#: One device.
ALONE = Part()


def all_reduce(x: jax.Array, part: Part) -> jax.Array:
    """Sum over the chips of an instance."""
    if part.tp == 1:
        return x
    with jax.named_scope("all_reduce"):
        return jax.lax.psum(x, "tp")


def gather(x: jax.Array, axis: int, part: Part) -> jax.Array:
    """Put the shares of an instance's chips side by side along ``axis``."""
    return x if part.tp == 1 else jax.lax.all_gather(x, "tp", axis=axis, tiled=True)


def exchange(x: jax.Array, axes: Any) -> jax.Array:
    """All-to-all along the first axis, which has one entry per chip of the group."""
    return jax.lax.all_to_all(x, axes, 0, 0, tiled=True)


class Reference(nnx.Module):
    """What the executable layers share: how their weights and what they keep are laid out over chips."""

    def specs(self, part: Part) -> dict[str, PartitionSpec]:  # noqa: ARG002 - what a layer fills in
        """Partition of each weight by name; those left out are whole on every chip."""
        return {}

    def laid_out(self, name: str, weight: jax.Array, part: Part) -> jax.Array:  # noqa: ARG002
        """A weight as it is handed to the chips, for those that are copied or cut in two ways."""
        return weight


class Draw:
    """Random weights, one after another: drawn by NumPy, since JAX would compile a program for each shape.

    Args:
        seed: of the draw.
        dtype: of the weights.
    """

    def __init__(self, seed: int, dtype: Any = np.float32):
        self._generator, self.dtype = np.random.default_rng(seed), dtype

    def normal(self, *shape: int) -> jax.Array:
        """Standard normal numbers."""
        return jnp.asarray(self._generator.standard_normal(shape, np.float32), self.dtype)

    def weight(self, *shape: int, fan: float) -> nnx.Param:
        """A weight of variance ``1/fan``."""
        numbers = self._generator.standard_normal(shape, np.float32) * np.float32(fan**-0.5)
        return nnx.Param(jnp.asarray(numbers, self.dtype))

    def constant(self, value: float, *shape: int) -> nnx.Param:
        """A weight that begins the same everywhere: a norm's scale or a bias."""
        return nnx.Param(jnp.asarray(np.full(shape, value), self.dtype))


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """``x / rms(x)`` along the last axis, times a scale."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def sharded(module: Reference, part: Part, specs: tuple[Any, ...], out_specs: Any) -> tuple[Any, Any]:
    """One chip's part of a layer as a program over the mesh, and the weights as it takes them.

    Args:
        module: the whole layer.
        part: how it is split.
        specs: partitions of the arguments of the layer's call.
        out_specs: of what it returns.

    Returns:
        a function ``(weights, *arguments)`` to be jitted, and the weights.
    """
    graph, state = nnx.split(module)
    given = module.specs(part)

    def named(path: Any) -> str:
        return str(path[0].key)

    weights = jax.tree_util.tree_map_with_path(lambda path, w: module.laid_out(named(path), w, part), state)
    weight_specs = jax.tree_util.tree_map_with_path(lambda path, _: given.get(named(path), P()), state)

    def local(weights: Any, *arguments: Any) -> Any:
        return nnx.merge(graph, weights)(*arguments, part=part)

    program = jax.shard_map(
        local, mesh=part.mesh(), in_specs=(weight_specs, *specs), out_specs=out_specs, check_vma=False
    )
    return program, weights
