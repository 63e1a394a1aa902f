"""JSON lines: the three shapes are read, and what is damaged is named by file, line and fault."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_core.errors import DataError
from accum_core.text_files import Chat, Pair, Text, digest, parse, read_lines

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())
MESSAGES = ({"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"})


def lines(path: Path, *content: bytes) -> Path:
    path.write_bytes(b"\n".join(content))
    return path


@given(text=WORDS, prompt=st.text(st.characters(exclude_categories=["Cs"])), completion=WORDS)
def test_what_is_written_is_read(text: str, prompt: str, completion: str) -> None:
    rows = [
        ({"text": text}, Text(text)),
        ({"prompt": prompt, "completion": completion}, Pair(prompt, completion)),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": completion}]},
         Chat((*MESSAGES, {"role": "assistant", "content": completion}))),
    ]  # fmt: skip
    for row, expected in rows:
        assert parse(json.loads(json.dumps(row)), "here") == expected


def test_lines_are_read_in_order_and_blank_ones_do_not_count(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "one"}', b"", b'  {"text": "tw\xc3\xb6", "id": 7}\r', b" "
    )
    assert list(read_lines(path)) == [(f"{path}, line 1", Text("one")), (f"{path}, line 3", Text("twö"))]


def test_null_is_the_column_of_another_shape() -> None:
    row: dict[str, Any] = {"messages": None, "prompt": "a", "completion": "b", "text": None}
    assert parse(row, "here") == Pair("a", "b")


DAMAGED = [
    (b'{"text": "a', "is no JSON (unterminated string starting at character 10)"),
    (b'{"text": "\xff"}', "byte 11 is not UTF-8"),
    (b'["a"]', "is a list and no object"),
    (b"7", "is a number and no object"),
    (b"{}", "has nothing and none of the known shapes"),
    (b'{"question": "a", "answer": "b"}', "has question, answer and none of the known shapes"),
    (b'{"prompt": "a"}', "has prompt and none of the known shapes"),
    (b'{"text": 7}', "text is a number"),
    (b'{"text": null}', "text is missing"),
    (b'{"text": "  "}', "its text is empty"),
    (b'{"text": "\\ud800"}', "half of a character pair"),
    (b'{"prompt": "a", "completion": ""}', "its completion is empty"),
    (b'{"messages": []}', "messages is an empty list"),
    (b'{"messages": "a"}', "messages is a string"),
    (b'{"messages": ["a"]}', "message 1: is a string"),
    (b'{"messages": [{"role": "user"}]}', "message 1: content is missing"),
    (b'{"messages": [{"role": "user", "content": "a"}]}', "no message is the assistant's"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"text": ' + b"1" * 5000 + b"}", "too many digits"),
]


@pytest.mark.parametrize(("line", "fault"), DAMAGED, ids=[fault for _, fault in DAMAGED])
def test_a_damaged_line_is_named(line: bytes, fault: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", b'{"text": "good"}', b"", line)
    with pytest.raises(DataError) as refusal:
        list(read_lines(path))
    text = str(refusal.value)
    assert text.startswith(f"{path}, line 3") and fault in text
    assert text.endswith(".") and "\n" not in text


def test_a_file_that_is_empty_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no line"):
        list(read_lines(lines(tmp_path / "a.jsonl", b"", b" ")))
    for function in (digest, lambda path: list(read_lines(path))):
        with pytest.raises(DataError, match="No such file"):
            function(tmp_path / "b.jsonl")


def test_the_digest_is_sha256(tmp_path: Path) -> None:
    assert digest(lines(tmp_path / "a", b"abc")) == hashlib.sha256(b"abc").hexdigest()
