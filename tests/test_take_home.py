"""The control that offers a run's program: five forms, what each cannot carry over, and downloads made on demand."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from accum_core.export import FORMS, departures, source
from accum_core.records import RunConfig

PAGE = """
import sys
from accum_core.records import RunConfig
from accum_ui import take_home
take_home.show(RunConfig.of(**{settings!r}), key="test", altered={altered!r}, code=True)
assert "torch" not in sys.modules or {torch!r}
"""


def opened(altered: bool = False, **settings: Any) -> AppTest:
    import sys

    text = PAGE.format(settings=settings, altered=altered, torch="torch" in sys.modules)
    page = AppTest.from_string(text, default_timeout=30).run()
    assert not page.exception
    return page


def chosen(page: AppTest, form: str) -> AppTest:
    page.segmented_control[0].set_value(form).run()
    assert not page.exception
    return page


def downloads(page: AppTest) -> list[str]:
    return [button.proto.label for button in page.get("download_button")]


def test_each_form_is_shown_and_offered() -> None:
    page = opened()
    assert page.segmented_control[0].options == [kind.title for kind in FORMS.values()]
    for form, kind in FORMS.items():
        chosen(page, form)
        assert downloads(page) == [f"Download {kind.title}"]
        assert kind.what in page.caption[0].value
        assert ("requirements-frameworks.txt" in page.caption[0].value) == bool(kind.needs)
        if form == "notebook":
            assert not page.code
        else:
            assert page.code[0].value == source(form, RunConfig.of()).rstrip("\n")


def test_what_a_form_does_not_carry_over_stands_beside_it() -> None:
    page = opened(norm="sync_batch", altered=True)
    for form in FORMS:
        chosen(page, form)
        expected = departures(form, RunConfig.of(norm="sync_batch"), altered=True)
        assert len(page.caption) == 1 + len(expected)
        told = " ".join(caption.value for caption in page.caption)
        assert "live changes" in told
        assert ("sync\\_batch is not" in told or "sync_batch is not" in told) == (form not in ("script", "notebook"))


@pytest.mark.parametrize("form", ["trainer", "lightning", "accelerate"])
def test_a_refusal_takes_the_place_of_the_download(form: str) -> None:
    page = opened(schedule="step", milestones=(60,), decay="batch", decay_factor=0.5)
    assert downloads(page) == ["Download PyTorch"]
    chosen(page, form)
    assert downloads(page) == [] and "export the script or the notebook" in page.warning[0].value
    assert not page.code
