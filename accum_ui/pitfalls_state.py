"""The Pitfalls page's state in the session and in the address: group, search, the open card, whether it was run.

Every address means a state, and every state has an address that means it, so a reload and a link give the page that
was left. Opening, choosing and searching each add one to the browser's history, because Streamlit pushes an address
that the page writes; Back and Forward run the page with another address than the page knew of, which is then read.

``group`` is left out where it follows: for a card its own group, without a card all. A card that the address names is
shown, so a group or a search that would hide it gives way; on the page a card closes as soon as it is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import streamlit as st

from accum_core.errors import SettingError
from accum_core.pitfalls import Card, Cards
from accum_ui import history
from accum_ui.lab import literal

ALL: Final = "all"
ASKED: Final = "1"
# Session keys: the controls, the open card's id, the ids of the cards whose results are shown ...
GROUP: Final = "pitfalls_group"
SEARCH: Final = "pitfalls_search"
OPEN: Final = "pitfalls_open"
RAN: Final = "pitfalls_ran"
# ... the address that the page knows of, and whether this run of the page answers a control.
PAGE: Final = "pitfalls"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class State:
    """What the page shows: the id of a group or ``ALL``, the searched words, the open card's id, and whether the
    result of that card's scripts was asked for."""

    group: str = ALL
    search: str = ""
    card: str | None = None
    ran: bool = False


def read(address: Mapping[str, str], cards: Cards) -> tuple[State, list[str]]:
    """The state that an address means, and a sentence about everything in it that there is not."""
    refusals: list[str] = []

    def known(name: str, find: Callable[[str], Found]) -> Found | None:
        try:
            return find(address[name]) if address.get(name) else None
        except SettingError as error:
            refusals.append(literal(str(error)))
            return None

    card = known("card", cards.card)
    wanted = None if address.get("group") == ALL else known("group", cards.group)
    ran = known("run", _asked) is not None
    search = address.get("search", "")
    if card is None:
        return State(wanted.id if wanted else ALL, search), refusals
    group = ALL if address.get("group") == ALL else card.group
    return State(group, search if matching([card], ALL, search) else "", card.id, ran), refusals


def written(state: State, cards: Cards) -> dict[str, str]:
    """The shortest address that means a state."""
    usual = cards.card(state.card).group if state.card else ALL
    named = {
        "group": "" if state.group == usual else state.group,
        "search": state.search,
        "card": state.card or "",
        "run": ASKED if state.ran else "",
    }
    return {name: value for name, value in named.items() if value}


def matching(cards: Iterable[Card], group: str, words: str) -> list[Card]:
    """The cards of a group (of every group for ``ALL``) that hold every one of the words, in capitals or not."""
    wanted = words.casefold().split()

    def holds(card: Card) -> bool:
        text = " ".join([card.title, card.saw, card.why, card.quantity, *card.rows, *card.reports]).casefold()
        return all(word in text for word in wanted)

    return [card for card in cards if group in (ALL, card.group) and holds(card)]


def open_page(cards: Cards) -> list[str]:
    """Bring the controls and the address together; sentences about what the address names and there is not.

    An address that means what is shown stays as it is written, even a refused one, so that opening a link adds nothing
    to the history.
    """
    address = st.query_params.to_dict()
    meant, refusals = read(address, cards)
    if history.stepped(PAGE) or GROUP not in st.session_state:
        _fill(meant)
    shown = _shown(cards)
    if shown != meant:
        address, refusals = written(shown, cards), []
    history.write(PAGE, address)
    return refusals


def toggle(name: str) -> None:
    """Open a card, which closes the one that was open, or close it."""
    history.moved()
    st.session_state[OPEN] = name if st.session_state[card_key(name)] else None


def ask(name: str) -> None:
    """Show the result of a card's scripts."""
    history.moved()
    st.session_state[RAN].add(name)


def look_everywhere() -> None:
    """Search all groups."""
    history.moved()
    st.session_state[GROUP] = ALL


def card_key(name: str) -> str:
    """The session key of a card."""
    return f"pitfalls_card_{name}"


def _asked(value: str) -> str:
    if value == ASKED:
        return value
    raise SettingError("run", value, f"cannot be; use {ASKED} for a result, or leave it out")


def _fill(state: State) -> None:
    st.session_state[GROUP] = state.group
    st.session_state[SEARCH] = state.search
    st.session_state[OPEN] = state.card
    ran = st.session_state.setdefault(RAN, set())
    if state.ran:
        ran.add(state.card)
    else:
        ran.discard(state.card)


def _shown(cards: Cards) -> State:
    """What the controls show, after a card that they hide is closed."""
    group, search = st.session_state[GROUP], st.session_state[SEARCH]
    if st.session_state[OPEN] not in {card.id for card in matching(cards.cards, group, search)}:
        st.session_state[OPEN] = None
    card = st.session_state[OPEN]
    return State(group, search, card, card in st.session_state[RAN])
