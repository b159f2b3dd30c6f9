"""How an evaluation, a frontier and a comparison look in a terminal; drawn from their JSON alone.

An evaluation reads from the answer to its reasons: what binds, the headline metrics, memory, the operations with the
time of each lane, what kinds of number it rests on, and one block of warnings at the end.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from codesign.glossary import TPOT_DEFINITION
from codesign.lanes import LANES
from codesign.units import format_quantity

Cell = str | Text | None

#: Longer words, such as addresses, break where there is no room [characters].
LONGEST_WORD = 40


class Fitting(Table):
    """A table whose numbers are never cut and whose words are never broken.

    Attributes:
        spare: names of columns to leave out where there is no room, the first first.
        unbroken: names of columns whose cells stay on one line; of the others each word does.
    """

    spare: Sequence[str] = ()
    unbroken: Sequence[str] = ()

    def _least(self, column: Column) -> int:
        cells = [str(cell) for cell in column._cells]
        whole = column.no_wrap or str(column.header) in self.unbroken
        parts = cells if whole else [word for cell in cells for word in cell.split()]
        longest = max(map(cell_len, parts), default=1)
        named = max(map(cell_len, str(column.header).split()), default=1)
        return max(longest if whole else min(longest, LONGEST_WORD), named, column.min_width or 1)

    def _most(self, column: Column) -> int:
        return max(map(cell_len, (str(column.header), *map(str, column._cells))), default=1)

    def fit(self, width: int) -> tuple[int, list[str]]:
        """Give each column its width, within ``width`` characters where that is possible.

        Returns:
            characters that the table takes, and the names of columns that were left out.
        """
        left_out: list[str] = []
        least, between = [0], 0
        for name in ("", *self.spare):
            kept = [column for column in self.columns if not name or str(column.header) != name]
            if len(kept) < len(self.columns):
                left_out.append(name)
                self.columns = kept
                for i, column in enumerate(kept):
                    column._index = i
            least = [self._least(column) for column in self.columns]
            between = self._extra_width + sum(self._get_padding_width(i) for i in range(len(least)))
            if sum(least) + between <= width:
                break
        widths = [max(self._most(column), low) for column, low in zip(self.columns, least, strict=True)]
        while sum(widths) + between > width and widths != least:
            widest = max((w, i) for i, w in enumerate(widths) if w > least[i])[1]
            widths[widest] -= 1
        for column, chosen in zip(self.columns, widths, strict=True):
            column.width = chosen
        return sum(widths) + between, left_out


class Page(Console):
    """A console that cuts no table: one that is too wide loses its spare columns, and then runs over the edge."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but for tables of `Fitting`, which take the width that they need."""
        if len(objects) != 1 or not isinstance(objects[0], Fitting):
            super().print(*objects, **options)
            return
        width = self.width
        needed, left_out = objects[0].fit(width)
        try:
            self.width = max(width, needed, cell_len(str(objects[0].title or "")))
            super().print(objects[0], **options)
        finally:
            self.width = width
        if left_out:
            words = f"not shown in {width} columns: {', '.join(left_out)}"
            super().print(Text(words, style="dim"), soft_wrap=True)


def console() -> Console:
    """Where tables go: stdout; plain and wide where that is a file or a pipe."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Page(highlight=False, width=wide)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    left: int = 1,
    text: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> Table:
    """A borderless table whose numbers stay whole.

    Args:
        title: above it; may be wider than the table.
        columns: their names.
        rows: cells; None is a dash.
        left: how many of the first columns are text, which breaks between words; the others are numbers.
        text: names of further columns that are text.
        spare: names of columns to leave out on a narrow terminal, the first first.
    """
    heading = Text(title, style="bold", no_wrap=True, overflow="ignore")
    drawn = Fitting(title=heading, title_justify="left", box=SIMPLE, pad_edge=False)
    drawn.spare = spare
    drawn.unbroken = [name for i, name in enumerate(columns) if i >= left and name not in text]
    for i, name in enumerate(columns):
        drawn.add_column(name, justify="left" if i < left or name in text else "right", overflow="fold")
    for row in rows:
        # What a file says is told as it is: brackets in it are no markup.
        drawn.add_row(*("–" if cell is None else Text(cell) if isinstance(cell, str) else cell for cell in row))
    return drawn


def told(value: float | None, unit: str, digits: int = 4) -> str:
    """A number with its unit for people, a dash where there is none."""
    if value is None:
        return "–"
    if unit in ("token/s", "token", "chip"):
        return f"{value:,.{0 if abs(value) >= 100 else 1}f}"
    return format_quantity(value, unit, digits)


def count(value: float) -> str:
    """How many, with four digits where it is no whole number."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def microseconds(seconds: float | None) -> str:
    """A time in µs without its unit, for columns that name it; nothing where nothing is spent."""
    if not seconds:
        return ""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def mapping_words(mapping: Mapping[str, Any]) -> str:
    """A mapping in one line: ``72 chips: PP 1 × TP 1 × DP 72, EP 72``."""
    degrees = " × ".join(f"{name.upper()} {mapping[name]}" for name in ("pp", "tp", "dp"))
    words = f"{mapping['chips']} chips: {degrees}, EP {mapping['ep']}"
    if mapping.get("moe_tp", 1) > 1:
        words += f", expert TP {mapping['moe_tp']}"
    if mapping["tp"] > 1:
        words += f", KV by {mapping['attention_split']}"
    if mapping["microbatches"] > 1:
        words += f", {mapping['microbatches']} micro-batches"
    if mapping.get("chunk"):
        words += f", chunks of {mapping['chunk']:,.0f} tokens"
    return words


