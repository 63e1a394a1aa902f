"""``train`` over several ranks: who prints and writes, and how all of them end, by one sentence and without a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("one_rank_command.py")


@dataclass(frozen=True)
class Ended:
    """How a scenario ended: exit codes, what each rank printed, the JSON that was written."""

    codes: list[int]
    out: list[str]
    err: list[str]
    written: Any

    @property
    def sentences(self) -> list[str]:
        """What was said on standard error, the bars aside."""
        lines = "\n".join(self.err).replace("\r", "\n").splitlines()
        return [line for line in lines if line.strip() and "update/s" not in line and "s/update" not in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every scenario, played once."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent.parent)}
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture
def ended(folder: Path, request: pytest.FixtureRequest) -> Ended:
    here = folder / request.param
    codes = json.loads((here / "codes.json").read_text())
    texts = [[(here / f"{rank}.{stream}").read_text() for rank in range(len(codes))] for stream in ("out", "err")]
    path = here / "run.json"
    return Ended(codes, *texts, json.loads(path.read_text()) if path.exists() else None)


def scenario(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ended", [name], indirect=True, ids=[name])


@scenario("trains")
def test_rank_0_alone_prints_shows_and_writes(ended: Ended):
    assert ended.codes == [0, 0]
    assert ended.out[0].count("miou") == 1 and ended.out[1] == ""
    assert "4/4" in ended.err[0] and ended.err[1] == ""
    assert ended.sentences == []
    assert [record["update"] for record in ended.written["records"]] == [1, 2, 3, 4]
    assert all(record["accumulation_steps"] == 4 for record in ended.written["records"])  # 8 = 1 x 4 x 2 ranks


@scenario("trains")
def test_each_rank_has_its_share_of_the_cores(ended: Ended):
    assert ended.written["environment"]["threads"] == 4  # 8 cores, 2 ranks


@scenario("threads")
def test_or_the_threads_that_were_asked_for(ended: Ended):
    assert ended.written["environment"]["threads"] == 3


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ("option", ["--updates", "'ten'", "--help"]),
        ("value", ["--micro = 3", "use one of 1, 2, 4, 8"]),
        ("world", ["--effective = 6", "among 4 ranks"]),
    ],
    indirect=["ended"],
)
def test_what_all_ranks_refuse_is_said_once(ended: Ended, told: list[str]):
    assert set(ended.codes) == {2}
    assert len(ended.sentences) == 1
    assert all(part in ended.sentences[0] for part in told)
    assert ended.out == [""] * len(ended.codes)
    assert ended.written is None


@scenario("whole")
def test_a_run_without_a_split_stays_without_one(ended: Ended):
    """The effective batch is that of all ranks: 8 in one pass are 2 on each of four."""
    assert ended.codes == [0] * 4
    split = {(record["micro_batch_size"], record["accumulation_steps"]) for record in ended.written["records"]}
    assert split == {(2, 1)}


@scenario("not_finite")
def test_a_loss_that_is_not_finite_ends_all_ranks_by_one_sentence(ended: Ended):
    assert ended.codes == [1] * 4
    assert len(ended.sentences) == 1
    assert "at update 3" in ended.sentences[0] and "--lr" in ended.sentences[0]
    assert [record["update"] for record in ended.written["records"]] == [1, 2]


@scenario("skipped")
def test_incidents_are_told_as_they_come_and_recorded(ended: Ended):
    assert ended.codes == [0] * 4
    (told,) = ended.sentences
    assert told.startswith("update 3: 1 micro-batch")
    incidents = [[incident["text"] for incident in record["incidents"]] for record in ended.written["records"]]
    assert incidents == [[], [], [told.removeprefix("update 3: ")], []]


@scenario("one_fails")
def test_what_one_rank_alone_fails_by_is_said_and_ends_the_others(ended: Ended):
    assert ended.codes == [1, 1]
    assert ended.sentences == ["The moon is full: wait for another one."]
    assert [record["update"] for record in ended.written["records"]] == [1, 2]


@scenario("one_dies")
def test_a_rank_that_is_killed_ends_the_others_by_a_sentence(ended: Ended):
    assert ended.codes == [1, -9, 1, 1]
    assert ended.sentences == ["Another process of this training ended: this one stopped too; start all of them again."]
    assert [record["update"] for record in ended.written["records"]] == [1, 2]


@scenario("stopped")
def test_rank_0_writes_what_was_recorded_before_it_is_stopped(ended: Ended):
    """As torchrun stops it when another rank has ended; the other is lost here, and has nothing to add."""
    assert ended.codes == [130, 1]
    assert len(ended.sentences) == 1
    assert ended.sentences[0].startswith("Stopped after update 2 of 4; ")
    assert [record["update"] for record in ended.written["records"]] == [1, 2]


@scenario("interrupted")
def test_ctrl_c_is_one_sentence_and_what_was_recorded_is_kept(ended: Ended):
    assert ended.codes == [130, 130]
    assert len(ended.sentences) == 1
    assert ended.sentences[0].startswith("Stopped after update 2 of 4; ")
    assert [record["update"] for record in ended.written["records"]] == [1, 2]
