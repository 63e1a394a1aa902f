"""The parts of the page on normalisation: the race, the papers beside it, one layer opened, costs, the family."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from accum_core import catalogue
from accum_core.errors import DataError, LabError
from accum_core.measures import measure_of
from accum_core.runs.store import Store
from accum_ui import resources
from accum_ui.figures import Panel
from accum_ui.normalisation import costs, figures, layer, notes, queue, race, state, tables, words
from accum_ui.normalisation.choice import EXPERIMENTS, Choice, subjects, usual_seeds
from accum_ui.normalisation.race import Race
from accum_ui.words import norm_title
from experiments import find

STYLE: Final = Path(__file__).with_name("normalisation.css")
CHART: Final = {"displayModeBar": False}
PUBLISHED: Final = ("wu_he_2018_images_per_gpu", "chen_2017_deeplabv3")


def show() -> None:
    """The whole page."""
    st.html(STYLE)
    choice, strayed = state.open_page()
    try:
        store = resources.store()
        found = race.look(store, choice)
    except LabError as error:
        st.title(words.QUESTION, anchor=False)
        st.error(str(error), icon=":material/error:")
        return
    st.title(words.QUESTION, anchor=False)
    with st.container(key="norms_answer"):
        st.markdown(words.answer(found).replace(" × ", "\u00a0×\u00a0"))  # a number stays on one line
    if strayed:
        st.error(strayed, icon=":material/error:")
    _controls(choice)
    if choice.norms:
        _race(store, found)
    else:
        st.info("Choose at least one layer above.", icon=":material/info:")
    layer.show(store, found)
    _costs()
    _family(choice)
    state.remember()


def _controls(choice: Choice) -> None:
    with st.container(border=True, gap="small", key="norms_controls"):
        st.pills(
            "Layers in the race",
            list(catalogue.entries("norms")),
            selection_mode="multi",
            format_func=norm_title,
            **state.bound("norms", list(choice.norms)),
        )
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
            st.selectbox(
                "Data and network",
                list(subjects()),
                format_func=words.subject_title,
                width=430,
                **state.bound("on", choice.on),
            )
            st.pills(
                "Seeds (none: whatever is stored)",
                sorted({*usual_seeds(choice.on), *choice.seeds}),
                selection_mode="multi",
                **state.bound("seeds", list(choice.seeds)),
            )


def _race(store: Store, found: Race) -> None:
    dark = _dark()
    panels = figures.race_panels(found, dark=dark)
    measure = measure_of(subjects()[found.choice.on].workload)
    # Experiments may answer to the same paper.
    named = {paper.key: paper for name in EXPERIMENTS for paper in find(name).published if paper.key in PUBLISHED}
    papers = sorted(named.values(), key=lambda paper: measure.title not in paper.y_label)  # ours beside its like
    theirs = {paper.key: figures.theirs_panel(paper, found, dark=dark) for paper in papers}
    columns = st.columns([1.25, 1, 1], gap="small")
    if "quality" in panels:
        _card(columns[0], "quality", panels.pop("quality"), _ours(found))
    for column, paper in zip(columns[1:], papers, strict=False):
        data = (tables.published_csv(paper), f"{paper.key}.csv")
        _card(column, paper.key, theirs[paper.key], data, f"{paper.statement} {paper.citation}.")
    for pair in _pairs(list(panels)):
        for column, field in zip(st.columns(2, gap="small"), pair, strict=False):
            _card(column, field, panels[field], _ours(found))
    st.html(tables.runs_table(found))
    st.caption(f"Mean over the stored seeds, with their number. {words.origin_line(found.done)}")
    queue.show(store, found)


def _ours(found: Race) -> tuple[str, str]:
    return tables.race_csv(found.done), f"normalisation_{found.choice.on}.csv"


def _pairs(fields: list[str]) -> list[list[str]]:
    return [fields[place : place + 2] for place in range(0, len(fields), 2)]


def _card(column: DeltaGenerator, name: str, panel: Panel, data: tuple[str, str], note: str = "") -> None:
    with column.container(border=True, key=f"norms_{name}", height="stretch"):
        st.markdown(f"### {panel.title}")
        st.caption(panel.subtitle)
        st.plotly_chart(panel.figure, theme=None, config=CHART, alt=panel.alt, key=f"norms_chart_{name}")
        if note:
            st.caption(note)
        download("Data (CSV)", *data, name)


def download(label: str, data: str, file: str, key: str) -> None:
    """A chart's data."""
    st.download_button(
        label, data, file, "text/csv", icon=":material/download:", on_click="ignore", key=f"norms_csv_{key}"
    )


def _costs() -> None:
    st.header("What sync_batch costs", anchor=False)
    try:
        table = costs.read()
    except DataError as error:
        st.error(str(error), icon=":material/error:")
        return
    if table is None:
        st.info(f"Nobody has measured it here yet: `{costs.COMMAND}` does.", icon=":material/info:")
        return
    for model in table.models:
        panels = figures.cost_panels(table, model, dark=_dark())
        for place, (column, panel) in enumerate(zip(st.columns(len(panels), gap="small"), panels, strict=True)):
            _card(column, f"cost_{model}_{place}".replace(" ", "_"), panel, (costs.to_csv(table), costs.PATH.name))
        with st.expander(f"{model} in numbers"):
            st.html(tables.cost_table(table, model))
    st.caption(notes.measured_line(table.environment))


def _family(choice: Choice) -> None:
    st.header("The layers", anchor=False)
    st.html(tables.family_table(choice.norms))


def _dark() -> bool:
    return st.context.theme.type == "dark"
