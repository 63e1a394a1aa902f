"""``verify``: a run that is its record, one that is not, and records of other machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import made_results
import pytest

import experiments
from accum_core.claims import Claim
from accum_core.engine import Training
from accum_core.experiment import Experiment, Preset
from accum_core.records import RunConfig, RunResult
from accum_core.result_file import ResultFile, StoredRun
from accum_core.runs.sweep import judge
from experiments.cli import agreement, main
from experiments.cli import verify as verify_module
from experiments.cli.verify import smallest

NAME, OTHER = "wu_he_2018_group_norm", "segmentation_batch_size"
PAPERS = tuple(
    Experiment(
        name=name,
        title="Whole and split",
        question="Do their losses differ?",
        papers=(),
        claims=(Claim(id="alike", statement="The last losses differ by at most 9.", effect="loss", at_most=9),),
        presets={"bench": Preset((1, 2), lambda seed: {}, "two tiny runs")},
        measure=lambda runs: {"loss": runs["batch_4"].records[-1].loss - runs["batch_8"].records[-1].loss},
    )
    for name in (NAME, OTHER)
)


def trained(seed: int, micro: int) -> RunResult:
    """A perceptron on the digits for two updates of 8 samples."""
    config = RunConfig.of(
        workload="digits", model="mlp", effective_batch_size=8, micro_batch_size=micro, updates=2, warmup_updates=1,
        seed=seed,
    )  # fmt: skip
    training = Training(config)
    records = tuple(training.run())
    return RunResult(config=config, environment=training.environment(), records=records)


@pytest.fixture(scope="module")
def computed(one_thread: None) -> ResultFile:
    """Whole and split, over two seeds; the split run of the first seed took the fewest seconds."""
    runs = [
        StoredRun(label=f"batch_{micro}", seed=seed, result=took(trained(seed, micro), seconds=9 - micro % 8 - seed))
        for seed in (1, 2)
        for micro in (8, 4)
    ]
    made = {"claims": judge(PAPERS[0], "bench", runs), "runs": tuple(runs), "environment": runs[0].result.environment}
    return made_results.digits().model_copy(update={"seeds": (1, 2), **made})


def took(result: RunResult, seconds: float) -> RunResult:
    records = tuple(record.model_copy(update={"seconds": seconds}) for record in result.records)
    return result.model_copy(update={"records": records})


@pytest.fixture
def committed(tmp_path: Path, computed: ResultFile, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of results holds what the made-up experiment of that name found."""
    known = {paper.name: paper for paper in PAPERS}
    monkeypatch.setattr(verify_module, "find", lambda name: known.get(name) or experiments.find(name))
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    path = experiments.result_path(NAME)
    computed.write(path)
    return path


def changed(result: RunResult, update: int, **fields: Any) -> RunResult:
    """The result with one record changed."""
    records = list(result.records)
    records[update - 1] = records[update - 1].model_copy(update=fields)
    return result.model_copy(update={"records": tuple(records)})


def elsewhere(result: RunResult) -> RunResult:
    environment = result.environment.model_copy(update={"processor": "Another CPU"})
    return result.model_copy(update={"environment": environment})


def with_smallest(computed: ResultFile, result: RunResult) -> ResultFile:
    chosen = smallest(computed)
    runs = tuple(run.model_copy(update={"result": result}) if run is chosen else run for run in computed.runs)
    return computed.model_copy(update={"runs": runs})


def test_the_run_of_the_first_seed_with_the_fewest_seconds_is_taken(computed: ResultFile) -> None:
    assert (smallest(computed).label, smallest(computed).seed) == ("batch_4", 1)


