"""What a training and an updater do with bad windows and with too small a memory.

Ids: B42, B43 (out of memory), S5 (nothing left in a window). Poisoned samples hold an infinite pixel; 26 samples in
windows of 8.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from bad_windows import EXPLODES, Explosive, samples, spoiled
from small_nets import gradients
from tiny_workload import TinyWorkload, Use, course, same, stand_in, tiny, weights
from torch import Tensor, nn

from accum_core.engine import Training, train
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.update import Updater
from accum_core.errors import NonFiniteLossError, OutOfMemoryError, SettingError
from accum_core.records import RunConfig, UpdateRecord


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def finish(config: RunConfig) -> tuple[list[UpdateRecord], dict[str, Tensor]]:
    training = Training(config)
    return list(training.run()), weights(training.state_dict())


def kinds(records: list[UpdateRecord]) -> list[tuple[int, str]]:
    return [(record.update, incident.kind) for record in records for incident in record.incidents]


# Windows that are not finite.


def normed() -> tuple[nn.Module, Updater]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3, affine=False), Explosive()).double()
    return model, Updater(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@pytest.mark.parametrize(("value", "told"), [(torch.nan, "loss = nan"), (EXPLODES, "gradient norm = nan")])
def test_stop_raises_before_anything_is_stepped(value: float, told: str):
    torch.manual_seed(0)
    model = Explosive().double()
    updater = Updater(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    before = str(model.state_dict()), str(updater.optimizer.state_dict())
    with pytest.raises(NonFiniteLossError, match=f"{told} at update 1"):
        updater.update(spoiled(samples(3), {1}, value), CrossEntropy())
    assert (str(model.state_dict()), str(updater.optimizer.state_dict())) == before
    assert not gradients(model)
    assert updater.updates == 0


@pytest.mark.parametrize("policy", ["skip_window", "skip_micro_batch"])
def test_a_skipped_window_leaves_no_trace(policy: Any):
    """Neither in weights, momentum or running statistics: the next window is as if it had been the first."""
    found = []
    for bad_first in (True, False):
        model, updater = normed()
        updater.non_finite = policy
        if bad_first:
            every = spoiled(samples(4)[1:], {0, 1, 2}, torch.nan)
            update = updater.update(every, CrossEntropy())
            assert not update.made
            assert {incident.kind for incident in update.incidents} <= {"non_finite", "skipped_micro_batches"}
            assert "non_finite" in {incident.kind for incident in update.incidents}
            assert not gradients(model)
            assert (updater.updates, updater.skipped) == (0, 1)
        assert updater.update(samples(4)[1:], CrossEntropy()).made
        found.append(model.state_dict())
    assert same(found[0], found[1])


def test_what_was_left_out_is_an_incident_of_the_update_that_was_made():
    model, updater = normed()
    updater.non_finite = "skip_micro_batch"
    update = updater.update(spoiled(samples(4)[1:], {1}, torch.nan), CrossEntropy())
    assert update.made
    assert [incident.kind for incident in update.incidents] == ["skipped_micro_batches"]
    assert update.incidents[0].text.startswith("1 micro-batch")
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert (updater.updates, updater.skipped, updater.micro_batches) == (1, 0, 2)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("policy", ["skip_window", "skip_micro_batch"])
def test_a_run_over_a_poisoned_sample(use: Use, norm: str, policy: Any):
    """Every update is made, at its own rate, and each meeting is told; weights and running statistics stay numbers."""
    workload = use(poisoned=[17])
    records, final = finish(tiny(norm=norm, non_finite=policy, measure_every=1))
    assert [record.update for record in records] == list(range(1, 11))
    rates = [0.1 * min(1, k / 3) * (1 - (k - 1) / 10) ** 0.9 for k in range(1, 11)]
    assert [record.learning_rate for record in records] == pytest.approx(rates, rel=1e-12)
    assert all(tensor.isfinite().all() for tensor in final.values())
    assert all(math.isfinite(record.loss) and math.isfinite(record.gradient_norm) for record in records)
    met = sum(17 in window for window in workload.windows)
    kind = "non_finite" if policy == "skip_window" else "skipped_micro_batches"
    assert [found for _, found in kinds(records)] == [kind] * met
    assert len(workload.windows) == 10 + (met if policy == "skip_window" else 0)


def test_a_run_without_the_poisoned_micro_batch_measures_whole_windows_alone(use: Use):
    """Instruments compare with all samples of a window: they are silent where one was left out."""
    use(poisoned=[17])
    records, _ = finish(tiny(non_finite="skip_micro_batch", measure_every=1))
    for record in records:
        assert ("gradient_error" in record.instruments) == (not record.incidents)
        if not record.incidents:
            assert record.instruments["gradient_error"]["relative_error"] <= 1e-12


@pytest.mark.parametrize("policy", ["skip_window", "skip_micro_batch", "stop"])
def test_data_that_is_never_finite_ends_the_run(use: Use, policy: Any):
    """With an error that names what is not a number, not in an endless search; nothing was stepped."""
    use(poisoned=range(26))
    training = Training(tiny(non_finite=policy, norm="batch"))
    before = weights(training.state_dict())
    with pytest.raises(NonFiniteLossError, match="= nan at update 1"):
        next(training.run())
    assert training.update == 0
    after = weights(training.state_dict())
    parameters = dict(training.model.named_parameters())
    kept = parameters if policy == "stop" else before  # a run that stops ends there, running statistics and all
    assert all(torch.equal(after[name], before[name]) for name in kept)
    assert all(parameter.grad is None for parameter in training.model.parameters())


# Too small a memory.


class LimitedWorkload(TinyWorkload):
    """Memory to train on ``most`` samples at once."""

    def __init__(self, most: int, **settings: Any) -> None:
        super().__init__(**settings)

        class Limited(CrossEntropy):
            def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
                sums = super().sums(model, inputs, targets)
                if len(inputs) > most:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                return sums

        self.objective = Limited()

    def validate(self, model: nn.Module) -> Any:
        self.objective, limited = CrossEntropy(), self.objective
        try:
            return super().validate(model)
        finally:
            self.objective = limited


def limited(monkeypatch: pytest.MonkeyPatch, most: int, **settings: Any) -> LimitedWorkload:
    workload = LimitedWorkload(most, **settings)
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: workload)
    return workload


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("micro", [8, 4])
def test_b42_b43_the_run_is_that_of_the_micro_batch_that_fits(use: Use, monkeypatch: Any, norm: str, micro: int):
    """B42, B43: memory for 2 samples, effective 8 -> micro-batch 2 and N = 4 from the first update on; records,
    weights and running statistics as the run that asked for 2, to the bit, and one incident. Every window's samples
    were drawn once."""
    use(dropout=0.3)
    calm = {"norm": norm, "measure_every": 1000}
    expected = finish(tiny(micro_batch_size=2, **calm))
    workload = limited(monkeypatch, 2, dropout=0.3)
    config = tiny(micro_batch_size=micro, shrink_on_out_of_memory=True, **calm)
    records, final = finish(config)
    hidden = ("incidents", "instruments")
    assert course(records, *hidden) == course(expected[0], *hidden)
    assert same(final, expected[1])
    assert f"micro-batch {micro} → 2, N {8 // micro} → 4" in records[0].incidents[0].text
    # Two instruments ask for the full batch at update 1, for which there is no memory either.
    assert kinds(records) == [(1, "out_of_memory")] * 3
    assert records[0].instruments.keys() == {"micro_gradient_norms", "norm_statistics", "weight_sketch"}
    assert len(records[0].instruments["micro_gradient_norms"]["norms"]) == 4
    assert len(workload.windows) == 10
    assert {(record.micro_batch_size, record.accumulation_steps) for record in records} == {(2, 4)}


def test_a_shrunk_run_is_saved_and_gone_on_with(use: Use, monkeypatch: Any):
    monkeypatch.setattr("accum_core.engine.training.load_instruments", dict)
    limited(monkeypatch, 2)
    config = tiny(micro_batch_size=8, shrink_on_out_of_memory=True)
    records, final = finish(config)
    training = Training(config)
    begun = list(itertools.islice(training.run(), 3))
    other = Training(config)
    other.load_state_dict(training.state_dict())
    begun += other.run()
    assert course(begun) == course(records)
    assert same(weights(other.state_dict()), final)


def test_a_network_that_does_not_fit_into_its_check_is_cut_too(use: Use, monkeypatch: Any):
    """The pass before training that looks for norms that cannot work may not fit either."""

    def refuse(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if len(arguments[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    workload = use()
    build = workload.build_model

    def built(name: str) -> nn.Module:
        model = build(name)
        model.register_forward_pre_hook(refuse)
        return model

    workload.build_model = built  # type: ignore[method-assign]
    monkeypatch.setattr("accum_core.engine.training.load_instruments", dict)
    training = Training(tiny(micro_batch_size=8, shrink_on_out_of_memory=True, updates=2, warmup_updates=0))
    monkeypatch.setattr(training, "validate", lambda: None)
    assert [record.micro_batch_size for record in training.run()] == [2, 2]


def test_a_memory_for_no_sample_ends_in_a_sentence(use: Use, monkeypatch: Any):
    limited(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError, match="micro_batch_size = 1: "):
        next(train(tiny(micro_batch_size=8, shrink_on_out_of_memory=True)))
    with pytest.raises(torch.OutOfMemoryError):
        next(train(tiny(micro_batch_size=8)))


@pytest.mark.parametrize(
    ("most", "settings", "sentence"),
    [
        (1, {}, r"micro_batch_size = 1: layer pool\.2 .*one value a channel.*use"),
        (2, {"tail": "rescale", "effective_batch_size": 4, "micro_batch_size": 4}, None),
        (2, {"tail": "rescale", "effective_batch_size": 23, "micro_batch_size": 23}, "memory|micro_batch_size = 1"),
        (4, {"tail": "rescale", "effective_batch_size": 8, "micro_batch_size": 8}, r"tail = 'rescale': .*pool\.2"),
    ],
)
def test_a_norm_that_cannot_work_on_what_fits_is_told_in_a_sentence(
    use: Use, monkeypatch: Any, most: int, settings: dict[str, Any], sentence: str | None
):
    """BatchNorm has no variance on one sample here: met in the window itself, or in the tail to come, of 29 samples
    in windows of 8: 5, which is 4 and 1. 26 in windows of 4 leave 2; and 23 has no half that divides it but 1."""
    monkeypatch.setattr("accum_core.engine.training.load_instruments", dict)
    limited(monkeypatch, most, num_samples=29 if most == 4 else 26)
    config = tiny(**{"norm": "batch", "micro_batch_size": 8, "shrink_on_out_of_memory": True} | settings)
    if sentence is None:
        assert len(finish(config)[0]) == 10
        return
    with pytest.raises((SettingError, OutOfMemoryError), match=sentence):
        next(train(config))
