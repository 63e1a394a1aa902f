"""Run: the bench's runs through the app's queue, how far they are, and the verdicts of this machine beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st

from accum_core.errors import LabError, StoreError
from accum_core.experiment import Experiment
from accum_core.provenance import code_version
from accum_core.result_file import LONG
from accum_core.runs.store import Store
from accum_ui import resources
from accum_ui.lab import literal
from accum_ui.navigation import PAGES
from accum_ui.reproduce import plan as plans
from accum_ui.reproduce import words
from accum_ui.reproduce.plan import Pace, Plan, Planned
from experiments import find
from experiments.report import html
from experiments.report.findings import Findings

PROBLEM: Final = "reproduce_problem"
SECONDS: Final = 2.0  # between two looks at the queue, whoever looks
MOST_REFUSED: Final = 6  # sentences that are shown at once


def show(experiment: Experiment, found: Findings | None, *, dark: bool) -> bool:
    """The button, or the progress, or what came of it.

    Returns:
        Whether the store could be used; that it could not is told.
    """
    st.header("Run it on this machine", anchor=False)
    if problem := st.session_state.pop(PROBLEM, None):
        st.error(literal(problem), icon=":material/error:")
    try:
        store = resources.store()
        plan = _look(str(store.path), experiment.name)
        with st.container(border=True, key="reproduce_run"):
            _state(store, experiment, plan, found, dark)
    except LabError as error:
        if str(error) != problem:  # the button met it already
            st.error(literal(str(error)), icon=":material/error:")
        return not isinstance(error, StoreError)
    return True


@st.cache_resource(ttl=SECONDS / 2, max_entries=50, show_spinner=False)
def _look(path: str, name: str) -> Plan:
    """One look at the store for all who look at the same time."""
    return plans.look(Store(Path(path)), find(name))


def _state(store: Store, experiment: Experiment, plan: Plan, found: Findings | None, dark: bool) -> None:
    missing, known = plan.of("missing", "failed"), plans.pace(found)
    if plan.live:
        _progress(store, experiment, known)
        st.button("Stop them", icon=":material/stop:", on_click=_stop, args=(store, plan.live), key="reproduce_stop")
    elif missing:
        seconds = plans.estimate(missing, known)
        st.button(
            words.run_button(missing, len(plan.items), seconds),
            type="primary",
            icon=":material/play_arrow:",
            on_click=_submit,
            args=(store, missing),
            key="reproduce_submit",
        )
        st.caption(words.kept(plan) + words.estimate_line(missing, seconds))
        present = found is not None and found.result.environment.code_version == code_version()
        if present and any(item.config.updates > LONG for item in missing):
            st.caption(words.CUT)
    else:
        _done(store, experiment, plan, found, dark)
    _refused(plan.of("failed"))


def _done(store: Store, experiment: Experiment, plan: Plan, found: Findings | None, dark: bool) -> None:
    if plan.here:
        st.markdown(f"**All {len(plan.items)} runs of the present code are done: this is what they say.**")
        ids = tuple(item.run.id for item in plan.items if item.run is not None)
        judged = _judged(store, experiment, plan, ids).judged
        st.html(html.part("verdicts", judged, dark=dark))
        if found is not None:
            st.markdown(literal(words.beside_committed(judged, found.judged)))
    else:
        st.markdown("The committed result was computed by the present code, so its runs are not missing.")
    seconds = plans.estimate([_again(item) for item in plan.items], plans.pace(found))
    st.button(
        words.run_button(plan.items, len(plan.items), seconds, again=True),
        icon=":material/replay:",
        on_click=_submit,
        args=(store, plan.items),
        kwargs={"fresh": True},
        key="reproduce_again",
    )
    st.caption("With the same code, processor and number of threads the numbers come out equal to the last bit.")


def _again(item: Planned) -> Planned:
    return Planned(item.seed, item.label, item.config, None)


@st.cache_resource(max_entries=4, show_spinner=False)
def _judged(_store: Store, _experiment: Experiment, _plan: Plan, ids: tuple[str, ...]) -> Findings:
    """What finished runs say, read once."""
    return plans.judged_here(_store, _experiment, _plan)


@st.fragment(run_every=SECONDS)
def _progress(store: Store, experiment: Experiment, known: Pace) -> None:
    """How far the queue is; when it is empty the whole page is drawn anew, with the verdicts."""
    try:
        plan = _look(str(store.path), experiment.name)
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    if not plan.live:
        st.rerun(scope="app")
    st.progress(words.share(plan), words.progress_line(plan, plans.left(plan, known)))


def _refused(failed: list[Planned]) -> None:
    for item in failed[:MOST_REFUSED]:
        if item.run is not None:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                sentence = literal(item.run.error or "failed")
                st.warning(f"{item.label}, seed {item.seed}: {sentence}", icon=":material/block:")
                st.page_link(PAGES / "1_Lab.py", label="Open it in the Lab", query_params={"run": item.run.id})
    if len(failed) > MOST_REFUSED:
        st.caption(f"{len(failed) - MOST_REFUSED} more runs failed.")


def _submit(store: Store, items: list[Planned], *, fresh: bool = False) -> None:
    try:
        plans.submit(store, items, fresh=fresh)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)
    _look.clear()


def _stop(store: Store, items: list[Planned]) -> None:
    try:
        plans.stop(store, items)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)
    _look.clear()
