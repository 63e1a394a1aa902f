"""Committed results: what is written is read back, what was changed is noticed, and the store takes each run once."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import made_results
import pytest
from full_disk import full_disk

import experiments
from accum_core import result_file
from accum_core.errors import DataError, SettingError
from accum_core.result_file import ResultFile, ResultHeader
from accum_core.runs.store import Store
from accum_ui import results

NAME = "segmentation_batch_size"


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results of its own, with the usual made-up one in it."""
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    path = experiments.result_path(NAME)
    made_results.usual().write(path)
    return path


def test_written_result_is_read_back_with_last_pictures_only(committed: Path) -> None:
    written, found = made_results.usual(), ResultFile.read(committed)
    assert found.model_dump(exclude={"runs"}) == written.model_dump(exclude={"runs"})
    assert [(run.label, run.seed, run.result.config) for run in found.runs] == [
        (run.label, run.seed, run.result.config) for run in written.runs
    ]
    for run, was in zip(found.runs, written.runs, strict=True):
        first, last = run.result.records
        assert first.validation and first.validation.pictures == ()
        assert last.validation and last.validation.pictures == ("late",)
        assert run.result.metrics == was.result.metrics
    assert [path.name for path in committed.parent.iterdir()] == [f"{NAME}.jsonl"]  # no temporary file is left


def test_opened_layers_are_kept_of_the_first_and_the_last_record(tmp_path: Path) -> None:
    """What the layers' distances are stays in every record; all else of a record stays as it was."""
    made = made_results.usual()
    layer = {"name": "stem", "mean_distance": 0.5, "opened": {"channels": [0]}}
    records = tuple(
        made_results.record(update, error=0.1).model_copy(
            update={"instruments": {"norm_statistics": {"sizes": [2, 2], "layers": [layer]}, "other": {"x": update}}}
        )
        for update in (1, 2, 3, 4)
    )
    run = made.runs[0]
    result = run.result.model_copy(update={"records": records})
    path = tmp_path / f"{NAME}.jsonl"
    made.model_copy(update={"seeds": (1,), "runs": (run.model_copy(update={"result": result}),)}).write(path)
    found = ResultFile.read(path).runs[0].result.records
    statistics = [record.instruments["norm_statistics"] for record in found]
    assert [entry["layers"][0]["opened"] is None for entry in statistics] == [False, True, True, False]
    assert [entry["layers"][0] | {"opened": layer["opened"]} for entry in statistics] == [layer] * 4
    assert [record.instruments["other"]["x"] for record in found] == [1, 2, 3, 4]


def test_a_long_run_keeps_some_records_and_all_that_hold_more(committed: Path, tmp_path: Path) -> None:
    """The store, where every update has a record, goes without such a run; its final numbers are those of all."""
    made = made_results.usual()
    run = made.runs[0]
    measured = {7: {"error": 0.25}, 600: {"miou": 0.5}, 997: {"miou": 0.75}}
    records = tuple(made_results.record(update, **measured.get(update, {})) for update in range(1, 1002))
    result = run.result.model_copy(update={"records": records})
    made.model_copy(update={"runs": (run.model_copy(update={"result": result}), *made.runs[1:])}).write(committed)
    found = ResultFile.read(committed).runs[0].result
    # 1001 records over 128: every eighth.
    expected = sorted({*range(8, 1001, 8), 7, 600, 997, 1001})
    assert [record.update for record in found.records] == expected
    assert found.metrics == result.metrics
    assert results.fill(Store(tmp_path / "runs.sqlite")) == len(made.runs) - 1


def test_line_ends_do_not_count(committed: Path) -> None:
    committed.write_bytes(committed.read_bytes().replace(b"\n", b"\r\n"))
    assert len(ResultFile.read(committed).runs) == 15


