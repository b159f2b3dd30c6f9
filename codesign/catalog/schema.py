"""What the files of ``arch/`` must hold: accelerators, systems, memory technologies, measurements.

Fields of `Accelerator` and `System` together are those of `codesign.machine.Machine`, one to one, with the unit that
each value must have in its type.  Files of ``workloads/`` are in `codesign.catalog.workloads`; this module also names
the schema of every kind of file (`schema_of`).
"""

from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from codesign.catalog.quantity import (
    Anything,
    Bytes,
    BytesPerArea,
    BytesPerSecond,
    BytesPerSecondPerArea,
    Chips,
    DollarsPerByte,
    DollarsPerHour,
    FlopPerSecond,
    JoulesPerByte,
    JoulesPerFlop,
    JoulesPerOp,
    Layers,
    Metres,
    Ops,
    OpsPerSecond,
    Seconds,
    Share,
    SquareMetres,
    Table,
    Text,
    Watts,
    WattsPerArea,
    refuse,
)
from codesign.catalog.workspace import Origin
from codesign.errors import CodesignError


class CatalogFile(Table):
    """What every catalog file has: names, and where it was found.

    Attributes:
        name: as the file is called, without ``.toml``.
        title: one line for people.
        aliases: other names by which it is found.
        source, note: of the file as a whole.
    """

    kind_name: ClassVar[str] = ""

    name: Text
    title: Text
    aliases: list[Text] = Field(default_factory=list)
    source: Text | None = None
    note: Text | None = None
    _origin: Origin | None = PrivateAttr(default=None)

    @property
    def origin(self) -> Origin:
        """Where the file lies; raises `RuntimeError` on an object that was not loaded from one."""
        if self._origin is None:
            raise RuntimeError("not loaded from a file")
        return self._origin


class Accelerator(CatalogFile):
    """A chip: its memory, arithmetic, on-chip storage, latencies, powers and energies per chip.

    Rates are peaks.  Where ``tensor_fp8`` or ``tensor_fp4`` is absent the format runs at the next wider rate.
    Energies are at board level.

    Attributes:
        vendor, process: names.
        memory: name of the memory technology, a file of ``arch/memories``.
        memory_bandwidth, memory_capacity: fast memory [B/s, B].
        tensor_bf16, tensor_fp8, tensor_fp4: dense matrix arithmetic [FLOP/s].
        vector_rate: elementwise operations [op/s].
        exponential_ops: vector operations that one exponential is worth [op].
        sram: on-chip memory that can hold resident tiles [B].
        launch: one dependent kernel or grid barrier [s].
        static_power: drawn idle [W], below ``power_limit``: above that the chip slows down [W].
        chip_power: the published rating [W].
        die_area: of all compute dies [m^2].
        memory_energy [J/B], tensor_bf16_energy, tensor_fp8_energy, tensor_fp4_energy [J/FLOP], vector_energy [J/op].
    """

    kind_name: ClassVar[str] = "accelerator"

    vendor: Text
    memory: Text
    process: Text | None = None
    memory_bandwidth: BytesPerSecond
    memory_capacity: Bytes
    tensor_bf16: FlopPerSecond
    tensor_fp8: FlopPerSecond | None = None
    tensor_fp4: FlopPerSecond | None = None
    vector_rate: OpsPerSecond
    exponential_ops: Ops
    sram: Bytes
    launch: Seconds
    static_power: Watts
    power_limit: Watts
    chip_power: Watts
    die_area: SquareMetres
    memory_energy: JoulesPerByte
    tensor_bf16_energy: JoulesPerFlop
    tensor_fp8_energy: JoulesPerFlop | None = None
    tensor_fp4_energy: JoulesPerFlop | None = None
    vector_energy: JoulesPerOp

    @model_validator(mode="after")
    def _consistent(self) -> "Accelerator":
        if self.static_power.si >= self.power_limit.si:
            told = f"{self.static_power.text} is not below power_limit {self.power_limit.text}"
            raise refuse(told, "static_power < power_limit", "static_power")
        for narrow in ("fp8", "fp4"):
            if getattr(self, f"tensor_{narrow}_energy") and not getattr(self, f"tensor_{narrow}"):
                raise refuse(f"there is no tensor_{narrow}", "both or neither", f"tensor_{narrow}_energy")
        return self


