"""The page on normalisation in a real browser: Back and Forward, N that moves dots, a queue, and what fits its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_norm_runs import ON, add
from test_browser import browsing, chromium, path, pytestmark, server  # the fixtures work by their names

from accum_core.runs.store import Store

__all__ = ["chromium", "path", "pytestmark", "server"]
DOTS = "document.querySelectorAll('.st-key-norms_cut .scatterlayer .point').length - 1"  # the last is the window
WIDE = (
    "[...document.querySelectorAll('[class*=st-key-norms_], .stMain h1, .stMain table')]"
    ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
)


def settled(page: Any) -> None:
    """Wait for the end of the page's run, which writes the address."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def chosen(page: Any) -> list[str]:
    """The layers in the race, by the pills that are pressed."""
    names: list[str] = page.locator(".st-key-norms_set_norms button[aria-pressed=true]").all_text_contents()
    return names


def test_back_and_forward_walk_through_the_races(chromium: Any, server: str) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/normalisation")
        pills = page.locator(".st-key-norms_set_norms")
        pills.get_by_role("button", name="LayerNorm", exact=True).click()
        page.wait_for_url("**norms=batch**layer")
        settled(page)
        pills.get_by_role("button", name="BatchNorm", exact=True).click()
        page.wait_for_url("**norms=sync_batch**layer")
        settled(page)
        page.go_back()
        page.wait_for_url("**norms=batch**layer")
        page.get_by_text("Not BatchNorm", exact=False).first.wait_for()
        settled(page)
        assert "LayerNorm" in chosen(page) and "BatchNorm" in chosen(page)
        page.go_forward()
        page.wait_for_url("**norms=sync_batch**layer")
        page.wait_for_function(
            "() => !document.querySelector('.st-key-norms_answer').textContent.includes('Not Batch')"
        )
        settled(page)
        assert "BatchNorm" not in chosen(page)


def test_n_moves_the_dots_and_is_in_the_address(chromium: Any, server: str, path: Path) -> None:
    run = add(Store(path), "instance", 16, on=ON)
    with browsing(chromium, server) as page:
        page.goto(f"{server}/normalisation?on={ON}&norms=instance&run={run}&n=1")
        page.wait_for_function(f"() => {DOTS} === 1")
        slider = page.locator(".st-key-norms_set_steps").get_by_role("slider")
        slider.focus()
        slider.press("ArrowRight")
        page.wait_for_function(f"() => {DOTS} === 2")
        slider.press("ArrowRight")
        page.wait_for_function(f"() => {DOTS} === 4")
        page.wait_for_url("**n=4")
        page.reload()
        page.wait_for_function(f"() => {DOTS} === 4")
        page.get_by_role("heading", name="4 × 1: the means lie 0.71 deviations").wait_for()


def test_what_is_missing_is_queued_and_its_points_appear(chromium: Any, server: str, path: Path) -> None:
    with browsing(chromium, server) as page:
        page.goto(f"{server}/normalisation?on={ON}&norms=none&seeds=4711")
        assert page.locator(".st-key-norms_quality").count() == 0
        page.get_by_role("button", name="Run the 6 missing runs").click()
        page.get_by_text("of 6 runs ended").first.wait_for()
        # While the page is drawn anew, the chart of before stands hidden beside the new one.
        charts = "[...document.querySelectorAll('.st-key-norms_quality .js-plotly-plot')]"
        page.wait_for_function(f"{charts}.some(chart => chart.checkVisibility())")
    ended = [run for run in Store(path).runs() if run.config.seed == 4711 and run.state == "done"]
    assert ended and {run.config.norm for run in ended} == {"none"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_window(chromium: Any, server: str, path: Path, width: int, scheme: str) -> None:
    run = add(Store(path), "instance", 8, on=ON, depth={"backbone.layer1.0.conv1": (0.1, 0.5), "head": (0.2, 0.5)})
    screen = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with browsing(chromium, server, **screen) as page:
        page.goto(f"{server}/normalisation?on={ON}&norms=instance&run={run}")
        page.locator(".st-key-norms_cut .js-plotly-plot").wait_for()
        page.locator(".st-key-norms_depth .js-plotly-plot").wait_for()
        settled(page)
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(f"() => {WIDE}") == 0
