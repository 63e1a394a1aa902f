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
PAINTS, POINTS = 9, 3
"""Fresh servers of each kind: paints are short and vary, so they take more."""


def measure() -> list[Result]:
    """Both waits, each in a fresh server with an empty store, in headless Chromium.

    The first paint stands beside that of an empty Streamlit app, taken in turn. Processor seconds of the two servers
    stand beside it, as they hardly change when other programs use the machine.
    """
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        empty = _empty_app(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        pairs = [(_first_paint(browser, empty), _first_paint(browser, ROOT)) for _ in range(PAINTS)]
        points = [_first_point(browser) for _ in range(POINTS)]
        browser.close()
    floor, paint = (median(pair[kind][0] for pair in pairs) for kind in (0, 1))
    ratio = median(ours[0] / theirs[0] for theirs, ours in pairs)
    spent = median(ours[1] / theirs[1] for theirs, ours in pairs)
    how = f"median of {PAINTS} fresh servers, headless Chromium"
    taken = f"median of {PAINTS} pairs of fresh servers taken in turn"
    beside = f"browser open; a Streamlit app of one line takes {floor:.2f} s in the same run"
    return [
        Result("first paint after streamlit run", paint, PAINT_BAR, "s", f"{how}, {beside}"),
        Result("first paint against an empty Streamlit app", ratio, PAINT_RATIO, "x", taken),
        Result("processor seconds of the server until then, against the empty app's", spent, None, "x", taken),
        Result(
            "first point after a click on Run",
            median(points),
            POINT_BAR,
            "s",
            f"median of {POINTS} fresh servers, headless Chromium, workers warm",
        ),
    ]


def _empty_app(folder: Path) -> Path:
    """A Streamlit app that does nothing, which no app of ours can beat."""
    (folder / "app.py").write_text("import streamlit as st\n\napp = st.App('main.py')\n", encoding="utf-8")
    (folder / "main.py").write_text("import streamlit as st\n\nst.title('Empty')\n", encoding="utf-8")
    shutil.copytree(ROOT / ".streamlit", folder / ".streamlit")
    return folder


def _first_paint(browser: Browser, root: Path) -> tuple[float, float]:
    """Seconds from ``streamlit run`` to the first paint, and processor seconds of the server by then."""
    page = browser.new_page()
    with server(root) as (url, started, process):
        painted = _paint(page, url) - started
        spent = _processor_seconds(process)
    page.close()
    return painted, spent


def _processor_seconds(process: int) -> float:
    """Of a process so far, in its own code and in the system's, as Linux counts them."""
    counted = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(counted[11]) + int(counted[12])) / os.sysconf("SC_CLK_TCK")


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


def _first_point(browser: Browser) -> float:
    page = browser.new_page()
    with server() as (url, *_):
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
    return shown


@contextmanager
def server(root: Path = ROOT) -> Iterator[tuple[str, float, int]]:
    """An app's server on a free port of this machine, as soon as it answers, when it was started, and its process."""
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
            yield url, started, process.pid
        finally:
            process.terminate()
            process.wait(timeout=20)
