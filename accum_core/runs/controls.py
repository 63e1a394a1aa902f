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

    A take that leaves the training paused or stopped holds orders alone, so that a checkpoint made then holds no
    change that belongs to the next update. A take after which the update is made holds every change due before it.

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
        if self._standing is not None:
            return [self._standing_order()]
        pending = self._lease.pending()
        orders = [one for one in pending if one.message.kind in ORDERS]
        orders = [one for one in orders if one.message.kind == "stop"] or orders
        if orders and orders[-1].message.kind != "resume":
            messages = self._take(orders, next_update)
            self.stopped = STOP in messages
            return messages
        new = [one for one in pending if one.message.kind == "set" and next_update >= self._first_new]
        # Marked in one go: what is marked and then not returned, because the store refused the rest, would be lost.
        messages = self._take([*orders, *new], next_update)
        again = self._replays.pop(next_update, [])
        return [*messages[: len(orders)], *again, *messages[len(orders) :]]

    def _standing_order(self) -> Message:
        order = self._standing
        assert order is not None
        if order.kind == "pause":
            self._lease.stay_paused()
        self._standing = None
        self.stopped = order.kind == "stop"
        return order

    def _take(self, chosen: Sequence[Pending], next_update: int) -> list[Message]:
        if chosen:
            self._lease.take(chosen, next_update)
        return [pending.message for pending in chosen]
