"""What every page and route of this process shares: the store and the growing views of its runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from accum_core.runs.store import Store, default_store_path
from accum_ui import results
from accum_ui.run_view import Views


def store() -> Store:
    """The store of runs, with the committed results in it.

    Raises:
        StoreError: when the file cannot be opened.
    """
    return _store(default_store_path())


def views() -> Views:
    """The views that all browsers share.

    Raises:
        StoreError: when the store cannot be opened.
    """
    return _views(default_store_path())


@cache
def _store(path: Path) -> Store:
    store = Store() if path == default_store_path() else Store(path)  # only the default's folder is made for it
    results.fill(store)
    return store


@cache
def _views(path: Path) -> Views:
    return Views(_store(path))
