"""Samples that worker processes decode, ahead of time where it is known what comes next.

What an item is depends on its key alone, so neither the number of processes nor what was expected changes a number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from accum_core.errors import LabError, SettingError

VARIABLE = "ACCUMULATION_LAB_LOADERS"
AHEAD = 64
"""Items that the processes together may be ahead by."""

Key = TypeVar("Key")
Item = TypeVar("Item")


def loader_processes() -> int:
    """What ``ACCUMULATION_LAB_LOADERS`` says (0: the training's own process decodes), or one a thread of torch.

    Raises:
        SettingError: for anything but a whole number from 0 to 256.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return torch.get_num_threads()
    if not text.isdecimal() or int(text) > 256:
        raise SettingError(VARIABLE, text, "must be a whole number of processes from 0 to 256")
    return int(text)


class Loader(Generic[Key, Item]):
    """Items by their keys, in the order of the keys.

    Args:
        item: from a key to tensors; it runs in the processes. An error of this project's is raised again here.
        processes: how many; with 0 items are made when they are asked for.
    """

    def __init__(self, item: Callable[[Key], Item], processes: int) -> None:
        self._keys: list[Key] = []
        self._begun: tuple[list[Key], Iterator[Any]] | None = None
        self._loader: DataLoader[Any] = DataLoader(
            _Items(item),
            batch_size=None,
            sampler=_Present(self._keys),
            num_workers=processes,
            persistent_workers=processes > 0,
            prefetch_factor=max(2, AHEAD // processes) if processes else None,
            generator=torch.Generator(),  # it draws a seed for the processes, which is not to come from the run's own
        )

    def expect(self, keys: Iterable[Key]) -> None:
        """Begin to make the items that will be asked for next."""
        self._keys[:] = keys
        self._begun = list(self._keys), iter(self._loader)

    def items(self, keys: Iterable[Key]) -> Iterator[Item]:
        """One item a key; those that were expected are there already, or soon.

        Raises:
            LabError: that making one of them raised.
        """
        wanted = list(keys)
        if self._begun is None or self._begun[0] != wanted:
            self.expect(wanted)
        (_, found), self._begun = self._begun, None  # type: ignore[misc]  # it is set by now
        for item in found:
            if isinstance(item, LabError):
                raise item
            yield item


class _Present(Generic[Key]):
    """A sampler over a list that changes."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._keys))

    def __len__(self) -> int:
        return len(self._keys)


class _Items(Dataset[Any], Generic[Key, Item]):
    """A function as a data set; what it raises comes back as an item, or a process would wrap it in its traceback."""

    def __init__(self, item: Callable[[Key], Item]) -> None:
        self._item = item

    def __getitem__(self, key: Key) -> Item | LabError:
        try:
            return self._item(key)
        except LabError as error:
            return error
