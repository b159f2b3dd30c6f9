"""The catalog: what loads and as what, workspaces, agreement with the code, the bundled files."""

import dataclasses
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from catalogs import CHIP, FILES, edit, line_of, write_catalog

from codesign.catalog import (
    Workspace,
    find_entry,
    init_workspace,
    kinds_used,
    list_catalog,
    load_accelerator,
    load_file,
    load_machine,
    load_measurement,
    load_memory,
    load_model_file,
    load_path,
    load_request,
    load_system,
    machine_of,
    machine_values,
    provenance,
)
from codesign.catalog.names import KINDS
from codesign.catalog.quantity import KIND_ORDER
from codesign.catalog.schema import Accelerator
from codesign.catalog.workspace import bundled_root


@pytest.fixture
def catalog(tmp_path: Path) -> Workspace:
    """The small catalog alone, without the bundled one behind it."""
    return Workspace((("workspace", write_catalog(tmp_path)),))


def test_a_system_comes_with_its_accelerator_and_memory(catalog: Workspace) -> None:
    loaded = load_system("rack", catalog)
    assert (loaded.system.name, loaded.accelerator.name, loaded.memory.name) == ("rack", "chip", "stacks")
    assert [f.origin.label for f in loaded.files] == [
        "arch/systems/rack.toml", "arch/accelerators/chip.toml", "arch/memories/stacks.toml",
    ]  # fmt: skip
    assert loaded.accelerator.memory_bandwidth.si == 8e12
    assert loaded.accelerator.memory_bandwidth.si_range == (7.7e12, 8e12)
    assert loaded.accelerator.sram.si == 126 * 1024**2
    assert loaded.system.scale_out_bandwidth.si == 100e9
    assert loaded.memory.shoreline_per_stack is not None
    assert loaded.memory.shoreline_per_stack.si == 0.011
    assert loaded.memory.heat_limit.si == 1e6


@pytest.mark.parametrize("name", ["chip", "CHIP", "little chip", "Little_Chip", "chip-1", " chip "])
def test_names_and_aliases(catalog: Workspace, name: str) -> None:
    assert load_accelerator(name, catalog).name == "chip"


def test_other_kinds(catalog: Workspace) -> None:
    model = load_model_file("org/tiny-moe", catalog)
    assert model.layer_count == 1 + 3 * 2
    assert model.dtypes.names["routed"] == "mxfp4"
    assert model.dtypes.names["latent"] == "bf16"  # a class that this model lacks
    assert model.blocks["linear"].structure["conv_kernel"] == 4
    assert model.drafts is not None
    assert model.drafts.accepted_length.si_list == (1.8, 2.4)
    with pytest.raises(TypeError, match="si_list"):
        _ = model.drafts.accepted_length.si
    request = load_request("chat", catalog)
    assert request.context is not None
    assert request.context.si == 131_072
    constants = load_measurement("constants", catalog)
    assert constants.si("share") == 0.9
    assert constants.si("floor", "s") == 2.5e-6
    assert constants.si("density", "W/m^2") == 90_000
    assert "nearest: floor" in line_of(lambda: constants.si("flor", "s"))
    assert "allowed: J/B" in line_of(lambda: constants.si("floor", "J/B"))
    assert load_memory("stacks", catalog).attachment == "edge"


def test_machine_in_si_with_missing_formats_at_the_next_wider(catalog: Workspace) -> None:
    values = machine_values(load_system("rack", catalog))
    assert values["tensor_fp4"] == values["tensor_fp8"] == 5e15
    assert values["tensor_fp4_energy"] == values["tensor_fp8_energy"] == 0.2e-12
    assert values["memory_energy"] == 80e-12
    assert values["dollars_per_hour"] == 1.95
    edit(catalog, "accelerator", "tensor_fp8 =", "tensor_fp4 =")
    edit(catalog, "accelerator", "tensor_fp8_energy =", "tensor_fp4_energy =")
    values = machine_values(load_system("rack", catalog))
    assert (values["tensor_bf16"], values["tensor_fp8"], values["tensor_fp4"]) == (2.5e15, 2.5e15, 5e15)
    assert (values["tensor_fp8_energy"], values["tensor_fp4_energy"]) == (0.4e-12, 0.2e-12)
    edit(catalog, "accelerator", "tensor_fp4 =", "tensor_fp8 =")
    assert "there is no tensor_fp4" in line_of(lambda: load_system("rack", catalog))


