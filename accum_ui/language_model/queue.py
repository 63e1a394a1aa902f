"""Runs that are missing beside a table: the button that queues them, how far they are, and why one came to no end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st

from accum_core.errors import LabError
from accum_core.records import Message, RunConfig
from accum_core.runs.store import LIVE, Store
from accum_ui.lab import literal
from accum_ui.language_model import words
from accum_ui.language_model.measured import Arm, arm, estimate

PROBLEM: Final = "lm_problem"
SECONDS: Final = 2.0  # between two looks at the queue


def show(store: Store, name: str, arms: Sequence[Arm], known: Sequence[Arm]) -> None:
    """The button or the progress.

    Args:
        name: of the part of the page.
        arms: the runs of the part.
        known: runs to estimate the time from.
    """
    missing = [one.config for one in arms if one.is_missing]
    if missing:
        st.button(
            words.button(missing, estimate(missing, known)),
            icon=":material/play_arrow:",
            on_click=submit,
            args=(store, missing),
            key=f"lm_run_{name}",
        )
    if live := tuple(one.config for one in arms if one.is_live):
        st.fragment(_progress, run_every=SECONDS)(store, live)
    stopping(store, name, arms)
    failures(arms)


def failures(arms: Sequence[Arm]) -> None:
    """Why runs came to no end, each reason once."""
    reasons = [one.run.error or "The run failed." for one in arms if one.run is not None and one.run.state == "failed"]
    for reason in dict.fromkeys(reasons):
        st.warning(literal(reason), icon=":material/block:")


def stopping(store: Store, name: str, arms: Sequence[Arm]) -> None:
    """The button that stops what waits or runs, where something does."""
    if live := [one.run.id for one in arms if one.run is not None and one.is_live]:
        st.button("Stop", icon=":material/stop:", on_click=stop, args=(store, live), key=f"lm_stop_{name}")


def submit(store: Store, configs: Sequence[RunConfig]) -> None:
    """Ask for runs; a refusal is told on the page."""
    try:
        for config in configs:
            store.submit(config)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)


def stop(store: Store, run_ids: Sequence[str]) -> None:
    """Ask runs to stop; one that has ended meanwhile is left as it is."""
    try:
        for run_id in run_ids:
            if store.get(run_id).state in LIVE:
                store.send(run_id, Message(kind="stop"))
    except LabError as error:
        st.session_state[PROBLEM] = str(error)


def _progress(store: Store, live: Sequence[RunConfig]) -> None:
    """How far the queue is; a run that ended has the whole page drawn anew, with its numbers."""
    try:
        arms = [arm(store, config) for config in live]
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    if any(one.run is None or one.run.state not in LIVE for one in arms):
        st.rerun(scope="app")
    st.progress(*words.progress(arms))
