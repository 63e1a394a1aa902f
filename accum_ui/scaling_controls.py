"""The controls of the page on loss scaling, and the state behind them.

The choice stands in the session; each widget's state is ``scaling_<field>`` and is filled from it when the widget is
drawn for the first time, as Streamlit forgets widgets that a run of the page did not draw.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import streamlit as st

from accum_core import landcover
from accum_core.errors import SettingError
from accum_core.label_sources import MOST_SAMPLES, MOST_SENTENCES, STRIP, TOPICS
from accum_core.reduction import TAIL_RULES
from accum_ui import palette
from accum_ui import scaling_window as window
from accum_ui.lab import literal
from accum_ui.scaling_window import Choice

CHOICE: Final = "scaling_choice"
PREFIX: Final = "scaling_set_"
TAIL_TITLES: Final = {"rescale": "rescale", "drop": "drop", "divide_by_n": "divide by N"}


def key(field: str) -> str:
    """The session key of a widget."""
    return f"{PREFIX}{field}"


def open_page() -> tuple[Choice, list[str], bool]:
    """The choice in the controls, or the address's when the page opens.

    Returns:
        The choice, sentences about what cannot be, and whether the address itself holds what cannot be.
    """
    refusals: list[str] = []
    asked, strayed = window.DEFAULT, ""
    try:
        asked = window.read(st.query_params.to_dict())
    except SettingError as error:
        strayed = literal(str(error))
    st.session_state.setdefault(CHOICE, asked)
    try:
        st.session_state[CHOICE] = _gathered(st.session_state[CHOICE])
    except SettingError as error:
        refusals.append(literal(str(error)))
    choice: Choice = st.session_state[CHOICE]
    if strayed and choice == window.DEFAULT:  # once a control is moved, this run writes an address that can be
        refusals.append(strayed)
    return choice, refusals, bool(strayed)


def remember(choice: Choice, *, strayed: bool) -> None:
    """Write the address that gives this page in another browser; one that cannot be stays until a control is moved."""
    wanted = window.address(choice)
    if not (strayed and choice == window.DEFAULT) and wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)


def take(choice: Choice) -> None:
    """Show this choice in the controls."""
    for name in [name for name in st.session_state if str(name).startswith(PREFIX)]:
        del st.session_state[name]
    st.session_state[CHOICE] = choice


def show(choice: Choice) -> None:
    """Presets, the source of the window, what it holds, and the rule for a short window."""
    with st.container(horizontal=True, gap="small", key="scaling_presets"):
        for name, preset in window.PRESETS.items():
            chosen = window.used(choice) == window.used(preset)
            st.button(
                name, on_click=take, args=(preset,), type="primary" if chosen else "secondary", key=f"preset {name}"
            )
    with st.container(border=True, gap="small", key="scaling_controls"):
        _set("source", choice.source)
        st.segmented_control(
            "A window of",
            list(window.SOURCES),
            key=key("source"),
            format_func=window.SOURCES.__getitem__,
            required=True,
        )
        {"counts": _counts, "sentences": _sentences, "masks": _masks, "numbers": _numbers}[choice.source](choice)
        _rule(choice)


def _set(field: str, value: Any) -> None:
    st.session_state.setdefault(key(field), value)


def _counts(choice: Choice) -> None:
    _set("count", len(choice.counts))
    st.slider("Micro-batches in the window", 1, window.MOST_STEPS, key=key("count"), width=420)
    with st.container(horizontal=True, gap="small"):
        for index, (samples, valid) in enumerate(choice.counts):
            _set(f"samples_{index}", samples)
            _set(f"valid_{index}", valid)
            with st.container(border=True, width=150, gap=None):
                st.markdown(f"**Micro-batch {index + 1}**")
                st.slider(f"samples ({index + 1})", 1, MOST_SAMPLES, key=key(f"samples_{index}"))
                st.slider(f"valid in each ({index + 1})", 0, STRIP, key=key(f"valid_{index}"))
    st.caption(
        f"A sample is a strip of {STRIP} pixels from a satellite tile of its own; pixels beyond the valid ones are "
        "ignored, as padding is. The model tells the class from the colour."
    )


def _sentences(choice: Choice) -> None:
    _set("topics", list(choice.topics))
    _set("sentences", choice.sentences)
    _set("token", choice.token)
    st.pills("Entries, one a micro-batch", TOPICS, selection_mode="multi", key=key("topics"))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.slider("Sentences of each, at most", 1, MOST_SENTENCES, key=key("sentences"), width=300)
        st.segmented_control("A token is one of its", window.TOKENS, key=key("token"), required=True)
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
        st.slider("Micro-batches in the window", 1, window.MOST_STEPS, key=key("steps"), width=280)
        st.slider("Tiles in each", 1, window.MOST_TILES, key=key("micro"), width=200)
        st.number_input("First tile", 0, window.TILES - 1, key=key("first"), step=8, width=140)
    st.pills(
        "Ignored classes",
        range(len(landcover.CLASS_NAMES)),
        selection_mode="multi",
        key=key("ignore"),
        format_func=landcover.CLASS_NAMES.__getitem__,
    )
    with st.container(horizontal=True, gap="small"):
        for index, batch in enumerate(choice.masks(), 1):
            valid = (batch.targets >= 0).mean()
            picture = batch.picture(palette.TEXT.light)
            st.image(
                picture, width=96 * choice.micro, caption=f"{index}: {valid:.0%} valid", alt=f"Micro-batch {index}"
            )
    st.caption("Above the tiles, below their classes, black where a pixel is ignored.")


def _numbers(choice: Choice) -> None:
    _set("numbers", window.write_numbers(choice.numbers))
    st.text_input(
        "Gradient of each label; a semicolon ends a micro-batch", key=key("numbers"), max_chars=2000, width=560
    )
    st.caption("One weight w = 1 and the loss w x, so that the gradient of a label is its x.")


def _rule(choice: Choice) -> None:
    held = choice.num_micro_batches
    # N below what the window holds cannot be: it grows with the window.
    st.session_state[key("full")] = max(held, st.session_state.get(key("full"), choice.full or held))
    _set("tail", choice.tail)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.number_input(
            "N of a full window",
            held,
            window.MOST_FULL,
            key=key("full"),
            width=150,
            help="Micro-batches in a full window. Above what this window holds, it is a tail.",
        )
        st.segmented_control(
            "A window that is not full",
            TAIL_RULES,
            key=key("tail"),
            format_func=TAIL_TITLES.__getitem__,
            required=True,
            help="rescale divides by what it holds, drop leaves it out, divide by N counts it as full.",
        )
        if choice.weighable:
            _set("class_weights", choice.class_weights)
            st.toggle(
                "Class weights",
                key=key("class_weights"),
                help="Weigh each pixel by the inverse of its class's frequency.",
            )


def _gathered(choice: Choice) -> Choice:
    """The choice with what the widgets hold now.

    Raises:
        SettingError: for numbers that cannot be read.
    """
    state = {str(name).removeprefix(PREFIX): value for name, value in st.session_state.items()}
    found: dict[str, Any] = {
        name: state[name]
        for name in ("source", "sentences", "token", "first", "steps", "micro", "tail")
        if name in state
    }
    if "class_weights" in state:
        found["class_weights"] = state["class_weights"]
    if "full" in state:
        found["full"] = state["full"]
    if "topics" in state:
        if not state["topics"]:
            raise SettingError("topics", "", f"choose at least one of {', '.join(TOPICS)}")
        found["topics"] = tuple(state["topics"])
    if "ignore" in state:
        found["ignore"] = tuple(sorted(state["ignore"]))
    if "count" in state:
        held = [*choice.counts, *[choice.counts[-1]] * state["count"]][: state["count"]]
        found["counts"] = tuple(
            (state.get(f"samples_{index}", samples), state.get(f"valid_{index}", valid))
            for index, (samples, valid) in enumerate(held)
        )
    if "numbers" in state:
        try:
            found["numbers"] = window.parse_numbers(state["numbers"])
        except ValueError as error:
            raise SettingError("x", state["numbers"], str(error)) from None
    return window.settled(replace(choice, **found))
