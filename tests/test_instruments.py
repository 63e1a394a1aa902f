"""The contract of every instrument under ``engine/instruments``, and brute-force twins.

Those of saved_bytes, norm_statistics and the noise scale are in files of their own.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from small_nets import relative_error
from tiny_workload import TinyNet
from torch import Tensor, nn
from torch.nn import functional as F
from watched_windows import by_autograd, flat, measured, watch, window

from accum_core import catalogue
from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.instrument import Instrument, Window, load_instruments
from accum_core.engine.objectives import CrossEntropy
from accum_core.statistics import decode_sketch, sketch_distance

INSTRUMENTS = catalogue.entries("instruments")


# The contract.


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_it_says_what_it_is_and_records_what_json_can_hold(name: str):
    assert isinstance(INSTRUMENTS[name]["TITLE"], str)
    instrument = load_instruments(INSTRUMENTS)[name]
    assert isinstance(instrument, Instrument)
    found = measured(name, window())
    assert found
    assert all(isinstance(field, str) for field in found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
@pytest.mark.parametrize("name", INSTRUMENTS)
def test_it_changes_nothing_that_training_sees(name: str, norm: str):
    """Parameters, gradients, buffers, random state, modes and hooks, in a model with BatchNorm and dropout."""
    seen = window(norm, dropout=0.5)
    model = seen.model
    instrument = load_instruments(INSTRUMENTS)[name]

    def snapshot() -> list[Tensor]:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [tensor.clone() for tensor in [*model.state_dict().values(), *grads, torch.get_rng_state()]]

    def watched(index: int) -> None:
        before = snapshot()
        instrument.after_micro_batch(seen, index)
        assert all(map(torch.equal, before, snapshot()))

    with instrument.watching(seen):
        accumulate_gradients(model, seen.micro_batches, seen.objective, after_micro_batch=watched)
    before, held = snapshot(), [p.grad for p in model.parameters()]
    instrument.measure(seen)
    assert all(map(torch.equal, before, snapshot()))
    assert all(p.grad is grad for p, grad in zip(model.parameters(), held, strict=True))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_a_failing_window_leaves_no_hook(name: str):
    seen = window()
    with pytest.raises(KeyError, match="broken"), load_instruments(INSTRUMENTS)[name].watching(seen):
        raise KeyError("broken")
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in seen.model.modules())


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_measuring_twice_gives_the_same(name: str):
    """A second window of the same samples, with the same instrument's memory of the first."""
    instrument, seen, found = load_instruments(INSTRUMENTS)[name], window("group"), []
    for _ in range(2):
        watch(instrument, seen)
        found.append(instrument.measure(seen))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gradient_error", "micro_gradient_norms", "norm_statistics", "weight_sketch"])
def test_due_on_the_first_update_and_every_so_many_after(name: str):
    due = [k for k in range(1, 14) if load_instruments(INSTRUMENTS)[name].due(window(update=k, every=5, new=False))]
    assert due == [1, 6, 11]


def test_memory_is_due_on_the_first_window_of_a_split():
    instrument = load_instruments()["saved_bytes"]
    assert instrument.due(window(update=7, new=True))
    assert not instrument.due(window(update=6, new=False))


# The twins.


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_gradient_error_twin(norm: str):
    """Both gradients as long vectors; a layer is a child of the network. BatchNorm is off, GroupNorm is not."""
    seen = window(norm)
    valid = int((seen.targets != -100).sum())
    expected = by_autograd(seen.model, seen.inputs, seen.targets, valid)
    parts = [by_autograd(seen.model, inputs, targets, valid) for inputs, targets in seen.micro_batches]
    actual = {name: sum(part[name] for part in parts) for name in expected}
    found = measured("gradient_error", seen)
    a, e = actual_all, expected_all = flat(actual), flat(expected)
    assert found["relative_error"] == pytest.approx(float((a - e).norm() / e.norm()), rel=1e-9, abs=1e-12)
    assert found["cosine"] == pytest.approx(float(F.cosine_similarity(a, e, dim=0)), rel=1e-12)
    assert found["norm_ratio"] == pytest.approx(float(a.norm() / e.norm()), rel=1e-12)
    layers = {layer: (flat(actual, layer), flat(expected, layer)) for layer in ("stem", "pool", "head")}
    by_layer = {layer: float((a - e).norm() / e.norm()) for layer, (a, e) in layers.items()}
    assert found["by_layer"] == pytest.approx(by_layer, rel=1e-9, abs=1e-12)
    depth = found["by_depth"]
    assert depth["names"] == ["stem.0", "stem.1", "pool.1", "pool.2", "head"]
    holders = [(flat(actual, f"{layer}."), flat(expected, f"{layer}.")) for layer in depth["names"]]
    relative = [float((a - e).norm() / e.norm()) for a, e in holders]
    assert depth["relative_error"] == pytest.approx(relative, rel=1e-9, abs=1e-12)
    if norm == "batch":
        squares = [float((a - e).square().sum() / (actual_all - expected_all).square().sum()) for a, e in holders]
        assert depth["share"] == pytest.approx(squares, rel=1e-9)
    assert math.fsum(depth["share"]) == pytest.approx(1, rel=1e-9)
    assert (found["relative_error"] > 0.05) if norm == "batch" else (found["relative_error"] < 1e-13)


