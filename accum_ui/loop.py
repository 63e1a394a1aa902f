"""The loop that a reader takes away: the present settings as one runnable script, and the run's data."""

from __future__ import annotations

import streamlit as st

from accum_core.records import RunConfig
from accum_core.runs.store import Run, Store
from accum_ui import recipe


def show(store: Store, config: RunConfig, run: Run | None) -> None:
    """The script of these settings, to copy or to download, and the shown run's records."""
    script = recipe.source(config)
    st.subheader("The loop", anchor=False)
    st.caption("Plain PyTorch with the settings above. It runs as it stands from the root of this project.")
    with st.container(horizontal=True):
        name = f"{config.norm}_{config.accumulation_steps}x{config.micro_batch_size}.py"
        st.download_button("Script", script, name, "text/x-python", icon=":material/code:", on_click="ignore")
        if run is not None and run.environment is not None:
            st.download_button(
                "Run with all records (JSON)",
                lambda: store.result(run.id).model_dump_json(),
                f"{run.id}.json",
                "application/json",
                icon=":material/download:",
                on_click="ignore",
            )
    st.code(script, language="python", line_numbers=False, height=560)
