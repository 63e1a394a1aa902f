"""The parts of the page on loss scaling: question and answer, charts, tables, the formula, the frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import streamlit as st

from accum_core.errors import DataError
from accum_core.loss_scaling import MicroBatch, Outcome, divide
from accum_core.reduction import REDUCTION_KINDS, ReductionKind
from accum_ui import frameworks, scaling_controls, scaling_figures, scaling_window, scaling_words
from accum_ui.figures import Panel
from accum_ui.scaling_window import Choice

STYLE: Final = Path(__file__).with_name("loss_scaling.css")
CHART: Final = {"displayModeBar": False}


def show() -> None:
    """The whole page."""
    st.html(STYLE)
    choice, refusals, strayed = scaling_controls.open_page()
    try:
        micro_batches, outcomes = computed(choice)
    except DataError as error:
        st.title("Loss scaling", anchor=False)
        st.error(str(error), icon=":material/error:")
        return
    unit = scaling_window.UNITS[choice.source]
    st.title(scaling_words.question(micro_batches, unit), anchor=False)
    with st.container(key="scaling_answer"):
        st.markdown(scaling_words.answer(micro_batches, outcomes, choice.rule("exact"), unit))
    for sentence in refusals:
        st.error(sentence, icon=":material/error:")
    scaling_controls.show(choice)
    if note := scaling_words.empty_note(micro_batches):
        st.info(note, icon=":material/info:")
    if outcomes["exact"].updates:
        _charts(micro_batches, outcomes, unit)
        _table(outcomes, choice)
    _formula(choice, micro_batches)
    _frameworks()
    _worked_example()
    scaling_controls.remember(choice, strayed=strayed)


def computed(choice: Choice) -> tuple[tuple[MicroBatch, ...], dict[ReductionKind, Outcome]]:
    """The window, and what each reduction makes of it.

    Raises:
        DataError: when the embedded data set cannot be read.
    """
    window = choice.window()
    return window.micro_batches, {kind: divide(window, choice.rule(kind)) for kind in REDUCTION_KINDS}


def _charts(micro_batches: Sequence[MicroBatch], outcomes: dict[ReductionKind, Outcome], unit: str) -> None:
    dark = st.context.theme.type == "dark"
    shares, errors = st.columns([1.15, 1], gap="medium")
    with shares.container(border=True, key="scaling_shares"):
        _panel(scaling_figures.shares_panel(micro_batches, outcomes, unit, dark=dark))
        _download(
            "The weights (CSV)", "loss_scaling_label_weights.csv", scaling_figures.shares_csv(micro_batches, outcomes)
        )
    with errors.container(border=True, key="scaling_errors"):
        if any(outcome.error is None for outcome in outcomes.values()):
            st.markdown("### The whole batch's gradient is zero")
            st.caption("The gradient error is a share of its norm, so that there is none to draw.")
            return
        _panel(scaling_figures.errors_panel(outcomes, dark=dark))
        _download("The errors (CSV)", "loss_scaling_gradient_errors.csv", scaling_figures.errors_csv(outcomes))


def _panel(panel: Panel) -> None:
    st.markdown(f"### {panel.title}")
    st.caption(panel.subtitle)
    st.plotly_chart(panel.figure, theme=None, config=CHART, alt=panel.alt)


def _download(label: str, name: str, data: str) -> None:
    st.download_button(label, data, name, "text/csv", icon=":material/download:", on_click="ignore")


def _table(outcomes: dict[ReductionKind, Outcome], choice: Choice) -> None:
    st.header("What each loop would report and step by", anchor=False)
    st.html(scaling_figures.outcomes_table(outcomes))
    loss = scaling_words.loss_note(choice.source, weighed=choice.weighable and choice.class_weights)
    st.caption(
        f"{loss} The gradient is what lies in the buffers when the optimizer steps. {scaling_words.adam_note(outcomes)}"
    )


def _formula(choice: Choice, micro_batches: Sequence[MicroBatch]) -> None:
    st.header("The formula", anchor=False)
    st.markdown(scaling_words.window_note(micro_batches, choice.rule("exact")))
    with st.container(horizontal=True, gap="large", vertical_alignment="center", key="scaling_formulas"):
        for formula in scaling_words.formulas(micro_batches, choice.rule("exact")):
            st.latex(formula, width="content")
    st.markdown(
        "The mean of means is right where all $w_i$ are equal, unless a tail is divided by $N$. To be right "
        "everywhere, count the window's weight before its first backward pass, which needs the targets alone, and "
        "divide each micro-batch's sum by it."
    )


def _frameworks() -> None:
    try:
        table = frameworks.read()
    except DataError as error:
        st.error(str(error), icon=":material/error:")
        return
    st.header(frameworks.counted(table), anchor=False)
    st.html(frameworks.to_html(table))
    st.caption(table.provenance)
    st.html('<p><a href="frameworks">Measured: what each framework computes, case by case</a></p>')


def _worked_example() -> None:
    """S1 of the reported faults, computed."""
    micro_batches, outcomes = computed(scaling_window.WORKED)
    st.header(scaling_words.worked_title(outcomes), anchor=False)
    st.markdown(scaling_words.worked_example(micro_batches, outcomes))
    st.button("Show this window above", on_click=scaling_controls.take, args=(scaling_window.WORKED,))
