"""What each mistake in a catalog file is answered with, and that mutated files load or say why in one line."""

import math
from pathlib import Path

import pytest
from catalogs import CHIP, FILES, edit, line_of, one_line, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codesign.catalog import (
    Workspace,
    list_catalog,
    load_accelerator,
    load_file,
    load_memory,
    load_system,
    provenance,
    validate,
)
from codesign.catalog.quantity import KIND_ORDER
from codesign.catalog.schema import schema_of
from codesign.catalog.workspace import MAX_BYTES, parse_toml
from codesign.errors import CodesignError


@pytest.fixture
def catalog(tmp_path: Path) -> Workspace:
    """The small catalog alone, without the bundled one behind it."""
    return Workspace((("workspace", write_catalog(tmp_path)),))


MISTAKES = [
    ("accelerator", '8 TB/s", kind', '8 TB", kind', f"{CHIP}: memory_bandwidth: '8 TB' has the wrong dimension"),
    ("accelerator", '"192 GB"', '"192"', f"{CHIP}: memory_capacity: '192' has no unit (allowed: B, e.g. 192 GB)"),
    ("accelerator", '"192 GB"', "nan", f"{CHIP}: memory_capacity: nan is not finite"),
    ("accelerator", '"192 GB"', "inf", f"{CHIP}: memory_capacity: inf is not finite"),
    ("accelerator", '"192 GB"', '"-192 GB"', f"{CHIP}: memory_capacity: '-192 GB' is negative"),
    ("accelerator", '"192 GB"', '"0 GB"', f"{CHIP}: memory_capacity: '0 GB' is zero (allowed: more than zero)"),
    ("accelerator", '"192 GB"', "true", f"{CHIP}: memory_capacity.value: is not a quantity"),
    ("accelerator", '"192 GB"', '["192 GB"]', f"{CHIP}: memory_capacity: is a list (allowed: one value)"),
    ("accelerator", '"192 GB"', "[[1]]", f"{CHIP}: memory_capacity.value: is a list"),
    ("accelerator", '"192 GB"', "{ a = 1 }", f"{CHIP}: memory_capacity.value: is a table"),
    ("accelerator", '"192 GB"', "1" + "0" * 400, f"{CHIP}: memory_capacity: 1000"),
    ("accelerator", '"192 GB"', "1" + "0" * 5000, f"{CHIP}: is not valid TOML"),
    ("accelerator", '"192 GB"', "2020-01-01", f"{CHIP}: memory_capacity.value: is not a quantity"),
    (
        "accelerator",
        '"192 GB", kind = "datasheet"',
        '"192 GB", kind = "fact"',
        f"{CHIP}: memory_capacity.kind: 'fact' is not allowed (allowed: datasheet, measured, fitted, estimate",
    ),
    (
        "accelerator",
        '{ value = "192 GB", kind = "datasheet", source = "sheet" }',
        '"192 GB"',
        f"{CHIP}: memory_capacity: '192 GB' has no kind and source (allowed: {{ value",
    ),
    ("accelerator", '"192 GB", kind = "datasheet",', '"192 GB",', f"{CHIP}: memory_capacity.kind: is missing"),
    ("accelerator", '"forum"', '" "', f"{CHIP}: tensor_fp8.source: is empty"),
    (
        "accelerator",
        "memory_capacity",
        "memory_capacty",
        f"{CHIP}: memory_capacty: unknown key, and 1 more (allowed: nearest: memory_capacity",
    ),
    (
        "accelerator",
        'memory = "stacks"',
        'memory = "staks"',
        f"{CHIP}: memory: unknown memory 'staks' (allowed: nearest: stacks)",
    ),
    (
        "accelerator",
        'memory = "stacks"',
        "memory = 3",
        f"{CHIP}: memory: 3 is of the wrong type (allowed: text in quotes)",
    ),
    ("accelerator", '["7.7 TB/s", "8 TB/s"]', '["7.7 TB/s"]', f"{CHIP}: memory_bandwidth.range: is not a pair"),
    (
        "accelerator",
        '["7.7 TB/s", "8 TB/s"]',
        '["8.1 TB/s", "9 TB/s"]',
        f"{CHIP}: memory_bandwidth: range 8.1 TB/s to 9 TB/s does not enclose 8 TB/s",
    ),
    (
        "accelerator",
        '["7.7 TB/s", "8 TB/s"]',
        '["7.7 s", "8 TB/s"]',
        f"{CHIP}: memory_bandwidth: '7.7 s' has the wrong dimension",
    ),
    ("accelerator", "140 W", "1.3 kW", f"{CHIP}: static_power: 1.3 kW is not below power_limit 1.2 kW"),
    ("accelerator", 'name = "chip"', 'name = "chop"', f"{CHIP}: name: 'chop' is not the file's name (allowed: chip)"),
    ("accelerator", 'title = "A chip"\n', "", f"{CHIP}: title: is missing"),
    (
        "accelerator",
        'title = "A chip"',
        'title = "A chip',
        f"{CHIP}: is not valid TOML: Illegal character '\\n' (at line 3",
    ),
    ("accelerator", 'title = "A chip"', "x = " + "[" * 5000, f"{CHIP}: is "),
    (
        "system",
        '"switched"',
        '"star"',
        "arch/systems/rack.toml: topology: 'star' is not allowed "
        "(allowed: switched, two-level, full-mesh, mesh, torus-2d, torus)",
    ),
    ("system", '"72 chips"', '"72.5"', "scale_up_domain: '72.5' is not whole"),
    (
        "system",
        'setup = { value = "3 us"',
        'setup = { value = "3 TB/s"',
        "all_reduce_setup: '3 TB/s' has the wrong dimension (allowed: s, e.g. 20 ms)",
    ),
    (
        "system",
        'reduction = { value = "1"',
        'reduction = { value = "2"',
        "in_switch_reduction: '2' is out of bounds (allowed: at least 0, at most 1)",
    ),
    ("system", '"1024"', '"64"', "scale_out_domain: 64 is below scale_up_domain 72 chips"),
    ("memory", '"edge"', '"stacked"', "bandwidth_per_area: is missing, which attachment 'stacked' needs"),
    (
        "model",
        "top_k = 4",
        "top_k = 17",
        "workloads/models/tiny.toml: blocks.experts.top_k: 17 is more than the 16 experts in reach",
    ),
    ("model", "top_k = 4", "topk = 4", "blocks.experts.topk: unknown key, and 1 more (allowed: nearest: top_k)"),
    ("model", "top_k = 4", "top_k = 4.0", "blocks.experts.top_k: 4.0 is of the wrong type (allowed: a whole number)"),
    ("model", "kv_heads = 2", "kv_heads = 3", "blocks.full.kv_heads: 3 does not divide 8 heads"),
    (
        "model",
        'kind = "kda"',
        'kind = "rnn"',
        "blocks.linear: 'rnn' is not allowed (allowed: gqa, mla, kda, mlp, moe, gdn,",
    ),
    ("model", 'kind = "kda"\n', "", "blocks.linear: kind is missing (allowed: gqa, mla, kda, mlp, moe, gdn,"),
    (
        "model",
        '["full", "dense"]',
        '["ful", "dense"]',
        "layers.0.group.0: unknown block 'ful' (allowed: nearest: full)",
    ),
    ("model", 'group = [["full", "dense"]]', "group = []", "layers.0.group: is empty"),
    ("model", '[["full", "dense"]]', '[["full"]]', "blocks.dense: is in no layer"),
    ("model", 'routed = "mxfp4"\n', "", "dtypes.routed: is missing, which a block of kind 'moe' needs"),
    ("model", '"mxfp4"', '"mxfp5"', "dtypes.routed: 'mxfp5' is not allowed (allowed: fp32, bf16"),
    (
        "model",
        "tied_embeddings = false",
        "tied_embeddings = 0",
        "tied_embeddings: 0 is of the wrong type (allowed: true or false)",
    ),
    ("model", "hidden = 64", "hidden = 0", "hidden: 0 is out of bounds (allowed: at least 1)"),
    ("model", "[1.8, 2.4]", "[1.8, 3.4]", "drafts.accepted_length.1: 3.4 tokens from 2 drafts (allowed: at most 3)"),
    ("model", "[1.8, 2.4]", "1.8", "drafts.accepted_length: is one value (allowed: a list of values)"),
    ("model", "repeat = 3", "repeat = 99999", "layers: make 199999 layers (allowed: at most 10,000)"),
    (
        "request",
        '"decode"',
        '"midfill"',
        "workloads/requests/chat.toml: cached: is missing, which phase 'midfill' needs",
    ),
    ("request", "output", "new", "new: has no meaning in phase 'decode'"),
    (
        "measurement",
        '"2.5 us"',
        '"2.5 floops"',
        "arch/measurements/constants.toml: numbers.floor: unknown unit 'floops'",
    ),
]


