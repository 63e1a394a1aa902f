"""The journey in a real browser: open, run, see points arrive, change N and norm, reload, share, stop."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_runs import ENVIRONMENT, ROOT, record, wait_until

from accum_core.records import RunConfig, RunResult, Validation
from accum_core.runs.store import Store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)"),
    pytest.mark.timeout(600),
]
PATIENCE = 120_000  # milliseconds; a shared machine may be slow, and nothing here is a measurement
CONFIG = RunConfig.of(effective_batch_size=4, micro_batch_size=2, updates=2000, seed=1)
ADDRESS = "effective=4&micro=2&updates=2000&seed=1"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "new" / "runs.sqlite"  # the first start makes the folder


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[str]:
    """The app as a person starts it, on a port of its own with a store of its own."""
    with serving(path) as address:
        yield address


@contextmanager
def serving(path: Path, **environment: str) -> Iterator[str]:
    """The app in a process of its own, with some environment variables more; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    environment = {**os.environ, "ACCUMULATION_LAB_STORE": str(path), "OMP_NUM_THREADS": "1", **environment}
    with open(path.parents[1].joinpath("server.log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://localhost:{port}"
        wait_until(lambda: _answers(f"{address}/_stcore/health") and path.exists(), 60)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def browsing(chromium: Any, server: str, **context: Any) -> Iterator[Any]:
    """A page of a browser of its own, which must neither fail nor ask anybody else for anything."""
    failures: list[str] = []
    with chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **context}) as visitor:
        visitor.set_default_timeout(PATIENCE)
        page = visitor.new_page()
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("request", lambda asked: failures.append(asked.url) if not _ours(asked.url, server) else None)
        yield page
    assert not failures


def _ours(url: str, server: str) -> bool:
    return url.startswith((server, server.replace("http", "ws"), "data:", "blob:"))


LOSS = "document.querySelector('[data-panel=loss] .js-plotly-plot')"


def points(page: Any) -> list[list[float]]:
    """Updates and losses that the loss chart draws for the run."""
    drawn: list[list[float]] = page.evaluate(f"() => {{ const run = {LOSS}.data[2]; return [run.x, run.y]; }}")
    return drawn


def at_least(page: Any, count: int) -> None:
    page.wait_for_function(f"count => ({LOSS}?.data[2].x.length ?? 0) >= count", arg=count)


def zoom(page: Any) -> None:
    page.evaluate(f"() => {{ {LOSS}.same = true; Plotly.relayout({LOSS}, {{'yaxis.range': [0, 4]}}); }}")


def is_zoomed(page: Any) -> bool:
    """The chart is the very element that was zoomed, and still shows that part."""
    return bool(page.evaluate(f"() => {LOSS}.same && {LOSS}.layout.yaxis.range.join() === '0,4'"))


def marks(page: Any) -> list[str]:
    texts: list[str] = page.locator("[data-panel=loss] .annotation-text").all_text_contents()
    return texts


def crossing(page: Any) -> list[str]:
    """Texts of one chart that lie over one another."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('.lab-card .js-plotly-plot')].flatMap(plot => {
            const texts = [...plot.querySelectorAll('.annotation-text')];
            const boxes = texts.map(text => text.getBoundingClientRect());
            return boxes.flatMap((a, i) => boxes.slice(i + 1).flatMap((b, j) =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1
                    ? [`${texts[i].textContent} / ${texts[i + 1 + j].textContent}`] : []));
        })"""
    )
    return found


def labels(page: Any) -> list[float]:
    """Where the loss chart names its lines, on its vertical axis."""
    places = f"() => {LOSS}.layout.annotations.filter(({{yref}}) => yref === 'y').map(({{y}}) => y)"
    found: list[float] = page.evaluate(places)
    return found


def gap(page: Any) -> float:
    """Pixels between the changes' texts, over the plot, and the highest name of a line."""
    space: float = page.evaluate(
        """plot => {
            const texts = [...plot.querySelectorAll('.annotation-text')];
            const boxes = (axis) => texts
                .filter((text) => plot.layout.annotations.find((one) => one.text === text.textContent).yref === axis)
                .map((text) => text.getBoundingClientRect());
            return Math.min(...boxes('y').map(({top}) => top)) - Math.max(...boxes('paper').map(({bottom}) => bottom));
        }""",
        page.evaluate_handle(LOSS),
    )
    return space