def test_header_is_the_file_without_its_runs(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = made_results.usual()
    monkeypatch.setattr(result_file, "_run", lambda line: pytest.fail("a run was parsed"))
    found = ResultHeader.read(committed)
    assert found.model_dump() == written.model_dump(exclude={"runs"})


def test_records_one_after_another_are_read_as_well(committed: Path) -> None:
    """The form of files that were written before records stood in columns, sealed as the module's docstring says."""
    found = ResultFile.read(committed)
    header = found.model_dump(mode="json", exclude={"runs"})
    body = "\n".join(run.model_dump_json() for run in found.runs)
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":"))
    header["sha256"] = hashlib.sha256(f"{canonical}\n{body}".encode()).hexdigest()
    committed.write_text(f"{json.dumps(header)}\n{body}\n")
    assert repr(ResultFile.read(committed)) == repr(found)


@pytest.mark.parametrize("reader", [ResultFile, ResultHeader])
@pytest.mark.parametrize("change", ["verdict", "number", "line lost", "line added", "lines exchanged"])
def test_changed_file_is_noticed(committed: Path, change: str, reader: type[ResultHeader]) -> None:
    lines = committed.read_text().splitlines()
    if change == "verdict":
        lines[0] = lines[0].replace('"supported"', '"refuted"', 1)
    elif change == "number":
        lines[1] = lines[1].replace('"miou":0.5', '"miou":0.6', 1)
    elif change == "line lost":
        lines.pop()
    elif change == "line added":
        lines.append(lines[-1])
    else:
        lines[1], lines[2] = lines[2], lines[1]
    assert lines != committed.read_text().splitlines()
    committed.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"^segmentation_batch_size\.jsonl: .*sha256.*restore the committed file"):
        reader.read(committed)


@pytest.mark.parametrize("content", ["", "[]\n", "{}\n", '"text"\n', "not json\n"])
def test_other_files_are_no_results(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"^other\.jsonl: is no result file"):
        ResultFile.read(path)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^absent\.jsonl: cannot be read .*run its experiment"):
        ResultFile.read(tmp_path / "absent.jsonl")


def test_result_of_another_version_is_told_from_a_damaged_one(committed: Path) -> None:
    strange = made_results.usual().model_copy(update={"preset": 7})
    with pytest.warns(UserWarning, match="serialized value"):
        strange.write(committed)
    with pytest.raises(DataError, match="another version of this project"):
        ResultFile.read(committed)


@pytest.mark.parametrize("reader", [ResultFile, ResultHeader])
def test_a_file_under_the_name_of_another_experiment_is_told(tmp_path: Path, reader: type[ResultHeader]) -> None:
    made_results.usual().write(path := tmp_path / "wu_he_2018_group_norm.jsonl")
    with pytest.raises(DataError, match=rf"^wu_he_2018_group_norm\.jsonl: holds the result of {NAME}; restore"):
        reader.read(path)


def test_a_file_whose_seeds_have_no_runs_is_no_result(committed: Path) -> None:
    """Sealed all the same; those who read the runs of a seed rely on them."""
    for seeds in ((), (1, 2, 3, 4), (1, 2)):
        made_results.usual().model_copy(update={"seeds": seeds}).write(committed)
        with pytest.raises(DataError, match="another version of this project"):
            ResultFile.read(committed)


def test_a_run_without_a_record_belongs_to_no_result() -> None:
    content = made_results.usual().model_dump()
    content["runs"][0]["result"]["records"] = ()
    with pytest.raises(ValueError, match="a run has no record"):
        ResultFile.model_validate(content)


def test_on_a_full_disk_the_file_stays_what_it_was_and_no_part_is_left(committed: Path) -> None:
    before = committed.read_bytes()
    with full_disk(1000), pytest.raises(OSError, match="File too large"):
        made_results.digits().write(committed)
    assert committed.read_bytes() == before
    assert list(committed.parent.iterdir()) == [committed]


def test_no_result_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    assert results.read(NAME) is None


