"""ResNet-44 and Wide ResNet 16-4: their sizes as published, and what each layer sees."""

from __future__ import annotations

import pytest
import torch
from torch import Size, Tensor, nn

from accum_core.engine.models import resnet44, wide_resnet16_4

NETWORKS = [resnet44, wide_resnet16_4]
IDS = [module.__name__.rpartition(".")[2] for module in NETWORKS]


def seen(model: nn.Module, images: Tensor, kind: type[nn.Module]) -> list[Size]:
    """Shapes of the inputs of all layers of a kind, in the order of the forward pass."""
    shapes: list[Size] = []
    for module in model.modules():
        if isinstance(module, kind):
            module.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    with torch.no_grad():
        model.eval()(images)
    return shapes


def test_resnet44_has_the_published_size() -> None:
    """He et al. 2015, section 4.2: 6 x 7 + 2 = 44 layers with weights beside shortcuts, 0.66 million parameters; and
    7 blocks of two convolutions at each of 32, 16 and 8 pixels (the first of a stage sees the stage before)."""
    model = resnet44.build(3, 10)
    layers = [name for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    assert len([name for name in layers if "downsample" not in name]) == 44
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 0.66
    sizes = [shape[-1] for shape in seen(model, torch.randn(2, 3, 32, 32), nn.Conv2d)]
    assert {size: sizes.count(size) for size in (32, 16, 8)} == {32: 1 + 14 + 2, 16: 14 - 1 + 2, 8: 14 - 1}


def test_wide_resnet_has_the_published_size() -> None:
    """Zagoruyko and Komodakis 2016: depth 6 x 2 + 4 = 16 with the three shortcuts' convolutions, 2.7 million
    parameters; by hand, of the convolutions, 9 times channels in times channels out, or once for a shortcut."""
    model = wide_resnet16_4.build(3, 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 16
    pairs = [(3, 16), (16, 64), (64, 64), (64, 64), (64, 64), (64, 128), (128, 128), (128, 128), (128, 128)]
    pairs += [(128, 256), (256, 256), (256, 256), (256, 256)]
    expected = sum(9 * a * b for a, b in pairs) + 16 * 64 + 64 * 128 + 128 * 256
    assert sum(module.weight.numel() for module in convolutions) == expected
    norms = 2 * (16 + 4 * 64 + 4 * 128 + 4 * 256)
    total = sum(p.numel() for p in model.parameters())
    assert total == expected + norms + 256 * 10 + 10
    assert 2.7e6 < total < 2.8e6


@pytest.mark.parametrize("module", NETWORKS, ids=IDS)
def test_every_norm_sees_many_values_and_the_head_one_a_channel(module: object) -> None:
    """No norm stands behind the pooling, so that any micro-batch can be normalised."""
    model = module.build(3, 7)  # type: ignore[attr-defined]
    images = torch.randn(1, 3, 32, 32)
    assert all(shape[-1] >= 8 for shape in seen(model, images, nn.BatchNorm2d))
    assert model(images).shape == (1, 7)


@pytest.mark.parametrize("module", NETWORKS, ids=IDS)
def test_the_first_logits_are_of_ordinary_size(module: object) -> None:
    """Weights as He et al. 2015 have them keep the variance from layer to layer, up to what the sums of blocks add."""
    torch.manual_seed(0)
    model = module.build(3, 10).train()  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = model(torch.randn(16, 3, 32, 32))
    assert 0.1 < logits.std().item() < 3
