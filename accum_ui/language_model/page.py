"""The parts of the page Language model: the run, its samples, its division, what a split costs, and the advice."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st

from accum_core.errors import LabError
from accum_core.runs.store import Store
from accum_ui import about_run, live, resources, take_home
from accum_ui.lab import literal
from accum_ui.language_model import choice as choices
from accum_ui.language_model import queue, state, tables, words
from accum_ui.language_model.choice import EXPERIMENT, OPTIONS, ROWS, Choice
from accum_ui.language_model.measured import Arm, Written, arm, written
from accum_ui.navigation import PAGES
from accum_ui.words import question
from experiments.report.html import TABLES

STYLE: Final = Path(__file__).with_name("language_model.css")
LABELS: Final = {
    "rows": "Rows",
    "effective": "Effective batch",
    "reduction": "Reduction",
    "rate": "Learning rate",
    "updates": "Updates",
}


def show() -> None:
    """The whole page."""
    st.html(STYLE)
    st.html(TABLES)
    choice, strayed = state.open_page()
    config = choices.config(choice)
    st.title(question(config), anchor=False)
    try:
        store = resources.store()
        run = arm(store, config)
        if run.run is not None:
            live.answer(run.run)
        for sentence in filter(None, (strayed, literal(st.session_state.pop(queue.PROBLEM, "")))):
            st.error(sentence, icon=":material/error:")
        _controls(store, choice, run)
        _charts(store, run)
        known = [*(arm(store, one) for one in choices.cost_configs(choice)), run]
        _divisions(store, choice, known)
        _costs(store, known[:-1], known)
        _advice(store, choice, known)
        take_home.show(config, key="lm", form=state.bound("form"), what="the settings above")
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
    state.remember()


def _controls(store: Store, choice: Choice, run: Arm) -> None:
    with st.container(border=True, gap="small", key="lm_controls"):
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
            st.segmented_control(LABELS["rows"], ROWS, required=True, **state.bound("rows"))
            st.selectbox(LABELS["effective"], OPTIONS["effective"], width=115, **state.bound("effective"))
            st.selectbox("Micro-batch", choices.micros(choice), width=105, **state.bound("micro"))
            for field, width in (("reduction", 160), ("rate", 115), ("updates", 100)):
                st.selectbox(LABELS[field], OPTIONS[field], width=width, **state.bound(field))
            st.number_input("Seed", 0, 2**31 - 1, step=1, width=120, **state.bound("seed"))
            wanted = [arm(store, config) for config in dict.fromkeys((run.config, run.config.reference()))]
            # The runs of the advice have no reference until somebody asks for it.
            if missing := [one.config for one in wanted if one.is_missing]:
                st.button(
                    "Run" if run.is_missing else "Run its reference",
                    type="primary",
                    icon=":material/play_arrow:",
                    on_click=queue.submit,
                    args=(store, missing),
                    key="lm_run",
                )
            queue.stopping(store, "run", wanted)
        st.caption(words.PACKING[run.config.workload])


def _charts(store: Store, run: Arm) -> None:
    if run.run is None:
        st.info(
            "Nobody has run these settings here yet: press Run, and the curves appear with the first update, beside "
            "the same functions in one pass.",
            icon=":material/info:",
        )
        return
    lines = [about_run.reference_line(run.config)]
    if run.run.environment is not None and not run.is_live:
        lines.append(about_run.provenance_line(run.run.source, run.run.environment))
    st.caption("  \n".join(lines))
    queue.failures([run])
    live.charts(run.run)
    if run.measured is not None:
        st.caption(
            f"{run.measured.tokens_per_second:,.0f} learnt tokens a second, the bytes of docstrings that the loss is "
            f"of; the speed above counts {words.SAMPLES[run.config.workload]}."
        )
    st.header("What it writes", anchor=False)
    if run.is_live:
        st.fragment(_samples, run_every=queue.SECONDS)(store, run.run.id)
    else:
        _samples(store, run.run.id)


def _samples(store: Store, run_id: str) -> None:
    before, after = written(store.records(run_id))
    if not before:
        st.caption("The first samples come with the first update.")
        return
    st.caption(
        "After the signatures of functions that no training has seen: the likeliest bytes, and some drawn at a "
        "temperature of 0.7, up to 80."
    )
    for column, samples in zip(st.columns(2), (before, after), strict=True):
        made = samples[0].updates
        title = f"After {made} update{'s' * (made != 1)}" if made else "Before training"
        column.markdown(f"**{title}**")
        for one in samples:
            column.code(_shown(one), language="python", wrap_lines=True)


def _shown(sample: Written) -> str:
    return f"{sample.prompt}# likeliest: {_line(sample.likeliest)}\n# drawn: {_line(sample.drawn)}"


def _line(text: str) -> str:
    return text.strip() or "(nothing)"


def _divisions(store: Store, choice: Choice, known: list[Arm]) -> None:
    if choice.micro == choice.effective:  # one micro-batch has one mean
        return
    arms = [arm(store, one) for one in choices.division_configs(choice)]
    st.header(words.division_line(*arms[1:]), anchor=False)
    st.markdown(words.DIVISIONS)
    _table(tables.divisions(arms), arms)
    queue.show(store, "divisions", arms, [*known, *arms])
    st.page_link(
        PAGES / "5_Reproduce.py",
        label=f"The same over {len(choices.seeds())} seeds, with verdicts",
        icon=":material/arrow_forward:",
        query_params={"paper": EXPERIMENT},
    )


def _costs(store: Store, arms: list[Arm], known: list[Arm]) -> None:
    st.header(words.cost_line(arms), anchor=False)
    st.caption(
        f"Runs of {choices.COST_UPDATES} updates with an effective batch of {arms[0].config.effective_batch_size}; "
        "median time of an update without instruments, and what one micro-batch keeps."
    )
    _table(tables.costs(arms), arms)
    queue.show(store, "costs", arms, known)


def _advice(store: Store, choice: Choice, known: list[Arm]) -> None:
    arms = [arm(store, one) for one in choices.advice_configs(choice)]
    st.header(words.advice_line(*arms), anchor=False)
    st.markdown(words.ADVICE)
    st.segmented_control("Smaller effective batch", choices.smaller(choice), required=True, **state.bound("small"))
    _table(tables.advice(arms), arms)
    small = arms[1].config
    st.caption(
        f"Same samples, one seed. The smaller batch's learning rate of {small.learning_rate:g} follows the "
        "paper's, whose best rate halves while the batch falls from 512 to 1."
    )
    queue.show(store, "advice", arms, [*known, *arms])


def _table(table: str, arms: list[Arm]) -> None:
    """A table that says something: before anything was asked for, the button below says it all."""
    if any(one.is_done or one.is_live for one in arms):
        st.html(table)
