"""The entry: ``streamlit run app.py``. Start-up, shut-down and the routes beside Streamlit's own."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import streamlit as st

from accum_core.errors import StoreError
from accum_core.runs.supervisor import Supervisor
from accum_ui import resources, results
from accum_ui.api import routes

LOG = logging.getLogger(__name__)
HEAD_START = 2.5  # seconds in which the first page has the cores for itself, as each worker takes one to import torch
PAGES_NEED = ("pandas", "plotly.graph_objects", "accum_ui.controls", "accum_ui.live", "accum_ui.loop", "accum_ui.home")


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Keep workers while the server runs; a store that cannot be opened is told on the pages."""
    with ExitStack() as stack:
        try:
            store = resources.store()
            results.fill(store)
            supervisor = Supervisor(store.path)
            stack.callback(supervisor.close)
            start = asyncio.create_task(_start(supervisor))
            stack.callback(start.cancel)
        except StoreError as error:
            LOG.error("%s", error)
        yield


async def _start(supervisor: Supervisor) -> None:
    await asyncio.sleep(HEAD_START)
    supervisor.start()
    await asyncio.to_thread(_settle)


def _settle() -> None:
    """Import what pages need and exempt it from garbage collection.

    Streamlit collects after every run of a page. Were each collection to walk all libraries, thirty live browsers would
    stall the server.
    """
    for module in PAGES_NEED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


app = st.App("accum_ui/main.py", lifespan=lifespan, routes=routes(resources.views))
