"""B39: running statistics of micro-batches, with the momentum as it is and corrected for the window.

A layer moves its running statistics r by r <- (1 - m) r + m s for statistics s of a micro-batch. With
m' = 1 - (1 - m)^(1/N), N moves by the same s are one by m: 1 - (1 - m')^N = m.
"""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from accum_core.engine.normalization import check_norms, convert_norms, norm_kinds
from accum_core.errors import SettingError
from accum_core.records import RunConfig


def layer(steps: int | None, momentum: float | None = 0.1) -> nn.Module:
    source = nn.BatchNorm1d(1, momentum=momentum).double()
    return source if steps is None else convert_norms(source, "batch_corrected", accumulation_steps=steps)


def pairs(*micro_batches: tuple[float, float]) -> list[Tensor]:
    return [torch.tensor(pair, dtype=torch.float64)[:, None] for pair in micro_batches]


def test_b39_the_running_mean_moves_as_over_one_batch():
    """Means of 1 from a running mean of 0: 1 - 0.9^4 = 0.3439 with the momentum as it is, 0.1 corrected."""
    found = {}
    for steps in (None, 4):
        norm = layer(steps)
        for micro_batch in pairs(*[(0.0, 2.0)] * 4):
            norm(micro_batch)
        found[steps] = norm.running_mean.item()
    assert found[None] == pytest.approx(0.3439, abs=1e-12)
    assert found[4] == pytest.approx(0.1, abs=1e-12)


def test_b39_the_running_variance_misses_how_far_the_micro_batches_lie_apart():
    """From 1: {0, 0} and {4, 4} have no variance each, so (1 - m')^2 * 1 = 0.9 is left of it.

    The whole batch {0, 0, 4, 4} has the unbiased variance 4 * 2^2 / 3 = 16/3, and 0.9 + 0.1 * 16/3 = 1.4333.
    """
    corrected, whole = layer(2), layer(None)
    micro_batches = pairs((0.0, 0.0), (4.0, 4.0))
    for micro_batch in micro_batches:
        corrected(micro_batch)
    whole(torch.cat(micro_batches))
    assert corrected.running_var.item() == pytest.approx(0.9, abs=1e-12)
    assert whole.running_var.item() == pytest.approx(0.9 + 1.6 / 3, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 1.0), st.integers(1, 64), st.integers(0, 1000))
def test_equal_statistics_move_as_over_one_batch(momentum: float, steps: int, seed: int):
    values = torch.randn(5, 1, generator=torch.Generator().manual_seed(seed)).double()
    norm = layer(steps, momentum)
    for _ in range(steps):
        norm(values)
    kept = 1 - momentum
    torch.testing.assert_close(norm.running_mean, momentum * values.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(norm.running_var, kept + momentum * values.var(0), rtol=1e-9, atol=1e-12)


def test_one_step_a_window_is_plain_batch_norm_to_the_bit():
    plain, corrected = layer(None, 0.3), layer(1, 0.3)
    for values in pairs((1.0, 2.0), (5.0, -3.0)):
        assert torch.equal(plain(values), corrected(values))
    assert all(torch.equal(mine, corrected.state_dict()[name]) for name, mine in plain.state_dict().items())


def test_the_output_is_batch_norms():
    source = nn.BatchNorm2d(3, eps=1e-3)
    nn.init.normal_(source.weight)
    inputs = torch.randn(4, 3, 5, 5)
    expected = F.batch_norm(inputs, None, None, source.weight, source.bias, training=True, eps=1e-3)
    torch.testing.assert_close(convert_norms(source, "batch_corrected", accumulation_steps=8)(inputs), expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(1, 32)), min_size=1, max_size=6), st.integers(2, 32))
def test_any_way_through_other_steps_never_compounds(way: list[int | None], steps: int):
    """None stands for plain BatchNorm on the way; the momentum 0.02 comes from the first layer alone."""
    norm: nn.Module = nn.BatchNorm2d(2, momentum=0.02)
    norm(torch.randn(3, 2, 2, 2))
    before, weight = {name: value.clone() for name, value in norm.state_dict().items()}, norm.weight
    for each in [*way, steps]:
        norm = convert_norms(norm, *_kind(each)[0], **_kind(each)[1])
    assert isinstance(norm, _BatchNorm)
    assert norm.momentum == pytest.approx(1 - 0.98 ** (1 / steps), rel=1e-12)
    plain = convert_norms(norm, "batch")
    assert isinstance(plain, _BatchNorm)
    assert plain.momentum == 0.02
    assert plain.weight is weight
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in before.items())
    assert [name for name, kind in norm_kinds().items() if kind.owns(plain)] == ["batch"]


def _kind(steps: int | None) -> tuple[tuple[str], dict[str, int]]:
    return (("batch",), {}) if steps is None else (("batch_corrected",), {"accumulation_steps": steps})


def test_it_belongs_to_its_own_kind_alone():
    assert [name for name, kind in norm_kinds().items() if kind.owns(layer(4))] == ["batch_corrected"]
    with pytest.raises(SettingError, match="BatchNorm, corrected momentum"):
        check_norms(nn.Sequential(layer(4)), torch.zeros(1, 1, dtype=torch.float64))


def test_a_model_follows_a_change_of_n_and_keeps_its_parameters_and_running_statistics():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    convert_norms(model, "batch_corrected", accumulation_steps=2)
    model(torch.randn(2, 1, 3, 3))
    parameters = list(model.parameters())
    statistics = copy.deepcopy(model.state_dict())
    convert_norms(model, "batch_corrected", accumulation_steps=16)
    assert model[1].momentum == pytest.approx(1 - 0.9 ** (1 / 16), rel=1e-12)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in statistics.items())


def test_a_mean_over_all_that_was_seen_has_no_rate_to_correct():
    norm = layer(4, None)
    for values in pairs((0.0, 2.0), (4.0, 6.0)):
        norm(values)
    assert norm.running_mean.item() == pytest.approx(3.0)
    assert convert_norms(norm, "batch").momentum is None


def test_a_layer_without_running_statistics_stays_without():
    norm = convert_norms(nn.BatchNorm2d(2, track_running_stats=False), "batch_corrected", accumulation_steps=4)
    inputs = torch.randn(3, 2, 2, 2)
    torch.testing.assert_close(norm.eval()(inputs), F.batch_norm(inputs, None, None, training=True))


def test_its_option_is_the_runs_accumulation_steps():
    (field,) = norm_kinds()["batch_corrected"].OPTIONS.values()
    assert getattr(RunConfig.of(effective_batch_size=32, micro_batch_size=2), field) == 16


@pytest.mark.parametrize("steps", [0, -3])
def test_fewer_than_one_step_is_refused(steps: int):
    with pytest.raises(SettingError, match=f"accumulation_steps = {steps}: must be at least 1"):
        layer(steps)