def test_a_layer_whose_reference_is_zero_is_infinitely_off_and_not_exact():
    """As for one parameter: error infinite if only the reference is zero."""
    seen = window("group")
    seen.model.register_module("idle", nn.Linear(2, 2).double())
    accumulate_gradients(seen.model, seen.micro_batches, seen.objective)
    for parameter in seen.model.idle.parameters():
        parameter.grad = torch.ones_like(parameter)
    found = load_instruments()["gradient_error"].measure(seen)
    assert found["by_layer"]["idle"] == math.inf
    assert found["by_layer"]["stem"] < 1e-12


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_micro_gradient_norms_twin(norm: str):
    """Each micro-batch's summed loss over the window's valid labels, differentiated alone."""
    seen = window(norm)
    valid = int((seen.targets != -100).sum())
    expected = [float(flat(by_autograd(seen.model, *batch, valid)).norm()) for batch in seen.micro_batches]
    assert measured("micro_gradient_norms", seen)["norms"] == pytest.approx(expected, rel=1e-9)


def test_sketch_norm_is_the_norm_of_all_weights():
    seen = window()
    exact = torch.cat([p.detach().flatten() for p in seen.model.parameters()]).norm()
    assert measured("weight_sketch", seen)["norm"] == pytest.approx(float(exact), rel=1e-12)


def sketch(model: nn.Module) -> dict[str, Any]:
    """The instrument's fields for a model outside of any training."""
    empty = torch.zeros(1)
    return load_instruments()["weight_sketch"].measure(Window(model, empty, empty, [], CrossEntropy(), 1, 1, False))


def test_sketch_distance_is_within_its_stated_error_of_the_exact_distance():
    """Over 60 random displacements of 5000 weights: the square of estimate over exact has mean 1 and a standard
    deviation of sqrt(2 / 256); 4 standard errors are allowed to each, and 5 standard deviations to a single one."""
    torch.manual_seed(1)
    reference = nn.Sequential(nn.Linear(60, 60), nn.Linear(60, 22), nn.BatchNorm1d(22))
    exact_norm = sketch(reference)["norm"]
    size = decode_sketch(sketch(reference)["sketch"]).size
    ratios = []
    for scale in np.geomspace(1e-3, 10, 60):
        other = copy.deepcopy(reference)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
        pairs = zip(other.parameters(), reference.parameters(), strict=True)
        exact = math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs)) / exact_norm
        ratios.append(sketch_distance(sketch(other)["sketch"], sketch(reference)["sketch"], exact_norm) / exact)
    squares, stated = np.square(ratios), math.sqrt(2 / size)
    assert abs(squares.mean() - 1) < 4 * stated / math.sqrt(len(ratios))
    assert squares.std(ddof=1) < stated * (1 + 4 / math.sqrt(2 * len(ratios)))
    assert np.abs(squares - 1).max() < 5 * stated
    assert sketch_distance(sketch(reference)["sketch"], sketch(reference)["sketch"], exact_norm) == 0


def test_sketches_do_not_depend_on_the_random_state_or_on_the_norm():
    """Runs of different seeds and norms compare: names and places alone decide the signs."""
    model = TinyNet()
    first = sketch(model)
    torch.manual_seed(123)
    assert sketch(copy.deepcopy(model)) == first
    assert sketch(convert_norms(model, "none")) == first


def test_the_two_measures_of_a_window_agree_on_its_gradient():
    """The shares of a one-micro-batch window: its only norm is the norm of the accumulated gradient."""
    seen = window("group")
    whole = Window(seen.model, seen.inputs, seen.targets, [(seen.inputs, seen.targets)], seen.objective, 1, 1, True)
    norms = measured("micro_gradient_norms", whole)["norms"]
    accumulated = {name: p.grad for name, p in seen.model.named_parameters()}
    assert norms == [pytest.approx(float(flat(accumulated).norm()), rel=1e-12)]
    full = by_autograd(seen.model, seen.inputs, seen.targets, int((seen.targets != -100).sum()))
    assert relative_error(accumulated, full) < 1e-12
