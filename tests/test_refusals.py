"""What the engine refuses, each in one sentence: settings, objectives and states that would go wrong in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_nets import Product, ProductLoss, dense, product_batches
from torch import nn
from torch.nn import functional as F

from accum_core.batching import BatchPlan
from accum_core.engine import (
    Contrastive,
    CrossEntropy,
    LossReduction,
    Training,
    Updater,
    accumulate_gradients,
    reference_gradient,
)
from accum_core.engine.precision import Precision
from accum_core.engine.window import Accumulation
from accum_core.errors import NonFiniteLossError, SettingError
from accum_core.records import RunConfig

SAMPLES = product_batches([1.0], [2.0], [3.0])


def updater(**settings: Any) -> Updater:
    model = settings.pop("model", None) or Product(0.5)
    return Updater(model, torch.optim.SGD(model.parameters(), 0.1), **settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"clip_norm": -1.0}, "clip_norm = -1.0: must be above 0"),
        ({"clip_value": 0.0}, "clip_value = 0.0: must be above 0"),
        ({"clip_norm": float("nan")}, "clip_norm = nan: must be above 0"),
        ({"non_finite": "bogus"}, "non_finite = 'bogus': use one of stop, skip_micro_batch, skip_window"),
        ({"model": nn.Linear(1, 1).half(), "scaler": torch.amp.GradScaler("cpu")}, "needs float32 parameters"),
    ],
)
def test_an_updater_that_would_go_wrong(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        updater(**settings)


def test_optimizers_and_schedules_that_do_not_step_once_an_update() -> None:
    model = Product()
    with pytest.raises(SettingError, match="optimizer = 'LBFGS': makes passes of its own"):
        Updater(model, torch.optim.LBFGS(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plateau: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(SettingError, match="scheduler = 'ReduceLROnPlateau': steps by a measure of quality"):
        Updater(model, optimizer, scheduler=plateau)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: accumulate_gradients(Product(), iter(SAMPLES), ProductLoss()), "has no length; cut it into windows"),
        (
            lambda: accumulate_gradients(dense(), SAMPLES, F.cross_entropy),
            "'cross_entropy': is no objective",
        ),
        (lambda: accumulate_gradients(Product(), SAMPLES, ProductLoss(), non_finite="skip_window"), "non_finite = "),
        (
            lambda: accumulate_gradients(Product(), SAMPLES, ProductLoss(), exchange="never"),
            "'never': use one",
        ),
        (lambda: CrossEntropy().weights(torch.ones(2, 3)), "targets = 'torch.float32': are no labels"),
        (lambda: LossReduction("exact", "divide_by_n", 2.5), "accumulation_steps = 2.5: must be a whole number"),
        (lambda: LossReduction("exact", "divide_by_n", 2).factors([1, 1, 1]), "of 3 micro-batches is more than full"),
    ],
)
def test_a_window_that_would_go_wrong(call: Callable[[], object], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        call()


def test_a_loss_without_a_graph_is_no_gradient_of_zero() -> None:
    model = Product(0.5)
    with pytest.raises(SettingError, match="its loss has no graph"), torch.no_grad():
        accumulate_gradients(model, SAMPLES, ProductLoss())
    model.requires_grad_(False)
    with pytest.raises(SettingError, match="its loss has no graph; train some parameter"):
        accumulate_gradients(model, SAMPLES, ProductLoss())
    inputs, targets = SAMPLES[1]
    frozen = reference_gradient(model, inputs, targets, ProductLoss())
    assert (frozen.loss, frozen.by_parameter) == (1.0, {})  # 0.5 x 2, and nothing to differentiate by


def test_a_window_is_not_closed_before_its_passes_are_made() -> None:
    window = Accumulation(Product(), SAMPLES, ProductLoss(), LossReduction(), precision=Precision())
    window.advance()
    with pytest.raises(SettingError, match="micro_batches = 2: are left"):
        window.finish()


def test_what_fails_on_the_way_leaves_an_updater_that_works() -> None:
    """A hook that raises under a GradScaler: no gradient and no count stays, and the next window is stepped."""
    model = Product(0.5, torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    own = updater(model=model, scaler=scaler)
    batches = [(x.float(), weights.float()) for x, weights in SAMPLES]

    def broken() -> None:
        raise ValueError("not here")

    window = accumulate_gradients(model, batches, ProductLoss(), precision=Precision(loss_scale=own.loss_scale))
    with pytest.raises(ValueError, match="not here"):
        own.step(window, broken)
    assert model.weight.grad is None and (own.samples, own.updates) == (0, 0)
    assert own.update(batches, ProductLoss()).made
    assert model.weight.item() == pytest.approx(0.5 - 0.1 * 2.0)


class Normed(nn.Module):
    """BatchNorm, and a gradient that is not finite where an input is 0 although the output is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.BatchNorm1d(1), nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.norm(inputs[:, None])
        return (self.weight * inputs.abs()).sqrt() if (inputs == 0).any() else self.weight * inputs


