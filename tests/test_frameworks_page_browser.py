"""The page of frameworks in a real browser: a cell opens by mouse and by keyboard, a run is seen by all, all fits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import made_conformance
import pytest
from test_browser import browsing, chromium, path, pytestmark, server  # the fixtures work by their names

from accum_ui.conformance import job

__all__ = ["chromium", "path", "pytestmark", "server"]
HERE = "frameworks?results=here"
MATRIX = "Does your framework compute"
COUNTS = """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(600), file=sys.stderr, mininterval=0):
    time.sleep(0.1)
"""
WIDE = (
    "[...document.querySelectorAll('[class*=st-key-frameworks_], .stMain h1, table.frameworks, table.frameworks td, "
    "table.case')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
)
CELL = "table.frameworks a[href*='framework=accelerate'][href*='case=unequal_tokens']"


@pytest.fixture(autouse=True)
def results(path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up results as those of this machine."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    job.folder().mkdir(exist_ok=True)
    made_conformance.usual().write(job.result_path(""))


def shows(page: Any, told: str) -> None:
    """Wait for a title and for the end of the run of the page that made it."""
    page.get_by_role("heading", name=told).wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def test_a_cell_opens_and_closes(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/{HERE}")
        shows(page, MATRIX)
        page.locator(CELL).click()
        shows(page, "Accelerate: unequal token counts")
        assert page.locator("[data-testid=stCode]").first.text_content().count("accelerator.accumulate(model)") == 1
        assert page.locator("a[aria-current=true]").count() == 1
        page.go_back()
        shows(page, MATRIX)
        with page.expect_download() as got:
            page.get_by_role("button", name="The results (CSV)").click()
        assert got.value.path().read_text("utf-8").splitlines()[0].startswith("framework,version,kind,case,")


def test_the_keyboard_reaches_every_cell(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/{HERE}")
        shows(page, MATRIX)
        links = page.locator("table.frameworks a")
        links.first.focus()
        reached = []
        for _ in range(links.count()):
            reached.append(page.evaluate("() => document.activeElement.getAttribute('href')"))
            page.keyboard.press("Tab")
        assert reached == links.evaluate_all("all => all.map(each => each.getAttribute('href'))")
        cell = page.locator(CELL)
        assert (
            cell.evaluate("e => (e.focus(), e.matches(':focus-visible'), getComputedStyle(e).outlineStyle)") == "solid"
        )
        page.keyboard.press("Enter")
        shows(page, "Accelerate: unequal token counts")


def test_a_run_is_seen_after_a_reload_and_by_others_and_stopped_by_any(
    chromium: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_command", lambda framework: [sys.executable, "-c", COUNTS])
    job.start("keras")
    with browsing(chromium, server) as page, browsing(chromium, server) as other:
        for each in (page, other):
            each.goto(f"{server}/{HERE}")
            each.get_by_text("of 600 trials done").wait_for()
        page.reload()
        page.get_by_text("of 600 trials done").wait_for()
        page.get_by_role("button", name="Stop it").click()
        for each in (page, other):
            each.get_by_text("ended without a result").wait_for()
    assert job.look().state == "ended"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_window(chromium: Any, server: str, width: int, scheme: str) -> None:
    screen = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with browsing(chromium, server, **screen) as page:
        for address, told in (
            ("", MATRIX),
            ("&case=unequal_tokens", MATRIX),
            ("&framework=accelerate&case=unequal_tokens", "Accelerate: unequal"),
        ):
            page.goto(f"{server}/{HERE}{address}")
            shows(page, told)
            page.locator("table.frameworks, table.case").first.wait_for()
            assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
            assert page.evaluate(f"() => {WIDE}") == 0
