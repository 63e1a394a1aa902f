"""The entry: ``streamlit run app.py``. Start-up, shut-down and the routes beside Streamlit's own."""

from __future__ import annotations

import gc
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


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Keep workers while the server runs; a store that cannot be opened is told on the pages."""
    with ExitStack() as stack:
        try:
            store = resources.store()
            results.fill(store)
            stack.enter_context(Supervisor(store.path))
        except StoreError as error:
            LOG.error("%s", error)
        # Streamlit collects garbage after every run of a page; what is imported by now must not be walked each time,
        # or thirty live browsers stall the server.
        gc.collect()
        gc.freeze()
        yield


app = st.App("accum_ui/main.py", lifespan=lifespan, routes=routes(resources.views))
