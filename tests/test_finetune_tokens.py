"""Text as tokens and rows: what is learnt, what is cut, and what lies beside what."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_language import END, MARKED, PLAIN, tokenizer

from accum_core.engine.causal.rows import laid_out, packed, positions
from accum_core.engine.causal.tokens import Encoder, Tokens
from accum_core.errors import DataError
from accum_core.text_files import Chat, Pair, Text

# What transformers and tokenizers warn of on import is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
LETTERS = {letter: tokenizer().convert_tokens_to_ids(letter) for letter in "abcdefgh"}


def ids(text: str) -> tuple[int, ...]:
    """The tokens of a text of these letters."""
    return tuple(LETTERS[letter] for letter in text)


def encoder(context: int = 64, template: str | None = None) -> Encoder:
    return Encoder(tokenizer(template), context)


def test_a_text_is_learnt_whole_and_has_an_end() -> None:
    (found,) = encoder().encode(Text("abc"), "here")
    assert found == Tokens((*ids("abc"), END), (False, True, True, True))
    assert found.weight == 3


@settings(deadline=None)
@given(st.text("abcdefgh", min_size=1, max_size=60), st.integers(2, 20))
def test_the_pieces_of_a_long_text_predict_every_token_once(text: str, context: int) -> None:
    pieces = encoder(context).encode(Text(text), "here")
    predicted = [token for piece in pieces for token in piece.tokens[1:]]
    assert tuple(predicted) == (*ids(text), END)[1:]
    assert all(len(piece.tokens) - 1 <= context and all(piece.learnt[1:]) for piece in pieces)
    assert all(a.tokens[-1] == b.tokens[0] for a, b in pairwise(pieces))


def test_of_a_pair_the_completion_and_the_end_are_learnt() -> None:
    (found,) = encoder().encode(Pair("ab", "cde"), "here")
    assert found == Tokens((*ids("abcde"), END), (False, False, True, True, True, True))


def test_a_pair_that_is_too_long_loses_its_end_and_one_without_anything_left_is_no_sample() -> None:
    short = encoder(3)
    assert short.encode(Pair("ab", "cdef"), "here") == [Tokens(ids("abcd"), (False, False, True, True))]
    assert short.encode(Pair("abcd", "e"), "here") == []
    assert short.cut == 2
    assert encoder(3).encode(Pair("ab", "c"), "here") == [Tokens((*ids("abc"), END), (False, False, True, True))]


TURNS = ({"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"})


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_of_a_chat_the_assistants_messages_are_learnt(template: str) -> None:
    made = tokenizer(template)
    chat = Chat((*TURNS, {"role": "user", "content": "e"}, {"role": "assistant", "content": "fgh"}))
    (found,) = Encoder(made, 64).encode(chat, "here")
    assert made.decode(found.tokens) == "<user>ab\n<assistant>cd\n<user>e\n<assistant>fgh\n"
    learnt = [token for token, mark in zip(found.tokens, found.learnt, strict=True) if mark]
    assert made.decode(learnt) == "cd\nfgh\n"


def test_a_chat_that_cannot_be_shown_is_refused_by_its_place() -> None:
    with pytest.raises(DataError, match=r"^x.jsonl, line 3: .* no chat template"):
        encoder().encode(Chat(TURNS), "x.jsonl, line 3")
    forgetful = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(DataError, match=r"^x.jsonl, line 3: .* mark them in the template"):
        encoder(template=forgetful).encode(Chat((*TURNS, TURNS[0])), "x.jsonl, line 3")
    with pytest.raises(DataError, match=r"^x.jsonl, line 3: .*roles must take turns"):
        encoder(template="{{ raise_exception('roles must take turns') }}").encode(Chat(TURNS), "x.jsonl, line 3")


texts = st.lists(
    st.integers(2, 17).map(lambda length: Tokens(tuple(range(1, length + 1)), (False,) + (True,) * (length - 1))),
    min_size=1,
    max_size=40,
)


@given(texts)
def test_packed_rows_hold_every_text_once_in_few_rows(found: list[Tokens]) -> None:
    rows = packed(found, 16)
    assert Counter(text for row in rows for text in row) == Counter(found)
    read = [sum(len(text.tokens) - 1 for text in row) for row in rows]
    assert max(read) <= 16
    # No two rows would fit into one: best fit opens no row that it could have done without.
    assert len(rows) == 1 or sum(sorted(read)[:2]) > 16
    assert len(rows) <= 2 * math.ceil(sum(read) / 16)


def test_rows_as_tensors() -> None:
    pair, text = Tokens((5, 6, 7, 8), (False, False, True, True)), Tokens((9, 10), (False, True))
    inputs, targets = laid_out([(pair, text), (text,)])
    assert inputs.tolist() == [[[5, 6, 7, 9], [1, 1, 1, 2]], [[9, 0, 0, 0], [1, 0, 0, 0]]]
    assert targets.tolist() == [[-100, 7, 8, 10], [10, -100, -100, -100]]
    assert positions(inputs[:, 1]).tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]


@given(texts)
def test_a_text_weighs_the_same_in_every_layout(found: list[Tokens]) -> None:
    weight = sum(text.weight for text in found)
    for rows in ([(text,) for text in found], packed(found, 16)):
        _, targets = laid_out(rows)
        assert int((targets != -100).sum()) == weight
