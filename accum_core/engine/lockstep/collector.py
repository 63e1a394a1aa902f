"""Python's collector of reference cycles, which a window in step would wake many times for nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """No cycles are collected meanwhile.

    A window makes thousands of objects that live until its end, and each collection would walk all of them. What holds
    its tensors is freed by counts of references all the same.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
