"""How long a person waits: from ``streamlit run`` to the first paint, and from Run to the first point on the chart."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from benchmarks import Result

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium")
PAINT_BAR, POINT_BAR = 2.0, 3.0
REPETITIONS = 3


def measure() -> list[Result]:
    """Both waits, each in a fresh server with an empty store, in headless Chromium."""
    paints, points = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(REPETITIONS):
            paint, point = _once(browser)
            paints.append(paint)
            points.append(point)
        browser.close()
    how = f"median of {REPETITIONS} fresh servers, headless Chromium"
    return [
        Result("first paint after streamlit run", median(paints), PAINT_BAR, "s", f"{how}, browser already open"),
        Result("first point after a click on Run", median(points), POINT_BAR, "s", f"{how}, workers warm"),
    ]


def _once(browser: Browser) -> tuple[float, float]:
    with server() as (url, started):
        page = browser.new_page()
        page.goto(url)
        paint = page.evaluate(
            "new Promise(done => new PerformanceObserver(list => {"
            " const [paint] = list.getEntriesByName('first-contentful-paint'); if (paint) done(paint.startTime);"
            "}).observe({type: 'paint', buffered: true}))"
        )
        origin = page.evaluate("performance.timeOrigin") / 1000
        painted = origin + paint / 1000 - started
        page.goto(f"{url}/lab?seed=4")  # no committed run has it
        page.get_by_role("button", name="Run", exact=True).wait_for()
        page.wait_for_timeout(8000)  # the workers import torch meanwhile, as they do while a person chooses settings
        before = page.url
        page.get_by_role("button", name="Run", exact=True).click()
        clicked = time.perf_counter()
        page.wait_for_url(lambda address: address != before and "run=" in address)
        page.wait_for_function(
            "document.querySelector('[data-panel=loss] .js-plotly-plot')?.data?.some("
            "trace => trace.x.length >= 1 && trace.x.length < 50)"  # a committed run, shown before, has 150
        )
        shown = time.perf_counter() - clicked
        page.close()
        return painted, shown


@contextmanager
def server() -> Iterator[tuple[str, float]]:
    """A server on a free port of this machine, as soon as it answers, and the time at which it was started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
            cwd=ROOT,
            env={**os.environ, "ACCUMULATION_LAB_STORE": str(Path(folder) / "runs.sqlite")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).read()
                    break
                except OSError:
                    time.sleep(0.02)
            yield url, started
        finally:
            process.terminate()
            process.wait(timeout=20)
