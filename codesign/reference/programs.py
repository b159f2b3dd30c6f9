r"""Reading a compiled program of one chip: matmul FLOP and collective bytes by name of the operation.

The optimised HLO keeps, for each instruction, the name scopes under which it was traced.  A product of (batch, M, K)
with (batch, K, N) is :math:`2\,batch\,M N K` FLOP; a loop counts as often as it is known to run.  Bytes are those that
a chip of a group of G sends by the textbook algorithms which `codesign.fabric` counts: all-reduce
:math:`2(G-1)/G` of what it sums, all-gather :math:`(G-1)/G` of what it makes, reduce-scatter and all-to-all
:math:`(G-1)/G` of what they take, a permute all of it.

XLA has no grouped product on the CPU: it turns `jax.lax.ragged_dot` into a masked product with the weights of all
experts.  Grouped products are therefore read from the traced program that is handed to the compiler, as
:math:`2 \cdot rows \cdot K N`, and what the compiler spends on them is told beside.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, jaxprs_in_params

#: Programs that run once: HLO is optimised as ever, machine code is not.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

#: Bytes of an element by HLO's name of the type.
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")

#: Share of its operand or result that a chip sends, and whether that is the operand, given the size of its group.
_COLLECTIVES = {
    "all-reduce": lambda g: 2.0 * (g - 1) / g,
    "all-gather": lambda g: (g - 1) / g,
    "reduce-scatter": lambda g: float(g - 1),  # of the result, a G-th of the operand
    "all-to-all": lambda g: (g - 1) / g,
    "collective-permute": lambda g: 1.0,  # noqa: ARG005
}

Counted = dict[str, float]

#: Operation of what was traced outside any.
OTHER = "other"


class Reading(NamedTuple):
    """What a program does on one chip.

    Attributes:
        flop: matmul FLOP by name of the operation, grouped products at their routes.
        sent: bytes sent by name of the operation.
        kinds: bytes sent by kind of collective.
        traced_flop: matmul FLOP of the traced program by name, before the compiler.
        grouped_flop: of these, in grouped products, by name.
        grouped_compiled: what the compiler makes of them, by name.
        elementwise_flop, bytes_accessed: of the whole program, as XLA's cost analysis has them, without dots; None
            where there are loops, whose bodies it counts once.
    """

    flop: dict[str, float]
    sent: dict[str, float]
    kinds: dict[str, float]
    traced_flop: dict[str, float]
    grouped_flop: dict[str, float]
    grouped_compiled: dict[str, float]
    elementwise_flop: float | None
    bytes_accessed: float | None


def _shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(kind, tuple(int(n) for n in dims.split(",") if n)) for kind, dims in _SHAPE.findall(text)]


def _bytes(text: str) -> int:
    return sum(_SIZES[kind] * prod(dims) for kind, dims in _shapes(text))


def _dimensions(text: str, name: str) -> list[int]:
    found = re.search(rf"{name}=\{{([\d,]*)\}}", text)
    return [int(n) for n in found[1].split(",") if n] if found else []


def _group(text: str) -> int:
    """Chips in a group: written out, as ``[groups,size]<=[...]``, or by axes of a mesh, ``mesh['x'=2,'y'=4] {'y'}``."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", text)
    if listed:
        return len(listed[1].split(","))
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text)
    if named:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        return prod(sizes[name] for name in re.findall(r"'([^']+)'", named[2]))
    short = re.search(r"replica_groups=\[\d+,(\d+)\]", text)
    return int(short[1]) if short else 1


def _operation(text: str, names: frozenset[str]) -> str:
    """The innermost known scope that an instruction was traced under."""
    found = re.search(r'op_name="([^"]*)"', text)
    known = [part for part in found[1].split("/") if part in names] if found else []
    return known[-1] if known else OTHER


def _computations(hlo: str) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """Computations of a module with their instructions: name, type, opcode, rest of the line."""
    name, found = "", []
    for line in hlo.splitlines():
        opened = _COMPUTATION.match(line)
        if opened:
            name, found = opened[1], []
        elif line.startswith("}"):
            yield name, found
        else:
            instruction = _INSTRUCTION.match(line)
            if instruction:
                found.append((instruction[1], instruction[2], instruction[3], instruction[4]))