@pytest.mark.parametrize(("kind", "old", "new", "expected"), MISTAKES, ids=lambda x: str(x)[:40])
def test_mistakes(catalog: Workspace, kind: str, old: str, new: str, expected: str) -> None:
    edit(catalog, kind, old, new)
    name = Path(FILES[kind][0]).stem
    load = (lambda: load_system("rack", catalog)) if kind == "accelerator" else lambda: load_file(kind, name, catalog)
    assert expected in line_of(load)


def test_memory_fields_of_another_attachment(catalog: Workspace) -> None:
    edit(catalog, "memory", "device_energy", 'layers = { value = 4, kind = "rumour", source = "x" }\ndevice_energy')
    assert "layers: has no meaning for attachment 'edge'" in line_of(lambda: load_memory("stacks", catalog))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'name = "chip"\ntitle = "\xff"\n', "is not UTF-8 at line 2"),
        (b"", "is empty"),
        (b"# nothing\n\n", "is empty"),
        (b"\x00\x01", "is not valid TOML"),
        (b'name = "chip"\nname = "chip"\n', "is not valid TOML: Cannot overwrite a value"),
        (b"#" * (MAX_BYTES + 1), f"has {MAX_BYTES + 1} bytes"),
        (b'"\\u001b[31m" = 1\nname = "chip"\n', "?[31m: unknown key"),
    ],
)
def test_unreadable_files(catalog: Workspace, data: bytes, problem: str) -> None:
    (catalog.roots[0][1] / CHIP).write_bytes(data)
    text = line_of(lambda: load_accelerator("chip", catalog))
    assert text.startswith(CHIP)
    assert problem in text


