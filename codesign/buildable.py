"""What of a continuous design can be built (whole stacks, layers and lanes, domain sizes that exist), and its bounds.

Off the traced path: the search relaxes these choices, ends on one of `roundings`, and reports the loss
(physics: search).  Left out: how many cores a whole number of FLOP/s makes; arithmetic and SRAM stay as they are.
"""

from itertools import product

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from codesign.design import Design, stacks
from codesign.technology import Package, Technology, load_package

#: Scale-up domains that are built or announced [chips].
DOMAINS = (8, 16, 32, 64, 72, 128, 144, 256)

#: A 200G lane, per direction [B/s].
LANE = 25e9

#: Stacks at the edge are built 4, 8, 12 or 16 high.
HEIGHT = 4

#: Bounds of the search that hold for every technology: lowest, highest [SI].
COMMON = {
    "scale_up_bandwidth": (100e9, 3.6e12),
    "scale_up_domain": (8.0, 256.0),
    "tensor_fp4": (0.5e15, 20e15),
    "sram": (32e6, 800e6),
}


def _round(value: float, up: bool) -> int:
    return int(np.ceil(value - 1e-9) if up else np.floor(value + 1e-9))


def _steps(value: float, choices: tuple[float, ...]) -> tuple[float, float]:
    """The choices just below and just above a value; both the same at the ends."""
    below = [c for c in choices if c <= value * (1 + 1e-9)]
    above = [c for c in choices if c >= value * (1 - 1e-9)]
    return (max(below) if below else min(choices)), (min(above) if above else max(choices))


def _memory(design: Design, technology: Technology, package: Package, more: bool, taller: bool) -> tuple[float, float]:
    """Bandwidth [B/s] and capacity [B] with stacks and layers rounded up or down."""
    bandwidth, capacity = float(design.memory_bandwidth), float(design.memory_capacity)
    layer, most = float(technology.layer_capacity), round(float(technology.layers))
    if technology.attachment == "edge":
        count = max(1, _round(float(stacks(design, technology)), more))
        layers = int(np.clip(HEIGHT * _round(capacity / (count * layer * HEIGHT), taller), HEIGHT, most))
        return min(bandwidth, count * float(technology.bandwidth_per_stack)), count * layers * layer
    if technology.attachment == "stacked":
        area = float(package.covered) * float(package.die_area)
        layers = int(np.clip(_round(capacity / (area * layer), taller), 1, most))
        return min(bandwidth, area * float(technology.bandwidth_per_area)), area * layers * layer
    return bandwidth, capacity


def roundings(design: Design, technology: Technology, package: Package | None = None) -> list[Design]:
    """Every buildable neighbour: stacks, layers and domain rounded down and up, links to whole lanes."""
    package = package or load_package()
    low, high = _steps(float(design.scale_up_domain), tuple(map(float, DOMAINS)))
    lanes = max(1, round(float(design.scale_up_bandwidth) / LANE))
    found: dict[tuple[float, ...], Design] = {}
    for more, taller, domain in product((False, True), (False, True), (low, high)):
        bandwidth, capacity = _memory(design, technology, package, more, taller)
        key = (bandwidth, capacity, domain)
        found.setdefault(
            key,
            eqx.tree_at(
                lambda d: (d.memory_bandwidth, d.memory_capacity, d.scale_up_bandwidth, d.scale_up_domain),
                design,
                tuple(jnp.asarray(v, dtype=float) for v in (bandwidth, capacity, lanes * LANE, domain)),
            ),
        )
    return list(found.values())


def bounds(technology: Technology, package: Package | None = None) -> tuple[Design, Design]:
    """Lowest and highest design of the search, SI; the budgets bind well inside them."""
    package = package or load_package()
    if technology.attachment == "edge":
        usable = float(package.edge_share) * 4.0 * float(package.die_area) ** 0.5
        most = usable / float(technology.shoreline_per_stack)
        stack = float(technology.layer_capacity)
        memory = {
            "memory_bandwidth": (1e12, most * float(technology.bandwidth_per_stack)),
            "memory_capacity": (HEIGHT * stack, most * stack * float(technology.layers)),
        }
    else:
        area = float(package.die_area) * (float(package.covered) if technology.attachment == "stacked" else 1.0)
        layer = area * float(technology.layer_capacity)
        least = layer if technology.attachment == "stacked" else 0.05 * layer
        memory = {
            "memory_bandwidth": (1e12, area * float(technology.bandwidth_per_area)),
            "memory_capacity": (least, layer * float(technology.layers)),
        }
    ranges = memory | COMMON
    low, high = (Design(**{k: jnp.asarray(v[i], dtype=float) for k, v in ranges.items()}) for i in (0, 1))
    return low, high
