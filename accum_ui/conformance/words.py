"""What the page of frameworks says. Pure: no Streamlit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Final

from accum_core import palette
from accum_core.conformance import findings
from accum_core.conformance.cases import CASES
from accum_core.conformance.loops import Loops
from accum_core.conformance.results import Results, Row
from accum_core.palette import Shade
from accum_core.quantities import number
from accum_core.reduction import ReductionKind
from accum_ui.conformance.job import Look

TITLE: Final = "Does your framework compute the large batch's gradient?"
NUMBER: Final = (
    "A number is the gradient error: how far what the training did to the weights is from what one large batch does, "
    "as a part of the latter."
)
INSTALL: Final = "pip install -r requirements-frameworks.txt"
INTERRUPTED: Final = "Interrupted."
"""The command's last word when it was stopped."""
COMMAND: Final = "python -m experiments conformance"

_OF_REDUCTIONS: Final[dict[str, ReductionKind]] = {
    "exact": "exact",
    "wrong": "mean_of_means",
    "duty": "sum_of_means",
    "refuses": "sum",
}
"""The colours of the reductions, which stay apart for most eyes; a sign stands beside each all the same."""
COLORS: Final[dict[str, Shade]] = {
    **{name: palette.REDUCTION_COLORS[kind] for name, kind in _OF_REDUCTIONS.items()},
    "other": palette.MUTED,
}


def css_class(verdict: str) -> str:
    """A verdict as a class of the style sheet."""
    name = "duty" if verdict == "user's duty" else verdict
    return name if name in COLORS else "other"


def sign(verdict: str) -> str:
    """A verdict's sign."""
    return findings.SIGNS.get(verdict, "?")


def in_cell(row: Row) -> str:
    """The number in a cell of the matrix; "" where it is rounding, or none."""
    if row.verdict == "exact" or row.gradient_error is None or row.gradient_error < findings.TINY:
        return ""
    return findings.error(row.gradient_error)


def aloud(row: Row) -> str:
    """A cell as a screen reader and a tooltip have it."""
    told = in_cell(row)
    return f"{row.verdict}, gradient error {told}" if told else str(row.verdict)


def formula(row: Row) -> str:
    """What was computed, in words."""
    return row.formula or ("–" if row.verdict == "refuses" else "none of the known formulas")


def title(framework: str, loops: Mapping[str, Loops]) -> str:
    """The page's question, of one framework or ("") of the reader's."""
    return TITLE.replace("your framework", findings.title(framework, loops)) if framework else TITLE


def framework_line(rows: Iterable[Row], framework: str, loops: Mapping[str, Loops]) -> str:
    """What the results say of one framework, and how its table is read."""
    mine = [row for row in rows if row.framework == framework]
    exact = sum(row.verdict == "exact" for row in mine)
    kinds = len(dict.fromkeys(row.kind for row in mine))
    find = "Find the row that is your training, and open a cell" if kinds > 1 else "Open a cell"
    told = f"{findings.title(framework, loops)}, {version(mine[0])}: {exact} of {len(mine)} trials are exact."
    return f"{told} {find} to see why, and what to change."


def same_line(row: Row) -> str:
    """What else gives the same on the case's data; "" where nothing does."""
    rest = (row.formula or "").partition("; ")[2]
    told = [name.partition("; ")[0] if rest and name.partition("; ")[2] == rest else name for name in row.same_here]
    return f"The same on this case's data: {', or '.join(told)}." if told else ""


def case_line(case: str) -> str:
    """What a case asks, and what is right; "" for one that this version does not know."""
    return f"{CASES[case].question} Right is {CASES[case].right}." if case in CASES else ""


def verdict_line(row: Row) -> str:
    """An opened cell's answer in a sentence."""
    answers = {
        "exact": "Yes: it does what one large batch does.",
        "wrong": "No.",
        "user's duty": "Not as documented: it leaves this to the user's own code.",
        "refuses": "It gave no answer: it ended with an error.",
    }
    error = f" The gradient error is {findings.error(row.gradient_error)}." if in_cell(row) else ""
    return f"{sign(row.verdict)} {answers.get(row.verdict, row.verdict)}{error}"


def version(row: Row) -> str:
    """What was installed, or for a recipe what was read."""
    return row.version if " " in row.version else f"version {row.version}"


def facts(row: Row) -> list[tuple[str, str, str]]:
    """What was measured and what is right: (name, what it has, what a right loop has)."""
    right = row.right
    told = [
        ("gradient error", findings.error(row.gradient_error), "0"),
        ("updates", _count(row.updates), "–" if right is None else _count(right.updates)),
        ("final learning rate", _rate(row.final_lr), "–" if right is None else _rate(right.final_lr)),
    ]
    if row.logged or row.case == "logged_loss":
        told.append(("logged losses", _losses(row.logged), "–" if right is None else _losses(right.logged)))
    return told


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _rate(value: float | None) -> str:
    return "–" if value is None else number(value, 3)


