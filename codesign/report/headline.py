"""The answer box: for each problem one sentence, a few figures, and what binds."""

from typing import Any

from codesign.report.style import context_words, pretty, words
from codesign.report.summary import Json, built, candidates, case_of, items, metric, number, part, problem_key, problems
from codesign.report.words import mapping_words, milliseconds, percent, plain, quantity, times


def headlines(summary: Json, matrix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answer per problem: ``key``, ``case``, ``target`` (words), ``sentence``, ``figures``, ``facts``, ``note``.

    Args:
        summary: of a study.
        matrix: rows of `codesign.report.data.answers.matrix`.

    Figures are (title, value, remark) and facts (title, words).
    """
    units = {v["name"]: v.get("unit") or "1" for v in items(summary, "variables")}
    found = []
    for problem, row in zip(problems(summary), matrix, strict=True):
        entry = next((e for k, e in candidates(problem) if k == row["part"]), None)
        found.append(
            {
                "key": problem_key(problem),
                "case": case_of(problem).key,
                "where": f"TPOT ≤ {milliseconds(problem['target_s'])}, {context_words(problem['context'])} tokens of "
                f"context, "
                f"{problem['precision']} weights",
                "sentence": _sentence(row),
                "figures": _figures(row, entry),
                "facts": _facts(row, entry, units),
                "note": problem.get("note") or "",
            }
        )
    return found


def _sentence(row: dict[str, Any]) -> str:
    if not row["design"]:
        rival, value = (
            (row["machine"], row["machine_value"]) if row["machine"] else (row["supposed"], row["supposed_value"])
        )
        if rival:
            return f"No design within the budgets meets this target; {rival} does, at {plain(value)} tokens/s per MW."
        return "Neither a design within the budgets nor a part of the catalog meets this target."
    text = f"{row['design']} serves the most: {plain(row['value'])} tokens/s per MW"
    if row["gain"]:
        rival = f"{row['machine']} ({plain(row['machine_value'])})"
        than = f"{times(row['gain'])} the best part that exists or is announced, {rival}"
        text += f", {than}" if row["gain"] >= 1 else f", which is only {than}"
    else:
        text += "; no part that exists or is announced meets this target"
    if row["runner_up"]:
        text += f". Next comes {row['runner_up']}, at {percent(row['runner_up_of_best'], 0)} of it"
    if row["supposed_value"] and row["supposed_value"] > row["value"]:
        text += (
            f". A hypothetical part of the catalog, {row['supposed']}, stands above it at "
            f"{plain(row['supposed_value'])}: "
            "see the comparison by memory technology"
        )
    return text + "."


def _figures(row: dict[str, Any], entry: Json | None) -> list[tuple[str, str, str]]:
    if entry is None:
        return []
    made = built(entry)
    spread = f"range {row['range']}" if row["range"] else "no range computed"
    loss = number(part(entry, "rounded").get("loss"))
    kind = f"buildable; rounding costs {percent(loss)}" if loss is not None else "before rounding"
    throttled = "throttled by its power limit" if part(made, "metrics").get("throttled") else "below its power limit"
    return [
        ("tokens/s per MW", plain(row["value"]), spread),
        ("against existing parts", times(row["gain"]), _other(row)),
        (
            "tokens/s per user",
            plain(metric(made, "tokens_per_s_per_user")),
            f"TPOT {milliseconds(metric(made, 'tpot_s'))}",
        ),
        ("tokens/s per chip", plain(metric(made, "tokens_per_s_per_chip")), kind),
        ("$ per million tokens", plain(metric(made, "dollars_per_million_tokens")), "cost of owning the chips"),
        ("energy per token", quantity(metric(made, "energy_per_token_j"), "J"), "all-in, as drawn"),
        (
            "power per chip",
            quantity(metric(made, "board_power_w"), "W"),
            f"{quantity(metric(made, 'provisioned_power_w'), 'W')} provisioned; {throttled}",
        ),
    ]


def _other(row: dict[str, Any]) -> str:
    """The part compared with, and what to know of it."""
    if not row["machine"]:
        return "none feasible"
    rests = f"; rests on {row['machine_kinds']}" if row["machine_kinds"] else ""
    return f"{row['machine']}, {row['machine_status']}{rests}"


def _facts(row: dict[str, Any], entry: Json | None, units: dict[str, str]) -> list[tuple[str, str]]:
    if entry is None:
        return []
    made = built(entry)
    batch = number(part(made, "request").get("batch"))
    mix = [f"{words(k)} {quantity(v, units.get(k, '1'))}" for k, v in part(made, "variables").items()]
    facts = [
        ("Limited by", row["limited_by"] or "–"),
        ("Binding budgets", row["active"] or "none"),
        ("Mix, per chip", ", ".join(mix)),
        ("Mapping", mapping_words(part(made, "mapping")) + (f"; batch {plain(batch)} per instance" if batch else "")),
    ]
    return [(title, text) for title, text in facts if text]


def precision_words(summary: Json, name: str) -> str:
    """What a study's precision stands for: ``fp8 (weights FP8, KV FP8, attention BF16)``."""
    found = next((p for p in items(summary, "precisions") if p["name"] == name), {})
    parts = [f"{k} {str(v).upper()}" for k, v in found.items() if k != "name" and isinstance(v, str)]
    return f"{name} ({', '.join(parts)})" if parts else pretty(name)
