"""Passes that run in step: whose turn it is, and what is left of them when one fails.

A failure at any place and of any kind ends all passes at once, as the error that it was; nothing hangs, no thread
stays, no running statistic has moved, and the model is as good as before.
"""

from __future__ import annotations

import _thread
import copy
import gc
import random
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from step_nets import PLACES, at_once, images, in_parts, net, of, product, skip
from torch import Tensor, nn
from torch.utils import _python_dispatch

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.lockstep import in_step
from accum_core.engine.lockstep.turns import Turns
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import SettingError

ERRORS = (ValueError("no"), torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt())
PRESENT = ContextVar("whether the pass that runs is the one that fails", default=False)

pytestmark = pytest.mark.usefixtures("moving")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    torch.manual_seed(0)
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before
    assert not _python_dispatch._is_in_torch_dispatch_mode
    assert not _python_dispatch._is_in_non_infra_torch_dispatch_mode


class Falling(nn.Module):
    """Fails at one point of one micro-batch, which is known by its first value; keeps a tensor of its first pass."""

    def __init__(self, point: str, error: BaseException | None):
        super().__init__()
        self.inner, self.point, self.error, self.cause = net(skip), point, error, 0.0
        self.inner.c.register_forward_hook(lambda *_: self.fall("before the first layer"))
        self.inner.d.register_forward_hook(lambda *_: self.fall("between two layers"))
        self.cached: Tensor | None = None

    def fall(self, point: str) -> None:
        if PRESENT.get() and self.error is not None and point == self.point:
            raise self.error

    def forward(self, inputs: Tensor) -> Tensor:
        PRESENT.set(bool(inputs[0, 0, 0, 0] == self.cause))
        if self.cached is None:
            self.cached = inputs.new_ones(1, 8, 6, 6).cos()
        outputs = self.inner(inputs * self.cached[0, 0]) + self.cached
        self.fall("at the end")
        return outputs


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("point", ["before the first layer", "between two layers", "at the end"])
def test_the_first_error_ends_all_passes_and_harms_nothing(place: str, point: str):
    inputs, factors = images(4)
    for index in range(4):
        for error in ERRORS:
            model = convert_norms(Falling(point, None), "sync_batch", offload=place)
            model.load_state_dict(state := copy.deepcopy(model.state_dict()))
            model.error, model.cause = error, float(inputs[index, 0, 0, 0])

            def only(x: Tensor, model: Falling = model) -> Tensor:
                return model(x)

            parts = zip(inputs.split(1), factors.split(1), strict=True)
            error.__notes__ = []
            with pytest.raises(type(error)) as raised:
                in_step(model, [lambda x=x, y=y: (only(x) * y).sum() for x, y in parts])
            assert raised.value is error
            assert error.__notes__ == [f"in micro-batch {index + 1} of 4, of a window that ran in step"]
            assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
            if model.cached is not None:
                assert model.cached.untyped_storage().nbytes() == 8 * 8 * 36
                assert torch.equal(model.cached, torch.ones(1, 8, 6, 6).double().cos())
    # The next window of the same model is right.
    model.error = None
    expected = at_once(convert_norms(copy.deepcopy(model), "batch"), inputs, factors)
    assert in_parts(model, inputs, factors, (1, 1, 2), place).error(expected) <= 1e-12


