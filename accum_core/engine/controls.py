"""How a watcher speaks to a running training: messages, taken between two updates."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Protocol

from accum_core.records import LiveField, Message


class Controls(Protocol):
    """Where ``train`` looks for messages."""

    def take(self, next_update: int, wait: bool) -> Sequence[Message]:
        """Messages to obey before the update of that number (counted from 1), oldest first.

        Args:
            next_update: the update about to be made.
            wait: block until there is at least one; asked while the training is paused.
        """
        ...


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
