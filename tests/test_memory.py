"""B46: nothing of a finished micro-batch is kept, neither the tensors saved for its backward pass nor its graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from small_nets import dense
from torch import Tensor, nn

from accum_core.engine import CrossEntropy, accumulate_gradients


class Marked(torch.autograd.Function):
    """Identity whose node in the graph can be watched from Python."""

    nodes: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Marked.nodes.add(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Watched(nn.Module):
    """A net with a watched node in its graph, and every activation it makes held by a weak reference only."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense(width=16).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return Marked.apply(self.net(inputs))


class Box:
    """What the saved-tensor hook hands to autograd: alive for as long as autograd keeps the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept_between(loop: Callable[[nn.Module, list[tuple[Tensor, Tensor]], Callable[[int], None]], Any], steps: int):
    """Bytes that autograd keeps, and graph nodes alive, after each micro-batch of a loop."""
    boxes: weakref.WeakSet[Box] = weakref.WeakSet()
    kept: list[tuple[int, int]] = []

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.add(box)
        return box

    def after(_: int = 0) -> None:
        gc.collect()
        kept.append((sum(box.tensor.numel() * box.tensor.element_size() for box in boxes), len(Marked.nodes)))

    torch.manual_seed(0)
    batches = [(torch.randn(4, 3).double(), torch.randint(4, (4,))) for _ in range(steps)]
    gc.collect()
    gc.freeze()  # what is there already need not be searched through each time
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
            result = loop(Watched(), batches, after)
        after()
    finally:
        gc.unfreeze()
    del result
    return kept


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_b46_nothing_is_kept_between_micro_batches(steps: int):
    """B46: 0 bytes saved for backward between micro-batches for N = 2, 4, 8, and no node of a finished graph alive."""
    kept = kept_between(
        lambda model, batches, after: accumulate_gradients(model, batches, CrossEntropy(), after_micro_batch=after),
        steps,
    )
    assert kept == [(0, 0)] * (steps + 1)


def test_the_watch_sees_a_loop_that_keeps_its_losses():
    """The loop that adds the losses up and goes backward once keeps more with every micro-batch."""

    def hoard(model: nn.Module, batches: list[tuple[Tensor, Tensor]], after: Callable[[int], None]) -> None:
        losses = []
        for index, (inputs, targets) in enumerate(batches):
            losses.append(nn.functional.cross_entropy(model(inputs), targets))
            after(index)
        sum(losses).backward()

    kept = kept_between(hoard, 3)
    assert kept[0][0] > 0
    assert [nodes for _, nodes in kept] == [1, 2, 3, 0]
    assert kept[0][0] < kept[1][0] < kept[2][0]
