"""One stored run from near: a layer's micro-batches around the window, moved by N, and its error over depth."""

from __future__ import annotations

from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from accum_core.batching import divisors
from accum_core.errors import LabError
from accum_core.runs.store import Store
from accum_ui.figures import Panel
from accum_ui.lab import literal
from accum_ui.normalisation import depth, figures, notes, opened, state, tables, words
from accum_ui.normalisation.choice import Choice
from accum_ui.normalisation.opened import RunLayers
from accum_ui.normalisation.race import Measured, Race

CHART: Final = {"displayModeBar": False}


@st.fragment
def show(store: Store, found: Race) -> None:
    """The chart and its controls, or why there are none; moving them draws this part alone."""
    st.header("What do the micro-batches of one layer see?", anchor=False)
    choice: Choice = st.session_state[state.CHOICE]
    runs = {run.run: run for run in found.done if run.opened}
    try:
        chosen = store.get(choice.run).id if choice.run else usual_run(runs)
        held = opened.layers_of(store, chosen) if chosen else None
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    if held is None or not held.layers:
        st.info(
            "None of these runs kept its layers' statistics, as runs made here do: run one that is missing.",
            icon=":material/info:",
        )
        return
    _layer(held, runs, choice)
    _depth(held, runs, choice)
    state.remember()


def usual_run(runs: dict[str, Measured]) -> str:
    """The run with the largest micro-batch, whose layers see what one batch shows them; the first of several."""
    return max(runs, key=lambda run_id: runs[run_id].micro, default="")


def _layer(held: RunLayers, runs: dict[str, Measured], choice: Choice) -> None:
    name, channel, update, steps = opened.settled(choice, held)
    cut = opened.cut(held, name, channel, update, steps)
    every = [opened.cut(held, name, channel, update, n) for n in divisors(cut.samples)]
    st.select_slider(
        "Cut the window into N × micro-batch",
        divisors(cut.samples),
        format_func=lambda n: f"{n} × {cut.samples // n}",
        **state.bound("steps", steps),
    )
    chart, controls = st.columns([1.6, 1], gap="medium")
    with controls.container(key="norms_layer_controls"):
        titles = {run: words.run_line(runs.get(run, held.config)) for run in dict.fromkeys([held.run, *runs])}
        st.selectbox("Run", list(titles), format_func=titles.__getitem__, **state.bound("run", held.run))
        st.selectbox("Layer, in the network's order", list(held.layers[update]), **state.bound("layer", name))
        with st.container(horizontal=True, gap="small"):
            st.selectbox("Update", list(held.layers), width=110, **state.bound("update", update))
            st.selectbox("Channel", cut.layer.channels, width=110, **state.bound("channel", channel))
        st.markdown(notes.cut_note(cut, held))
        st.caption(notes.noise_line(held.noise, held.steps, held.config.micro_batch_size))
    _card(chart, "cut", figures.cut_panel(cut, every, dark=_dark()), tables.cut_csv(cut), "normalisation_layer.csv")


def _depth(held: RunLayers, runs: dict[str, Measured], choice: Choice) -> None:
    st.header("Where does the error arise?", anchor=False)
    _, _, update, _ = opened.settled(choice, held)
    found = held.depths.get(update)
    split = max(runs.values(), key=lambda run: run.gradient_error or 0.0, default=None)
    example = words.run_line(split) if split is not None and split.gradient_error else ""
    if why := depth.reason(found, update, held.config.accumulation_steps, example):
        st.info(why, icon=":material/info:")
    elif found is not None:
        of = f"{words.run_line(runs.get(held.run, held.config))}, update {update}"
        panel = depth.panel(found, of, dark=_dark())
        _card(st.container(), "depth", panel, tables.depth_csv(found), "normalisation_depth.csv")


def _card(place: DeltaGenerator, name: str, panel: Panel, data: str, file: str) -> None:
    with place.container(border=True, key=f"norms_{name}"):
        st.markdown(f"### {panel.title}")
        st.caption(panel.subtitle)
        st.plotly_chart(panel.figure, theme=None, config=CHART, alt=panel.alt, key=f"norms_chart_{name}")
        st.download_button(
            "Data (CSV)",
            data,
            file,
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
            key=f"norms_csv_{name}",
        )


def _dark() -> bool:
    return st.context.theme.type == "dark"