def test_an_equal_run_is_told(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    told = capsys.readouterr().out
    assert f"{NAME}  batch_4  1 " in told
    assert "bit by bit  agrees   updates: 2, validations: 1, all equal" in told


def test_a_number_that_differs_in_its_last_bit_is_told_with_code_1(
    committed: Path, computed: ResultFile, capsys: pytest.CaptureFixture[str]
) -> None:
    result = smallest(computed).result
    loss = result.records[1].loss
    recorded = math.nextafter(loss, 9)
    with_smallest(computed, changed(result, 2, loss=recorded)).write(committed)
    assert main(["verify", NAME]) == 1
    assert f"DIFFERS  loss of update 2 is {loss!r} and was {recorded!r}" in capsys.readouterr().out


def test_a_damaged_file_is_a_sentence_and_the_others_go_on(
    committed: Path, computed: ResultFile, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = experiments.result_path(OTHER)
    computed.write(damaged)
    damaged.write_text(damaged.read_text().replace('"batch_8"', '"batch_9"'))
    assert main(["verify"]) == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[0].startswith(f"{OTHER}.jsonl: its content does not match its sha256")
    assert f"{NAME}  batch_4" in told.out


def test_ctrl_c_leaves_the_rows_of_what_was_compared(
    committed: Path, computed: ResultFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed.model_copy(update={"experiment": OTHER}).write(experiments.result_path(OTHER))
    compute = verify_module._again

    def interrupted(name: str, run: StoredRun) -> RunResult:
        if name == NAME:  # the second in the order of their names
            raise KeyboardInterrupt
        return compute(name, run)

    monkeypatch.setattr(verify_module, "_again", interrupted)
    assert main(["verify"]) == 130
    told = capsys.readouterr()
    assert f"{OTHER}  batch_4" in told.out and NAME not in told.out
    assert told.err.rstrip().splitlines()[-1] == "Interrupted."


@pytest.mark.parametrize(
    ("forged", "told"),
    [
        ({"verdict": "refuted"}, "the claim alike is refuted with "),
        ({"low": -3.5}, "(-3.5 to "),
        ({"num_seeds": 20}, "over 20 seeds there and supported with "),
        ({"id": "alive"}, "and no claim of the experiment now"),
    ],
)
def test_a_verdict_that_does_not_follow_from_the_records_is_told(
    committed: Path, computed: ResultFile, forged: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's seal is right: who can edit a file can seal it too."""
    (verdict,) = computed.claims
    computed.model_copy(update={"claims": (verdict.model_copy(update=forged),)}).write(committed)
    assert main(["verify", NAME]) == 1
    sentence = capsys.readouterr().err.splitlines()[0]
    assert sentence.startswith(f"{NAME}.jsonl: the claim ") and told in sentence


def test_a_result_that_is_asked_for_and_is_not_there_is_told(
    committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "segmentation_norms"]) == 1
    assert "segmentation_norms.jsonl: cannot be read (No such file" in capsys.readouterr().err
    assert main(["verify", "nothing"]) == 2
    assert (
        f"NAME = 'nothing': is no experiment; use one of {next(iter(experiments.discover()))}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", 0.5), ("gradient_norm", math.nan), ("gradient_norm", 0.0)],
)
def test_every_number_of_a_record_counts_on_its_own_machine(computed: ResultFile, field: str, value: float) -> None:
    result = smallest(computed).result
    assert agreement.compare(result, result, [result]).holds
    assert not agreement.compare(changed(result, 1, **{field: value}), result, [result]).holds


def test_validations_count_on_their_own_machine(computed: ResultFile) -> None:
    result = smallest(computed).result
    validation = result.records[1].validation
    assert validation is not None and validation.error is not None
    other = changed(result, 2, validation=validation.model_copy(update={"error": validation.error + 1e-12}))
    assert agreement.compare(other, result, [result]).text.startswith("validation error of update 2 is")


def test_elsewhere_the_first_update_is_held_tightly(computed: ResultFile) -> None:
    result = elsewhere(smallest(computed).result)
    again, others = smallest(computed).result, [result]
    loss, norm = again.records[0].loss, again.records[0].gradient_norm
    for share, holds in ((0.9e-4, True), (1.1e-4, False)):
        for fields in ({"loss": loss * (1 + share)}, {"gradient_norm": norm * (1 - share)}):
            found = agreement.compare(changed(result, 1, **fields), again, others)
            assert (found.holds, found.how) == (holds, "within tolerance")
    assert agreement.compare(changed(result, 2, loss=9.0), again, others).holds  # what lies between is not compared
    assert not agreement.compare(changed(result, 1, loss=math.nan), again, others).holds


def test_elsewhere_the_last_measure_may_differ_as_two_seeds_do(computed: ResultFile) -> None:
    """Errors 0.1, 0.2, 0.3 have s = 0.1; t(0.995; 2) = 9.925 in the tables, and differences spread by sqrt(2) s."""
    again = smallest(computed).result
    last = again.records[1].validation
    assert last is not None

    def with_error(error: float) -> RunResult:
        return elsewhere(changed(again, 2, validation=last.model_copy(update={"error": error})))

    ours = agreement.compare(with_error(0.1), again, [with_error(error) for error in (0.1, 0.2, 0.3)])
    assert f"(at most {9.925 * 2**0.5 * 0.1:.2g})" in ours.text
    alike = [with_error(error) for error in (0.500, 0.501, 0.499)]
    assert last.error is not None and last.error > 0.6
    assert not agreement.compare(with_error(0.5), again, alike).holds


def test_of_a_long_run_the_records_that_were_kept_are_compared(computed: ResultFile) -> None:
    """A result file keeps some records of a long run; each is held against that of its own update."""
    again = smallest(computed).result
    kept = again.model_copy(update={"records": again.records[1:]})
    assert agreement.compare(kept, again, [kept]).text.startswith("updates: 1, ")
    assert not agreement.compare(kept, changed(again, 2, loss=0.5), [kept]).holds
    assert agreement.compare(kept, changed(again, 1, loss=0.5), [kept]).holds
