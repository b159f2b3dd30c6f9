"""One layer at a time: its rows as numbers, on the round machine with everything in BF16 and FP32 states."""

from typing import Any

import numpy as np
from cases import machine, step

from codesign.lanes import Row
from codesign.layers.base import Layer
from codesign.precision import MOVING_CLASSES, WEIGHT_CLASSES, Precision

#: Two bytes for everything but states.
BF16 = Precision.from_names(dict.fromkeys((*WEIGHT_CLASSES, *MOVING_CLASSES), "bf16") | {"state": "fp32"})

LANES = ("memory", "tensor", "vector", "scale_up", "scale_out", "launches", "latency")


def rows(layer: Layer, hidden: int, **lengths: Any) -> dict[str, Row]:
    """Rows by name, every lane a float; lengths and degrees as `cases.step` takes them."""
    found = layer.rows(step(machine(), BF16, **lengths), hidden)
    return {row.name: row._replace(**{lane: float(np.asarray(getattr(row, lane))) for lane in LANES}) for row in found}


def parameters(layer: Layer, hidden: int) -> float:
    """Parameters of one layer."""
    return sum(w.count for w in layer.weights(hidden))


def weight_flop(found: dict[str, Row], *names: str) -> float:
    """Parameters that one token multiplies by in these rows, on one chip."""
    return float(sum(found[name].tensor for name in names)) / 2.0


def per_token(layer: Layer, hidden: int, row: str, lane: str = "tensor", **lengths: Any) -> float:
    """What a row grows by with every cached token."""
    near, far = (rows(layer, hidden, cached=c, **lengths)[row] for c in (40960.0, 49152.0))
    return (getattr(far, lane) - getattr(near, lane)) / 8192.0
