"""Putting the page together: template, style, script, drawing library and data in one file, written atomically."""

from collections import Counter
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from codesign.files import write_text
from codesign.glossary import ENTRIES
from codesign.report.charts import Figure, figures
from codesign.report.charts.base import config
from codesign.report.data import Tables, tables
from codesign.report.headline import headlines, precision_words
from codesign.report.pack import compress, pack_table
from codesign.report.style import context_words, parts_of, words
from codesign.report.summary import Case, Json, cases, items, part, read_summary
from codesign.report.tables import ALL, cells, shown
from codesign.report.words import KINDS, NOT_MODELLED, basis, milliseconds, quantity

#: Parts of the catalog that are switched on when the page opens; all optima are.
FIRST_SHOWN = 8

#: Findings that stand open; the others are a click away.
FIRST_FINDINGS = 5


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` in the run folder; see `codesign.report.write_report`."""
    path = run_dir / "report.html"
    write_text(path, page(read_summary(run_dir)))
    return path


def first_shown(rows: Tables) -> list[str]:
    """Labels of the parts that are drawn at first: every optimum, and the best parts of the catalog at any target."""
    best: dict[str, int] = {}
    for r in rows["answers"]:
        if not r["optimum"] and r["value"]:
            label, rank = str(r["label"]), int(str(r["rank"]))
            best[label] = min(rank, best.get(label, rank))
    chosen = sorted(best, key=lambda label: best[label])[:FIRST_SHOWN]
    named = [str(r["label"]) for r in rows["answers"] if r["optimum"] or r["label"] in chosen]
    return list(dict.fromkeys(named + [str(r["label"]) for r in rows["frontier"] if r["label"] in chosen]))


def defaults(summary: Json, rows: Tables) -> dict[str, Any]:
    """What the page shows first: the first case, its middle target with an answer, and the best part there."""
    found = cases(summary)
    case = found[0] if found else Case(0.0, "")
    return choice(rows, case) | {"shown": first_shown(rows), "narrow": False} | setting(rows)


def setting(rows: Tables) -> dict[str, Any]:
    """The machine and setting whose sensitivities are shown first."""
    first = rows["sensitivity"][0] if rows["sensitivity"] else {"arch": "", "setting": ""}
    return {"chosen_arch": first["arch"], "chosen_setting": first["setting"]}


def choice(rows: Tables, case: Case) -> dict[str, Any]:
    """Problem and part to show for a case: the middle of the targets that are met, and the best design there."""
    problems = list(dict.fromkeys(r["problem"] for r in rows["answers"] if r["case"] == case.key))
    solved = [p for p in problems if any(r["value"] for r in rows["answers"] if r["problem"] == p)] or problems
    problem = solved[len(solved) // 2] if solved else ""
    served = [r for r in rows["answers"] if r["problem"] == problem and r["value"]]
    best = next((r["part"] for r in sorted(served, key=lambda r: not r["optimum"])), "")
    return {"chosen_case": case.key, "chosen_problem": problem, "chosen_part": best}


def _figure(figure: Figure, summary: Json) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "columns": figure.columns,
        "scope": figure.scope,
        "basis": basis(summary, figure.basis),
        "tables": figure.tables(),
        "panels": list(figure.panels),
    }


def page(summary: Json) -> str:
    """The whole page as text."""
    import jinja2

    rows = tables(summary)
    made = {name: _figure(f, summary) for name, f in figures(summary, rows).items()}
    state = defaults(summary, rows)
    views = {t.name: shown(t, rows[t.name]) for t in ALL}
    scoped = {name: t for name, t in views.items() if t.scope}
    document = {
        "figures": made,
        "config": config(),
        "state": state,
        "tables": {name: pack_table(table) for name, table in rows.items()},
        "views": {
            n: {"columns": [vars(c) for c in t.columns], "scope": t.scope, "title": t.title} for n, t in scoped.items()
        },
    }
    files = resources.files("codesign.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files.joinpath("template.html.j2").read_text(encoding="utf-8"))
    return template.render(
        summary=summary,
        title=summary.get("title") or summary.get("name") or "codesign",
        basis=basis(summary),
        figures=made,
        cases=[{"key": c.key, "context": c.context, "precision": c.precision} for c in cases(summary)],
        contexts=[(f"{c:.0f}", context_words(c)) for c in dict.fromkeys(c.context for c in cases(summary))],
        precisions=[(p, precision_words(summary, p)) for p in dict.fromkeys(c.precision for c in cases(summary))],
        targets=_targets(summary),
        archs=list({str(r["arch"]): str(r["label"]) for r in rows["sensitivity"]}.items()),
        settings=list(dict.fromkeys(str(r["setting"]) for r in rows["sensitivity"])),
        parts=parts_of(summary),
        state=state,
        headlines=headlines(summary, [dict(r) for r in rows["matrix"]]),
        tables=views,
        cells={name: cells(t, rows[name]) for name, t in views.items() if not t.scope},
        kinds=KINDS,
        rests_on={k: list(Counter(map(str, v)).items()) for k, v in part(summary, "rests_on").items() if v},
        calibrated=bool(part(summary, "execution").get("calibrated")),
        findings=[str(x) for x in items(summary, "findings")],
        first_findings=FIRST_FINDINGS,
        warnings=[str(x) for x in items(summary, "warnings")],
        budgets=[
            (
                words(str(b.get("name"))),
                quantity(b["limit"], b.get("unit") or "1", 4) if b.get("limit") else "by technology",
                b.get("note") or "",
            )
            for b in items(summary, "budgets")
        ],
        not_modelled=NOT_MODELLED,
        glossary=ENTRIES,
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        script=files.joinpath("page.js").read_text(encoding="utf-8"),
        library=library(),
        data=compress(document),
    )


def _targets(summary: Json) -> list[tuple[str, str]]:
    targets = sorted({float(p["target_s"]) for p in items(summary, "problems")})
    return [(f"{t:g}", milliseconds(t)) for t in targets]


@cache
def library() -> str:
    """The drawing library (Vega, Vega-Lite, Vega-Embed) as one script, which cannot end the element that holds it."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
