"""The state of the page Language model: the address, the session and the widgets, kept equal.

The choice stands in the session, for whoever comes back by the navigation, which has no address. Each widget's state
is ``lm_set_<field>``: set from the choice whenever it is drawn, and taken over into the choice when it is moved.
"""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from accum_core.errors import SettingError
from accum_ui import history
from accum_ui.lab import literal
from accum_ui.language_model import choice as choices
from accum_ui.language_model.choice import DEFAULT, Choice
from accum_ui.settings import AXIS

PAGE: Final = "language_model"
CHOICE: Final = "lm_choice"
STRAYED: Final = "lm_strayed"  # why the address cannot be; "" if it can
PREFIX: Final = "lm_set_"


def open_page() -> tuple[Choice, str]:
    """The choice in the controls, or the address's when the page opens or Back or Forward leads to it.

    Returns:
        The choice, and a sentence about an address that cannot be ("" if it can).
    """
    here = st.query_params.to_dict()
    asked, strayed = DEFAULT, ""
    try:
        asked = choices.read(here)
    except SettingError as error:
        strayed = literal(str(error))
    drawn = any(str(name).startswith(PREFIX) for name in st.session_state)
    if CHOICE not in st.session_state or (history.stepped(PAGE) and (here or drawn)):
        st.session_state[CHOICE] = asked
    choice: Choice = st.session_state[CHOICE]
    st.session_state[STRAYED] = strayed
    return choice, strayed if choice == DEFAULT else ""


def remember() -> None:
    """Write the address that gives this page in another browser; one that cannot be stays until a control is moved."""
    choice: Choice = st.session_state[CHOICE]
    if st.session_state[STRAYED] and choice == DEFAULT:
        history.write(PAGE, st.query_params.to_dict())
        return
    wanted = choices.address(choice)
    if axis := st.query_params.get(AXIS):  # the charts' script writes it
        wanted[AXIS] = axis
    history.write(PAGE, wanted)


def bound(field: str) -> dict[str, Any]:
    """What ties a widget to the choice: its state, and what its moves do."""
    st.session_state[PREFIX + field] = getattr(st.session_state[CHOICE], field)
    return {"key": PREFIX + field, "on_change": _moved, "args": (field,)}


def _moved(field: str) -> None:
    history.moved()
    st.session_state[CHOICE] = choices.adjusted(st.session_state[CHOICE], **{field: st.session_state[PREFIX + field]})
