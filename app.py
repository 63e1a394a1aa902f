"""The entry: ``streamlit run app.py``. Start-up, shut-down and the routes beside Streamlit's own.

Little is imported here: the first page waits for all of it. What the other pages and the routes stand on is imported
once that page had the time to be shown.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from typing import Any, Final

import streamlit as st
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

LOG: Final = logging.getLogger(__name__)
# Seconds in which the first page has the cores for itself: imports take the interpreter from the thread that serves it,
# and each worker takes a core to import torch.
HEAD_START: Final = 2.5
FRAME_NEEDS: Final = ("numpy", "PIL.Image")
"""What Streamlit imports to show a logo: there is time for it while the browser loads Streamlit's scripts."""
PAGES_NEED: Final = (
    "accum_ui.home",
    "accum_ui.controls",
    "accum_ui.live",
    "accum_ui.loop",
    "accum_ui.api",
    "accum_ui.loss_scaling",
    "accum_ui.pitfalls",
    "accum_ui.normalisation.page",
    "accum_ui.reproduce.page",
    "accum_ui.conformance.page",
)


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Keep workers while the server runs; a store that cannot be opened is told on the pages."""
    with ExitStack() as stack:
        start = asyncio.create_task(_start(stack))
        stack.callback(start.cancel)
        yield


async def _start(stack: ExitStack) -> None:
    await asyncio.to_thread(_import, FRAME_NEEDS)
    await asyncio.sleep(HEAD_START)
    await asyncio.to_thread(_import, PAGES_NEED)
    from accum_core.errors import StoreError
    from accum_core.runs.supervisor import Supervisor
    from accum_ui import resources

    try:
        store = await asyncio.to_thread(resources.store)
    except StoreError as error:
        LOG.error("%s", error)
        return
    supervisor = Supervisor(store.path)
    stack.callback(supervisor.close)
    supervisor.start()
    gc.collect()
    gc.freeze()


def _import(modules: Sequence[str]) -> None:
    """Import what is needed later.

    Streamlit collects garbage after every run of a page. Were each collection to walk all libraries, thirty live
    browsers would stall the server: so what is imported now is exempted from it.
    """
    for module in modules:
        importlib.import_module(module)


class _Later:
    """The routes of ``accum_ui.api``, imported when the first of them is asked for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await asyncio.to_thread(_routes))(scope, receive, send)


@cache
def _routes() -> Router:
    from accum_ui import api, resources

    return Router(api.routes(resources.views))


app = st.App(
    "accum_ui/main.py",
    lifespan=lifespan,
    routes=[Route("/api/{rest:path}", _Later()), Route("/assets/{rest:path}", _Later())],
)
