"""The whole page: the cards, or the paper that the address opens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st

from accum_core.errors import LabError, SettingError
from accum_ui.lab import literal
from accum_ui.reproduce import cards, choice, paper, words
from experiments import discover, find
from experiments.report.html import TABLES

STYLE: Final = Path(__file__).with_name("reproduce.css")


def show() -> None:
    """The page that the address asks for; one that cannot be is told in a sentence above the cards."""
    st.html(STYLE)
    st.html(TABLES)
    dark = st.context.theme.type == "dark"
    asked, strayed = choice.Choice(), ""
    try:
        discover()
        asked = choice.read(st.query_params.to_dict())
    except SettingError as error:
        strayed = literal(str(error))
    except LabError as error:  # an experiment's file is none
        st.title(words.TITLE, anchor=False)
        st.error(literal(str(error)), icon=":material/error:")
        return
    if asked.paper:
        paper.show(find(asked.paper), asked, dark=dark)
        return
    st.title(words.TITLE, anchor=False)
    if strayed:
        st.error(strayed, icon=":material/error:")
    st.markdown(
        "Each paper's claim is measured again at a size that this machine finishes in minutes, over seeds that chose "
        "none of its settings. A claim that does not hold here is told as plainly as one that does."
    )
    cards.show(dark)
