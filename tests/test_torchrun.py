"""``torchrun -m experiments train``: the command that one process takes, over two, on the real data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "experiments"]
TRAIN = "train --effective 4 --micro 1 --norm group --precision float64 --seed 7 --threads 1".split()


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [*TORCHRUN, *TRAIN, *arguments]
    # A session of its own: what is sent to torchrun reaches the ranks through torchrun alone.
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_two_ranks_leave_the_json_of_one_process(tmp_path: Path, one_thread: None, capsys: pytest.CaptureFixture[str]):
    """The same losses, rates, validation and counters to 1e-10; one file, and the metrics printed once."""
    short = ["--updates", "2", "--clip-norm", "1", "--average-decay", "0.5"]
    over_ranks = start(*short, "--json", str(tmp_path / "two.json"))
    try:
        assert main([*TRAIN, *short, "--json", str(tmp_path / "one.json")]) == 0
        out, err = over_ranks.communicate(timeout=120)
    finally:
        over_ranks.kill()
    assert over_ranks.returncode == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"]
    assert out.count("miou") == 1 and err.count("0/2 [") == 1 and "Traceback" not in err
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one["config"] == two["config"]
    assert two["metrics"].pop("gradient_error") <= 1e-12 >= one["metrics"].pop("gradient_error")
    close(two["metrics"], one["metrics"])
    for mine, theirs in zip(two["records"], one["records"], strict=True):
        assert mine["accumulation_steps"] * 2 == theirs["accumulation_steps"] == 4
        for field in ("update", "epoch", "samples", "loss", "terms", "learning_rate", "gradient_norm", "incidents"):
            close(mine[field], theirs[field])
    last = [run["records"][-1]["validation"] for run in (two, one)]
    close(*({field: value for field, value in found.items() if field != "pictures"} for found in last))


def close(found: Any, expected: Any) -> None:
    """Equal to ten digits in every number, and equal in everything else."""
    texts = [json.dumps(value) for value in (found, expected)]
    found, expected = (json.loads(text, parse_float=lambda number: f"{float(number):.10e}") for text in texts)
    assert found == expected


def test_ctrl_c_to_torchrun_is_one_sentence_and_what_was_recorded_is_kept(tmp_path: Path):
    path = tmp_path / "run.json"
    process = start("--updates", "100000", "--json", str(path))
    try:
        assert process.stderr is not None
        seen = ""
        while "samples/s" not in seen:
            character = process.stderr.read(1)
            assert character, seen
            seen += character
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    records = json.loads(path.read_text())["records"]
    assert records and out.count("gradient_error") == 1
    told = f"Stopped after update {len(records)} of 100000; {path} holds what was recorded."
    assert errors.count(told) == 1 and "Another process" not in errors
    assert "accum_core" not in errors  # in no traceback
