"""Back and Forward told from a control that was moved, and callbacks that leave Streamlit's state alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import streamlit

from accum_ui import history


class Session(dict[str, object]):
    """A session that ends whoever touches it while a newer request waits, as Streamlit's does."""

    newer_waits = False

    def __getitem__(self, key: str) -> object:
        assert not self.newer_waits, f"{key} was read"
        return super().__getitem__(key)

    def setdefault(self, key: str, default: object = None) -> object:
        assert not self.newer_waits, f"{key} was read"
        return super().setdefault(key, default)

    def __setitem__(self, key: str, value: object) -> None:
        assert not self.newer_waits, f"{key} was written"
        super().__setitem__(key, value)


class Address(dict[str, str]):
    def to_dict(self) -> dict[str, str]:
        return dict(self)

    def from_dict(self, address: dict[str, str]) -> None:
        self.clear()
        self.update(address)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The page "p" at ``?n=1``, which it wrote."""
    found = SimpleNamespace(session_state=Session(), query_params=Address())
    monkeypatch.setattr(history, "st", found)
    history.write("p", {"n": "1"})
    return found


def test_another_address_is_a_step_once(page: SimpleNamespace) -> None:
    assert not history.stepped("p")
    page.query_params.from_dict({"n": "0"})
    assert history.stepped("p")
    assert not history.stepped("p")


def test_a_moved_control_with_an_older_address_is_no_step_and_is_noted_while_a_newer_request_waits(
    page: SimpleNamespace,
) -> None:
    callback = history.mover()
    page.session_state.newer_waits = True
    callback()
    page.session_state.newer_waits = False
    page.query_params.from_dict({})
    assert not history.stepped("p")
    history.write("p", {"n": "2"})
    page.query_params.from_dict({"n": "1"})
    assert history.stepped("p")  # the mark counted for one run of the page


def test_a_page_runs_once_at_a_time() -> None:
    """With Streamlit's fast reruns a page's older run goes on beside the newer one, and what it takes in last counts:
    of quick keys the last was lost, and sliders came back at their least value."""
    assert streamlit.config.get_option("runner.fastReruns") is False
