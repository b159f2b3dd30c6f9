"""A design space as the search sees it: log variables within bounds, machines, budgets, and all their derivatives."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from codesign.buildable import bounds
from codesign.design import BUDGETS, Design, Package, Technology, constraints, machine_of
from codesign.machine import Machine

#: Names of the variables, in order; the search moves their logarithms.
VARIABLES = tuple(f.name for f in fields(Design))

#: Points per compiled call.
POINTS = 64


class Built(NamedTuple):
    """Designs made into machines.

    Attributes:
        machine: `Machine`, leaves (n,).
        by_x: derivative of each field of the machine by the log variables, (n, fields, variables).
        budgets: overdrafts g, (n, budgets); ``g <= 0`` holds.
        budgets_by_x: (n, budgets, variables).
    """

    machine: Machine
    by_x: np.ndarray
    budgets: np.ndarray
    budgets_by_x: np.ndarray


def design_of(x: Any) -> Design:
    """The design at log variables ``x`` (..., variables)."""
    return Design(*(jnp.exp(x[..., i]) for i in range(len(VARIABLES))))


@jax.jit
def _build(x: Any, technology: Technology, package: Package) -> Any:
    def both(x: Any) -> Any:
        design = design_of(x)
        g = constraints(design, technology, package)
        return machine_of(design, technology, package), jnp.stack([g[name] for name in BUDGETS])

    def one(x: Any) -> Any:
        return both(x), jax.jacfwd(both)(x)

    return jax.vmap(one)(x)


@dataclass(frozen=True)
class Space:
    """One memory technology in one package.

    Attributes:
        technology, package: exchange rates and budgets.
        lo, hi: bounds on the log variables, (variables,).
    """

    technology: Technology
    package: Package
    lo: np.ndarray
    hi: np.ndarray

    @classmethod
    def of(
        cls, technology: Technology, package: Package, narrowed: dict[str, tuple[float, float]] | None = None
    ) -> "Space":
        """The space of a technology within its own bounds, narrowed where a study says so (SI)."""
        low, high = bounds(technology, package)
        lo = np.log([float(getattr(low, name)) for name in VARIABLES])
        hi = np.log([float(getattr(high, name)) for name in VARIABLES])
        for name, (a, b) in (narrowed or {}).items():
            i = VARIABLES.index(name)
            lo[i], hi[i] = max(lo[i], np.log(a)), min(hi[i], np.log(b))
        return cls(technology, package, lo, hi)

    def clip(self, x: np.ndarray) -> np.ndarray:
        """``x`` within the bounds."""
        return np.clip(x, self.lo, self.hi)

    def build(self, x: np.ndarray) -> Built:
        """Machines and budgets at ``x`` (n, variables), with derivatives."""
        n = len(x)
        size = -(-n // POINTS) * POINTS
        padded = np.concatenate([x, np.repeat(x[-1:], size - n, axis=0)]) if size > n else x
        parts = [
            jax.tree.map(np.asarray, _build(padded[i : i + POINTS], self.technology, self.package))
            for i in range(0, size, POINTS)
        ]
        (machine, g), (by_x, g_by_x) = jax.tree.map(lambda *xs: np.concatenate(xs)[:n], *parts)
        return Built(machine, np.stack(jax.tree.leaves(by_x), axis=1), g, g_by_x)


__all__ = ["BUDGETS", "POINTS", "VARIABLES", "Built", "Space", "design_of"]
