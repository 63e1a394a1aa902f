"""The address of the page on loss scaling: every choice comes back from its own, and what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accum_core.errors import SettingError
from accum_core.label_sources import TOPICS
from accum_core.reduction import TAIL_RULES
from accum_ui import scaling_address
from accum_ui import scaling_window as window
from accum_ui.scaling_window import Choice


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("source", "pictures", "use one of counts, sentences, masks, numbers"),
        ("w", "", "4x16,1x8"),
        ("w", "4", "4x16,1x8"),
        ("w", "0x4", "1 to 16 samples"),
        ("w", "4x17", "0 to 16 valid labels"),
        ("w", "4x-1", "0 to 16 valid labels"),
        ("w", "4x" + "9" * 5000, "0 to 16 valid labels"),
        ("w", ",".join(["1x1"] * 17), "1 to 16 micro-batches"),
        ("topics", "pass,spam", "use only pass, break"),
        ("topics", "pass,,if", "with commas in between"),
        ("topics", "if,pass,pass", "pass stands there 2 times; name each entry once"),
        ("topics", "", "name at least one of pass, break"),
        ("sentences", "0", "from 1 to 8"),
        ("token", "letters", "use one of words, bytes"),
        ("first", "793", "from 0 to 792"),
        ("first", "٣", "from 0 to 792"),
        ("steps", "17", "from 1 to 16"),
        ("micro", "5", "from 1 to 4"),
        ("ignore", "6", "from 0 to 5"),
        ("ignore", "0,0", "or none"),
        ("x", "ten", "such as 10; 2, 2, 2"),
        ("x", "nan", "such as 10; 2, 2, 2"),
        ("x", "1e7", "none beyond a million"),
        ("x", "1," * 65, "at most 64 numbers"),
        ("weigh", "labels", "'labels': use classes, or leave it out."),
        ("tail", "keep", "use one of rescale, drop, divide_by_n"),
        *[("full", value, "from 4, which this window holds, to 64") for value in ("0", "3", "65", "1.5", "")],
    ],
)
def test_what_cannot_be_in_an_address_is_refused(name: str, value: str, way_out: str) -> None:
    with pytest.raises(SettingError) as refusal:
        scaling_address.read({name: value})
    assert refusal.value.field == name and way_out in str(refusal.value) and "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


counts = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), min_size=1, max_size=16).map(tuple)
floats = st.floats(-1e6, 1e6)
choices = st.builds(
    Choice,
    source=st.sampled_from(list(window.SOURCES)),
    counts=counts,
    topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True).map(tuple),
    sentences=st.integers(1, 8),
    token=st.sampled_from(window.TOKENS),
    first=st.integers(0, 792),
    steps=st.integers(1, 16),
    micro=st.integers(1, 4),
    ignore=st.sets(st.integers(0, 5)).map(lambda classes: tuple(sorted(classes))),
    numbers=st.lists(st.lists(floats, max_size=9).map(tuple), min_size=1, max_size=16).map(tuple),
    class_weights=st.booleans(),
    tail=st.sampled_from(TAIL_RULES),
    full=st.none() | st.integers(16, 64),
).map(window.settled)


@settings(max_examples=200, deadline=None)
@given(choices)
def test_any_choice_comes_back_from_its_address(choice: Choice) -> None:
    assert scaling_address.read(scaling_address.address(choice)) == scaling_address.used(choice)
