"""Every block of a model, made small, executed over 8 devices and compiled: its program's counts against the rows.

What is compared: matmul FLOP and collective bytes of each operation, which must agree, and how far the layer that is
split answers differently from the layer on one device.  What is told beside, as ratios: elementwise operations and
bytes, in which the compiler and the count differ (see `NOTES`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from codesign import catalog
from codesign.glossary import VERIFY
from codesign.model import Model, model_of
from codesign.reference.case import Case
from codesign.reference.cases import cases_of, ends_of
from codesign.reference.programs import read
from codesign.reference.scaled import small_model

#: Relative difference that is rounding: the expectations are sums of a few dozen floats.
EXACT = 1e-9

#: How far two orders of summation in float32 may lie apart, relative to the largest output.
DEVIATION = 1e-5

NOTES = (
    "Compiled: matmul FLOP and bytes sent by one chip, read from the optimised program; counted: the rows of the "
    "package's own layers at the same sizes, tensor lane and links, all tensors in 4 bytes.",
    "Bytes are those of the textbook ring: an all-reduce sends 2(G-1)/G of what it sums, gather, scatter and "
    "all-to-all (G-1)/G, a hand-off all of it.",
    "Attention decodes one token behind a cache, so that nothing is masked. A mixture's tokens are all choices of "
    "experts that uniform routing gives the same chance, each once: expectations come about exactly, and every chip is "
    "the mean chip, whose work is the fullest chip's row times its share.",
    "Chosen tokens, blocks and entries are gathered by position, as many for any data; by context, as many lie on "
    "each chip, which is the count's share (the fullest chip of real data has more). XLA writes out what it gathers, "
    "where a kernel reads it where it lies.",
    "Grouped products count their routes, from the program handed to the compiler; XLA's CPU backend multiplies every "
    "route by the experts of the whole chip and masks the rest (its column 'spent').",
    "Elementwise: XLA's operations beside the products over the count's vector operations; bytes: what XLA's "
    "instructions read and write over the count's memory bytes. The count takes one fused kernel per operation and "
    "weighs an exponential by the machine (here 1); XLA adds layout copies, copies of caches and states, "
    "masks and sorts of the routing, and on small layers these outweigh the rest.",
)

#: Why a kind of layer is not executed.
_NO_REFERENCE = "no executable layer of this kind yet"


def compare(block: str, case: Case) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compile and run one case.

    Returns:
        a record per operation that has matmul FLOP or sends bytes, and one for the whole program.
    """
    rows = {row.name: row for row in case.rows}
    reading, compiled = read(case.program, case.arguments, frozenset(rows))
    found = np.asarray(case.output(compiled(*case.arguments)))
    want = np.asarray(case.alone())
    deviation = float(np.max(np.abs(found - want)) / np.max(np.abs(want)))
    split, operations = case.words(), []
    order = [*rows, *sorted({*reading.flop, *reading.sent} - set(rows))]
    for name in order:
        row = rows.get(name)
        flop = float(row.tensor * row.share) if row else 0.0
        sent = float((row.scale_up + row.scale_out) * row.share) if row else 0.0
        has_flop, has_sent = reading.flop.get(name, 0.0), reading.sent.get(name, 0.0)
        if not any((flop, sent, has_flop, has_sent)):
            continue
        agree = abs(has_flop - flop) <= EXACT * flop and abs(has_sent - sent) <= EXACT * sent
        operations.append(
            {
                "block": block,
                "split": split,
                "operation": name,
                "flop": {"compiled": has_flop, "counted": flop, "spent": reading.grouped_compiled.get(name)},
                "sent_bytes": {"compiled": has_sent, "counted": sent},
                "status": "exact" if agree else "differs",
            }
        )
    vector = sum(float(row.vector * row.share) for row in case.rows)
    memory = sum(float(row.memory * row.share) for row in case.rows)
    program = {
        "block": block,
        "split": split,
        "deviation": deviation,
        "elementwise": {"compiled": reading.elementwise_flop, "counted": vector},
        "bytes": {"compiled": reading.bytes_accessed, "counted": memory},
        "sent_bytes_by_kind": reading.kinds,
    }
    return operations, program


def not_executed(model: Model, missing: tuple[str, ...]) -> list[dict[str, str]]:
    """What of a model is not executed, and why."""
    kinds = {name: type(layer).__name__ for name, layer in model.blocks}
    found = [{"what": name, "kind": kinds[name], "reason": _NO_REFERENCE} for name in missing]
    found.append({"what": "norm, sort, sample", "kind": "elementwise", "reason": "no products and no exchange"})
    if model.drafts is not None:
        reason = "counted as one product with all of the drafter's parameters"
        found.append({"what": "drafter", "kind": "drafter", "reason": reason})
    return found


def verify(name: str, workspace: str | Path | None = None) -> dict[str, Any]:
    """Verify a model's counts; 8 devices must be there (see `codesign.reference.processes`).

    Args:
        name: of the catalog.
        workspace: folder looked up before the bundled catalog.

    Returns:
        schema ``codesign.verify/1``, whose ``exact`` says whether all operations agree and all layers answer alike.
    """
    model = model_of(catalog.load_model_file(name, workspace))
    small, missing = small_model(model)
    operations, programs = [], []
    for block, case in [(b, c) for b, layer in small.blocks for c in cases_of(layer, small.hidden)] + ends_of(small):
        some, program = compare(block, case)
        operations += some
        programs.append(program)
    alike = all(program["deviation"] < DEVIATION for program in programs)
    return {
        "schema": VERIFY,
        "model": model.name,
        "exact": alike and all(row["status"] != "differs" for row in operations),
        "executed": {"hidden": small.hidden, "vocab": small.vocab, "blocks": {n: _fields(x) for n, x in small.blocks}},
        "operations": operations,
        "programs": programs,
        "not_executed": not_executed(model, missing),
        "notes": list(NOTES),
    }


def _fields(layer: Any) -> dict[str, Any]:
    """Dimensions of a layer, with its kind."""
    return {"kind": type(layer).__name__.lower(), **vars(layer)}
