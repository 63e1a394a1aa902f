"""What a run of a card leaves behind: a result for whoever asks later, or a sentence that says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_runs import ROOT, wait_until

from accum_core import pitfalls
from accum_core.pitfalls import Card, Outcome, Output, ScriptError

CARD = pitfalls.load().card("s1")
RANKS = """
import os, signal
import torch.multiprocessing as mp
mp.start_processes(lambda rank: {what}, (), 1, start_method="fork")
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's results."""
    monkeypatch.setattr(pitfalls, "_newest", {})
    monkeypatch.setattr(pitfalls, "_failures", {})


def outcome() -> Outcome:
    return Outcome(Output((6.0,), ""), Output((4.0,), ""), time.monotonic())


def test_before_any_run_there_is_no_result() -> None:
    assert pitfalls.latest(CARD) is None


def test_a_run_that_is_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go = threading.Event(), threading.Event()
    runs: list[Outcome] = []

    def slow(card: Card, time_limit: float) -> Outcome:
        started.set()
        go.wait(60)
        runs.append(outcome())
        return runs[-1]

    monkeypatch.setattr(pitfalls, "_run", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pitfalls.run, CARD)
        started.wait(60)
        joined = pool.submit(pitfalls.latest, CARD)
        wait_until(joined.running)
        assert not joined.done()
        go.set()
        assert joined.result() is first.result()
    assert pitfalls.latest(CARD) is runs[0]
    assert len(runs) == 1


def test_a_failure_is_told_until_a_run_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(card: Card, time_limit: float) -> Outcome:
        raise ScriptError("stopped")

    monkeypatch.setattr(pitfalls, "_run", lambda card, time_limit: outcome())
    pitfalls.run(CARD)
    monkeypatch.setattr(pitfalls, "_run", fail)
    for ask in (pitfalls.run, pitfalls.latest, pitfalls.latest):
        with pytest.raises(ScriptError, match="^stopped$"):
            ask(CARD)
    monkeypatch.setattr(pitfalls, "_run", lambda card, time_limit: outcome())
    assert pitfalls.run(CARD) is pitfalls.latest(CARD)


def test_what_ended_a_script_says_what_to_do(tmp_path: Path) -> None:
    scripts = {
        RANKS.format(what="os.kill(os.getpid(), signal.SIGKILL)"): "terminated with signal SIGKILL); run it again.",
        RANKS.format(what="os._exit(3)"): "terminated with exit code 3); run it again.",
        RANKS.format(what="1 / 0"): "division by zero); run it again, and restore the data file if it fails too.",
        "{}['weight']": "(KeyError: 'weight'); run it again, and restore the data file if it fails too.",
    }
    paths = [tmp_path / f"{number}.py" for number in range(len(scripts))]
    for path, script in zip(paths, scripts, strict=True):
        path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "accum_core.pitfalls", *map(str, paths)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    for reply, end in zip(json.loads(done.stdout), scripts.values(), strict=True):
        with pytest.raises(ScriptError) as refusal:
            pitfalls._output(CARD, "wrong", reply)
        assert str(refusal.value).startswith("card = 's1': its wrong script failed (")
        assert str(refusal.value).endswith(end)
        assert "\n" not in str(refusal.value)
