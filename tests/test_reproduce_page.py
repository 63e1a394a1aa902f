"""The page of papers without a browser: cards, an opened paper, the queue, varied runs, results that cannot be read."""

from __future__ import annotations

from pathlib import Path

import made_findings
import pytest
from small_runs import ENVIRONMENT, claimed
from streamlit.testing.v1 import AppTest
from test_house import FRAME

import experiments
from accum_core.runs.store import Store
from accum_ui import results
from accum_ui.reproduce import plan, run, words

NAME = made_findings.NAME
OTHER = "wu_he_2018_group_norm"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the store is a new one."""
    run._look.clear()


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of its own, with the made-up one in it."""
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    path = experiments.result_path(NAME)
    made_findings.committed().write(path)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    path = tmp_path / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    monkeypatch.setattr(results, "fill", lambda store: 0)  # an empty one, and what a test puts into it
    return Store(path)


def page(**address: str) -> AppTest:
    """The page at an address, run once."""
    test = AppTest.from_string(FRAME.format(page="5_Reproduce.py"), default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    return checked(test.run())


def checked(test: AppTest) -> AppTest:
    assert not test.exception
    return test


def address(test: AppTest) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[0] for name, value in test.query_params.items()}


def text(test: AppTest) -> str:
    shown = (*test.title, *test.header, *test.markdown, *test.caption, *test.info, *test.error)
    return "\n".join([*(str(element.value) for element in shown), *(html.proto.body for html in test.get("html"))])


def press(test: AppTest, key: str) -> AppTest:
    run._look.clear()
    return checked(test.button(key=key).click().run())


def test_every_experiment_has_a_card_and_opens_by_its_address(committed: Path, store: Store) -> None:
    test = page()
    for name, experiment in experiments.discover().items():
        assert test.button(key=f"reproduce_open_{name}").label == ("Open" if name == NAME else "Open and run it")
        assert experiment.claims[0].statement.partition("'")[0] in text(test)
    press(test, f"reproduce_open_{NAME}")
    assert address(test) == {"paper": NAME}
    assert test.title[0].value == experiments.find(NAME).question
    press(test, "reproduce_all")
    assert address(test) == {} and test.title[0].value.startswith("Which large-batch results")


def test_an_opened_paper_shows_what_was_measured_and_what_was_published(committed: Path, store: Store) -> None:
    test = page(paper=NAME)
    told = text(test).replace("&#39;", "'")
    experiment = experiments.find(NAME)
    for part in (
        "Of 4 claims 2 are supported and 2 are inconclusive.",
        "t(0.975, 2) = 4.303",
        experiment.remarks["group_norm_holds"]["inconclusive"],
        experiment.protocol[0].theirs,
        "### Theirs: mIoU (%), PASCAL VOC 2012 val by batch size: DeepLabv3 64.43 → 77.21 from 4 to 16",
        "seeds 11 to 13, computed on 2026-01-02 by code version 0123456789ab",
        "A varied run no longer tests the claim.",
    ):
        assert part in told, part
    assert len(test.get("plotly_chart")) == len(experiment.figures) + 2
    labels = [button.proto.label for button in test.get("download_button")]
    assert labels == ["The report (HTML)", *["Data (CSV)"] * (len(experiment.figures) + 2), "Download PyTorch"]


@pytest.mark.parametrize("name", list(experiments.discover()))
def test_an_experiment_without_a_result_says_what_to_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    test = page(paper=name)
    assert f"`python -m experiments run {name} --commit-results`" in text(test)
    assert experiments.find(name).claims[0].statement.partition("'")[0] in text(test)
    preset = experiments.find(name).preset("bench")
    count = sum(len(preset.configs(seed)) for seed in preset.seeds)
    assert test.button(key="reproduce_submit").label == f"Run the {count} runs"


def test_an_edited_result_is_told_and_the_rest_works(committed: Path, store: Store) -> None:
    committed.write_text(committed.read_text().replace('"inconclusive"', '"supported"'))
    test = page()
    assert "does not match its sha256" in test.error[0].value
    assert len([button for button in test.button if button.label.startswith("Open")]) == len(experiments.discover())
    test = page(paper=NAME)
    assert "does not match its sha256" in test.error[0].value
    assert len(test.get("plotly_chart")) == 2  # what others published
    press(test, "reproduce_submit")
    assert store.runs()


