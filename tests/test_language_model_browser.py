"""The page Language model in a real browser: its first answer, a run to its stop, addresses, and what fits its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_browser import (  # the fixtures work by their names
    PATIENCE,
    at_least,
    browsing,
    chromium,
    path,
    points,
    pytestmark,
    server,
    sync_api,
)

from accum_core.runs.store import Store
from accum_ui.language_model import choice as choices
from accum_ui.language_model.choice import Choice

__all__ = ["chromium", "path", "pytestmark", "server"]
PAGE = "language-model"
SHORT = Choice(effective=8, micro=2, small=4, updates=256, seed=7)
WIDE = (
    "[...document.querySelectorAll('[class*=st-key-lm_], .stMain h1, .stMain table, .stMain pre, .lab-card')]"
    ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
)


def address(choice: Choice) -> str:
    return "&".join(f"{name}={value}" for name, value in choices.address(choice).items())


def settled(page: Any) -> None:
    """Wait for the end of the page's run, which writes the address."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def form(page: Any, title: str) -> Any:
    return page.locator(".st-key-lm_set_form").get_by_role("radio", name=title, exact=True)


def test_it_opens_with_a_measured_answer(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        for shown, rows in (("", "padded"), ("?rows=packed", "packed")):
            page.goto(f"{server}/{PAGE}{shown}")
            at_least(page, choices.DEFAULT.updates)
            page.get_by_text("Yes, with LayerNorm").wait_for()
            page.get_by_role("heading", name="Averaging the micro-batches' means is off by").wait_for()
            page.get_by_text(f"Stored result of the experiment {choices.EXPERIMENT}").wait_for()
            settled(page)
            assert page.locator(".st-key-lm_run, .st-key-lm_run_divisions").count() == 0, rows


def test_a_run_is_started_watched_found_again_and_stopped(chromium: Any, server: str, path: Path) -> None:
    store, config = Store(path), choices.config(SHORT)
    with browsing(chromium, server) as page:
        page.goto(f"{server}/{PAGE}?{address(SHORT)}")
        page.get_by_text("Nobody has run these settings here yet").wait_for()
        page.locator(".st-key-lm_run button").click()
        at_least(page, 3)
        run = store.find(config)
        assert run is not None and store.find(config.reference()) is not None
        updates, losses = points(page)
        kept = {entry.update: entry.loss for entry in store.records(run.id)}
        assert losses == pytest.approx([kept[int(update)] for update in updates], rel=1e-4)
        # While the page is drawn anew, the samples of before stand beside the new ones for a moment.
        sync_api.expect(page.get_by_text("Before training", exact=True)).to_have_count(1, timeout=PATIENCE)

        before = len(points(page)[0])
        page.reload()
        at_least(page, before + 2)
        assert page.url.endswith(address(SHORT))

        with browsing(chromium, server) as second:
            second.goto(page.url)
            at_least(second, before + 3)
            second.locator(".st-key-lm_stop_run button").click()
            second.get_by_role("status").get_by_text("stopped").wait_for()
        page.get_by_role("status").get_by_text("stopped").wait_for()
        page.locator(".st-key-lm_run").get_by_role("button", name="Run", exact=True).wait_for()
        page.locator(".st-key-lm_stop_run").wait_for(state="detached")
    assert store.get(run.id).state == "stopped"


def test_two_addresses_are_two_pages_and_back_leads_to_the_first(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page, browsing(chromium, server) as other:
        page.goto(f"{server}/{PAGE}?micro=8")
        other.goto(f"{server}/{PAGE}?micro=16&form=trainer")
        page.get_by_role("heading", name="Is 4 × 8 the same as 1 × 32?").wait_for()
        other.get_by_role("heading", name="Is 2 × 16 the same as 1 × 32?").wait_for()
        settled(page)
        form(page, "Notebook").click()
        page.wait_for_url("**/language-model?micro=8&form=notebook")
        page.get_by_role("button", name="Download Notebook").wait_for()
        settled(page)
        with page.expect_download() as got:
            page.get_by_role("button", name="Download Notebook").click()
        assert got.value.suggested_filename == "layer_4x8.ipynb"
        page.go_back()
        page.wait_for_url("**/language-model?micro=8")
        page.get_by_role("button", name="Download PyTorch").wait_for()
        page.go_forward()
        page.get_by_role("button", name="Download Notebook").wait_for()
        settled(other)
        other.get_by_role("button", name="Download Trainer").wait_for()
        assert other.url.endswith("?micro=16&form=trainer")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_window(chromium: Any, server: str, width: int, scheme: str) -> None:
    with browsing(chromium, server, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.goto(f"{server}/{PAGE}")
        at_least(page, choices.DEFAULT.updates)
        page.locator(".st-key-lm_take_home").wait_for()
        settled(page)
        assert page.locator(".stMain table").count() >= 2
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(f"() => {WIDE}") == 0
