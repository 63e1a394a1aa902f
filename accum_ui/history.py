"""Browser's Back and Forward on a page whose address says what it shows.

Streamlit adds each address that a page writes to the browser's history. On Back and Forward it runs the page with the
address that was stepped to; what the page then writes takes that address's place and adds nothing. It does not tell
such a run from another, so a page remembers here which address it knows of: another one is a step.

A control may be moved before the browser has heard of the newest address and then comes with an older one, which is no
step. So every control that changes the address says so by ``mover``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import streamlit as st

MARK: Final = "history_mark"


class _Mark:
    """Whether a control was moved since the page last looked."""

    def __init__(self) -> None:
        self.moved = False

    def set(self) -> None:
        self.moved = True


def mover() -> Callable[[], None]:
    """The callback of a control: what it shows now is what counts, not the address.

    It touches nothing of Streamlit's. Where a newer request waits, Streamlit ends a callback at its first touch, and
    puts that request back over one that came meanwhile: of quick keys the last would be lost.
    """
    return _mark().set


def moved() -> None:
    """The same, for a callback that does more."""
    _mark().set()


def stepped(page: str) -> bool:
    """Whether the browser's address is another than the page knows of, and no control was moved.

    Args:
        page: a name of the page, which stands in its session key.
    """
    here, mark = st.query_params.to_dict(), _mark()
    step = not mark.moved and here != st.session_state.get(_key(page))
    mark.moved = False
    if step:  # now, as a next step may end this run of the page before it writes
        st.session_state[_key(page)] = here
    return step


def write(page: str, address: Mapping[str, str]) -> None:
    """Let this be the page's address, in the browser too."""
    st.session_state[_key(page)] = dict(address)
    if address != st.query_params.to_dict():
        st.query_params.from_dict(address)


def _mark() -> _Mark:
    mark: _Mark = st.session_state.setdefault(MARK, _Mark())
    return mark


def _key(page: str) -> str:
    return f"{page}_address"
