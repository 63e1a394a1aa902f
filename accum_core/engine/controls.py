"""How a watcher speaks to a running training: messages, taken between two updates."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Protocol

from accum_core.records import Change, LiveField, Message


class Controls(Protocol):
    """Where ``train`` looks for messages."""

    def take(self, next_update: int, wait: bool) -> Sequence[Message]:
        """Messages to obey before the update of that number (counted from 1), oldest first.

        Args:
            next_update: the update about to be made.
            wait: block until there is at least one; asked while the training is paused.
        """
        ...


def obey(controls: Controls, next_update: int, change: Callable[[Message], Change]) -> list[Change] | None:
    """Take messages until the training is not paused: the changes made, or None when it is to stop."""
    changes: list[Change] = []
    paused = False
    while True:
        for message in controls.take(next_update, paused):
            if message.kind == "stop":
                return None
            if message.kind == "set":
                changes.append(change(message))
            else:
                paused = message.kind == "pause"
        if not paused:
            return changes


class QueueControls:
    """Controls within one process; ``send`` may be called from any thread."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        """Leave a message for the next update."""
        self._messages.put(message)

    def set(self, field: LiveField, value: int | float | str) -> None:
        """Ask for a live change."""
        self.send(Message(kind="set", field=field, value=value))

    def take(self, next_update: int, wait: bool) -> Sequence[Message]:
        """Everything that was sent since the last call."""
        messages = [self._messages.get()] if wait else []
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages
