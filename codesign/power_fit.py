"""Fit of the technology constants of board power, and the envelope against the published power of parts not fitted.

``python -m codesign.power_fit`` refits from the catalog's data and prints constants, residuals and the table; the
results stand in ``arch/measurements/power.toml`` (physics: power).  Fitted are the GEMMs of H100, H200, B200 and MI300X
at their published power, the idle power of H100 and B300, and the bytes of GH200's and MI300A's HBM3; nothing is tuned
to a part.
"""

import sys
from typing import NamedTuple

import equinox as eqx
import numpy as np

from codesign.catalog.loader import Where, load_accelerator, load_file, load_machine, load_measurement, load_memory
from codesign.lanes import TENSOR_DTYPES, Number
from codesign.machine import Machine
from codesign.power import Constants, energies, load_constants, memory_energy, node_key, regimes

#: The systems whose published power the constants are fitted to, and those whose is shown beside the envelope.
FITTED = ("h100", "h200", "b200", "mi300x")
SHOWN = ("b300", "gb200-nvl72", "gb300-nvl72", "mi355x", "vera-rubin-nvl72", "jalapeno")

#: The accelerators whose idle power the fit uses, and those whose measured energy of a byte of HBM3 it uses.
IDLE = ("h100", "b300")
STREAMED = ("gh200", "mi300a")

#: The five constants that `fit` determines.
FREE = ("static_per_area", "on_die_gpu", "tensor_fp8", "width_exponent", "unit_exponent")

#: Parts of whose arithmetic only some formats are published: the rest are assumptions and do not rate a power.
PUBLISHED_FORMATS = {"jalapeno": ("fp4",)}


class Part(NamedTuple):
    """What the fit and the table know of a part, from its files and from power.toml."""

    system: str
    accelerator: str
    title: str
    machine: Machine
    die_area: float
    published: float
    node: float
    device: float
    architecture: str
    unit: float
    sustained: dict[str, float]
    has: tuple[str, ...]
    formats: tuple[str, ...]


def architecture_of(vendor: str, attachment: str) -> str:
    """`ARCHITECTURES` of a part: where its memory is, and whether it is a GPU (NVIDIA and AMD) or a tile ASIC."""
    if attachment == "stacked":
        return "stacked"
    if attachment == "on-die":
        return "sram"
    return "gpu" if vendor in ("NVIDIA", "AMD") else "tile"


def load_part(name: str, workspace: Where = None) -> Part:
    """Collect a part by the name of its system."""
    m = load_measurement("power", workspace)
    system = load_file("system", name, workspace)
    chip = load_accelerator(system.accelerator, workspace)
    memory = load_memory(chip.memory, workspace)
    sustained = {
        d: m.si(f"sustained_{d}_{chip.name}", "FLOP/s")
        for d in TENSOR_DTYPES
        if f"sustained_{d}_{chip.name}" in m.numbers
    }
    unit = f"unit_{chip.name}" if f"unit_{chip.name}" in m.numbers else "unit_tile"
    has = tuple(d for d in TENSOR_DTYPES if getattr(chip, f"tensor_{d}") is not None)
    return Part(
        system=system.name,
        accelerator=chip.name,
        title=system.title,
        machine=load_machine(name, workspace),
        die_area=chip.die_area.si,
        published=chip.chip_power.si,
        node=m.si(node_key(chip.process)),
        device=memory.device_energy.si,
        architecture=architecture_of(chip.vendor, memory.attachment),
        unit=m.si(unit, "FLOP"),
        sustained=sustained,
        has=has,
        formats=PUBLISHED_FORMATS.get(chip.name, has),
    )


def energised(part: Part, constants: Constants) -> Machine:
    """The part's machine with the energies of ``constants``; a format that it lacks costs what the next wider does."""
    e = energies(constants, part.device, part.architecture, part.node, part.unit)
    fp8 = e.fp8 if "fp8" in part.has else e.bf16
    fp4 = e.fp4 if "fp4" in part.has else fp8
    return eqx.tree_at(
        lambda m: (m.memory_energy, m.tensor_bf16_energy, m.tensor_fp8_energy, m.tensor_fp4_energy, m.vector_energy),
        part.machine,
        (e.memory, e.bf16, fp8, fp4, e.vector),
    )


class Fit(NamedTuple):
    """Result of `fit`: constants, one standard deviation of each free one, named residuals (log ratios), their rms."""

    constants: Constants
    deviations: dict[str, float]
    residuals: dict[str, float]
    rms: float


