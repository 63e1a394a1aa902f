"""A fine-tuning that is killed, or stopped inside a window, goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_language import saved, sums, written

from accum_core.records import UpdateRecord
from experiments.cli import main

# What transformers warns of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parent.parent
UPDATES = 40


def command(folder: Path, out: Path) -> list[str]:
    sizes = ["--context", "48", "--effective", "8", "--micro", "2", "--updates", str(UPDATES), "--lr", "0.01"]
    more = ["--hold-out", "5", "--save-every", "3", "--threads", "1", "--lora", "4"]
    return [
        "finetune",
        "--model",
        str(folder / "gpt2"),
        "--data",
        str(folder / "s.jsonl"),
        "--out",
        str(out),
        *sizes,
        *more,
    ]


def course(out: Path) -> list[dict[str, Any]]:
    """The records without their times."""
    records = [UpdateRecord.model_validate_json(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [record.model_dump(exclude={"seconds", "samples_per_second"}) for record in records]


def started(folder: Path, out: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own, once it has made 4 updates."""
    program = [sys.executable, "-m", "experiments", *command(folder, out)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records, patience = out / "records.jsonl", time.monotonic() + 120
    while not records.exists() or records.read_bytes().count(b"\n") < 4:
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_was_ended_goes_on_to_the_same_bits(
    tmp_path: Path, ending: signal.Signals, one_thread: None
) -> None:
    # Dropout is drawn anew in every window, so it would show if a random state were lost.
    saved(tmp_path / "gpt2", "gpt2", resid_pdrop=0.1, embd_pdrop=0.1)
    written(tmp_path / "s.jsonl", sums(40))
    process = started(tmp_path, tmp_path / "ended")
    assert main(["finetune", "--resume", str(tmp_path / "ended")]) == 2  # another process's, as long as that lives
    process.send_signal(ending)
    code = process.wait(60)
    assert code == (-signal.SIGKILL if ending == signal.SIGKILL else 130)
    assert len(course(tmp_path / "ended")) < UPDATES
    assert not (tmp_path / "ended" / "model").exists()
    assert main(["finetune", "--resume", str(tmp_path / "ended")]) == 0
    assert main(command(tmp_path, tmp_path / "whole")) == 0
    assert course(tmp_path / "ended") == course(tmp_path / "whole")
    found, expected = (
        load_file(tmp_path / name / "model" / "adapter_model.safetensors") for name in ("ended", "whole")
    )
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in expected)
    settings = json.loads((tmp_path / "ended" / "settings.json").read_text())
    assert settings["updates"] == UPDATES and os.listdir(tmp_path / "ended" / "model")
