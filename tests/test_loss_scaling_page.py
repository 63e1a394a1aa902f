"""The page on loss scaling without a browser: presets, sources, addresses, what is refused, and what the charts say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_runs import ROOT
from streamlit.testing.v1 import AppTest

from accum_ui import loss_scaling, scaling_address, scaling_words
from accum_ui.scaling_window import PRESETS

CHARTS = 2
SHORT = PRESETS["Short sequences"]


def page(**address: str) -> AppTest:
    """The page at an address, run once."""
    test = AppTest.from_file(ROOT / "pages" / "2_Loss_scaling.py", default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    return checked(test.run())


def checked(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def address(test: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in test.query_params.items()}


def charts(test: AppTest) -> int:
    return len(test.get("plotly_chart"))


def press(test: AppTest, label: str) -> AppTest:
    (button,) = [button for button in test.button if button.label == label]
    return checked(button.click().run())


def answer(test: AppTest) -> str:
    return str(test.markdown[0].value)


@pytest.fixture(scope="module")
def opened() -> AppTest:
    """One page whose presets are pressed one after the other."""
    return page()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_shows_its_window_and_its_address(opened: AppTest, name: str) -> None:
    test = press(opened, name)
    assert not test.error
    assert scaling_address.read(address(test)) == scaling_address.used(PRESETS[name])
    micro_batches, outcomes = loss_scaling.computed(PRESETS[name])
    assert test.title[0].value.startswith(f"Is the mean of {len(micro_batches)} means the mean of all ")
    assert charts(test) == CHARTS and len(test.get("download_button")) == CHARTS
    assert answer(test).startswith("Yes" if outcomes["mean_of_means"].error < 1e-9 else "No")
    text = "\n".join(element.value for element in test.markdown)
    assert scaling_words.shares_title(outcomes) in text and scaling_words.errors_title(outcomes) in text


def test_the_page_opens_with_short_sequences_and_ends_with_the_worked_example() -> None:
    test = page()
    assert test.title[0].value == "Is the mean of 4 means the mean of all 140 pixels?"  # 64 + 64 + 8 + 4
    assert "a label of micro-batch 4 counts for 8.75, one of micro-batch 1 for 0.547" in answer(test)  # 140/16, 140/256
    assert [header.value for header in test.header][-1] == "How 4.0 becomes 6.0"
    assert any("(10 + 6) / 4 = 4.0" in m.value and "(10 + 2) / 2 = 6.0" in m.value for m in test.markdown)
    assert address(test) == {}


@pytest.mark.parametrize(
    ("wanted", "title"),
    [
        ({"w": "1x3"}, "Is one micro-batch divided like a batch of 3 pixels?"),
        ({"w": "1x1"}, "Is one micro-batch divided like a batch of 1 pixel?"),
        ({"w": "1x1,1x0"}, "Is the mean of 2 means the mean of the 1 pixel?"),
        ({"source": "sentences", "topics": "try,pass", "token": "bytes"}, "tokens?"),
        ({"source": "masks", "ignore": "none", "steps": "2", "micro": "3"}, "2 means the mean of all 24576 pixels?"),
        ({"source": "numbers", "x": "1; -2.5, 3"}, "Is the mean of 2 means the mean of all 3 labels?"),
    ],
)
def test_an_address_rebuilds_the_page(wanted: dict[str, str], title: str) -> None:
    test = page(**wanted)
    assert not test.error and charts(test) == CHARTS
    assert test.title[0].value.endswith(title)
    assert address(test) == wanted


def test_moving_a_control_moves_the_window_and_the_address() -> None:
    test = page()
    checked(test.slider(key="scaling_set_count").set_value(5).run())
    assert address(test) == {"w": "4x16,4x16,4x2,4x1,4x1"}
    checked(test.slider(key="scaling_set_valid_4").set_value(16).run())
    assert address(test) == {"w": "4x16,4x16,4x2,4x1,4x16"}
    checked(full(test).set_value(7).run())
    checked(test.button_group(key="scaling_set_tail").set_value("drop").run())
    assert address(test) == {"w": "4x16,4x16,4x2,4x1,4x16", "full": "7", "tail": "drop"}
    assert "the tail rule drop leaves it out" in answer(test) and "nothing from its 204 pixels" in answer(test)
    assert charts(test) == 0
    checked(test.slider(key="scaling_set_count").set_value(8).run())  # N of a full window grows with it
    assert address(test)["w"].count("x") == 8 and "full" not in address(test)
    assert charts(test) == CHARTS


def test_a_source_keeps_its_settings_while_another_is_shown() -> None:
    test = page(w="2x5,3x4")
    checked(test.button_group(key="scaling_set_source").set_value("numbers").run())
    assert address(test) == {"source": "numbers"}
    checked(test.button_group(key="scaling_set_source").set_value("counts").run())
    assert address(test) == {"w": "2x5,3x4"}


def test_a_micro_batch_without_a_valid_label_is_explained() -> None:
    test = page(w="4x16,4x0")
    assert "Micro-batch 2 holds no valid label" in test.info[0].value and "nan" in test.info[0].value
    empty = page(w="4x0,2x0")
    assert "no update, no step of the schedule" in answer(empty) and charts(empty) == 0 and not empty.info
    assert empty.title[0].value == "What is a window without a valid pixel divided by?"


def test_n_is_a_full_windows_and_what_is_held_has_a_letter_of_its_own() -> None:
    test = page(w="4x16,4x16", full="4", tail="divide_by_n")
    (told,) = [m.value for m in test.markdown if m.value.startswith("Micro-batch $i$")]
    assert "Here $n$ is 2, $N$ is 4 and the weights add up to 128." in told
    formulas = [latex.value.strip("$\n") for latex in test.latex]
    assert sum(formula.endswith(r"\cdot \frac{n}{N}") for formula in formulas) == 2  # not where nothing divides
    assert any(r"\frac{1}{n} \sum_i" in formula for formula in formulas)


@pytest.mark.parametrize(
    ("asked", "unit"),
    [
        ({"w": "4x16,4x2"}, "in nats a label. Sum of means adds up"),
        ({"w": "4x16,4x2", "weigh": "classes"}, "in nats a unit of class weight. Sum of means adds up"),
        ({"source": "numbers"}, "w x at w = 1, a number without a unit"),
    ],
)
def test_the_reported_losses_have_their_units(asked: dict[str, str], unit: str) -> None:
    (told,) = [caption.value for caption in page(**asked).caption if "lies in the buffers" in caption.value]
    assert unit in told


def test_a_refusal_is_one_sentence_on_a_page_that_still_works() -> None:
    test = page(w="![](https://x.invalid/y.png)")
    (error,) = test.error
    assert error.value.startswith("w = ") and "![]" not in error.value
    assert address(test) == {"w": "![](https://x.invalid/y.png)"} and charts(test) == CHARTS
    assert address(press(test, "Sentences")) == {"source": "sentences"} and not test.error


def test_numbers_that_cannot_be_read_leave_the_last_ones() -> None:
    test = page(source="numbers")
    checked(test.text_input(key="scaling_set_numbers").set_value("10; two").run())
    assert "'10; two'" in test.error[0].value and test.title[0].value.endswith("all 4 labels?")
    checked(test.text_input(key="scaling_set_numbers").set_value("1; 1; 4").run())
    assert not test.error and answer(test).startswith("Yes, here: every micro-batch weighs the same")


def full(test: AppTest) -> Any:
    """The box of N, of which each length of the window has its own."""
    (box,) = [box for box in test.number_input if box.label == "N of a full window"]
    return box


def slide(test: AppTest, micro_batches: int) -> AppTest:
    return checked(test.slider(key="scaling_set_count").set_value(micro_batches).run())


def test_n_of_a_full_window_follows_the_window_until_the_reader_sets_it() -> None:
    test = page()
    for micro_batches in (16, 1):
        slide(test, micro_batches)
        assert full(test).value == micro_batches and "full" not in address(test)
    checked(test.button_group(key="scaling_set_tail").set_value("divide_by_n").run())
    assert address(test) == {"w": "4x16", "tail": "divide_by_n"} and answer(test).startswith("Yes")
    checked(full(test).set_value(3).run())
    for micro_batches, n in ((2, 3), (16, 16), (1, 3)):
        assert full(slide(test, micro_batches)).value == n
    assert address(test)["full"] == "3" and "holds 1 of 3 micro-batches" in answer(test)
    checked(full(test).set_value(1).run())  # the window's own: it follows again
    slide(slide(test, 2), 1)
    assert address(test) == {"w": "4x16", "tail": "divide_by_n"}


def test_an_n_that_the_browser_was_shown_for_another_window_is_nobodys() -> None:
    test = slide(page(), 8)
    late = test.session_state["scaling_set_full_8"]
    slide(test, 2)
    test.session_state["scaling_set_full_8"] = late  # sent by a browser that has not drawn the shorter window yet
    slide(test, 1)
    assert full(test).value == 1 and address(test) == {"w": "4x16"}


def test_n_follows_topics_and_numbers_too() -> None:
    test = page(source="sentences", topics="pass,if,try")
    checked(test.button_group(key="scaling_set_topics").set_value(["pass", "if"]).run())
    assert address(test) == {"source": "sentences", "topics": "pass,if"}
    test = page(source="numbers", x="1; 2; 3")
    for text in ("", "1; 2"):
        checked(test.text_input(key="scaling_set_numbers").set_value(text).run())
        assert address(test) == {"source": "numbers", "x": text}


@pytest.mark.parametrize(
    ("field", "asked", "value", "way_out"),
    [
        ("full", {}, 0, "N = 0: use a whole number from 4, which this window holds, to 64."),
        ("full", {}, 999, "N = 999: use a whole number from 4, which this window holds, to 64."),
        ("first", {"source": "masks"}, 793, "first = 793: use a whole number from 0 to 792."),
    ],
)
def test_a_number_that_cannot_be_is_refused_in_a_sentence(
    field: str, asked: dict[str, str], value: int, way_out: str
) -> None:
    test = page(**asked)
    box = full(test) if field == "full" else test.number_input(key="scaling_set_first")
    usual = box.value
    checked(box.set_value(value).run())
    assert [error.value for error in test.error] == [way_out]
    assert box.value == value and address(test) == asked and charts(test) == CHARTS  # what was typed stays
    checked(box.set_value(usual).run())
    assert not test.error and address(test) == asked


def step(test: AppTest, **asked: str) -> AppTest:
    """What Back and Forward do: the page runs with another address, and no control was moved."""
    test.query_params.clear()
    for name, value in asked.items():
        test.query_params[name] = value
    return checked(test.run())


def test_back_and_forward_walk_through_what_was_chosen() -> None:
    test = page()
    checked(test.slider(key="scaling_set_count").set_value(5).run())
    moved = address(test)
    press(test, "Sentences")
    step(test, **moved)
    assert address(test) == moved and test.slider(key="scaling_set_count").value == 5
    assert test.title[0].value == "Is the mean of 5 means the mean of all 144 pixels?"  # 64 + 64 + 8 + 4 + 4
    step(test)
    assert address(test) == {} and test.title[0].value == "Is the mean of 4 means the mean of all 140 pixels?"
    step(test, w="![]")
    assert test.error[0].value.startswith("w = ") and address(test) == {"w": "![]"}
    step(test, source="sentences")
    assert not test.error and test.title[0].value.endswith("tokens?")


def test_a_control_that_was_moved_counts_more_than_an_address_that_is_behind() -> None:
    test = page()
    press(test, "Equal")
    test.query_params.clear()  # the browser has not heard of the preset's address yet
    checked(test.slider(key="scaling_set_count").set_value(2).run())
    assert address(test) == {"w": "4x16,4x16"}


def test_no_entry_at_all_is_refused() -> None:
    test = page(source="sentences", topics="pass")
    checked(test.button_group(key="scaling_set_topics").set_value([]).run())
    assert "choose at least one of pass" in test.error[0].value


def test_a_preset_left_at_one_point_is_no_preset() -> None:
    test = page()
    assert {b.label for b in test.button if b.proto.type == "primary"} == {"Short sequences"}
    checked(test.slider(key="scaling_set_samples_0").set_value(3).run())
    assert not [b.label for b in test.button if b.proto.type == "primary"]
    assert replace(SHORT, counts=((3, 16), *SHORT.counts[1:])) == scaling_address.read(address(test))


def test_a_gradient_of_zero_draws_no_chart_of_errors() -> None:
    test = page(source="numbers", x="1; -0.5, -0.5")
    assert charts(test) == 1 and any("gradient is zero" in m.value for m in test.markdown)
    assert any(caption.value.startswith("The gradient error is a share of its norm") for caption in test.caption)
