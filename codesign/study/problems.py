"""The problems of a study in order, and one problem solved: designs by technology beside existing machines.

Problems of one context and precision form a chain, from the loosest target to the tightest; each starts from the
optima of the one before it, so a chain's results depend on nothing outside it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from codesign.design import ANCHOR, anchor_design, load_package, load_technology
from codesign.errors import CodesignError
from codesign.evaluation.case import Case, load_case, with_dtypes
from codesign.evaluation.choose import OUTPUT_TOKENS, evaluate_case, frontier_points
from codesign.evaluation.document import mapping_document
from codesign.mapping import Mapping, enumerate_mappings, take
from codesign.objective.decode import Load
from codesign.search.ascent import Settings
from codesign.search.optimum import Optimum, find_optima
from codesign.search.problem import Problem
from codesign.search.space import VARIABLES, Space
from codesign.study.documents import design_document, machine_document
from codesign.study.schema import Study
from codesign.units import parse

Where = str | Path | None


@dataclass(frozen=True)
class Spec:
    """One problem: context [tokens], precision by name, target [s]."""

    context: float
    precision: str
    target: float

    @property
    def id(self) -> str:
        """A word for files and records, e.g. ``c131072-bf16-t0.02``."""
        return f"c{self.context:.0f}-{self.precision}-t{self.target:g}"


@dataclass
class Solver:
    """A study made ready to solve its problems.

    Attributes:
        study: what is asked.
        workspace: where names are looked up.
        seed: of the starts.
    """

    study: Study
    workspace: Where
    seed: int

    @cached_property
    def chains(self) -> list[list[Spec]]:
        """Problems by context and precision, loosest target first."""
        targets = sorted(self.study.targets_s, reverse=True)
        return [
            [Spec(context, p.name, target) for target in targets]
            for context in self.study.contexts_tokens
            for p in self.study.precisions
        ]

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Existing machines by name, in the study's order, at the first precision."""
        return {case.arch: case for case in (self._case(name) for name in self.study.machines)}

    @cached_property
    def base(self) -> Case:
        """The anchor's case, which designs borrow model and kernels from."""
        return self._case(ANCHOR)

    @cached_property
    def spaces(self) -> list[Space]:
        """One design space per technology."""
        p = self.study.package
        package = load_package(
            self.workspace,
            die_area=parse(p.die_area, "m^2") if p.die_area else None,
            power=parse(p.power, "W") if p.power else None,
        )
        spaces = []
        for name in self.study.technologies:
            space = Space.of(load_technology(name, self.workspace), package, self.study.narrowed)
            if np.any(space.lo > space.hi):
                bad = VARIABLES[int(np.argmax(space.lo > space.hi))]
                raise CodesignError(
                    f"bounds leave {name} no room",
                    key=f"variables.{bad}",
                    allowed=f"within {np.exp(space.lo.min()):.3g} to {np.exp(space.hi.max()):.3g} SI",
                )
            spaces.append(space)
        return spaces

    @cached_property
    def mappings(self) -> Mapping:
        """Mappings of the designs."""
        return enumerate_mappings(self.base.model, self.study.max_chips)

    def _case(self, arch: str) -> Case:
        return load_case(arch, self.study.model, workspace=self.workspace)

    def flags(self, precision: str) -> dict[str, str | None]:
        """Precision flags of a named choice."""
        p = next(p for p in self.study.precisions if p.name == precision)
        return {"weights": p.weights, "kv_dtype": p.kv, "attention_dtype": p.attention}

    def check(self) -> None:
        """Load everything that the run will need, so that bad input stops it before it starts."""
        if self.study.drafts and not self.base.model.drafts:
            raise CodesignError(f"{self.study.model} has no drafter in its file", key="drafts", allowed="0")
        for p in self.study.precisions:
            with_dtypes(self.base, **self.flags(p.name))
        _ = self.cases, self.spaces, self.mappings

    def load(self, context: float) -> Load:
        """What is served at a context."""
        return Load(1.0, context, float(self.study.drafts), self.study.skew, OUTPUT_TOKENS)

    def problem(self, spec: Spec) -> tuple[Problem, Case]:
        """The search problem of a spec, and the case of the anchor in its precision."""
        case = with_dtypes(self.base, **self.flags(spec.precision))
        load = self.load(spec.context)
        return Problem(case.model, case.execution, case.precision, load, spec.target, self.mappings), case

    def solve(self, spec: Spec, starts: dict[str, list[float]]) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Solve one problem.

        Args:
            spec: the problem.
            starts: log variables of the chain's previous optima, by technology.

        Returns:
            the record for the summary, and the starts of the next problem of the chain.
        """
        problem, case = self.problem(spec)
        key = [self.seed, round(spec.context), round(spec.target * 1e9), *spec.precision.encode()]
        anchor = np.log([float(getattr(anchor_design(self.spaces[0].package), v)) for v in VARIABLES])
        first = [
            [np.asarray(starts[s.technology.name]), anchor] if s.technology.name in starts else [anchor]
            for s in self.spaces
        ]
        s = self.study.search
        settings = Settings(starts=s.starts, kept=s.kept, steps=s.steps)
        found = find_optima(problem, self.spaces, first, np.random.default_rng(key), settings)
        designs = [design_document(o, problem, case, self.mappings) for o in found]
        machines = [self._machine(name, spec) for name in self.cases]
        return self._record(spec, found, designs, machines), {
            o.space.technology.name: o.finished.x.tolist() for o in found
        }

    def _machine(self, name: str, spec: Spec) -> dict[str, Any]:
        case = with_dtypes(self.cases[name], **self.flags(spec.precision))
        return machine_document(
            case,
            evaluate_case(
                case,
                spec.context,
                tpot=spec.target,
                drafts=float(self.study.drafts),
                skew=self.study.skew,
            ),
        )

    def _record(
        self, spec: Spec, found: list[Optimum], designs: list[dict[str, Any]], machines: list[dict[str, Any]]
    ) -> dict[str, Any]:
        able = [d for d in designs if d["feasible"]]
        best = max(able, key=lambda d: d["metrics"]["tokens_per_s_per_megawatt"], default=None)
        rivals = [
            m["metrics"]["tokens_per_s_per_megawatt"]
            for m in machines
            if m["feasible"] and m["status"] != "hypothetical"
        ]
        told = (best and best["rounded"]) or best  # what can be built, where a neighbour of the optimum can
        gain = told["metrics"]["tokens_per_s_per_megawatt"] / max(rivals) if told and rivals else None
        return {
            "id": spec.id, "context": spec.context, "precision": spec.precision, "target_s": spec.target,
            "best": best, "designs": designs, "machines": machines, "gain_over_best_machine": gain,
            "evaluations": int(sum(o.evaluations for o in found)),
        }  # fmt: skip

    def frontier(self, name: str, context: float, precision: str) -> dict[str, Any]:
        """The Pareto curve of an existing machine, for the charts."""
        case = with_dtypes(self.cases[name], **self.flags(precision))
        mappings, loads, d = frontier_points(case, context, drafts=float(self.study.drafts), skew=self.study.skew)
        points = [
            {
                "tpot_s": float(d.tpot_s[i]), "tokens_per_s_per_megawatt": float(d.tokens_per_s_per_megawatt[i]),
                "tokens_per_s_per_chip": float(d.tokens_per_s_per_chip[i]), "batch": float(loads.batch[i]),
                "mapping": mapping_document(take(mappings, i)),
            }
            for i in range(len(np.asarray(d.tpot_s)))
        ]  # fmt: skip
        return {"arch": name, "context": context, "precision": precision, "points": points}


def at_seed(solver: Solver, seed: int | None) -> Solver:
    """The same study from other starts."""
    return solver if seed is None else replace(solver, seed=seed)
