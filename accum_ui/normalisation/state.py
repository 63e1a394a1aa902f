"""The state of the page on normalisation: the address, the session and the widgets, kept equal.

The choice stands in the session, for whoever comes back by the navigation, which has no address. Each widget's state
is ``norms_set_<field>``: set from the choice whenever it is drawn, and taken over into the choice when it is moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import streamlit as st

from accum_core.errors import SettingError
from accum_ui import history
from accum_ui.lab import literal
from accum_ui.normalisation import choice as choices
from accum_ui.normalisation.choice import DEFAULT, Choice

PAGE: Final = "norms"
CHOICE: Final = "norms_choice"
STRAYED: Final = "norms_strayed"  # why the address cannot be; "" if it can
PREFIX: Final = "norms_set_"
OF_ONE_RUN: Final = ("layer", "channel", "update", "steps")


def key(field: str) -> str:
    """The session key of a widget."""
    return f"{PREFIX}{field}"


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
        _put(asked)
    choice: Choice = st.session_state[CHOICE]
    st.session_state[STRAYED] = strayed
    return choice, strayed if choice == DEFAULT else ""


def remember() -> None:
    """Write the address that gives this page in another browser; one that cannot be stays until a control is moved."""
    choice: Choice = st.session_state[CHOICE]
    stays = st.session_state[STRAYED] and choice == DEFAULT
    history.write(PAGE, st.query_params.to_dict() if stays else choices.address(choice))


def bound(field: str, value: Any) -> dict[str, Any]:
    """What ties a widget to the choice: its state, which is what the choice comes to, and what its moves do."""
    st.session_state[key(field)] = value
    return {"key": key(field), "on_change": _moved, "args": (field,)}


def _moved(field: str) -> None:
    history.moved()
    value = st.session_state[key(field)]
    if field == "norms":
        value = choices.in_order(value or ())
    elif field == "seeds":
        value = tuple(sorted(value or ()))
    changed = replace(st.session_state[CHOICE], **{field: getattr(DEFAULT, field) if value is None else value})
    if field == "on":
        changed = replace(DEFAULT, on=value, norms=changed.norms)
    elif field == "run":
        changed = replace(changed, **{name: getattr(DEFAULT, name) for name in OF_ONE_RUN})
    elif field in ("layer", "update"):
        changed = replace(changed, channel=DEFAULT.channel)
    st.session_state[CHOICE] = changed


def _put(choice: Choice) -> None:
    for name in [name for name in st.session_state if str(name).startswith(PREFIX)]:
        del st.session_state[name]
    st.session_state[CHOICE] = choice
