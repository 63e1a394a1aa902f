"""Cards for the kinds of faults that people reported, each with a wrong and a right loop that can be run.

The cards stand in ``data/pitfalls.toml``. Their scripts run in a process of their own, which is this file started as
``python -m accum_core.pitfalls wrong.py right.py``; torch is imported there, by the scripts, and never here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError, model_validator

from accum_core.errors import DataError, LabError, SettingError
from accum_core.records import Record

PROJECT: Final = Path(__file__).parents[1]
FILE: Final = PROJECT / "data" / "pitfalls.toml"
TIME_LIMIT: Final = 120.0
AT_ONCE: Final = 2
SIDES: Final = ("wrong", "right")
RESULT: Final = "result ="
AGAIN: Final = "run it again"

Value = float | tuple[float, ...]


class ScriptError(LabError):
    """A card's script that failed, gave no result or was stopped; the text says which and what to do."""


class Group(Record):
    """A heading on the page, and its name in the address."""

    id: str = Field(pattern=r"[a-z]+")
    title: str


class Card(Record):
    """One kind of fault.

    Attributes:
        id: its name in the address; ``group`` is its group's.
        title: what goes wrong.
        rows: ids of the reported faults that are of this kind.
        reports: ``owner/repository#number`` of issues and pull requests.
        saw, why: what people saw, and where it comes from.
        quantity: what the scripts' result is.
        wrong, right: complete scripts; the last line that each prints is ``result = <number or list of numbers>``.
        expected_wrong, expected_right, tolerance: what they must print, for the tests alone.
    """

    id: str = Field(pattern=r"[a-z]\d+")
    group: str
    title: str
    rows: tuple[str, ...] = Field(min_length=1)
    reports: tuple[str, ...] = Field(min_length=1)
    saw: str
    why: str
    quantity: str
    wrong: str
    right: str
    expected_wrong: Value
    expected_right: Value
    tolerance: float = 1e-5

    def links(self) -> dict[str, str]:
        """What people call each report ("transformers 34191") -> its address."""
        found = {}
        for report in self.reports:
            owner, repository, number = re.split("[/#]", report)
            found[f"{repository} {number}"] = f"https://github.com/{owner}/{repository}/issues/{number}"
        return found


class Cards(Record):
    """All cards, with their groups in the page's order."""

    groups: tuple[Group, ...]
    cards: tuple[Card, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [card.id for card in self.cards]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"cards are there twice: {', '.join(sorted(repeated))}")
        if unknown := {card.group for card in self.cards} - {group.id for group in self.groups}:
            raise ValueError(f"groups are unknown: {', '.join(sorted(unknown))}")
        return self

    def card(self, name: str) -> Card:
        """The card of this id.

        Raises:
            SettingError: when there is none.
        """
        for card in self.cards:
            if card.id == name:
                return card
        raise SettingError("card", name, "is no card; open one of the list instead")

    def group(self, name: str) -> Group:
        """The group of this id.

        Raises:
            SettingError: when there is none.
        """
        for group in self.groups:
            if group.id == name:
                return group
        raise SettingError("group", name, f"is no group; use one of {', '.join(group.id for group in self.groups)}")


@cache
def load(file: Path = FILE) -> Cards:
    """Read the cards, once a process.

    Raises:
        DataError: when the file is missing or a card in it is not whole.
    """
    try:
        return Cards.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise DataError(f"data file {file.name} cannot be used ({reason}): restore it from the repository.") from None


