"""The page of frameworks without a browser: the matrix, an opened cell, addresses, versions, and what is missing."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import made_conformance
import pytest
from made_conformance import EXPLAINED, MENDED, row
from streamlit.testing.v1 import AppTest
from test_house import FRAME

from accum_core.conformance import findings
from accum_core.conformance.cases import CASES
from accum_core.conformance.loops import all_loops
from accum_core.conformance.results import Results
from accum_core.errors import LabError
from accum_ui.conformance import job, matrix, reading, words
from accum_ui.conformance.choice import Choice, address, link, read


@pytest.fixture(autouse=True)
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own, the made-up results, and no framework in another version than theirs."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    monkeypatch.setattr(reading, "installed", lambda distribution: "1.2.3")
    path = tmp_path / "committed.json"
    monkeypatch.setattr(reading, "COMMITTED", path)
    made_conformance.usual().write(path)
    return path


def page(**asked: str) -> AppTest:
    test = AppTest.from_string(FRAME.format(page="6_Frameworks.py"), default_timeout=60)
    for name, value in asked.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def text(test: AppTest) -> str:
    shown = (*test.title, *test.header, *test.markdown, *test.caption, *test.info, *test.error, *test.warning)
    codes = [str(code.value) for code in test.code]
    return "\n".join([*(str(each.value) for each in shown), *codes, *(each.proto.body for each in test.get("html"))])


def test_the_answer_is_counted() -> None:
    told = text(page())
    assert (
        "Of 5 frameworks 1 computes the large batch's gradient when micro-batches hold unequal numbers of tokens: our "
        "own loop. Accelerate leaves the division to the user's own code. Exact in all 3 cases: our own loop." in told
    )
    assert "14 trials: 9 exact, 3 wrong, 1 refuses, 1 user's duty." in told
    assert "2 January 2026, Made-up CPU" in told


def test_every_cell_leads_to_itself() -> None:
    rows = made_conformance.usual().results
    for choice in (Choice(), Choice("<b>made</b>")):
        table = matrix.matrix(rows, choice, all_loops())
        for found in re.findall(r'<td class="\w+"><a href="([^"]+)"', table):
            parameters = dict(part.split("=") for part in unescape(found).removeprefix("?").split("&"))
            asked = {name: value.replace("%3Cb%3Emade%3C%2Fb%3E", "<b>made</b>") for name, value in parameters.items()}
            opened = read(asked, rows, ())
            assert link(opened) == unescape(found)
    assert table.count("<tr>") == 1 + 2 and "<b>made</b>" not in table  # both kinds, and no tag of theirs
    assert 'href="?framework=%3Cb%3Emade%3C%2Fb%3E&amp;kind=second&amp;case=unequal_tokens"' in table


def test_verdicts_are_told_by_sign_and_word_and_never_by_colour_alone() -> None:
    rows = made_conformance.usual().results
    table = matrix.matrix(rows, Choice(), all_loops())
    for verdict, sign, number in (("wrong", "✗", " 0.5"), ("user's duty", "△", " 1.2"), ("refuses", "⊘", "")):
        told = f"{verdict.replace(chr(39), '&#x27;')}</span>{number}"
        assert re.search(rf'aria-hidden="true">{sign}</b><span class="unseen">unequal token counts: {told}', table)
    assert len(set(findings.SIGNS.values())) == 4
    assert words.NUMBER in matrix.key(rows)
    assert "rounding" in matrix.key(rows) and "refuses" not in matrix.key([each for each in rows if each.updates])


@pytest.mark.parametrize(
    ("asked", "title", "parts"),
    [
        (
            {"framework": "accelerate", "case": "unequal_tokens"},
            "Accelerate: unequal token counts",
            ("△ Not as documented", "error is 1.2", EXPLAINED, MENDED, "✓ exact", "accelerator.accumulate", "N = 8"),
        ),
        (
            {"framework": "lightning", "case": "schedule"},
            "PyTorch Lightning Trainer: schedule over an epoch",
            ("✗ No. The gradient error is 0.25.", "No option of this framework", "8.1 × 10⁻⁴", "times 0.3 an update"),
        ),
        (
            {"framework": "accum_core", "case": "equal"},
            "our own loop: equal micro-batches",
            ("✓ Yes", "def train(task: Task)", CASES["equal"].question),
        ),
        (
            {"framework": "<b>made</b>", "case": "unequal_tokens", "kind": "second"},
            "<b>made</b>: unequal token counts",
            ("✓ Yes", "no longer in the project"),
        ),
    ],
)
def test_a_cell_opens(asked: dict[str, str], title: str, parts: tuple[str, ...]) -> None:
    test = page(**asked)
    assert test.title[0].value == title
    assert [part for part in parts if part not in text(test)] == []
    test.button(key="frameworks_back_0").click().run()
    assert test.title[0].value == words.TITLE and not dict(test.query_params)


def test_a_case_alone_compares_all_frameworks_in_it() -> None:
    told = text(page(case="unequal_tokens"))
    table = told[told.index('<table class="case">') :]
    assert re.findall(r"<tr><th scope=\"row\"><a[^>]*>([^<]*)", table) == [
        *(
            all_loops()[name].title
            for name in all_loops()
            if name in ("accum_core", "accelerate", "lightning", "keras")
        ),
        *["&lt;b&gt;made&lt;/b&gt;"] * 2,
    ]
    assert f"{MENDED} (gradient error 2 × 10⁻¹⁶)" in unescape(table)


def test_a_framework_alone_has_the_title_and_the_answer() -> None:
    test = page(framework="lightning")
    assert test.title[0].value == f"Does {all_loops()['lightning'].title} compute the large batch's gradient?"
    told = f"{all_loops()['lightning'].title}, version 1.2.3: 1 of 3 trials are exact. Open a cell to see why, and what"
    assert told in text(test)
    assert "Find the row that is your training, and open a cell" in text(page(framework="<b>made</b>"))


def test_what_is_the_same_is_told_once() -> None:
    tail = "; the short window is dropped"
    same = (f"mean of means over N{tail}", f"sum{tail}", "sum over weight")
    told = words.same_line(row("keras", "equal", formula=f"sum over weight{tail}", same_here=same))
    assert told == "The same on this case's data: mean of means over N, or sum, or sum over weight."
    assert words.same_line(row("keras", "equal")) == ""


def test_a_version_and_a_recipes_commit() -> None:
    assert words.version(row("keras", "equal")) == "version 1.2.3"
    assert words.version(row("keras", "equal", version="commit 553f949")) == "commit 553f949"


def test_filters_write_the_address() -> None:
    test = page()
    test.selectbox(key="frameworks_set_framework").set_value("keras").run()
    test.selectbox(key="frameworks_set_case").set_value("equal").run()
    assert dict(test.query_params) == {"framework": "keras", "case": "equal"}
    assert not test.exception and test.title[0].value.endswith(": equal micro-batches")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"framework": "](http://x)"}, "is not among the results; use one of accum_core, accelerate"),
        ({"framework": "keras", "case": "schedule"}, "is not among the results; use one of equal, unequal_tokens"),
        ({"case": "x" * 5000}, "is not among the results"),
        ({"kind": "own"}, "is a kind of one framework; name the framework as well"),
        ({"framework": "keras", "kind": "second"}, "is not among the results; use one of own"),
        ({"results": "there"}, "must be here, or be left out"),
        ({"results": "here"}, "nothing was run on this machine"),
        ({"framework": "\x00", "case": "☃"}, "is not among the results"),
    ],
)
def test_an_address_that_cannot_be_is_told_above_the_matrix(asked: dict[str, str], told: str) -> None:
    test = page(**asked)
    assert told in test.error[0].value and not re.search(r"(?<!\\)\](?=\()", test.error[0].value)
    assert test.title[0].value == words.TITLE and '<table class="frameworks">' in text(test)


def test_what_was_run_here_stands_beside_the_committed_results(tmp_path: Path) -> None:
    job.folder().mkdir()
    made = made_conformance.usual()
    older = made.model_copy(update={"results": (row("keras", "equal", "wrong"), row("lightning", "equal", "wrong"))})
    older.write(job.result_path(""))
    newer = made.model_copy(update={"results": (row("keras", "equal"),)})
    newer.write(job.result_path("keras"))
    here = reading.here()
    assert here is not None
    assert {each.framework: each.verdict for each in here.results} == {"keras": "exact", "lightning": "wrong"}
    test = page(results="here")
    assert "Run on this machine" in text(
        test
    ) and "framework=keras&amp;kind=own&amp;case=equal&amp;results=here" in text(test)
    test.selectbox(key="frameworks_set_results").set_value("").run()
    assert "Committed results" in text(test)


def test_other_versions_and_missing_frameworks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"accelerate": "1.1.0", "lightning": "1.2.3", "keras": ""}
    monkeypatch.setattr(reading, "installed", present.get)
    test = page(framework="keras")
    assert (
        test.warning[0].value == "These are results for Accelerate 1.2.3, and you have 1.1.0: run it for yours below."
    )
    assert f"Not installed here: {all_loops()['keras'].title}." in test.info[0].value
    assert f"`{words.INSTALL}` installs them" in test.info[0].value
    assert test.button(key="frameworks_start").disabled


def test_without_results_the_page_says_what_it_would_show(committed: Path) -> None:
    committed.unlink()
    test = page(framework="keras")
    assert "There are no results yet" in test.info[0].value and "Accelerate" in test.info[0].value
    assert test.button(key="frameworks_start").label == "Run all frameworks"


def test_damaged_results_are_told_and_can_be_run_anew(committed: Path) -> None:
    committed.write_text('{"results": [')
    test = page()
    assert re.fullmatch(r"committed\.json: is no conformance result of this version; run .*", test.error[0].value)
    assert test.button(key="frameworks_start")


def test_a_run_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(framework: str) -> None:
        raise LabError(f"No room for {framework}.")

    monkeypatch.setattr(job, "start", refuse)
    test = page(framework="keras")
    test.button(key="frameworks_start").click().run()
    assert test.error[0].value == "No room for keras." and not test.exception
    test.run()
    assert not test.error


def test_progress_and_end_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    running = job.Look("running", "keras", 1.0, 3, 12, "02:10")
    monkeypatch.setattr(job, "look", lambda: running)
    test = page()
    assert test.get("progress")[0].proto.text == "3 of 12 trials done · about 02:10 left"
    assert test.get("progress")[0].proto.value == 25
    assert test.button(key="frameworks_stop")
    monkeypatch.setattr(job, "look", lambda: job.Look("ended", "", 1.0, told="The process was ended by signal 9."))
    assert "ended without a result. Its last line: The process was ended by signal 9." in page().warning[0].value
    monkeypatch.setattr(job, "look", lambda: job.Look("ended", "", 1.0, told="Interrupted."))
    assert page().warning[0].value == "The last run was stopped before its end, and left no results."


def test_a_run_that_has_ended_leads_to_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    job.folder().mkdir()
    made = made_conformance.usual()
    made.model_copy(update={"results": (row("keras", "equal"),)}).write(job.result_path("keras"))
    monkeypatch.setattr(job, "look", lambda: job.Look("done", "keras", 1767312000.0))
    test = page(framework="keras", case="equal")
    told = f"The last run here, of {all_loops()['keras'].title}, begun on 2 January 2026, has its results."
    assert test.success[0].value == told
    test.button(key="frameworks_found").click().run()
    assert dict(test.query_params) == {"framework": "keras", "results": "here"}
    assert "Run on this machine" in text(test) and "1 trial: 1 exact." in text(test)
    assert [each for each in test.button if each.key == "frameworks_found"] == []


def test_the_data_are_the_results(committed: Path) -> None:
    rows = made_conformance.usual().results
    lines = list(csv.DictReader(io.StringIO(words.to_csv(rows))))
    assert len(lines) == len(rows)
    told = lines[4]
    assert (told["framework"], told["case"], told["verdict"]) == ("accelerate", "unequal_tokens", "user's duty")
    assert float(told["gradient_error"]) == 1.2034
    assert Results.model_validate(json.loads(committed.read_text())).results == rows


def test_the_button_counts_the_trials() -> None:
    assert page().button(key="frameworks_start").label == "Run all frameworks: 14 trials"
    assert page(framework="keras").button(key="frameworks_start").label.endswith(": 2 trials")


def test_choices_and_addresses_are_inverse() -> None:
    rows = made_conformance.usual().results
    for each in rows:
        for results, here in (("", ()), ("here", rows)):
            choice = Choice(each.framework, each.case, each.kind, results)
            assert read(address(choice), rows, here) == choice
