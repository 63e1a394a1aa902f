"""The page on loss scaling in a real browser: Back and Forward, N under quick keys, and what fits its box."""

from __future__ import annotations

from typing import Any

import pytest
from test_browser import browsing, chromium, path, pytestmark, server  # the fixtures work by their names

__all__ = ["chromium", "path", "pytestmark", "server"]
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
