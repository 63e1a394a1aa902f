"""The loop that a reader takes away: the present settings as a program, and the run's data."""

from __future__ import annotations

import streamlit as st

from accum_core.records import RunConfig
from accum_core.runs.store import Run, Store
from accum_ui import take_home
from accum_ui.lab import key
from accum_ui.settings import FORM


def show(store: Store, config: RunConfig, run: Run | None) -> None:
    """The program of these settings, to read, copy or download, and the shown run's records."""
    st.subheader("The loop", anchor=False)
    if run is not None and run.environment is not None:
        st.download_button(
            "Run with all records (JSON)",
            lambda: store.result(run.id).model_dump_json(),
            f"{run.id}.json",
            "application/json",
            icon=":material/download:",
            on_click="ignore",
        )
    changed = run is not None and run.altered and store.present_config(run.id) == config
    take_home.show(config, key="lab", form={"key": key(FORM)}, altered=changed, code=True)
