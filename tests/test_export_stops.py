"""An export ends as the run does where there is nothing to train by: no finite gradient, no full window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bad_windows import Explosion
from exported import execute
from torch import Tensor, nn

from accum_core.engine import train, training
from accum_core.engine.workloads import load
from accum_core.errors import NonFiniteLossError, SettingError
from accum_core.export import Form, departures, facts, source
from accum_core.records import RunConfig

SCRIPTS: tuple[Form, ...] = ("script", "trainer", "lightning", "accelerate")
DIGITS = {
    "workload": "digits", "model": "mlp", "norm": "group", "effective_batch_size": 8, "micro_batch_size": 2,
    "updates": 2, "warmup_updates": 1,
}  # fmt: skip
GROWING = {"updates": 3, "schedule": "step", "milestones": (1, 2), "decay": "batch", "decay_factor": 0.5}

pytestmark = [
    pytest.mark.usefixtures("one_thread", "offline"),
    # Advice and deprecations of the frameworks' own, on loaders without workers and a CPU among others.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, where a framework may leave one of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Explosive(nn.Module):
    """A network whose loss is finite and whose gradient is not."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = Explosion.apply(self.network(inputs))
        return outputs


@pytest.mark.parametrize("form", SCRIPTS)
@pytest.mark.parametrize("reduction", ["exact", "sum"])
def test_a_gradient_that_is_not_finite_is_not_stepped_by(
    monkeypatch: pytest.MonkeyPatch, form: Form, reduction: str
) -> None:
    digits = load("digits")
    build = digits.build_model
    monkeypatch.setattr(digits, "build_model", lambda name: Explosive(build(name)))
    config = RunConfig.of(**DIGITS, reduction=reduction, clip_norm=1.0)
    with pytest.raises(NonFiniteLossError) as refusal:
        list(train(config))
    assert (refusal.value.quantity, refusal.value.update) == ("gradient norm", 1)
    with pytest.raises(SystemExit, match=r"^gradient norm = (inf|nan) at update 1: "):
        execute(source(form, config))


@pytest.mark.parametrize("form", SCRIPTS)
def test_a_loss_that_is_not_finite_is_not_stepped_by(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    digits = load("digits")
    monkeypatch.setattr(digits, "_images", torch.full_like(digits.samples(range(digits.num_samples))[0], torch.nan))
    with pytest.raises(SystemExit, match=r"^(loss|gradient norm) = nan at update 1: "):
        execute(source(form, RunConfig.of(**DIGITS)))


def test_a_script_leaves_out_as_many_windows_in_a_row_as_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    monkeypatch.setattr(digits, "_images", torch.full_like(digits.samples(range(digits.num_samples))[0], torch.nan))
    config = RunConfig.of(**DIGITS, non_finite="skip_window")
    with pytest.raises(NonFiniteLossError):
        list(train(config))
    with pytest.raises(SystemExit, match=r"^30 windows in a row are not finite at update 1: "):
        execute(source("script", config))
    assert facts.MOST_SKIPS == training.MOST_SKIPS == 30


@pytest.mark.parametrize("form", SCRIPTS)
def test_an_effective_batch_above_the_data_is_refused(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    monkeypatch.setattr(load("digits"), "num_samples", 7)
    config = RunConfig.of(**DIGITS)
    with pytest.raises(SettingError, match="is more than the 7 training samples"):
        list(train(config))
    with pytest.raises(SystemExit, match=r"^EFFECTIVE = 8 is more than the 7 training samples: use fewer\.$"):
        execute(source(form, config))


def test_a_batch_that_grows_above_the_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("digits"), "num_samples", 31)
    config = RunConfig.of(**DIGITS | GROWING)
    with pytest.raises(SettingError, match="is more than the 31 training samples"):
        list(train(config))
    with pytest.raises(SystemExit, match=r"^EFFECTIVE \* 4 = 32 is more than the 31 training samples"):
        execute(source("script", config))


@pytest.mark.parametrize("tail", ["rescale", "divide_by_n"])
def test_a_tail_that_is_kept_is_trained_on_however_short(monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    monkeypatch.setattr(load("digits"), "num_samples", 7)
    settings: dict[str, Any] = {**DIGITS, "tail": tail}
    _, output = execute(source("script", RunConfig.of(**settings)))
    assert output.count("update ") == 2


def test_a_policy_that_a_form_does_not_keep_is_told() -> None:
    skipping = {form: departures(form, RunConfig.of(**DIGITS, non_finite="skip_window")) for form in SCRIPTS}
    assert {form for form, told in skipping.items() if any("non_finite" in one for one in told)} == {*SCRIPTS[1:]}
    half = RunConfig.of(**DIGITS, precision="float16_autocast")
    assert any("the Trainer skips a window" in sentence for sentence in departures("trainer", half))
