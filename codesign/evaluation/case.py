"""A request made ready: names become a machine, a model, precisions, kernel constants and the mappings to try."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from codesign import catalog
from codesign.catalog.build import machine_of
from codesign.errors import CodesignError, UnknownName
from codesign.execution import UNITS, Execution, execution_from, ideal
from codesign.lanes import FAMILIES
from codesign.machine import Machine
from codesign.mapping import Mapping, enumerate_mappings
from codesign.model import Model, model_of
from codesign.objective.metrics import Framework
from codesign.objective.phases import DECODE, Phase
from codesign.precision import ARITHMETIC, BYTES, WEIGHT_CLASSES, Precision, with_cache

#: Vendors whose parts are GPUs, as the measured ones are.
GPU_VENDORS = ("nvidia", "amd")

#: Constants that say how much of a part's own latencies is paid; 1 for parts that are no GPU.
OWN_LATENCIES = (*(f"launches_{f}" for f in FAMILIES), "all_reduce", "all_to_all", "stream_ops", "group_ops")

#: Classes that ``--weights DTYPE`` leaves as the model file has them.
KEPT_CLASSES = ("routed", "router", "embedding", "drafter")


@dataclass(frozen=True)
class Degrees:
    """Mapping flags; None is searched."""

    chips: int | None = None
    pp: int | None = None
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    attention_split: str | None = None
    microbatches: int | None = None
    chunk: float | None = None


#: Chunks of prompts that are tried where none is given; infinite for whole prompts [token].
PROMPT_CHUNKS = (1024.0, 2048.0, 4096.0, 8192.0, 16384.0, inf)
SERVE_CHUNKS = (2048.0, 8192.0, inf)


@dataclass(frozen=True)
class Case:
    """Everything that an evaluation needs, loaded and checked.

    Attributes:
        arch, model_name: canonical names of the catalog.
        system: the loaded system, for provenance.
        machine, model, execution, precision: of the physics.
        dtypes: dtype name per tensor class, as evaluated.
        max_chips: that the system offers.
        max_context: longest context that the model's publisher supports, or None [tokens].
        phase: the regime that is asked about.
        constants: in words, where the kernel constants come from.
        serving: loads the file of overheads of frameworks.
    """

    arch: str
    model_name: str
    system: Any
    machine: Machine
    model: Model
    execution: Execution
    precision: Precision
    dtypes: dict[str, str]
    max_chips: int
    max_context: int | None = None
    phase: Phase = DECODE
    constants: str = "speed of light"
    serving: Callable[[], Any] | None = None

    def mappings(self, degrees: Degrees) -> Mapping:
        """All legal mappings within the given degrees, stacked; raises `CodesignError` where there is none."""
        given = dict(degrees.__dict__)
        chunk, chunks = given.pop("chunk"), (inf,)
        if self.phase.name == "decode":
            if chunk is not None:
                raise CodesignError("has no meaning in decode", key="--chunk", allowed="prefill, midfill, serve")
        elif chunk is not None:
            if not chunk > 0.0:
                raise CodesignError(f"{chunk!r} tokens", key="--chunk", allowed="a number above 0")
            chunks = (float(chunk),)
        else:
            chunks = SERVE_CHUNKS if self.phase.name == "serve" else PROMPT_CHUNKS
        return enumerate_mappings(
            self.model, self.max_chips, **given, chunks=chunks, flow=self.phase.name in ("decode", "serve"),
            max_domain_tp=int(float(self.machine.scale_up_domain)),
        )  # fmt: skip

    def asked(self, request: Any) -> tuple["Case", Framework]:
        """The case in a request's regime, with the launches of its framework, and the host time that adds.

        Raises:
            CodesignError: no such framework in ``arch/measurements/frameworks.toml``.
        """
        here = replace(self, phase=request.regime)
        if request.phase != "serve" or self.serving is None:
            return here, Framework()
        overheads, factor = framework_of(self.serving(), request.framework, self.vendor)
        if self.execution.hard:  # the work's energy alone
            return here, replace(overheads, awake=0.0, effort=1.0)
        launches = {k: v * (1.0 if k == "experts" else factor) for k, v in self.execution.launches.items()}
        return replace(here, execution=replace(self.execution, launches=launches)), overheads

    @property
    def vendor(self) -> str:
        """Who makes the accelerator, in small letters."""
        return self.system.accelerator.vendor.lower()


def execution_of(measurement: Any) -> Execution:
    """Kernel constants from a file of ``arch/measurements`` that has every name of `codesign.execution.NAMES`.

    They are told as calibrated where the file's numbers were fitted.
    """
    fitted = any(number.kind == "fitted" for number in measurement.numbers.values())
    return execution_from(lambda name: measurement.si(name, UNITS.get(name, "1")), calibrated=fitted)


def _first(names: Sequence[str], workspace: str | Path | None, overrides: Any = ()) -> Any:
    """The first of some files of ``arch/measurements`` that is there; the last must be."""
    for name in names[:-1]:
        try:
            return catalog.load_measurement(name, workspace, overrides=overrides)
        except UnknownName:
            continue
    return catalog.load_measurement(names[-1], workspace, overrides=overrides)


def with_own_latencies(execution: Execution) -> Execution:
    """Constants of a part that is no GPU: shares as measured on GPUs, latencies as its own file has them.

    Launches, set-ups and what a kernel spends per stream or expert were fitted to GPUs, over launches of GPUs; a part
    whose file states the whole latency of a dependent operation would pay twice.
    """
    own = execution.values() | dict.fromkeys(OWN_LATENCIES, 1.0)
    return execution_from(lambda name: own[name], calibrated=execution.calibrated)


def constants_of(system: Any, workspace: str | Path | None = None, overrides: Any = ()) -> tuple[Execution, str]:
    """A system's fitted constants as kernels have them in a server, and in words where they come from.

    ``fitted: h200`` for a chip with measurements, ``inherited: hopper`` for one of a measured generation,
    ``inherited: all chips measured`` for the rest, with ``own latencies`` where it is no GPU.  Constants of kernels on
    a bench (``arch/measurements/kernels*.toml``) predict kernel tables; they carry over badly to mixtures that no table
    has, where every resident expert costs.

    Args:
        system: as loaded.
        workspace, overrides: as in `load_case`.
    """
    chip, vendor = system.accelerator.name, system.accelerator.vendor.lower()
    middle = [f"served-{vendor}"] if vendor in GPU_VENDORS else []
    found = _first([f"served-{chip}", *middle, "served"], workspace, overrides)
    owner = found.name.removeprefix("served").removeprefix("-")
    words = f"fitted: {chip}" if owner == chip else f"inherited: {owner or 'all chips measured'}"
    execution = execution_of(found)
    if vendor not in GPU_VENDORS:
        return with_own_latencies(execution), f"{words}, own latencies"
    return execution, words


def bases(workspace: str | Path | None = None) -> dict[str, Execution]:
    """Constants on which parts that were measured and parts that were not stand alike.

    ``own latencies``: shares of all chips measured in a server, and every part's launches and set-ups as its own file
    has them.  ``speed of light``: every rate achieved.
    """
    shared = execution_of(catalog.load_measurement("served", workspace))
    return {"own latencies": with_own_latencies(shared), "speed of light": ideal()}


def framework_of(measurement: Any, name: str | None, vendor: str) -> tuple[Framework, float]:
    """Overheads of a framework on a vendor's parts, and what it makes of launches; without a name only who decodes.

    On a vendor's parts that it was not measured on, a framework is taken as on the others.

    Raises:
        CodesignError: no such framework.
    """
    si = measurement.si
    keys = [key.removeprefix("step_") for key in measurement.numbers if key.startswith("step_")]
    known = sorted({key.rpartition("_")[0] for key in keys})
    if name is None:
        return Framework(decoding=si("decoding"), awake=si("awake"), effort=si("effort")), 1.0
    if name not in known:
        raise CodesignError(f"unknown framework {name!r}", key="--framework", allowed=", ".join(known))
    pair = f"{name}_{vendor}" if f"{name}_{vendor}" in keys else next(k for k in keys if k.startswith(f"{name}_"))
    shared = (si("decoding"), si("awake"), si("effort"))
    return Framework(si(f"step_{pair}", "s"), si(f"sequence_{pair}", "s"), *shared), si(f"launches_{pair}")


def _dtype(name: str, key: str) -> str:
    if name not in BYTES:
        raise CodesignError(f"unknown dtype {name!r}", key=key, allowed=", ".join(BYTES))
    return name


def dtypes_of(
    model: Model, weights: str | None = None, kv_dtype: str | None = None, attention_dtype: str | None = None
) -> dict[str, str]:
    """Dtype per tensor class: the model file's, with the precision flags applied.

    ``weights`` is a dtype for every class but `KEPT_CLASSES`, or ``class=dtype,class=dtype``; activations follow a
    dtype given for all, so that FP8 weights multiply at the FP8 rate.
    """
    names = dict(model.dtypes)
    if weights and weights != "published":
        if "=" in weights:
            for part in weights.split(","):
                kind, _, dtype = part.partition("=")
                if kind.strip() not in (*WEIGHT_CLASSES, "activation", "expert_activation"):
                    raise CodesignError(
                        f"unknown tensor class {kind.strip()!r}", key="--weights", allowed=", ".join(WEIGHT_CLASSES)
                    )
                names[kind.strip()] = _dtype(dtype.strip(), "--weights")
        else:
            _dtype(weights, "--weights")
            names |= dict.fromkeys((c for c in WEIGHT_CLASSES if c not in KEPT_CLASSES), weights)
            names["activation"] = "bf16" if ARITHMETIC[weights] == "bf16" else "fp8"
    if kv_dtype:
        names = with_cache(names, _dtype(kv_dtype, "--kv-dtype"))
    if attention_dtype:
        if attention_dtype not in ("bf16", "fp8"):
            problem = f"no attention scan in {attention_dtype!r}"
            raise CodesignError(problem, key="--attention-dtype", allowed="bf16, fp8")
        names["attention_math"] = attention_dtype
    return names


def load_case(
    arch: str,
    model: str,
    *,
    weights: str | None = None,
    kv_dtype: str | None = None,
    attention_dtype: str | None = None,
    use_ideal: bool = False,
    overrides: Sequence[str] = (),
    workspace: str | Path | None = None,
) -> Case:
    """Load a machine and a model by name.

    Raises:
        CodesignError: unknown name, damaged file, wrong unit, unknown dtype or override.
    """
    changed = catalog.parse_overrides(overrides)
    system = catalog.load_system(arch, workspace, overrides=changed)
    loaded = catalog.load_model_file(model, workspace, overrides=changed)
    structure = model_of(loaded)
    names = dtypes_of(structure, weights, kv_dtype, attention_dtype)
    execution, words = (ideal(), "speed of light") if use_ideal else constants_of(system, workspace, changed)

    def serving() -> Any:
        return catalog.load_measurement("frameworks", workspace, overrides=changed)

    return Case(
        arch=system.system.name,
        model_name=structure.name,
        system=system,
        machine=machine_of(system),
        model=structure,
        execution=execution,
        precision=Precision.from_names(names),
        dtypes=names,
        max_chips=int(system.system.max_chips.si),
        constants=words,
        serving=serving,
        max_context=loaded.max_context,
    )


def with_dtypes(case: Case, **flags: str | None) -> Case:
    """The same case in other precisions."""
    names = dtypes_of(case.model, **flags)
    return replace(case, precision=Precision.from_names(names), dtypes=names)
