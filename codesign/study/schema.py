"""A study file: the model, the targets, the technologies to mix, the machines to compare with, the budgets.

One TOML file per study in ``optimize/``.  What is asked is plain text with units; numbers about the world stay in
``arch/`` and ``workloads/``.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from codesign import units
from codesign.catalog import Workspace, find_entry
from codesign.catalog.loader import Overrides, load_path, validate
from codesign.catalog.names import printable
from codesign.catalog.overrides import parse_overrides
from codesign.catalog.quantity import Table, Text, refuse
from codesign.catalog.schema import CatalogFile
from codesign.catalog.workspace import read_toml
from codesign.design import Design
from codesign.errors import CodesignError

#: Units of the design's variables.
VARIABLE_UNITS = {
    "memory_bandwidth": "B/s", "memory_capacity": "B", "scale_up_bandwidth": "B/s", "scale_up_domain": "chip",
    "tensor_fp4": "FLOP/s", "sram": "B",
}  # fmt: skip


#: What a study may ask for, per unit: far beyond any machine, and far from where arithmetic ends.
REACH = {"s": ("1 us", "1000 s"), "token": ("1", "100,000,000"), "m^2": ("1 mm^2", "1 m^2"), "W": ("1 W", "1 MW")}

#: Seeds fit in 63 bits.
LARGEST_SEED = 2**63 - 1

#: What the names of a study and of its precisions may be made of: folders and files are called by them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _asked(value: Any) -> Any:
    """Text or a number; anything else is refused in one go."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        what = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "no quantity"
        raise refuse(f"is {what}", 'a quantity, e.g. "20 ms", "128Ki" or 515000')
    return value


#: A quantity as a study may write it: text with its unit, or a plain number where the unit only counts.
Asked = Annotated[str | int | float, BeforeValidator(_asked)]


def _quantity(value: str | int | float, unit: str, key: str, bounds: str = "more than zero") -> float:
    """A quantity in ``unit``; ``bounds`` is what a negative one is answered with, since zero is refused too."""
    try:
        return units.parse(value, unit)
    except CodesignError as error:
        allowed = bounds if error.problem.endswith("is negative") else error.allowed
        raise refuse(error.problem, allowed, key) from error


def _within(value: str | int | float, unit: str, key: str) -> None:
    """Refuse what is out of `REACH`."""
    low, high = REACH[unit]
    found = _quantity(value, unit, key, f"{low} to {high}")
    if not found > 0.0:
        raise refuse(f"{value!r} is not above zero", f"{low} to {high}", key)
    if not units.parse(low, unit) <= found <= units.parse(high, unit):
        raise refuse(f"{value!r} is out of bounds", f"{low} to {high}", key)


class PrecisionChoice(Table):
    """A set of formats under a name; each as the flag of the same name, absent as published."""

    name: Text
    weights: Text | None = None
    kv: Text | None = None
    attention: Text | None = None


class Bounds(Table):
    """Bounds of one variable, with units; narrower than the technology's own."""

    lowest: Asked
    highest: Asked


class PackageBudget(Table):
    """Budgets of the package that differ from the anchor's."""

    die_area: Asked | None = None
    power: Asked | None = None


class SearchSettings(Table):
    """Length of the search; see `codesign.search.ascent.Settings`."""

    starts: int = Field(default=4, ge=1, le=64)
    kept: int = Field(default=16, ge=1, le=256)
    steps: int = Field(default=20, ge=1, le=1000)


class Sensitivity(Table):
    """Which unknowns of which machine are swept, and at which targets and context."""

    context: Asked
    targets: list[Asked] = Field(min_length=1, max_length=20)


