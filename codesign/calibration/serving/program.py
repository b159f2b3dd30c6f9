"""Predicted log TPOT of serving points as a function of constants and overheads, and its derivatives (forward mode)."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from codesign.calibration.constants import CHOSEN, LAWS, published, read
from codesign.calibration.serving.points import Points
from codesign.calibration.serving.terms import Line, Shifts, kernels_of
from codesign.execution import execution_from
from codesign.lanes import Number
from codesign.objective.metrics import Metrics
from codesign.objective.serve import serve

#: Share of the requests in flight that decode at any time: the mean of the measurements, as their notes have it.
DECODING = 0.96


def lines_of(points: Points) -> list[Line]:
    """What decides which numbers each point sees."""
    return [Line(c, v, f) for c, v, f in zip(points.chips, points.vendors, points.frameworks, strict=True)]


class Program:
    """The points of one model, compiled once.

    Attributes:
        points: the lines.
        base: u of the kernels' constants of each line, and zeros for the overheads, (n, constants and overheads).

    Args:
        points: the lines.
        folder: of the kernels' fit, see `codesign.calibration.serving.terms.kernels_beside`.
    """

    def __init__(self, points: Points, folder: Path | None = None) -> None:
        self.points = points
        kernels = np.array([kernels_of(c, folder=folder) for c in points.chips])
        self.base = np.concatenate([kernels, np.zeros((len(points), 2))], axis=1)
        estimates = published()
        chosen = {name: estimates(name) for name in CHOSEN}
        model = points.model
        arrays = jax.tree.map(jnp.asarray, (points.machine, points.precision, points.mapping, points.load))

        def metrics(w: Any, machine: Any, precision: Any, mapping: Any, load: Any) -> Metrics:
            constants = read(w[: len(LAWS)])
            execution = execution_from(lambda name: constants[name] if name in constants else chosen[name])
            overheads = jnp.exp(w[len(LAWS) :])
            load = eqx.tree_at(
                lambda x: (x.framework.step_overhead, x.framework.sequence_overhead, x.framework.decoding, x.skew),
                load,
                (overheads[0], overheads[1], DECODING, 0.0),
            )
            return serve(model, machine, execution, precision, mapping, load)

        def log_tpot(w: Any, *rest: Any) -> Number:
            return jnp.log(metrics(w, *rest).tpot_s)

        def values(w: Any, rest: Any) -> Any:
            return jax.vmap(log_tpot)(w, *rest)

        def slopes(w: Any, rest: Any) -> Any:
            """(n, constants and overheads): a line's time depends on its own constants only, one push for each."""

            def push(direction: Any) -> Any:
                moved = jnp.broadcast_to(direction, w.shape)
                return jax.jvp(lambda x: values(x, rest), (w,), (moved,))[1]

            return jax.lax.map(push, jnp.eye(w.shape[1])).T

        def watts(w: Any, rest: Any) -> Any:
            found = jax.vmap(metrics)(w, *rest)
            lacks = jnp.maximum(found.memory.total - found.memory.capacity, 0.0)
            return found.board_power_w, found.tokens_per_s_per_chip, lacks

        self._arrays = arrays
        self._values, self._slopes, self._watts = jax.jit(values), jax.jit(slopes), jax.jit(watts)

    def arguments(self, shifts: Shifts, theta: np.ndarray, *, without: str | None = None) -> np.ndarray:
        """(n, constants and overheads) of each line under the fitted numbers."""
        return self.base + (shifts.sees(lines_of(self.points), without=without) * theta) @ shifts.onto

    def predict(self, arguments: np.ndarray) -> np.ndarray:
        """Log seconds per output token, (n,)."""
        return np.asarray(self._values(arguments, self._arrays))

    def slopes(self, arguments: np.ndarray) -> np.ndarray:
        """Derivative of log TPOT by every constant and overhead, (n, constants and overheads)."""
        return np.asarray(self._slopes(arguments, self._arrays))

    def watts(self, arguments: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What a board draws by static power and the work's energy [W], its output tokens per second, and the bytes
        of memory that a chip lacks for the point [B], each (n,).
        """
        board, rate, lacks = self._watts(arguments, self._arrays)
        return np.asarray(board), np.asarray(rate), np.asarray(lacks)
