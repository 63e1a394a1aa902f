"""docs/frameworks.md, written from the results and from the constants of the frameworks' files.

``python -m accum_core.conformance.document`` writes it anew from the committed results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from accum_core.conformance import findings
from accum_core.conformance.cases import CASES
from accum_core.conformance.loops import Loops, all_loops
from accum_core.conformance.results import Results, Row
from accum_core.quantities import number

REPORT: Final = Path(__file__).parents[2] / "docs" / "frameworks.md"
GROUPS: Final = {
    "What divides what": (
        "equal",
        "ragged",
        "unequal_tokens",
        "ignored_pixels",
        "class_weights",
        "empty_micro_batch",
        "logged_loss",
    ),
    "Where a window ends": ("short_window", "iterable", "n_above_epoch", "resume"),
    "What happens once an update": ("clipping", "schedule", "weight_decay"),
    "Number types, ranks and statistics": ("bf16", "two_ranks", "batch_norm"),
}
INTRODUCTION: Final = """\
# What the frameworks do

Written by `python -m experiments conformance --commit-results`, which runs each framework itself, as its documentation
tells users to, through the same cases. The page Frameworks shows the same results, with the loops.

**What is measured.** The gradient error, norm(movement - right movement) / norm(right movement), where the movement is
what the training did to the weights; for one update of plain SGD that is how far its gradient is from that of the whole
window in one batch, in float64. Beside it the number of updates, the last learning rate and, where the case asks for
it, the logged losses. A training is exact if its error is at most 1e-10 in float64 (1e-6 for heads of transformers,
which compute their loss in float32), or at most twice that of one batch under bfloat16 autocast, and all the rest is as
it should be.

**What it computed.** The weights are compared with those of every formula that a loop is known to use; the one that
gives the same to rounding is named.
"""
CLOSE: Final = """\
## How to run it

```
pip install -r requirements-frameworks.txt
python -m experiments conformance
```

The first line installs the frameworks at the versions of these results; without it, what is not installed is left out
and named. `--framework` and `--case` choose, `--json FILE` keeps the results. Each trial is a process of its own with a
time limit, so that one that hangs or crashes is a result too.
"""


def write(results: Results) -> None:
    """Write the document.

    Raises:
        OSError: when the disk is full or the folder cannot be written.
    """
    REPORT.write_text(text(results, all_loops()), encoding="utf-8")


def text(results: Results, loops: Mapping[str, Loops]) -> str:
    """The document."""
    rows = results.results
    environment = results.environment
    lines = [
        INTRODUCTION,
        f"{environment.date}, {environment.processor}, {environment.platform}, Python {environment.python}, "
        f"torch {environment.torch}.",
        "",
        "## In short",
        "",
        f"{findings.finding(rows, loops)} {findings.everywhere(rows, loops)} {findings.tally(rows)}".strip(),
        "",
        *(f"- {sign} {findings.MEANINGS[verdict]}" for verdict, sign in findings.SIGNS.items()),
        "",
        "A number is the gradient error, of a framework with several kinds of module, loader or loss the first's.",
    ]
    for group, cases in _groups(rows).items():
        lines += ["", f"### {group}", "", *_matrix(rows, cases, loops), "", *_questions(cases)]
    for framework in findings.frameworks_of(rows, loops):
        lines += ["", *_framework([row for row in rows if row.framework == framework], loops)]
    if results.missing:
        lines += ["", "## Not run", "", *(f"- {sentence}" for sentence in results.missing.values())]
    return "\n".join([*lines, "", CLOSE])


def _groups(rows: Sequence[Row]) -> dict[str, list[str]]:
    there = dict.fromkeys(row.case for row in rows)
    known = [case for cases in GROUPS.values() for case in cases]
    found = {group: [case for case in cases if case in there] for group, cases in GROUPS.items()}
    found["Other cases"] = [case for case in there if case not in known]
    return {group: cases for group, cases in found.items() if cases}


def _matrix(rows: Sequence[Row], cases: Sequence[str], loops: Mapping[str, Loops]) -> Iterator[str]:
    yield f"| framework | version | {' | '.join(map(findings.case_title, cases))} |"
    yield f"|{'---|' * (len(cases) + 2)}"
    of = {(row.framework, row.case): row for row in findings.in_short(rows)}
    for framework in findings.frameworks_of(rows, loops):
        version = next(row.version for row in rows if row.framework == framework)
        cells = [_cell(of.get((framework, case))) for case in cases]
        yield f"| {_safe(findings.title(framework, loops))} | {_safe(version)} | {' | '.join(cells)} |"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    sign = findings.SIGNS[row.verdict]
    told = "" if row.verdict == "exact" else findings.error(row.gradient_error)
    return f"{sign} {told}".strip()


def _questions(cases: Sequence[str]) -> Iterator[str]:
    for case in cases:
        if case in CASES:
            yield f"- **{CASES[case].title}**: {CASES[case].question} Right is {CASES[case].right}."


def _framework(rows: Sequence[Row], loops: Mapping[str, Loops]) -> Iterator[str]:
    framework = rows[0].framework
    yield f"## {_safe(findings.title(framework, loops))} ({_safe(rows[0].version)})"
    yield ""
    file = loops[framework].file if framework in loops else ""
    name = f"`python -m experiments conformance --framework {framework}`"
    yield f"The loop is [{file}](../{file}). {name} runs it." if file else f"{name} runs it."
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        yield ""
        yield f"### With {_safe(findings.kind_title(framework, kind, loops))}"
        yield ""
        exact = [findings.case_title(row.case) for row in mine if row.verdict == "exact"]
        yield f"Exact: {', '.join(exact) or 'nothing'}."
        remarks = [f"- **{findings.case_title(row.case)}**: {_safe(row.remark)}" for row in mine if row.remark]
        if remarks:
            yield from ("", *remarks)
        others = [row for row in mine if row.verdict != "exact"]
        if others:
            yield from _others(others)
    for defect in loops[framework].defects if framework in loops else ():
        yield from ("", f"### {defect.title}", "", defect.sentence, "", "```python", defect.script.strip(), "```")


def _others(rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield "| case | verdict | gradient error | updates | right | last rate | right | what it computed |"
    yield f"|{'---|' * 8}"
    for row in rows:
        right = row.right
        cells = (
            findings.case_title(row.case),
            f"{findings.SIGNS[row.verdict]} {row.verdict}",
            findings.error(row.gradient_error),
            "–" if row.updates is None else str(row.updates),
            "–" if right is None else str(right.updates),
            "–" if row.final_lr is None else number(row.final_lr, 3),
            "–" if right is None else number(right.final_lr, 3),
            row.formula or "–",
        )
        yield f"| {' | '.join(map(_safe, cells))} |"
    yield ""
    for row in rows:
        mend = f" **To get it right:** {_safe(row.mend)}" if row.mend else ""
        if row.mended_verdict is not None:
            mend += f" Measured with it: {row.mended_verdict}, gradient error {findings.error(row.mended_error)}."
        yield f"- **{findings.case_title(row.case)}**: {_safe(row.explanation)}{mend}"


def _safe(told: str) -> str:
    """Text of a framework in a table or a list of Markdown: no bars, no tags."""
    return told.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    write(Results.read())
