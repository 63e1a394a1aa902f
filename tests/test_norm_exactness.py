"""Which norms are exact under accumulation: the window's gradient in float64, accumulated and in one batch.

The full batch is one cross-entropy of all samples by ``torch.nn.functional``; the bar is 1e-12 relative.
"""

from __future__ import annotations

import pytest
import torch
from small_nets import gradients, gradients_of, relative_error
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core import catalogue
from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.models import deeplab, unet
from accum_core.engine.objectives import CrossEntropy

NORMS = catalogue.entries("norms")
INDEPENDENT = [kind for kind, constants in NORMS.items() if constants["BATCH_INDEPENDENT"]]
DEPENDENT = [kind for kind, c in NORMS.items() if not (c["BATCH_INDEPENDENT"] or c.get("EXACT_UNDER_ACCUMULATION"))]
BAR = 1e-12
CLASSES = 3


def network(name: str, kind: str, **options: int) -> nn.Module:
    """In float64, with affine parameters that nobody has by default and running statistics of other data."""
    torch.manual_seed(0)
    model = {"deeplab": deeplab, "unet": unet}[name].build(3, CLASSES).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    model(torch.randn(6, 3, 16, 16).double())
    return convert_norms(model, kind, **options)


def window(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    images = torch.randn(sum(sizes), 3, 16, 16, generator=numbers).double()
    labels = torch.randint(CLASSES, (sum(sizes), 16, 16), generator=numbers)
    return list(zip(images.split(sizes), labels.split(sizes), strict=True))


def error(model: nn.Module, micro_batches: list[tuple[Tensor, Tensor]]) -> float:
    """Distance of the accumulated gradient from one batch's, the two from the same buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    images, labels = (torch.cat(part) for part in zip(*micro_batches, strict=True))
    expected = gradients_of(F.cross_entropy(model(images), labels), model)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    accumulate_gradients(model, micro_batches, CrossEntropy())
    return relative_error(gradients(model), expected)


@pytest.mark.parametrize("sizes", [[1] * 6, [2, 2, 2], [3, 1, 2]], ids=str)
@pytest.mark.parametrize("kind", INDEPENDENT)
def test_a_batch_independent_norm_is_exact(kind: str, sizes: list[int]):
    """Through a network of convolutions, norms and ReLU; ragged windows too."""
    assert error(network("unet", kind), window(sizes)) <= BAR


@pytest.mark.parametrize("kind", [kind for kind in INDEPENDENT if kind != "instance"])
def test_a_batch_independent_norm_is_exact_behind_image_pooling(kind: str):
    assert error(network("deeplab", kind), window([1, 2])) <= BAR


@pytest.mark.parametrize("kind", DEPENDENT)
def test_a_norm_over_the_micro_batch_is_not(kind: str):
    assert error(network("unet", kind), window([3, 3])) > 0.01


def test_ghost_batches_that_divide_the_micro_batch_are_exact_and_others_are_not():
    """Ghost batches of 2: the same ones for any micro-batch of 2 or 4, others for 3."""
    for sizes in ([2] * 6, [4, 4, 4], [4, 2, 6]):
        assert error(network("unet", "ghost_batch", ghost_batch_size=2), window(sizes)) <= BAR, sizes
    assert error(network("unet", "ghost_batch", ghost_batch_size=2), window([3] * 4)) > 0.01
