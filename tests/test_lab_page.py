"""The Lab page without a browser: what the address opens, what the controls ask of the store, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import ENVIRONMENT, ROOT, claimed, record
from streamlit.testing.v1 import AppTest

from accum_core import landcover
from accum_core.records import Message, RunConfig, RunResult
from accum_core.runs.lease import Lease
from accum_core.runs.store import Store
from accum_ui import results
from accum_ui.maps import maps

DEFAULTS = RunConfig.of()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    path = tmp_path / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    monkeypatch.setattr(results, "fill", lambda store: 0)  # an empty one, and what a test puts into it
    return Store(path)


def page(**address: str) -> AppTest:
    """The page at an address, run once."""
    test = AppTest.from_file(ROOT / "pages" / "1_Lab.py", default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    return checked(test.run())


def checked(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def address(test: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in test.query_params.items()}


def press(test: AppTest, label: str) -> AppTest:
    (button,) = [button for button in test.button if button.label == label]
    assert not button.disabled
    return checked(button.click().run())


def disabled(test: AppTest, label: str) -> bool:
    return next(button.disabled for button in test.button if button.label == label)


def under_way(store: Store, **changes: Any) -> tuple[AppTest, Lease]:
    """The page of a run that a worker has begun."""
    run_id = store.submit(DEFAULTS.model_copy(update=changes))
    lease = claimed(store)
    lease.begin(ENVIRONMENT, 0, None)
    lease.write([record(1)])
    return page(run=run_id), lease


def stored(store: Store, *configs: RunConfig) -> list[str]:
    made = ENVIRONMENT.model_copy(update={"date": "2026-11-20", "code_version": "abcdef012345"})
    results = [RunResult(config=config, environment=made, records=(record(1), record(2))) for config in configs]
    return [store.add_result(result, "segmentation_batch_size") for result in results]


def test_an_empty_store_asks_the_question_and_waits_for_run(store: Store) -> None:
    test = page()
    assert test.title[0].value == "Is 16 × 2 the same as 1 × 32?"
    assert page(micro="4").title[0].value == "Is 8 × 4 the same as 1 × 32?"
    assert "press Run" in test.info[0].value
    assert not test.error
    assert address(test) == {}
    assert "for update in range" in test.code[0].value or "optimizer.step()" in test.code[0].value


def test_run_asks_for_the_run_and_its_reference_and_puts_it_into_the_address(store: Store) -> None:
    test = press(page(norm="group", micro="4"), "Run")
    config = DEFAULTS.model_copy(update={"norm": "group", "micro_batch_size": 4})
    assert {run.config for run in store.runs()} == {config, config.reference()}
    assert address(test) == {"run": config.digest()[:12]}
    assert test.title[0].value == "Is 8 × 4 the same as 1 × 32?"
    assert disabled(test, "Run")


def test_the_same_settings_in_a_second_browser_share_the_run(store: Store) -> None:
    first, second = press(page(seed="3"), "Run"), press(page(seed="3"), "Run")
    assert address(first) == address(second)
    assert len(store.runs()) == 2


def test_a_run_without_a_split_is_its_own_reference(store: Store) -> None:
    test = press(page(micro="32"), "Run")
    assert len(store.runs()) == 1
    assert test.title[0].value == "How does one batch of 32 train?"


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("workload", "foo", "landcover"),
        ("model", "foo", "deeplab"),
        ("norm", "foo", "group"),
        ("micro", "3", "use one of 1, 2, 4"),
        ("effective", "abc", "a whole number"),
        ("effective", "0", "greater than or equal to 1"),
        ("lr", "-1", "greater than 0"),
        ("lr", "nan", "finite number"),
        ("reduction", "foo", "mean_of_means"),
        ("updates", "1.5", "a whole number"),
        ("seed", "-1", "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_in_an_address_is_one_sentence(store: Store, name: str, value: str, way_out: str) -> None:
    test = page(**{name: value})
    (error,) = test.error
    assert value in error.value and way_out in error.value and "\n" not in error.value
    assert address(test) == {name: value}
    assert [error.value for error in checked(test.run()).error] == [error.value]
    assert not disabled(test, "Run")


def test_an_unknown_run_says_so_and_the_page_still_works(store: Store) -> None:
    test = page(run="0123456789ab")
    assert "'0123456789ab'" in test.error[0].value and "start the run again" in test.error[0].value
    assert set(address(press(test, "Run"))) == {"run"}


def test_a_stored_result_is_there_at_first_start_with_where_it_comes_from(store: Store) -> None:
    config = DEFAULTS.model_copy(update={"seed": 11})
    others = [config.model_copy(update={"norm": "group"}), config.model_copy(update={"micro_batch_size": 8})]
    stored(store, config.reference(), config, *others)
    test = page()
    (caption,) = [caption.value for caption in test.caption if "Stored result" in caption.value]
    assert "segmentation_batch_size" in caption and "abcdef012345" in caption and "2026-11-20" in caption
    assert "seed 11" in caption and "BatchNorm" in caption and "16 × 2" in caption
    assert test.number_input(key="lab_seed").value == 11
    assert not test.info and not test.error


def test_moving_a_control_shows_the_stored_run_of_those_settings(store: Store) -> None:
    group = DEFAULTS.model_copy(update={"norm": "group"})
    stored(store, DEFAULTS.reference(), DEFAULTS, group.reference(), group)
    test = page()
    checked(test.pills(key="lab_norm").set_value("group").run())
    assert any("GroupNorm" in caption.value for caption in test.caption)
    assert not test.info


def test_a_finished_run_is_run_again_only_on_request(store: Store) -> None:
    test, lease = under_way(store)
    store.submit(DEFAULTS.reference())
    claimed(store).finish("done")
    lease.finish("done")
    test = press(checked(test.run()), "Run again")
    assert address(test) == {"run": f"{lease.run_id}-2"}
    assert len(store.runs()) == 3


def test_moving_n_norm_and_rate_reaches_the_run_under_way(store: Store) -> None:
    test, lease = under_way(store)
    checked(test.select_slider(key="lab_accumulation_steps").set_value(4).run())
    assert store.present_config(lease.run_id).micro_batch_size == 8
    checked(test.pills(key="lab_norm").set_value("group").run())
    checked(test.number_input(key="lab_learning_rate").set_value(0.01).run())
    present = store.present_config(lease.run_id)
    assert (present.norm, present.learning_rate, present.micro_batch_size) == ("group", 0.01, 8)
    assert [toast.value for toast in test.toast] == ["Learning rate = 0.01 takes effect at the next update."]
    assert test.title[0].value == "Is 4 × 8 the same as 1 × 32?"
    changed = "changed live to norm GroupNorm, micro-batch 8, learning rate 0.01"
    assert any(changed in line.value for line in test.caption)
    assert not test.info and address(test) == {"run": lease.run_id}
    assert not disabled(test, "Run")


def test_other_settings_wait_for_run(store: Store) -> None:
    test, lease = under_way(store)
    checked(test.number_input(key="lab_seed").set_value(5).run())
    assert store.present_config(lease.run_id) == DEFAULTS
    assert "seed 5" in test.info[0].value and "press Run" in test.info[0].value
    assert address(test) == {"run": lease.run_id, "seed": "5"}
    again = page(**address(test))
    assert again.number_input(key="lab_seed").value == 5
    press(test, "Run")
    assert {run.config.seed for run in store.runs()} == {0, 5}


def test_pause_resume_and_stop_follow_the_run(store: Store) -> None:
    test, lease = under_way(store)
    press(test, "Pause")
    (pause,) = lease.pending()
    assert pause.message == Message(kind="pause")
    lease.take([pause], 2)
    press(checked(test.run()), "Resume")
    lease.take(lease.pending(), 2)
    press(checked(test.run()), "Stop")
    assert [message.message.kind for message in lease.pending()] == ["stop"]
    lease.finish("stopped")
    test.run()
    assert disabled(test, "Stop") and disabled(test, "Pause")


@pytest.mark.parametrize("saved", [0, 2])
def test_a_failed_run_says_why_and_goes_on_with_the_settings_above(store: Store, saved: int) -> None:
    test, lease = under_way(store)
    if saved:
        lease.save([record(2)], 2, lambda path: path.write_bytes(b"state"))
    lease.fail("loss = nan at update 3: resume it with a smaller learning rate.")
    checked(test.run())
    assert test.error[0].value == "loss = nan at update 3: resume it with a smaller learning rate."
    checked(test.number_input(key="lab_learning_rate").set_value(0.001).run())
    press(test, f"Resume from update {saved} with N, norm and learning rate as set above")
    assert store.get(lease.run_id).state == "queued"
    assert store.present_config(lease.run_id).learning_rate == 0.001


def test_a_run_that_has_not_begun_offers_no_resumption(store: Store) -> None:
    run_id = store.submit(DEFAULTS)
    claimed(store).fail("norm_groups = 5: no.")
    test = page(run=run_id)
    assert not [button for button in test.button if button.label.startswith("Resume")]


def test_a_refused_message_is_a_sentence(store: Store) -> None:
    test, lease = under_way(store)
    lease.finish("done")
    checked(test.pills(key="lab_norm").set_value("group").run())
    assert "is done" in test.error[0].value


def test_a_new_effective_batch_keeps_the_micro_batch_where_it_divides(store: Store) -> None:
    test = page()
    checked(test.number_input(key="lab_effective_batch_size").set_value(8).run())
    assert test.select_slider(key="lab_accumulation_steps").value == 4
    checked(test.number_input(key="lab_effective_batch_size").set_value(9).run())
    assert test.select_slider(key="lab_accumulation_steps").value == 9
    assert address(test) == {"effective": "9", "micro": "1"}
    checked(test.number_input(key="lab_effective_batch_size").set_value(1).run())
    assert test.title[0].value


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 40])
def test_a_file_that_is_no_store_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(content)
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    test = page()
    assert len(test.error) == 1 and "runs.sqlite" in test.error[0].value


def test_a_locked_store_is_one_sentence_and_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from accum_core.errors import StoreError

    def locked(*_: object, **__: object) -> str:
        raise StoreError("The store runs.sqlite is locked by another program: close it and try again.")

    test = page(norm="group")
    monkeypatch.setattr(Store, "submit", locked)
    press(test, "Run")
    assert [error.value for error in test.error] == [
        "The store runs.sqlite is locked by another program: close it and try again."
    ]
    assert test.pills(key="lab_norm").value == "group"


def test_the_component_gets_what_it_draws(store: Store) -> None:
    test, lease = under_way(store)
    parts = [json.loads(element.proto.json) for element in test.main if element.type == "bidi_component"]
    assert [part["part"] for part in parts] == ["answer", "charts"]
    assert {part["run_id"] for part in parts} == {lease.run_id}
    charts = parts[1]
    assert len(charts["maps"]["images"]) == len(charts["maps"]["truths"]) == 4
    for panel in charts["panels"]:
        assert len(panel["fills"]) == len(panel["figure"]["data"])


def test_a_damaged_data_file_is_one_sentence_and_the_charts_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    damaged = tmp_path / "landcover64.npz"
    damaged.write_bytes(b"not the data")
    load = landcover.load
    monkeypatch.setattr(landcover, "load", lambda: load(damaged))
    maps.cache_clear()
    test, _ = under_way(store)
    assert "landcover64.npz is damaged" in test.error[0].value
