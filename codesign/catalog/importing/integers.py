"""Weight-only integers as GPTQ and AWQ tell them: ``bits``, ``group_size``, and whether groups have zero points.

A group of g weights has a 16-bit scale, so a weight takes b + 16/g bits, and b + (16 + b)/g where a zero point of b
bits stands beside it: AWQ's ``zero_point``, GPTQ's without ``sym``.  The zero points that symmetric GPTQ checkpoints
carry all the same are constants that no kernel reads, and the order of ``desc_act`` is 32 bits per row: neither is
counted.  A group of -1 is a column: one scale per output channel, not counted either, as for FP8.

Both methods quantise the matrices of decoder layers.  Routers and embeddings stay wide, and so does the output head
unless ``lm_head`` says otherwise.  Activations stay wide.  Names of modules are read as whole parts: ``gate`` is the
router and no ``gate_proj``.

Sources: Frantar et al., GPTQ, 2023; Lin et al., AWQ, 2024; the layouts of AutoGPTQ, GPTQModel and AutoAWQ.
"""

import re
from collections.abc import Mapping
from typing import Any

from codesign.catalog.importing.config import Config
from codesign.catalog.importing.names import ALWAYS_WIDE, LEFT_OUT, Names
from codesign.catalog.importing.rules import GROUPED, ZEROED, Rules, Scheme, names_of, stored, table_of
from codesign.catalog.messages import told
from codesign.catalog.names import printable

#: ``quant_method`` of the dialects: keys of bits and group, and the key of the flag about zero points.
INTEGERS = {
    "gptq": (("bits",), ("group_size",), "sym"),
    "awq": (("bits", "w_bit"), ("group_size", "q_group_size"), "zero_point"),
}

#: Bits that each method has kernels for.
BITS = {"gptq": (4, 8), "awq": (4,)}


def integers(c: Config, q: Mapping[str, Any], key: str, wide: Names | None, cache: str | None) -> Rules:
    """Read the settings of GPTQ or AWQ.

    Args:
        c: the configuration, for errors.
        q: the settings.
        key: where they stand.
        wide: modules that they name as not quantised.
        cache: dtype of the cache that the checkpoint was calibrated for.

    Raises:
        CodesignError: bits, a group or a flag that is missing or has no meaning.
    """
    scheme = _scheme(c, q, key)
    head = _flag(c, q, "lm_head", key) if q.get("lm_head") is not None else False
    rules = Rules(scheme, None, wide, head=head, cache=cache)
    if q["quant_method"] == "gptq":
        _listed(c, q, key, rules)
        _dynamic(c, q, key, rules)
    return rules


def _flag(c: Config, q: Mapping[str, Any], name: str, key: str) -> bool:
    value = q.get(name)
    if value is None:
        raise c.error("is missing", f"{key}.{name}", "true or false")
    if not isinstance(value, bool):
        raise c.error(f"{told(value)} is of the wrong type", f"{key}.{name}", "true or false")
    return value


def _number(c: Config, q: Mapping[str, Any], names: tuple[str, ...], key: str, allowed: str) -> tuple[int, str]:
    """A whole number under the first of its names that is given, and its key."""
    name = next((n for n in names if q.get(n) is not None), None)
    if name is None:
        beside = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise c.error(f"is missing{beside}", f"{key}.{names[0]}", allowed)
    if isinstance(q[name], bool) or not isinstance(q[name], int):
        raise c.error(f"{told(q[name])} is of the wrong type", f"{key}.{name}", allowed)
    return q[name], f"{key}.{name}"


def _scheme(c: Config, q: Mapping[str, Any], key: str) -> Scheme:
    """Storage of the modules that a table of settings speaks of."""
    method = q["quant_method"]
    bits_keys, group_keys, flag = INTEGERS[method]
    told_bits = " or ".join(map(str, BITS[method]))
    bits, where = _number(c, q, bits_keys, key, told_bits)
    if bits not in BITS[method]:
        raise c.error(f"no {method} of {told(bits)} bits", where, told_bits)
    zeros = _flag(c, q, flag, key) == (flag == "zero_point")
    known = [g for kind, b, g in (ZEROED if zeros else GROUPED) if (kind, b) == ("int", bits)]
    told_groups = ", ".join(str(g or -1) for g in known)
    group, where = _number(c, q, group_keys, key, told_groups)
    found = stored("int", bits, 0 if group == -1 else group, zeros) if group else None
    if found is None:
        points = " with zero points" if zeros else ""
        raise c.error(f"unknown storage: {bits} bits in groups of {told(group)}{points}", where, told_groups)
    return Scheme(found, None)


def _listed(c: Config, q: Mapping[str, Any], key: str, rules: Rules) -> None:
    """``modules_in_block_to_quantize``: names, or lists of them, without which a module of a layer stays wide."""
    where = f"{key}.modules_in_block_to_quantize"
    given = q.get("modules_in_block_to_quantize")
    if not given and given in (None, []):
        return
    lists = given if isinstance(given, list) else [given]
    flat = [name for one in lists for name in (one if isinstance(one, list) else [one])]
    rules.named = Names(c, where, LEFT_OUT)
    for i, name in enumerate(names_of(c, flat if isinstance(given, list) else given, where)):
        rules.named.add(name, rules.general, f"{where}.{i}")
    if rules.head:
        rules.named.add("lm_head", rules.general, f"{key}.lm_head")
    rules.general = None


def _dynamic(c: Config, q: Mapping[str, Any], key: str, rules: Rules) -> None:
    """``dynamic``: settings by regular expression; ``-:`` before one leaves its modules wide.

    The first expression that takes a module decides, in the order of the table, as vLLM and SGLang read it.
    """
    where = f"{key}.dynamic"
    table = q.get("dynamic")
    if table is None or table == {}:
        return
    listed, known = rules.named is not None, re.compile(f"{LEFT_OUT.pattern}|{ALWAYS_WIDE.pattern}")
    rules.wide, rules.ordered = rules.wide or Names(c, where, known), Names(c, where, known, ordered=True)
    for pattern, entry in table_of(c, table, where).items():
        at, text = f"{where}.{printable(pattern, 80)}", pattern.removeprefix("+:")
        if pattern.startswith("-:"):
            rules.ordered.add(f"re:{pattern[2:]}", False, at)
            continue
        other = {k: v for k, v in table_of(c, entry, at).items() if k in ("bits", "group_size", "sym")}
        scheme = _scheme(c, {**q, **other}, at)
        if listed:
            raise c.error("stands beside modules_in_block_to_quantize", at, "one of the two; -: and an expression")
        rules.ordered.add(f"re:{text}", scheme, at)
    # What these expressions take of routers and the head is not quantised all the same.
    rules.wide.add(r"re:.*\.(gate|router)$", True, where)
    if not rules.head:
        rules.wide.add("lm_head", True, where)