class System(CatalogFile):
    """An accelerator in its server or rack: the fabric between chips, what a chip's place costs.

    Attributes:
        accelerator: name of the chip, a file of ``arch/accelerators``.
        status: how real it is.
        topology: of the scale-up fabric, as `codesign.fabric` knows them.
        max_chips: chips that one deployment may use [chip].
        scale_up_bandwidth, scale_out_bandwidth: per chip and direction [B/s].
        scale_up_domain, scale_out_domain: chips joined [chip]; the latter not fewer.
        scale_up_hop, scale_out_hop: one-way latency between two chips [s].
        in_switch_reduction: 1 where the fabric reduces in the switch, 0 where rings do it.
        all_reduce_setup, all_to_all_setup: what a shipping kernel adds to the hops [s].
        scale_up_energy, scale_out_energy: at board level [J/B].
        provisioned_power: all-in per chip: host, NIC, switch and cooling shares included [W].
        dollars_per_hour: cost of owning one chip [dollar/h].
    """

    kind_name: ClassVar[str] = "system"

    accelerator: Text
    status: Literal["shipping", "announced", "hypothetical"]
    topology: Literal["switched", "two-level", "full-mesh", "mesh", "torus-2d", "torus"]
    max_chips: Chips
    scale_up_bandwidth: BytesPerSecond
    scale_up_domain: Chips
    scale_up_hop: Seconds
    scale_out_bandwidth: BytesPerSecond
    scale_out_domain: Chips
    scale_out_hop: Seconds
    in_switch_reduction: Share
    all_reduce_setup: Seconds
    all_to_all_setup: Seconds
    scale_up_energy: JoulesPerByte
    scale_out_energy: JoulesPerByte
    provisioned_power: Watts
    dollars_per_hour: DollarsPerHour

    @model_validator(mode="after")
    def _consistent(self) -> "System":
        if self.scale_out_domain.si < self.scale_up_domain.si:
            told = f"{self.scale_out_domain.text} is below scale_up_domain {self.scale_up_domain.text}"
            raise refuse(told, "scale_out_domain >= scale_up_domain", "scale_out_domain")
        return self


class Memory(CatalogFile):
    """A memory technology: what a stack, a millimetre of edge or a square millimetre of die buys.

    Attributes:
        attachment: ``edge`` (stacks beside the die) | ``stacked`` (layers on the die) | ``on-die``.
        bandwidth_per_stack [B/s], capacity_per_stack [B], shoreline_per_stack [m]: edge only.
        bandwidth_per_area [B/s/m^2], capacity_per_area [B/m^2, per layer], layers: stacked and on-die only.
        device_energy: of the memory device alone [J/B].
        board_energy: all told, at board level [J/B].
        heat_limit: of a die with this memory [W/m^2].
        price [dollar/B].
    """

    kind_name: ClassVar[str] = "memory"

    attachment: Literal["edge", "stacked", "on-die"]
    bandwidth_per_stack: BytesPerSecond | None = None
    capacity_per_stack: Bytes | None = None
    shoreline_per_stack: Metres | None = None
    bandwidth_per_area: BytesPerSecondPerArea | None = None
    capacity_per_area: BytesPerArea | None = None
    layers: Layers | None = None
    device_energy: JoulesPerByte
    board_energy: JoulesPerByte
    heat_limit: WattsPerArea
    price: DollarsPerByte

    @model_validator(mode="after")
    def _complete(self) -> "Memory":
        by_edge = ("bandwidth_per_stack", "capacity_per_stack", "shoreline_per_stack")
        by_area = ("bandwidth_per_area", "capacity_per_area", "layers")
        needed, foreign = (by_edge, by_area) if self.attachment == "edge" else (by_area, by_edge)
        for field in needed:
            if getattr(self, field) is None:
                raise refuse(f"is missing, which attachment {self.attachment!r} needs", ", ".join(needed), field)
        for field in foreign:
            if getattr(self, field) is not None:
                raise refuse(f"has no meaning for attachment {self.attachment!r}", ", ".join(needed), field)
        return self


class Measurement(CatalogFile):
    """A table of measured, fitted or assumed constants, such as kernel efficiencies.

    Attributes:
        numbers: by name; each is converted to the base units of whatever dimension its value has (``Number.unit``).
    """

    kind_name: ClassVar[str] = "measurement"

    numbers: dict[str, Anything]

    def si(self, key: str, unit: str = "1") -> float:
        """One constant as a float, with its dimension checked.

        Args:
            key: name inside ``numbers``.
            unit: base unit that the caller expects, e.g. ``s``, ``J/B``; ``1`` for shares and counts.

        Raises:
            CodesignError: no such constant, or it has another unit.
        """
        from codesign.catalog.names import allowed_names

        file = self._origin.label if self._origin else None
        number = self.numbers.get(key)
        if number is None:
            raise CodesignError("is missing", file=file, key=f"numbers.{key}", allowed=allowed_names(key, self.numbers))
        if number.unit != unit:
            raise CodesignError(f"{number.text!r} is in {number.unit}", file=file, key=f"numbers.{key}", allowed=unit)
        return number.si


def schema_of(kind: str) -> type[CatalogFile]:
    """The schema of a kind of file; raises `KeyError` for kinds without one.

    Studies have a schema of their own in `codesign.study`, further down the stream: they are read with
    `codesign.catalog.loader.load_path`.
    """
    from codesign.catalog.workloads import ModelFile, Request

    schemas: tuple[type[CatalogFile], ...] = (Accelerator, System, Memory, Measurement, ModelFile, Request)
    return {schema.kind_name: schema for schema in schemas}[kind]