class Study(CatalogFile):
    """A study file.

    Attributes:
        question: one sentence for the report.
        model: name in ``workloads/models``.
        targets: TPOT. contexts: cached tokens. precisions: formats.
        technologies: names in ``arch/memories`` to design with. machines: names in ``arch/systems`` to compare with.
        drafts: drafted tokens per pass. skew: exponent of expert popularity.
        max_chips: most chips of one mapping of a design.
        seed: of the random starts.
        variables: narrower bounds by variable.
        checks: set published points and the power table beside the answer.
        package, search, sensitivity: see their classes.
    """

    kind_name: ClassVar[str] = "study"

    question: Text
    model: Text
    phase: Literal["decode"] = "decode"
    targets: list[Asked] = Field(min_length=1, max_length=50)
    contexts: list[Asked] = Field(min_length=1, max_length=20)
    precisions: list[PrecisionChoice] = Field(min_length=1, max_length=10)
    technologies: list[Text] = Field(min_length=1, max_length=20)
    machines: list[Text] = Field(default_factory=list, max_length=100)
    drafts: int = Field(0, ge=0, le=64)
    skew: float = Field(0.0, ge=0.0, le=1.5)
    max_chips: int = Field(128, ge=1, le=2048)
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    checks: bool = True
    variables: dict[str, Bounds] = Field(default_factory=dict)
    package: PackageBudget = Field(default_factory=PackageBudget)
    search: SearchSettings = Field(default_factory=lambda: SearchSettings())
    sensitivity: Sensitivity | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Study":
        for key, name in [
            ("name", self.name),
            *((f"precisions.{i}.name", p.name) for i, p in enumerate(self.precisions)),
        ]:
            if not _NAME.fullmatch(name):
                raise refuse(f"{printable(name, 80)!r} is no name", "letters, digits, . _ and -", key)
        for i, target in enumerate(self.targets):
            _within(target, "s", f"targets.{i}")
        for i, context in enumerate(self.contexts):
            _within(context, "token", f"contexts.{i}")
        for name, values in (("targets", self.targets_s), ("contexts", self.contexts_tokens)):
            if len(set(values)) < len(values):
                raise refuse("names one value twice", "different values", name)
        precisions = [p.name for p in self.precisions]
        for name, names in (
            ("precisions", precisions), ("technologies", self.technologies), ("machines", self.machines)
        ):  # fmt: skip
            if len(set(names)) < len(names):
                raise refuse("names one of them twice", "different names", name)
        for name, b in self.variables.items():
            if name not in VARIABLE_UNITS:
                raise refuse(f"has no variable {name!r}", ", ".join(VARIABLE_UNITS), "variables")
            low, high = (_quantity(v, VARIABLE_UNITS[name], f"variables.{name}") for v in (b.lowest, b.highest))
            if not 0.0 < low <= high:
                raise refuse("bounds are not in order", "0 < lowest <= highest", f"variables.{name}")
        if self.package.die_area is not None:
            _within(self.package.die_area, "m^2", "package.die_area")
        if self.package.power is not None:
            _within(self.package.power, "W", "package.power")
        if self.sensitivity is not None:
            _within(self.sensitivity.context, "token", "sensitivity.context")
            for i, target in enumerate(self.sensitivity.targets):
                _within(target, "s", f"sensitivity.targets.{i}")
        return self

    @property
    def targets_s(self) -> list[float]:
        """Targets in seconds, as listed."""
        return [units.parse(t, "s") for t in self.targets]

    @property
    def contexts_tokens(self) -> list[float]:
        """Contexts in tokens, as listed."""
        return [units.parse(c, "token") for c in self.contexts]

    @property
    def narrowed(self) -> dict[str, tuple[float, float]]:
        """Bounds of the named variables, SI."""
        return {
            name: (units.parse(b.lowest, VARIABLE_UNITS[name]), units.parse(b.highest, VARIABLE_UNITS[name]))
            for name, b in self.variables.items()
        }


@dataclass(frozen=True)
class LoadedStudy:
    """A study with the text that it can be read from again, for the frozen copy: its file, or what overrides made."""

    study: Study
    text: str
    label: str


def load_study(
    name: str | Path, workspace: Workspace | str | Path | None = None, overrides: Overrides = ()
) -> LoadedStudy:
    """Read a study by path, or by name in the workspace or the bundled catalog.

    Raises:
        CodesignError: not found, damaged, or saying something impossible.
    """
    path = Path(name)
    if path.suffix == ".toml" and path.exists():
        study = load_path(path, Study, "study", overrides)
        return LoadedStudy(study, _written(study) if overrides else _text(path), str(path))
    entry = find_entry(path.stem if path.suffix == ".toml" else str(name), workspace, "optimize")
    origin = entry.origin
    study = validate(read_toml(origin), Study, origin.label, "study", parse_overrides(overrides, ("study",)))
    return LoadedStudy(study, _written(study) if overrides else _text(origin.path), origin.label)


def _written(study: Study) -> str:
    """A study as TOML: what its file says with its overrides applied."""
    document = study.model_dump(mode="json", exclude_none=True)
    return "\n".join(_lines(document, "")) + "\n"


def _lines(table: dict[str, Any], at: str) -> Iterator[str]:
    """A table's plain values, then its tables and lists of tables; JSON writes text, numbers and lists as TOML does."""
    nested: list[tuple[str, dict[str, Any]]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            nested.append((f"[{at}{key}]", value))
        elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
            nested += [(f"[[{at}{key}]]", v) for v in value]
        else:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for head, inner in nested:
        yield head
        yield from _lines(inner, f"{head.strip('[]')}.")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CodesignError(f"cannot be read: {error.strerror}", file=str(path)) from error


def plan(study: Study, variables: Any = Design) -> dict[str, Any]:
    """What a run would do, for ``--dry-run``."""
    problems = len(study.targets) * len(study.contexts) * len(study.precisions)
    return {
        "schema": "codesign.plan/1", "name": study.name, "title": study.title, "model": study.model,
        "problems": problems, "searches": problems * len(study.technologies),
        "evaluations_of_machines": problems * len(study.machines), "targets_s": study.targets_s,
        "contexts": study.contexts_tokens, "precisions": [p.name for p in study.precisions],
        "technologies": study.technologies, "machines": study.machines,
        "variables": list(variables.__dataclass_fields__), "seed": study.seed,
    }  # fmt: skip
