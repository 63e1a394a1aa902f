"""The live part of a page: charts that keep their figure, zoom included, while the run's points come in.

The scripts beside this file are one module to the browser, in the order of ``SCRIPTS``. They draw what ``panels``
describes from what the route ``/api/runs/{id}`` gives, and send one trigger, ``state``, when the run's state changes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import streamlit as st

from accum_core import palette
from accum_core.errors import DataError
from accum_core.runs.store import Run
from accum_ui.api import PLOTLY_ADDRESS
from accum_ui.maps import maps
from accum_ui.panels import panels

HERE: Final = Path(__file__).parent
SCRIPTS: Final = ("feed.js", "charts.js", "live.js")


def answer(run: Run) -> None:
    """The sentence that answers the page's question, from the run's numbers so far."""
    _mount("answer", {"part": "answer", "run_id": run.id})


def charts(run: Run) -> None:
    """Progress, numbers, charts and maps; the page is run again when the run's state changes."""
    _mount(
        "charts",
        {
            "part": "charts",
            "run_id": run.id,
            "state": run.state,
            "panels": panels(run.config),
            "maps": _maps(run.config.workload),
            "plotly": PLOTLY_ADDRESS,
        },
    )


def _maps(workload: str) -> dict[str, Any] | None:
    try:
        return maps(workload)
    except DataError as error:
        st.error(str(error), icon=":material/error:")
        return None


def _mount(key: str, data: dict[str, Any]) -> None:
    # Registered at each run, as the registry belongs to the server (or to the test) that runs the page.
    script, style = sources()
    component = st.components.v2.component("lab_live", isolate_styles=False, css=style, js=script)
    component(key=f"live_{key}", data=data, on_state_change=lambda: None)


@cache
def sources() -> tuple[str, str]:
    """The module's script and its style sheet, with the colours of ``palette``."""
    script = "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    shades = {"run": palette.RUN, "reference": palette.REFERENCE, "grid": palette.GRID}
    colors = "".join(f"--lab-{name}: light-dark({shade.light}, {shade.dark});" for name, shade in shades.items())
    return script, f".lab-live {{{colors}}}\n" + (HERE / "live.css").read_text(encoding="utf-8")
