"""The charts' descriptions: figures that Plotly accepts, columns that the route gives, colours of the theme."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import plotly.graph_objects as go
import pytest
from small_runs import CONFIG, ROOT

from accum_core import palette
from accum_core.records import RunConfig
from accum_core.runs.store import Store
from accum_ui import live
from accum_ui.api import CHOICES
from accum_ui.panels import panels
from accum_ui.payload import payload
from accum_ui.run_view import RunView

PANELS = panels(RunConfig.of())


@pytest.fixture
def news(store: Store) -> dict[str, Any]:
    run_id = store.submit(CONFIG)
    store.submit(CONFIG.reference())
    view = RunView(store, run_id)
    view.refresh()
    return payload(view, 0, 0)


@pytest.mark.parametrize("panel", PANELS, ids=[panel["key"] for panel in PANELS])
def test_a_panel_is_a_valid_figure_of_columns_that_the_route_gives(panel: dict[str, Any], news: dict[str, Any]) -> None:
    plain = re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(panel["figure"]))
    go.Figure(json.loads(plain))  # Plotly's own validator, which knows no style sheet
    tables = {**news, "reference": news["reference"]["columns"]}
    for fill in panel["fills"]:
        given = {"memory": {"names", "mebibytes"}}.get(fill["table"], set(tables[fill["table"]]))
        assert {column for name in ("x", "y", "z") if (column := fill.get(name))} <= given
    for column in (panel["download"] or "layers").split(","):
        assert column in CHOICES
    for label in panel["labels"]:
        assert panel["fills"][label["trace"]]["table"] in news["labels"]


def test_every_panel_has_a_finding_for_its_title(news: dict[str, Any]) -> None:
    assert {panel["key"] for panel in PANELS} | {"maps"} == set(news["titles"])


def test_every_colour_of_a_figure_is_defined_by_the_style_sheet() -> None:
    script, style = live.sources()
    used = set(re.findall(r"var\((--lab-[\w-]+)\)", json.dumps(PANELS) + script + style))
    assert {"--lab-run", "--lab-reference"} <= used
    assert {name for name in used if f"{name}:" not in style} == set()


def test_the_theme_is_the_palette() -> None:
    theme = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))["theme"]
    names = {"primaryColor": "RUN", "backgroundColor": "SURFACE", "secondaryBackgroundColor": "CARD",
             "textColor": "TEXT", "borderColor": "GRID"}  # fmt: skip
    for scheme in ("light", "dark"):
        assert theme[scheme] == {key: getattr(getattr(palette, name), scheme) for key, name in names.items()}


def test_the_weight_distance_says_whose_estimate_it_is_and_how_good() -> None:
    """256 buckets: a standard error of 1 / sqrt(2 * 256) = 4.42 %, which one estimate in three exceeds."""
    subtitle = next(panel["subtitle"] for panel in PANELS if panel["key"] == "distance")
    assert "estimated from sketches of the weights, standard error 4.4 %" in subtitle
    assert "as each update begins" in subtitle