def test_fill_takes_each_run_once(committed: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    assert results.fill(store) == results.fill(store) == 15
    runs = store.runs()
    assert len(runs) == 15
    assert {(run.state, run.source) for run in runs} == {("done", NAME)}
    config = made_results.usual().runs[0].result.config
    found = store.find(config)
    assert found is not None
    assert store.result(found.id).metrics["miou"] == 0.5


def test_fill_passes_over_a_damaged_file(committed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    committed.write_text(committed.read_text().replace("Made-up", "Other"))
    assert results.fill(Store(tmp_path / "runs.sqlite")) == 0
    assert "does not match its sha256" in caplog.text


def test_split_is_paired_by_seed() -> None:
    falls, stays = results.splits(results.rows(made_results.usual()))
    assert (falls.norm, falls.micro_batch_size, falls.accumulation_steps) == ("batch", 2, 4)
    # Differences 0.2, 0.3, 0.4: mean 0.3, s = 0.1; t(0.975; 2) = 4.303 in the tables of Student's distribution.
    half = 4.303 * 0.1 / 3**0.5
    assert (falls.loss.mean, falls.loss.low, falls.loss.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half), abs=1e-4)
    assert stays.norm == "group"
    assert stays.loss.mean == pytest.approx(0, abs=1e-12)
    assert (falls.gradient_error, stays.gradient_error) == (1.25, 2e-7)


def test_norm_that_was_not_split_is_left_out() -> None:
    made = made_results.result(
        {("batch", 8): (0.5, 0.5, 0.5), ("group", 8): (0.5, 0.5, 0.5), ("group", 2): (0.5, 0.5, 0.5)},
        errors={"batch": 0.0, "group": 0.0},
    )
    assert [split.norm for split in results.splits(results.rows(made))] == ["group"]


def test_run_without_a_measurement_is_refused_by_name() -> None:
    made = made_results.usual()
    first = made.runs[0]
    bare = first.result.model_copy(update={"records": first.result.records[:1]})
    broken = made.model_copy(update={"runs": (first.model_copy(update={"result": bare}),)})
    with pytest.raises(SettingError, match=r"batch_8.*without gradient_error"):
        results.rows(broken)


def test_csv_holds_every_run() -> None:
    made = made_results.usual()
    lines = list(csv.DictReader(io.StringIO(results.to_csv(results.rows(made)))))
    assert [(line["label"], int(line["seed"])) for line in lines] == [(run.label, run.seed) for run in made.runs]
    assert [float(line["miou"]) for line in lines] == [run.result.metrics["miou"] for run in made.runs]
    assert {line["code_version"] for line in lines} == {made_results.ENVIRONMENT.code_version}


def test_each_network_is_a_part_and_a_worse_error_a_loss() -> None:
    perceptron, convolutional = results.parts(results.rows(made_results.digits()))
    assert ({row.model for row in perceptron}, {row.model for row in convolutional}) == ({"mlp"}, {"conv"})
    (rises,), (stays,) = results.splits(perceptron), results.splits(convolutional)
    assert rises.loss.mean == pytest.approx(0.5)  # 0.4, 0.5, 0.6
    assert stays.loss.mean == 0
    assert rises.measure.title == "error"


def test_a_seed_that_ran_one_of_both_is_left_out_of_the_pairs() -> None:
    """BatchNorm loses 0.2, 0.3 and 0.4: without the whole batch of seed 3 the mean is 0.25."""
    table = [row for row in results.rows(made_results.usual()) if (row.label, row.seed) != ("batch_8", 3)]
    (lost,) = [split for split in results.splits(table) if split.norm == "batch"]
    assert lost.loss.mean == pytest.approx(0.25)


def test_csv_of_another_measure_has_its_column() -> None:
    lines = list(csv.DictReader(io.StringIO(results.to_csv(results.rows(made_results.digits())))))
    assert [float(line["error"]) for line in lines[:2]] == [0.1, 0.5]
    assert "miou" not in lines[0]


@pytest.mark.parametrize("path", sorted(experiments.RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_committed_results_are_whole(path: Path) -> None:
    found = ResultFile.read(path)
    experiment = experiments.find(path.stem)
    assert found.experiment == path.stem
    assert {verdict.id: verdict.statement for verdict in found.claims} == {c.id: c.statement for c in experiment.claims}
    by_seed = [{run.label: run.result for run in found.runs if run.seed == seed} for seed in found.seeds]
    for verdict, again in zip(found.claims, experiment.verdicts("bench", by_seed), strict=True):
        assert (verdict.id, verdict.verdict, verdict.num_seeds) == (again["id"], again["verdict"], again["num_seeds"])
        assert (verdict.effect, verdict.low, verdict.high) == pytest.approx(
            (again["effect"], again["low"], again["high"])
        )
