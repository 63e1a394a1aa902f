"""A training left inside a window, saved, loaded and gone on with: every bit and record as without the stop.

Ids: R48 (resuming inside a window loses gradients; another N, effective batch or code goes unnoticed).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing_nets import DrawingTinyNet, same_draws
from small_runs import Script, set_message
from tiny_workload import TinyWorkload, Use, course, same, stand_in, tiny, weights

from accum_core.engine import Training, checkpoints
from accum_core.engine.snapshot import random_states
from accum_core.errors import SettingError
from accum_core.records import RunConfig


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    inner = stand_in(monkeypatch)

    def drawing(**settings: Any) -> TinyWorkload:
        workload = inner(**settings)
        workload.build_model = lambda name: DrawingTinyNet(0.3)  # type: ignore[method-assign]
        return workload

    drawing()
    return drawing


def inside(**settings: Any) -> RunConfig:
    """4 updates of 4 micro-batches; instruments at the first alone."""
    return tiny(**{"norm": "batch", "updates": 4, "measure_every": 100, "precision": "float32"} | settings)


def whole(config: RunConfig, controls: Any = None) -> tuple[list[str], dict[str, torch.Tensor]]:
    training = Training(config)
    return course(list(training.run(controls))), weights(training.state_dict())


def always() -> bool:
    return True


def at(places: set[int]) -> Callable[[], bool]:
    """Leaves when it is asked for the k-th time, for every k of ``places``."""
    asked = itertools.count(1)
    return lambda: next(asked) in places


def left(config: RunConfig, place: int = 1) -> Training:
    """A training left when it was asked for the k-th time."""
    training = Training(config)
    list(training.run(leave=at({place})))
    assert training.inside_window
    return training


@pytest.mark.parametrize("place", range(1, 10))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bfloat16", "average_decay": 0.9, "optimizer": "adamw", "clip_norm": 0.1},
        {"precision": "float16_autocast", "norm": "batch_corrected"},
    ],
)
def test_r48_left_at_any_micro_batch_and_gone_on_with(use: Use, tmp_path: Path, place: int, settings: dict[str, Any]):
    """R48: three places in each of updates 2, 3 and 4; dropout, NumPy's and Python's draws, running statistics."""
    config = inside(**settings)
    expected = whole(config)
    training, records = Training(config), []
    records += training.run(leave=at({place}))
    assert training.inside_window
    assert len(records) == training.update == 1 + (place - 1) // 3
    checkpoints.save(training.state_dict(), tmp_path / "inside")
    assert all(parameter.grad is None for parameter in training.model.parameters())
    torch.manual_seed(99)
    other = Training(config)
    other.load_state_dict(checkpoints.load(tmp_path / "inside"))
    assert other.inside_window
    records += other.run()
    assert not other.inside_window
    assert course(records) == expected[0]
    assert same(weights(other.state_dict()), expected[1])


@pytest.mark.parametrize("again", [True, False])
def test_r48_left_at_every_micro_batch(use: Use, tmp_path: Path, again: bool):
    """R48: by a new training each time, or by the same one, which is run again; every window's samples come once."""
    config = inside()
    workload = use()
    expected, order = whole(config), workload.windows
    workload = use()
    training, records, leaves = Training(config), [], 0
    while training.update < config.updates:
        records += training.run(leave=at({1}))
        if training.inside_window:
            leaves += 1
            if again:
                checkpoints.save(training.state_dict(), tmp_path / "inside")
                training = Training(config)
                training.load_state_dict(checkpoints.load(tmp_path / "inside"))
                # Loaded and saved again before anything is done, it is still the same state.
                assert training.state_dict()["place"] == checkpoints.load(tmp_path / "inside")["place"]
                checkpoints.save(training.state_dict(), tmp_path / "inside")
                training = Training(config)
                training.load_state_dict(checkpoints.load(tmp_path / "inside"))
    assert leaves == 9
    assert course(records) == expected[0]
    assert same(weights(training.state_dict()), expected[1])
    assert [key for key, _ in itertools.groupby(workload.windows)] == order


def test_a_state_inside_a_window_has_counted_none_of_its_samples(use: Use):
    """The place is the window's beginning, and so are the counters: 8 samples of update 1."""
    training = left(inside(), 2)
    state = training.state_dict()
    assert tuple(state["place"]) == (0, 8)
    assert state["updater"]["counts"] == [1, 8, 4, 0]


