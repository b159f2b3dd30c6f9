"""``--set``: what it changes, what it refuses."""

from pathlib import Path

import pytest
from catalogs import FILES, line_of, one_line, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from codesign.catalog import (
    Workspace,
    load_measurement,
    load_model_file,
    load_request,
    load_system,
    machine_values,
    parse_overrides,
    validate,
)
from codesign.catalog.schema import schema_of
from codesign.catalog.workspace import parse_toml
from codesign.errors import CodesignError


@pytest.fixture
def catalog(tmp_path: Path) -> Workspace:
    """The small catalog alone, without the bundled one behind it."""
    return Workspace((("workspace", write_catalog(tmp_path)),))


def test_overrides_change_numbers_and_their_kind(catalog: Workspace) -> None:
    changes = [
        'accelerator.memory_bandwidth="30 TB/s"', "accelerator.tensor_fp4=9 PFLOP/s", "system.scale_up_hop=0.5 us",
        "system.scale_up_domain = 144", "model.dtypes.kv=bf16",
    ]  # fmt: skip
    loaded = load_system("rack", catalog, changes)
    number = loaded.accelerator.memory_bandwidth
    assert (number.si, number.kind, number.source) == (30e12, "assumption", "--set on the command line")
    assert number.si_range is None
    assert number.note == "instead of 8 TB/s (datasheet)"
    assert machine_values(loaded)["tensor_fp4"] == 9e15
    assert loaded.system.scale_up_domain.si == 144
    assert [o.key for o in loaded.overrides] == [
        "accelerator.memory_bandwidth", "accelerator.tensor_fp4", "system.scale_up_hop", "system.scale_up_domain",
    ]  # fmt: skip
    assert load_system("rack", catalog).accelerator.memory_bandwidth.si == 8e12  # the file itself is as it was


def test_overrides_of_plain_values(catalog: Workspace) -> None:
    model = load_model_file("tiny", catalog, [
        "model.dtypes.kv=bf16", "model.layers[1].repeat=2", "model.blocks.experts.top_k=8", "model.hidden=1Ki",
        "model.blocks.full.bias=true", "model.blocks.full.window=128", "model.drafts.accepted_length=[1.5]",
        "model.published.total_parameters.value=2e6", "model.title=12",
    ])  # fmt: skip
    assert model.dtypes.kv == "bf16"
    assert model.layer_count == 1 + 2 * 2
    assert model.blocks["experts"].structure["top_k"] == 8
    assert model.hidden == 1024
    assert model.blocks["full"].structure["bias"] is True
    assert model.blocks["full"].structure["window"] == 128
    assert model.drafts is not None
    assert model.drafts.accepted_length.si_list == (1.5,)
    assert model.published is not None
    assert model.published.total_parameters.si == 2e6
    assert model.title == "12"
    later = ["request.context=1", "request.context=8Ki"]
    request = load_request("chat", catalog, later)
    assert request.context is not None
    assert request.context.si == 8192
    assert load_measurement("constants", catalog, ["measurement.numbers.share=0.7"]).si("share") == 0.7


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "accelerator.memory_bandwith=1 TB/s",
            "--set accelerator.memory_bandwith: unknown key 'memory_bandwith' in accelerator "
            "(allowed: nearest: memory_bandwidth",
        ),
        ("accelerator.memory_bandwidth=1 TB", "--set accelerator.memory_bandwidth: '1 TB' has the wrong dimension"),
        ("accelerator.memory_bandwidth=nan", "--set accelerator.memory_bandwidth: 'nan' is not a number"),
        ("accelerator.memory_bandwidth=", "--set accelerator.memory_bandwidth: '' is not a number"),
        ("accelerator.memory_bandwidth.source=me", "only the value of a number can be set"),
        ("accelerator.memory_bandwidth.value.x=1", "only the value of a number can be set"),
        ("accelerator.power_limit=3 W", "140 W is not below power_limit 3 W (with --set accelerator.power_limit)"),
        ("acelerator.power_limit=3 W", "power_limit: unknown file 'acelerator' (allowed: accelerator, system"),
        ("system.accelerator=chop", "rack.toml: accelerator: unknown accelerator 'chop' (allowed: nearest: chip"),
        ("system.topology=star", "--set system.topology: 'star' is not allowed"),
        ("system.aliases.0=x", "unknown key '0' in system.aliases"),
        ("accelerator", "--set: 'accelerator' is not section.key=value"),
        ("=3", "is not section.key=value"),
        ("accelerator.=3", "is not section.key=value"),
        ("", "is not section.key=value"),
    ],
)  # fmt: skip
def test_refused_overrides(catalog: Workspace, override: str, expected: str) -> None:
    assert expected in line_of(lambda: load_system("rack", catalog, [override]))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.blocks.expert.top_k=2", "unknown key 'expert' in model.blocks (allowed: nearest: experts)"),
        ("model.blocks.experts=2", "is a table (allowed: one of its keys:"),
        ("model.blocks.experts.top_k=2000", "--set model.blocks.experts.top_k: 2000 is more than the 16"),
        ("model.blocks.experts.window=2", "unknown key 'window' in model.blocks.experts"),
        ("model.layers.7.repeat=2", "unknown key '7' in model.layers (allowed: 0, 1)"),
        ("model.hidden=8.5", "--set model.hidden: 8.5 is of the wrong type (allowed: a whole number)"),
        ("model.hidden=wide", "--set model.hidden: 'wide' is of the wrong type"),
        ("model.blocks.experts.gated=maybe", "--set model.blocks.experts.gated: 'maybe' is of the wrong type"),
        ("model.dtypes.kv.x=1", "unknown key 'x' in model.dtypes.kv"),
    ],
)
def test_refused_overrides_of_models(catalog: Workspace, override: str, expected: str) -> None:
    assert expected in line_of(lambda: load_model_file("tiny", catalog, [override]))


def test_overrides_name_only_what_the_command_reads() -> None:
    read = parse_overrides(["model.hidden=1", "model.hidden=2"], ("model",))
    assert [o.text for o in read] == ["1", "2"]
    assert parse_overrides(read) == read
    assert "unknown file 'system' (allowed: model)" in line_of(lambda: parse_overrides("system.a=1", ("model",)))


@settings(max_examples=100)
@given(st.sampled_from(["accelerator", "system", "model", "x"]), st.text(max_size=30), st.text(max_size=20))
def test_any_override_is_applied_or_refused_in_one_line(target: str, key: str, value: str) -> None:
    kind = target if target in FILES else "model"
    raw = parse_toml(FILES[kind][1].encode(), "x.toml")
    try:
        validate(raw, schema_of(kind), "x.toml", kind, parse_overrides([f"{target}.{key}={value}"]))
    except CodesignError as error:
        one_line(error)
