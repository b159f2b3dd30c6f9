"""Quantities against hand arithmetic, exact decimals, the two readers against each other, and refusals."""

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from catalogs import one_line
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codesign import units
from codesign.errors import CodesignError
from codesign.units import format_quantity, parse, parse_any


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("20 ms", "s", 0.02),
        ("0.2us", "s", 2e-7),
        ("5 µs", "s", 5e-6),
        ("1.5 h", "s", 5400.0),
        ("20 min", "s", 1200.0),
        ("8 TB/s", "B/s", 8e12),
        ("400 Gb/s", "B/s", 50e9),
        ("800 Gbps", "B/s", 100e9),
        ("216 GB", "B", 216e9),
        ("216 GiB", "B", 231_928_233_984.0),
        ("328 KiB", "B", 335_872.0),
        ("50 kB", "B", 50_000.0),
        ("4.5 PFLOP/s", "FLOP/s", 4.5e15),
        ("989 TFLOPS", "FLOP/s", 989e12),
        ("26 TOP/s", "op/s", 26e12),
        ("0.4 pJ/bit", "J/B", 3.2e-12),
        ("80 pJ/B", "J/B", 80e-12),
        ("0.5 pJ/FLOP", "J/FLOP", 5e-13),
        ("1.4 kW", "W", 1400.0),
        ("3600 J/h", "W", 1.0),
        ("2 Wh", "J", 7200.0),
        ("2 kW*h", "J", 7.2e6),
        ("3 W * s**-1", "W/s", 3.0),
        ("840 mm^2", "m^2", 8.4e-4),
        ("1.1 cm", "m", 0.011),
        ("36 GB/s/mm^2", "B/s/m^2", 3.6e16),
        ("11.4 MB/mm^2", "B/m^2", 1.14e13),
        ("0.8 W/mm^2", "W/m^2", 8e5),
        ("1.95 dollar/h", "dollar/h", 1.95),
        ("3.6 $/h", "dollar/h", 3.6),
        ("36 dollar/day", "dollar/h", 1.5),
        ("18 dollar/GB", "dollar/B", 1.8e-8),
        ("128Ki", "token", 131_072.0),
        ("128 Ki", "token", 131_072.0),
        ("515000", "token", 515_000.0),
        ("515,000", "token", 515_000.0),
        ("515_000", "token", 515_000.0),
        ("515k", "token", 515_000.0),
        ("2 Mi", "token", 2_097_152.0),
        ("72", "chip", 72.0),
        ("72 chips", "chip", 72.0),
        ("2.78e12", "parameter", 2.78e12),
        ("671 Gparams", "parameter", 671e9),
        ("4 op", "op", 4.0),
        ("90 %", "1", 0.9),
        (".5", "1", 0.5),
        ("0", "s", 0.0),
        (72, "chip", 72.0),
        (np.float64(0.25), "1", 0.25),
        (np.int64(8), "chip", 8.0),
    ],
)
def test_hand_values(text: str | float, unit: str, expected: float) -> None:
    assert parse(text, unit) == expected


