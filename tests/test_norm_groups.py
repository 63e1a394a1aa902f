"""Norms over groups of channels: how many groups, and the sentence where the channels do not divide so."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from accum_core.engine import convert_norms
from accum_core.engine.normalization import norm_kinds
from accum_core.errors import SettingError
from accum_core.records import RunConfig

GROUPED = ["group", "group_ws", "evonorm_s0"]


def test_group_norm_has_eight_groups_by_default():
    inputs = torch.randn(2, 16, 3, 3)
    torch.testing.assert_close(convert_norms(nn.BatchNorm2d(16), "group")(inputs), F.group_norm(inputs, 8))


def test_groups_that_do_not_divide_the_channels_are_refused_by_layer_and_the_model_stays():
    model = nn.Sequential(nn.BatchNorm2d(16), nn.ModuleDict({"inner": nn.BatchNorm2d(12)}))
    with pytest.raises(SettingError) as refusal:
        convert_norms(model, "group", num_groups=8)
    text = str(refusal.value)
    assert refusal.value.field == "norm_groups"
    assert refusal.value.value == 8
    assert "1.inner" in text
    assert "12 channels" in text
    offered = re.search(r"use one of ([\d, ]+)", text)
    assert offered is not None
    assert [int(groups) for groups in offered[1].strip(" ,").split(", ")] == [1, 2, 3, 4, 6, 12]
    assert isinstance(model[0], nn.BatchNorm2d)
    assert isinstance(model[1]["inner"], nn.BatchNorm2d)


@pytest.mark.parametrize("groups", [0, -1, 16])
def test_more_groups_than_channels_or_none_are_refused(groups: int):
    with pytest.raises(SettingError, match=f"norm_groups = {groups}: .*8 channels"):
        convert_norms(nn.Sequential(nn.BatchNorm2d(8)), "group", num_groups=groups)


@pytest.mark.parametrize("kind", GROUPED)
def test_channels_a_group_decide_the_number_of_groups_of_each_layer(kind: str):
    """Wu and He's second way: 16 channels in groups of 4 are 4 groups, 24 are 6; the number of groups gives way."""
    model = convert_norms(
        nn.Sequential(nn.BatchNorm2d(16), nn.BatchNorm2d(24)), kind, num_groups=8, channels_per_group=4
    )
    assert [layer.num_groups for layer in model] == [4, 6]
    with pytest.raises(SettingError, match=r"norm_channels_per_group = 16: .*layer 1 has 24 channels.*12, 24"):
        convert_norms(model, kind, channels_per_group=16)
    assert [layer.num_groups for layer in model] == [4, 6]


def test_channels_a_group_give_torchs_group_norm():
    inputs = torch.randn(2, 24, 3, 3)
    layer = convert_norms(nn.BatchNorm2d(24), "group", channels_per_group=8)
    torch.testing.assert_close(layer(inputs), F.group_norm(inputs, 3))


@pytest.mark.parametrize("kind", GROUPED)
def test_every_kind_over_groups_takes_both_settings(kind: str):
    config = RunConfig.of(norm_groups=4, norm_channels_per_group=3)
    values = {option: getattr(config, field) for option, field in norm_kinds()[kind].OPTIONS.items()}
    assert values == {"num_groups": 4, "channels_per_group": 3}


@pytest.mark.parametrize("kind", GROUPED)
def test_one_group_stays_of_its_kind(kind: str):
    """Of a GroupNorm with one group nobody can tell that it was meant as another thing than LayerNorm."""
    layer = convert_norms(nn.BatchNorm2d(8), kind, num_groups=1)
    owners = [name for name, norm in norm_kinds().items() if norm.owns(layer)]
    assert owners == ["layer" if kind == "group" else kind]
