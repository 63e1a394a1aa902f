"""What the frameworks' files tell readers: sentences, under keys that a trial can have, of one reader who is 'you'."""

from __future__ import annotations

import pytest

from accum_core.conformance.cases import CASES
from accum_core.conformance.frameworks import OWN, frameworks, kinds

FILES = list(frameworks())
SENTENCES = ("EXPLANATIONS", "REMARKS", "MENDS")


@pytest.mark.parametrize("file", FILES)
def test_every_text_is_a_sentence(file: str) -> None:
    told = [text for name in SENTENCES for text in frameworks()[file].get(name, {}).values()]
    assert [text for text in told if text and not (text.endswith(".") and text[0].isupper())] == []


@pytest.mark.parametrize("file", FILES)
def test_every_key_is_that_of_a_trial(file: str) -> None:
    known = {*CASES, *(f"{kind}/{case}" for kind in kinds(file) for case in (*CASES, "*"))}
    of = frameworks()[file]
    assert {key for name in (*SENTENCES, "DUTIES") for key in of.get(name, ())} <= known


@pytest.mark.parametrize("file", FILES)
def test_a_kind_is_told_alone_and_to_you(file: str) -> None:
    for kind, title in kinds(file).items():
        assert not title.startswith("the same") and "the user" not in title and not title.endswith(".")
        assert kind != OWN or title == "a module and a loss of your own"
