"""The page on normalisation without a browser: what is shown, what is missing and queued, the address, refusals."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from made_norm_runs import ON, add
from small_runs import ENVIRONMENT, claimed
from streamlit.testing.v1 import AppTest
from test_house import FRAME
from test_normalisation_charts import cost_rows

from accum_core.runs.store import Store
from accum_ui import results
from accum_ui.normalisation import choice, costs

OURS = 5  # charts of a race
THEIRS = 2


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    path = tmp_path / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    monkeypatch.setattr(results, "fill", lambda store: 0)  # an empty one, and what a test puts into it
    monkeypatch.setattr(costs, "read", partial(costs.read, tmp_path / "costs.json"))
    return Store(path)


def page(**address: str) -> AppTest:
    """The page at an address, run once."""
    test = AppTest.from_string(FRAME.format(page="4_Normalisation.py"), default_timeout=60)
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


def text(test: AppTest) -> str:
    return "\n".join(str(element.value) for element in (*test.markdown, *test.caption, *test.info))


def press(test: AppTest, label: str) -> AppTest:
    (button,) = [button for button in test.button if button.label == label]
    return checked(button.click().run())


def test_an_empty_store_offers_to_run_what_is_missing(store: Store) -> None:
    test = page()
    assert test.title[0].value.endswith("?")
    assert charts(test) == THEIRS
    assert "There is no stored run of this network to estimate the time from." in text(test)
    assert "`python -m benchmarks sync_batch`" in text(test)
    assert address(test) == {}
    test = press(test, "Run the 18 missing runs")
    assert {run.config.norm for run in store.runs()} == {"batch", "sync_batch", "group"}
    assert len(store.runs()) == 18 and {run.state for run in store.runs()} == {"queued"}
    assert not [button for button in test.button if button.label.startswith("Run the")]


def test_stored_runs_answer_the_question(store: Store) -> None:
    for micro, error in ((32, 0.0), (2, 0.5)):
        add(store, "batch", micro, quality=0.1 + error, error=error)
    test = page(on=ON, norms="batch,group")
    assert "Not BatchNorm: at micro-batch 2 its gradient is off by 50 %." in text(test)
    assert charts(test) == OURS + THEIRS + 1
    assert len(test.get("download_button")) == charts(test)
    (button,) = test.button
    assert button.label.startswith("Run the 10 missing runs: about ")
    assert "No run of GroupNorm is stored" in text(test)


def test_layers_and_data_are_chosen_and_stand_in_the_address(store: Store) -> None:
    test = page()
    checked(test.pills(key="norms_set_norms").set_value(["none", "layer"]).run())
    assert address(test) == {"norms": "layer,none"}
    checked(test.selectbox(key="norms_set_on").set_value("digits-conv").run())
    assert address(test) == {"norms": "layer,none", "on": "digits-conv"}
    checked(test.pills(key="norms_set_seeds").set_value([12, 11]).run())
    assert address(test)["seeds"] == "11,12"
    assert [button.label for button in test.button] == ["Run the 24 missing runs"]  # 2 norms, 6 sizes, 2 seeds
    checked(test.pills(key="norms_set_norms").set_value([]).run())
    assert address(test)["norms"] == "" and "Choose at least one layer above." in text(test)
    assert page(**address(test)).pills(key="norms_set_seeds").value == [11, 12]


def test_a_layer_is_opened_and_cut(store: Store) -> None:
    run = add(store, "batch", 32)
    add(store, "batch", 2, quality=0.5)
    test = page(on=ON, norms="batch", n="4", layer="second")
    # 0, 4, 0, 4 around 2, each of variance 1: a variance of 1 + 4, of which single samples' means are 2 away.
    assert "4 × 1: the means lie 0.89 deviations from the window's" in text(test)  # 2 / sqrt(5)
    checked(test.select_slider(key="norms_set_steps").set_value(2).run())
    assert "2 × 2: the means lie 0.00 deviations" in text(test)
    assert address(test) == {"on": ON, "norms": "batch", "n": "2", "layer": "second"}
    assert test.selectbox(key="norms_set_run").value == run  # the undivided batch comes first
    other = next(value for value in store.runs() if value.id != run).id
    checked(test.selectbox(key="norms_set_run").set_value(other).run())
    assert address(test) == {"on": ON, "norms": "batch", "run": other}
    assert test.selectbox(key="norms_set_layer").value == "first"


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"norms": "bach"}, "bach is no norm"),
        ({"n": "none"}, "whole number"),
        ({"run": "0123456789ab"}, "0123456789ab"),
    ],
)
def test_an_address_that_cannot_be_is_told(store: Store, wanted: dict[str, str], told: str) -> None:
    add(store, "sync_batch", 16, on="landcover-deeplab")
    test = page(**wanted)
    assert any(told in error.value for error in test.error)
    assert address(test) == wanted


def test_a_refused_run_is_shown_with_its_sentence(store: Store) -> None:
    store.submit(choice.config(ON, "batch", 1, 11))
    lease = claimed(store)
    lease.begin(ENVIRONMENT, 0, None)
    lease.fail("micro_batch_size = 1: layer1.2 would have one value a channel; use a micro-batch of 2 or more.")
    test = page(on=ON, norms="batch")
    (warning,) = test.warning
    assert warning.value.startswith("BatchNorm, micro-batch 1, seed 11: micro")
    assert "one value a channel; use a micro-batch of 2 or more." in warning.value
    assert [button.label for button in test.button] == ["Run the 5 missing runs"]


def test_progress_counts_the_runs_that_are_under_way(store: Store) -> None:
    for micro in (2, 4):
        store.submit(choice.config(ON, "batch", micro, 11))
    claimed(store).begin(ENVIRONMENT, 0, None)
    test = page(on=ON, norms="batch")
    (bar,) = test.get("progress")
    assert "0 of 2 runs ended · 1 waiting · BatchNorm, micro-batch 2, seed 11: running, update 0 of 100" in str(
        bar.proto
    )


def test_measured_costs_have_their_charts_and_their_source(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costs.json").write_text(cost_rows().model_dump_json(), encoding="utf-8")
    test = page()
    assert charts(test) == THEIRS + 3
    assert f"Measured on {ENVIRONMENT.date} by code version {ENVIRONMENT.code_version}" in text(test)
    (tmp_path / "costs.json").write_text("{}", encoding="utf-8")
    assert any("costs.json: is no table of costs" in error.value for error in page().error)
