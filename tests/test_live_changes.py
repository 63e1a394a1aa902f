"""Messages between updates, and going on from a saved state: what takes effect when, and what stays as it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_workload import TinyWorkload, course, tiny, weights
from torch import Tensor

from accum_core.engine import QueueControls, Training, checkpoints, train
from accum_core.errors import SettingError, StoreError
from accum_core.records import Change, Message, RunConfig, UpdateRecord

STOP, PAUSE, RESUME = (Message(kind=kind) for kind in ("stop", "pause", "resume"))  # type: ignore[arg-type]


def change(field: Any, value: Any) -> Message:
    return Message(kind="set", field=field, value=value)


class Script:
    """Controls that answer from a list a update: each call takes the next entry of that update, then nothing."""

    def __init__(self, messages: Mapping[int, Sequence[Sequence[Message]]]) -> None:
        self._left = {update: [list(entry) for entry in entries] for update, entries in messages.items()}
        self.calls: list[tuple[int, bool]] = []

    def take(self, next_update: int, wait: bool) -> Sequence[Message]:
        self.calls.append((next_update, wait))
        left = self._left.get(next_update, [])
        assert left or not wait, "paused for ever"
        return left.pop(0) if left else []


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: TinyWorkload())


def run(config: RunConfig, messages: Mapping[int, Sequence[Message]] = {}) -> list[UpdateRecord]:
    """A run with the given messages before the given updates."""
    return list(train(config, Script({update: [entry] for update, entry in messages.items()})))


def test_n_changes_at_the_next_update_and_is_recorded_there():
    """4 micro-batches of 2 become 2 of 4 from update 4 on; the gradient stays exact and so does the run."""
    plain, changed = run(tiny()), run(tiny(), {4: [change("accumulation_steps", 2)]})
    assert [r.accumulation_steps for r in changed] == [4] * 3 + [2] * 7
    assert [r.micro_batch_size for r in changed] == [2] * 3 + [4] * 7
    assert [r.samples for r in changed] == [r.samples for r in plain]
    assert [r.micro_batches for r in changed] == [4, 8, 12, 14, 16, 18, 20, 22, 24, 26]
    assert [r.changes for r in changed if r.changes] == [(Change(field="accumulation_steps", old=4, new=2),)]
    assert changed[3].changes
    assert [r.loss for r in changed] == pytest.approx([r.loss for r in plain], rel=1e-9)
    assert course(changed[:3]) == course(plain[:3])


def test_the_memory_is_measured_anew_after_a_change_of_split():
    records = run(
        tiny(), {3: [change("accumulation_steps", 2)], 6: [change("norm", "layer")], 8: [change("learning_rate", 1)]}
    )
    saved = {r.update: r.instruments["saved_bytes"] for r in records if "saved_bytes" in r.instruments}
    assert saved.keys() == {1, 3, 6}
    assert saved[3]["micro_batch"] > saved[1]["micro_batch"]
    assert saved[3]["full_batch"] == saved[1]["full_batch"]


def test_the_rate_changes_at_the_next_update_by_its_share_of_the_schedule():
    plain, changed = run(tiny()), run(tiny(), {5: [change("learning_rate", 0.02)]})
    factors = [b.learning_rate / a.learning_rate for a, b in zip(plain, changed, strict=True)]
    assert factors == pytest.approx([1] * 4 + [0.2] * 6, rel=1e-12)
    assert course(changed[:4]) == course(plain[:4])
    assert changed[4].changes == (Change(field="learning_rate", old=0.1, new=0.02),)
    assert changed[4].loss == plain[4].loss  # the loss of the window before its step
    assert changed[5].loss != plain[5].loss


@pytest.mark.parametrize("way", [("group", "batch"), ("batch", "layer"), ("group", "none")])
def test_a_change_of_norm_keeps_the_other_weights_and_goes_on_training_them(way: tuple[str, str]):
    """With a rate of nearly nothing the weights of before are there after it; at a real rate all of them go on."""
    for rate, moves in ((1e-12, False), (0.1, True)):
        training = Training(tiny(norm=way[0]))
        records = training.run(Script({6: [[change("norm", way[1]), change("learning_rate", rate)]]}))
        for _ in range(5):
            next(records)
        before = parameters(training)
        sixth = next(records)
        after = parameters(training)
        assert sixth.norm == way[1]
        assert sixth.changes[0] == Change(field="norm", old=way[0], new=way[1])
        assert before.keys() == after.keys()
        for name in before:
            assert torch.allclose(before[name], after[name], rtol=0, atol=1e-9) is not moves, name
        assert [r.norm for r in records] == [way[1]] * 4
        assert training.config.norm == way[1]


def parameters(training: Training) -> dict[str, Tensor]:
    """Weights without running statistics."""
    state = weights(training.state_dict())
    return {name: t for name, t in state.items() if "running" not in name and "tracked" not in name}


def test_several_changes_at_one_update_all_take_effect_in_their_order():
    records = run(tiny(), {2: [change("norm", "layer"), change("accumulation_steps", 8), change("norm", "none")]})
    assert [(c.field, c.old, c.new) for c in records[1].changes] == [
        ("norm", "group", "layer"),
        ("accumulation_steps", 4, 8),
        ("norm", "layer", "none"),
    ]
    assert (records[1].norm, records[1].accumulation_steps) == ("none", 8)


REFUSED = [
    ("batch", "accumulation_steps", 8, r"micro_batch_size = 1: .*pool\.2"),
    ("batch", "accumulation_steps", 3, r"accumulation_steps = 3: .*8"),
    ("batch", "norm", "instance", r"norm = 'instance': .*pool\.2"),
    ("batch", "norm", "bach", "norm = 'bach'"),
    ("group", "learning_rate", -1.0, r"learning_rate = -1\.0"),
    ("group", "norm", "instance", r"norm = 'instance': .*pool\.2"),
]


@pytest.mark.parametrize(("norm", "field", "value", "sentence"), REFUSED)
def test_a_refused_change_is_recorded_and_the_run_goes_on_as_if_it_had_not_been_asked(norm, field, value, sentence):
    """The same losses, weights and validations (so the same running statistics) as the run without the message."""
    config = tiny(norm=norm, validate_every=1)
    plain, refused = run(config), run(config, {5: [change(field, value)]})
    (entry,) = refused[4].changes
    assert (entry.field, entry.new) == (field, value)
    assert entry.refused is not None
    assert re.search(sentence, entry.refused)
    assert all(not r.changes for r in refused if r.update != 5)
    hidden = ("changes", "instruments")
    assert course(refused, *hidden) == course(plain, *hidden)


def test_a_group_count_that_the_network_cannot_take_is_refused_live():
    records = run(tiny(norm="batch", norm_groups=3), {3: [change("norm", "group")]})
    assert "norm_groups = 3" in (records[2].changes[0].refused or "")
    assert [r.norm for r in records] == ["batch"] * 10


# Pause, resume, stop.


def test_stop_ends_the_run_before_the_next_update():
    script = Script({4: [[change("learning_rate", 0.5), STOP]]})
    training = Training(tiny())
    assert [r.update for r in training.run(script)] == [1, 2, 3]
    assert training.update == 3


def test_a_paused_run_waits_and_then_goes_on_as_if_nothing_had_been():
    script = Script({3: [[PAUSE], [RESUME]]})
    records = list(train(tiny(), script))
    assert course(records) == course(run(tiny()))
    assert script.calls[:5] == [(1, False), (2, False), (3, False), (3, True), (4, False)]


def test_changes_made_while_paused_are_recorded_with_the_update_that_follows():
    script = Script({3: [[PAUSE], [change("learning_rate", 0.2)], [change("accumulation_steps", 1), RESUME]]})
    records = list(train(tiny(), script))
    assert [(c.field, c.new) for c in records[2].changes] == [("learning_rate", 0.2), ("accumulation_steps", 1)]
    assert [wait for update, wait in script.calls if update == 3] == [False, True, True]


def test_a_paused_run_can_be_stopped():
    assert [r.update for r in train(tiny(), Script({3: [[PAUSE], [STOP]]}))] == [1, 2]


def test_the_controls_of_one_process_work_across_threads():
    """Paused, the run waits for a message from another thread; what is sent before the start is taken first."""
    controls, found, waiting = QueueControls(), [], threading.Event()
    controls.send(PAUSE)
    controls.set("learning_rate", 0.2)

    def follow() -> None:
        waiting.set()
        found.extend(train(tiny(updates=4), controls))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert waiting.wait(60)
    thread.join(0.3)
    assert found == []
    assert thread.is_alive()
    controls.send(RESUME)
    thread.join(60)
    assert [r.update for r in found] == [1, 2, 3, 4]
    assert found[0].changes == (Change(field="learning_rate", old=0.1, new=0.2),)


# Going on from a saved state.


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(tmp_path: Path, norm: str, stop: int):
    """Saved within and at the end of an epoch of 3 windows, after live changes of rate and N; through a file."""
    config = tiny(norm=norm, precision="float32", validate_every=2, measure_every=2)
    messages = {2: [change("learning_rate", 0.05)], 3: [change("accumulation_steps", 2)]}
    whole = Training(config)
    expected = list(whole.run(Script({k: [m] for k, m in messages.items()})))
    first = Training(config)
    records = first.run(Script({k: [m] for k, m in messages.items()}))
    for _ in range(stop):
        next(records)
    checkpoints.save(first.state_dict(), tmp_path / "state.pt")
    second = Training(config)
    second.load_state_dict(checkpoints.load(tmp_path / "state.pt"))
    assert second.update == stop
    rest = list(second.run(Script({k: [m] for k, m in messages.items() if k > stop})))
    assert course(rest) == course(expected[stop:])
    final, resumed = weights(whole.state_dict()), weights(second.state_dict())
    assert all(torch.equal(final[name], resumed[name]) for name in final)


@pytest.mark.parametrize("way", [("batch", "group"), ("group", "batch")])
def test_a_run_whose_norm_was_changed_resumes_with_the_new_one(way: tuple[str, str]):
    config = tiny(norm=way[0], validate_every=1)
    expected = run(config, {3: [change("norm", way[1])]})
    first = Training(config)
    records = first.run(Script({3: [[change("norm", way[1])]]}))
    for _ in range(5):
        next(records)
    second = Training(config)
    second.load_state_dict(first.state_dict())
    assert second.config.norm == way[1]
    assert course(list(second.run())) == course(expected[5:])


def test_a_saved_state_is_not_moved_by_the_training_that_goes_on(tmp_path: Path):
    training = Training(tiny())
    records = training.run()
    next(records)
    checkpoints.save(training.state_dict(), tmp_path / "state.pt")
    expected = course([next(records)])
    resumed = Training(tiny())
    resumed.load_state_dict(checkpoints.load(tmp_path / "state.pt"))
    assert course([next(resumed.run())]) == expected


@pytest.mark.parametrize(("field", "value"), [("seed", 4), ("micro_batch_size", 4), ("learning_rate", 0.3)])
def test_the_state_of_another_configuration_is_refused_with_both_values(field: str, value: Any):
    """R48: another N (here another micro-batch) is not gone on with unnoticed."""
    saved = Training(tiny())
    next(saved.run())
    with pytest.raises(SettingError) as refusal:
        Training(tiny(**{field: value})).load_state_dict(saved.state_dict())
    assert refusal.value.field == field
    assert repr(value) in str(refusal.value)
    assert repr(getattr(tiny(), field)) in str(refusal.value)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A write that fails half way leaves the old file and nothing beside it."""
    path = tmp_path / "state.pt"
    checkpoints.save({"update": 1}, path)

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(OSError, match="space"):
            checkpoints.save({"update": 2}, path)
    assert checkpoints.load(path) == {"update": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


def test_a_damaged_or_missing_checkpoint_is_an_error_in_one_sentence(tmp_path: Path):
    path = tmp_path / "state.pt"
    with pytest.raises(StoreError, match=r"state\.pt"):
        checkpoints.load(path)
    checkpoints.save(Training(tiny()).state_dict(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StoreError, match=r"state\.pt"):
        checkpoints.load(path)
