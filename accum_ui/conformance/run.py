"""Run: the command for the versions installed here, how far it is, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import streamlit as st

from accum_core.conformance import findings
from accum_core.conformance.loops import Loops
from accum_core.conformance.results import Row
from accum_core.errors import LabError
from accum_ui.conformance import choice, job, reading, words
from accum_ui.conformance.choice import Choice
from accum_ui.lab import literal

PROBLEM: Final = "frameworks_problem"
SECONDS: Final = 2.0  # between two looks at the process


def show(
    rows: Sequence[Row],
    framework: str,
    others: Mapping[str, tuple[str, str]],
    loops: Mapping[str, Loops],
    *,
    is_here: bool = False,
) -> None:
    """The button, or the progress, or what came of it.

    Args:
        rows: of an earlier run, for the number of trials.
        framework: the chosen one; "" for all.
        others: frameworks whose results are of another version than the installed one.
        is_here: whether the page shows the results of this machine.
    """
    st.header("Run it for the versions installed here", anchor=False)
    if missing := words.missing_line(others, loops):
        st.info(missing, icon=":material/info:")
    if problem := st.session_state.pop(PROBLEM, None):
        st.error(literal(problem), icon=":material/error:")
    with st.container(border=True, key="frameworks_run"):
        try:
            _state(job.look(), rows, framework, loops, is_here=is_here)
        except LabError as error:
            st.error(literal(str(error)), icon=":material/error:")
    st.markdown("From the command line:")
    st.code(words.COMMAND + (f" --framework {framework}" if framework else ""), language="bash")


def _state(look: job.Look, rows: Sequence[Row], framework: str, loops: Mapping[str, Loops], *, is_here: bool) -> None:
    if look.state == "running":
        what = findings.title(look.framework, loops) if look.framework else "all frameworks"
        st.markdown(f"Running {what}, in a process of its own that also outlives this app.")
        _progress()
        st.button("Stop it", icon=":material/stop:", on_click=_stop, key="frameworks_stop")
        return
    if look.state == "ended":
        st.warning(literal(words.ended_line(look)), icon=":material/block:")
    if look.state == "done":
        st.success(literal(words.done_line(look, loops)), icon=":material/check:")
        if not is_here:
            st.button("Show what it found", on_click=_show_here, args=(look.framework,), key="frameworks_found")
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


def _show_here(framework: str) -> None:
    """Callback: the results of this machine, as a step in the browser's history."""
    st.query_params.from_dict(choice.address(Choice(framework, results=choice.HERE)))


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
