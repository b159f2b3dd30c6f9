"""Options that several commands share, how quantities on the command line are read, and how JSON is written."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from codesign import units
from codesign.errors import CodesignError

_MAPPING = "Mapping (what is not given is searched)"
_PRECISION = "Precision (the checkpoint's own where not given)"

Json = Annotated[bool, typer.Option("--json", metavar="", help="Write one JSON document to stdout, nothing else.")]
Workspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        metavar="DIR",
        envvar="CODESIGN_WORKSPACE",
        show_envvar=True,
        help="Folder with arch/, workloads/ and optimize/ that is looked up before the bundled catalog.",
    ),
]
Arch = Annotated[str, typer.Option("--arch", metavar="NAME", help="System to run on, as in 'codesign list arch'.")]
Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Model to serve, as in 'codesign list workloads'.")]
_LENGTHS = "What is served: prefill takes --new, midfill --cached --new, decode --context, serve --isl --osl"
Phase = Annotated[
    str, typer.Option("--phase", metavar="PHASE", help="Regime of inference: prefill, midfill, decode or serve.")
]


def _length(flag: str, words: str) -> Any:
    return typer.Option(flag, metavar="TOKENS", rich_help_panel=_LENGTHS, help=words)


Context = Annotated[str | None, _length("--context", "Cached tokens per sequence in decode: 515000, 128Ki, 128k.")]
Cached = Annotated[
    str | None,
    _length("--cached", "Tokens that a prompt finds in the cache: before --new in midfill, a part of --isl in serve."),
]
New = Annotated[str | None, _length("--new", "New tokens of a prompt (prefill, midfill).")]
Isl = Annotated[str | None, _length("--isl", "Tokens of a whole prompt (serve).")]
Osl = Annotated[str | None, _length("--osl", "Tokens of an answer, 2 or more (serve).")]
Concurrency = Annotated[
    float | None,
    typer.Option(
        metavar="N", rich_help_panel=_LENGTHS, help="Requests in flight on the whole mapping, in closed loop (serve)."
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", rich_help_panel=_LENGTHS, help="Add the host time of sglang, vllm, trt or atom (serve)."
    ),
]
Tpot = Annotated[str | None, typer.Option("--tpot", metavar="TIME", help='Target time per output token, e.g. "20 ms".')]
Ttft = Annotated[
    str | None, typer.Option("--ttft", metavar="TIME", help='Target time to the first token of a prompt, e.g. "2 s".')
]
Chunk = Annotated[
    str | None,
    typer.Option(
        "--chunk", metavar="TOKENS", rich_help_panel=_MAPPING, help="Most tokens of a prompt that one pass takes."
    ),
]
Ideal = Annotated[
    bool,
    typer.Option(
        "--ideal", metavar="", help="Speed of light: every efficiency 1 and the exact maximum over the lanes."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help='Change a file: --set accelerator.memory_bandwidth="10 TB/s".'),
]
Chips = Annotated[
    int | None, typer.Option(min=1, metavar="N", rich_help_panel=_MAPPING, help="Chips in all: pp x tp x dp.")
]
Pp = Annotated[int | None, typer.Option("--pp", min=1, metavar="N", rich_help_panel=_MAPPING, help="Pipeline stages.")]
Tp = Annotated[
    int | None, typer.Option("--tp", min=1, metavar="N", rich_help_panel=_MAPPING, help="Chips per attention instance.")
]
Dp = Annotated[
    int | None,
    typer.Option("--dp", min=1, metavar="N", rich_help_panel=_MAPPING, help="Attention instances per stage."),
]
Ep = Annotated[
    int | None,
    typer.Option("--ep", min=1, metavar="N", rich_help_panel=_MAPPING, help="Expert ranks; divides tp x dp."),
]
AttentionSplit = Annotated[
    str | None,
    typer.Option(metavar="heads|context", rich_help_panel=_MAPPING, help="How TP splits the KV scan."),
]
Batch = Annotated[
    float | None, typer.Option(metavar="B", rich_help_panel=_MAPPING, help="Sequences per micro-batch of one instance.")
]
Microbatches = Annotated[
    int | None, typer.Option(min=1, metavar="N", rich_help_panel=_MAPPING, help="Micro-batches in flight.")
]
Drafts = Annotated[int, typer.Option(min=0, metavar="N", rich_help_panel=_MAPPING, help="Speculated tokens per pass.")]
Skew = Annotated[
    float, typer.Option(metavar="S", help="Exponent of expert popularity, 0 to 1.5; 0 routes to all alike.")
]
_EXPERTS = "Experts"
Copies = Annotated[
    int,
    typer.Option(min=0, metavar="N", rich_help_panel=_EXPERTS, help="Redundant experts per layer, to balance ranks."),
]
CapacityFactor = Annotated[
    float | None,
    typer.Option(metavar="F", rich_help_panel=_EXPERTS, help="An expert takes F times the mean of routes; 1 or more."),
]
Overflow = Annotated[
    str, typer.Option(metavar="drop|reroute", rich_help_panel=_EXPERTS, help="What becomes of routes beyond capacity.")
]
Dispatch = Annotated[
    str,
    typer.Option(metavar="token|route", rich_help_panel=_EXPERTS, help="A message per token and rank, or per route."),
]
ExpertsOn = Annotated[
    str | None,
    typer.Option(
        "--experts-on", metavar="NAME", rich_help_panel=_EXPERTS, help="Put experts on chips of another system."
    ),
]
ExpertChips = Annotated[
    int | None,
    typer.Option("--expert-chips", min=1, metavar="N", rich_help_panel=_EXPERTS, help="How many (with --experts-on)."),
]
Output = Annotated[str, typer.Option(metavar="TOKENS", help="Tokens of one answer, for the energy of a query.")]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        rich_help_panel=_PRECISION,
        help="Weights outside the routed experts, e.g. fp8; or attention=fp8,head=fp8.",
    ),
]
KvDtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", rich_help_panel=_PRECISION, help="KV cache, e.g. fp8 or bf16.")
]
AttentionDtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", rich_help_panel=_PRECISION, help="Arithmetic of the attention scan."),
]


class Interrupted(Exception):
    """The user stopped a run; the message says how to go on."""


def quantity(text: str | None, unit: str, option: str, *, zero: bool = False, whole: bool = False) -> float | None:
    """A quantity given on the command line, in ``unit``; an error names the option.

    A bare number is refused where the unit is more than a count: ``--tpot 20`` could be seconds or milliseconds.

    Args:
        text: as given; None stays None.
        unit: what the caller needs.
        option: as the command line calls it.
        zero: zero is allowed.
        whole: only whole numbers are, as of tokens.

    Raises:
        CodesignError: not such a quantity.
    """
    if text is None:
        return None
    try:
        value = units.parse(text, unit, positive=not zero)
    except CodesignError as error:
        raise CodesignError(error.problem, key=option, allowed=error.allowed) from error
    if whole and not value.is_integer():
        raise CodesignError(f"{text.strip()!r} is a fraction of {unit}s", key=option, allowed="a whole number")
    return value


def add_command(app: typer.Typer, function: Callable[..., None], *examples: str, name: str | None = None) -> None:
    """Add a command whose help is its docstring, as running text, with examples below it."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    lines = ("[bold]Examples[/bold]", *(f"  {line.replace('[', chr(92) + '[')}" for line in examples))
    app.command(name=name, help=text, epilog="\n".join(lines))(function)


def write_json(document: Any) -> None:
    """Write one JSON document to stdout; NaN and infinities are errors, since JSON has none."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def answer(document: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Tell a result: as JSON, or by the function that draws its table."""
    if as_json:
        write_json(document)
    else:
        table(document)