def read_hlo(
    hlo: str, names: frozenset[str]
) -> tuple[dict[str, float], dict[str, float], dict[str, float], list[float]]:
    """Matmul FLOP and bytes sent by operation, bytes by kind of collective, of an optimised module; FLOP of products
    that have lost their name on the way.

    Args:
        hlo: its text.
        names: scopes that count as operations.
    """
    computations = dict(_computations(hlo))
    entry = re.search(r"^ENTRY %?([\w.\-]+)", hlo, re.MULTILINE)
    types = {name: kind for body in computations.values() for name, kind, _, _ in body}
    flop: dict[str, float] = defaultdict(float)
    sent: dict[str, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    unnamed: list[float] = []

    def visit(computation: str, times: float, inside: str) -> None:
        for _, kind, opcode, rest in computations.get(computation, ()):
            again = times
            if opcode == "while":
                trips = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
                if trips is None:
                    raise ValueError("a loop whose length the compiler does not know")
                again *= int(trips[1])
            if opcode in ("while", "fusion", "call", "conditional"):
                for called in re.findall(r"(?:body|calls|to_apply|branch_computations)=\{?%?([\w.\-]+)", rest):
                    own = _operation(rest, names)
                    visit(called, again, inside if own == OTHER else own)
            elif opcode == "dot":
                left = re.match(r"(?:\w+\[[^\]]*\]\S* )?%?([\w.\-]+)", rest)
                shape = _shapes(types[left[1]])[0][1]  # type: ignore[index]
                inner = prod(shape[i] for i in _dimensions(rest, "lhs_contracting_dims"))
                work, name = times * 2.0 * prod(_shapes(kind)[0][1]) * inner, _operation(rest, names)
                name = inside if name == OTHER else name
                if name == OTHER:
                    unnamed.append(work)
                else:
                    flop[name] += work
            elif opcode.removesuffix("-start") in _COLLECTIVES:
                base = opcode.removesuffix("-start")
                moved = times * _COLLECTIVES[base](_group(rest)) * _bytes(kind)
                sent[_operation(rest, names)] += moved
                kinds[base] += moved

    visit(entry[1] if entry else "", 1.0, OTHER)
    return dict(flop), dict(sent), dict(kinds), unnamed


def read_traced(jaxpr: Jaxpr, names: frozenset[str], scope: str = "") -> tuple[Counted, Counted, dict[str, set[float]]]:
    """Matmul FLOP by operation of a traced program: of plain and of grouped products; then each plain one's FLOP."""
    plain: dict[str, float] = defaultdict(float)
    grouped: dict[str, float] = defaultdict(float)
    sizes: dict[str, set[float]] = defaultdict(set)

    def visit(jaxpr: Any, scope: str, times: float) -> None:
        for equation in jaxpr.eqns:
            inside = f"{scope}/{equation.source_info.name_stack}"
            known = [part for part in inside.split("/") if part in names]
            name = known[-1] if known else OTHER
            kind = equation.primitive.name
            if kind == "dot_general":
                ((contract, _), _) = equation.params["dimension_numbers"]
                shape = equation.invars[0].aval.shape
                inner = prod(shape[i] for i in contract)
                work = times * 2.0 * prod(equation.outvars[0].aval.shape) * inner
                plain[name] += work
                sizes[name].add(work)
            elif kind.startswith("ragged_dot"):
                rows, inner = equation.invars[0].aval.shape
                grouped[name] += times * 2.0 * rows * inner * equation.outvars[0].aval.shape[-1]
            again = times * equation.params["length"] if kind == "scan" else times
            for inner_jaxpr in jaxprs_in_params(equation.params):
                visit(inner_jaxpr, inside, again)

    visit(jaxpr, scope, 1.0)
    return dict(plain), dict(grouped), dict(sizes)


def read(program: Any, arguments: tuple[Any, ...], names: frozenset[str]) -> tuple[Reading, Any]:
    """Trace, lower and compile a program, read it, and hand it back compiled."""
    import jax

    traced = jax.jit(program).trace(*arguments)
    plain, grouped, sizes = read_traced(traced.jaxpr.jaxpr, names)
    compiled = traced.lower().compile(QUICK)
    text = compiled.as_text() or ""
    flop, sent, kinds, unnamed = read_hlo(text, names)
    # XLA drops the names of products whose batch dimensions it rewrites: they belong where some are missing, first of
    # all where there was a product of that size.
    for work in sorted(unnamed, reverse=True):
        lacking = {name: plain[name] - flop.get(name, 0.0) for name in plain}
        able = [name for name, missing in lacking.items() if missing >= work]
        home = min([name for name in able if work in sizes[name]] or able, key=lacking.__getitem__, default=OTHER)
        flop[home] = flop.get(home, 0.0) + work
    grouped_compiled = {name: flop.pop(name, 0.0) for name in grouped}
    costs: Mapping[str, float] = compiled.cost_analysis() or {}
    loops = "known_trip_count" in text
    dots = sum(flop.values()) + sum(grouped_compiled.values())
    merged = {name: flop.get(name, 0.0) + grouped.get(name, 0.0) for name in flop.keys() | grouped.keys()}
    traced_flop = {name: plain.get(name, 0.0) + grouped.get(name, 0.0) for name in plain.keys() | grouped.keys()}
    return Reading(
        merged, sent, kinds, traced_flop, grouped, grouped_compiled,
        None if loops else max(costs.get("flops", 0.0) - dots, 0.0), None if loops else costs.get("bytes accessed"),
    ), compiled  # fmt: skip
