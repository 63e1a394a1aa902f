"""Cross-entropy of several heads against torchvision's formula, and its exactness under accumulation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import accumulate_gradients
from accum_core.engine.objectives import HeadsCrossEntropy, mean_loss
from accum_core.errors import SettingError

IGNORED = 255
RECIPE = {"out": 1.0, "aux": 0.5}


class TwoHeads(nn.Module):
    """Two heads on one layer, smooth."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 4, 3, padding=1)
        self.out, self.aux = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.body(images).tanh()
        return {"out": self.out(features), "aux": self.aux(features)}


def batch() -> tuple[Tensor, Tensor]:
    """8 samples; each has another number of valid pixels, one has none."""
    numbers = torch.Generator().manual_seed(0)
    images = torch.randn(8, 2, 5, 4, dtype=torch.float64, generator=numbers)
    targets = torch.randint(3, (8, 5, 4), generator=numbers)
    for sample in range(8):
        targets[sample].view(-1)[: 20 * sample // 7] = IGNORED
    return images, targets


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return TwoHeads().double()


def recipe_loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """As torchvision's reference script writes it, of one undivided batch."""
    outputs = model(images)
    out, aux = (F.cross_entropy(outputs[head], targets, ignore_index=IGNORED) for head in ("out", "aux"))
    return out + 0.5 * aux


def test_the_loss_of_a_batch_is_the_recipes(model: nn.Module) -> None:
    images, targets = batch()
    found = mean_loss(HeadsCrossEntropy(RECIPE), model, images, targets)
    assert found.item() == pytest.approx(recipe_loss(model, images, targets).item(), rel=1e-14)


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_a_window_of_unequal_weights_gives_the_batchs_gradient(model: nn.Module, micro: int) -> None:
    images, targets = batch()
    parts = list(zip(images.split(micro), targets.split(micro), strict=True))
    result = accumulate_gradients(model, parts, HeadsCrossEntropy(RECIPE))
    accumulated = [parameter.grad for parameter in model.parameters()]
    loss = recipe_loss(model, images, targets)
    exact = torch.autograd.grad(loss, list(model.parameters()))
    for found, expected in zip(accumulated, exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert result.loss == pytest.approx(loss.item(), rel=1e-12)
    assert result.terms["out"].loss + 0.5 * result.terms["aux"].loss == pytest.approx(loss.item(), rel=1e-12)
    assert result.terms["aux"].weight == (targets != IGNORED).sum()


def test_a_head_without_a_coefficient_adds_nothing(model: nn.Module) -> None:
    images, targets = batch()
    alone = mean_loss(HeadsCrossEntropy({"out": 1.0}), model, images, targets)
    assert alone.item() == F.cross_entropy(model(images)["out"], targets, ignore_index=IGNORED).item()


def test_a_head_that_the_network_has_not_is_named(model: nn.Module) -> None:
    with pytest.raises(SettingError, match="objective = 'edges'.*has out, aux"):
        mean_loss(HeadsCrossEntropy({"out": 1.0, "edges": 1.0}), model, *batch())
