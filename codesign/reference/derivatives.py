r"""Derivatives of the score of a design against central differences, at random machines around one of the catalog.

The score is :math:`\ln(\text{tokens/s/MW})` at the largest admissible batch, which moves along, less the weighted
shortfall of a mapping that does not serve (`codesign.objective.gradient`).  Differences are of fourth order in the
logarithm of each number.  The score has kinks (the batch limited twice, a chip that begins to throttle): a design whose
slopes on the two sides differ by more than curvature explains is set aside and counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codesign.bench import phase_of, points_of
from codesign.evaluation.case import load_case
from codesign.machine import Machine
from codesign.objective.compiled import DIRECTIONS, score_points, solve_points
from codesign.objective.gradient import SHORTFALL

#: Structure, not numbers: steps of a domain and the choice of a reduction have no useful derivative.
FIXED = ("scale_up_domain", "scale_out_domain", "in_switch_reduction")

#: Largest error allowed, of the gradient's norm; largest share of designs at a kink.
BAR, KINKED = 1e-5, 0.05

#: Targets lie between these: of a token in decode and serve, of the first one else [s].
LATE = {"decode": (4e-3, 0.1), "serve": (4e-3, 0.1), "prefill": (0.03, 10.0), "midfill": (0.03, 10.0)}

#: Step of the differences in the logarithm, and the jump of slopes that makes a kink, in steps.
STEP, JUMP = 1e-4, 30.0


def check(
    arch: str,
    model: str,
    phase: str = "decode",
    *,
    designs: int = 64,
    seed: int = 0,
    workspace: str | Path | None = None,
) -> dict[str, Any]:
    """Compare at random designs.

    Args:
        arch, model: catalog names; machines lie around the first.
        phase: regime.
        designs: how many, each with its own machine, mapping, context and target.
        seed: of the draw.
        workspace: folder looked up before the bundled catalog.

    Returns:
        worst and median error of the gradient over its norm, and how many designs lie at a kink.

    Raises:
        CodesignError: unknown name or regime.
    """
    regime = phase_of(phase)
    case = replace(load_case(arch, model, workspace=workspace), phase=regime)
    machine, mapping, load = points_of(case, designs, seed)
    draw = np.random.default_rng(seed + 1)
    low, high = LATE[regime.name]
    late = np.exp(draw.uniform(np.log(low), np.log(high), designs))
    target = np.where(draw.random(designs) < 0.2, np.inf, late)
    everything = list(vars(machine))
    names = [name for name in everything if name not in FIXED]
    common = (case.model, case.execution, case.precision)

    def score(machine: Machine) -> np.ndarray:
        found = solve_points(*common, machine, mapping, load, target, phase=regime)
        return np.log(found.result.tokens_per_s_per_megawatt) - SHORTFALL * (found.late + found.full)

    values = np.stack([np.broadcast_to(getattr(machine, name), designs) for name in everything], axis=1)
    given = []
    for start in range(0, len(names), DIRECTIONS):
        some = names[start : start + DIRECTIONS]
        along = np.zeros((designs, len(everything), len(some)))
        for k, name in enumerate(some):
            along[:, everything.index(name), k] = values[:, everything.index(name)]
        given.append(score_points(*common, machine, mapping, load, target, along, regime).slopes.T)
    slopes = np.concatenate(given)
    base, wanted, jumps = score(machine), [], []
    for name in names:
        at = np.asarray(getattr(machine, name))
        back2, back, ahead, ahead2 = (score(replace(machine, **{name: at * np.exp(n * STEP)})) for n in (-2, -1, 1, 2))
        wanted.append((8.0 * (ahead - back) - (ahead2 - back2)) / (12.0 * STEP))
        near, far = abs(ahead - 2.0 * base + back), abs(ahead2 - 2.0 * base + back2) / 2.0
        jumps.append(np.maximum(near, far) / STEP)
    norm = np.linalg.norm(slopes, axis=0)
    kinked = np.max(jumps, axis=0) > JUMP * STEP * np.maximum(norm, 1.0)
    error = np.linalg.norm(slopes - np.stack(wanted), axis=0) / norm
    smooth = error[~kinked]
    worst = float(smooth.max()) if len(smooth) else float("inf")
    return {
        "arch": case.arch,
        "model": case.model_name,
        "phase": regime.name,
        "designs": designs,
        "numbers": len(names),
        "kinked": int(kinked.sum()),
        "worst": worst if np.isfinite(worst) else None,
        "median": float(np.median(smooth)) if np.isfinite(worst) else None,
        "bar": BAR,
        "within": bool(worst < BAR and kinked.mean() <= KINKED and np.all(np.isfinite(slopes))),
    }
