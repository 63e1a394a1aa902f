"""Live changes to norms that have parameters of their own: optimizer, average, saved states; and their settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_workload import TinyWorkload, course, tiny
from torch import nn

from accum_core import catalogue
from accum_core.engine import Training, building, checkpoints
from accum_core.errors import SettingError
from accum_core.records import Message, RunConfig
from experiments.cli import main

NORMS = catalogue.entries("norms")
ADDING = [kind for kind, constants in NORMS.items() if "ADDS" in constants]


class Script:
    """Controls that change the norm before some updates."""

    def __init__(self, changes: Mapping[int, Any]) -> None:
        self._changes = changes

    def take(self, next_update: int, wait: bool) -> list[Message]:
        value = self._changes.get(next_update)
        field = "norm" if isinstance(value, str) else "accumulation_steps"
        return [] if value is None else [Message.model_validate({"kind": "set", "field": field, "value": value})]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: TinyWorkload())


def own(training: Training) -> dict[str, torch.Tensor]:
    """A copy of the parameters that kinds add."""
    names = {name for constants in NORMS.values() for name in constants.get("ADDS", ())}
    found = training.model.named_parameters()
    return {name: p.detach().clone() for name, p in found if name.rpartition(".")[2] in names}


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw"}, {"average_decay": 0.5}], ids=str)
@pytest.mark.parametrize("kind", ADDING)
def test_parameters_that_come_with_a_live_change_are_trained(kind: str, settings: dict[str, Any]):
    training = Training(tiny(**settings))
    records = training.run(Script({4: kind}))
    for _ in range(3):
        next(records)
    assert own(training) == {}
    next(records)
    before = own(training)
    assert before
    next(records)
    assert all(not torch.equal(value, before[name]) for name, value in own(training).items())
    assert [record.norm for record in records] == [kind] * 5


@pytest.mark.parametrize("kind", ADDING)
def test_a_change_of_n_keeps_them(kind: str):
    """Gradients are exact, so the course is that of the run without the change, to rounding."""
    plain = [record.loss for record in Training(tiny(norm=kind)).run()]
    changed = [record.loss for record in Training(tiny(norm=kind)).run(Script({4: 2}))]
    assert changed == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("way", [{3: "evonorm_s0"}, {3: "evonorm_s0", 4: "filter_response"}, {2: "group", 4: "batch"}])
@pytest.mark.parametrize("start", ["group", "filter_response"])
def test_a_run_that_changed_to_or_from_them_resumes_bit_equal(
    tmp_path: Path, start: str, way: dict[int, str], optimizer: str
):
    """Saved after update 5, by then of another norm than it began with; momentum and average included."""
    config = tiny(norm=start, optimizer=optimizer, average_decay=0.9, validate_every=1)
    whole = Training(config)
    expected = list(whole.run(Script(way)))
    first = Training(config)
    records = first.run(Script(way))
    for _ in range(5):
        next(records)
    checkpoints.save(first.state_dict(), tmp_path / "state.pt")
    second = Training(config)
    second.load_state_dict(checkpoints.load(tmp_path / "state.pt"))
    assert course(list(second.run())) == course(expected[5:])
    final, resumed = whole.state_dict()["model"], second.state_dict()["model"]
    assert final.keys() == resumed.keys()
    assert all(torch.equal(final[name], resumed[name]) for name in final)


def test_a_refused_change_leaves_optimizer_and_model_alone():
    config = tiny(norm="batch", norm_groups=3, validate_every=1)
    plain, training = list(Training(config).run()), Training(config)
    records = list(training.run(Script({5: "evonorm_s0"})))
    assert "norm_groups = 3" in (records[4].changes[0].refused or "")
    assert own(training) == {}
    assert course(records, "changes", "instruments") == course(plain, "changes", "instruments")


class Updates:
    """What ``follow`` asks of an updater."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.average = optimizer, None


def test_the_optimizer_keeps_the_state_of_what_stays_and_drops_the_rest():
    config = tiny()
    model = nn.Sequential(nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8))
    updater: Any = Updates(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))

    def step(norm: str) -> bool:
        present = config.model_copy(update={"norm": norm})
        building.normalised(model, present, config.plan)
        changed = building.follow(updater, model, present, config.plan)
        model(torch.randn(2, 2, 4, 4)).square().sum().backward()
        updater.optimizer.step()
        return changed

    assert not step("batch")
    momentum = copy.deepcopy(updater.optimizer.state[model[0].weight]["momentum_buffer"])
    assert step("evonorm_s0")
    v = model[1].v
    assert updater.optimizer.param_groups[0]["params"] == list(model.parameters())
    assert v in updater.optimizer.state
    assert not torch.equal(updater.optimizer.state[model[0].weight]["momentum_buffer"], momentum)
    assert not step("evonorm_s0")
    assert model[1].v is v
    assert step("group")
    assert v not in updater.optimizer.state
    assert updater.optimizer.state.keys() == set(model.parameters())


# Settings.

FIELDS = [
    ("norm_channels_per_group", "--channels-per-group", None, 4, [0, 4097]),
    ("ghost_batch_size", "--ghost-batch", 2, 8, [0, 65537]),
    ("renorm_r_max", "--renorm-r-max", 3.0, 2.0, [0.5, 1001.0, float("nan")]),
    ("renorm_d_max", "--renorm-d-max", 5.0, 0.0, [-1.0, float("inf")]),
    ("renorm_warmup", "--renorm-warmup", 0, 100, [-1]),
]


@pytest.mark.parametrize(("field", "flag", "default", "value", "refused"), FIELDS)
def test_a_setting_has_a_default_bounds_and_an_option(
    field: str, flag: str, default: Any, value: Any, refused: list[Any], monkeypatch: pytest.MonkeyPatch
):
    seen: list[RunConfig] = []

    def training(config: RunConfig, device: str | None) -> None:
        seen.append(config)
        raise SettingError("norm", config.norm, "is enough")

    monkeypatch.setattr("accum_core.engine.Training", training)
    assert getattr(RunConfig.of(), field) == default
    for value_refused in refused:
        with pytest.raises(SettingError, match=f"^{field} = "):
            RunConfig.of(**{field: value_refused})
    assert main(["train", flag, str(value)]) == 2
    assert getattr(seen[0], field) == value


@pytest.mark.parametrize("kind", NORMS)
def test_every_option_of_a_norm_is_a_setting(kind: str):
    config = RunConfig.of(norm=kind)
    assert all(hasattr(config, field) for field in NORMS[kind].get("OPTIONS", {}).values())
