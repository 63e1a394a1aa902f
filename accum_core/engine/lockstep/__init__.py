"""A window whose passes run in step, so that its ``sync_batch`` layers see all of its samples.

``turns`` runs the passes, ``meeting`` is what happens at a layer and ``crossing`` what autograd sees of it, ``keeping``
and ``device`` are where a pass keeps what it needs later, ``contents`` as what. docs/sync_batch_norm.md has the
mathematics and the reasons.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from accum_core.engine.lockstep.crossing import Again, Begin, Crossing, Join, Leave, Reach, hooks_of
from accum_core.engine.lockstep.device import Keep, unwatched
from accum_core.engine.lockstep.keeping import keep_for
from accum_core.engine.lockstep.meeting import Meeting, Moments
from accum_core.engine.lockstep.turns import Turns
from accum_core.engine.norms.sync_batch import IN_A_PASS, WindowBatchNorm
from accum_core.engine.ranks import any_over_ranks
from accum_core.errors import SettingError
from accum_core.run_config import Offload

Result = TypeVar("Result")

__all__ = ["has_to_step", "in_step", "note_micro_batch", "window_layers"]


def window_layers(model: nn.Module) -> dict[WindowBatchNorm, str]:
    """The ``sync_batch`` layers of a model and their names; without any its passes need not run in step."""
    return {module: name for name, module in model.named_modules() if isinstance(module, WindowBatchNorm)}


def has_to_step(model: nn.Module, passes: int, world_size: int) -> bool:
    """Whether a window of so many passes on this rank has to run in step.

    Raises:
        SettingError: on every rank, when one has no pass: the others would wait for it at each layer.
    """
    if (passes == 1 and world_size == 1) or not _looks_over_a_window(model):
        return False
    if any_over_ranks(passes == 0, world_size):
        remedy = "leaves a rank without a micro-batch, and sync_batch layers wait for all; use fewer ranks"
        raise SettingError("world_size", world_size, remedy)
    return True


def _looks_over_a_window(module: nn.Module) -> bool:
    """Whether a ``sync_batch`` layer is in it. Asked once a window, so by the children themselves: their names, which
    ``nn.Module.modules`` makes up on the way, cost a two-layer network two percent."""
    return isinstance(module, WindowBatchNorm) or any(
        _looks_over_a_window(child) for child in module._modules.values() if child is not None
    )


def in_step(
    model: nn.Module,
    passes: Sequence[Callable[[], Result]],
    *,
    offload: Offload | None = None,
    world_size: int = 1,
) -> list[Result]:
    """Run the passes of one window together: its ``sync_batch`` layers normalise over all samples of all passes.

    The results have one graph: call ``backward`` on their sum once. Gradients and running statistics are then those of
    one pass of all samples, to rounding (tests/test_sync_batch.py). The running statistics have moved when this
    returns. In a plain loop:

    >>> model = sync_batch.convert(model)
    >>> losses = in_step(model, [lambda x=x, y=y: loss(model(x), y) * len(x) / total for x, y in micro_batches])
    >>> sum(losses).backward()

    Args:
        model: whose layers wait for one another; called by each pass, with the same layers in the same order.
        passes: one a micro-batch, in the order in which they draw random numbers. Each gives tensors with a graph, or
            any nest of them.
        offload: where what is saved for the backward pass is kept: ``none`` on the device, ``host``, or ``recompute``,
            which computes again what is cheap and keeps the rest on the host; by default what the layers say.
        world_size: ranks that share the window (torch.distributed); each has a pass at least.

    Raises:
        SettingError: for no passes, a model that has not been converted, passes that part ways, or one that asks for a
            gradient itself.
        BaseException: the first error of a pass, with a note that names its micro-batch; all others have ended, and no
            running statistic has moved.
    """
    if not passes:
        raise SettingError("passes", [], "a window holds at least one micro-batch")
    if not window_layers(model) and any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules()):
        remedy = "has BatchNorm and no sync_batch layer; convert it first, by sync_batch.convert(model)"
        raise SettingError("model", type(model).__name__, remedy)
    keeps = keep_for(offload or _offload(model), model, len(passes))
    return _Window(model, keeps, world_size).run(passes)


def note_micro_batch(model: nn.Module, error: BaseException) -> None:
    """Say in a note which micro-batch a backward pass was in when it failed."""
    for layer in window_layers(model):
        if isinstance(window := layer.window(), _Window):
            window.note(error)
            return


def _offload(model: nn.Module) -> Offload:
    for layer in window_layers(model):
        return layer.offload
    return "none"


class _Window:
    """One window in step: what its layers call, and what its backward pass needs."""

    def __init__(self, model: nn.Module, keeps: Sequence[Keep], world_size: int) -> None:
        self._names = window_layers(model)
        self._weights = {layer: layer._parameters.get("weight") for layer in self._names}
        self._keeps, self._world_size = keeps, world_size
        self._turns: Turns | None = None
        self._calls: dict[WindowBatchNorm, list[Meeting]] = {}
        self._moves: list[Callable[[], None]] = []
        self._last: Tensor | None = None  # the token that goes from each meeting to the next, over ranks
        self._entered, self._task = 0, -1  # whose part of the model the backward pass is in, and which backward pass

    def run(self, passes: Sequence[Callable[[], Any]]) -> list[Any]:
        for layer in self._names:
            layer.window = weakref.ref(self)
        self._turns = Turns([partial(self._pass, call) for call in passes], self._contexts)
        try:
            with self._keeps[0].around():
                results = self._turns.run()
        finally:
            self._turns = None
            self._keeps[0].end()
        for move in self._moves:
            move()
        return results

    def _contexts(self, index: int) -> Iterable[AbstractContextManager[Any]]:
        return self._keeps[index].contexts()

    def _pass(self, call: Callable[[], Any]) -> Any:
        """One pass, with the place where its backward pass begins."""
        assert self._turns is not None
        index = self._turns.present
        # A thread counts its autograd nodes from 0, and a backward pass takes the highest first. The nodes where a
        # pass's stretch begins get the numbers below these: one pass after the other goes through its stretch.
        IN_A_PASS.set(True)  # in the thread's own context
        with torch.enable_grad(), unwatched():
            base = torch.zeros((), requires_grad=True)
            for _ in self._keeps:
                base.view_as(base)
        leaves, structure = tree_flatten(call())
        self._keeps[index].check()
        with_graph = [place for place, leaf in enumerate(leaves) if self._has_graph(leaf)]
        if with_graph and torch.is_grad_enabled():
            begun = Begin.apply(partial(self._enter, index), self._last, *(leaves[place] for place in with_graph))
            begun[0].grad_fn._set_sequence_nr(index)
            for place, leaf in zip(with_graph, begun, strict=True):
                leaves[place] = leaf
        return tree_unflatten(leaves, structure)

    def _has_graph(self, result: Any) -> bool:
        """Whether a result of a pass leads back to a meeting; over ranks all numbers do."""
        if not isinstance(result, Tensor):
            return False
        over_ranks = self._last is not None and self._last.requires_grad and result.is_floating_point()
        return result.requires_grad or over_ranks

    def _enter(self, index: int) -> None:
        if self._turns is not None:
            remedy = "has no gradient inside a pass, when others have not come as far; ask for it after the window"
            raise SettingError("norm", "sync_batch", remedy)
        self._keeps[self._entered].forget()
        self._entered, self._task = index, torch._C._current_graph_task_id()

    def note(self, error: BaseException) -> None:
        """Name the pass that the backward pass is in."""
        error.add_note(f"in the backward pass of micro-batch {self._entered + 1} of {len(self._keeps)}, in step")

    # What a layer asks.

    def waits(self) -> bool:
        """In a pass of this window, or where a block of it is computed again for its backward pass."""
        return self._turns is not None or self._task == torch._C._current_graph_task_id() != -1

    def normalise(self, layer: WindowBatchNorm, input: Tensor) -> Tensor:
        """y of the present pass."""
        if self._turns is None:
            return self._again(layer, input)
        index = self._turns.present
        keep, affine = self._keeps[index], (layer.weight, layer.bias)
        keep.fetch(input)
        crossing = None
        held = keep.pause()
        with unwatched():
            own = Moments.of(input)
            if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (input, *affine)):
                crossing = Crossing(keep, input, partial(self._enter, index))
                token = Reach.apply(crossing, input, *held)
                if token.grad_fn is not None:
                    token.grad_fn._set_sequence_nr(index)
            else:
                token = input.new_zeros(())
            keep.leave()
        place = f"layer {self._names[layer]}"
        meeting, token = self._turns.meet(place, (own, token), partial(self._join, layer, input))
        output: Tensor
        with unwatched():
            keep.back()
            keep.fetch(input)  # where another pass made it, and waits at the next layer by now
        if crossing is None:
            output = meeting.normalise(input)
            return output
        with unwatched():
            crossing.meeting = meeting
            hooks = [hooks_of(tensor) for tensor in held]
            output, *_ = Leave.apply(crossing, input.detach(), token, *held)
            for tensor, own in zip(held, hooks, strict=True):
                tensor._backward_hooks = own
            keep.made(output, crossing.input, meeting.normalise)
        return output

    def _join(
        self, layer: WindowBatchNorm, like: Tensor, values: list[tuple[Moments, Tensor]]
    ) -> list[tuple[Meeting, Tensor]]:
        moments, tokens = zip(*values, strict=True)
        if len({token.requires_grad for token in tokens}) > 1:
            remedy = f"layer {self._names[layer]} has a gradient in some micro-batches only; train it in all or in none"
            raise SettingError("norm", "sync_batch", remedy)
        if layer._parameters.get("weight") is not self._weights[layer]:
            # Passes would put one another's parameters back.
            remedy = "has other parameters inside a pass (torch.func.functional_call); exchange them around the window"
            raise SettingError("model", f"layer {self._names[layer]}", remedy)
        with unwatched():
            meeting = Meeting(layer, self._names[layer], like, moments, self._world_size)
            if self._world_size > 1:
                last = tokens[0].new_zeros(()) if self._last is None else self._last
                self._last, *tokens = Join.apply(meeting, layer.weight, layer.bias, last, *tokens)
            else:
                tokens = Join.apply(meeting, layer.weight, layer.bias, *tokens)
        self._calls.setdefault(layer, []).append(meeting)
        self._moves.append(partial(layer.move, meeting.mean, meeting.variance))
        return [(meeting, token) for token in tokens]

    def _again(self, layer: WindowBatchNorm, input: Tensor) -> Tensor:
        """y of a call that has been made before: the one whose input had the same mean."""
        mean = Moments.of(input).mean
        meeting = min(self._calls[layer], key=lambda call: (call.own[self._entered] - mean).square().sum().item())
        output: Tensor = Again.apply(meeting, input, layer.weight, layer.bias)
        return output