def request_words(result: Mapping[str, Any]) -> str:
    """What was asked, in words: ``midfill of 4,000 tokens behind 511,000``."""
    request, phase = result["request"], result["phase"]
    if phase == "decode":
        return f"decode at {request['context']:,.0f} tokens of context"
    if phase == "serve":
        flying = request["batch"] * result["mapping"]["dp"] * result["mapping"]["microbatches"]
        cached = f" ({request['context']:,.0f} of them cached)" if request["context"] else ""
        words = (
            f"serving {count(flying)} requests of {request['isl']:,.0f} tokens in{cached}, {request['osl']:,.0f} out"
        )
        return words + (f" by {request['framework']}" if request["framework"] else "")
    behind = f" behind {request['context']:,.0f}" if request["context"] else ""
    return f"{phase} of {request['new']:,.0f} tokens{behind}"


def evaluation(result: Mapping[str, Any], out: Console | None = None) -> None:
    """Draw one evaluation."""
    out = out or console()
    request = result["request"]
    out.print(f"[bold]{result['model']}[/bold] {request_words(result)} on [bold]{result['arch']}[/bold]")
    margin = result["margin"]
    fits = margin.get("missing_bytes") is None
    here = f"{mapping_words(result['mapping'])}; batch {count(request['batch'])} per instance"
    if result["feasible"]:
        out.print(f"[green]feasible[/green], limited by {result['limited_by']}")
        out.print(f"margins    {_margin(margin, result['metrics']['throttled'])}", soft_wrap=True)
        out.print(f"mapping    {here}", soft_wrap=True)
    else:
        refusal(result, here, out)
    precision = ", ".join(f"{name} {dtype}" for name, dtype in result["precision"].items())
    out.print(f"precision  {precision}", soft_wrap=True)
    execution = result["execution"]
    rates = "speed of light" if execution.get("ideal") else "achieved rates"
    fitted = "fitted to measurements" if execution["calibrated"] else "not fitted to measurements"
    out.print(f"rates      {rates if execution.get('ideal') else f'{rates}, {fitted}'}; {TPOT_DEFINITION}")
    if fits:
        out.print(_headline(result["metrics"], result.get("interval")))
    out.print(_memory(result["memory"]))
    if fits:
        out.print(_operations(result))
    rests = result.get("rests_on") or {}
    if rests:
        out.print("rests on   " + ", ".join(f"{kind} ({len(names)})" for kind, names in rests.items()))
        for kind in ("assumption", "rumour", "estimate"):
            if rests.get(kind):
                out.print(f"  {kind}: {', '.join(rests[kind])}", style="dim", soft_wrap=True)
    warnings(result.get("warnings") or (), out)


def warnings(lines: Iterable[str], out: Console) -> None:
    """One block at the end, never before the answer."""
    lines = list(lines)
    if lines:
        out.print("[yellow]warnings[/yellow]")
        for line in lines:
            out.print(f"  {line}", markup=False, soft_wrap=True)


#: What each entry of ``margin`` is called, and in which unit it is told; the nearest mapping stands in its own line.
MARGINS = {
    "memory_bytes": ("memory to spare", "B"),
    "power_w": ("below the power limit", "W"),
    "tpot_s": ("TPOT to spare", "s"),
    "least_tpot_s": ("least TPOT reachable", "s"),
    "ttft_s": ("TTFT to spare", "s"),
    "least_ttft_s": ("least TTFT reachable", "s"),
    "missing_s": ("target missed by", "s"),
    "missing_bytes": ("memory missing", "B"),
}


