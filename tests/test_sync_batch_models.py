"""``sync_batch`` in torchvision's networks as they come, dropout and auxiliary heads included, in float64.

A deep network's own rounding can exceed 1e-12: then the bound is a small multiple of what one full batch differs by
from the same batch in another order, which is the same gradient in mathematics.
"""

from __future__ import annotations

import copy

import pytest
import torch
from recorded_draws import Masking, record_dropout, with_draws
from step_nets import at_once
from torch import Tensor, nn
from torchvision import models
from torchvision.models import segmentation

CASES = {
    "resnet50": (models.resnet50, {}, 32, "host"),
    "mobilenet_v3_large": (models.mobilenet_v3_large, {}, 32, "recompute"),
    "shufflenet_v2_x0_5": (models.shufflenet_v2_x0_5, {}, 32, "host"),
    "deeplabv3_mobilenet_v3_large": (segmentation.deeplabv3_mobilenet_v3_large, {"aux_loss": True}, 32, "host"),
    "fcn_resnet50": (segmentation.fcn_resnet50, {"aux_loss": True}, 8, "recompute"),
    "lraspp_mobilenet_v3_large": (segmentation.lraspp_mobilenet_v3_large, {}, 32, "recompute"),
}
SAMPLES = 4

pytestmark = pytest.mark.usefixtures("moving")


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of all heads, the auxiliary one at 0.4 as torchvision's reference scripts weigh it, summed."""
    outputs = model(inputs)
    heads = {"out": outputs} if isinstance(outputs, Tensor) else outputs
    sums = {name: nn.functional.cross_entropy(head, targets, reduction="sum") for name, head in heads.items()}
    return sums["out"] + 0.4 * sums.get("aux", 0)


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_statistics_are_the_full_batch_s(name: str):
    build, options, size, place = CASES[name]
    torch.manual_seed(0)
    model = record_dropout(build(weights=None, num_classes=4, **_no_backbone(build), **options)).double()
    inputs = torch.randn(SAMPLES, 3, size, size, dtype=torch.float64)
    targets = torch.randint(4, (SAMPLES, size, size) if build in vars(segmentation).values() else (SAMPLES,))
    found, whole = with_draws(model, inputs, targets, (1, 2, 1), place, loss)
    assert len(found.gradients) == len(list(model.parameters()))
    error = found.error(whole)
    assert error <= 1e-12 or error <= 4 * rounding(model, inputs, targets)


def rounding(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The distance of one full batch from itself in another order of its samples, without dropout."""
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, Masking):
            module.draw = torch.ones_like
    order = torch.arange(SAMPLES).flip(0)
    return at_once(still, inputs, targets, loss).error(at_once(still, inputs[order], targets[order], loss))


def _no_backbone(build: object) -> dict[str, None]:
    return {"weights_backbone": None} if build in vars(segmentation).values() else {}
