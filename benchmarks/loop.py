"""``accumulate_gradients`` against the loop that one would write by hand, on the same work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import CrossEntropy, accumulate_gradients
from accum_core.engine.accumulate import MicroBatch
from accum_core.engine.workloads import load
from benchmarks import Result

BAR = 1.05


def by_hand(model: nn.Module, micro_batches: Sequence[MicroBatch]) -> float:
    """The exact loop in plain PyTorch: divide by the window's valid labels, log the window's loss."""
    weight = sum(int((targets != -100).sum()) for _, targets in micro_batches)
    total = torch.zeros((), dtype=torch.float64)
    for inputs, targets in micro_batches:
        loss = F.cross_entropy(model(inputs), targets, reduction="sum") / weight
        loss.backward()
        total += loss.detach()
    return total.item()


def ratio(model: nn.Module, micro_batches: Sequence[MicroBatch], repetitions: int, windows: int) -> float:
    """Median over repetitions of (our time) / (by hand), each over the same windows, in changing order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    objective = CrossEntropy()

    def seconds(window: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(windows):
            window()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - started

    def ours() -> object:
        return accumulate_gradients(model, micro_batches, objective)

    def hand() -> object:
        return by_hand(model, micro_batches)

    seconds(ours), seconds(hand)
    ratios = []
    for repetition in range(repetitions):
        if repetition % 2:
            time_ours, time_hand = seconds(ours), seconds(hand)
        else:
            time_hand, time_ours = seconds(hand), seconds(ours)
        ratios.append(time_ours / time_hand)
    return median(ratios)


def _split(inputs: Tensor, targets: Tensor, size: int) -> list[MicroBatch]:
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def measure() -> list[Result]:
    """A tiny network, where every microsecond of the loop shows, and the Lab's own workload."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiny = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    tiny_batches = _split(torch.randn(64, 32), torch.randint(10, (64,)), 8)
    workload = load("landcover")
    tiles = _split(*workload.samples(range(32)), 2)
    return [
        Result(
            "loop, two-layer network, 8 micro-batches of 8",
            ratio(tiny, tiny_batches, repetitions=41, windows=50),
            BAR,
            "x",
            "median of 41 interleaved ratios to the loop written by hand, 50 windows each",
        ),
        Result(
            "loop, landcover, 16 micro-batches of 2",
            ratio(workload.build_model("deeplab"), tiles, repetitions=21, windows=2),
            BAR,
            "x",
            "median of 21 interleaved ratios to the loop written by hand, 2 windows each",
        ),
    ]