def _margin(margin: Mapping[str, Any], throttled: bool = False) -> str:
    told_ones = [
        "at the power limit"
        if name == "power_w" and (throttled or margin[name] <= 0.0)
        else f"{label} {'−' if margin[name] < 0 else ''}{told(abs(margin[name]), unit)}"
        for name, (label, unit) in MARGINS.items()
        if margin.get(name) is not None
    ]
    return ", ".join(told_ones)


def refusal(result: Mapping[str, Any], here: str, out: Console) -> None:
    """What is missing, where that was found, and the nearest point that can serve."""
    margin = result["margin"]
    nearest = margin.get("nearest")
    if margin.get("missing_bytes") is not None:
        missing = told(margin["missing_bytes"], "B")
        out.print(f"[red]not feasible[/red]: does not fit, the fullest chip lacks {missing} of memory", soft_wrap=True)
        out.print(f"tried      {here}; the one that lacks least", soft_wrap=True)
    else:
        name = "TPOT" if margin.get("least_tpot_s") is not None else "TTFT"
        least, missed = told(margin[f"least_{name.lower()}_s"], "s"), told(margin["missing_s"], "s")
        words = f"the least {name} reachable is {least}, the target is missed by {missed}"
        out.print(f"[red]not feasible[/red]: too slow, {words}", soft_wrap=True)
        if not nearest or (nearest["mapping"], nearest["batch"]) != (result["mapping"], result["request"]["batch"]):
            out.print(f"fastest    {here}", soft_wrap=True)
    if nearest is None:
        most = margin.get("max_chips")
        out.print(f"nearest    nothing serves: no mapping up to {most} chips holds it, not even one sequence")
        return
    times = [f"{k[:4].upper()} {told(nearest[k], 's')}" for k in ("tpot_s", "ttft_s") if nearest[k] is not None]
    rate = f"{told(nearest['tokens_per_s_per_megawatt'], 'token/s')} tokens/s/MW"
    flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in nearest["relaxed"])
    words = f"{mapping_words(nearest['mapping'])}; batch {count(nearest['batch'])}: {', '.join((*times, rate))}"
    out.print(f"nearest    {words}" + (f"; gives up {flags}" if flags else ""), soft_wrap=True)


def _headline(m: Mapping[str, Any], interval: Mapping[str, Any] | None = None) -> Table:
    throttled = " (throttled)" if m["throttled"] else ""
    supplied = f"{told(m['all_in_power_w'], 'W')}; {told(m['provisioned_power_w'], 'W')}"
    rate = ("tokens/s", "tokens_per_s", "token/s")
    seen = ("context_tokens_per_s", "token/s")
    times: list[tuple[str, str, str, str, str, str]] = []
    if m["ttft_s"] is None:
        times = [("TPOT", "tpot_s", "s", *rate)]
    elif m["tpot_s"] is None:
        bubbles = ("share of bubbles", "bubble_share", "1", "cached and new tokens/s", *seen)
        times = [("TTFT", "ttft_s", "s", *rate), bubbles]
    else:
        shares = ("share of prompts in a step", "prefill_share", "1", "share of bubbles", "bubble_share", "1")
        times = [("TPOT", "tpot_s", "s", *rate), ("TTFT", "ttft_s", "s", "prompt and answer tokens/s", *seen), shares]
    pairs = [
        *times,
        (
            "tokens/s per user", "tokens_per_s_per_user", "token/s",
            "tokens/s per chip", "tokens_per_s_per_chip", "token/s",
        ),
        (
            "tokens/s per MW provisioned", "tokens_per_s_per_megawatt", "token/s",
            "per MW drawn", "tokens_per_s_per_megawatt_drawn", "token/s",
        ),
        ("energy per token", "energy_per_token_j", "J", "$ per million tokens", "dollars_per_million_tokens", "1"),
        ("network per chip, peak", "network_peak_bytes_per_s", "B/s", "mean", "network_mean_bytes_per_s", "B/s"),
    ]  # fmt: skip
    drawn = Fitting(box=SIMPLE, show_header=False, pad_edge=False)
    drawn.unbroken = ("",)
    for justify in ("left", "right", "left", "right"):
        drawn.add_column(justify=justify)
    for left, name, unit, right, other, other_unit in pairs:
        drawn.add_row(left, told(m[name], unit), right, told(m[other], other_unit))
    drawn.add_row("board power per chip", told(m["board_power_w"], "W") + throttled, "all-in; provisioned", supplied)
    if interval:
        time = next(k for k in ("tpot_s", "ttft_s") if k in interval)
        spans = (("tokens_per_s_per_megawatt", "token/s"), (time, "s"))
        low_high = [" to ".join(told(x, unit) for x in interval[name]) for name, unit in spans if name in interval]
        drawn.add_row(f"90 % interval, {time[:4].upper()}", low_high[-1], "per MW provisioned", low_high[0])
    return drawn


