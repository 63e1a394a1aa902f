"""Frameworks that behave badly: each gives a row that says how, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributed as dist

from accum_core.conformance.results import Row
from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task
from accum_core.frameworks.harness import host, trial

Train = Callable[[Task], Outcome]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def right(task: Task) -> Outcome:
    return plain.sums_over_windows(task, task.model)


def undivided(task: Task) -> Outcome:
    """The plain sum over samples, where the case's windows hold 8."""
    optimizer = plain.optimizer(task)
    for batch in plain.loader(task):
        task.total(task.model(batch["inputs"]), batch["labels"]).backward()
    optimizer.step()
    return Outcome()


def row(monkeypatch: pytest.MonkeyPatch, train: Train, case: str = "equal", limit: float = 30, **has: Any) -> Row:
    """Of a framework's file that has this ``train``, and what else is given."""
    file = ModuleType("planted")
    file.__dict__.update({"NAME": "planted", "VERSION": "0", "train": train} | has)
    monkeypatch.setattr(trial, "framework", lambda _: file)
    (found,) = host.rows("planted", ["own"], [case], limit)
    return found


def test_a_right_loop_is_exact_and_needs_no_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(monkeypatch, right, MENDS={"equal": "Nothing."}, train_mended=undivided)
    assert (found.framework, found.version, found.kind, found.case) == ("planted", "0", "own", "equal")
    assert (found.verdict, found.mend, found.mended_error, found.mended_verdict) == ("exact", "", None, None)
    assert (found.updates, found.final_lr) == (1, 0.1)
    assert found.right is not None and (found.right.updates, found.right.final_lr) == (1, 0.1)


def test_one_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(task: Task) -> Outcome:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)
        return Outcome()

    found = row(monkeypatch, train, limit=3)
    assert (found.verdict, found.explanation) == ("refuses", "It did not end within 3 s and was stopped.")
    assert (found.gradient_error, found.updates, found.seconds) == (None, None, None)
    assert found.right is not None and found.right.updates == 1
    assert gone(int((tmp_path / "pid").read_text()))


def test_one_that_crashes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(monkeypatch, lambda _: os._exit(3))
    assert (found.verdict, found.explanation) == ("refuses", "Its process ended with exit code 3 and left nothing.")


def test_one_that_raises_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(task: Task) -> Outcome:
        raise ValueError("no loader\n  of this length")

    found = row(monkeypatch, train, EXPLANATIONS={"equal": "It wants a length."})
    assert found.verdict == "refuses"
    assert found.explanation == "It raised ValueError: no loader of this length. It wants a length."


def test_a_long_error_is_cut() -> None:
    told = trial.sentence(RuntimeError("x" * 1000))
    assert told == "It raised RuntimeError: " + "x" * 297 + "..."


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("inputs"), "It raised KeyError: 'inputs'."),
        (RuntimeError("Build it first."), "It raised RuntimeError: Build it first."),
        (AssertionError(), "It raised AssertionError."),
    ],
)
def test_an_error_is_a_sentence(error: Exception, told: str) -> None:
    assert trial.sentence(error) == told


def test_a_right_loop_may_have_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    has: dict[str, Any] = {"REMARKS": {"equal": "Slowly."}, "EXPLANATIONS": {"equal": "It is wrong."}}
    found = row(monkeypatch, right, **has)
    told = "It computed the large batch's gradient, and made its updates."
    assert (found.explanation, found.remark) == (told, "Slowly.")
    found = row(monkeypatch, undivided, **has)
    assert (found.explanation, found.remark) == ("It computed: sum. It is wrong.", "")