def test_machine_has_every_field_in_float64(catalog: Workspace) -> None:
    import jax
    import jax.numpy as jnp

    from codesign.machine import Machine

    loaded = load_system("rack", catalog)
    assert set(machine_values(loaded)) == {f.name for f in dataclasses.fields(Machine)}
    machine = machine_of(loaded)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(machine))
    assert float(machine.scale_up_hop) == 0.8e-6
    assert float(load_machine("nvl", catalog, ["system.scale_up_hop=100 ns"]).scale_up_hop) == 1e-7


def test_provenance_and_kinds(catalog: Workspace) -> None:
    loaded = load_system("rack", catalog)
    rows = {row.field: row for row in provenance(loaded)}
    assert len(rows) == sum(FILES[kind][1].count("source =") for kind in ("system", "accelerator", "memory"))
    row = rows["accelerator.memory_bandwidth"]
    assert row == (
        "accelerator.memory_bandwidth", "8 TB/s", "B/s", "datasheet", "sheet", ("7.7 TB/s", "8 TB/s"), "x",
    )  # fmt: skip
    used = kinds_used(loaded, load_request("chat", catalog))
    assert list(used) == ["rumour", "assumption", "estimate", "fitted", "measured", "datasheet"]
    assert list(used) == list(reversed(KIND_ORDER))
    assert used["rumour"] == ["accelerator.tensor_fp8"]
    assert "request.context" in used["assumption"]
    assert kinds_used(loaded, fields=["accelerator.tensor_fp8", "system.max_chips"]) == {
        "rumour": ["accelerator.tensor_fp8"], "datasheet": ["system.max_chips"],
    }  # fmt: skip
    assert [r.field for r in provenance(load_model_file("tiny", catalog))] == [
        "model.published.total_parameters", "model.drafts.accepted_length", "model.drafts.parameters",
    ]  # fmt: skip


def test_own_files_come_before_bundled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write_catalog(tmp_path / "own")
    bundled = write_catalog(tmp_path / "bundled")
    path = own / CHIP
    path.write_text(path.read_text(encoding="utf-8").replace("A chip", "My chip"), encoding="utf-8")
    (own / FILES["system"][0]).unlink()
    both = Workspace((("workspace", own), ("bundled", bundled)))
    loaded = load_system("rack", both)
    assert loaded.accelerator.title == "My chip"
    assert loaded.accelerator.origin.source == "workspace"
    assert loaded.system.origin.label == "bundled:arch/systems/rack.toml"
    assert [e.origin.source for e in list_catalog("accelerators", both)] == ["workspace"]
    monkeypatch.chdir(own)
    assert Workspace.open().roots[0] == ("workspace", own.resolve())
    (own / "optimize").rmdir()
    assert [source for source, _ in Workspace.open().roots] == ["bundled"]
    assert Workspace.open(own).roots[0][0] == "workspace"


def test_an_edited_file_is_read_again(catalog: Workspace) -> None:
    assert load_accelerator("chip", catalog).memory_capacity.si == 192e9
    edit(catalog, "accelerator", "192 GB", "1.5 TB")
    assert load_accelerator("chip", catalog).memory_capacity.si == 1.5e12


def test_workspaces_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "does not exist" in line_of(lambda: Workspace.open(tmp_path / "missing"))
    assert "is not a folder" in line_of(lambda: Workspace.open(tmp_path / "file"))
    assert "is not a workspace" in line_of(lambda: Workspace.open(tmp_path))
    assert "codesign init" in line_of(lambda: Workspace.open("\0"))


def test_init_copies_the_bundled_catalog_and_overwrites_nothing(tmp_path: Path) -> None:
    target = tmp_path / "new" / "mine"
    written = init_workspace(target)
    source = bundled_root()
    assert written == sorted(written)
    for path in written:
        assert path.read_bytes() == (source / path.relative_to(target)).read_bytes()
    listed = list_catalog(None, Workspace((("bundled", source),)))
    copied = list_catalog(None, Workspace((("workspace", target),)))
    assert [(e.kind, e.name) for e in copied] == [(e.kind, e.name) for e in listed]
    assert sorted(p.name for p in target.iterdir()) == ["arch", "optimize", "workloads"]
    before = {p: p.stat().st_mtime_ns for p in written}
    assert "already has arch/, which is kept" in line_of(lambda: init_workspace(target))
    assert {p: p.stat().st_mtime_ns for p in written} == before
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "is a file" in line_of(lambda: init_workspace(tmp_path / "file"))
    assert "cannot be written" in line_of(lambda: init_workspace(tmp_path / "file" / "below"))


