"""Rate multipliers, parameters without weight decay and Nesterov's momentum: what each parameter's step is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_workload import TinyNet, TinyWorkload, course, tiny
from torch import nn

from accum_core.engine import Training, building, checkpoints
from accum_core.engine.parameter_groups import parameter_groups
from accum_core.errors import SettingError
from accum_core.records import Message, RunConfig

RATE, DECAY = 0.1, 0.5
PLAIN = {"learning_rate": RATE, "weight_decay": DECAY, "momentum": 0.0, "warmup_updates": 0, "schedule": "constant"}


def stepped(model: nn.Module, gradient: float, steps: int = 1, **settings: Any) -> dict[str, float]:
    """What becomes of parameters that are all 1, under a constant gradient; parameter -> its (one) value."""
    config = tiny(**PLAIN | settings)
    updater, _ = building.updater(config, model, torch.device("cpu"))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        updater.optimizer.step()
    assert all(len(p.unique()) == 1 for p in model.parameters())
    return {name: p.flatten()[0].item() for name, p in model.named_parameters()}


class Net(nn.Module):
    """A layer, two norms (one of them torch's own LayerNorm) and a head of two layers."""

    def __init__(self, rate_multipliers: Mapping[str, float]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.LayerNorm(4))
        self.head = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 1))
        self.rate_multipliers = rate_multipliers


NORMS = {"stem.1.weight", "stem.1.bias", "stem.2.weight", "stem.2.bias"}
BIASES = {"stem.0.bias", "head.0.bias", "head.1.bias"}


@pytest.mark.parametrize(
    ("spares", "spared"),
    [("nothing", set()), ("norms", NORMS), ("norms_and_biases", NORMS | BIASES)],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_spares_what_it_says(spares: str, spared: set[str], optimizer: str):
    """Without a gradient a step multiplies by 1 - rate x decay, with either optimizer."""
    after = stepped(Net({}), 0.0, weight_decay_spares=spares, optimizer=optimizer)
    expected = {name: 1.0 if name in spared else 1 - RATE * DECAY for name in after}
    assert after == pytest.approx(expected)


def test_the_parameters_that_a_norm_adds_are_a_norms():
    model = building.normalised(Net({}), config := tiny(norm="evonorm_s0", norm_groups=4), config.plan)
    after = stepped(model, 0.0, weight_decay_spares="norms")
    assert after["stem.1.v"] == 1.0


def test_the_longest_name_decides_a_parameters_rate():
    after = stepped(Net({"head": 10.0, "head.1": 2.0, "stem.0.bias": 3.0}), 1.0, weight_decay=0.0)
    factors = {"head.0.weight": 10, "head.0.bias": 10, "head.1.weight": 2, "head.1.bias": 2, "stem.0.bias": 3}
    assert after == pytest.approx({name: 1 - RATE * factors.get(name, 1) for name in after})


def test_a_multiplied_rate_decays_by_the_multiplied_rate():
    """As with torch's own groups: w <- w - rate x factor x decay x w."""
    after = stepped(Net({"head": 10.0}), 0.0)
    assert after["head.0.weight"] == pytest.approx(1 - 10 * RATE * DECAY)


@pytest.mark.parametrize("multipliers", [{"tail": 10.0}, {"hea": 10.0}, {"head": 0.0}], ids=str)
def test_a_name_that_is_none_and_a_factor_that_stops_are_refused(multipliers: dict[str, float]):
    with pytest.raises(SettingError, match=r"rate_multipliers = .* module or parameter"):
        parameter_groups(Net(multipliers), tiny())


def test_without_names_and_setting_there_is_one_group_in_the_models_order():
    model = Net({})
    (group,) = parameter_groups(model, tiny())
    assert list(map(id, group["params"])) == list(map(id, model.parameters()))


def test_nesterov_looks_ahead():
    """v <- mu v + g, w <- w - rate (g + mu v): by hand, for a constant gradient of 1, v is 1, 1.9 and 2.71."""
    settings: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.9}
    plain = stepped(Net({}), 1.0, 3, **settings)
    ahead = stepped(Net({}), 1.0, 3, **settings, nesterov=True)
    assert plain["stem.0.weight"] == pytest.approx(1 - RATE * (1 + 1.9 + 2.71))
    assert ahead["stem.0.weight"] == pytest.approx(1 - RATE * (3 + 0.9 * (1 + 1.9 + 2.71)))


@pytest.mark.parametrize("settings", [{"optimizer": "adamw"}, {"momentum": 0.0}], ids=str)
def test_nesterov_needs_sgds_momentum(settings: dict[str, Any]):
    with pytest.raises(SettingError, match="nesterov = True: is a form of sgd's momentum"):
        RunConfig.of(nesterov=True, **settings)


# Live changes.


class Multiplied(TinyNet):
    """Its head learns ten times as fast."""

    rate_multipliers: Mapping[str, float] = {"head": 10.0}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: TinyWorkload())
    monkeypatch.setattr(TinyWorkload, "build_model", lambda self, name: Multiplied())


class Script:
    """Controls that change a field before some updates."""

    def __init__(self, field: str, changes: Mapping[int, Any]) -> None:
        self._field, self._changes = field, changes

    def take(self, next_update: int, wait: bool) -> list[Message]:
        value = self._changes.get(next_update)
        told = {"kind": "set", "field": self._field, "value": value}
        return [] if value is None else [Message.model_validate(told)]


def groups(training: Training) -> list[dict[str, Any]]:
    return training._updater.optimizer.param_groups


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("way", [{3: "evonorm_s0", 4: "filter_response"}, {2: "none", 4: "batch"}, {3: "evonorm_s0"}])
def test_a_run_of_several_groups_changes_its_norm_and_resumes_bit_equal(
    tmp_path: Path, way: dict[int, str], optimizer: str
):
    config = tiny(optimizer=optimizer, weight_decay_spares="norms", weight_decay=0.01, validate_every=1)
    whole = Training(config)
    expected = list(whole.run(Script("norm", way)))
    assert [len(group["params"]) for group in groups(whole)][2:] == [2, 0]
    assert {id(p) for group in groups(whole) for p in group["params"]} == set(map(id, whole.model.parameters()))
    first = Training(config)
    records = first.run(Script("norm", way))
    for _ in range(5):
        next(records)
    checkpoints.save(first.state_dict(), tmp_path / "state.pt")
    second = Training(config)
    second.load_state_dict(checkpoints.load(tmp_path / "state.pt"))
    assert course(list(second.run())) == course(expected[5:])
    assert [group["weight_decay"] for group in groups(second)] == [0.01, 0.0, 0.01, 0.0]


@pytest.mark.usefixtures("_tiny")
def test_the_proportion_of_rates_outlives_schedule_warm_up_and_live_change():
    training = Training(tiny(weight_decay_spares="norms"))
    for record in training.run(Script("learning_rate", {4: 0.02})):
        if record.update < training.config.updates:
            rates = [group["lr"] for group in groups(training)]
            assert rates == pytest.approx([rates[0], rates[0], 10 * rates[0], 10 * rates[0]])
    assert record.learning_rate < 0.02
