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

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import Result

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium")
PAINT_BAR, PAINT_RATIO, POINT_BAR = 2.0, 1.15, 3.0
REPETITIONS = 3


def measure() -> list[Result]:
    """Both waits, each in a fresh server with an empty store, in headless Chromium."""
    paints, floors, points = [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(REPETITIONS):
            floors.append(_empty_paint(browser))
            paint, point = _once(browser)
            paints.append(paint)
            points.append(point)
        browser.close()
    how = f"median of {REPETITIONS} fresh servers, headless Chromium"
    floor = f"a Streamlit app of one line takes {median(floors):.2f} s in the same run"
    return [
        Result("first paint after streamlit run", median(paints), PAINT_BAR, "s", f"{how}, browser open; {floor}"),
        Result("first paint against an empty Streamlit app", median(paints) / median(floors), PAINT_RATIO, "x", how),
        Result("first point after a click on Run", median(points), POINT_BAR, "s", f"{how}, workers warm"),
    ]


def _empty_paint(browser: Browser) -> float:
    """The first paint of a Streamlit app that does nothing, which no app of ours can beat."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text("import streamlit as st\n\napp = st.App('main.py')\n", encoding="utf-8")
        Path(folder, "main.py").write_text("import streamlit as st\n\nst.title('Empty')\n", encoding="utf-8")
        shutil.copytree(ROOT / ".streamlit", Path(folder, ".streamlit"))
        page = browser.new_page()
        with server(Path(folder)) as (url, started):
            painted = _paint(page, url) - started
        page.close()
    return painted


def _paint(page: Page, url: str) -> float:
    """When the page was first painted, in seconds of the system's clock."""
    page.goto(url, wait_until="commit")
    paint: float = page.evaluate(
        "new Promise(done => new PerformanceObserver(list => {"
        " const [paint] = list.getEntriesByName('first-contentful-paint'); if (paint) done(paint.startTime);"
        "}).observe({type: 'paint', buffered: true}))"
    )
    origin: float = page.evaluate("performance.timeOrigin")
    return (origin + paint) / 1000


def _once(browser: Browser) -> tuple[float, float]:
    page = browser.new_page()
    with server() as (url, started):
        painted = _paint(page, url) - started
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
def server(root: Path = ROOT) -> Iterator[tuple[str, float]]:
    """An app's server on a free port of this machine, as soon as it answers, and the time at which it was started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
            cwd=root,
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
