"""The page of papers in a real browser: Back and Forward, a varied run to its end, the report, what fits its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_browser import browsing, chromium, path, pytestmark, server  # the fixtures work by their names

from accum_core.runs.store import Store

__all__ = ["chromium", "path", "pytestmark", "server"]
NAME = "wu_he_2018_group_norm"
LIST = "Which large-batch results"
OPENED = "What do few images per batch"
WIDE = (
    "[...document.querySelectorAll('[class*=st-key-reproduce_], .stMain h1, .stMain table, .claim-card')]"
    ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
)


def shows(page: Any, told: str) -> None:
    """Wait for a title and for the end of the run of the page that made it."""
    page.get_by_role("heading", name=told).wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def test_a_paper_is_opened_and_left_by_back_and_forward(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/reproduce")
        shows(page, LIST)
        page.locator(f".st-key-reproduce_open_{NAME} button").click()
        page.wait_for_url(f"**/reproduce?paper={NAME}")
        shows(page, OPENED)
        page.go_back()
        shows(page, LIST)
        page.go_forward()
        shows(page, OPENED)
        with page.expect_download() as got:
            page.get_by_role("button", name="The report (HTML)").click()
        assert "<title>Images per batch and four normalisations</title>" in got.value.path().read_text("utf-8")


def test_a_varied_run_comes_to_stand_beside_the_committed_one(chromium: Any, server: str, path: Path) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/reproduce?paper={NAME}&run=batch_2&n=8&seeds=4711")
        shows(page, OPENED)
        page.get_by_role("button", name="Run 1 varied run").click()
        page.locator("td[data-label='Varied run']").filter(has_text="done").wait_for()
        told = page.locator("td[data-label='error, varied']").text_content()
    (run,) = [run for run in Store(path).runs(1000) if run.config.seed == 4711]
    assert (run.state, run.config.micro_batch_size) == ("done", 4)
    assert told == f"{100 * Store(path).result(run.id).metrics['error']:.1f} %"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_window(chromium: Any, server: str, width: int, scheme: str) -> None:
    screen = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with browsing(chromium, server, **screen) as page:
        for address, told in (("", LIST), (f"?paper={NAME}", OPENED)):
            page.goto(f"{server}/reproduce{address}")
            shows(page, told)
            assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
            assert page.evaluate(f"() => {WIDE}") == 0
        assert page.locator(".claim-card img").first.evaluate("image => image.naturalWidth") > 0
