"""The report as a file in a real browser without a network: its charts are there, on a screen and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_findings
import pytest
from test_browser import chromium, pytestmark  # the fixture works by its name

from experiments.report import html

__all__ = ["chromium", "pytestmark"]
DRAWN = "[...document.querySelectorAll('.chart')].filter(chart => chart.querySelector('.scatterlayer .trace')).length"


@pytest.mark.parametrize("width", [1440, 390])
def test_the_charts_are_there_without_a_network(chromium: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(html.report(made_findings.found()), encoding="utf-8")
    told: list[str] = []
    with chromium.new_context(viewport={"width": width, "height": 900}, offline=True) as visitor:
        page = visitor.new_page()
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
        page.on("request", lambda asked: told.append(asked.url) if asked.url.startswith("http") else None)
        page.goto(path.as_uri())
        charts = page.locator(".chart").count()
        assert charts == 4
        page.wait_for_function(f"() => {DRAWN} === {charts}")
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.chart .main-svg')].every(svg => svg.clientWidth <= 640)"
        )
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    assert told == []
