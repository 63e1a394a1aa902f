"""The command line as a user types it: results, files, refusals and interruptions."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import experiments
from accum_core.result_file import ResultFile
from accum_core.runs.store import Store
from experiments.cli import main
from experiments.cli import run as run_module
from experiments.cli.output import write_json

ROOT = Path(__file__).parent.parent
SHORT = ["train", "--effective", "4", "--micro", "2", "--seed", "900"]
PAPER = "segmentation_batch_size"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's own store."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))


@pytest.fixture(scope="module")
def smoke_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that holds the smoke runs, and ``smoke.json`` that the command wrote."""
    folder = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCUMULATION_LAB_STORE", str(folder / "runs.sqlite"))
        assert main(["run", PAPER, "--preset", "smoke", "--json", str(folder / "smoke.json")]) == 0
    return folder


@pytest.fixture
def smoke(smoke_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with that store in use."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(smoke_folder / "runs.sqlite"))
    return smoke_folder


def strict(path: Path) -> Any:
    """The file's JSON; NaN and Infinity, which JSON has not, are errors."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_list_gives_the_promised_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(experiments.discover())
    for entry in listed:
        assert set(entry) == {"name", "title", "paper", "question", "presets", "claims"}
        assert all(set(claim) == {"id", "statement"} for claim in entry["claims"])
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for entry in listed:
        assert entry["name"] in text and entry["question"] in text
        assert all(claim["statement"] in text for claim in entry["claims"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "--micro", "5"], ["--micro = 5", "1, 2, 4, 8, 16, 32"]),
        (["train", "--micro", "0"], ["--micro = 0", "greater than or equal to 1"]),
        (["train", "--effective", "2", "--micro", "4"], ["--effective = 2"]),
        (["train", "--updates", "0"], ["--updates = 0"]),
        (["train", "--updates", "ten"], ["--updates", "'ten'", "--help"]),
        (["train", "--lr", "nan"], ["--lr = nan"]),
        (["train", "--lr", "-1"], ["--lr = -1.0"]),
        (["train", "--norm", "bach"], ["--norm = 'bach'", "batch, "]),
        (["train", "--norm", "group", "--groups", "7"], ["7"]),
        (["train", "--micro", "1", "--norm", "batch"], ["micro", "1"]),
        (["train", "--model", "resnet"], ["--model = 'resnet'", "deeplab, unet"]),
        (["train", "--workload", "moon"], ["--workload = 'moon'", "landcover"]),
        (["train", "--reduction", "mean"], ["--reduction = 'mean'", "exact"]),
        (["train", "--tail", "keep"], ["--tail = 'keep'", "rescale"]),
        (["train", "--precision", "float16"], ["--precision = 'float16'", "float32"]),
        (["train", "--seed", "-1"], ["--seed = -1"]),
        (["train", "--warmup", "150"], ["--warmup = 150", "150"]),
        (["train", "--threads", "0"], ["--threads", "0", "--help"]),
        (["train", "--epochs", "3"], ["--epochs", "--help"]),
        (["train", "--updates"], ["--updates", "--help"]),
        (["train", "extra"], ["extra", "--help"]),
        (["train", "--updates", "1000000", "--json", "/no/such/folder/a.json"], ["--json = '/no/such/folder/a.json'"]),
        (["train", "--updates", "1000000", "--json", "/"], ["--json = '/'", "directory"]),
        (["run"], ["NAME", "--help"]),
        (["run", "nothing"], ["NAME = 'nothing'", PAPER]),
        (["run", PAPER, "--preset", "huge"], ["--preset = 'huge'", "smoke"]),
        (["run", PAPER, "--seeds", "900"], ["--seeds = '900'", "at least 2 seeds"]),
        (["run", PAPER, "--seeds", "900,900"], ["--seeds = '900,900'", "twice"]),
        (["run", PAPER, "--seeds", "900;901"], ["--seeds = '900;901'", "separated by commas"]),
        (["run", PAPER, "--seeds", "900,99999999999"], ["seed = 99999999999"]),
        (["run", PAPER, "--preset", "smoke", "--commit-results"], ["--preset = 'smoke'", "bench"]),
        (["run", PAPER, "--json", "/no/such/folder/a.json"], ["--json = '/no/such/folder/a.json'"]),
        (["run", PAPER, "--seed", "900"], ["'--seed'", "use --seeds", "run --help"]),
        (["sweep"], ["'sweep'", "--help"]),
        (["trian"], ["'trian'", "use train"]),
        (["--verbose"], ["--verbose", "--help"]),
    ],
)
def test_a_bad_value_is_one_sentence_and_code_2(
    arguments: list[str], told: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.endswith(".\n")
    assert all(part in captured.err for part in told), captured.err
    assert "allow_tail" not in captured.err


def test_a_refused_command_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert main(["train", "--micro", "5", "--json", str(path)]) == 2
    assert not path.exists()
    path.write_text("kept")
    assert main(["train", "--micro", "5", "--json", str(path)]) == 2
    assert path.read_text() == "kept"


def test_train_writes_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    assert main([*SHORT, "--norm", "group", "--updates", "11", "--threads", "1", "--json", str(path)]) == 0
    written = strict(path)
    assert set(written) == {"config", "metrics", "records", "environment"}
    assert written["config"]["effective_batch_size"] == 4 and written["config"]["norm"] == "group"
    assert written["config"]["warmup_updates"] == 2
    records = written["records"]
    assert [record["update"] for record in records] == list(range(1, 12))
    measured = [r["instruments"]["gradient_error"] for r in records if "gradient_error" in r["instruments"]]
    assert written["metrics"]["miou"] == records[-1]["validation"]["miou"]
    assert written["metrics"]["loss"] == records[-1]["validation"]["loss"]
    assert written["metrics"]["gradient_error"] == statistics.median(m["relative_error"] for m in measured)
    assert written["metrics"]["cosine"] == statistics.median(m["cosine"] for m in measured)
    assert written["environment"]["threads"] == 1
    captured = capsys.readouterr()
    assert f"miou {written['metrics']['miou']:.4g}" in captured.out
    assert "11/11" in captured.err and "samples/s" in captured.err


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": float("nan"), "b": [float("inf"), 0.1]})
    assert strict(tmp_path / "a.json") == {"a": None, "b": [None, 0.1]}


def test_a_loss_that_is_not_finite_is_told_with_its_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    arguments = [*SHORT, "--norm", "none", "--lr", "100", "--warmup", "0", "--updates", "60", "--json", str(path)]
    assert main(arguments) == 1
    records = strict(path)["records"]
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert f"at update {len(records) + 1}" in last and "--lr" in last


def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    command = [sys.executable, "-m", "experiments", *SHORT, "--updates", "100000", "--json", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        seen = ""
        while "samples/s" not in seen:
            character = process.stderr.read(1)
            assert character, seen
            seen += character
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    records = strict(path)["records"]
    assert records
    last = errors.rstrip().splitlines()[-1]
    assert last.startswith(f"Stopped after update {len(records)} of 100000; {path} holds what was recorded")
    assert "Traceback" not in errors


def test_run_writes_what_it_promises(smoke: Path) -> None:
    written = strict(smoke / "smoke.json")
    assert {"experiment", "preset", "seeds", "claims", "runs", "environment"} == set(written)
    preset = experiments.find(PAPER).preset("smoke")
    assert (written["experiment"], written["preset"]) == (PAPER, "smoke")
    assert written["seeds"] == list(preset.seeds)
    for verdict in written["claims"]:
        assert set(verdict) == {"id", "statement", "verdict", "effect", "low", "high", "num_seeds"}
        assert verdict["low"] <= verdict["effect"] <= verdict["high"]
        assert verdict["num_seeds"] == len(preset.seeds)
    runs = {(run["seed"], run["label"]): run for run in written["runs"]}
    assert set(runs) == {(seed, label) for seed in preset.seeds for label in preset.configs(seed)}
    miou = {key: run["metrics"]["miou"] for key, run in runs.items()}
    losses = [miou[seed, "batch_whole"] - miou[seed, "batch_2"] for seed in preset.seeds]
    assert written["claims"][0]["effect"] == pytest.approx(statistics.mean(losses))


def test_what_the_store_holds_is_not_computed_again(smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = len(strict(smoke / "smoke.json")["runs"])
    assert len(Store(smoke / "runs.sqlite").runs()) == count
    again = smoke / "again.json"
    assert main(["run", PAPER, "--preset", "smoke", "--json", str(again)]) == 0
    assert len(Store(smoke / "runs.sqlite").runs()) == count
    assert strict(again) == strict(smoke / "smoke.json")
    captured = capsys.readouterr()
    assert f"{count} of {count} runs are in the store already." in captured.err
    for verdict in strict(again)["claims"]:
        assert verdict["id"] in captured.out and verdict["verdict"] in captured.out


def test_fresh_computes_every_run_anew_to_the_same_numbers(smoke: Path) -> None:
    count = len(Store(smoke / "runs.sqlite").runs())
    fresh = smoke / "fresh.json"
    assert main(["run", PAPER, "--preset", "smoke", "--fresh", "--json", str(fresh)]) == 0
    assert len(Store(smoke / "runs.sqlite").runs()) == 2 * count
    first = strict(smoke / "smoke.json")
    assert strict(fresh)["claims"] == first["claims"]
    assert [run["metrics"] for run in strict(fresh)["runs"]] == [run["metrics"] for run in first["runs"]]


def test_commit_results_writes_the_file_that_the_app_shows(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "COMMITTED", "smoke")
    monkeypatch.setattr(experiments, "RESULTS", smoke / "results")
    assert main(["run", PAPER, "--preset", "smoke", "--commit-results"]) == 0
    committed = ResultFile.read(smoke / "results" / f"{PAPER}.jsonl")
    written = strict(smoke / "smoke.json")
    assert [verdict.model_dump() for verdict in committed.claims] == written["claims"]
    assert [run.label for run in committed.runs] == [run["label"] for run in written["runs"]]


def test_ctrl_c_under_run_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, fresh: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_experiment", interrupted)
    assert main(["run", PAPER, "--preset", "smoke"]) == 130
    last = capsys.readouterr().err.rstrip().splitlines()[-1]
    assert last.startswith("Stopped with no run done") and "the same command" in last


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """As typed, in a process of its own: refused with one sentence and code 2, and torch was not waited for."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "experiments", "train", "--micro", "5"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    assert len(lines) == 1 and lines[0].startswith("--micro = 5")
    assert " torch\n" not in ended.stderr
