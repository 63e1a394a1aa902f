"""The control that offers a run's program: five forms, what each cannot carry over, and downloads made on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from test_house import FRAME

import experiments
from accum_core.errors import SettingError
from accum_core.export import FORMS, departures, source
from accum_core.records import RunConfig
from accum_ui import results, settings
from accum_ui.reproduce import choice as papers

PAGE = """
import sys
from accum_core.records import RunConfig
import streamlit as st
from accum_ui import take_home
st.session_state.setdefault("test_form", "script")
take_home.show(RunConfig.of(**{settings!r}), key="test", form=dict(key="test_form"), altered={altered!r}, code=True)
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


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither runs nor committed results."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    monkeypatch.setattr(results, "fill", lambda store: 0)
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)


def at(page: str, **address: str) -> AppTest:
    test = AppTest.from_string(FRAME.format(page=page), default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def address(test: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in test.query_params.items()}


@pytest.mark.parametrize(
    ("page", "key", "beside"),
    [
        ("1_Lab.py", "lab_form", {}),
        ("1_Lab.py", "lab_form", {"norm": "group"}),
        ("5_Reproduce.py", "reproduce_set_form", {"paper": "marek_2025_small_batches"}),
        ("7_Language_model.py", "lm_set_form", {"micro": "2"}),
    ],
)
def test_the_form_stands_in_the_address_and_comes_back(
    empty: None, page: str, key: str, beside: dict[str, str]
) -> None:
    test = at(page, **beside)
    assert test.segmented_control(key=key).value == "script" and address(test) == beside
    test.segmented_control(key=key).set_value("accelerate").run()
    assert not test.exception and downloads(test)[-1] == "Download Accelerate"
    assert address(test) == {**beside, "form": "accelerate"}
    again = at(page, **address(test))
    assert again.segmented_control(key=key).value == "accelerate" and not again.error
    again.segmented_control(key=key).set_value("script").run()
    assert address(again) == beside


def test_an_unknown_form_is_refused_in_a_sentence(empty: None) -> None:
    for read in (lambda asked: settings.read(asked, RunConfig.of()), papers.read):
        with pytest.raises(SettingError, match="form = 'word': use one of script, notebook, trainer, lightning, acc"):
            read({"paper": "marek_2025_small_batches", "form": "word"})
    test = at("1_Lab.py", form="word")
    assert "form = 'word'" in test.error[0].value and address(test) == {"form": "word"}
    assert test.segmented_control(key="lab_form").value == "script"
