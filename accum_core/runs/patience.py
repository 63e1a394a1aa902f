"""Trying again: a full disk or a locked store is often free again within a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from accum_core.errors import StoreError

RETRY_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 60.0

Result = TypeVar("Result")

log = logging.getLogger(__name__)


def patiently(action: Callable[[], Result], leaving: threading.Event) -> Result:
    """Repeat what the store refuses, each second for a minute or until ``leaving`` is set.

    Raises:
        StoreError: the last refusal.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return action()
        except StoreError as error:
            if leaving.is_set() or time.monotonic() > deadline:
                raise
            log.warning("trying again: %s", error)
        leaving.wait(RETRY_SECONDS)