@pytest.mark.parametrize("policy", ["stop", "skip_window"])
def test_a_window_without_an_update_leaves_running_statistics_alone(policy: str) -> None:
    """A finite loss with an infinite gradient: sqrt has no slope at 0."""
    model = Normed()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    own = updater(model=model, non_finite=policy)
    batches = [(torch.tensor([0.0, 4.0]), torch.ones(2))]
    if policy == "stop":
        with pytest.raises(NonFiniteLossError, match="gradient norm"):
            own.update(batches, ProductLoss())
    else:
        assert not own.update(batches, ProductLoss()).made
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert own.update([(torch.tensor([1.0, 3.0]), torch.ones(2))], ProductLoss()).made
    assert model.norm.running_mean.item() == pytest.approx(0.1 * 2.0)


def test_a_contrastive_window_that_cannot_be_judged_is_left_to_its_loss() -> None:
    """Inputs of 0: every cosine is 0, so the loss of 3 pairs is ln 3; and a NaN stays one."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    pairs = [(torch.zeros(1, 2, 4), torch.zeros(1)) for _ in range(3)]
    assert accumulate_gradients(model, pairs, Contrastive()).loss == pytest.approx(1.0986123, rel=1e-6)
    pairs[1][0][0, 0, 0] = torch.nan
    assert accumulate_gradients(model, pairs, Contrastive()).loss != pytest.approx(0, abs=1e9)


def test_a_failure_of_the_first_cached_pass_leaves_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    model[0].weight.grad = torch.ones(2, 4)
    pairs = [(torch.randn(2, 2, 4), torch.zeros(2)), (torch.randn(2, 2, 5), torch.zeros(2))]
    with pytest.raises(RuntimeError):
        accumulate_gradients(model, pairs, Contrastive())
    assert model[0].weight.grad is None
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"schedule": "step", "milestones": (150,)}, "milestones = .*150.*: must be smaller than updates = 150"),
        ({"optimizer": "adamw", "scaling": "half_life", "beta2": 0.0}, "beta2 = 0.0: has no equal half-life"),
        (
            {"optimizer": "adamw", "scaling": "half_life", "beta2": 1 - 1e-16, "base_batch_size": 65536},
            "beta2 = .*: has no equal half-life",
        ),
        ({"scaling": "linear", "base_batch_size": 1, "learning_rate": 10.0}, "learning_rate = 10.0: becomes 320"),
        (
            {"schedule": "step", "milestones": (1, 2, 3, 4), "decay": "batch"},
            "decay = 'batch': grows the effective batch to 320000",
        ),
        (
            {"exchange_every_micro_batch": True, "non_finite": "skip_micro_batch"},
            "exchange_every_micro_batch = True: cannot be with",
        ),
        ({"decay_factor": 1e-320}, "decay_factor"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        RunConfig.of(**settings)


def test_a_state_that_is_not_whole_is_refused_before_anything_is_loaded() -> None:
    config = RunConfig.of(effective_batch_size=4, micro_batch_size=2, updates=2, warmup_updates=1, norm="group")
    training = Training(config)
    state = training.state_dict()
    del state["updater"]
    with pytest.raises(SettingError, match=r"checkpoint = \['updater'\]: is missing"):
        training.load_state_dict(state)
    with pytest.raises(SettingError, match="scheduler = None: the state has one"):
        updater().load_state_dict({**updater().state_dict(), "scheduler": {}})


def test_a_sentence_names_the_divisors_that_are_near() -> None:
    with pytest.raises(SettingError) as refusal:
        BatchPlan(10**9, 7)
    assert len(str(refusal.value)) < 250
    assert " 5, 8, " in str(refusal.value)  # divisors of 2^9 5^9 on both sides of 7
