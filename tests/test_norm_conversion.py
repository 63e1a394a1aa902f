"""From a trained BatchNorm to every kind: what moves over, what is lost, and that it is told beforehand."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from torch import Tensor, nn

from accum_core import catalogue
from accum_core.engine import convert_norms
from accum_core.engine.normalization import conversion_losses
from accum_core.errors import SettingError

NORMS = catalogue.entries("norms")
STATISTICS, FUNCTION = "running statistics", "function in evaluation mode"
each_norm = pytest.mark.parametrize("kind", NORMS)


@pytest.fixture(scope="module")
def pretrained() -> nn.Module:
    """A torchvision network with affine parameters and running statistics that are nobody's defaults."""
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_small(weights=None)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    for _ in range(3):
        model(torch.randn(4, 3, 32, 32) + 1)
    return model.eval()


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if "running" in name or "tracked" in name}


@each_norm
def test_what_a_kind_says_is_lost_is_lost_and_nothing_else(pretrained: nn.Module, kind: str):
    """Affine values always move over; the same output in evaluation mode, or not; the same buffers, or none."""
    model, images = copy.deepcopy(pretrained), torch.randn(2, 3, 64, 64)  # InstanceNorm needs more than a pixel
    before, expected = statistics(pretrained), pretrained(images)
    convert_norms(model, kind)
    lost = NORMS[kind].get("LOST", ())
    assert set(lost) <= {STATISTICS, FUNCTION}
    after = statistics(model)
    assert (after.keys() == before.keys() and all(torch.equal(after[n], before[n]) for n in before)) is (
        STATISTICS not in lost
    )
    assert torch.allclose(model(images), expected, rtol=1e-5, atol=1e-5) is (FUNCTION not in lost)
    values = dict(model.named_parameters())
    assert all(torch.equal(values[name], parameter) for name, parameter in pretrained.named_parameters())


@each_norm
def test_the_losses_are_told_with_the_number_of_layers(pretrained: nn.Module, kind: str):
    layers = sum(isinstance(module, nn.BatchNorm2d) for module in pretrained.modules())
    told = conversion_losses(pretrained, kind)
    assert told == [f"{layers} trained BatchNorm layers lose their {lost}" for lost in NORMS[kind].get("LOST", ())]
    before = statistics(pretrained)
    assert len(before) == 3 * layers  # nothing was converted by asking


def test_one_layer_loses_its_own():
    norm = nn.BatchNorm1d(8)
    norm(torch.randn(4, 8))
    assert conversion_losses(norm, "group") == [
        "1 trained BatchNorm layer loses its running statistics",
        "1 trained BatchNorm layer loses its function in evaluation mode",
    ]


@pytest.mark.parametrize(
    "model",
    [nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.BatchNorm2d(8, track_running_stats=False), nn.Linear(2, 2)],
    ids=["fresh", "GroupNorm", "without statistics", "no norm"],
)
@each_norm
def test_what_has_nothing_to_lose_loses_nothing(model: nn.Module, kind: str):
    assert conversion_losses(model, kind) == []


def test_an_unknown_kind_is_refused():
    with pytest.raises(SettingError, match="norm = 'bach'"):
        conversion_losses(nn.BatchNorm2d(8), "bach")


@each_norm
def test_on_the_way_back_statistics_are_fresh_where_they_were_lost(pretrained: nn.Module, kind: str):
    model = convert_norms(convert_norms(copy.deepcopy(pretrained), kind), "batch")
    after = statistics(model)
    if STATISTICS in NORMS[kind].get("LOST", ()):
        fresh = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
        assert all(bool((value == fresh[name.rpartition(".")[2]]).all()) for name, value in after.items())
    else:
        assert all(torch.equal(value, after[name]) for name, value in statistics(pretrained).items())
