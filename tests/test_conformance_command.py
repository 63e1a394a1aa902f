"""``conformance`` as a user types it: a table, a file, refusals, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from accum_core.conformance import frameworks, running
from accum_core.conformance.cases import CASES
from accum_core.conformance.results import Results
from experiments.cli import main

ROOT = Path(__file__).parent.parent


def test_our_own_loop_is_exact_and_its_file_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    asked = ["--framework", "accum_core", "--case", "unequal_tokens", "--case", "short_window"]
    assert main(["conformance", *asked, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    promised = {
        "framework", "version", "case", "gradient_error", "updates", "final_lr", "verdict", "explanation", "mend"
    }  # fmt: skip
    assert set(content) >= {"results", "environment"}
    assert [(row["framework"], row["case"], row["verdict"]) for row in content["results"]] == [
        ("accum_core", "unequal_tokens", "exact"),
        ("accum_core", "short_window", "exact"),
    ]
    assert all(promised <= set(row) and row["gradient_error"] <= 1e-10 for row in content["results"])
    assert Results.read(file).results[1].updates == 6  # windows of 4, 4 and 2 of 10 micro-batches, twice
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3 and table[1].split()[3:5] == ["unequal_tokens", "exact"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--framework", "tensorflow"], "--framework = 'tensorflow': is not known; use one of accum_core, "),
        (["--case", "clip"], "--case = 'clip': is not known; use one of equal, "),
        (
            ["--json", "/nowhere/found.json"],
            "--json = '/nowhere/found.json': cannot be written (No such file or directory)",
        ),
        (["--commit-results", "--case", "equal"], "takes all frameworks and cases; leave --framework and --case away"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running.Trials, "rows", lambda *_: pytest.fail("it ran"))
    assert main(["conformance", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_not_installed_is_named_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(file: str) -> str:
        return "Keras is not installed." if file == "keras_fit" else ""

    monkeypatch.setattr(running, "missing", missing)
    trials = running.Trials(["own", "keras_fit"], ["equal"])
    told: list[tuple[int, int]] = []
    rows = list(trials.rows(lambda done, total: told.append((done, total))))
    assert [(row.framework, row.case) for row in rows] == [("accum_core", "equal")]
    assert trials.lacking == {"keras": "Keras is not installed."}
    assert told[-1] == (1, 1)


def test_where_nothing_could_be_run_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(distribution: str) -> str:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr(frameworks, "version", absent)
    file = tmp_path / "found.json"
    assert main(["conformance", "--framework", "keras", "--framework", "ignite", "--json", str(file)]) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == (
        "Keras 3 on PyTorch is not installed: pip install -r requirements-frameworks.txt. "
        "PyTorch-Ignite is not installed: pip install -r requirements-frameworks.txt."
    )
    assert not out and not file.exists()


def test_a_framework_that_is_not_tried_in_a_case_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its process promises no row."""
    harness = tmp_path / "accum_core" / "frameworks" / "harness"
    harness.mkdir(parents=True)
    (harness / "__main__.py").write_text("print(0)")
    monkeypatch.setattr(running, "PROJECT", tmp_path)
    trials = running.Trials(["own"], ["clipping"])
    assert list(trials.rows(lambda *_: None)) == []
    told = "our own loop is not tried in these cases: name others, or leave --case away."
    assert trials.lacking == {"accum_core": told}


def test_a_framework_that_cannot_be_imported_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends without a row."""
    monkeypatch.setattr(running, "missing", lambda _: "")
    monkeypatch.setattr(running, "_alone", lambda: {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    trials = running.Trials(["own"], ["equal"])
    assert list(trials.rows(lambda *_: None)) == []
    assert "harness own --show tells why" in trials.lacking["accum_core"]


def test_every_kind_and_case_has_its_place() -> None:
    names = {frameworks.file_of(of["NAME"]): of["NAME"] for of in frameworks.frameworks().values()}
    assert names == {file: of["NAME"] for file, of in frameworks.frameworks().items()}
    assert next(iter(names.values())) == "accum_core"
    assert all(case.question.endswith("?") and case.right for case in CASES.values())


def of_this(command: int) -> list[int]:
    """The processes of a session that the command started, which end with it."""
    found = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in (line.split() for line in found.splitlines()[1:])}
    below, grown = {command}, True
    while grown:
        grown = bool(more := {pid for pid, parent in parents.items() if parent in below} - below)
        below |= more
    return sorted(below - {command})


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_process(kind: signal.Signals, tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "experiments", "conformance", "--framework", "accum_core"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (below := of_this(command.pid)):
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.1)
    command.send_signal(kind)
    _, told = command.communicate(timeout=30)
    assert command.returncode == (130 if kind == signal.SIGINT else -signal.SIGTERM)
    assert "Traceback" not in told
    deadline = time.monotonic() + 15
    while left := [pid for pid in below if _lives(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
