"""Thirty browsers on one live run: how long a refresh of the charts takes them while two workers train.

One is headless Chromium, which starts the run and draws it. The others hold what a browser holds open, a Streamlit
session of the page and a kept connection, and ask for new points twice a second; they do not draw.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from statistics import quantiles
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

from benchmarks import Result
from benchmarks.app import CHROMIUM, server

BROWSERS = 30
SECONDS = 30.0
EVERY = 0.5
BAR = 500.0


def measure() -> list[Result]:
    """The 95th percentile over all refreshes of all browsers; a browser that misses a point is an error."""
    with sync_playwright() as playwright, server() as (url, *_):
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        run_id = _start(chromium.new_page(), url)
        times = _watch(url, run_id, BROWSERS - 1)
        chromium.close()
    how = f"{len(times)} refreshes in {SECONDS:.0f} s by {BROWSERS - 1} sessions beside Chromium, every {EVERY} s each"
    return [
        Result("refresh with thirty browsers on one run, median", quantiles(times, n=20)[9], BAR, "ms", how),
        Result("refresh with thirty browsers on one run, 95th percentile", quantiles(times, n=20)[18], BAR, "ms", how),
    ]


def _start(page: Page, url: str) -> str:
    page.goto(f"{url}/lab?updates=2000")
    page.get_by_role("button", name="Run", exact=True).wait_for()
    page.wait_for_timeout(8000)  # the workers import torch meanwhile
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url("**run=*")
    page.wait_for_function("Number(document.querySelector('.lab-bar')?.getAttribute('aria-valuenow')) >= 1")
    return page.url.split("run=")[1]


def _watch(url: str, run_id: str, browsers: int) -> list[float]:
    times: list[float] = []
    problems: list[BaseException] = []
    start = time.perf_counter() + 5  # every session is open by then

    def guarded(number: int) -> None:
        try:
            with connect(
                f"{url.replace('http', 'ws')}/_stcore/stream", subprotocols=["streamlit"], origin=url
            ) as session:
                _open_page(session.send, session.recv, run_id)
                times.extend(_poll(url, run_id, start + EVERY * number / browsers))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(browsers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise RuntimeError(f"{len(problems)} of {browsers} browsers failed") from problems[0]
    return times


def _open_page(send: Callable[[bytes], None], receive: Callable[[], object], run_id: str) -> None:
    """Run the page once in a session, as a browser does that opens the run's address."""
    message = BackMsg()
    message.rerun_script.query_string = f"run={run_id}"
    message.rerun_script.page_name = "lab"
    send(message.SerializeToString())
    reply = ForwardMsg()
    while reply.WhichOneof("type") != "script_finished":
        reply.ParseFromString(receive())


def _poll(url: str, run_id: str, start: float) -> list[float]:
    """Ask as the page does, from ``start`` on; milliseconds from each question to its whole answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    times, ends, at = [], [0, 0], start
    while at < start + SECONDS:
        time.sleep(max(0.0, at - time.perf_counter()))
        asked = time.perf_counter()
        connection.request("GET", f"/api/runs/{run_id}?since={ends[0]}&reference_since={ends[1]}")
        news = json.loads(connection.getresponse().read())
        times.append(1000 * (time.perf_counter() - asked))
        for place, columns in enumerate((news["run"], news["reference"]["columns"])):
            if columns["update"] != list(range(ends[place] + 1, ends[place] + 1 + len(columns["update"]))):
                raise RuntimeError(f"points after update {ends[place]} are missing or come twice")
            ends[place] += len(columns["update"])
        at = max(at + EVERY, time.perf_counter())
    connection.close()
    return times
