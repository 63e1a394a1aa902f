"""The script on the page gives the losses of the engine's own loop, to the last bit."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accum_core.engine import train
from accum_core.engine.workloads import load
from accum_core.records import RunConfig, UpdateRecord, Validation
from accum_ui import recipe

ROOT = Path(__file__).parent.parent
SHORT = {"effective_batch_size": 8, "micro_batch_size": 2, "updates": 3, "warmup_updates": 2, "seed": 5}
GROUP = {**SHORT, "norm": "group"}


# The number of threads decides the order of a convolution's sums, so both sides take one.
pytestmark = pytest.mark.usefixtures("one_thread")


def printed(output: str) -> tuple[list[float], float]:
    losses = [float(loss) for loss in re.findall(r"^update \d+: loss (\S+)$", output, re.MULTILINE)]
    miou = re.search(r"^validation mIoU (\S+)$", output, re.MULTILINE)
    assert miou, output
    return losses, float(miou[1])


def recorded(records: list[UpdateRecord]) -> tuple[list[float], float]:
    assert records[-1].validation
    return [record.loss for record in records], records[-1].validation.miou


def execute(text: str) -> tuple[list[float], float]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(text, "recipe.py", "exec"), {"__name__": "__main__"})
    return printed(output.getvalue())


@pytest.fixture
def weights_for_miou(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the final weights and statistics in the place of the mIoU: quicker, and it sees every bit."""

    def validate(model: torch.nn.Module) -> Validation:
        total = sum(value.double().sum().item() for value in model.state_dict().values())
        return Validation(miou=total, pixel_accuracy=0.0, class_iou=(), loss=0.0)

    monkeypatch.setattr(load("landcover"), "validate", validate)


def test_script_runs_from_the_root_as_it_stands() -> None:
    config = RunConfig.of(**SHORT)
    done = subprocess.run(
        [sys.executable, "-"],
        input=recipe.source(config),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == recorded(list(train(config)))


@pytest.mark.parametrize(
    "settings",
    [
        {**GROUP, "norm_groups": 4, "model": "unet"},
        {**SHORT, "micro_batch_size": 8, "warmup_updates": 0},
        {**SHORT, "effective_batch_size": 32, "micro_batch_size": 32, "updates": 2, "warmup_updates": 1},
        {**GROUP, "precision": "float64"},
        {**SHORT, "norm": "none", "reduction": "sum_of_means", "learning_rate": 1e-3},
        {**SHORT, "norm": "batch_corrected"},
        {**SHORT, "norm": "sync_batch"},
        {**SHORT, "norm": "sync_batch", "offload": "recompute", "reduction": "mean_of_means"},
        {**SHORT, "norm": "sync_batch", "micro_batch_size": 8},
        {**SHORT, "norm": "batch_renorm", "learning_rate": 1e-3},
        {**SHORT, "norm": "ghost_batch", "micro_batch_size": 4},
        {**SHORT, "norm": "evonorm_s0"},
        {**GROUP, "scaling": "linear", "base_batch_size": 3, "warmup_updates": 2},
        {**SHORT, "reduction": "sum", "learning_rate": 1e-6},
    ],
    ids=str,
)
def test_script_gives_the_engines_losses(weights_for_miou: None, settings: dict[str, object]) -> None:
    config = RunConfig.of(**settings)
    assert execute(recipe.source(config)) == recorded(list(train(config)))


@pytest.mark.parametrize("reduction", ["exact", "mean_of_means"])
@pytest.mark.parametrize("tail", ["drop", "rescale", "divide_by_n"])
def test_script_treats_the_tail_as_the_engine_does(
    monkeypatch: pytest.MonkeyPatch, weights_for_miou: None, reduction: str, tail: str
) -> None:
    # 21 samples make two windows of 8 and a tail of 2 + 2 + 1; without the tail, update 3 begins the next epoch.
    monkeypatch.setattr(load("landcover"), "num_samples", 21)
    config = RunConfig.of(**{**GROUP, "updates": 4, "reduction": reduction, "tail": tail})
    records = list(train(config))
    assert records[2].micro_batches == (12 if tail == "drop" else 11)
    assert execute(recipe.source(config)) == recorded(records)


def test_script_of_norms_that_see_the_window_advances_its_passes_together() -> None:
    together, alone = (recipe.source(RunConfig.of(norm="sync_batch", micro_batch_size=micro)) for micro in (2, 32))
    assert "losses = in_step(model, [" in together and together.count(".backward()") == 1
    assert "in_step" not in alone and ".backward()  # adds to .grad" in alone


def test_script_fits_a_screen_and_holds_the_settings() -> None:
    text = recipe.source(RunConfig.of(norm="group", micro_batch_size=4))
    assert "EFFECTIVE, MICRO, N = 32, 4, 8" in text
    assert '"group", num_groups=8' in text
    assert max(map(len, text.splitlines())) <= 120