def test_a_run_is_started_watched_changed_found_again_and_stopped(chromium: Any, server: str, path: Path) -> None:
    store = Store(path)
    with browsing(chromium, server) as page:
        page.goto(f"{server}/lab?{ADDRESS}")
        # The title asks about the run shown: a committed one, whose settings are its own, until this one is started.
        sync_api.expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "2 × 2", timeout=PATIENCE)
        page.get_by_role("button", name="Run", exact=True).click()
        page.wait_for_url("**/lab?run=*")
        page.get_by_role("heading", name="Is 2 × 2 the same as 1 × 4?").wait_for()
        run_id = page.url.split("run=")[1]
        assert store.get(run_id).config == CONFIG
        assert store.find(CONFIG.reference()) is not None

        at_least(page, 3)
        updates, losses = points(page)
        kept = {entry.update: entry.loss for entry in store.records(run_id)}
        assert updates == list(range(1, len(updates) + 1))
        assert losses == pytest.approx([kept[int(update)] for update in updates], rel=1e-4)

        zoom(page)
        before = len(points(page)[0])
        at_least(page, before + 3)
        assert is_zoomed(page)

        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowLeft")
        page.get_by_text("N = 1 takes effect at the next update.").wait_for()
        page.wait_for_function(f"() => {LOSS}.layout.shapes.length === 1")
        page.get_by_role("radio", name="GroupNorm", exact=True).click()
        page.wait_for_function(f"() => {LOSS}.layout.shapes.length === 2")
        assert marks(page)[-2:] == ["N 2 → 1", "norm batch → group"]
        assert crossing(page) == []
        assert store.present_config(run_id).norm == "group"

        before = len(points(page)[0])
        page.reload()
        at_least(page, before + 3)
        assert page.url.endswith(f"/lab?run={run_id}")
        assert points(page)[0][:3] == [1, 2, 3]
        assert page.get_by_role("radio", name="GroupNorm", exact=True).is_checked()
        assert page.get_by_role("slider").get_attribute("aria-valuetext") == "1 × 4"

        zoom(page)
        with browsing(chromium, server) as second:
            second.goto(page.url)
            at_least(second, before + 6)
            second.get_by_role("button", name="Stop").click()
            second.get_by_role("status").get_by_text("stopped").wait_for()
        page.get_by_role("status").get_by_text("stopped").wait_for()
        sync_api.expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=PATIENCE)
        assert is_zoomed(page)

        # However a viewer zooms, a line that leaves through the top has its name under the changes' texts.
        for top in labels(page):
            page.evaluate(f"top => Plotly.relayout({LOSS}, {{'yaxis.range': [0, top]}})", top)
            assert gap(page) > 0
    assert store.get(run_id).state == "stopped"


def stored_run(path: Path) -> str:
    """A finished run with its reference, as a committed result leaves it."""
    validation = Validation(miou=0.5, pixel_accuracy=0.5, class_iou=(0.5,) * 6, loss=1.0)
    error = {"relative_error": 0.5, "cosine": 0.9, "norm_ratio": 1.0, "by_layer": {"stem": 0.5, "head": 0.25}}
    records = tuple(
        record(update, instruments={"gradient_error": error}, validation=validation if update % 4 == 0 else None)
        for update in range(1, 13)
    )
    config = RunConfig.of(updates=12, warmup_updates=2, seed=7)
    for one in (config.reference(), config):
        result = RunResult(config=one, environment=ENVIRONMENT, records=records)
        run_id = Store(path).add_result(result, "a_result")
    return run_id


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_every_panel_is_drawn_and_nothing_is_wider_than_the_window(
    chromium: Any, server: str, path: Path, width: int, scheme: str
) -> None:
    run_id = stored_run(path)
    with browsing(chromium, server, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.goto(f"{server}/lab?run={run_id}")
        page.wait_for_function("() => document.querySelectorAll('.lab-card .js-plotly-plot').length >= 4")
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        wide = page.evaluate(
            "() => [...document.querySelectorAll('.lab-card, .lab-tile')]"
            ".filter(e => e.getBoundingClientRect().right > window.innerWidth).length"
        )
        assert wide == 0
        assert crossing(page) == []  # although both runs have the same losses
        page.locator("[data-axis=seconds]").click()
        page.wait_for_function(f"() => Math.abs({LOSS}.data[2].x.at(-1) - 1.2) < 1e-6")
        assert page.url == f"{server}/lab?run={run_id}&x=seconds"
        page.reload()
        page.wait_for_function(f"() => Math.abs({LOSS}?.data[2].x.at(-1) - 1.2) < 1e-6")
        page.get_by_role("radio", name="LayerNorm", exact=True).click()
        page.wait_for_url(f"**/lab?norm=layer&run={run_id}&x=seconds")
        with page.expect_download() as download:
            page.locator("[data-panel=loss] .lab-data").click()
        lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
        assert lines[0] == "update,samples,seconds,loss,loss_smooth,reference_loss,reference_loss_smooth"
        assert len(lines) == 13


def test_a_browser_that_was_cut_off_says_so_and_goes_on(chromium: Any, server: str, path: Path) -> None:
    run_id = stored_run(path)
    with browsing(chromium, server) as page:
        page.goto(f"{server}/lab?run={run_id}")
        at_least(page, 12)
        page.route("**/api/runs/**", lambda route: route.abort())
        page.get_by_text("The app does not answer").wait_for()
        page.unroute("**/api/runs/**")
        page.get_by_text("The app does not answer").wait_for(state="detached")
        assert points(page)[0] == list(range(1, 13))
