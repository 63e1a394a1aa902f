"""The page Language model without a browser: what is offered and queued, what runs say, the address, refusals."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from small_runs import ENVIRONMENT, record
from streamlit.testing.v1 import AppTest
from test_house import FRAME

from accum_core import scaling
from accum_core.errors import SettingError
from accum_core.records import RunConfig, RunResult, Term, Validation
from accum_core.runs.store import Store
from accum_ui import results
from accum_ui.language_model import choice as choices
from accum_ui.language_model import measured, words
from accum_ui.language_model.choice import Choice


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    path = tmp_path / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    monkeypatch.setattr(results, "fill", lambda store: 0)  # an empty one, and what a test puts into it
    return Store(path)


def page(**address: str) -> AppTest:
    """The page at an address, run once."""
    test = AppTest.from_string(FRAME.format(page="7_Language_model.py"), default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    return checked(test.run())


def checked(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def address(test: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in test.query_params.items()}


def text(test: AppTest) -> str:
    shown = (*test.header, *test.markdown, *test.caption, *test.info, *test.error, *test.warning, *test.code)
    return "\n".join(str(element.value) for element in shown)


def rows(test: AppTest) -> list[list[str]]:
    """The rows of all tables, cell by cell."""
    bodies = [html.proto.body for html in test.get("html")]
    lines = [line for body in bodies if "<table" in body for line in re.findall(r"<tr>(.*?)</tr>", body)]
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in lines]


def press(test: AppTest, key: str) -> AppTest:
    return checked(test.button(key=key).click().run())


def add(
    store: Store, config: RunConfig, *, seconds: float = 2.0, kept: int = 2**20, loss: float = 2.0, error: float = 0.5
) -> None:
    """A finished run of two updates, each of 50 learnt tokens a sample; the numbers are chosen."""
    size = config.effective_batch_size
    samples = {"prompts": ["def a():\n"], "likeliest": ["Say it.\n"], "drawn": [""]}
    fields: dict[str, Any] = {
        "samples_per_second": size / seconds,
        "terms": {"cross_entropy": Term(loss=loss, weight=50.0 * size)},
    }
    gradient = {"relative_error": error, "cosine": 0.9, "norm_ratio": 1.0, "by_layer": {"head": error}}
    instruments = {
        "saved_bytes": {"micro_batch": kept, "full_batch": 32 * kept},
        "samples": samples,
        "gradient_error": gradient,
    }
    records = (
        record(1, samples=size, instruments=instruments, **fields),
        record(
            2, samples=2 * size, instruments=instruments, validation=Validation(token_loss=loss, loss=loss), **fields
        ),
    )
    store.add_result(RunResult(config=config, environment=ENVIRONMENT, records=records), "a_result")


def test_an_empty_store_offers_a_run_and_its_reference(store: Store) -> None:
    test = page(micro="8")
    assert test.title[0].value == "Is 4 × 8 the same as 1 × 32?"
    assert "press Run" in text(test)
    press(test, "lm_run")
    wanted = choices.config(Choice(micro=8))
    assert {run.config for run in store.runs()} == {wanted, wanted.reference()}
    assert {(run.config.workload, run.config.extra_instruments) for run in store.runs()} == {("sft", ("samples",))}


def test_a_run_without_its_reference_offers_that(store: Store) -> None:
    add(store, choices.config(Choice()))
    test = page()
    assert test.button(key="lm_run").label == "Run its reference"
    test = press(test, "lm_run")
    assert {run.config for run in store.runs() if run.state == "queued"} == {choices.config(Choice()).reference()}
    assert "lm_run" not in {button.key for button in test.button}


def test_costs_that_are_missing_are_queued(store: Store) -> None:
    test = press(page(rows="packed", effective="16"), "lm_run_costs")
    assert sorted(run.config.micro_batch_size for run in store.runs()) == [1, 2, 4, 8, 16]
    assert {(run.config.workload, run.config.effective_batch_size) for run in store.runs()} == {("sft_packed", 16)}
    assert "lm_run_costs" not in {button.key for button in test.button}


def test_stored_costs_are_told_in_numbers(store: Store) -> None:
    for config in choices.cost_configs(Choice()):
        micro = config.micro_batch_size
        add(store, config, kept=micro * 2**20, seconds=6.0 if micro == 1 else 2.0)
    test = page()
    shown = text(test)
    assert (
        "Micro-batches of 1 keep 16 times less for the backward pass than those of 16 and take 3 times as long" in shown
    )
    # 50 learnt tokens a sample, 32 samples in 6 and in 2 seconds.
    found = rows(test)
    assert ["1", "32", "1.0 MiB", "6.00 s", "267"] in found
    assert ["8", "4", "8.0 MiB", "2.00 s", "800"] in found


def test_missing_runs_are_estimated_from_the_stored_ones(store: Store) -> None:
    add(store, choices.cost_configs(Choice())[0], seconds=3.2)  # 10 samples a second
    labels = {button.key: button.label for button in page().button}
    assert labels["lm_run_costs"] == "Run the 4 missing runs: about 51 s"  # 4 x 4 x 32 samples
    assert labels["lm_run_divisions"] == "Run the 3 missing runs: about 3 min"  # 3 x 16 x 32 samples
    assert labels["lm_run_advice"] == "Run the 2 missing runs: about 2 min"  # 2 x 16 x 32 samples


def test_the_advice_is_tested_at_equal_samples_and_half_life(store: Store) -> None:
    large, small = choices.advice_configs(Choice(effective=64, micro=8, small=1, updates=16, rate=0.001))
    assert large.updates * large.effective_batch_size == small.updates * small.effective_batch_size
    assert small.scaled_beta2 == pytest.approx(scaling.beta_at_equal_half_life(0.95, 64, 1))
    # As in the paper, the rate halves while the batch falls to a 512th: by 2^(-6/9) over a 64th.
    assert small.learning_rate == pytest.approx(0.001 * 2 ** (-2 / 3), rel=1e-2)
    test = press(page(effective="64", micro="8", small="1", updates="16"), "lm_run_advice")
    assert {run.config for run in store.runs()} == {large, small}
    assert test.segmented_control(key="lm_set_small").value == 1


def test_the_advice_is_told_in_nats(store: Store) -> None:
    large, small = choices.advice_configs(Choice())
    add(store, large, loss=1.75)
    add(store, small, loss=1.5)
    assert "the batch of 4 ends 0.25 nats a byte below the accumulated 32, after the same functions" in text(page())


def test_the_divisions_are_told_beside_one_pass(store: Store) -> None:
    whole, exact, means = choices.division_configs(Choice(reduction="sum"))
    assert (whole.micro_batch_size, whole.reduction) == (32, "exact") and whole == exact.reference()
    assert means == exact.model_copy(update={"reduction": "mean_of_means"})
    add(store, whole, error=0.0, loss=1.5)
    add(store, exact, error=2.6e-7, loss=1.5001)
    assert rows(page())[:4] == [
        ["Window", "Divided", "Gradient error", "Held-out loss (nats a byte)"],
        ["32 = 1 × 32", "by the window's docstring bytes (exact)", "0", "1.5000"],
        ["32 = 8 × 4", "by the window's docstring bytes (exact)", "2.6 × 10⁻⁷", "1.5001"],
        ["32 = 8 × 4", "each micro-batch by its own (mean_of_means)", "", "missing"],
    ]
    add(store, means, error=0.25, loss=1.5625)
    test = page()
    assert "Averaging the micro-batches' means is off by 25 %, dividing by the window's bytes by 3 × 10⁻⁷" in text(test)
    assert rows(test)[3][2:] == ["0.25", "1.5625"]


def test_one_micro_batch_has_nothing_to_average(store: Store) -> None:
    assert "micro-batches' means" not in text(page(micro="32"))


def test_what_runs_can_be_stopped(store: Store) -> None:
    test = page()
    assert "lm_stop_run" not in {button.key for button in test.button}
    test = press(press(test, "lm_run"), "lm_stop_run")
    assert {run.state for run in store.runs()} == {"stopped"}
    assert test.button(key="lm_run").label == "Run"
    press(test, "lm_run")
    assert sorted(run.state for run in store.runs()) == ["queued", "queued", "stopped", "stopped"]


def test_why_a_run_failed_is_told_letter_by_letter(store: Store) -> None:
    store.submit(choices.config(Choice()))
    with store.database.writing() as connection:
        connection.execute("UPDATE runs SET state = 'failed', error = 'loss = [nan](x) at update 1.'")
    test = page()
    assert [warning.value for warning in test.warning] == [r"loss = \[nan\](x) at update 1."] * 3
    assert test.button(key="lm_run").label == "Run"


def test_samples_are_shown_before_and_after(store: Store) -> None:
    add(store, choices.config(Choice()))
    shown = text(page())
    assert "**Before training**" in shown and "**After 1 update**" in shown
    assert "def a():\n# likeliest: Say it.\n# drawn: (nothing)" in shown


def test_settings_stand_in_the_address_and_come_back(store: Store) -> None:
    test = page()
    assert address(test) == {}
    checked(test.selectbox(key="lm_set_micro").set_value(16).run())
    checked(test.segmented_control(key="lm_set_rows").set_value("packed").run())
    assert address(test) == {"micro": "16", "rows": "packed"}
    # A micro-batch that no longer divides becomes the next smaller one that does.
    checked(test.selectbox(key="lm_set_effective").set_value(8).run())
    assert address(test) == {"effective": "8", "micro": "8", "rows": "packed"}
    again = page(**address(test))
    assert again.title[0].value == test.title[0].value == "How does one batch of 8 train?"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rows", "stacked", "rows = 'stacked': use one of padded, packed"),
        ("micro", "3", "micro = 3: does not divide effective = 32; use one of 1, 2, 4, 8, 16, 32"),
        ("seed", "-1", "seed = '-1': use a whole number from 0 to 2147483647"),
        ("effective", "12", "effective = '12': use one of 8, 16, 32, 64"),
        ("x", "epochs", "x = 'epochs': is no horizontal axis; use updates, samples, seconds"),
        ("form", "word", "form = 'word': use one of script, notebook, trainer, lightning, accelerate"),
    ],
)
def test_an_address_that_cannot_be_is_told_and_kept(store: Store, name: str, value: str, told: str) -> None:
    with pytest.raises(SettingError) as refusal:
        choices.read({name: value})
    assert str(refusal.value).startswith(told)
    test = page(**{name: value})
    assert len(test.error) == 1
    assert address(test) == {name: value}


def test_the_form_of_export_and_the_axis_stay_in_the_address(store: Store) -> None:
    test = page(x="samples", form="notebook")
    assert test.segmented_control(key="lm_set_form").value == "notebook"
    assert address(test) == {"x": "samples", "form": "notebook"}
    checked(test.segmented_control(key="lm_set_form").set_value("trainer").run())
    checked(test.selectbox(key="lm_set_micro").set_value(8).run())
    assert address(test) == {"x": "samples", "form": "trainer", "micro": "8"}
    checked(test.segmented_control(key="lm_set_form").set_value("script").run())
    assert address(test) == {"x": "samples", "micro": "8"}


def test_a_smaller_batch_must_be_smaller(store: Store) -> None:
    with pytest.raises(SettingError, match="small = 8: must be below effective = 8"):
        choices.read({"effective": "8", "small": "8", "micro": "8"})
    assert choices.adjusted(Choice(small=8), effective=8) == Choice(effective=8, small=4)


def test_a_run_under_way_is_not_missing(store: Store) -> None:
    arm = measured.arm(store, choices.config(Choice()))
    assert arm.is_missing and not arm.is_live and arm.measured is None
    store.submit(arm.config)
    arm = measured.arm(store, arm.config)
    assert arm.is_live and not arm.is_missing
    assert words.progress([arm]) == (0.0, "update 0 of 16 · 1 waiting")