def test_the_bundled_catalog_lies_in_the_package_or_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "site" / "codesign" / "catalog" / "workspace.py"
    monkeypatch.setattr("codesign.catalog.workspace.__file__", str(module))
    assert "the bundled catalog is missing" in line_of(bundled_root)
    write_catalog(tmp_path / "site")
    assert bundled_root() == tmp_path / "site"  # a checkout
    write_catalog(tmp_path / "site" / "codesign" / "_bundled")
    assert bundled_root() == tmp_path / "site" / "codesign" / "_bundled"  # an installed package
    assert load_system("rack", Workspace.open()).system.origin.label.startswith("bundled:")


def test_listing_and_finding(catalog: Workspace) -> None:
    assert [(e.kind, e.name) for e in list_catalog("arch", catalog)] == [
        ("system", "rack"), ("accelerator", "chip"), ("memory", "stacks"), ("measurement", "constants"),
    ]  # fmt: skip
    assert list_catalog("optimize", catalog) == []
    assert "unknown section 'archs'" in line_of(lambda: list_catalog("archs", catalog))
    assert find_entry("nvl", catalog).name == "rack"
    assert find_entry("org/Tiny-MoE", catalog).kind == "model"
    assert find_entry("accelerators/chip", catalog).kind == "accelerator"
    assert "nearest: stacks" in line_of(lambda: find_entry("stack", catalog))


def test_a_file_by_its_path(catalog: Workspace) -> None:
    path = catalog.roots[0][1] / CHIP
    loaded = load_path(path, Accelerator, "accelerator", ["accelerator.launch=1 us"])
    assert loaded.launch.si == 1e-6
    assert loaded.origin.path == path
    assert "cannot be read: No such file" in line_of(lambda: load_path(path.with_name("no.toml"), Accelerator))


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from codesign.catalog import list_catalog; list_catalog()", ["jax", "pydantic", "pint", "numpy"]),
        ("from codesign.catalog import load_system, provenance; "
         "provenance(load_system('rack'))", ["jax", "pint", "equinox"]),
    ],
)  # fmt: skip
def test_listing_and_showing_stay_light(catalog: Workspace, code: str, absent: list[str]) -> None:
    ending = f"; import sys; print([m for m in {absent!r} if m in sys.modules])"
    repository = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code + ending], cwd=catalog.roots[0][1], env={**os.environ, "PYTHONPATH": repository},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_loading_is_fast_once_read(catalog: Workspace) -> None:
    load_system("rack", catalog)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        load_system("rack", catalog)
        best = min(best, time.perf_counter() - start)
    assert best < 0.05


def test_blocks_are_the_layers_of_the_code() -> None:
    from codesign.catalog.workloads import block_kinds
    from codesign.model import LAYER_KINDS

    kinds = block_kinds()
    assert set(kinds) == set(LAYER_KINDS)
    for name, block in kinds.items():
        layer = LAYER_KINDS[name]
        fields = {f.name: f for f in dataclasses.fields(layer)}
        assert set(block.model_fields) - {"kind"} == set(fields)
        for name, field in fields.items():
            default = block.model_fields[name].default
            if field.default is not dataclasses.MISSING:
                assert default == field.default, (layer, name)


def test_dtypes_are_those_of_the_code() -> None:
    from typing import get_args

    from codesign import precision
    from codesign.catalog.workloads import Dtype, Dtypes

    assert set(get_args(Dtype)) == set(precision.BYTES)
    assert set(Dtypes.model_fields) - {"published_kv"} == {*precision.WEIGHT_CLASSES, *precision.MOVING_CLASSES}


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "study"])
def test_every_bundled_file_loads(kind: str) -> None:
    bundled = Workspace((("bundled", bundled_root()),))
    entries = bundled.entries(KINDS[kind])
    if not entries:
        pytest.skip(f"{KINDS[kind].folder} holds no file yet")
    for entry in entries:
        if kind == "system":
            values = machine_values(load_system(entry.name, bundled))
            assert all(math.isfinite(v) and v >= 0 for v in values.values())
        else:
            load_file(kind, entry.name, bundled)