@dataclass(frozen=True, slots=True)
class Output:
    """What a script printed: the numbers of its last line, and the lines above it."""

    result: tuple[float, ...]
    printed: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both scripts of a card printed, and when they were started (``time.monotonic``)."""

    wrong: Output
    right: Output
    started: float


_places = threading.BoundedSemaphore(AT_ONCE)
_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_newest: dict[str, Outcome] = {}
_failures: dict[str, str] = {}  # of cards whose last run failed


def run(card: Card, time_limit: float = TIME_LIMIT) -> Outcome:
    """Run both scripts of a card and wait for them; any thread may ask.

    At most ``AT_ONCE`` cards run at a time. Whoever asks for a card while it waits or runs for somebody else shares
    the next run that starts after the question, so that a class that presses the same button starts it twice at most.

    Args:
        time_limit: seconds after which both scripts, and every process that they started, are killed.

    Raises:
        ScriptError: when a script fails, prints no result or takes longer.
    """
    asked = time.monotonic()
    with _turns[card.id]:
        newest = _newest.get(card.id)
        if newest is None or newest.started < asked:
            with _places:
                _failures.pop(card.id, None)
                try:
                    newest = _newest[card.id] = _run(card, time_limit)
                except ScriptError as error:
                    _failures[card.id] = str(error)
                    raise
        return newest


def latest(card: Card) -> Outcome | None:
    """What the last run of a card gave, whoever asked for it; None before any.

    A run that is under way is waited for.

    Raises:
        ScriptError: when that run failed.
    """
    with _turns[card.id]:
        if card.id in _failures:
            raise ScriptError(_failures[card.id])
        return _newest.get(card.id)


def _run(card: Card, time_limit: float) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pitfalls") as folder:
        paths = [Path(folder, f"{side}.py") for side in SIDES]
        for path, side in zip(paths, SIDES, strict=True):
            path.write_text(getattr(card, side), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "accum_core.pitfalls", *map(str, paths)],
            cwd=PROJECT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group of its own, which the ranks of a distributed card belong to
        )
        try:
            replies, complaints = process.communicate(timeout=time_limit)
        except BaseException as stop:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(stop, subprocess.TimeoutExpired):
                raise ScriptError(
                    f"card = {card.id!r}: its scripts did not end within {time_limit:g} s and were stopped; "
                    "run it again when the machine has less to do."
                ) from None
            raise
    if process.returncode:
        reason = complaints.strip().rpartition("\n")[2] or f"the process ended with code {process.returncode}"
        raise ScriptError(f"card = {card.id!r}: its scripts could not be run ({reason}); {AGAIN}.")
    wrong, right = (_output(card, *pair) for pair in zip(SIDES, json.loads(replies), strict=True))
    return Outcome(wrong, right, started)


def _output(card: Card, side: str, reply: dict[str, str]) -> Output:
    if reply["error"]:
        raise ScriptError(f"card = {card.id!r}: its {side} script failed ({reply['error']}); {reply['remedy']}.")
    printed, _, last = reply["printed"].rstrip().rpartition("\n")
    return Output(_numbers(last, f"card = {card.id!r}: its {side} script"), printed)


def _numbers(line: str, script: str) -> tuple[float, ...]:
    """The numbers of a line ``result = 6.0`` or ``result = [3, nan]``."""
    try:
        if not line.startswith(RESULT):
            raise ValueError
        return tuple(map(float, line.removeprefix(RESULT).strip(" []").split(",")))
    except ValueError:
        raise ScriptError(f"{script} printed {line!r} at its end, not {RESULT} and numbers.") from None


def main(paths: list[str]) -> None:
    """Run scripts one after the other and write what each printed, or how it failed, as JSON."""
    replies = []
    for path in paths:
        printed, failure, remedy = io.StringIO(), "", ""
        with contextlib.redirect_stdout(printed):
            try:
                runpy.run_path(path, run_name="__main__")
            except Exception as error:
                failure = ": ".join([type(error).__name__, str(error).rstrip().rpartition("\n")[2]])
                # torch's error for a rank that a signal or an exit ended says nothing of the script.
                remedy = AGAIN if hasattr(error, "exit_code") else f"{AGAIN}, and restore the data file if it fails too"
        replies.append({"printed": printed.getvalue(), "error": failure, "remedy": remedy})
    json.dump(replies, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
