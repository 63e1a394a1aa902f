"""Pitfalls as a visitor meets it: the list, a card, its two scripts and what they printed, and the address."""

from __future__ import annotations

import itertools
import time

import pytest
from small_runs import ROOT
from streamlit.testing.v1 import AppTest

from accum_core import pitfalls as core
from accum_core.pitfalls import Card, Outcome, Output, ScriptError
from accum_ui import pitfalls, pitfalls_state
from accum_ui.pitfalls_state import State

CARDS = core.load()


def opened(**address: str) -> AppTest:
    page = AppTest.from_file(ROOT / "pages" / "3_Pitfalls.py", default_timeout=60)
    page.query_params.update(address)
    return checked(page.run())


def checked(page: AppTest) -> AppTest:
    assert not page.exception, page.exception
    return page


def labels(page: AppTest) -> list[str]:
    return [expander.proto.label for expander in page.expander]


def html(page: AppTest) -> str:
    return "\n".join(element.proto.body for element in page.get("html"))


def address(page: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in page.query_params.items()}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's results."""
    monkeypatch.setattr(core, "_newest", {})
    monkeypatch.setattr(core, "_failures", {})


@pytest.fixture
def prints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cards that were run, for which scripts print made-up values."""
    asked: list[str] = []

    def run(card: Card, time_limit: float) -> Outcome:
        asked.append(card.id)
        return Outcome(Output((6.0, float("nan")), "<above>"), Output((4.0, -0.5), ""), time.monotonic())

    monkeypatch.setattr(core, "_run", run)
    return asked


def test_all_cards_are_listed_and_none_is_open() -> None:
    page = opened()
    assert labels(page) == [card.title for card in CARDS.cards]
    assert [heading.value for heading in page.subheader] == [group.title for group in CARDS.groups]
    assert not page.code
    assert address(page) == {}


def test_address_opens_a_card_in_its_group() -> None:
    page = opened(card="t12")
    assert labels(page) == [card.title for card in CARDS.cards if card.group == "tail"]
    assert [script.value for script in page.code] == [CARDS.card("t12").wrong.strip(), CARDS.card("t12").right.strip()]
    assert "https://github.com/Lightning-AI/pytorch-lightning/issues/19987" in page.markdown[1].value
    assert address(page) == {"card": "t12"}


def test_run_shows_what_was_printed_and_nothing_before(prints: list[str]) -> None:
    page = opened(card="s1")
    assert "<dd>" not in html(page)
    page = checked(page.button(key="pitfalls_run").click().run())
    assert prints == ["s1"]
    told = f"{CARDS.card('s1').quantity}: the wrong loop gives 6 and NaN, the right one 4 and −0.5."
    assert told in [element.value for element in page.markdown]
    assert "<dd>6 and NaN</dd>" in html(page)
    assert "<dd>4 and −0.5</dd>" in html(page)
    assert "&lt;above&gt;" in html(page)  # what a script prints is text, and no page


def test_what_fails_is_told_in_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(card: Card, time_limit: float) -> Outcome:
        raise ScriptError("card = 's1': its scripts did not end.")

    monkeypatch.setattr(core, "_run", fail)
    page = checked(opened(card="s1").button(key="pitfalls_run").click().run())
    for shown in (page, opened(**address(page))):
        assert [error.value for error in shown.error] == ["card = 's1': its scripts did not end."]
        assert len(shown.code) == 2


def test_a_result_is_there_after_a_look_at_another_card_and_after_a_reload(prints: list[str]) -> None:
    page = checked(opened(card="s1").button(key="pitfalls_run").click().run())
    assert address(page) == {"card": "s1", "run": "1"}
    page.session_state["pitfalls_open"] = "s4"
    assert "<dd>" not in html(checked(page.run()))
    page.session_state["pitfalls_open"] = "s1"
    for shown in (page.run(), opened(card="s1", run="1")):
        assert "<dd>6 and NaN</dd>" in html(checked(shown))
    assert prints == ["s1"]


def test_a_link_to_a_result_runs_nothing(prints: list[str]) -> None:
    page = opened(card="s1", run="1")
    assert "<dd>" not in html(page) and not page.error
    assert prints == []


def test_back_and_forward_walk_through_groups_cards_and_words() -> None:
    page = opened()
    seen = [address(page)]
    for key, value in [("open", "s1"), ("open", "t13"), ("group", "tail"), ("search", "last"), ("group", "counting")]:
        page.session_state[f"pitfalls_{key}"] = value
        seen.append(address(checked(page.run())))
    assert seen == [
        {},
        {"group": "all", "card": "s1"},
        {"group": "all", "card": "t13"},
        {"card": "t13"},
        {"card": "t13", "search": "last"},
        {"group": "counting", "search": "last"},
    ]
    for there in [*reversed(seen), *seen]:
        page.query_params.clear()
        page.query_params.update(there)
        checked(page.run())
        assert address(page) == there
        assert page.session_state["pitfalls_open"] == there.get("card")
        assert page.text_input(key="pitfalls_search").value == there.get("search", "")
        assert bool(page.code) == ("card" in there)


def test_a_click_counts_more_than_an_address_that_the_browser_has_not_heard_of(prints: list[str]) -> None:
    page = opened(card="s1")
    page.session_state["pitfalls_open"] = "s4"
    checked(page.run())
    page.query_params["card"] = "s1"
    page = checked(page.button(key="pitfalls_run").click().run())
    assert prints == ["s4"]
    assert address(page) == {"card": "s4", "run": "1"}


@pytest.mark.parametrize(("control", "value"), [("group", "counting"), ("search", "gradcache")])
def test_a_card_that_is_hidden_closes(control: str, value: str) -> None:
    page = opened(card="t13")
    page.session_state[f"pitfalls_{control}"] = value
    page = checked(page.run())
    assert not page.code
    assert "card" not in address(page)


def test_every_state_has_an_address_that_means_it() -> None:
    groups = [pitfalls_state.ALL, *(group.id for group in CARDS.groups)]
    states = [State(group, search) for group in groups for search in ("", "adam", "http://x")]
    for card, ran in itertools.product(CARDS.cards, (False, True)):
        states += [State(group, card.title[:9], card.id, ran) for group in (pitfalls_state.ALL, card.group)]
    for state in states:
        assert pitfalls_state.read(pitfalls_state.written(state, CARDS), CARDS) == (state, [])
    assert len({tuple(pitfalls_state.written(state, CARDS).items()) for state in states}) == len(states)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"group": "counting", "card": "t13"}, State("tail", "", "t13")),
        ({"search": "gradcache", "card": "t13"}, State("tail", "", "t13")),
        ({"group": "all", "search": "gradcache", "card": "t13", "run": "1"}, State("all", "", "t13", True)),
        ({"run": "1"}, State()),
    ],
)
def test_a_card_that_the_address_names_is_shown(asked: dict[str, str], shown: State) -> None:
    assert pitfalls_state.read(asked, CARDS) == (shown, [])


def test_a_card_beside_a_group_that_is_not_there_is_opened() -> None:
    page = opened(group="zz", card="t13")
    assert page.error[0].value.startswith("group = 'zz': is no group")
    assert page.code[0].value == CARDS.card("t13").wrong.strip()
    page = checked(page.text_input(key="pitfalls_search").input("tail").run())
    assert not page.error  # the address is the page's own again
    assert address(page) == {"card": "t13", "search": "tail"}


def test_one_card_is_open_at_a_time() -> None:
    page = opened(card="s1")
    page.session_state["pitfalls_open"] = "s4"
    page = checked(page.run())
    assert page.code[0].value == CARDS.card("s4").wrong.strip()
    assert len(page.code) == 2
    assert address(page) == {"card": "s4"}


def test_group_and_search_narrow_the_list() -> None:
    page = opened(group="counting")
    assert len(page.expander) == 6
    page = checked(page.text_input(key="pitfalls_search").input("ADAM").run())
    assert labels(page) == [CARDS.card("c24").title]
    page = checked(page.text_input(key="pitfalls_search").input("adam gradcache").run())
    assert labels(page) == []
    assert page.info[0].value == "No card holds all of these words: try fewer."


def test_words_that_another_group_has_are_found_by_a_click() -> None:
    """S1 quotes nanochat's report; no card on counting does."""
    page = opened(group="counting", search="nanochat")
    assert labels(page) == []
    page = checked(page.button(key="pitfalls_everywhere").click().run())
    assert CARDS.card("s1").title in labels(page)
    assert address(page) == {"search": "nanochat"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"card": "z9"}, "card = 'z9': is no card; open one of the list instead."),
        ({"group": "rear"}, "group = 'rear': is no group; use one of scaling, tail, counting"),
        ({"card": "[x](y)"}, r"card = '\[x\](y)': is no card"),
        ({"run": "2"}, "run = '2': cannot be; use 1 for a result, or leave it out."),
    ],
)
def test_what_is_not_there_is_told_in_one_sentence(asked: dict[str, str], told: str) -> None:
    page = opened(**asked)
    assert len(page.error) == 1
    assert page.error[0].value.startswith(told)
    assert address(page) == asked
    assert len(page.expander) == len(CARDS.cards)


def test_differing_lines_are_marked_by_sign_bar_and_tint() -> None:
    marked = pitfalls.different_lines("a\nb\nc\nd", "a\nB\nc\nd\ne")
    assert marked == {"wrong": [1], "right": [1, 4]}
    style = pitfalls.marks("right", marked["right"])
    assert 'content: "\\a +\\a \\a \\a +"' in style
    assert "background-position: 0 1lh, 0 4lh, 0 1lh, 0 4lh" in style
    assert "background-size: 3px 1lh, 3px 1lh, 100% 1lh, 100% 1lh" in style
    assert pitfalls.marks("wrong", []) == ""


def test_numbers_are_written_for_people() -> None:
    assert pitfalls.spoken([0.0009765625]) == "0.0009766"
    assert pitfalls.spoken([12.0, 96.0, 4.0]) == "12, 96 and 4"
    assert pitfalls.spoken([-2.5]) == "−2.5"
