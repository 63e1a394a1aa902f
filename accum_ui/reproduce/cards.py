"""All papers as cards: the claim, the paper's figure in short, our verdicts, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import streamlit as st

from accum_core import palette
from accum_core.claims import Verdict
from accum_core.errors import LabError
from accum_core.experiment import Experiment
from accum_core.result_file import ResultHeader
from accum_ui.lab import literal
from accum_ui.reproduce import reading, words
from accum_ui.reproduce.choice import Choice, address
from experiments import discover
from experiments.report.words import seeds_listed

COLUMNS: Final = 2


def show(dark: bool) -> None:
    """The cards, a link to each."""
    experiments = list(discover().values())
    for row in [experiments[place : place + COLUMNS] for place in range(0, len(experiments), COLUMNS)]:
        for column, experiment in zip(st.columns(COLUMNS, gap="small"), row, strict=False):
            with column.container(border=True, key=f"reproduce_card_{experiment.name}", height="stretch"):
                _card(experiment, dark)


def _card(experiment: Experiment, dark: bool) -> None:
    result, problem = None, ""
    try:
        result = reading.header(experiment.name)
    except LabError as error:
        problem = str(error)
    st.html(card(experiment, result, dark=dark))
    if problem:
        st.error(literal(problem), icon=":material/error:")
    st.button(
        "Open" if result is not None else "Open and run it",
        icon=":material/arrow_forward:",
        on_click=go_to,
        args=(Choice(experiment.name),),
        key=f"reproduce_open_{experiment.name}",
    )


def go_to(choice: Choice) -> None:
    """Callback: let this be the page's address, as a step in the browser's history."""
    st.query_params.from_dict(address(choice))


def card(experiment: Experiment, result: ResultHeader | None, *, dark: bool) -> str:
    """A card's text as HTML.

    Args:
        result: the committed one, None where there is none that can be read.
        dark: whether it stands on a dark surface.
    """
    first = experiment.claims[0]
    verdict = next((one for one in result.claims if one.id == first.id), None) if result is not None else None
    parts = [
        f'<p class="paper">{escape(words.paper(experiment))}</p>',
        f"<h3>{escape(experiment.title)}</h3>",
        f'<p class="claim">{escape(first.statement)} {_word(verdict, dark)}</p>',
    ]
    if published := words.theirs(experiment):
        parts.append(f'<p class="theirs">Theirs: {escape(published)}</p>')
    if result is None:
        parts.append(f"<p>No committed result: <code>{escape(words.command(experiment))}</code> computes one.</p>")
    else:
        parts.append(f'<p class="counts">{_counts(result.claims, dark)}</p>')
        environment = result.environment
        parts.append(
            f'<p class="from">{words.day(environment.date)} · seeds {seeds_listed(result.seeds)} · code version '
            f"{escape(environment.code_version)}</p>"
        )
    return f'<div class="paper-card">{"".join(parts)}</div>'


def _word(verdict: Verdict | None, dark: bool) -> str:
    if verdict is None:
        return ""
    return f'<b class="word" style="color: {palette.VERDICT_COLORS[verdict.verdict].on(dark)}">{verdict.verdict}</b>'


def _counts(verdicts: Sequence[Verdict], dark: bool) -> str:
    """How many claims are supported, refuted, inconclusive; each word in its colour."""
    found = [verdict.verdict for verdict in verdicts]
    told = [
        f'<b style="color: {shade.on(dark)}">{found.count(word)} {word}</b>'
        for word, shade in palette.VERDICT_COLORS.items()
        if word in found
    ]
    return f"{len(found)} claim{'s' * (len(found) != 1)}: {', '.join(told)}"
