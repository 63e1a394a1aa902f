"""The tables as HTML: frameworks by cases, all frameworks in one case, and the key to the signs. Pure: no Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from accum_core.conformance import findings
from accum_core.conformance.loops import Loops
from accum_core.conformance.results import Row
from accum_ui.conformance import words
from accum_ui.conformance.choice import Choice, link


def colours(dark: bool) -> str:
    """The verdicts' colours as variables of an element's style."""
    return "; ".join(f"--{name}: {shade.on(dark)}" for name, shade in words.COLORS.items())


def key(rows: Sequence[Row]) -> str:
    """What the signs mean, of those that occur, and what a number beside one is."""
    told = "".join(
        f'<span class="{words.css_class(verdict)}"><b>{sign}</b> {escape(findings.MEANINGS[verdict])}</span>'
        for verdict, sign in findings.SIGNS.items()
        if any(row.verdict == verdict for row in rows)
    )
    return f'<p class="conformance-key">{told}<span>{escape(words.NUMBER)}</span></p>'


def matrix(rows: Sequence[Row], choice: Choice, loops: Mapping[str, Loops], *, opened: Row | None = None) -> str:
    """Frameworks by cases; of one chosen framework all kinds by cases. Each cell is a link that opens it.

    Args:
        opened: the cell that is open, which is marked.
    """
    cases = findings.cases_of(rows)
    head = "".join(
        f'<th scope="col"><a href="{_to(Choice(case=case, results=choice.results))}">'
        f"{escape(findings.case_title(case))}</a></th>"
        for case in cases
    )
    body = []
    for framework in findings.frameworks_of(rows, loops):
        if choice.framework in ("", framework):
            kinds = _kinds(rows, framework)
            shown = kinds if choice.framework else [findings.first_kind(kinds)]
            body += [_line(rows, framework, kind, cases, choice, loops, opened) for kind in shown]
    first = "Kind of module, loader or loss" if choice.framework else "Framework"
    return (
        '<table class="frameworks"><caption>Verdict and gradient error of each framework in each case</caption>'
        f'<thead><tr><th scope="col">{first}</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def _line(
    rows: Sequence[Row],
    framework: str,
    kind: str,
    cases: Sequence[str],
    choice: Choice,
    loops: Mapping[str, Loops],
    opened: Row | None,
) -> str:
    mine = {row.case: row for row in rows if (row.framework, row.kind) == (framework, kind)}
    version = next(iter(mine.values())).version
    if choice.framework:
        head = escape(findings.kind_title(framework, kind, loops))
    else:
        more = len(_kinds(rows, framework)) - 1
        to = _to(Choice(framework, results=choice.results))
        folded = f' · <a href="{to}">{more} more kind{"s" * (more > 1)}</a>' if more else ""
        head = f'<a href="{to}">{escape(findings.title(framework, loops))}</a><small>{escape(version)}{folded}</small>'
    cells = "".join(_cell(mine.get(case), case, choice, opened) for case in cases)
    return f'<tr><th scope="row">{head}</th>{cells}</tr>'


def _cell(row: Row | None, case: str, choice: Choice, opened: Row | None) -> str:
    if row is None:
        return '<td class="none"><span aria-label="not run">·</span></td>'
    to = _to(Choice(row.framework, case, row.kind, choice.results))
    title, told = escape(findings.case_title(case)), words.in_cell(row)
    current = ' aria-current="true"' if row == opened else ""
    return (
        f'<td class="{words.css_class(row.verdict)}"><a href="{to}" data-label="{title}"'
        f' title="{title}: {escape(words.aloud(row))}"{current}><span><b aria-hidden="true">{words.sign(row.verdict)}'
        f'</b><span class="unseen">{title}: {escape(str(row.verdict))}</span> {told}</span></a></td>'
    )


def of_case(rows: Sequence[Row], choice: Choice, loops: Mapping[str, Loops]) -> str:
    """All frameworks and kinds in the chosen case, with what each computed and how it is mended."""
    names = ("Framework", "Verdict", "Gradient error", "What it did, and why", "How to get it right")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = ""
    for framework in findings.frameworks_of(rows, loops):
        for row in rows:
            if (row.framework, row.case) == (framework, choice.case):
                body += _told(row, replace(choice, framework=framework, kind=row.kind), names, loops)
    return f'<table class="case"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _told(row: Row, choice: Choice, names: Sequence[str], loops: Mapping[str, Loops]) -> str:
    kind = findings.kind_title(row.framework, row.kind, loops)
    cells = (
        f"{words.sign(row.verdict)} {escape(str(row.verdict))}",
        findings.error(row.gradient_error),
        escape(f"{row.explanation} {row.remark}".strip()),
        escape(row.mend) + (f" (gradient error {findings.error(row.mended_error)})" if row.mended_verdict else ""),
    )
    told = {"Verdict": f' class="told {words.css_class(row.verdict)}"', "Gradient error": ' class="number"'}
    body = "".join(
        f'<td data-label="{name}"{told.get(name, "")}>{cell}</td>' if cell else "<td></td>"
        for name, cell in zip(names[1:], cells, strict=True)
    )
    return (
        f'<tr><th scope="row"><a href="{_to(choice)}">{escape(findings.title(row.framework, loops))}</a>'
        f"<small>{escape(kind)}, {escape(row.version)}</small></th>{body}</tr>"
    )


def facts(row: Row) -> str:
    """What was measured in one cell, beside what is right."""
    body = "".join(
        f'<tr><th scope="row">{name}</th><td data-label="measured">{escape(has)}</td>'
        f'<td data-label="right">{escape(right)}</td></tr>'
        for name, has, right in words.facts(row)
    )
    return (
        '<table class="case facts-of-cell"><thead><tr><th scope="col"></th><th scope="col">measured</th>'
        f'<th scope="col">right</th></tr></thead><tbody>{body}</tbody></table>'
    )


def _kinds(rows: Sequence[Row], framework: str) -> list[str]:
    return list(dict.fromkeys(row.kind for row in rows if row.framework == framework))


def _to(choice: Choice) -> str:
    return escape(link(choice))