def test_a_result_of_other_runs_is_told(committed: Path, store: Store) -> None:
    made = made_findings.committed()
    runs = tuple(run for run in made.runs if run.label != "group_whole")
    made.model_copy(update={"runs": runs}).write(committed)
    assert "run it again" in page(paper=NAME).error[0].value


def test_why_long_runs_of_the_present_code_are_missing_is_told(
    committed: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench's runs have fewer updates than a result file keeps all records of; a limit of 1 makes them long."""
    assert words.CUT not in text(page(paper=NAME))
    monkeypatch.setattr(run, "code_version", lambda: made_findings.committed().environment.code_version)
    assert words.CUT not in text(page(paper=NAME))
    monkeypatch.setattr(run, "LONG", 1)
    assert words.CUT in text(page(paper=NAME))


def test_run_queues_the_bench_and_shows_how_far_it_is(committed: Path, store: Store) -> None:
    test = page(paper=OTHER)
    press(test, "reproduce_submit")
    total = len(plan.look(store, experiments.find(OTHER)).items)
    assert [run.state for run in store.runs(1000)] == ["queued"] * total
    (bar,) = test.get("progress")
    assert f"0 of {total} runs done · {total} waiting" in str(bar.proto)
    press(test, "reproduce_stop")
    assert {run.state for run in store.runs(1000)} == {"stopped"}
    assert test.button(key="reproduce_submit").label == f"Run the {total} runs"


@pytest.mark.parametrize("button", ["", "reproduce_submit", "reproduce_vary_submit"])
def test_a_broken_store_is_told_once(button: str, committed: Path, store: Store) -> None:
    test = page(paper=NAME, run="batch_2", n="4")
    store.path.write_bytes(b"This was a store. " * 1000)
    for part in ("-wal", "-shm"):
        store.path.with_name(store.path.name + part).unlink(missing_ok=True)
    run._look.clear()
    press(test, button) if button else checked(test.run())
    (error,) = test.error
    assert error.value.startswith(f"The store {store.path} is no store of runs")
    assert "Vary it" not in [header.value for header in test.header]
    assert test.get("plotly_chart")  # what needs no store stands


def test_a_run_that_failed_is_shown_with_its_sentence(committed: Path, store: Store) -> None:
    first = plan.look(store, experiments.find(OTHER)).items[0]
    store.submit(first.config)
    lease = claimed(store)
    lease.begin(ENVIRONMENT, 0, None)
    lease.fail("There was no room for *it*.")
    (warning,) = page(paper=OTHER).warning
    assert warning.value == rf"{first.label}, seed {first.seed}: There was no room for \*it\*."


def test_settings_are_varied_and_stand_in_the_address(committed: Path, store: Store) -> None:
    test = page(paper=NAME, run="batch_2")
    checked(test.selectbox(key="reproduce_set_steps").set_value(4).run())
    assert address(test) == {"paper": NAME, "run": "batch_2", "n": "4"}
    checked(test.selectbox(key="reproduce_set_norm").set_value("group").run())
    checked(test.multiselect(key="reproduce_set_seeds").set_value([1, 11]).run())
    assert address(test) == {"paper": NAME, "run": "batch_2", "n": "4", "norm": "group", "seeds": "1,11"}
    assert "batch_2 with GroupNorm instead of BatchNorm at 4 × 8, beside the committed run" in text(test)
    press(test, "reproduce_vary_submit")
    assert {(run.config.norm, run.config.micro_batch_size, run.config.seed) for run in store.runs()} == {
        ("group", 8, 1),
        ("group", 8, 11),
    }
    assert sum(link.proto.label.startswith("Watch seed") for link in test.get("page_link")) == 2
    checked(test.selectbox(key="reproduce_set_run").set_value("group_2").run())
    assert address(test) == {"paper": NAME, "run": "group_2", "seeds": "1,11"}
    assert page(**address(test)).multiselect(key="reproduce_set_seeds").value == [1, 11]


def test_a_network_that_keeps_its_norm_offers_none(committed: Path, store: Store) -> None:
    test = page(paper="marek_2025_small_batches", n="2")
    assert {box.label for box in test.selectbox} == {"Run", "N"}
    told = text(test)
    assert "at 2 × " in told and ", beside the committed run" in told
    assert "with BatchNorm" not in told


def test_an_address_that_cannot_be_is_told_above_the_cards(committed: Path, store: Store) -> None:
    test = page(paper="nothing")
    assert "is no experiment" in test.error[0].value
    assert test.button(key=f"reproduce_open_{NAME}")
    assert address(test) == {"paper": "nothing"}