class FallsBack(torch.autograd.Function):
    """Nothing on the way forward, an error on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: BaseException) -> Tensor:
        ctx.error = error
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise ctx.error


class Failing(CrossEntropy):
    """Fails in the backward pass of one micro-batch, at the outputs or at the network's input."""

    def __init__(self, index: int, where: str, error: BaseException):
        super().__init__()
        self.index, self.where, self.error, self.passes = index, where, error, 0

    def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        now = self.passes == self.index
        self.passes += 1
        if now and self.where == "first":
            inputs = FallsBack.apply(inputs.clone().requires_grad_(), self.error)
        elif self.where == "first":
            inputs = inputs.clone().requires_grad_()
        outputs = model(inputs)
        return super().sums(lambda _: FallsBack.apply(outputs, self.error) if now and self.where == "last" else outputs,
                            inputs, targets)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_error_in_the_backward_pass_names_its_micro_batch(place: str, where: str):
    inputs, labels = images(4)[0], torch.randint(8, (4, 6, 6))
    parts = list(zip(inputs.split(1), labels.split(1), strict=True))
    model = net(skip)
    whole = at_once(model, inputs, labels, lambda m, x, y: CrossEntropy().sums(m, x, y)["cross_entropy"] / y.numel())
    own = convert_norms(model, "sync_batch", offload=place)
    for index in range(4):
        for error in ERRORS:
            tried = copy.deepcopy(own)
            error.__notes__ = []
            with pytest.raises(type(error)) as raised:
                accumulate_gradients(tried, parts, Failing(index, where, error))
            assert raised.value is error
            assert error.__notes__ == [f"in the backward pass of micro-batch {index + 1} of 4, in step"]
            assert all(parameter.grad is None for parameter in tried.parameters())
    tried.load_state_dict(own.state_dict())
    accumulate_gradients(tried, parts, CrossEntropy())
    assert of(tried).error(whole) <= 1e-12


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("index", [0, 2])
def test_an_interrupt_from_the_keyboard_while_a_pass_runs(place: str, index: int):
    """It comes to the thread that waits for the passes."""
    model, (inputs, factors) = convert_norms(net(skip), "sync_batch", offload=place), images(3)
    before = copy.deepcopy(model.state_dict())

    def run(number: int) -> Tensor:
        if number == index:
            _thread.interrupt_main()
        return product(model, inputs[number : number + 1], factors[number : number + 1])

    with pytest.raises(KeyboardInterrupt):
        in_step(model, [lambda number=number: run(number) for number in range(3)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_passes_that_part_ways_are_refused_in_a_sentence():
    inputs, _ = images(3)
    for count in range(3):  # this pass leaves a layer out

        def compute(own: Any, x: Tensor, cause: float = float(inputs[count, 0, 0, 0])) -> Tensor:
            left_out = bool(x[0, 0, 0, 0] == cause)
            x = own.b(own.c(x))
            return own.d(x) if left_out else own.b2(own.d(x))

        model = convert_norms(net(compute), "sync_batch")
        with pytest.raises(SettingError, match="sync_batch.*came to (layer b2|the end of the model).*same order"):
            in_step(model, [lambda x=x, model=model: model(x).sum() for x in inputs.split(1)])
        assert int(model.b.num_batches_tracked) == 0


def test_turns_go_round_in_one_order():
    """Until each meeting one call after the other; what is joined is given to each."""
    seen: list[tuple[int, str]] = []

    def call(index: int) -> str:
        for place in ("a", "b"):
            seen.append((index, place))
            assert turns.meet(place, index, lambda values: [value * 10 for value in values]) == index * 10
        seen.append((index, "end"))
        return turns.meet("c", index, lambda values: [sum(values) + value for value in values])

    turns = Turns([lambda index=index: call(index) for index in range(3)], lambda _: ())
    assert turns.run() == [3, 4, 5]
    assert seen == [(index, place) for place in ("a", "b", "end") for index in range(3)]


def test_what_torch_keeps_for_a_thread_is_the_caller_s():
    model = convert_norms(net(skip), "sync_batch")
    seen: list[Any] = []

    def run() -> Tensor:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
                     torch.get_autocast_dtype("cpu"), torch.get_default_device().type))  # fmt: skip
        return model(images(2)[0]).sum()

    in_step(model, [run, run])
    with torch.no_grad():
        results = in_step(model, [run, run])
    assert not any(result.requires_grad for result in results)
    with torch.inference_mode():
        in_step(model, [run, run])
    plain = convert_norms(nn.Linear(2, 2), "sync_batch")
    with torch.autocast("cpu", torch.float16), torch.device("meta"):
        in_step(plain, [lambda: seen.append(
            (*[torch.is_grad_enabled(), False], torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
             torch.empty(1).device.type))])  # fmt: skip
    low = torch.get_autocast_dtype("cpu")
    assert seen == [(True, False, False, low, "cpu")] * 2 + [(False, False, False, low, "cpu")] * 2 + [
        (False, True, False, low, "cpu")
    ] * 2 + [(True, False, True, torch.float16, "meta")]


def test_each_pass_draws_from_a_stream_of_its_own_and_the_caller_s_goes_on():
    """The same seed gives the same numbers, and the numbers of a pass do not depend on what the others draw."""
    model = convert_norms(nn.Sequential(nn.BatchNorm1d(2)), "sync_batch")

    def drawn(others: int) -> tuple[list[list[float]], float]:
        torch.manual_seed(5), random.seed(5)

        def run(count: int) -> list[float]:
            first = torch.rand(count).tolist()
            model(torch.ones(2, 2))
            return first[:1] + torch.rand(1).tolist()

        return in_step(model, [lambda: run(1), lambda: run(others)]), torch.rand(1).item()

    (once, after), (again, after_again) = drawn(1), drawn(1)
    assert (once, after) == (again, after_again)
    assert len({number for numbers in once for number in numbers} | {after}) == 5
    assert drawn(7)[0][0] == once[0]


@pytest.mark.parametrize("place", PLACES)
def test_a_failed_window_is_gone_when_its_error_is(place: str):
    """Its error holds the frames of all passes; with it goes what they made, without the collector's help."""
    model, inputs = convert_norms(net(skip), "sync_batch", offload=place), images(2)[0]
    made: list[weakref.ref[Tensor]] = []

    def run(index: int) -> Tensor:
        outputs = model(inputs[index : index + 1])
        made.append(weakref.ref(outputs))
        if index:
            raise ValueError
        return outputs.sum()

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError):
            in_step(model, [lambda index=index: run(index) for index in range(2)])
        assert [reference() for reference in made] == [None, None]
    finally:
        gc.enable()