@given(st.integers(0, 10**9), st.integers(0, 6), st.sampled_from(["s", "B/s", "W", "J/FLOP"]))
def test_decimal_prefixes_round_once(digits: int, places: int, unit: str) -> None:
    number = Decimal(digits).scaleb(-places)
    head, _, tail = unit.partition("/")
    for prefix, power in {"p": -12, "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}.items():
        text = f"{number:f} {prefix}{head}{'/' + tail if tail else ''}"
        assert parse(text, unit) == float(number.scaleb(power))


@pytest.mark.parametrize(
    ("plain", "composed", "unit"),
    [
        ("36 GB/s/mm^2", "36 GB/(s*mm**2)", "B/s/m^2"),
        ("0.8 W/mm^2", "0.8 J/(s*mm^2)", "W/m^2"),
        ("3.5 pJ/bit", "3.5 (pJ)/(bit)", "J/B"),
        ("7.2 MJ", "2 (kW*h)", "J"),
        ("2 kW*h", "2 (kW)*h", "J"),
        ("1 GiB/s", "1 GiB s**-1", "B/s"),
        ("0.04 mm^2/TFLOP*s", "0.04 (mm^2/TFLOP)*s", "m^2*s/FLOP"),
    ],
)
def test_pint_agrees_with_the_fast_reader(plain: str, composed: str, unit: str) -> None:
    assert parse(composed, unit) == pytest.approx(parse(plain, unit), rel=1e-15)


def test_pint_knows_only_our_units() -> None:
    with pytest.raises(CodesignError, match="not a unit"):
        parse("3 (m*furlong)", "m^2")


@pytest.mark.parametrize(
    ("value", "unit", "problem", "allowed"),
    [
        ("100 GB", "s", "wrong dimension", "20 ms"),
        ("8 TB", "B/s", "wrong dimension", "8 TB/s"),
        ("26 TFLOP/s", "op/s", "wrong dimension", "op/s"),
        ("72 tokens", "chip", "wrong dimension", "chip"),
        ("5 ms", "token", "wrong dimension", "128Ki"),
        ("5", "s", "has no unit", "20 ms"),
        (5, "B/s", "has no unit", "8 TB/s"),
        ("8 T", "B/s", "has no unit", "8 TB/s"),
        ("-3 ms", "s", "negative", "zero or more"),
        ("nan", "s", "not a number", "20 ms"),
        ("inf s", "s", "not a number", "20 ms"),
        (float("nan"), "1", "not finite", "finite"),
        (float("inf"), "chip", "not finite", "finite"),
        ("1e400 s", "s", "out of range", "double"),
        ("1e-400 s", "s", "out of range", "double"),
        (10**400, "chip", "out of range", "double"),
        ("8 KB", "B", "unknown unit", "kB for 1,000 or KiB for 1,024"),
        ("128K", "token", "ambiguous", "k for 1,000 or Ki for 1,024"),
        ("1 gb/s", "B/s", "unknown unit", "GB or Gb"),
        ("3 sec0nds", "s", "not a unit", "ms"),
        ("3 secnds", "s", "unknown unit", "seconds"),
        ("1 B**99", "B", "not a unit", "GB"),
        ("1 ((((", "B", "not a unit", "GB"),
        ("", "s", "not a number", "20 ms"),
        ("ms", "s", "not a number", "20 ms"),
        ("x" * 500, "s", "200 characters", "20 ms"),
        (True, "1", "not a quantity", "20 ms"),
        (None, "s", "not a quantity", "20 ms"),
        (["1 s"], "s", "not a quantity", "20 ms"),
    ],
)
def test_refusals_say_what_is_allowed(value: object, unit: str, problem: str, allowed: str) -> None:
    with pytest.raises(CodesignError) as caught:
        parse(value, unit)  # type: ignore[arg-type]
    assert problem in caught.value.problem
    assert caught.value.allowed is not None
    assert all(part in caught.value.allowed for part in allowed.split(" or "))


def test_bare_numbers_are_si_only_where_asked_for() -> None:
    assert parse(0.02, "s", bare=True) == 0.02
    assert parse("0.02", "s", bare=True) == 0.02
    assert parse("20 ms", "s", bare=True) == 0.02
    with pytest.raises(CodesignError, match="negative"):
        parse(-1.0, "s", bare=True)


@settings(max_examples=300)
@given(
    st.text(max_size=40) | st.from_regex(r"[0-9.eE+-]{1,8} ?[a-zA-ZµΩ/*^()%$0-9 -]{0,12}"),
    st.sampled_from(["s", "B/s", "1"]),
)
@example("1 s/0", "s")
@example("٣ s", "s")
@example("1 s^-0", "s")
@example("1e999999999 s", "s")
@example("9" * 150, "1")
@example("1 s^9/s^9/s^9", "s")
def test_any_text_gives_a_finite_number_or_one_line(text: str, unit: str) -> None:
    try:
        value = parse(text, unit)
    except CodesignError as error:
        one_line(error)
    else:
        assert 0.0 <= value < float("inf")


@pytest.mark.parametrize(
    ("text", "expected", "unit"),
    [
        ("22 TB/s", 22e12, "B/s"),
        ("20 us", 2e-5, "s"),
        ("0.0859 W/mm^2", 85_900.0, "W/m^2"),
        ("2000 FLOP/B", 2000.0, "FLOP/B"),
        ("0.25 pJ/FLOP", 2.5e-13, "J/FLOP"),
        ("12 dollar/GB", 1.2e-8, "dollar/B"),
        ("0.9", 0.9, "1"),
        ("3 1/s", 3.0, "1/s"),
        ("6 W/s", 6.0, "W/s"),
        ("2 kJ", 2000.0, "J"),
    ],
)
def test_self_described_units(text: str, expected: float, unit: str) -> None:
    assert parse_any(text) == (expected, unit)
    assert units.dimension(unit).factor == 1  # the name is itself a unit, and a base one


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.2e13, "B/s", "22 TB/s"),
        (2e-7, "s", "200 ns"),
        (1200.0, "s", "1200 s"),
        (1400.0, "W", "1.4 kW"),
        (8e-11, "J/B", "80 pJ/B"),
        (999.996e9, "B", "1 TB"),
        (2.1, "dollar/h", "2.1 dollar/h"),
        (131_072.0, "token", "131072 token"),
        (0.15, "1", "0.15"),
        (0.0, "s", "0 s"),
    ],
)
def test_formatting(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@given(st.floats(1e-14, 1e17), st.sampled_from(["s", "B/s", "FLOP/s", "W", "J/B", "op/s"]))
def test_formatting_is_read_back(value: float, unit: str) -> None:
    assert parse(format_quantity(value, unit, 17), unit) == pytest.approx(value, rel=1e-14)


def test_common_quantities_do_not_import_pint() -> None:
    code = (
        "import sys; from codesign.units import parse; "
        "[parse(*a) for a in (('8 TB/s', 'B/s'), ('20 ms', 's'), ('36 GB/s/mm^2', 'B/s/m^2'), ('128Ki', 'token'))]; "
        "sys.exit(any(m in sys.modules for m in ('pint', 'numpy', 'pydantic', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