def _memory(memory: Mapping[str, float]) -> Table:
    capacity = memory["capacity_bytes"]
    parts = [(name.removesuffix("_bytes"), value) for name, value in memory.items() if name != "capacity_bytes"]
    used = sum(value for name, value in parts if name != "slack")
    rows = [(name, told(value, "B"), f"{value / capacity:.1%}") for name, value in parts if value > 0]
    rows.append(("used, of " + told(capacity, "B"), told(used, "B"), f"{used / capacity:.1%}"))
    return table("Memory of the fullest chip", ("", "bytes", "of capacity"), rows)


def _operations(result: Mapping[str, Any]) -> Table:
    operations = result["operations"]
    whole = result["metrics"]["pass_s"]
    lanes = [lane for lane in LANES if any(op["lane_time_s"].get(lane) for op in operations)]
    hides = any(op["hidden_s"] for op in operations)
    columns = ["operation", "bound by", "layers", "µs", "share", *(lane.replace("_", "-") for lane in lanes), "latency"]
    rows: list[list[Cell]] = []
    for op in sorted(operations, key=lambda op: -op["time_s"]):
        row: list[Cell] = [op["name"], op["bound_by"].replace("_", "-"), f"{op['layers']:g}"]
        row.append(microseconds(op["time_s"]))
        row.append(f"{op['time_s'] / whole:.1%}" if whole else None)
        row += [microseconds(op["lane_time_s"].get(lane)) for lane in lanes]
        row.append(microseconds(op["latency_s"]))
        rows.append(row + ([microseconds(op["hidden_s"])] if hides else []))
    drawn = table(
        "Operations, µs per pass over all their layers",
        [*columns, *(["hidden"] if hides else [])],
        rows,
        left=2,
        spare=("layers", "hidden", "vector", "scale-out", "scale-up", "latency", "tensor", "memory", "bound by"),
    )
    blank = [""] * (len(lanes) + 1 + hides)
    drawn.add_row("pass", "", "", microseconds(whole), "", *blank, style="bold")
    return drawn


def frontier(results: Sequence[Mapping[str, Any]], out: Console | None = None) -> None:
    """Draw a Pareto frontier, fastest for the user first."""
    out = out or console()
    if not results:
        out.print("no feasible mapping")
        return
    first = results[0]
    rows = []
    for r in sorted(results, key=lambda r: r["metrics"]["tpot_s"] or r["metrics"]["ttft_s"] or 0.0):
        m, words = r["metrics"], mapping_words(r["mapping"])
        rows.append(
            (
                words, r["limited_by"], count(r["request"]["batch"]), told(m["tpot_s"] or m["ttft_s"], "s", 3),
                told(m["tokens_per_s_per_user"], "token/s"), told(m["tokens_per_s_per_chip"], "token/s"),
                told(m["tokens_per_s_per_megawatt"], "token/s"), told(m["memory_per_chip_bytes"], "B", 3),
            )
        )  # fmt: skip
    prompts = first["metrics"]["tpot_s"] is None
    asked = "serving" if first["phase"] == "serve" else request_words(first)
    columns = (
        "mapping", "limited by", "batch", "TTFT" if prompts else "TPOT", "tok/s/user", "tok/s/chip", "tok/s/MW",
        "memory",
    )  # fmt: skip
    title = f"{first['model']} {asked} on {first['arch']}"
    drawn = table(title, columns, rows, left=2, spare=("memory", "limited by", "tok/s/chip", "tok/s/user"))
    drawn.columns[0].min_width = 24
    out.print(drawn)
    tokens = "new prompt tokens" if prompts else f"{TPOT_DEFINITION}; output tokens"
    out.print(f"{tokens}; MW as provisioned")
    warnings(dict.fromkeys(line for r in results for line in r.get("warnings") or ()), out)
