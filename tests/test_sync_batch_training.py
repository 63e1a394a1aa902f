"""A training with ``sync_batch`` at any N is the training with BatchNorm at N = 1: losses, stops and changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Script, set_message
from tiny_workload import TinyWorkload, Use, course, same, stand_in, tiny, weights
from torch import Tensor

from accum_core.engine import Training, checkpoints
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import SettingError
from accum_core.records import RunConfig, UpdateRecord

PLACES = ("none", "host", "recompute")

pytestmark = pytest.mark.usefixtures("moving")


@pytest.fixture(autouse=True)
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def finish(config: RunConfig, controls: Any = None) -> tuple[list[UpdateRecord], dict[str, Tensor]]:
    training = Training(config)
    return list(training.run(controls)), weights(training.state_dict())


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max(float((found[name].double() - expected[name].double()).abs().max()) for name in expected)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("micro", [1, 2])
def test_losses_and_weights_are_those_of_the_undivided_batch(place: str, micro: int):
    """Over ten updates, the running statistics and the validation by them included."""
    whole, final = finish(tiny(norm="batch", micro_batch_size=8))
    own, of_own = finish(tiny(norm="sync_batch", micro_batch_size=micro, offload=place))
    assert [record.loss for record in own] == pytest.approx([record.loss for record in whole], rel=1e-9)
    assert apart(of_own, final) <= 1e-9
    assert [(record.accumulation_steps, record.micro_batches) for record in own] == [
        (8 // micro, 8 // micro * record.update) for record in whole
    ]
    for mine, theirs in zip(own, whole, strict=True):
        assert (mine.validation is None) == (theirs.validation is None)
        if mine.validation is not None and theirs.validation is not None:
            assert mine.validation.loss == pytest.approx(theirs.validation.loss, rel=1e-9)
    assert own[0].instruments["gradient_error"]["relative_error"] <= 1e-12


@pytest.mark.parametrize(
    "settings", [{"activation_checkpointing": True}, {"reduction": "mean_of_means"}, {"tail": "rescale"}]
)
def test_with_other_settings(settings: dict[str, Any]):
    """Every sample has as many labels as any other, so a mean of means is the mean."""
    whole, final = finish(tiny(norm="batch", micro_batch_size=8, **{**settings, "reduction": "exact"}))
    own, of_own = finish(tiny(norm="sync_batch", micro_batch_size=2, **settings))
    assert [record.loss for record in own] == pytest.approx([record.loss for record in whole], rel=1e-9)
    assert apart(of_own, final) <= 1e-9


@pytest.mark.parametrize("place", PLACES)
def test_dropout_is_drawn_alike_wherever_the_work_is_kept(use: Use, place: str):
    use(dropout=0.3)
    config = {"norm": "sync_batch", "updates": 4, "precision": "float32"}
    records, final = finish(tiny(**config, offload=place))
    again, of_again = finish(tiny(**config, offload="none"))
    assert [record.loss for record in records] == [record.loss for record in again]
    assert same(final, of_again)


@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(use: Use, tmp_path: Path, stop: int):
    use(dropout=0.3)
    config = tiny(norm="sync_batch", precision="float32", updates=5, measure_every=2)
    expected, final = finish(config)
    first = Training(config)
    list(itertools.islice(first.run(), stop))
    checkpoints.save(first.state_dict(), tmp_path / "state")
    second = Training(config)
    second.load_state_dict(checkpoints.load(tmp_path / "state"))
    assert course(list(second.run())) == course(expected[stop:])
    assert same(weights(second.state_dict()), final)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_run_left_inside_of_a_window_goes_on_bit_equal(use: Use, tmp_path: Path, place: int):
    """The passes of a window are one: it is left after all of them and before its step, or not at all."""
    use(dropout=0.3)
    config = tiny(norm="sync_batch", precision="float32", updates=4, measure_every=100)
    expected, final = finish(config)
    asked = itertools.count(1)
    training = Training(config)
    records = list(training.run(leave=lambda: next(asked) == place))
    assert training.inside_window and len(records) == place
    checkpoints.save(training.state_dict(), tmp_path / "inside")
    torch.manual_seed(99)
    other = Training(config)
    other.load_state_dict(checkpoints.load(tmp_path / "inside"))
    records += other.run()
    assert course(records) == course(expected)
    assert same(weights(other.state_dict()), final)


class Limited(CrossEntropy):
    """Memory for ``most`` samples at once, found out in the backward pass or in the forward pass."""

    def __init__(self, most: int, late: bool):
        super().__init__()
        self.most, self.late = most, late

    def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        total = super().sums(model, inputs, targets)["cross_entropy"]
        if len(inputs) > self.most and torch.is_grad_enabled() and model.training:
            if not self.late:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            total.register_hook(self.fail)
        return {"cross_entropy": total}

    def fail(self, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("micro", [8, 4])
def test_too_small_a_memory_halves_the_micro_batch_and_changes_nothing_else(
    use: Use, monkeypatch: pytest.MonkeyPatch, late: bool, micro: int
):
    """Records and weights of the run that began so, to the bit: statistics and random state are put back first."""
    monkeypatch.setattr("accum_core.engine.training.load_instruments", dict)
    use(dropout=0.3)
    settings = {"norm": "sync_batch", "updates": 4, "validate_every": 4}
    expected, final = finish(tiny(micro_batch_size=2, **settings))
    workload: TinyWorkload = use(dropout=0.3)
    workload.objective = Limited(2, late)
    records, of_records = finish(tiny(micro_batch_size=micro, shrink_on_out_of_memory=True, **settings))
    assert course(records, "incidents") == course(expected, "incidents")
    assert same(of_records, final)
    assert f"micro-batch {micro} → 2, N {8 // micro} → 4" in records[0].incidents[0].text


def test_a_live_change_from_batch_to_sync_batch_to_group():
    """From the change on it trains as the undivided batch would; running statistics go along."""
    sync, parts = (4, set_message("norm", "sync_batch")), (4, set_message("accumulation_steps", 4))
    group = (8, set_message("norm", "group"))
    records, final = finish(tiny(norm="batch", micro_batch_size=8), Script(group))
    own, of_own = finish(tiny(norm="batch", micro_batch_size=8), Script(sync, parts, group))
    assert [record.norm for record in own] == ["batch"] * 3 + ["sync_batch"] * 4 + ["group"] * 3
    assert [record.accumulation_steps for record in own] == [1] * 3 + [4] * 7
    assert [record.loss for record in own] == pytest.approx([record.loss for record in records], rel=1e-9)
    assert apart(of_own, final) <= 1e-9


def test_a_bad_micro_batch_cannot_be_taken_out():
    with pytest.raises(SettingError, match="skip_window"):
        tiny(norm="sync_batch", non_finite="skip_micro_batch")
    change = Script((3, set_message("norm", "sync_batch")))
    records, _ = finish(tiny(norm="batch", non_finite="skip_micro_batch"), change)
    assert [record.norm for record in records] == ["batch"] * 10
    assert "skip_window" in str(records[2].changes[0].refused)


def test_a_window_that_is_not_finite_is_skipped_and_leaves_no_trace(use: Use):
    use(poisoned=[5])
    records, final = finish(tiny(norm="sync_batch", non_finite="skip_window"))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in final.values())
    assert {incident.kind for record in records for incident in record.incidents} == {"non_finite"}
