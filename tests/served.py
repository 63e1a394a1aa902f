"""The records route on a real server of this process, for the tests that need requests at the same time."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn
from small_runs import wait_until
from starlette.applications import Starlette

from accum_core.runs.store import Store
from accum_ui.api import routes
from accum_ui.run_view import Views


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as strictly as a browser reads it: NaN and Infinity are no JSON."""
        return json.loads(self.body, parse_constant=_refuse)


class Client:
    """One browser's kept connection; a context that closes it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """A request and its whole answer."""
        self._connection.request(method, path, headers=headers)
        response = self._connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@contextmanager
def served(store: Store) -> Iterator[int]:
    """Serve the routes over a store; gives the port."""
    views = Views(store)
    app = Starlette(routes=routes(lambda: views))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
