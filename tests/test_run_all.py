"""``run all``: every experiment that has the preset, one after another; and what a table says of undecided claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import pytest
from full_disk import full_disk

import experiments
from accum_core.claims import Claim
from accum_core.experiment import Experiment
from accum_core.result_file import ResultFile
from accum_core.runs.sweep import SweepError
from experiments.cli import main, table
from experiments.cli import run as run_module

FIRST, SECOND = "segmentation_batch_size", "wu_he_2018_group_norm"


@pytest.fixture
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two experiments, a folder of results of its own, and what is carried out, by name; nothing is computed."""
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    monkeypatch.setattr(experiments, "RESULTS", tmp_path / "results")
    known = {name: experiments.find(name) for name in (FIRST, SECOND)}
    monkeypatch.setattr(run_module, "discover", lambda: known)
    done: list[str] = []
    monkeypatch.setattr(run_module, "run_experiment", standing_in(done, fails=()))
    return done


def standing_in(done: list[str], fails: tuple[str, ...]) -> Callable[..., ResultFile]:
    def run(experiment: Experiment, preset: str, seeds: Any, *_: object, **__: object) -> ResultFile:
        done.append(experiment.name)
        if experiment.name in fails:
            raise SweepError(f"Runs of {experiment.name} did not finish.")
        claims = tuple(claim.judge([0.1, 0.2]) for claim in experiment.claims_of(preset))
        made = made_results.usual()
        return made.model_copy(update={"experiment": experiment.name, "preset": preset, "claims": claims})

    return run


def test_all_experiments_are_carried_out_and_committed(
    carried_out: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "all", "--commit-results", "--json", str(tmp_path / "all.json")]) == 0
    assert carried_out == [FIRST, SECOND]
    told = capsys.readouterr().out
    for name in carried_out:
        assert f"{name}: {experiments.find(name).title}" in told
        assert f"results/{name}.jsonl written." in told
        assert ResultFile.read(experiments.result_path(name)).experiment == name
    written = json.loads((tmp_path / "all.json").read_text())
    assert {name: outcome["experiment"] for name, outcome in written.items()} == {FIRST: FIRST, SECOND: SECOND}


def test_one_that_fails_is_told_and_the_others_go_on(
    carried_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "run_experiment", standing_in(carried_out, fails=(FIRST,)))
    assert main(["run", "all", "--json", str(tmp_path / "all.json")]) == 1
    assert carried_out == [FIRST, SECOND]
    told = capsys.readouterr().err.splitlines()
    assert told == [f"Runs of {FIRST} did not finish.", f"1 of 2 experiments failed: {FIRST}."]
    assert list(json.loads((tmp_path / "all.json").read_text())) == [SECOND]


def test_on_a_full_disk_each_file_is_told_and_none_is_half_there(
    carried_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.json"
    monkeypatch.setattr(run_module, "Store", lambda: None)  # which would be full too
    with full_disk(100):
        assert main(["run", "all", "--commit-results", "--json", str(path)]) == 1
    assert carried_out == [FIRST, SECOND]
    told = capsys.readouterr().err.splitlines()
    for name, sentence in zip(carried_out, told, strict=False):
        assert sentence.startswith(f"{experiments.result_path(name)}: could not be written (File too large); the store")
    assert not any((tmp_path / "results").iterdir())
    assert main(["run", FIRST, "--json", str(path)]) == 0
    before = path.stat().st_size
    with full_disk(before // 2):
        assert main(["run", FIRST, "--json", str(path)]) == 1
    assert "could not be written (File too large); name another file" in capsys.readouterr().err
    assert not path.exists()


def test_experiments_without_the_preset_are_left_out(carried_out: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = experiments.find(FIRST), experiments.find(SECOND)
    small = replace(second, presets={**second.presets, "small": second.presets["smoke"]})
    monkeypatch.setattr(run_module, "discover", lambda: {FIRST: first, SECOND: small})
    assert main(["run", "all", "--preset", "small"]) == 0
    assert carried_out == [SECOND]


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ("1", "--seeds = '1': a verdict needs at least 2 seeds"),
        ("1,01", "--seeds = '1,01': names a seed twice"),
        ("1,99999999999", "seed = 99999999999: "),
        ("1," + "9" * 5000, "--seeds = "),
    ],
)
def test_seeds_that_no_experiment_takes_are_refused_once(
    carried_out: list[str], capsys: pytest.CaptureFixture[str], seeds: str, told: str
) -> None:
    assert main(["run", "all", "--seeds", seeds]) == 2
    assert capsys.readouterr().err.startswith(told)
    assert carried_out == []


def test_a_preset_of_no_experiment_is_refused(carried_out: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "all", "--preset", "huge"]) == 2
    assert capsys.readouterr().err.startswith(
        "--preset = 'huge': is a preset of no experiment; use one of smoke, bench"
    )
    assert carried_out == []


def test_ctrl_c_ends_all_of_them_and_keeps_what_was_found(
    carried_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = standing_in(carried_out, fails=())

    def interrupted(experiment: Experiment, *rest: Any, **more: Any) -> ResultFile:
        if experiment.name == SECOND:
            raise KeyboardInterrupt
        return first(experiment, *rest, **more)

    monkeypatch.setattr(run_module, "run_experiment", interrupted)
    assert main(["run", "all", "--json", str(tmp_path / "all.json")]) == 130
    assert capsys.readouterr().err.count("the same command") == 1
    assert list(json.loads((tmp_path / "all.json").read_text())) == [FIRST]


def test_an_undecided_claim_says_how_many_seeds_might_decide_it() -> None:
    """The effects 1, 2, 3 spread by 1: R's one-sample power calculation gives 199 for a margin of 0.2."""
    near = Claim(id="near", statement="It is at least 1.8.", effect="e", at_least=1.8)
    on = Claim(id="on", statement="It is at least 2.", effect="e", at_least=2.0)
    far = Claim(id="far", statement="It is at least -9.", effect="e", at_least=-9.0)
    told = table.verdicts([claim.judge([1.0, 2.0, 3.0]) for claim in (near, on, far)], (near, on, far)).splitlines()
    assert told[1].startswith("near   inconclusive  2       -0.484 to 4.48  3")
    assert told[3] == "  If this is the true effect, 199 seeds of this spread decide with a probability of 80%."
    assert told[6].startswith("  If this is the true effect, more than 1000 seeds")
    assert told[7:] == ["far    supported     2       -0.484 to 4.48  3", "  It is at least -9."]
