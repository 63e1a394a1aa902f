"""Refusals: every bad value is answered by one sentence that names the field, the value and the way out."""

from __future__ import annotations

import reprlib

SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxlong = SHOWN.maxother = 100


class LabError(Exception):
    """Base of the errors that this project raises on purpose; its text is fit to be shown to a user."""


class SettingError(LabError, ValueError):
    """A setting that cannot be used.

    Args:
        field: name of the setting, as the user knows it ("micro_batch_size").
        value: what was given; the text shows the two ends of what is longer than 100 characters.
        remedy: what is wrong with it and what to do, in one clause.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {SHOWN.repr(value)}: {remedy}.")
        self.field = field
        self.value = value
        self.remedy = remedy


class DataError(LabError):
    """A data file that is missing or is not the one this version was made for."""


class StoreError(LabError):
    """The store of runs cannot be read or written; the text says why and what to do."""


class OutOfMemoryError(LabError):
    """A window does not fit into the device's memory, even one sample at a time.

    Args:
        micro_batch_size: samples in the smallest try.
    """

    def __init__(self, micro_batch_size: int) -> None:
        super().__init__(
            f"micro_batch_size = {micro_batch_size}: one sample at a time does not fit into the device's memory; try "
            "activation checkpointing, a precision of bfloat16, smaller inputs or a smaller model."
        )
        self.micro_batch_size = micro_batch_size


class NonFiniteLossError(LabError):
    """The loss of a window, or its gradient, is infinite or not a number; nothing was stepped.

    Args:
        update: the update (counted from 1) that was not made.
        value: the window's loss or gradient norm.
        quantity: which of the two it is.
    """

    def __init__(self, update: int, value: float, quantity: str = "loss") -> None:
        super().__init__(
            f"{quantity} = {value} at update {update}: the run stopped before that update was made; "
            "resume it from its last checkpoint with a smaller learning rate or another norm."
        )
        self.update = update
        self.value = value
        self.quantity = quantity
