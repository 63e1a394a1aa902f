"""``sync_batch``: what a window holds on the device and on the host, in bytes, and that nothing of it stays.

On the CPU the bytes are counted by where they would live (benchmarks/sync_batch.py).
"""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from step_nets import PLACES, images, net, product, skip
from torch import Tensor, nn

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.lockstep import in_step
from accum_core.engine.workloads import load
from benchmarks.sync_batch import DEVICE_BAR, peak_bytes

pytestmark = pytest.mark.usefixtures("moving")


def peaks(network: str, micro: int, effective: int, how: str, frozen: str | None = None) -> tuple[int, int]:
    """Device and host bytes of one window of the landcover workload."""
    workload = load("landcover")
    inputs, targets = workload.samples(range(effective))
    torch.manual_seed(0)
    model = workload.build_model(network)
    model = convert_norms(model, "sync_batch", offload=how) if how in PLACES else convert_norms(model, "batch")
    if frozen is not None:
        model.get_submodule(frozen).requires_grad_(False)
    size = effective if how == "true batch" else micro
    micro_batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    return peak_bytes(model, lambda model: accumulate_gradients(model, micro_batches, workload.objective))


@pytest.mark.parametrize(("network", "micro", "effective"), [("unet", 1, 8), ("unet", 2, 32), ("deeplab", 2, 8)])
def test_the_device_holds_one_micro_batch(network: str, micro: int, effective: int):
    """At most 1.25 times what accumulation with BatchNorm holds."""
    naive, _ = peaks(network, micro, effective, "naive")
    host, moved = peaks(network, micro, effective, "host")
    again, less = peaks(network, micro, effective, "recompute")
    assert max(host, again) <= DEVICE_BAR * naive
    assert 0 < less < moved  # what is cheap to compute again is not kept


def test_without_a_place_to_go_the_device_holds_a_batch():
    """The whole batch holds far more than a micro-batch, and so do passes that keep all on the device."""
    naive, _ = peaks("unet", 2, 16, "naive")
    assert min(peaks("unet", 2, 16, how)[0] for how in ("true batch", "none")) > 4 * naive


@pytest.mark.parametrize("place", ["host", "recompute"])
def test_the_device_holds_no_more_for_a_larger_window(place: str):
    """Twice the micro-batches: the same on the device but for some bytes a pass, and twice as much on the host."""
    four, of_four = peaks("unet", 2, 8, place)
    eight, of_eight = peaks("unet", 2, 16, place)
    assert eight < 1.1 * four
    assert of_eight == pytest.approx(2 * of_four, rel=0.05)


@pytest.mark.parametrize("place", ["host", "recompute"])
def test_a_frozen_part_waits_on_the_host_too(place: str):
    """Its layers have no gradient, and what they give is wanted later."""
    four, eight = (peaks("unet", 2, effective, place, frozen="stem")[0] for effective in (8, 16))
    assert eight < 1.1 * four


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_window_stays(place: str):
    """Neither when its graph has been used and goes, nor when it goes unused; without the collector's help."""
    torch.manual_seed(0)
    model, (inputs, factors) = convert_norms(net(skip), "sync_batch", offload=place), images()
    made: list[weakref.ref[Tensor]] = []
    model.d.register_forward_hook(lambda module, inputs, output: made.append(weakref.ref(output)))
    gc.collect()
    gc.disable()
    try:
        for uses in (True, False):
            parts = zip(inputs.split(2), factors.split(2), strict=True)
            losses = in_step(model, [lambda x=x, y=y: product(model, x, y) for x, y in parts])
            window = model.b.window
            assert window() is not None
            if uses:
                sum(losses).backward()
            del losses
            assert window() is None
        assert len(made) == 12 and all(reference() is None for reference in made)
    finally:
        gc.enable()


@pytest.mark.parametrize("place", PLACES)
def test_a_graph_that_is_kept_gives_its_tensors_up_once_used(place: str):
    """As in torch: the loss stays, what was saved for its backward pass is gone."""
    torch.manual_seed(0)
    model, inputs = convert_norms(nn.Sequential(nn.Linear(50, 50), nn.BatchNorm1d(50)), "sync_batch", offload=place), 0
    inputs = torch.randn(64, 50)
    kept: list[weakref.ref[Tensor]] = []
    model[0].register_forward_hook(lambda module, inputs, output: kept.append(weakref.ref(output)))
    losses = in_step(model, [lambda x=x: model(x).square().sum() for x in inputs.split(16)])
    sum(losses).backward()
    assert all(reference() is None for reference in kept)
    assert copy.deepcopy(model).state_dict().keys() == model.state_dict().keys()
