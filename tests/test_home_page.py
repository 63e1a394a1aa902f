"""Home as a visitor meets it: with a result, without one, with a damaged one, and after the code has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import made_results
import pytest
from streamlit.testing.v1 import AppTest

import experiments
from accum_core.provenance import code_version
from accum_core.quantities import quantity
from accum_core.records import RunConfig
from accum_core.result_file import ResultFile
from accum_core.runs.store import Store
from accum_ui import home, results, settings

MAIN = Path(__file__).parent.parent / "accum_ui" / "main.py"
NAME = "segmentation_batch_size"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the committed results, and one experiment alone."""
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    monkeypatch.setattr(home, "discover", lambda: {NAME: experiments.find(NAME)})
    return tmp_path


def opened(result: ResultFile | None = None) -> AppTest:
    if result is not None:
        result.write(experiments.result_path(NAME))
    page = AppTest.from_file(str(MAIN), default_timeout=60).run()
    assert not page.exception
    return page


def words(page: AppTest) -> str:
    shown = [*page.title, *page.header, *page.markdown, *page.caption]
    return "\n".join([*(str(element.value) for element in shown), *(html.proto.body for html in page.get("html"))])


def watch(page: AppTest) -> list[Any]:
    """The links to runs in the Lab."""
    return [link for link in page.get("page_link") if link.proto.label.startswith("Watch")]


def test_every_page_is_named_with_what_it_shows(folder: Path) -> None:
    page = opened()
    labels = [link.proto.label for link in page.get("page_link")]
    names = ["Lab", "Loss scaling", "Pitfalls", "Normalisation", "Language model", "Reproduce", "Frameworks"]
    assert sorted(labels[-7:]) == sorted(f"**{name}**" for name in names)  # a link longer than that would be cut
    for summary in (str(caption.value) for caption in page.caption[-7:]):
        assert summary.endswith(".") and len(summary) > 40


def test_result_is_shown_with_its_provenance(folder: Path) -> None:
    page = opened(made_results.usual())
    text = words(page)
    assert page.title[0].value == "When is N × micro-batch the same as one large batch?"
    assert "## Split into 4 × 2, BatchNorm loses 30 points of mIoU; GroupNorm's mean stays within 2.5 points" in text
    for part in ("2026-01-02", "0123456789ab", "seeds 1, 2, 3", "Made-up CPU", "1 thread"):
        assert part in text
    assert len(page.get("plotly_chart")) == 3
    assert "2 of 2 claims are supported" in text
    assert [button.proto.label for button in page.get("download_button")] == ["The runs' numbers (CSV)"]
    assert not page.info
    assert not page.error


def test_result_of_another_code_version_says_so(folder: Path) -> None:
    assert f"The present code is version {code_version()}: `python -m experiments run {NAME}`" in words(
        opened(made_results.usual())
    )


def test_result_of_the_present_code_says_so() -> None:
    present = made_results.ENVIRONMENT.model_copy(update={"code_version": code_version(), "threads": 2})
    text = home.provenance(present, (4, 5), NAME)
    assert text.endswith("That is the present code.")
    assert "seeds 4, 5 on" in text
    assert "2 threads a run" in text


def test_verdicts_are_a_table_with_units(folder: Path) -> None:
    table = next(html.proto.body for html in opened(made_results.usual()).get("html") if "<table" in html.proto.body)
    assert table.count("<tr>") == 3
    assert '<td data-label="Effect">30.0 points</td>' in table
    assert '<td data-label="Effect">1.5 × 10⁻⁶</td>' in table
    assert "BatchNorm loses at least 20 points." in table


def test_quantities_are_written_for_people() -> None:
    assert quantity("mIoU", 0.293) == "29.3 points"
    assert quantity("mIoU", -0.037, 0.027) == "−3.7 to 2.7 points"
    assert quantity("", 1.113) == "1.11"
    assert quantity("", 2.44e-6, 2.76e-6) == "2.4 × 10⁻⁶ to 2.8 × 10⁻⁶"


def test_statement_cannot_bring_markup() -> None:
    verdict = made_results.usual().claims[0].model_copy(update={"statement": "a < b & <script>"})
    assert "a &lt; b &amp; &lt;script&gt;" in home.verdict_row(verdict, "", dark=False)


def test_without_a_result_it_says_what_to_run(folder: Path) -> None:
    page = opened()
    assert f"python -m experiments run {NAME} --commit-results" in page.info[0].value
    assert len(page.get("plotly_chart")) == 2  # what others published needs no result of ours
    assert len(watch(page)) == 2


def test_damaged_result_is_refused_in_a_sentence(folder: Path) -> None:
    made_results.usual().write(path := experiments.result_path(NAME))
    path.write_text(path.read_text().replace('"miou":0.7', '"miou":0.9'))
    page = opened()
    assert "does not match its sha256" in page.error[0].value
    assert len(watch(page)) == 2


def cards(page: AppTest) -> dict[str, str]:
    """Experiment -> its card's text."""
    found = {}
    for column in page.columns:
        for link in column.get("page_link"):
            parts = [str(part.value) for part in (*column.markdown, *column.error)]
            found[parse_qs(link.proto.query_string)["paper"][0]] = "\n".join(parts)
    return found


def test_every_other_experiment_is_a_card_that_leads_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    others = {name: experiments.find(name) for name in ("wu_he_2018_group_norm", "segmentation_norms")}
    monkeypatch.setattr(home, "discover", lambda: {NAME: experiments.find(NAME), **others})
    made_results.digits().write(experiments.result_path("wu_he_2018_group_norm"))
    read, parsed = results.read, []
    monkeypatch.setattr(results, "read", lambda name: (parsed.append(name), read(name))[1])
    page = opened(made_results.usual())
    assert parsed == [NAME]  # a card is made from the file's first line
    found = cards(page)
    assert list(found) == list(others)
    for name, experiment in others.items():
        assert experiment.title in found[name] and experiment.question in found[name]
    assert "The claim is supported." in found["wu_he_2018_group_norm"]
    assert "Not measured yet." in found["segmentation_norms"]
    assert len(page.get("plotly_chart")) == 3


def test_a_damaged_result_of_another_experiment_is_told_on_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    other = "wu_he_2018_group_norm"
    monkeypatch.setattr(home, "discover", lambda: {name: experiments.find(name) for name in (NAME, other)})
    made_results.digits().write(path := experiments.result_path(other))
    path.write_text(path.read_text().replace('"error":0.5', '"error":0.1'))
    page = opened(made_results.usual())
    assert "does not match its sha256" in cards(page)[other]
    assert "2 of 2 claims are supported" in words(page)


def test_the_way_to_the_lab_comes_before_the_details(folder: Path) -> None:
    headers = [header.value for header in opened(made_results.usual()).header]
    assert headers == ["See it happen", "2 of 2 claims are supported", "What others published", "The pages"]


def test_links_lead_to_stored_runs(folder: Path, tmp_path: Path) -> None:
    links = watch(opened(made_results.usual()))
    assert [link.proto.label for link in links] == ["Watch BatchNorm at 4 × 2", "Watch GroupNorm at 4 × 2"]
    stored = {run.result.config for run in made_results.usual().runs}
    for link in links:
        address = {name: value for name, (value,) in parse_qs(link.proto.query_string).items()}
        config = settings.read(address, RunConfig.of())
        assert config in stored
        store = Store(tmp_path / "filled.sqlite")
        results.fill(store)
        assert store.get(address["run"]).config == config
