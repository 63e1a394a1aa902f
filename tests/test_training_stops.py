"""What a training cannot go on with: settings refused before the first update, infinite losses, missing labels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_workload import Use, same, stand_in, tiny, weights

from accum_core.engine import Training, train
from accum_core.errors import DataError, NonFiniteLossError, SettingError


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def test_an_infinite_loss_stops_the_run_before_the_step(use: Use):
    """A sample with an infinite pixel: the update that meets it is not made and is named."""
    workload = use(poisoned=[17])
    training = Training(tiny())
    records, before = [], weights(training.state_dict())
    with pytest.raises(NonFiniteLossError) as stop:
        for record in training.run():
            records.append(record)
            before = weights(training.state_dict())
    met = next(k for k, window in enumerate(workload.windows, 1) if 17 in window)
    assert stop.value.update == met == len(records) + 1
    assert not math.isfinite(stop.value.value)
    assert f"update {met}" in str(stop.value)
    assert training.update == met - 1
    assert same(weights(training.state_dict()), before)


def test_a_rate_that_blows_the_weights_up_stops_the_run(use: Use):
    """Rate times decay is 100: each step multiplies the weights by about -99 until float32 cannot hold them."""
    config = tiny(
        learning_rate=100.0, weight_decay=1.0, momentum=0.0, warmup_updates=0, updates=200, precision="float32"
    )
    training = Training(config)
    training_records = []
    before = weights(training.state_dict())
    with pytest.raises(NonFiniteLossError) as stop:
        for record in training.run():
            assert math.isfinite(record.loss)
            training_records.append(record)
            before = weights(training.state_dict())
    assert stop.value.update == len(training_records) + 1
    after = weights(training.state_dict())
    assert all(torch.equal(after[name].nan_to_num(), before[name].nan_to_num()) for name in before)


def test_a_window_without_a_valid_label_makes_no_update(use: Use):
    """S5: no step and no step of the schedule, a warning; the samples that have labels are trained on all the same."""
    use(num_samples=6, unlabelled=[1, 4])
    config = tiny(effective_batch_size=1, micro_batch_size=1, updates=4, warmup_updates=1)
    with pytest.warns(UserWarning, match="no valid label") as warned:
        records = list(train(config))
    assert 1 <= len(warned) <= 2
    assert [record.update for record in records] == [1, 2, 3, 4]
    expected = [0.1 * (1 - k / 4) ** 0.9 for k in range(4)]
    assert [record.learning_rate for record in records] == pytest.approx(expected, rel=1e-12)
    assert all(math.isfinite(record.loss) and record.loss > 0 for record in records)


def test_data_without_any_label_is_an_error_and_not_an_endless_search(use: Use):
    use(num_samples=4, unlabelled=range(4))
    config = tiny(effective_batch_size=2, micro_batch_size=1)
    with pytest.warns(UserWarning, match="no valid label"), pytest.raises(DataError, match="no valid label"):
        next(train(config))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm": "batch", "micro_batch_size": 1}, r"micro_batch_size = 1: .*pool\.2"),
        ({"norm": "instance"}, r"norm = 'instance': .*pool\.2"),
        ({"norm_groups": 3}, r"norm_groups = 3: .*stem\.1.*8 channels"),
        (
            {"norm": "batch", "tail": "rescale", "effective_batch_size": 5, "micro_batch_size": 5},
            r"tail = 'rescale': .*pool\.2",
        ),
    ],
)
def test_what_cannot_work_is_found_before_the_first_update(use: Use, settings: dict[str, Any], sentence: str):
    """The last row leaves a tail of 26 % 5 = 1 sample, on which BatchNorm has one value a channel."""
    workload = use()
    with pytest.raises(SettingError, match=sentence):
        next(train(tiny(**settings)))
    assert workload.windows == []


def test_an_invalid_configuration_is_refused_although_it_was_not_built_with_of(use: Use):
    with pytest.raises(SettingError, match="norm = 'bach'"):
        Training(tiny().model_copy(update={"norm": "bach"}))
