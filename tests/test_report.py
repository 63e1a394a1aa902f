"""The report in one file: what stands in it, that no text is taken for markup, that it needs nobody, the command."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import made_findings
import pytest

import experiments
from experiments.cli import main
from experiments.report import findings, html

BAD = "</script><img src=x onerror=alert(1)> & more"


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of its own, with the made-up one in it."""
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    path = experiments.result_path(made_findings.NAME)
    made_findings.committed().write(path)
    return path


def without_scripts(report: str) -> str:
    return re.sub(r"<script.*?</script>", "", report, flags=re.DOTALL)


def test_the_report_says_everything_that_a_reviewer_asks() -> None:
    found = made_findings.found()
    text = without_scripts(html.report(found)).replace("&#39;", "'")
    experiment = found.experiment
    for told in (
        experiment.question,
        "Of 4 claims 2 are supported and 2 are inconclusive.",
        *(claim.statement for claim in experiment.claims),
        "t(0.975, 2) = 4.303",
        experiment.remarks["group_norm_holds"]["inconclusive"],
        *(row.theirs for row in experiment.protocol),
        experiment.chosen,
        "Theirs: mIoU (%), PASCAL VOC 2012 val by batch size: DeepLabv3 64.43 → 77.21 from 4 to 16",
        *(paper.citation for paper in experiment.papers),
        "Made-up CPU",
        "0123456789ab",
        "python -m experiments run segmentation_batch_size --preset bench --seeds 11,12,13",
    ):
        assert told in text, told
    drawn = len(experiment.figures) + 2  # Chen et al. and Wu and He have a course of numbers, the recipe has none
    assert text.count("data-chart=") == drawn


def test_no_text_is_taken_for_markup() -> None:
    found = made_findings.found()
    experiment = found.experiment
    claim = experiment.claims[0].model_copy(update={"statement": BAD})
    hostile = replace(
        experiment,
        title=BAD,
        question=BAD,
        chosen=BAD,
        claims=(claim, *experiment.claims[1:]),
        papers=(replace(experiment.papers[0], title=BAD),),
        protocol=(replace(experiment.protocol[0], theirs=BAD),),
        published=(replace(experiment.published[0], statement=BAD, y_label=BAD),),
        figures=(replace(experiment.figures[0], finding=lambda drawn: BAD, y_label=BAD),),
    )
    report = html.report(findings.find(hostile, found.result))
    assert "onerror=alert(1)&gt; &amp; more" in report
    assert "<img src=x" not in report
    assert report.count("</script>") == 3


def test_it_asks_nobody_for_anything() -> None:
    report = html.report(made_findings.found())
    assert "default-src 'none'" in report
    assert re.findall(r"<link\b|<iframe\b|@import|url\(", without_scripts(report)) == []
    sources = re.findall(r"(?:src|href)=\"([^\"]*)\"", without_scripts(report))
    assert sources and all(source.startswith("data:") for source in sources)


def test_the_command_writes_it(committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    assert main(["report", made_findings.NAME, "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} written.\n"
    assert path.read_text(encoding="utf-8") == html.report(made_findings.found())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nothing", "--html", "{}/r.html"], 2, "NAME = 'nothing': is no experiment"),
        (["wu_he_2018_group_norm", "--html", "{}/r.html"], 1, "--commit-results computes one."),
        ([made_findings.NAME, "--html", "{}/absent/r.html"], 2, "--html = "),
        ([made_findings.NAME, "--html", "{}"], 2, "cannot be written (Is a directory); name a file"),
        ([made_findings.NAME, "--html", "{}/" + "r" * 300], 2, "cannot be written (File name too long); name a file"),
        ([made_findings.NAME], 2, "Missing option '--html'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    committed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    assert main(["report", *(argument.format(tmp_path) for argument in arguments)]) == code
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_no_half_report_stands_where_the_disk_is_full(
    committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:1000].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    path = tmp_path / "r.html"
    assert main(["report", made_findings.NAME, "--html", str(path)]) == 1
    assert "could not be written (No space left on device)" in capsys.readouterr().err
    assert not path.exists()


def test_an_edited_result_makes_no_report(committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed.write_text(committed.read_text().replace('"inconclusive"', '"supported"'))
    assert main(["report", made_findings.NAME, "--html", str(tmp_path / "r.html")]) == 1
    assert "does not match its sha256" in capsys.readouterr().err


def test_without_the_script_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "STATIC", tmp_path)
    html._plotly.cache_clear()
    with pytest.raises(html.DataError, match="plotly-cartesian.* is missing in the folder static"):
        html.report(made_findings.found())
