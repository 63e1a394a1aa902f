"""The opened paper: its answer, figures, verdicts with their arithmetic, published numbers, protocol, settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from accum_core.errors import LabError
from accum_core.experiment import Experiment, Published
from accum_ui.lab import literal
from accum_ui.reproduce import cards, reading, run, vary, words
from accum_ui.reproduce.choice import Choice
from experiments.report import drawing, html
from experiments.report.drawing import Chart
from experiments.report.findings import Findings
from experiments.report.settings import compare
from experiments.report.words import answer, provenance

CHART: Final = {"displayModeBar": False}
COLUMNS: Final = 2


def show(experiment: Experiment, choice: Choice, *, dark: bool) -> None:
    """Everything of one experiment; a damaged result is told in a sentence, and the rest stands without it."""
    st.button("All papers", icon=":material/arrow_back:", on_click=cards.go_to, args=(Choice(),), key="reproduce_all")
    st.title(experiment.question, anchor=False)
    found, problem = None, ""
    try:
        found = reading.opened(experiment.name)
    except LabError as error:
        problem = str(error)
    if found is not None:
        with st.container(key="reproduce_answer"):
            st.markdown(literal(answer(found.judged)))
        st.caption(f"{literal(experiment.title)}. {literal(provenance(found.result))}")
    st.caption(f"After {literal('; '.join(paper.citation for paper in experiment.papers))}.")
    if problem:
        st.error(literal(problem), icon=":material/error:")
    elif found is None:
        st.info(f"There is no committed result yet: `{words.command(experiment)}` computes one, or the button below.")
    with st.container(horizontal=True, key="reproduce_actions", vertical_alignment="center"):
        if found is not None:
            _report(experiment, found)
    if found is not None:
        _figures(reading.charts(experiment.name, dark=dark))
    _theirs(experiment, dark)
    usable = run.show(experiment, found, dark=dark)
    if found is not None:
        st.header("The verdicts and their arithmetic", anchor=False)
        st.markdown(
            "Of the committed result. Each claim stood with its threshold before the seeds that judge it were run."
        )
        st.html(html.part("claims", found.judged, dark=dark))
    else:
        st.header("The claims", anchor=False)
        st.markdown("\n".join(f"- {literal(claim.statement)}" for claim in experiment.claims))
    _protocol(experiment, found, dark)
    vary.show(experiment, choice, found, usable=usable)
    _presets(experiment)


def _report(experiment: Experiment, found: Findings) -> None:
    st.download_button(
        "The report (HTML)",
        lambda: html.report(found),
        f"{experiment.name}.html",
        "text/html",
        icon=":material/download:",
        on_click="ignore",
        key="reproduce_report",
    )


def _figures(charts: Sequence[Chart]) -> None:
    for row in [charts[place : place + COLUMNS] for place in range(0, len(charts), COLUMNS)]:
        for column, chart in zip(st.columns(len(row), gap="small"), row, strict=True):
            _card(column, chart)


def _card(column: DeltaGenerator, chart: Chart) -> None:
    with column.container(border=True, key=f"reproduce_figure_{chart.key}", height="stretch"):
        st.markdown(f"### {literal(chart.title)}")
        st.caption(chart.subtitle)
        _chart(chart)


def _chart(chart: Chart) -> None:
    """The figure, and the data behind it."""
    st.plotly_chart(chart.figure, theme=None, config=CHART, alt=chart.alt, key=f"reproduce_chart_{chart.key}")
    st.download_button(
        "Data (CSV)",
        chart.data,
        f"{chart.key}.csv",
        "text/csv",
        icon=":material/download:",
        on_click="ignore",
        key=f"reproduce_csv_{chart.key}",
    )


def _theirs(experiment: Experiment, dark: bool) -> None:
    if not experiment.published:
        return
    st.header("What others published", anchor=False)
    st.markdown(
        "These figures are theirs, on other data and with other networks: they stand here for the direction and the "
        "size of the effect, not for its value."
    )
    for row in [
        experiment.published[place : place + COLUMNS] for place in range(0, len(experiment.published), COLUMNS)
    ]:
        for column, paper in zip(st.columns(COLUMNS, gap="small"), row, strict=False):
            with column.container(border=True, key=f"reproduce_theirs_{paper.key}", height="stretch"):
                _published(paper, dark)


def _published(paper: Published, dark: bool) -> None:
    chart = drawing.theirs(paper, dark=dark)
    if paper.series:
        st.markdown(f"### Theirs: {literal(drawing.in_short(paper))}")
    if chart is not None:
        _chart(chart)
    if paper.series:
        st.html(html.part("published", paper, *html.figures_of(paper), dark=dark))
    st.caption(f"{literal(paper.statement)} {literal(paper.citation)}.")


def _protocol(experiment: Experiment, found: Findings | None, dark: bool) -> None:
    if experiment.protocol:
        st.header("Protocol, theirs and ours", anchor=False)
        st.html(html.part("protocol", experiment.protocol, dark=dark))
    if experiment.chosen or found is not None:
        st.header("Settings, and how they were chosen", anchor=False)
    if experiment.chosen:
        st.markdown(literal(experiment.chosen))
    if found is not None:
        settings = compare(found.runs)
        with st.expander(f"The settings of the {len(settings.runs)} runs of a seed", key="reproduce_settings"):
            st.html(html.part("runs", settings, dark=dark))
            st.markdown("All of them share:")
            st.html(html.part("shared", settings, dark=dark))


def _presets(experiment: Experiment) -> None:
    st.header("From the command line", anchor=False)
    for name, preset in experiment.presets.items():
        st.markdown(f"**{name}**: {literal(preset.summary)}.")
        st.code(f"python -m experiments run {experiment.name} --preset {name}", language="bash")