def test_byte_order_marks_and_crlf_are_read(catalog: Workspace) -> None:
    path = catalog.roots[0][1] / CHIP
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_accelerator("chip", catalog).title == "A chip"


def test_a_folder_or_a_dangling_link_instead_of_a_file(catalog: Workspace) -> None:
    folder = catalog.roots[0][1] / "arch/accelerators"
    (folder / "tray.toml").mkdir()
    (folder / "gone.toml").symlink_to(folder / "nowhere")
    assert "arch/accelerators/tray.toml: is a folder" in line_of(lambda: load_accelerator("tray", catalog))
    assert "arch/accelerators/gone.toml: cannot be read" in line_of(lambda: load_accelerator("gone", catalog))
    assert load_accelerator("chip", catalog).name == "chip"  # broken neighbours do not matter
    problems = {e.name: e.problem for e in list_catalog("accelerator", catalog)}
    assert problems["chip"] is None
    assert "is a folder" in str(problems["tray"])


def test_unknown_names_get_the_nearest(catalog: Workspace) -> None:
    assert line_of(lambda: load_system("rak", catalog)) == "unknown system 'rak' (allowed: nearest: rack)"
    assert "nearest: little chip, chip" in line_of(lambda: load_accelerator("littel chip", catalog))
    assert "(allowed: rack)" in line_of(lambda: load_system("zzz", catalog))
    assert line_of(lambda: load_system("\0" * 500, catalog)).startswith("unknown system '\\x00")
    (catalog.roots[0][1] / FILES["system"][0]).unlink()
    assert "nothing is there yet" in line_of(lambda: load_system("rack", catalog))


def test_duplicate_names_and_aliases(catalog: Workspace) -> None:
    folder = catalog.roots[0][1] / "arch/accelerators"
    other = FILES["accelerator"][1].replace('name = "chip"', 'name = "second"').replace('"CHIP-1"', '"chip 2"')
    (folder / "second.toml").write_text(other, encoding="utf-8")
    expected = "arch/accelerators/second.toml: aliases: 'little-chip' already names arch/accelerators/chip.toml"
    assert expected in line_of(lambda: load_accelerator("chip", catalog))
    assert expected in line_of(lambda: list_catalog("arch", catalog))


def test_a_list_may_go_on_past_a_name_that_stands_twice(catalog: Workspace) -> None:
    """Every other file is still listed, and the second of the two says what is wrong with it."""
    folder = catalog.roots[0][1] / "arch/accelerators"
    other = FILES["accelerator"][1].replace('name = "chip"', 'name = "second"')
    (folder / "second.toml").write_text(other, encoding="utf-8")
    problems = {e.name: e.problem for e in list_catalog("arch", catalog, strict=False)}
    assert problems.keys() == {"chip", "second", "rack", "stacks", "constants"}
    assert "second.toml: aliases: 'little-chip' already names arch/accelerators/chip.toml" in str(problems["second"])
    assert [name for name, problem in problems.items() if problem] == ["second"]


