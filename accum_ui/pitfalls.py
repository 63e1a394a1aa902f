"""The Pitfalls page: the list of cards, the one that is open, and what its two scripts printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from html import escape
from math import isnan
from pathlib import Path
from typing import Final, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from accum_core import palette, pitfalls
from accum_core.errors import LabError
from accum_core.pitfalls import Card, Cards, Outcome, Output
from accum_ui import history, pitfalls_state
from accum_ui.pitfalls_state import ALL, GROUP, OPEN, RAN, SEARCH, matching

Side = Literal["wrong", "right"]

STYLE: Final = Path(__file__).with_name("pitfalls.css")
SIGNS: Final[Mapping[Side, str]] = {"wrong": "\u2212", "right": "+"}
SHADES: Final = {"wrong": palette.VERDICT_COLORS["refuted"], "right": palette.VERDICT_COLORS["supported"]}


def show() -> None:
    """All of the page below its title; a refusal is one sentence."""
    st.html(STYLE)
    st.html(f"<style>{colors()}</style>")
    try:
        cards = pitfalls.load()
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return
    for refusal in pitfalls_state.open_page(cards):
        st.error(refusal, icon=":material/error:")
    _controls(cards)
    group, words = st.session_state[GROUP], st.session_state[SEARCH]
    found = matching(cards.cards, group, words)
    if not found:
        _nothing(bool(matching(cards.cards, ALL, words)))
    results = []
    for heading in cards.groups:
        members = [card for card in found if card.group == heading.id]
        if members and group == ALL:
            st.subheader(heading.title, anchor=False)
        results += [result for card in members if (result := _card(card))]
    for result in results:  # after the whole list, which need not wait for the scripts
        result()


def _controls(cards: Cards) -> None:
    titles = {ALL: "All"} | {group.id: group.title for group in cards.groups}
    st.pills(
        "Group",
        titles,
        format_func=titles.__getitem__,
        key=GROUP,
        required=True,
        label_visibility="collapsed",
        on_change=history.mover(),
    )
    st.text_input(
        "Search",
        key=SEARCH,
        placeholder="Search: Adam, NaN, transformers ...",
        label_visibility="collapsed",
        type="search",
        on_change=history.mover(),
    )


def _nothing(elsewhere: bool) -> None:
    if not elsewhere:
        st.info("No card holds all of these words: try fewer.", icon=":material/search_off:")
        return
    st.info("No card of this group holds all of these words, but one of another does.", icon=":material/search_off:")
    st.button("Search all groups", key="pitfalls_everywhere", on_click=pitfalls_state.look_everywhere)


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


def _card(card: Card) -> Callable[[], None] | None:
    """A card, and what shows the result of its scripts if that was asked for."""
    key = pitfalls_state.card_key(card.id)
    st.session_state[key] = st.session_state[OPEN] == card.id
    with st.expander(card.title, key=key, on_change=pitfalls_state.toggle, args=(card.id,)) as box:
        return _opened(card) if box.open else None


def _opened(card: Card) -> Callable[[], None] | None:
    links = ", ".join(f"[{name}]({address})" for name, address in card.links().items())
    st.markdown(f"**What people saw.** {card.saw}\n\n**Why.** {card.why}\n\n**Reported in** {links}.")
    pressed = st.button(
        "Run both",
        key="pitfalls_run",
        type="primary",
        icon=":material/play_arrow:",
        on_click=pitfalls_state.ask,
        args=(card.id,),
    )
    place = st.container()
    marked = different_lines(card.wrong, card.right)
    for column, side in zip(st.columns(2, gap="medium"), SIGNS, strict=True):
        with column, st.container(key=f"pitfalls_{side}", gap="small"):
            title = f'<h4><span class="pitfall-side">{SIGNS[side]}</span> The {side} loop</h4>'
            st.html(f"{title}<style>{marks(side, marked[side])}</style>")
            st.code(getattr(card, side), language="python")
    return partial(_result, card, place, pressed) if card.id in st.session_state[RAN] else None


def _result(card: Card, place: DeltaGenerator, pressed: bool) -> None:
    """Run the scripts; or, as a reload and a click elsewhere leave a run under way, wait for it and show its result."""
    with place:
        try:
            with st.spinner("Both scripts run on this machine, which takes some seconds."):
                outcome = pitfalls.run(card) if pressed else pitfalls.latest(card)
        except LabError as error:
            st.error(str(error), icon=":material/error:")
            return
        if outcome:
            _numbers(card, outcome)


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