def _free(c: Constants) -> tuple[Number, ...]:
    """The constants of `FREE`, in that order."""
    return c.static_per_area, c.on_die["gpu"], c.tensor_fp8, c.width_exponent, c.unit_exponent


def _with(constants: Constants, log_values: np.ndarray) -> Constants:
    return eqx.tree_at(_free, constants, tuple(float(v) for v in np.exp(log_values)))


def fit(workspace: Where = None) -> Fit:
    r"""Least squares of log ratios for `FREE`, by scipy, from the catalog's data alone.

    Twelve residuals: the BF16 and the FP8 GEMM of each of `FITTED` at its sustained rate against its published power
    (all four boards run both at their limit), idle power of H100 and B300 against ``static_per_area`` x die area, and
    the system-level energy of HBM3 on GH200 and MI300A (5 nm) against ``e_device + on_die_gpu``.
    """
    from scipy.optimize import least_squares

    start = load_constants(workspace)
    m = load_measurement("power", workspace)
    parts = [load_part(name, workspace) for name in FITTED]
    idle = {name: (m.si(f"idle_{name}", "W"), load_part(name, workspace).die_area) for name in IDLE}
    hbm3 = load_memory("hbm3", workspace).device_energy.si
    stream = {name: m.si(f"system_energy_{name}", "J/B") for name in STREAMED}

    def residuals(log_values: np.ndarray) -> dict[str, float]:
        c = _with(start, log_values)
        out = {}
        for part in parts:
            powers = regimes(energised(part, c), part.die_area, c, sustained=part.sustained, formats=("bf16", "fp8"))
            for name in ("bf16", "fp8"):
                out[f"{part.accelerator} {name} GEMM"] = float(np.log(float(powers[f"gemm_{name}"]) / part.published))
        for name, (watts, area) in idle.items():
            out[f"{name} idle"] = float(np.log(c.static_per_area * area / watts))
        for name, joules in stream.items():
            out[f"{name} HBM3 stream"] = float(np.log(memory_energy(c, hbm3, "gpu", 1.0) / joules))
        return out

    x0 = np.log([float(v) for v in _free(start)])
    found = least_squares(lambda x: list(residuals(x).values()), x0, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    constants, left = _with(start, found.x), residuals(found.x)
    spread = 2.0 * found.cost / (len(left) - len(FREE))
    covariance = spread * np.linalg.inv(found.jac.T @ found.jac)
    deviations = {k: float(np.exp(x) * s) for k, x, s in zip(FREE, found.x, np.sqrt(np.diag(covariance)), strict=True)}
    rms = float(np.sqrt(np.mean(np.square(list(left.values())))))
    return Fit(constants=constants, deviations=deviations, residuals=left, rms=rms)


class EnvelopeRow(NamedTuple):
    """One line of `envelope_table`: watts published and by the envelope, their ratio, and the regime that sets it.

    ``fitted`` where the published power itself was fitted to.
    """

    part: str
    title: str
    published_w: float
    envelope_w: float
    ratio: float
    regime: str
    fitted: bool


def envelope_table(workspace: Where = None, parts: tuple[str, ...] = FITTED + SHOWN) -> list[EnvelopeRow]:
    """The envelope against the published chip power, of the parts whose power was fitted to and of the others."""
    constants = load_constants(workspace)
    rows = []
    for name in parts:
        part = load_part(name, workspace)
        powers = regimes(
            energised(part, constants), part.die_area, constants, sustained=part.sustained, formats=part.formats
        )
        regime = max(powers, key=lambda key: float(powers[key]))
        watts = float(powers[regime])
        rows.append(
            EnvelopeRow(part.system, part.title, part.published, watts, watts / part.published, regime, name in FITTED)
        )
    return rows


def report(workspace: Where = None) -> str:
    """Refit and tell: constants with one standard deviation, residuals, and the table."""
    result = fit(workspace)
    values = zip(FREE, _free(result.constants), strict=True)
    lines = [f"{k:<18} {v:.6g} +- {result.deviations[k]:.2g} (SI)" for k, v in values]
    lines += [f"{name:<22} {100 * float(np.expm1(value)):+.1f} %" for name, value in result.residuals.items()]
    lines.append(f"rms of log residuals   {result.rms:.4f}")
    for row in envelope_table(workspace):
        told = "fitted" if row.fitted else "idle power alone fitted" if row.part in IDLE else "not fitted"
        watts = f"{row.published_w:6.0f} W published, {row.envelope_w:6.0f} W envelope"
        lines.append(f"{row.part:<18} {watts}, {row.ratio:.2f}, by {row.regime}, {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
