"""Run: the command for the versions installed here, how far it is, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from accum_core.conformance import findings
from accum_core.conformance.loops import Loops
from accum_core.conformance.results import Row
from accum_core.errors import LabError
from accum_ui.conformance import job, reading, words
from accum_ui.lab import literal

PROBLEM: Final = "frameworks_problem"
SECONDS: Final = 2.0  # between two looks at the process


def show(
    rows: Sequence[Row], framework: str, others: Mapping[str, tuple[str, str]], loops: Mapping[str, Loops]
) -> None:
    """The button, or the progress, or what came of it.

    Args:
        rows: of an earlier run, for the number of trials.
        framework: the chosen one; "" for all.
        others: frameworks whose results are of another version than the installed one.
    """
    st.header("Run it for the versions installed here", anchor=False)
    if missing := words.missing_line(others, loops):
        st.info(missing, icon=":material/info:")
    if problem := st.session_state.pop(PROBLEM, None):
        st.error(literal(problem), icon=":material/error:")
    with st.container(border=True, key="frameworks_run"):
        try:
            _state(job.look(), rows, framework, loops)
        except LabError as error:
            st.error(literal(str(error)), icon=":material/error:")
    st.markdown("From the command line:")
    st.code(words.COMMAND + (f" --framework {framework}" if framework else ""), language="bash")


def _state(look: job.Look, rows: Sequence[Row], framework: str, loops: Mapping[str, Loops]) -> None:
    if look.state == "running":
        what = findings.title(look.framework, loops) if look.framework else "all frameworks"
        st.markdown(f"Running {what}, in a process of its own that also outlives this app.")
        _progress()
        st.button("Stop it", icon=":material/stop:", on_click=_stop, key="frameworks_stop")
        return
    if look.state == "ended":
        st.warning(literal(words.ended_line(look)), icon=":material/block:")
    present = framework not in loops or reading.can_run(loops[framework])
    st.button(
        words.run_button(rows, framework, loops),
        type="primary",
        icon=":material/play_arrow:",
        on_click=_start,
        args=(framework,),
        disabled=not present,
        key="frameworks_start",
    )
    st.caption("Each trial is a process of its own; how long they take is told once some have ended.")


@st.fragment(run_every=SECONDS)
def _progress() -> None:
    """How far the process is; when it has ended the whole page is drawn anew, with its results."""
    try:
        look = job.look()
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    if look.state != "running":
        st.rerun(scope="app")
    st.progress(look.done / look.total if look.total else 0.0, words.progress_line(look))


def _start(framework: str) -> None:
    try:
        job.start(framework)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)


def _stop() -> None:
    try:
        job.stop()
    except LabError as error:
        st.session_state[PROBLEM] = str(error)
