"""What follows from a table of results, in sentences: for the page, and for docs/frameworks.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from accum_core.conformance.cases import CASES
from accum_core.conformance.frameworks import OWN
from accum_core.conformance.loops import Loops
from accum_core.conformance.results import Row
from accum_core.quantities import number

DECIDES: Final = "unequal_tokens"
SIGNS: Final = {"exact": "✓", "wrong": "✗", "refuses": "⊘", "user's duty": "△"}
"""A sign for each verdict, so that none is told by its colour alone."""
MEANINGS: Final = {
    "exact": "exact: what one large batch gives, to rounding",
    "wrong": "wrong: it ran, and something differs",
    "user's duty": "user's duty: the documented loop differs, and its documentation leaves the mend to the user",
    "refuses": "refuses: it ended with an error instead of a result",
}
TINY: Final = 1e-10


def first_kind(kinds: Collection[str]) -> str:
    """What stands for a framework in short: a module of the user's own where there is one."""
    return OWN if OWN in kinds else next(iter(kinds))


def in_short(rows: Iterable[Row]) -> list[Row]:
    """The rows that stand for their framework: those of its first kind."""
    kinds: dict[str, dict[str, None]] = {}
    rows = list(rows)
    for row in rows:
        kinds.setdefault(row.framework, {})[row.kind] = None
    return [row for row in rows if row.kind == first_kind(kinds[row.framework])]


def cases_of(rows: Iterable[Row]) -> list[str]:
    """The cases that occur, the known ones in their order first."""
    there = dict.fromkeys(row.case for row in rows)
    return [*(case for case in CASES if case in there), *(case for case in there if case not in CASES)]


def frameworks_of(rows: Iterable[Row], loops: Mapping[str, Loops]) -> list[str]:
    """The frameworks that occur, in the order of their files; those without a file last."""
    there = dict.fromkeys(row.framework for row in rows)
    return [*(name for name in loops if name in there), *(name for name in there if name not in loops)]


def title(framework: str, loops: Mapping[str, Loops]) -> str:
    """A framework's name as its makers write it."""
    return loops[framework].title if framework in loops else framework


def kind_title(framework: str, kind: str, loops: Mapping[str, Loops]) -> str:
    """What a kind is, in a few words."""
    known = loops[framework].kinds if framework in loops else {}
    return known.get(kind, kind.replace("_", " "))


def case_title(case: str) -> str:
    """A case in a few words."""
    return CASES[case].title if case in CASES else case.replace("_", " ")


def finding(rows: Sequence[Row], loops: Mapping[str, Loops]) -> str:
    """What the results say of the case that most people meet; "" where nobody was put through it."""
    mine = [row for row in in_short(rows) if row.case == DECIDES]
    if not mine:
        return ""
    exact = [title(row.framework, loops) for row in mine if row.verdict == "exact"]
    duty = [title(row.framework, loops) for row in mine if row.verdict == "user's duty"]
    of = "the one framework here" if len(mine) == 1 else f"{len(mine)} frameworks"
    told = (
        f"Of {of} {len(exact) or 'none'} {'computes' if len(exact) < 2 else 'compute'} the large batch's gradient "
        f"when micro-batches hold unequal numbers of tokens{': ' if exact else ''}{_listed(exact)}."
    )
    if duty:
        told += f" {_listed(duty)} {'leaves' if len(duty) == 1 else 'leave'} the division to the user's own code."
    return told


def everywhere(rows: Sequence[Row], loops: Mapping[str, Loops]) -> str:
    """Who is exact in every case."""
    by_framework: dict[str, list[Row]] = {}
    for row in in_short(rows):
        by_framework.setdefault(row.framework, []).append(row)
    most = max((len(mine) for mine in by_framework.values()), default=0)
    exact = [
        title(framework, loops)
        for framework, mine in by_framework.items()
        if len(mine) == most and all(row.verdict == "exact" for row in mine)
    ]
    cases = f"all {most} cases" if most > 1 else "the one case"
    return f"Exact in {cases}: {_listed(exact) or 'none'}."


def tally(rows: Sequence[Row]) -> str:
    """How many trials had which verdict."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in SIGNS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    trials = f"{len(rows)} {'trial' if len(rows) == 1 else 'trials'}"
    return f"{trials}: {told}." if told else f"{trials}."


def error(value: float | None) -> str:
    """A gradient error in two digits; a dash where none was measured."""
    if value is None:
        return "–"
    return f"{value:.2g}" if 1e-3 <= value < 100 else number(value)


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
