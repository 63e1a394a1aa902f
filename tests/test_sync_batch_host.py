"""``sync_batch`` with ``offload="host"`` where the device is the host: nothing is moved, and nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from step_nets import images, in_parts, net, skip
from torch import nn

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.lockstep.keeping import is_on_the_host
from accum_core.engine.objectives import CrossEntropy
from benchmarks.sync_batch import moving, peak_bytes


@pytest.mark.parametrize("place", ["host", "recompute"])
def test_on_a_cpu_host_copies_nothing(place: str):
    """``recompute`` does: what it need not keep is saved on a CPU too."""
    torch.manual_seed(0)
    model = convert_norms(net(skip).float(), "sync_batch", offload=place)
    parts = list(zip(images(6, 16, torch.float32)[0].split(2), torch.randint(8, (6, 16, 16)).split(2), strict=True))

    def copied() -> int:
        return peak_bytes(copy.deepcopy(model), lambda own: accumulate_gradients(own, parts, CrossEntropy()))[1]

    assert (copied() > 0) == (place == "recompute")
    with moving():
        assert copied() > 0


@pytest.mark.parametrize("around", [nullcontext, moving])
def test_the_bits_are_those_of_a_window_that_keeps_its_work(around: Callable[[], AbstractContextManager[Any]]):
    torch.manual_seed(0)
    model, (inputs, factors) = net(skip).float(), images(dtype=torch.float32)
    kept = in_parts(model, inputs, factors, (2, 3, 1), "none")
    with around():
        found = in_parts(model, inputs, factors, (2, 3, 1), "host")
    assert found.equals(kept)


def test_a_model_with_any_tensor_elsewhere_is_on_a_device():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False))
    assert is_on_the_host(model)
    model[1].to("meta")
    assert not is_on_the_host(model)
