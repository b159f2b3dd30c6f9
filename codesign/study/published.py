"""What others published of the cases that a study covers: measured points, vendors' points, a forecast's bands.

They stand beside the model's results and are used in no computation of it.  A point that its publisher leaves open
(context, drafts, number of chips) is open here too; `codesign.study.checks` says what it assumed instead.
"""

from typing import Any, NamedTuple


class Point(NamedTuple):
    """A published speed of one user.

    Attributes:
        name: for people. arch, model: of the catalog. value: output tokens per second and user.
        degrees: of the mapping as published; empty where the publisher does not say.
        drafts: drafted tokens per pass; None where the publisher does not say whether there were any.
        accepted: tokens accepted per pass as published, instead of the model file's table.
        source: who says so, and how.
    """

    name: str
    arch: str
    model: str
    value: float
    degrees: dict[str, Any]
    drafts: int | None
    accepted: float | None
    source: str


_VLLM = "vLLM blog on Kimi K3, 2026-07-27, measured on GB300"
_OPENAI = "OpenAI, Jalapeno's first results / Hot Chips 2026, via ServeTheHome and SemiAnalysis, 2026-08: vendor-run"
_TP8 = {"chips": 8, "pp": 1, "tp": 8, "dp": 1, "ep": 1}

POINTS = (
    Point("Kimi K3 on GB300, TP 8, batch 1, no drafts", "gb300-nvl72", "kimi-k3", 111.0, _TP8, 0, None, _VLLM),
    Point("Kimi K3 on GB300, TP 8, batch 1, 7 drafts", "gb300-nvl72", "kimi-k3", 331.0, _TP8, 7, 4.73, _VLLM),
    Point(
        "DeepSeek-R1 on Jalapeno, one user", "jalapeno", "deepseek-v3", 700.0, {}, None, None, _OPENAI + ", approximate"
    ),
    Point("gpt-oss-120b on Jalapeno, one user", "jalapeno", "gpt-oss-120b", 1459.0, {}, None, None, _OPENAI),
    Point(
        "DeepSeek-R1 on GB300, one user", "gb300-nvl72", "deepseek-v3", 169.0, {}, None, None,
        _OPENAI + ", given beside its own",
    ),
    Point(
        "gpt-oss-120b on GB200, one user", "gb200-nvl72", "gpt-oss-120b", 535.0, {}, None, None,
        _OPENAI + ", given beside its own",
    ),
)  # fmt: skip


class Band(NamedTuple):
    """A forecast range of output tokens/s per MW; ``arch`` names the catalog's machine where there is one."""

    title: str
    arch: str | None
    low: float
    high: float


#: Article on mapping MoE inference to hardware (SemiAnalysis, 2026-10), Figure 7: decode of a Kimi-K3-class model at
#: about 500,000 tokens; a scenario forecast, read off a logarithmic chart, hence bands.
DECODE_515K = (
    Band("Vera Rubin 72", "vera-rubin-nvl72", 6e4, 8e4),
    Band("Vera Rubin 72 + LPU, near 2 ms", None, 1e5, 1e5),
    Band("Jalapeño", "jalapeno", 1e5, 3e5),
    Band("Jalapeño + super 3D RAM", "jalapeno-super-3d-ram", 4e5, 6e5),
)

#: Contexts [tokens] at which the bands are compared.
BAND_CONTEXTS = (490_000.0, 530_000.0)
