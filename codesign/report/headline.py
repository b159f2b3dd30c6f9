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

    Figures are (title, value, remark) and facts (title, words).  Both are of the best answer, which may be a part of
    the catalog; what the search found stands beside it then.
    """
    units = {v["name"]: v.get("unit") or "1" for v in items(summary, "variables")}
    found = []
    for problem, row in zip(problems(summary), matrix, strict=True):
        entries = dict(candidates(problem))
        found.append(
            {
                "key": problem_key(problem),
                "case": case_of(problem).key,
                "where": f"TPOT ≤ {milliseconds(problem['target_s'])}, {context_words(problem['context'])} tokens of "
                f"context, "
                f"{problem['precision']} weights",
                "sentence": _sentence(row),
                "figures": _figures(row, entries.get(row["best_part"])),
                "facts": _facts(row, entries, units),
                "note": problem.get("note") or "",
            }
        )
    return found


def _rate(value: Any) -> str:
    return f"{plain(value)} tokens/s per MW"


def _share(value: float, whole: float) -> str:
    return f"{plain(value)} ({percent(value / whole, 0)} of it)"


def _sentence(row: dict[str, Any]) -> str:
    if not row["best"]:
        text = "Nothing meets this target: no searched design, and none of the study's parts"
        return text + (
            f". The least TPOT of all is {milliseconds(row['least_tpot'] / 1e3)}, by {row['least_label']}."
            if row["least_tpot"]
            else "."
        )
    if not row["design"]:
        text = f"No searched design meets this target; {row['best']}, {_a(row['best_kind'])} of the catalog, serves "
        text += _rate(row["best_value"])
        rival = row["machine"] if row["best"] != row["machine"] else None
        if rival:
            text += f". The best part that exists or is announced, {rival}, serves {plain(row['machine_value'])}"
        elif not row["machine"]:
            text += "; no part that exists or is announced meets it either"
        return text + _overdraws(row) + "."
    if row["best_kind"] == "searched design":
        return f"A searched {row['design']} design serves the most: {_rate(row['value'])}{_against(row)}{_next(row)}."
    text = f"The best answer is {_a(row['best_kind'])} of the catalog, {row['best']}: {_rate(row['best_value'])}"
    text += _overdraws(row)
    text += f". The best searched design, {row['design']}, serves {_share(row['value'], row['best_value'])}"
    return text + (_against(row) if row["best"] != row["machine"] else "") + "."


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _against(row: dict[str, Any]) -> str:
    """The searched design against the best part that exists or is announced."""
    if not row["gain"]:
        return "; no part that exists or is announced meets this target"
    than = f"{times(row['gain'])} the best part that exists or is announced, {row['machine']} "
    return f"{', ' if row['gain'] >= 1 else ', which is only '}{than}({plain(row['machine_value'])})"


def _next(row: dict[str, Any]) -> str:
    """What follows the best design: of all answers, and of the searched technologies where that is another one."""
    if not row["second"]:
        return ""
    if row["second_kind"] == "searched design":
        return f". Next comes the {row['second']}, at {_share(row['second_value'], row['value'])}"
    text = ""
    if row["second"] != row["machine"]:
        text += f". Next comes a part of the catalog, {row['second']} ({row['second_kind'].partition(' ')[0]}), at "
        text += _share(row["second_value"], row["value"])
    if row["runner_up"]:
        text += f"{'; the' if text else '. The'} next searched technology is {row['runner_up']}, at "
        text += _share(row["runner_up_value"], row["value"])
    return text


def _overdraws(row: dict[str, Any]) -> str:
    """Which budgets of the search the hypothetical part would break, where it is the best answer and that is known."""
    if row["best"] != row["supposed"] or not row["supposed_overdraws"]:
        return ""
    return f"; as a design it would overdraw {row['supposed_overdraws']}"


def _figures(row: dict[str, Any], entry: Json | None) -> list[tuple[str, str, str]]:
    if entry is None:
        return []
    searched = row["best_kind"] == "searched design"
    made = built(entry) if searched else entry
    loss = number(part(entry, "rounded").get("loss"))
    kind = f"buildable; rounding costs {percent(loss)}" if loss is not None else "before rounding"
    kind = kind if searched else row["best_kind"]
    spread = f"range {row['best_range']}" if row["best_range"] else kind
    throttled = "throttled by its power limit" if part(made, "metrics").get("throttled") else "below its power limit"
    against = row["best_value"] / row["machine_value"] if row["machine_value"] else None
    beside = ("against existing parts", times(against), _other(row))
    if row["best"] == row["machine"]:
        beside = (
            "best searched design",
            plain(row["value"]),
            f"{row['design'] or 'none'}, {times(row['gain'])} that part",
        )
    return [
        ("tokens/s per MW", plain(row["best_value"]), spread),
        beside,
        (
            "tokens/s per user",
            plain(metric(made, "tokens_per_s_per_user")),
            f"TPOT {milliseconds(metric(made, 'tpot_s'))}",
        ),
        (
            "tokens/s per chip",
            plain(metric(made, "tokens_per_s_per_chip")),
            kind if spread != kind else "output tokens",
        ),
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


def _facts(row: dict[str, Any], entries: dict[str, Json], units: dict[str, str]) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if row["best"]:
        facts.append(("Limited by", row["limited_by"] or "–"))
    design = entries.get(row["part"])
    best = entries.get(row["best_part"])
    if best is not None and best is not design:
        facts.append(("Mapping", _mapping(best)))
    if design is not None:
        made = built(design)
        mix = [f"{words(k)} {quantity(v, units.get(k, '1'))}" for k, v in part(made, "variables").items()]
        own = "" if best is design else "Design’s "
        if own and made is not design:
            before = plain(metric(design, "tokens_per_s_per_megawatt"))
            facts.append((f"{own}tokens/s/MW", f"{plain(row['value'])} as built, {before} before rounding"))
        facts += [
            (_title(own, "binding budgets"), row["active"] or "none"),
            (_title(own, "mix, per chip"), ", ".join(mix)),
            (_title(own, "mapping"), _mapping(made)),
        ]
    return [(title, text) for title, text in facts if text]


def _title(owner: str, text: str) -> str:
    return owner + text if owner else text[:1].upper() + text[1:]


def _mapping(entry: Json) -> str:
    batch = number(part(entry, "request").get("batch"))
    return mapping_words(part(entry, "mapping")) + (f"; batch {plain(batch)} per instance" if batch else "")


def precision_words(summary: Json, name: str) -> str:
    """What a study's precision stands for: ``fp8 (weights FP8, KV FP8, attention BF16)``."""
    found = next((p for p in items(summary, "precisions") if p["name"] == name), {})
    parts = [f"{k} {str(v).upper()}" for k, v in found.items() if k != "name" and isinstance(v, str)]
    return f"{name} ({', '.join(parts)})" if parts else pretty(name)