@pytest.mark.parametrize("ends", ["orderly", "never"])
def test_a_child_does_not_outlive_its_framework(ends: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(task: Task) -> Outcome:
        child = subprocess.Popen(SLEEP)
        (tmp_path / "pid").write_text(str(child.pid))
        if ends == "never":
            child.wait()
        return right(task)

    found = row(monkeypatch, train, limit=30 if ends == "orderly" else 3)
    assert found.verdict == ("exact" if ends == "orderly" else "refuses")
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether a process has ended; who collects it may take a moment."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("duties", "verdict"), [((), "wrong"), (("equal",), "user's duty"), (("own/equal",), "user's duty")]
)
def test_what_is_left_to_the_user_is_a_duty_where_the_mend_is_exact(
    duties: tuple[str, ...], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has: dict[str, Any] = {
        "MENDS": {"equal": "Divide."},
        "EXPLANATIONS": {"equal": "Nobody divides."},
        "DUTIES": duties,
    }
    found = row(monkeypatch, undivided, **has, train_mended=right)
    assert (found.verdict, found.mend, found.mended_verdict) == (verdict, "Divide.", "exact")
    assert found.gradient_error == pytest.approx(7)  # 8 times the mean
    assert found.mended_error is not None and found.mended_error <= 1e-10
    assert found.explanation == "It computed: sum. Nobody divides."


def test_a_mend_that_is_wrong_makes_no_duty(monkeypatch: pytest.MonkeyPatch) -> None:
    has: dict[str, Any] = {"MENDS": {"equal": "Hope."}, "DUTIES": ("equal",)}
    found = row(monkeypatch, undivided, **has, train_mended=undivided)
    assert (found.verdict, found.mended_verdict) == ("wrong", "wrong")


def test_a_mend_without_code_is_told_and_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(monkeypatch, undivided, MENDS={"equal": "Divide."}, DUTIES=("equal",))
    assert (found.verdict, found.mend, found.mended_verdict) == ("wrong", "Divide.", None)


def test_the_nearest_sentence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    near, kind, case = ("own/equal", "Near."), ("own/*", "Of the kind."), ("equal", "Of the case.")
    for sentences in ([near, kind, case], [kind, case], [case]):
        found = row(monkeypatch, undivided, MENDS=dict(sentences))
        assert found.mend == sentences[0][1]


def ranks(train: Train) -> Train:
    """With the process group that a framework sets up from torchrun's variables."""

    def on_ranks(task: Task) -> Outcome:
        dist.init_process_group("gloo")
        return train(task)

    return on_ranks


def test_two_ranks_share_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(task: Task) -> Outcome:
        return plain.sums_over_windows(task, torch.nn.parallel.DistributedDataParallel(task.model))

    found = row(monkeypatch, ranks(train), "two_ranks")
    assert (found.verdict, found.updates) == ("exact", 1)


def test_ranks_that_part_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each steps on its own gradient."""
    found = row(monkeypatch, ranks(right), "two_ranks")
    assert found.verdict == "wrong"
    assert "the ranks hold different weights at the end" in found.explanation


@pytest.mark.parametrize(
    ("fails", "explanation"),
    [
        ("raises", "It raised RuntimeError: rank 1 has no data."),
        ("crashes", "A rank ended with exit code 3 and left nothing."),
    ],
)
def test_a_rank_that_fails_ends_the_one_that_waits(
    fails: str, explanation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(task: Task) -> Outcome:
        if task.rank == 0:
            (tmp_path / "pid").write_text(str(os.getpid()))
        dist.init_process_group("gloo")  # which waits for both
        if task.rank == 0:
            time.sleep(600)
        if fails == "raises":
            raise RuntimeError("rank 1 has no data")
        os._exit(3)

    monkeypatch.setattr(trial, "GRACE", 1.0)
    found = row(monkeypatch, train, "two_ranks")
    assert (found.verdict, found.explanation) == ("refuses", explanation)
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_rank_that_crashes_when_the_other_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(task: Task) -> Outcome:
        if task.rank == 1:
            time.sleep(0.5)
            os._exit(3)
        return right(replace(task, settings=replace(task.settings, world_size=1)))

    found = row(monkeypatch, train, "two_ranks")
    assert (found.verdict, found.explanation) == ("refuses", "A rank ended with exit code 3 and left nothing.")
