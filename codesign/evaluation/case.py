"""A request made ready: names become a machine, a model, precisions, kernel constants and the mappings to try."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from codesign import catalog
from codesign.catalog.build import machine_of
from codesign.errors import CodesignError
from codesign.execution import Execution, ideal
from codesign.lanes import FAMILIES, TENSOR_DTYPES
from codesign.machine import Machine
from codesign.mapping import Mapping, enumerate_mappings
from codesign.model import Model, model_of
from codesign.objective.metrics import Framework
from codesign.objective.phases import DECODE, Phase
from codesign.precision import ARITHMETIC, BYTES, WEIGHT_CLASSES, Precision, with_cache

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
        frameworks: the file of overheads of serving frameworks, or None.
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
    frameworks: Any = None

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

    def framework(self, name: str | None) -> Framework:
        """What a serving framework adds to the passes, by name; nothing outside serving.

        Raises:
            CodesignError: no such framework in ``arch/measurements/frameworks.toml``.
        """
        if self.frameworks is None or self.phase.name != "serve":
            return Framework()
        return framework_of(self.frameworks, name)


def execution_of(measurement: Any) -> Execution:
    """Kernel constants from ``arch/measurements/execution.toml`` (keys as the fields of `Execution`)."""
    si = measurement.si
    return Execution(
        memory={f: si(f"memory_{f}") for f in FAMILIES},
        tensor={d: si(f"tensor_{d}") for d in TENSOR_DTYPES},
        rows_half={d: si(f"rows_half_{d}") for d in TENSOR_DTYPES},
        attention_tensor=si("attention_tensor"),
        vector=si("vector"),
        scale_up=si("scale_up"),
        scale_out=si("scale_out"),
        overlap_p={f: si(f"overlap_p_{f}") for f in FAMILIES},
        setup=si("setup"),
        overlap=si("overlap"),
    )


def framework_of(measurement: Any, name: str | None) -> Framework:
    """Overheads of a framework; without a name only the share of requests that decode is taken.

    Raises:
        CodesignError: no such framework.
    """
    si = measurement.si
    known = sorted(key.removeprefix("step_") for key in measurement.numbers if key.startswith("step_"))
    if name is None:
        return Framework(decoding=si("decoding"))
    if name not in known:
        raise CodesignError(f"unknown framework {name!r}", key="--framework", allowed=", ".join(known))
    return Framework(si(f"step_{name}", "s"), si(f"sequence_{name}", "s"), si("decoding"))


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
    if use_ideal:
        execution = ideal()
    else:
        execution = execution_of(catalog.load_measurement("execution", workspace, overrides=changed))
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
        frameworks=catalog.load_measurement("frameworks", workspace, overrides=changed),
        max_context=loaded.max_context,
    )


def with_dtypes(case: Case, **flags: str | None) -> Case:
    """The same case in other precisions."""
    names = dtypes_of(case.model, **flags)
    return replace(case, precision=Precision.from_names(names), dtypes=names)
