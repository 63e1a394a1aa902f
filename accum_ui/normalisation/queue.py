"""What is missing in a race: the button that queues it, how far it is, and what was refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import streamlit as st

from accum_core.errors import LabError
from accum_core.records import RunConfig
from accum_core.runs.rows import Run
from accum_core.runs.store import LIVE, Store
from accum_ui.lab import literal
from accum_ui.navigation import PAGES
from accum_ui.normalisation import race, words
from accum_ui.normalisation.race import Race
from accum_ui.readings import duration

WATCHED: Final = "norms_watched"  # id -> the run's updates and the time when it was first seen here
PROBLEM: Final = "norms_problem"
SECONDS: Final = 2.0  # between two looks at the queue
MOST_REFUSED: Final = 6  # sentences that are shown at once


def show(store: Store, found: Race) -> None:
    """The button for what is missing, the progress of what is under way, and what came to no end."""
    if problem := st.session_state.pop(PROBLEM, None):
        st.error(problem, icon=":material/error:")
    if found.missing:
        _missing(store, found)
    watched = st.session_state.setdefault(WATCHED, {})
    for run in found.live:
        watched.setdefault(run.id, (run.update, time.monotonic()))
    if found.live:
        _progress(store, tuple(run.id for run in found.live))
    else:
        watched.clear()
    _refused(found.failed)


def _missing(store: Store, found: Race) -> None:
    estimate = race.estimate(found.missing, found.done)
    st.button(
        words.missing_line(found.missing, estimate),
        icon=":material/play_arrow:",
        on_click=_submit,
        args=(store, found.missing),
        key="norms_run_missing",
    )
    with st.expander("Which ones", key="norms_missing"):
        st.markdown("\n".join(f"- {words.run_line(one)}" for one in found.missing))
    st.caption(words.estimate_line(estimate))


def _submit(store: Store, missing: Sequence[RunConfig]) -> None:
    try:
        for config in missing:
            store.submit(config)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)


@st.fragment(run_every=SECONDS)
def _progress(store: Store, live: Sequence[str]) -> None:
    """How far the queue is; a run that ended has the whole page drawn anew, with its points."""
    try:
        runs = {run_id: store.get(run_id) for run_id in st.session_state[WATCHED]}
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    if any(runs[run_id].state not in LIVE for run_id in live if run_id in runs):
        st.rerun(scope="app")
    done, total = sum(run.update for run in runs.values()), sum(run.total for run in runs.values())
    st.progress(done / total if total else 0.0, progress_line(list(runs.values()), _left(runs)))


def progress_line(runs: Sequence[Run], left: float | None) -> str:
    """The line beside the progress bar.

    Args:
        runs: that were queued together, ended ones too.
        left: seconds, if they are known.
    """
    ended = sum(run.state not in LIVE for run in runs)
    waiting = sum(run.state == "queued" for run in runs)
    parts = [f"{ended} of {len(runs)} runs ended"]
    parts += [f"{waiting} waiting"] if waiting else []
    for run in runs:
        if run.state in ("running", "paused"):
            parts.append(f"{words.run_line(run.config)}: {run.state}, update {run.update} of {run.total}")
    return " · ".join(parts) + (f" · about {duration(left)} left" if left is not None else "")


def _left(runs: dict[str, Run]) -> float | None:
    """Seconds to the end at the pace since the runs were first seen; None until some updates were made."""
    seen = st.session_state[WATCHED]
    made = sum(run.update - seen[run_id][0] for run_id, run in runs.items())
    passed = time.monotonic() - min(when for _, when in seen.values())
    open_updates = sum(run.total - run.update for run in runs.values() if run.state in LIVE)
    return open_updates * passed / made if made > 0 and passed > SECONDS else None


def _refused(failed: Sequence[Run]) -> None:
    for run in failed[:MOST_REFUSED]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.warning(f"{words.run_line(run.config)}: {literal(run.error or 'failed')}", icon=":material/block:")
            st.page_link(PAGES / "1_Lab.py", label="Open it in the Lab", query_params={"run": run.id})
    if len(failed) > MOST_REFUSED:
        st.caption(f"{len(failed) - MOST_REFUSED} more runs failed.")
