"""The problems of a study in order, and one problem solved: designs by technology beside existing machines.

Problems of one context and precision form a chain, from the loosest target to the tightest; each starts from the
optima of the one before it, so a chain's results depend on nothing outside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from codesign.calibration.interval import interval_document
from codesign.design import ANCHOR, Package, anchor_design, load_package, load_technology
from codesign.errors import CodesignError
from codesign.evaluation.case import Case, load_case, with_dtypes
from codesign.evaluation.choose import evaluate_case, frontier_points
from codesign.evaluation.document import Evaluation, mapping_document
from codesign.evaluation.operations import begin_table
from codesign.evaluation.request import OUTPUT_TOKENS, Request
from codesign.mapping import Mapping, enumerate_mappings, take
from codesign.objective.compiled import evaluate_points
from codesign.objective.metrics import Load
from codesign.search.ascent import Settings
from codesign.search.optimum import Optimum, find_optima
from codesign.search.problem import Problem
from codesign.search.space import VARIABLES, Space
from codesign.study.documents import design_document, machine_document
from codesign.study.schema import VARIABLE_UNITS, Study
from codesign.study.store import digest
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
        """A word for records, different for every problem of a study, e.g. ``c131072-bf16-t0.02``."""
        return f"c{self.chain}-t{self.target!r}"

    @property
    def chain(self) -> str:
        """A word for the problems of one context and precision, e.g. ``131072-bf16``."""
        return f"{self.context:.17g}-{self.precision}"


def _rate(document: dict[str, Any]) -> float:
    """Tokens/s per megawatt of a part, or of a design as it can be built."""
    return (document.get("rounded") or document)["metrics"]["tokens_per_s_per_megawatt"]


@contextmanager
def _at(key: str) -> Iterator[None]:
    """Tell what is wrong with a name or a format at its key of the study; what is wrong in another file stays there."""
    try:
        yield
    except CodesignError as error:
        if error.file:
            raise
        raise CodesignError(error.problem, key=key, allowed=error.allowed) from error


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
        with _at("machines"):
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
        return [self._space(name, package) for name in self.study.technologies]

    def _space(self, name: str, package: Package) -> Space:
        with _at("technologies"):
            technology = load_technology(name, self.workspace)
        space = Space.of(technology, package, self.study.narrowed)
        for i in np.flatnonzero(space.lo > space.hi):
            own = Space.of(technology, package)
            raise CodesignError(
                f"bounds leave {name} no room", key=f"variables.{VARIABLES[i]}",
                allowed=f"within {np.exp(own.lo[i]):.4g} to {np.exp(own.hi[i]):.4g} {VARIABLE_UNITS[VARIABLES[i]]}",
            )  # fmt: skip
        return space

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
        with _at("model"):
            model = self.base.model
        if self.study.drafts and not model.drafts:
            raise CodesignError(f"{self.study.model} has no drafter in its file", key="drafts", allowed="0")
        for p in self.study.precisions:
            with _at(f"precisions.{p.name}"):
                with_dtypes(self.base, **self.flags(p.name))
        _ = self.cases, self.spaces, self.mappings

    def begin(self) -> None:
        """Have programs that the end of a run needs made ready, while the search waits for its own."""
        case, load = self.base, self.load(self.study.contexts_tokens[0])
        begin_table(case, take(self.mappings, 0), load)
        evaluate_points(
            case.model, case.execution, case.precision, case.machine, take(self.mappings, slice(0, 1)), load, ahead=True
        )

    def fingerprint(self) -> str:
        """Digest of the numbers that the answers rest on: a run that went on with others would mix two answers."""
        cases = [self.base, *self.cases.values()]
        numbers = [(c.machine, c.execution, c.precision, float(c.max_chips)) for c in cases]
        designs = [(s.technology, s.package, s.lo, s.hi) for s in self.spaces]
        leaves = [np.asarray(x, dtype=float).tolist() for x in jax.tree.leaves((numbers, designs))]
        return digest(repr((self.base.model, leaves)))

    def request(self, context: float) -> Request:
        """What existing machines are asked at a context."""
        return Request(context=context, drafts=float(self.study.drafts), skew=self.study.skew)

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
        first = [
            ([np.asarray(starts[name])] if name in starts else []) + self._known(name)
            for name in (s.technology.name for s in self.spaces)
        ]
        s = self.study.search
        settings = Settings(starts=s.starts, kept=s.kept, steps=s.steps)
        found = find_optima(problem, self.spaces, first, np.random.default_rng(key), settings)
        designs = [design_document(o, problem, case, self.mappings) for o in found]
        evaluations = [self._evaluated(name, spec) for name in self.cases]
        machines = [machine_document(e.point[0], e) for e in evaluations if e.point]
        self._widen(spec, list(zip(found, designs, strict=True)), list(zip(evaluations, machines, strict=True)))
        return self._record(spec, found, designs, machines), {
            o.space.technology.name: o.finished.x.tolist() for o in found
        }

    def _known(self, technology: str) -> list[np.ndarray]:
        """Log variables of the anchor, and before it of the first part of another technology that the study names."""
        own = self.base.system.accelerator.memory
        parts = [c.machine for c in self.cases.values() if c.system.accelerator.memory == technology != own]
        known = [*parts[:1], anchor_design(self.spaces[0].package)]
        return [np.log([float(np.asarray(getattr(part, v))) for v in VARIABLES]) for part in known]

    def _evaluated(self, name: str, spec: Spec) -> Evaluation:
        case = with_dtypes(self.cases[name], **self.flags(spec.precision))
        return evaluate_case(case, replace(self.request(spec.context), tpot=spec.target), near=False)

    def _widen(
        self,
        spec: Spec,
        designs: list[tuple[Optimum, dict[str, Any]]],
        machines: list[tuple[Evaluation, dict[str, Any]]],
    ) -> None:
        """Give the best design and the best part of a problem their 90 % intervals, at their mapping and batch."""

        def widen(document: dict[str, Any], case: Case, mapping: Mapping, load: Load) -> None:
            told = {"tokens_per_s_per_megawatt": _rate(document)}
            document["interval"] = interval_document(case, mapping, load, told, None, self.workspace)

        able = [(o, d) for o, d in designs if d["feasible"] and o.rounded is not None]
        if able:
            optimum, document = max(able, key=lambda x: _rate(x[1]))
            built = optimum.rounded
            if built is not None:
                case = replace(with_dtypes(self.base, **self.flags(spec.precision)), machine=built.machine)
                load = replace(self.load(spec.context), batch=built.batch)
                widen(document, case, take(self.mappings, built.mapping), load)
        served = [(e, m) for e, m in machines if m["feasible"] and e.point]
        if served:
            found, document = max(served, key=lambda x: _rate(x[1]))
            if found.point:
                widen(document, *found.point)

    def _record(
        self, spec: Spec, found: list[Optimum], designs: list[dict[str, Any]], machines: list[dict[str, Any]]
    ) -> dict[str, Any]:
        able = [d for d in designs if d["feasible"]]
        best = max(able, key=_rate, default=None)
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
        mappings, loads, d = frontier_points(case, self.request(context), fine=False)
        points = [
            {
                "tpot_s": float(d.tpot_s[i]), "tokens_per_s_per_megawatt": float(d.tokens_per_s_per_megawatt[i]),
                "tokens_per_s_per_chip": float(d.tokens_per_s_per_chip[i]), "batch": float(loads.batch[i]),
                "mapping": mapping_document(take(mappings, i)),
            }
            for i in range(len(np.asarray(d.tpot_s)))
        ]  # fmt: skip
        return {"arch": name, "context": context, "precision": precision, "points": points}
