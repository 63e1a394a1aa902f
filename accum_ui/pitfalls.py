"""The Pitfalls page: the list of cards, the one that is open, and what its two scripts printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from math import isnan
from pathlib import Path
from typing import Final, Literal

import streamlit as st

from accum_core import pitfalls
from accum_core.errors import LabError, SettingError
from accum_core.pitfalls import Card, Cards, Outcome, Output
from accum_ui import palette
from accum_ui.lab import literal

Side = Literal["wrong", "right"]

STYLE: Final = Path(__file__).with_name("pitfalls.css")
SIGNS: Final[Mapping[Side, str]] = {"wrong": "\u2212", "right": "+"}
SHADES: Final = {"wrong": palette.VERDICT_COLORS["refuted"], "right": palette.VERDICT_COLORS["supported"]}
# Session keys: the controls, and what is known of the cards.
GROUP: Final = "pitfalls_group"
SEARCH: Final = "pitfalls_search"
ALL: Final = ""
OPEN: Final = "pitfalls_open"
OUTCOMES: Final = "pitfalls_outcomes"


def show() -> None:
    """All of the page below its title; a refusal is one sentence."""
    st.html(STYLE)
    st.html(f"<style>{colors()}</style>")
    try:
        cards = pitfalls.load()
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    strayed = _enter(cards)
    for sentence in strayed:
        st.error(sentence, icon=":material/error:")
    titles = {ALL: "All"} | {group.id: group.title for group in cards.groups}
    st.pills("Group", titles, format_func=titles.__getitem__, key=GROUP, required=True, label_visibility="collapsed")
    st.text_input(
        "Search",
        key=SEARCH,
        placeholder="Search: Adam, NaN, transformers ...",
        label_visibility="collapsed",
        type="search",
    )
    found = matching(cards.cards, st.session_state[GROUP], st.session_state[SEARCH])
    if not found:
        st.info("No card holds all of these words: try fewer, or another group.", icon=":material/search_off:")
    for group in cards.groups:
        members = [card for card in found if card.group == group.id]
        if members and st.session_state[GROUP] == ALL:
            st.subheader(group.title, anchor=False)
        for card in members:
            _card(card)
    if not strayed:
        _remember()


def matching(cards: Iterable[Card], group: str, words: str) -> list[Card]:
    """The cards of a group (of every group for ``ALL``) that hold every one of the words, in capitals or not."""
    wanted = words.casefold().split()

    def holds(card: Card) -> bool:
        text = " ".join([card.title, card.saw, card.why, card.quantity, *card.rows, *card.reports]).casefold()
        return all(word in text for word in wanted)

    return [card for card in cards if group in (ALL, card.group) and holds(card)]


def different_lines(wrong: str, right: str) -> dict[Side, list[int]]:
    """The lines of each script that the other has not, counted from 0."""
    first, second = wrong.splitlines(), right.splitlines()
    marked: dict[Side, list[int]] = {"wrong": [], "right": []}
    for kind, start, end, other_start, other_end in SequenceMatcher(None, first, second, False).get_opcodes():
        if kind != "equal":
            marked["wrong"] += range(start, end)
            marked["right"] += range(other_start, other_end)
    return marked


def colors() -> str:
    """The two sides' colours as a style, for light and for dark."""
    return "".join(
        f":is(.st-key-pitfalls_{side}, .pitfall-numbers .{side}) {{ --mark: light-dark({shade.light}, {shade.dark}); }}"
        for side, shade in SHADES.items()
    )


def marks(side: Side, lines: Sequence[int]) -> str:
    """The style that marks lines of a script by a tint, a bar and a sign, by their places alone."""
    if not lines:
        return ""
    tint, bar, places, sizes = [], [], [], []
    for line in lines:
        bar.append("linear-gradient(var(--mark), var(--mark))")
        places.append(f"0 {line}lh")
        sizes.append("3px 1lh")
        tint.append("linear-gradient(color-mix(in srgb, var(--mark) 14%, transparent) 0 0)")
    everywhere = ["100% 1lh"] * len(lines)
    signs = "\\a ".join(SIGNS[side] if line in lines else "" for line in range(max(lines) + 1))
    return (
        f".st-key-pitfalls_{side} code {{ background-image: {', '.join(bar + tint)}; "
        f"background-position: {', '.join(places * 2)}; background-size: {', '.join(sizes + everywhere)}; }}"
        f'.st-key-pitfalls_{side} code::before {{ content: "{signs}"; }}'
    )


