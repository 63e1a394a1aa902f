"""The controls of the page on loss scaling, and the state behind them.

The choice stands in the session; each widget's state is ``scaling_set_<field>`` and is filled from it when the widget
is drawn for the first time, as Streamlit forgets widgets that a run of the page did not draw. Whoever comes back by the
navigation, which has no address, finds the choice that was left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from accum_core import landcover, palette
from accum_core.errors import SettingError
from accum_core.label_sources import MOST_SAMPLES, MOST_SENTENCES, STRIP, TOPICS
from accum_core.reduction import TAIL_RULES
from accum_ui import history
from accum_ui import scaling_address as address
from accum_ui import scaling_window as window
from accum_ui.lab import literal
from accum_ui.scaling_window import Choice

PAGE: Final = "scaling"
CHOICE: Final = "scaling_choice"
PREFIX: Final = "scaling_set_"
TAIL_TITLES: Final = {"rescale": "rescale", "drop": "drop", "divide_by_n": "divide by N"}


def key(field: str) -> str:
    """The session key of a widget."""
    return f"{PREFIX}{field}"


def open_page() -> tuple[Choice, list[str], bool]:
    """The choice in the controls, or the address's when the page opens or Back or Forward leads to it.

    Returns:
        The choice, sentences about what cannot be, and whether the address itself holds what cannot be.
    """
    here = st.query_params.to_dict()
    asked, strayed = window.DEFAULT, ""
    try:
        asked = address.read(here)
    except SettingError as error:
        strayed = literal(str(error))
    drawn = any(str(name).startswith(PREFIX) for name in st.session_state)
    if CHOICE not in st.session_state or (history.stepped(PAGE) and (here or drawn)):
        _put(asked)
    st.session_state[CHOICE], refusals = _gathered(st.session_state[CHOICE])
    choice = window.settled(st.session_state[CHOICE])
    if strayed and choice == window.DEFAULT:  # once a control is moved, this run writes an address that can be
        refusals.append(strayed)
    return choice, refusals, bool(strayed)


def remember(choice: Choice, *, strayed: bool) -> None:
    """Write the address that gives this page in another browser; one that cannot be stays until a control is moved."""
    stays = strayed and choice == window.DEFAULT
    history.write(PAGE, st.query_params.to_dict() if stays else address.address(choice))


def take(choice: Choice) -> None:
    """Show this choice in the controls."""
    history.moved()
    _put(choice)


def _put(choice: Choice) -> None:
    for name in [name for name in st.session_state if str(name).startswith(PREFIX)]:
        del st.session_state[name]
    st.session_state[CHOICE] = choice


def show(choice: Choice) -> None:
    """Presets, the source of the window, what it holds, and the rule for a short window."""
    with st.container(horizontal=True, gap="small", key="scaling_presets"):
        for name, preset in window.PRESETS.items():
            chosen = address.used(choice) == address.used(preset)
            st.button(
                name, on_click=take, args=(preset,), type="primary" if chosen else "secondary", key=f"preset {name}"
            )
    with st.container(border=True, gap="small", key="scaling_controls"):
        _set("source", choice.source)
        st.segmented_control(
            "A window of",
            list(window.SOURCES),
            **_bound("source"),
            format_func=window.SOURCES.__getitem__,
            required=True,
        )
        {"counts": _counts, "sentences": _sentences, "masks": _masks, "numbers": _numbers}[choice.source](choice)
        _rule(choice)


def _set(field: str, value: Any) -> None:
    if st.session_state.get(key(field)) is None:  # of a widget that is new, or of a number's box that was cleared
        st.session_state[key(field)] = value


def _bound(field: str) -> dict[str, Any]:
    """What ties a widget to its state, and its moves to the address."""
    return {"key": key(field), "on_change": history.mover()}


def _counts(choice: Choice) -> None:
    _set("count", len(choice.counts))
    st.slider("Micro-batches in the window", 1, window.MOST_STEPS, **_bound("count"), width=420)
    with st.container(horizontal=True, gap="small"):
        for index, (samples, valid) in enumerate(choice.counts):
            _set(f"samples_{index}", samples)
            _set(f"valid_{index}", valid)
            with st.container(border=True, width=150, gap=None):
                st.markdown(f"**Micro-batch {index + 1}**")
                st.slider(f"samples ({index + 1})", 1, MOST_SAMPLES, **_bound(f"samples_{index}"))
                st.slider(f"valid in each ({index + 1})", 0, STRIP, **_bound(f"valid_{index}"))
    st.caption(
        f"A sample is a strip of {STRIP} pixels from a satellite tile of its own; pixels beyond the valid ones are "
        "ignored, as padding is. The model tells the class from the colour."
    )


def _sentences(choice: Choice) -> None:
    _set("topics", list(choice.topics))
    _set("sentences", choice.sentences)
    _set("token", choice.token)
    st.pills("Entries, one a micro-batch", TOPICS, selection_mode="multi", **_bound("topics"))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.slider("Sentences of each, at most", 1, MOST_SENTENCES, **_bound("sentences"), width=300)
        st.segmented_control("A token is one of its", window.TOKENS, **_bound("token"), required=True)
    st.caption(
        "The sentences are those that help() prints in this version of Python. Each is padded to the longest of its "
        "micro-batch, the padding is ignored, and the model tells the next token from the one before."
    )
    with st.expander("Read the sentences"):
        for index, (topic, texts) in enumerate(zip(choice.topics, choice.texts(), strict=True), 1):
            st.markdown(f"**Micro-batch {index}, {topic}.** {literal(' '.join(texts))}")


def _masks(choice: Choice) -> None:
    for field, value in (("first", choice.first), ("steps", choice.steps), ("micro", choice.micro)):
        _set(field, value)
    _set("ignore", list(choice.ignore))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.slider("Micro-batches in the window", 1, window.MOST_STEPS, **_bound("steps"), width=280)
        st.slider("Tiles in each", 1, window.MOST_TILES, **_bound("micro"), width=200)
        st.number_input("First tile", value=None, **_bound("first"), step=8, width=140)
    st.pills(
        "Ignored classes",
        range(len(landcover.CLASS_NAMES)),
        selection_mode="multi",
        **_bound("ignore"),
        format_func=landcover.CLASS_NAMES.__getitem__,
    )
    with st.container(horizontal=True, gap="small", key="scaling_masks"):
        for index, batch in enumerate(choice.masks(), 1):
            valid = (batch.targets >= 0).mean()
            picture = batch.picture(palette.TEXT.light)
            st.image(
                picture, width=96 * choice.micro, caption=f"{index}: {valid:.0%} valid", alt=f"Micro-batch {index}"
            )
    st.caption("Above the tiles, below their classes, black where a pixel is ignored.")


def _numbers(choice: Choice) -> None:
    _set("numbers", address.write_numbers(choice.numbers))
    st.text_input(
        "Gradient of each label; a semicolon ends a micro-batch", **_bound("numbers"), max_chars=2000, width=560
    )
    st.caption("One weight w = 1 and the loss w x, so that the gradient of a label is its x.")


def _rule(choice: Choice) -> None:
    _set(_full(choice), choice.accumulation_steps)
    _set("tail", choice.tail)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.number_input(
            "N of a full window",
            value=None,
            step=1,
            **_bound(_full(choice)),
            width=150,
            help="Micro-batches in a full window. Above what this window holds, it is a tail.",
        )
        st.segmented_control(
            "A window that is not full",
            TAIL_RULES,
            **_bound("tail"),
            format_func=TAIL_TITLES.__getitem__,
            required=True,
            help="rescale divides by what it holds, drop leaves it out, divide by N counts it as full.",
        )
        if choice.weighable:
            _set("class_weights", choice.class_weights)
            st.toggle(
                "Class weights",
                **_bound("class_weights"),
                help="Weigh each pixel by the inverse of its class's frequency.",
            )


def _gathered(choice: Choice) -> tuple[Choice, list[str]]:
    """The choice with what the widgets hold now, and sentences about those that hold what cannot be.

    A refused widget keeps what was typed, and the choice what it had.
    """
    state = {str(name).removeprefix(PREFIX): value for name, value in st.session_state.items()}
    refusals: list[str] = []
    found: dict[str, Any] = {
        name: state[name]
        for name in ("source", "sentences", "token", "steps", "micro", "tail", "class_weights")
        if name in state
    }
    if "ignore" in state:
        found["ignore"] = tuple(sorted(state["ignore"]))
    if "count" in state:
        held = [*choice.counts, *[choice.counts[-1]] * state["count"]][: state["count"]]
        found["counts"] = tuple(
            (state.get(f"samples_{index}", samples), state.get(f"valid_{index}", valid))
            for index, (samples, valid) in enumerate(held)
        )
    checks: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "topics": ("topics", _some),
        "numbers": ("x", address.parse_numbers),
        "first": ("first", lambda value: address.parse_first(str(value))),
    }
    for field, (name, check) in checks.items():
        if state.get(field) is not None:
            try:
                found[field] = check(state[field])
            except ValueError as error:
                refusals.append(literal(str(SettingError(name, state[field], str(error)))))
    changed = replace(choice, **found)
    try:
        return _with_full(choice, changed), refusals
    except SettingError as error:
        return changed, [*refusals, literal(str(error))]


def _some(topics: list[str]) -> tuple[str, ...]:
    if not topics:
        raise ValueError(f"choose at least one of {', '.join(TOPICS)}")
    return tuple(topics)


def _full(choice: Choice) -> str:
    """The field of the box of N. A window of another length has a box of its own: a browser may send the N that it
    was shown for the last one, which nobody set."""
    return f"full_{choice.num_micro_batches}"


def _with_full(before: Choice, choice: Choice) -> Choice:
    """The choice with the N that the reader set. An N that was only shown follows the window.

    Raises:
        SettingError: for an N that cannot be, which stays in its box.
    """
    box = key(_full(choice))
    if box != key(_full(before)):
        st.session_state[box] = choice.accumulation_steps
        return choice
    typed = st.session_state.get(box)
    if typed in (None, before.accumulation_steps):
        return choice
    try:
        full = address.parse_full(str(typed), choice)
    except ValueError as error:
        raise SettingError("N", typed, str(error)) from None
    return window.settled(replace(choice, full=full))