def test_errors_name_the_workspace_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalog(tmp_path / "mine")
    (tmp_path / "mine" / CHIP).write_text("")
    monkeypatch.chdir(tmp_path)
    for named in ("mine", str(tmp_path / "mine")):
        assert line_of(lambda: load_accelerator("chip", named)).startswith(f"{named}/{CHIP}: is empty")  # noqa: B023
        assert load_file("system", "rack", named).origin.label == f"{named}/arch/systems/rack.toml"
    (tmp_path / "mine" / CHIP).unlink()
    told = line_of(lambda: load_system("rack", "mine"))
    assert told.startswith("mine/arch/systems/rack.toml: accelerator: unknown accelerator 'chip'")
    # Where nobody named a folder, it is the current one, and a path within it is enough.
    (tmp_path / "mine" / "optimize").mkdir(exist_ok=True)
    (tmp_path / "mine" / CHIP).write_text("")
    monkeypatch.chdir(tmp_path / "mine")
    assert line_of(lambda: load_accelerator("chip")).startswith(f"{CHIP}: is empty")


GARBAGE = [
    "nan", "inf", "-inf", "-1", "0", "true", "[]", "{}", '""', '"nan"', "1e400", "9" * 30, "[1, 2]", '["a"]',
    "1979-05-27",     '"8 TB/s"', '"3 furlongs"', '"-2 s"', "'''x'''", "{ value = 1 }", '"\\u0000"',
]  # fmt: skip
UNITS = [
    "TB/s",
    "GB",
    "ms",
    "us",
    "W",
    "kW",
    "mm^2",
    "pJ/bit",
    "pJ/B",
    "PFLOP/s",
    "dollar/h",
    "KB",
    "",
    "%",
    "GB/s/(mm*mm)",
]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A kind of file and its text after one to four mutations of lines, units, types and bytes."""
    kind = draw(st.sampled_from(sorted(FILES)))
    lines = FILES[kind][1].strip().split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        how = draw(st.sampled_from(["delete", "double", "swap", "unit", "value", "key", "cut", "kind"]))
        line = lines[at] if lines else ""
        if how == "delete":
            del lines[at : at + 1]
        elif how == "double":
            lines.insert(at, line)
        elif how == "swap" and lines:
            other = draw(st.integers(0, len(lines) - 1))
            left, right = line.partition("="), lines[other].partition("=")
            lines[at], lines[other] = left[0] + "=" + right[2], right[0] + "=" + left[2]
        elif how == "unit" and lines:
            head, _, tail = line.partition(" ")
            for unit in ("TB/s", "GB", "us", "W", "pJ/bit", "PFLOP/s", "dollar/h"):
                tail = tail.replace(unit, draw(st.sampled_from(UNITS)), 1)
            lines[at] = f"{head} {tail}"
        elif how == "value" and lines:
            lines[at] = line.partition("=")[0] + "= " + draw(st.sampled_from(GARBAGE))
        elif how == "key" and lines:
            lines[at] = (
                draw(st.sampled_from(["x", "value", "title", "numbers", "a.b", "blocks.full", '"é"']))
                + " ="
                + line.partition("=")[2]
            )
        elif how == "cut":
            lines = [*lines[:at], line[: draw(st.integers(0, 80))]]
        elif how == "kind" and lines:
            lines[at] = line.replace("value", draw(st.sampled_from(["values", "kind", "range"])), 1)
    data = "\n".join(lines).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(min_size=1, max_size=6)) + data[at + draw(st.integers(0, 3)) :]
    return kind, data


def check_mutation(kind: str, data: bytes) -> bool:
    """Whether mutated bytes still load; anything but a load or a one-line error fails the test."""
    loaded, refused = None, ""
    try:
        loaded = validate(parse_toml(data, "x.toml"), schema_of(kind), "x.toml")
    except CodesignError as error:
        refused = one_line(error)
    if loaded is None:
        assert refused.startswith("x.toml: ")
        return False
    for row in provenance(loaded):
        assert row.kind in KIND_ORDER
    for number in (getattr(loaded, name) for name in type(loaded).model_fields):
        for value in getattr(number, "si_list", ()):
            assert 0.0 <= value < math.inf
    return True


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_mutated_files_load_or_say_why(case: tuple[str, bytes]) -> None:
    check_mutation(*case)


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_ten_thousand_mutated_files(case: tuple[str, bytes]) -> None:
    check_mutation(*case)


def test_unmutated_files_load() -> None:
    assert all(check_mutation(kind, text.encode()) for kind, (_, text) in FILES.items())