def sentence(card: Card, outcome: Outcome) -> str:
    """What the two scripts printed, in words."""
    wrong, right = spoken(outcome.wrong.result), spoken(outcome.right.result)
    return f"{card.quantity}: the wrong loop gives {wrong}, the right one {right}."


def spoken(values: Sequence[float]) -> str:
    """Numbers for people: "6", "0.5 and \u22120.5", "NaN"."""
    *first, last = [_number(value) for value in values]
    return f"{', '.join(first)} and {last}" if first else last


def _number(value: float) -> str:
    return "NaN" if isnan(value) else f"{value:.4g}".replace("-", SIGNS["wrong"])


def _enter(cards: Cards) -> list[str]:
    """Read the address when the page opens; sentences about what it names and there is not."""
    if GROUP in st.session_state:
        return []
    group, card, refusals = ALL, None, []
    try:
        if name := st.query_params.get("group"):
            group = cards.group(name).id
        if name := st.query_params.get("card"):
            card = cards.card(name)
    except SettingError as error:
        refusals.append(literal(str(error)))
    # A link to a card leads to it, not to the head of a list that has it somewhere.
    st.session_state[GROUP] = card.group if card else group
    st.session_state[SEARCH] = ""
    st.session_state[OPEN] = card.id if card else None
    st.session_state[OUTCOMES] = {}
    return refusals


def _remember() -> None:
    """Write the address that gives this page in another browser."""
    named = {"group": st.session_state[GROUP], "card": st.session_state[OPEN]}
    wanted = {name: value for name, value in named.items() if value}
    if wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)


def _card(card: Card) -> None:
    key = f"pitfalls_card_{card.id}"
    st.session_state[key] = st.session_state[OPEN] == card.id
    with st.expander(card.title, key=key, on_change=_toggle, args=(card.id,)) as box:
        if box.open:
            _opened(card)


def _toggle(name: str) -> None:
    """Open a card, which closes the one that was open, or close it."""
    st.session_state[OPEN] = name if st.session_state[f"pitfalls_card_{name}"] else None


def _opened(card: Card) -> None:
    links = ", ".join(f"[{name}]({address})" for name, address in card.links().items())
    st.markdown(f"**What people saw.** {card.saw}\n\n**Why.** {card.why}\n\n**Reported in** {links}.")
    if st.button("Run both", key="pitfalls_run", type="primary", icon=":material/play_arrow:"):
        st.session_state[OUTCOMES].pop(card.id, None)
        try:
            with st.spinner("Both scripts run on this machine, which takes some seconds."):
                st.session_state[OUTCOMES][card.id] = pitfalls.run(card)
        except LabError as error:
            st.error(str(error), icon=":material/error:")
    if outcome := st.session_state[OUTCOMES].get(card.id):
        _numbers(card, outcome)
    marked = different_lines(card.wrong, card.right)
    for column, side in zip(st.columns(2, gap="medium"), SIGNS, strict=True):
        with column, st.container(key=f"pitfalls_{side}", gap="small"):
            title = f'<h4><span class="pitfall-side">{SIGNS[side]}</span> The {side} loop</h4>'
            st.html(f"{title}<style>{marks(side, marked[side])}</style>")
            st.code(getattr(card, side), language="python")


def _numbers(card: Card, outcome: Outcome) -> None:
    pairs: dict[Side, Output] = {"wrong": outcome.wrong, "right": outcome.right}
    boxes = "".join(
        f'<div class="{side}"><dt>{SIGNS[side]} the {side} loop</dt><dd>{spoken(output.result)}</dd></div>'
        for side, output in pairs.items()
    )
    st.html(f'<dl class="pitfall-numbers">{boxes}</dl>')
    st.markdown(sentence(card, outcome))
    for side, output in pairs.items():
        if output.printed:
            st.html(f'<p class="pitfall-printed">The {side} loop printed: <samp>{escape(output.printed)}</samp></p>')
