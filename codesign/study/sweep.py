"""Tokens per megawatt of one machine at one target as its numbers move: all mappings and all values in one call.

A variant is the machine with some leaves replaced; its rate is that of its best mapping at the largest admissible
batch (`codesign.objective.compiled.solve_points`).  All mappings are screened on the machine as it is and with whole
`GROUPS` of its unknowns at either end, the best of each kept: what makes quite another mapping best is above all how
much fits and how dear a kernel or a collective is to start.  In a trial against all mappings (Kimi K3 at 515,000
tokens, four machines, every unknown at either end) that lost nothing at most of them and 3 % at the worst.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from codesign.evaluation.case import Case, Degrees
from codesign.machine import Machine
from codesign.mapping import Mapping, take
from codesign.objective.batch import Batch
from codesign.objective.compiled import BLOCK, solve_points
from codesign.objective.gradient import SHORTFALL
from codesign.objective.metrics import Load
from codesign.study.unknowns import Unknown, unknowns_of

#: Unknowns that go to their ends together when all mappings are tried (empty: all of them), and how many of the best
#: are kept of each try.
GROUPS = (
    ("memory_capacity",),
    ("launch", "scale_up_hop", "scale_out_hop", "all_reduce_setup", "all_to_all_setup"),
    (),
)
KEPT = 16

#: A crossing's bracket is cut at so many values at once, until it is this narrow, relatively.
CUTS = 4
NARROW = 1e-4

Change = dict[str, float]

#: The ends of an unknown's range.
ENDS: tuple[Callable[[Unknown], float], ...] = (attrgetter("worst"), attrgetter("best"))


def variants(machine: Machine, changes: Sequence[Change]) -> Machine:
    """The machine once per change, leaves (changes,)."""
    leaves = {}
    for f in fields(Machine):
        own = float(np.asarray(getattr(machine, f.name)))
        leaves[f.name] = np.array([change.get(f.name, own) for change in changes], dtype=float)
    return type(machine)(**leaves)


@dataclass(frozen=True)
class Sweep:
    """One machine, model and precision at one load and target.

    Attributes:
        case: as loaded. load: ``batch`` is ignored. target: TPOT [s].
        like: the same machine, load and target in another precision, whose screening this one shares: of its own it
            then tries only the machine as it is.
    """

    case: Case
    load: Load
    target: float
    like: "Sweep | None" = None

    @cached_property
    def unknowns(self) -> list[Unknown]:
        """The machine's numbers with a range."""
        return unknowns_of(self.case.system)

    @cached_property
    def _all(self) -> Mapping:
        return self.case.mappings(Degrees())

    @cached_property
    def _screened(self) -> tuple[np.ndarray, Mapping]:
        changes: list[Change] = [{}]
        for group in GROUPS if self.like is None else ():
            inside = [u for u in self.unknowns if not group or u.name in group]
            if inside:
                changes += [self.corner({u.name: end(u) for u in inside}, 1.0) for end in ENDS]
        _, score = self._solve(changes, self._all)
        kept = np.unique(np.argsort(-score, axis=1, kind="stable")[:, :KEPT])
        if self.like is not None:
            kept = np.union1d(kept, self.like._screened[0])
        return kept, take(self._all, kept)

    @property
    def mappings(self) -> Mapping:
        """The mappings kept after the screening, stacked."""
        return self._screened[1]

    def _solve(self, changes: Sequence[Change], mappings: Mapping) -> tuple[Batch, np.ndarray]:
        """All pairs of change and mapping in one call, leaves (changes, mappings); and their scores."""
        n, m = len(changes), len(np.asarray(mappings.pp))
        pair = np.divmod(np.arange(n * m), m)
        found = solve_points(
            self.case.model, self.case.execution, self.case.precision,
            take(variants(self.case.machine, changes), pair[0]), take(mappings, pair[1]), self.load, self.target,
        )  # fmt: skip
        score = np.log(found.result.tokens_per_s_per_megawatt) - SHORTFALL * (found.late + found.full)
        return found, score.reshape(n, m)

    def rates(self, changes: Sequence[Change]) -> np.ndarray:
        """Tokens/s per provisioned MW of each variant on its best mapping, 0 where none serves, (changes,)."""
        return self._serving(changes, self.mappings)

    def base(self) -> float:
        """The rate of the machine as it is, over all mappings."""
        return float(self._serving([{}], self._all)[0])

    def _serving(self, changes: Sequence[Change], mappings: Mapping) -> np.ndarray:
        found, score = self._solve(changes, mappings)
        serves = (np.maximum(found.late, found.full) <= 0.0).reshape(score.shape)
        return np.where(serves, np.exp(score), 0.0).max(axis=1)

    def best(self) -> tuple[int, Batch]:
        """The machine as it is: index into `mappings` of the best one, and what it reaches.

        Where none serves, the one nearest to serving (least TPOT among those that fit).
        """
        found, score = self._solve([{}], self.mappings)
        i = int(np.argmax(score[0]))
        if np.maximum(found.late, found.full)[i] > 0.0:
            i = int(np.argmin(np.where(np.asarray(found.full) <= 0.0, found.result.tpot_s, np.inf)))
        return i, take(found, i)

    def crossing(self, change: Callable[[float], Change], bracket: tuple[float, float], level: float) -> float:
        """The value within ``bracket`` at which the rate first passes ``level``, to `NARROW`.

        Args:
            change: the machine's leaves at a value.
            bracket: values with the rate at or above ``level`` at one end only.
            level: tokens/s per MW.
        """
        a, b = bracket
        _, score = self._solve([change(a), change(b)], self.mappings)
        few = take(self.mappings, np.argsort(-score.max(axis=0), kind="stable")[: BLOCK // CUTS])
        above = bool(self._serving([change(a)], few)[0] >= level)
        while abs(b - a) > NARROW * max(abs(a), abs(b)):
            inner = np.geomspace(a, b, CUTS + 2) if min(a, b) > 0.0 else np.linspace(a, b, CUTS + 2)
            ahead = self._serving([change(float(v)) for v in inner[1:-1]], few) >= level
            i = int(np.argmax(np.append(ahead != above, True)))
            a, b = float(inner[i]), float(inner[i + 1])
        return 0.5 * (a + b)

    def corner(self, ends: dict[str, float], share: float) -> Change:
        """All unknowns at once, each a share of the way from its value to the end given for it by name."""
        change: Change = {}
        for u in self.unknowns:
            if u.name in ends:
                change |= u.change(u.between(ends[u.name], share))
        return change


def floats(tree: Any) -> Any:
    """Numbers and arrays of numpy in nested lists and tables as Python's own, for JSON."""
    if isinstance(tree, dict):
        return {k: floats(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [floats(v) for v in tree]
    if isinstance(tree, np.ndarray | np.generic):
        return tree.tolist()
    return tree
