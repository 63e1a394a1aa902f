"""Take it home: a run's settings as a program to download, in five forms, with what each cannot carry over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from accum_core import export
from accum_core.errors import SettingError
from accum_core.export import FORMS, Form
from accum_core.records import RunConfig
from accum_ui.lab import literal

HEIGHT: Final = 560  # pixels of the code shown


def show(
    config: RunConfig,
    *,
    key: str,
    form: Mapping[str, Any],
    what: str = "",
    altered: bool = False,
    code: bool = False,
) -> None:
    """The choice of the form, the download, and what the form does not carry over.

    Args:
        config: the run's present settings.
        key: unique on the page; its widgets' keys begin with it.
        form: ties the choice of the form to the page's address: the widget's key, under which the session holds the
            form, and what its moves do.
        what: which run, where the page does not say.
        altered: the run took live changes.
        code: whether the text is shown below, where it is Python.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", key=f"{key}_take_home"):
        chosen: Form = st.segmented_control(
            f"Take it home{what and f': {literal(what)}'}",
            list(FORMS),
            format_func=lambda form: FORMS[form].title,
            required=True,
            **form,
        )
        kind = FORMS[chosen]
        try:
            export.check(chosen, config)
        except SettingError as refusal:
            st.warning(literal(str(refusal)), icon=":material/block:")
            return
        st.download_button(
            f"Download {kind.title}",
            lambda: export.source(chosen, config, altered=altered),
            export.file_name(chosen, config),
            kind.mime,
            icon=":material/download:",
            on_click="ignore",
            key=f"{key}_download_{chosen}",
        )
    st.caption(f"{kind.what} {_how(chosen)}")
    for sentence in export.departures(chosen, config, altered=altered):
        st.caption(f":material/info: {literal(sentence)}")
    if code and chosen != "notebook":
        text = export.source(chosen, config, altered=altered)
        st.code(text, language="python", line_numbers=False, height=HEIGHT)


def _how(form: Form) -> str:
    """How it is run, and what its losses are."""
    place = "Run it from the root of this project"
    if needs := FORMS[form].needs:
        return f"{place}, after `pip install -r {needs}`. Its losses can be laid over the run's."
    return f"{place}: it gives the run's own losses, to the last bit on one machine with one number of threads."