def _losses(values: Sequence[float | None]) -> str:
    return ", ".join("–" if value is None else f"{value:.4f}" for value in values) or "none"


def setting_line(row: Row) -> str:
    """The numbers of the case."""
    if row.case not in CASES:
        return ""
    settings = CASES[row.case].settings
    parts = [f"micro-batches of {settings.micro_batch_size}", f"N = {settings.accumulation_steps}"]
    parts += [f"{settings.epochs} epochs"] if settings.epochs > 1 else []
    parts += [f"{settings.world_size} ranks"] if settings.world_size > 1 else []
    parts += ["AdamW" if settings.optimizer == "adamw" else "plain SGD", f"learning rate {settings.learning_rate:g}"]
    parts += [f"times {settings.gamma:g} an update"] if settings.gamma else []
    parts += [f"weight decay {settings.weight_decay:g}"] if settings.weight_decay else []
    parts += [f"clipped to {settings.clip_norm:g}"] if settings.clip_norm else []
    parts += ["bfloat16 autocast" if settings.precision == "bfloat16" else "float64"]
    parts += ["a loader without a length"] if not settings.sized else []
    parts += [f"interrupted after micro-batch {settings.stop_after}"] if settings.stop_after else []
    return ", ".join(parts)


def origin_line(results: Results, *, here: bool) -> str:
    """Where the results come from."""
    environment = results.environment
    whose = "Run on this machine" if here else "Committed results"
    return (
        f"{whose}, {day(environment.date)}, {environment.processor}, Python {environment.python}, torch "
        f"{environment.torch}. {findings.tally(results.results)}"
    )


def others_line(others: Mapping[str, tuple[str, str]], loops: Mapping[str, Loops]) -> str:
    """That the results are of other versions than those installed; "" where they are of the same."""
    told = [
        f"{findings.title(name, loops)} {of}, and you have {present}"
        for name, (of, present) in others.items()
        if present
    ]
    return f"These are results for {'; for '.join(told)}: run it for yours below." if told else ""


def missing_line(others: Mapping[str, tuple[str, str]], loops: Mapping[str, Loops]) -> str:
    """Which frameworks are not installed, and how they are; "" where all are."""
    told = [findings.title(name, loops) for name, (_, present) in others.items() if not present]
    if not told:
        return ""
    return (
        f"Not installed here: {', '.join(told)}. What the committed results say of them is shown all the same; to run "
        f"them yourself, `{INSTALL}` installs them."
    )


def run_button(rows: Iterable[Row], framework: str, loops: Mapping[str, Loops]) -> str:
    """The button's words, with the number of trials where it is known.

    Args:
        rows: of an earlier run.
        framework: the one to run; "" for all.
    """
    what = f"Run {findings.title(framework, loops)}" if framework else "Run all frameworks"
    trials = sum(framework in ("", row.framework) for row in rows)
    return f"{what}: {trials} {'trial' if trials == 1 else 'trials'}" if trials else what


def progress_line(look: Look) -> str:
    """The line beside the progress bar."""
    if not look.total:
        return "Starting: the frameworks are being imported."
    return f"{look.done} of {look.total} trials done" + (f" · about {look.left} left" if look.left else "")


def ended_line(look: Look) -> str:
    """What became of a run that left no result."""
    if look.told == INTERRUPTED:
        return "The last run was stopped before its end, and left no results."
    last = f" Its last line: {look.told}" if look.told else ""
    return f"The last run ended without a result.{last}"


def done_line(look: Look, loops: Mapping[str, Loops]) -> str:
    """That the last run has a result."""
    what = findings.title(look.framework, loops) if look.framework else "all frameworks"
    return f"The last run here, of {what}, begun on {day(str(date.fromtimestamp(look.started)))}, has its results."


def day(when: str) -> str:
    """A date for people."""
    try:
        return f"{date.fromisoformat(when[:10]):%-d %B %Y}"
    except ValueError:
        return when


def to_csv(rows: Sequence[Row]) -> str:
    """The results as a table, one row a trial."""
    first, apart = ["framework", "version", "kind", "case"], ("right", "logged", "same_here")
    names = [*first, *(name for name in Row.model_fields if name not in (*first, *apart))]
    told = io.StringIO()
    lines = csv.writer(told, lineterminator="\n")
    lines.writerow(names)
    lines.writerows([getattr(row, name) for name in names] for row in rows)
    return told.getvalue()
