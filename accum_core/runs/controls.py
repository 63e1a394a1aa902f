"""Live messages from the store: taken between updates, marked before they take effect, replayed after a restart."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from accum_core.records import Message
from accum_core.runs.lease import Lease, Pending
from accum_core.runs.patience import patiently

POLL_SECONDS: Final = 0.1
STOP: Final = Message(kind="stop")
ORDERS: Final = ("pause", "resume", "stop")


class StoreControls:
    """The controls of a training whose run is held by ``lease``.

    A run that was resumed from a checkpoint meets every change again at the update where it met it first, so that
    it makes the same updates. Changes that nobody took yet wait until the run is past all that it had done before.
    A pause or a stop that was obeyed, but whose worker was lost before it could end the run, still holds.

    A take returns either orders (pause, resume, stop) or changes, never both: so a checkpoint made while paused, or
    at a stop, holds no change that belongs to the next update.

    Args:
        lease: the claim on the run.
        leaving: set when the process has to go; the training is then told to stop, and the store is not.
        before_waiting: called with each take that waits, before it does.

    Attributes:
        stopped: a watcher's message stopped the run.
    """

    def __init__(self, lease: Lease, leaving: threading.Event, before_waiting: Callable[[], None]) -> None:
        self.stopped = False
        self._lease = lease
        self._leaving = leaving
        self._before_waiting = before_waiting
        self._replays: defaultdict[int, list[Message]] = defaultdict(list)
        self._standing: Message | None = None
        self._first_new = lease.updates() + 1
        for applied, message in lease.taken():
            if message.kind == "set":
                self._replays[applied].append(message)
                self._first_new = max(self._first_new, applied)
            else:
                self._standing = message if message.kind in ("pause", "stop") else None

    def take(self, next_update: int, wait: bool) -> Sequence[Message]:
        """Messages for the update about to be made; blocks until there are some if ``wait``."""
        if wait:
            self._before_waiting()
        while not self._leaving.is_set():
            messages = patiently(lambda: self._waiting(next_update), self._leaving)
            if messages or not wait:
                return messages
            self._leaving.wait(POLL_SECONDS)
        return [STOP]

    def _waiting(self, next_update: int) -> list[Message]:
        return self._standing_order() or self._orders(next_update) or self._changes(next_update)

    def _standing_order(self) -> list[Message]:
        if self._standing is None:
            return []
        order = self._standing
        if order.kind == "pause":
            self._lease.stay_paused()
        self._standing = None
        self.stopped = order.kind == "stop"
        return [order]

    def _orders(self, next_update: int) -> list[Message]:
        orders = [pending for pending in self._lease.pending() if pending.message.kind in ORDERS]
        orders = [pending for pending in orders if pending.message.kind == "stop"] or orders
        messages = self._take(orders, next_update)
        self.stopped = STOP in messages
        return messages

    def _changes(self, next_update: int) -> list[Message]:
        new = self._lease.pending() if next_update >= self._first_new else []
        messages = self._take([pending for pending in new if pending.message.kind == "set"], next_update)
        return self._replays.pop(next_update, []) + messages

    def _take(self, chosen: Sequence[Pending], next_update: int) -> list[Message]:
        if chosen:
            self._lease.take(chosen, next_update)
        return [pending.message for pending in chosen]
