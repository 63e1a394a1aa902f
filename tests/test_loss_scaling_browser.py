"""The page on loss scaling in a real browser: Back and Forward, N under quick keys, and what fits its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_browser import (  # the fixtures work by their names
    browsing,
    chromium,
    path,
    pytestmark,
    server,
    serving,
    sync_api,
)

__all__ = ["chromium", "path", "pytestmark", "server"]
LATE = """
import threading, time
from streamlit.runtime.state.safe_session_state import SafeSessionState

newest = threading.Event()

def take_in(self, states, **more):
    self._yield_callback()  # where a run that a newer one has followed ends
    counts = [state.double_array_value.data[0] for state in states.widgets if "set_count" in state.id] if states else []
    if counts == [7]:
        newest.wait(2)
    with self._lock:
        self._state.on_script_will_rerun(states, **more)
    if counts == [8]:
        newest.set()
        time.sleep(0.1)

SafeSessionState.on_script_will_rerun = take_in
"""
TILES = ".st-key-scaling_masks img"
TITLE_AND_TICKS = """() => [...document.querySelectorAll('.st-key-scaling_shares .ytick text')].every(tick =>
    tick.getBoundingClientRect().left >=
    document.querySelector('.st-key-scaling_shares .ytitle').getBoundingClientRect().right)"""


def shows(page: Any, told: str) -> None:
    """Wait for a heading and for the end of the run of the page that made it: the address is written at its end."""
    page.get_by_role("heading", name=told).wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def test_back_and_forward_walk_through_what_was_chosen(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/loss-scaling")
        shows(page, "all 140 pixels")
        for preset, told in (("Equal", "all 256 pixels"), ("1 token and 3 tokens", "all 4 labels")):
            page.get_by_role("button", name=preset, exact=True).click()
            shows(page, told)
        page.wait_for_url("**source=numbers")
        for step, told in (
            (page.go_back, "all 256 pixels"),
            (page.go_back, "all 140 pixels"),
            (page.go_forward, "all 256 pixels"),
            (page.go_forward, "all 4 labels"),
        ):
            step()
            shows(page, told)


def test_n_that_nobody_set_follows_quick_keys(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/loss-scaling")
        slider = page.get_by_role("slider").first
        slider.focus()
        for key, count, told in (("ArrowRight", 12, "mean of 16 means"), ("ArrowLeft", 15, "Is one micro-batch")):
            for _ in range(count):
                slider.press(key)
            page.get_by_role("heading", name=told).wait_for()
        page.wait_for_url("**/loss-scaling?w=4x16")


def test_an_older_key_that_is_late_does_not_undo_a_newer_one(chromium: Any, tmp_path: Path) -> None:
    """The key that makes it 7 is taken in once the one that makes it 8 was, if the server lets it: with fast reruns it
    does, as a page's older run then goes on beside the newer one."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    store = tmp_path / "new" / "runs.sqlite"
    with serving(store, PYTHONPATH=str(tmp_path)) as server, browsing(chromium, server) as page:
        page.goto(f"{server}/loss-scaling")
        shows(page, "all 140 pixels")
        slider = page.get_by_role("slider").first
        for count in (5, 6, 7, 8):
            slider.press("ArrowRight")
            sync_api.expect(slider).to_have_attribute("aria-valuetext", str(count))
        page.get_by_role("heading", name="mean of 8 means").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pictures_and_axis_titles_keep_their_room(chromium: Any, server: str, width: int, scheme: str) -> None:
    screen = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with browsing(chromium, server, **screen) as page:
        page.goto(f"{server}/loss-scaling?source=masks&micro=4&steps=16")
        page.locator(".st-key-scaling_shares .ytitle").wait_for()
        page.wait_for_function(f"() => document.querySelectorAll('{TILES}').length === 16")
        right = page.locator(".st-key-scaling_controls").bounding_box()
        for picture in page.locator(TILES).all():
            box = picture.bounding_box()
            assert box["x"] + box["width"] <= right["x"] + right["width"]
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        page.wait_for_function(TITLE_AND_TICKS)