@pytest.mark.parametrize(
    ("settings", "field", "sizes"),
    [
        ({"micro_batch_size": 4}, "micro_batch_size", (4, 2)),
        ({"effective_batch_size": 16}, "effective_batch_size", (16, 8)),
        ({"seed": 7}, "seed", (7, 0)),
    ],
)
def test_r48_another_run_is_refused_with_both_values(use: Use, settings: Any, field: str, sizes: tuple[int, int]):
    """R48: another N, effective batch or seed; the training that refused is as it was."""
    state = left(inside()).state_dict()
    other = Training(inside(**settings))
    before = weights(other.state_dict())
    with pytest.raises(SettingError, match=rf"{field} = {sizes[0]}: .*\b{sizes[1]}\b"):
        other.load_state_dict(state)
    assert not other.inside_window
    assert same(weights(other.state_dict()), before)


def test_r48_another_code_version_is_refused_with_both(use: Use, monkeypatch: pytest.MonkeyPatch):
    state = left(inside()).state_dict()
    theirs = state["code_version"]
    monkeypatch.setattr(checkpoints, "code_version", lambda: "another")
    with pytest.raises(SettingError, match=f"code_version = 'another': .*{theirs}"):
        Training(inside()).load_state_dict(state)


@pytest.mark.parametrize(
    "settings",
    [
        {"measure_every": 1},
        {"micro_batch_size": 8},
        {"non_finite": "skip_micro_batch"},
        {"shrink_on_out_of_memory": True},
    ],
)
def test_a_window_that_may_not_be_left_is_finished_first(use: Use, settings: dict[str, Any]):
    """Instruments watch it, it has one micro-batch, or it may be begun again from its samples."""
    training = Training(inside(**settings))
    assert len(list(training.run(leave=always))) == 4
    assert not training.inside_window


def test_a_live_change_waits_for_the_end_of_the_window_that_was_left(use: Use):
    """N, norm and rate belong to a whole window: the change comes with the next one, as it does without the stop."""
    for field, value in (("accumulation_steps", 2), ("norm", "group"), ("learning_rate", 0.02)):
        expected = whole(inside(), Script((4, set_message(field, value))))
        training = left(inside(), 4)
        other = Training(inside())
        other.load_state_dict(training.state_dict())

        class Waiting:
            """The message lies there when the run is taken up again."""

            messages = [set_message(field, value)]  # noqa: RUF012

            def take(self, next_update: int, wait: bool) -> Any:
                taken, self.messages = self.messages, []
                return taken

        records = list(other.run(Waiting()))
        assert [len(record.changes) for record in records] == [0, 1]
        assert course(records) == expected[0][2:]
        assert same(weights(other.state_dict()), expected[1])


@pytest.mark.filterwarnings("ignore:a window before update")
def test_windows_without_a_label_stay_in_the_records(use: Use):
    """S5 and R48: two samples a window, most without labels; what was passed over is told once, stop or no stop."""
    config = inside(effective_batch_size=2, micro_batch_size=1, norm="group", warmup_updates=1, updates=6)
    use(num_samples=8, unlabelled=[0, 1, 2, 4, 6])
    expected = whole(config)
    assert any("no_valid_label" in text for text in expected[0])
    use(num_samples=8, unlabelled=[0, 1, 2, 4, 6])
    training, records, leaves = Training(config), [], 0
    while training.update < config.updates:
        records += training.run(leave=at({1}))
        leaves += training.inside_window
        state = training.state_dict()
        training = Training(config)
        training.load_state_dict(state)
    assert leaves
    assert course(records) == expected[0]
    assert same(weights(training.state_dict()), expected[1])


def test_an_error_while_leaving_is_asked_leaves_no_gradient(use: Use):
    def fail() -> bool:
        raise KeyError("disk")

    training = Training(inside(precision="bfloat16"))
    with pytest.raises(KeyError):
        list(training.run(leave=fail))
    assert all(p.grad is None and p.grad_dtype == torch.bfloat16 for p in training.model.parameters())
    assert not training.inside_window


@pytest.mark.parametrize("settings", [{}, {"average_decay": 0.5}])
def test_evaluation_between_two_micro_batches_changes_nothing(use: Use, settings: dict[str, Any]):
    """Modes, frozen layers, running statistics and random states, although the network draws numbers itself."""
    config = inside(**settings)
    expected = whole(config)
    training, asked = Training(config), []

    def look() -> bool:
        modes = [module.training for module in training.model.modules()]
        states = random_states()
        asked.append(training.validate())
        assert [module.training for module in training.model.modules()] == modes
        assert same_draws(random_states(), states)
        return False

    assert course(list(training.run(leave=look))) == expected[0]
    assert same(weights(training.state_dict()), expected[1])
    assert len(asked) == 9
