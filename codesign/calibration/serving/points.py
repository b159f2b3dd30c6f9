"""Serving points: lines of a table become machines, mappings, precisions and loads of the model, or a reason why not.

Lengths are drawn between 0.8 and 1.0 of ``isl`` and ``osl``, so their means are 0.9 of them.  What a ``precision``
label leaves open is settled here and named: FP8 is block FP8 in every matrix product; FP4 (NVFP4 on NVIDIA, MXFP4 on
AMD) is that of routed and shared experts and dense layers, in dense models of attention too, with FP4 activations where
the chip multiplies FP4 and BF16 ones elsewhere, BF16 attention beside experts; a checkpoint in FP4 stays as it is;
INT4 is that of groups of 32 outside attention, with BF16 activations; caches are FP8.  Other spellings of labels and
names are those of `codesign.calibration.serving.labels`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from codesign.calibration.serving.labels import (
    ABSENT,
    YES_NO,
    checkpoint_of,
    framework_of,
    precision_of,
    unused_in,
)
from codesign.catalog.names import KINDS, printable
from codesign.catalog.workspace import Workspace
from codesign.errors import CodesignError, UnknownName
from codesign.evaluation.case import Case, load_case, with_dtypes
from codesign.mapping import legal, stack
from codesign.objective.metrics import Framework, Load

#: Columns by which the table is recognised.
COLUMNS = ("hardware", "framework", "model", "precision", "tp", "ep", "dp_attention", "isl", "osl", "concurrency")

#: Mean of a length over its nominal value.
DRAWN = 0.9

#: Tokens of a prompt that one step takes, as the frameworks ship [token].
CHUNK = 8192.0

PRECISIONS = ("bf16", "fp8", "fp4", "int4")
_MATRICES = ("routed", "shared", "dense", "attention")


def dtypes_of(model: Any, label: str, native: bool, nvidia: bool) -> str | None:
    """What a precision label means for a model, as ``--weights`` takes it.

    Args:
        model: the structure.
        label: ``bf16`` | ``fp8`` | ``fp4`` | ``int4``.
        native: whether the chip multiplies FP4.
        nvidia: whether FP4 is NVFP4.
    """
    published = dict(model.dtypes)
    if label == "fp4" and "fp4" in published["routed"]:
        return None  # the checkpoint itself
    four = "nvfp4" if nvidia else "mxfp4"
    dense = model.counts().routed_parameters == 0.0
    if label == "bf16":
        names = dict.fromkeys((*_MATRICES, "activation", "expert_activation"), "bf16")
    elif label == "fp8":
        names = dict.fromkeys(_MATRICES, "fp8_block") | dict.fromkeys(("activation", "expert_activation"), "fp8")
    elif label == "int4":
        names = dict.fromkeys(("routed", "shared", "dense"), "int4_group32")
        names |= dict.fromkeys(("attention", "activation", "expert_activation"), "bf16")
    else:
        names = dict.fromkeys(("routed", "shared", "dense"), four) | {"attention": four if dense else "bf16"}
        names |= dict.fromkeys(("activation", "expert_activation"), four if native else "bf16")
    return ",".join(f"{k}={v}" for k, v in (names | {"head": "bf16"}).items())


@lru_cache(maxsize=512)
def model_of(name: str) -> tuple[str, str | None]:
    """A model of the catalog by its name, and the precision that tags of a checkpoint at its end say, or None.

    Raises:
        UnknownName: neither the name nor what is left of it without such tags is known.
    """
    catalog, kind = Workspace.open(), KINDS["model"]
    try:
        return catalog.find(kind, name).name, None
    except UnknownName:
        bare, precision = checkpoint_of(name)
        if precision is None:
            raise
    try:
        return catalog.find(kind, bare).name, precision
    except UnknownName:
        catalog.find(kind, name)  # told as it was written
        raise


@lru_cache(maxsize=512)
def case_of(hardware: str, model: str, label: str) -> Case:
    """A machine and a model of the catalog in the precision that a label means.

    Raises:
        CodesignError: one of the three is not known.
    """
    if label not in PRECISIONS:
        raise CodesignError(f"unknown precision {label!r}", key="precision", allowed=", ".join(PRECISIONS))
    case = load_case(hardware, model)
    machine = case.machine
    native = float(machine.tensor_fp4) > 1.2 * float(machine.tensor_fp8)
    nvidia = case.system.accelerator.vendor.lower() == "nvidia"
    return with_dtypes(case, weights=dtypes_of(case.model, label, native, nvidia), kv_dtype="fp8")


@dataclass(frozen=True)
class Points:
    """Lines of one model on fabrics of one kind, stacked.

    Attributes:
        lines: numbers in the table, (n,).
        model: structure, shared by all.
        chips, vendors, frameworks, labels, splits: of each line, (n,).
        hardware, names: as the table has them.
        machine, precision, mapping, load: leaves (n,) or (n, ...).
        tpot: measured seconds per output token, NaN where there are none, (n,).
        joules: measured board energy per output token, NaN where there is none, (n,).
        notes: what was taken for granted, several with "; " between them, (n,).
    """

    lines: np.ndarray
    model: Any
    chips: np.ndarray
    vendors: np.ndarray
    frameworks: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    hardware: np.ndarray
    names: np.ndarray
    machine: Any
    precision: Any
    mapping: Any
    load: Any
    tpot: np.ndarray
    joules: np.ndarray
    notes: np.ndarray

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, keep: np.ndarray) -> "Points":
        """Some of the lines."""
        chosen = np.flatnonzero(keep)
        cut = {
            name: jax.tree.map(lambda x: np.asarray(x)[chosen], value)
            for name, value in vars(self).items()
            if name != "model"
        }
        return replace(self, **cut)


#: Least and most that a cell may say: far beyond any server, so that what is beyond is a slip of the pen.
REACH = {
    "tp": (1.0, 1e5), "ep": (1.0, 1e5), "dp_attention": (0.0, 1.0), "concurrency": (1.0, 1e7), "isl": (1.0, 1e8),
    "osl": (2.0, 1e8), "tpot_s": (1e-7, 1e5), "board_j_per_output_token": (1e-9, 1e9),
}  # fmt: skip

#: Why the least is what it is.
BECAUSE = {"osl": "of which the first counts as TTFT"}

#: Cells that may be empty: what was not measured.
MEASURED = ("tpot_s", "board_j_per_output_token")


def _number(row: Mapping[str, Any], name: str) -> float:
    """The number of a cell; NaN where nothing was measured."""
    text = str(row.get(name) if row.get(name) is not None else "").strip()
    if name in MEASURED and text.casefold() in ABSENT:
        return float("nan")
    low, high = REACH[name]
    allowed = f"a number from {low:g} to {high:g}"
    if name in BECAUSE:
        allowed += f", {BECAUSE[name]}"
    if name == "dp_attention":
        allowed = "0, 1, true, false, yes or no"
        text = str(YES_NO.get(text.casefold(), text))
    try:
        value = float(text) if text.isascii() and "_" not in text else float("nan")
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        what = "is not a number" if np.isnan(value) else f"is below {low:g}" if value < low else f"is above {high:g}"
        raise CodesignError(f"{printable(text, 40)!r} {what}", key=name, allowed=allowed)
    if name == "dp_attention" and value not in (0.0, 1.0):
        raise CodesignError(f"{printable(text, 40)!r} is neither 0 nor 1", key=name, allowed=allowed)
    return value


def _degree(row: Mapping[str, Any], name: str) -> int:
    value = _number(row, name)
    if value != round(value):
        raise CodesignError(f"{row[name]!r} is not whole", key=name, allowed="whole chips")
    return round(value)


def split_of(row: Mapping[str, Any]) -> str:
    """What a line is for, ``fit`` or ``check``, in any case and with blanks around; ``check`` where it is not said."""
    return str(row.get("split") or "").strip().casefold() or "check"


def _placed(row: Mapping[str, Any]) -> dict[str, Any]:
    """One line as the model has it; what is wrong with it is told by its column."""
    for name in ("hardware", "framework", "model", "precision"):
        if not str(row.get(name) or "").strip():
            raise CodesignError("is empty", key=name, allowed="a name")
    written = str(row["precision"])
    label, meant = precision_of(written)
    framework, taken = framework_of(str(row["framework"]))
    model, tag = model_of(str(row["model"]))
    case = case_of(str(row["hardware"]), model, label)
    chips, ep = (_degree(row, k) for k in ("tp", "ep"))
    data_parallel = _number(row, "dp_attention") == 1.0
    tp, dp = (1, chips) if data_parallel else (chips, 1)
    flying = _number(row, "concurrency")
    if why := legal(case.model, 1, tp, dp, ep):
        raise CodesignError(why, key="tp, ep, dp_attention")
    isl, osl = _number(row, "isl"), _number(row, "osl")
    load = Load(max(flying / dp, 1.0), 0.0, 0.0, 0.0, DRAWN * osl, DRAWN * isl, Framework(0.0, 0.0, 1.0))
    notes = [meant, _other_fp4(case, written), taken]
    if tag not in (None, label):
        notes.append(f"precision is {label} as its column says, the name of the model says {tag}")
    if flying < dp:
        notes.append(f"{flying:g} in flight on {dp} instances, each is taken to have one")
    return {
        "case": case, "mapping": (1, tp, dp, ep, 0.0, 1, CHUNK), "load": load, "label": label, "framework": framework,
        "notes": "; ".join(filter(None, [*notes, *unused_in(row)])),
        "tpot": _number(row, "tpot_s"), "joules": _number(row, "board_j_per_output_token"),
    }  # fmt: skip


def _other_fp4(case: Case, written: str) -> str:
    """A note where a label names an FP4 that is not the one the routed experts, or the dense layers, are taken in."""
    named = next((four for four in ("nvfp4", "mxfp4") if four in written.casefold()), None)
    routed = case.model.counts().routed_parameters > 0.0
    used = case.dtypes["routed" if routed else "dense"]
    return f"{named} taken as {used}" if named and used in ("nvfp4", "mxfp4") and used != named else ""


def place(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Points], dict[int, str]]:
    """Lines of a serving table by model and kind of fabric, and the reason by number of each that cannot be placed."""
    found: dict[tuple, list[tuple[int, Mapping[str, Any], dict[str, Any]]]] = {}
    left: dict[int, str] = {}
    for i, row in enumerate(rows):
        try:
            one = _placed(row)
        except CodesignError as problem:
            left[i] = str(problem)
            continue
        case = one["case"]
        found.setdefault((case.model_name, jax.tree.structure(case.machine)), []).append((i, row, one))
    return [_stacked(lines) for lines in found.values()], left


def _stacked(lines: Sequence[tuple[int, Mapping[str, Any], dict[str, Any]]]) -> Points:
    def joined(trees: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: np.asarray(leaves, dtype=float), *trees)

    def words(values: list[str]) -> np.ndarray:
        return np.array(values, dtype=object)

    cases = [one["case"] for *_, one in lines]
    rows = [row for _, row, _ in lines]
    return Points(
        lines=np.array([i for i, *_ in lines]),
        model=cases[0].model,
        chips=words([c.system.accelerator.name for c in cases]),
        vendors=words([c.system.accelerator.vendor.lower() for c in cases]),
        frameworks=words([one["framework"] for *_, one in lines]),
        labels=words([one["label"] for *_, one in lines]),
        splits=words([split_of(r) for r in rows]),
        hardware=words([str(r["hardware"]) for r in rows]),
        names=words([str(r["model"]) for r in rows]),
        machine=joined([c.machine for c in cases]),
        precision=joined([c.precision for c in cases]),
        mapping=stack(cases[0].model, [one["mapping"] for *_, one in lines]),
        load=joined([one["load"] for *_, one in lines]),
        tpot=np.array([one["tpot"] for *_, one in lines]),
        joules=np.array([one["joules"] for *_, one in lines]),
        notes=words([one["notes"] for *_, one in lines]),
    )


def twins(rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """Lines that stand twice under two labels: all but ``ep`` and ``dp_attention`` alike, times within 0.1 %.

    The first of each is kept out of the set, of split ``fit`` before others, so that no line held back decides what
    is fitted; lines whose time is none have no twins.
    """
    kept: dict[tuple, list[float]] = {}
    doubled = set()
    for i, row in sorted(enumerate(rows), key=lambda x: split_of(x[1]) != "fit"):
        key = tuple(str(row[k]) for k in COLUMNS if k not in ("ep", "dp_attention"))
        try:
            tpot = _number(row, "tpot_s")
        except CodesignError:
            continue
        if any(abs(tpot / other - 1.0) < 1e-3 for other in kept.setdefault(key, [])):
            doubled.add(i)
        else:
            kept[key].append(tpot)
    return doubled
