"""Every model file against published and independently counted parameters, caches and states.

The counts were made from the published configurations and checked, where the architecture is in the transformers
library, against the parameters of its meta-device class; they are rounded to 1e6 parameters and 1e8 bytes.  Exact
totals are those of the checkpoints themselves.
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from codesign.catalog.workloads import ModelFile, Request
from codesign.model import Model, model_of

WORKLOADS = Path(__file__).parents[1] / "workloads"


class Expected(NamedTuple):
    """Billions of parameters (whole, active with head and without input embedding, routed, routed active, the rest),
    gigabytes of weights, then bytes of KV per token in BF16, of full windows in BF16 and of state per sequence."""

    total: float
    active: float
    routed: float
    routed_active: float
    non_routed: float
    weight_gb: float
    kv: int
    window: int = 0
    state: int = 0


EXPECTED = {
    "deepseek-v3": Expected(671.026, 36.626, 653.909, 20.435, 17.118, 673.0, 70272),
    "deepseek-v3.2": Expected(671.878, 37.477, 653.909, 20.435, 17.969, 673.9, 85888),
    "deepseek-v4-flash": Expected(284.332, 13.27, 277.025, 6.493, 7.307, 155.5, 6880, window=5636096),
    "deepseek-v4-pro": Expected(1572.997, 48.852, 1547.396, 24.178, 25.601, 849.5, 9848, window=7995392),
    "glm-4.5": Expected(352.798, 32.856, 335.964, 16.798, 16.834, 705.6, 376832),
    "glm-5": Expected(743.911, 40.833, 724.776, 22.649, 19.135, 1487.8, 109824),
    "glm-5.2": Expected(743.377, 40.299, 724.776, 22.649, 18.601, 1486.8, 95232),
    "gpt-oss-120b": Expected(116.829, 5.133, 114.702, 3.584, 2.128, 65.2, 36864, window=4718592),
    "gpt-oss-20b": Expected(20.915, 3.608, 19.117, 2.39, 1.798, 13.8, 24576, window=3145728),
    "kimi-k2": Expected(1026.408, 31.687, 1014.686, 21.139, 11.722, 1029.0, 70272),
    "kimi-k2.5": Expected(1026.408, 31.687, 1014.686, 21.139, 11.722, 594.2, 70272),
    "kimi-k3": Expected(2779.484, 104.19, 2722.741, 48.62, 56.744, 1559.9, 27648, state=449372160),
    "kimi-linear-48b": Expected(49.123, 3.107, 47.11, 1.472, 2.012, 98.2, 8064, state=43417600),
    "llama3.1-405b": Expected(405.853, 403.752, 0.0, 0.0, 405.853, 811.7, 516096),
    "llama3.1-70b": Expected(70.554, 69.503, 0.0, 0.0, 70.554, 141.1, 327680),
    "llama4-maverick": Expected(400.712, 16.15, 386.547, 3.02, 14.165, 801.4, 49152, window=1207959552),
    "mimo-v2-flash": Expected(308.779, 14.821, 302.795, 9.462, 5.984, 310.1, 23040, window=25559040),
    "minimax-m1": Expected(456.09, 47.174, 434.865, 27.179, 21.224, 912.2, 40960, state=293601280),
    "minimax-m2": Expected(228.69, 10.416, 224.68, 7.021, 4.009, 230.0, 253952),
    "minimax-m3": Expected(426.175, 24.733, 413.122, 12.91, 13.052, 852.3, 137472),
    "mistral-large-3": Expected(673.421, 39.007, 653.909, 20.435, 19.512, 675.5, 70272),
    "mixtral-8x22b": Expected(140.621, 38.955, 135.291, 33.823, 5.329, 281.2, 229376),
    "mixtral-8x7b": Expected(46.703, 12.749, 45.097, 11.274, 1.606, 93.4, 131072),
    "nemotron3-nano-30b": Expected(31.578, 3.228, 29.375, 1.377, 2.203, 63.2, 6144, state=49082368),
    "nemotron3-super-120b": Expected(120.669, 12.233, 112.743, 4.844, 7.926, 241.3, 8192, state=170229760),
    "nemotron3-ultra-550b": Expected(549.309, 54.985, 515.396, 22.146, 33.913, 1098.6, 12288, state=407961600),
    "qwen3-235b-a22b": Expected(235.094, 21.568, 227.096, 14.194, 7.997, 470.2, 192512),
    "qwen3-next-80b-a3b": Expected(79.674, 3.564, 77.309, 1.51, 2.365, 159.3, 24576, state=77266944),
    "qwen3.5-397b-a17b": Expected(396.346, 16.332, 386.547, 7.55, 9.799, 792.7, 30720, state=192061440),
    "step-3.7-flash": Expected(196.94, 11.443, 190.254, 5.285, 6.686, 393.9, 49152, window=69206016),
    "step3": Expected(316.295, 37.918, 295.95, 18.497, 20.344, 632.6, 62464),
}

#: Parameters of the checkpoints, to the last one.
EXACT = {
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama3.1-405b": 405_853_388_800,
    "llama3.1-70b": 70_553_706_496,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
}


def read(name: str) -> ModelFile:
    """Read and check a model file."""
    return ModelFile.model_validate(tomllib.loads((WORKLOADS / "models" / f"{name}.toml").read_text()))


def load(name: str) -> Model:
    """Build a model from its file."""
    return model_of(read(name))


def near(value: float, expected: float, *, share: float, last_digit: float) -> bool:
    """Whether a value agrees within a share, or within what rounding hid of the expectation."""
    return abs(value - expected) <= max(share * expected, last_digit / 2)


def test_every_file_has_an_expectation() -> None:
    assert {path.stem for path in (WORKLOADS / "models").glob("*.toml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_parameters(name: str) -> None:
    found, expected = load(name).counts(), EXPECTED[name]
    assert near(found.total_parameters / 1e9, expected.total, share=1e-5, last_digit=1e-3)
    assert near(found.active_parameters / 1e9, expected.active, share=5e-5, last_digit=1e-3)
    assert near(found.routed_parameters / 1e9, expected.routed, share=1e-6, last_digit=1e-3)
    assert near(found.routed_active / 1e9, expected.routed_active, share=1e-6, last_digit=1e-3)
    outside = found.total_parameters - found.routed_parameters
    assert near(outside / 1e9, expected.non_routed, share=5e-5, last_digit=1e-3)
    assert sum(found.parameters.values()) == found.total_parameters


@pytest.mark.parametrize("name", EXACT)
def test_parameters_to_the_last_one(name: str) -> None:
    assert load(name).counts().total_parameters == EXACT[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_bytes(name: str) -> None:
    model, expected = load(name), EXPECTED[name]
    found = model.counts({"kv": "bf16"})
    assert near(found.weight_bytes / 1e9, expected.weight_gb, share=1e-3, last_digit=0.1)
    assert found.kv_bytes_per_token == expected.kv
    assert found.window_bytes_per_sequence == expected.window
    assert found.state_bytes_per_sequence == expected.state
    assert model.published_kv == "bf16"
    # The default cache is FP8: half of BF16.
    assert model.counts().kv_bytes_per_token * 2 == expected.kv


def test_kimi_k3_check_values() -> None:
    found = load("kimi-k3").counts()
    assert found.total_parameters == pytest.approx(2779.48e9, rel=2e-6)
    assert found.active_parameters == pytest.approx(104.19e9, rel=1e-5)
    assert found.weight_bytes == pytest.approx(1559.9e9, rel=5e-5)
    assert found.kv_bytes_per_token == 13824
    assert found.state_bytes_per_sequence == pytest.approx(449.37e6, rel=1e-5)
    assert found.routed_parameters / found.total_parameters == pytest.approx(0.9796, abs=5e-5)
    # 56.7 B parameters outside the experts are 113 GB in BF16 and half of it in FP8.
    others = found.total_parameters - found.routed_parameters
    assert others * 2 == pytest.approx(113.5e9, rel=1e-3)
    outside: dict[str, str] = {kind: "fp8" for kind in found.parameters if kind != "routed"}
    narrow = load("kimi-k3").counts(outside)
    assert found.weight_bytes - narrow.weight_bytes == pytest.approx(others)


def test_deepseek_v3_check_values() -> None:
    found = load("deepseek-v3").counts({"kv": "bf16"})
    assert found.total_parameters == pytest.approx(671.03e9, rel=1e-5)
    assert found.routed_parameters / found.total_parameters == pytest.approx(0.974, abs=5e-4)
    # README_WEIGHTS.md of the checkpoint: 36.6 B active with 0.9 B of output head.
    assert round(found.active_parameters / 1e9, 1) == 36.6
    assert round(found.parameters["head"] / 1e9, 1) == 0.9


@pytest.mark.parametrize(
    ("name", "mlp", "attention", "ends"), [("gpt-oss-120b", 114.71, 0.96, 1.16), ("gpt-oss-20b", 19.12, 0.64, 1.16)]
)
def test_gpt_oss_by_part(name: str, mlp: float, attention: float, ends: float) -> None:
    """Table 1 of the gpt-oss model card (arXiv:2508.10925): billions in MLP, attention, embedding and unembedding."""
    found = load(name).counts().parameters
    assert (found["routed"] + found["router"]) / 1e9 == pytest.approx(mlp, abs=0.006)
    assert found["attention"] / 1e9 == pytest.approx(attention, abs=0.006)
    assert (found["embedding"] + found["head"]) / 1e9 == pytest.approx(ends, abs=0.006)


@pytest.mark.parametrize("name", EXPECTED)
def test_published_figures_beside_the_counts(name: str) -> None:
    """The figures that the makers publish agree with the structure, as far as such figures are rounded."""
    published = read(name).published
    assert published is not None
    assert published.active_parameters is not None
    found = load(name).counts()
    embedding = found.parameters["embedding"]
    assert found.total_parameters == pytest.approx(published.total_parameters.si, rel=0.025)
    active = published.active_parameters.si
    # Makers count the two ends differently: with the embedding, without the head.
    choices = found.active_parameters, found.active_parameters + embedding, found.active_parameters - embedding
    # "A3B" is one digit: as much as half a billion is rounding.
    rounded = 0.5e9 / active if active == 3e9 else 0.04
    assert min(abs(choice / active - 1) for choice in choices) < rounded


@pytest.mark.parametrize(
    ("name", "context"),
    [("decode-8Ki", 8192), ("decode-32Ki", 32768), ("decode-128Ki", 131072), ("decode-515k", 515000)],
)
def test_requests(name: str, context: int) -> None:
    found = Request.model_validate(tomllib.loads((WORKLOADS / "requests" / f"{name}.toml").read_text()))
    assert found.name == name
    assert found.phase == "decode"
    assert found.context is not None
    assert found.context.si == context
