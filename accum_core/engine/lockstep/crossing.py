"""What autograd sees of a normalising layer that all passes of a window meet at.

It is three nodes: ``Leave`` of each pass, one ``Join`` of all, ``Reach`` of each pass. What they hand on to one another
as gradients are tokens of one number, which say that something has happened. The tensors go by the ``Crossing``, where
they can be put away while the pass waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from accum_core.engine.lockstep.device import Handle, Keep
from accum_core.engine.lockstep.meeting import Meeting
from accum_core.errors import SettingError


class Crossing:
    """A pass on its way through a meeting.

    Args:
        entered: called when the backward pass comes to what this pass computed before the meeting.

    Besides the input go the tensors that the pass goes on with: what comes back for them in the backward pass would
    wait on the device until all passes are through.
    """

    __slots__ = ("_back", "_task", "entered", "input", "keep", "meeting")

    def __init__(self, keep: Keep, input: Tensor, entered: Callable[[], None]) -> None:
        self.keep, self.entered = keep, entered
        self.input: Handle = keep.pack(input.detach())
        self.meeting: Meeting | None = None
        self._back: list[Handle | None] = []
        self._task = -1  # the backward pass that they are of

    def stash(self, gradients: Sequence[Tensor | None]) -> None:
        """The gradients of y and of what is held have come, and wait."""
        assert self.meeting is not None
        if gradients[0] is not None:
            self.meeting.add(self.keep.unpack(self.input), gradients[0])
        self._task = torch._C._current_graph_task_id()
        self._back = [None if gradient is None else self.keep.put(gradient) for gradient in gradients]

    def take(self, needed: bool) -> list[Tensor | None]:
        """The gradients of the input, if needed, and of what is held."""
        self.entered()
        assert self.meeting is not None
        handles, self._back = self._back, []
        if not handles or self._task != torch._C._current_graph_task_id():
            handles = [None]  # nothing that this backward pass begins from depends on what the pass computed later
        back = [None if handle is None else self.keep.take(handle) for handle in handles]
        return [self.meeting.gradient(self.keep.unpack(self.input), back[0]) if needed else None, *back[1:]]


class Reach(Function):
    """Before the meeting: a pass's input, and what it holds besides, become a token."""

    @staticmethod
    def forward(ctx: Any, crossing: Crossing, input: Tensor, *held: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.crossing = crossing
        return input.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tokens: Tensor | None) -> Any:
        found = ctx.crossing.take(ctx.needs_input_grad[1])
        return None, found[0], *found[1:], *[None] * (len(ctx.needs_input_grad) - 1 - len(found))


class Join(Function):
    """The meeting: tokens of all passes become tokens of all passes.

    Where ranks share the window, one token more goes from each meeting to the next and to the end of each pass: every
    backward pass then comes to all meetings, in one order, on a rank whose loss depends on none of them too. The other
    ranks wait for it there.
    """

    @staticmethod
    def forward(ctx: Any, meeting: Meeting, weight: Tensor | None, bias: Tensor | None, *tokens: Tensor) -> Any:
        ctx.meeting, ctx.types = meeting, [None if part is None else part.dtype for part in (weight, bias)]
        return tuple(torch.zeros_like(token) for token in tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tokens: Tensor) -> Any:
        sums = ctx.meeting.close()
        pairs = zip(sums, ctx.types, strict=True)
        affine = (None if part is None or dtype is None else part.to(dtype) for part, dtype in pairs)
        return None, *affine, *tokens


class Leave(Function):
    """After the meeting: a token becomes y, and what the pass holds goes on from here in place."""

    @staticmethod
    def forward(ctx: Any, crossing: Crossing, input: Tensor, token: Tensor, *held: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(*held)
        ctx.crossing, ctx.token = crossing, token.detach()  # a zero of its kind
        assert crossing.meeting is not None
        return crossing.meeting.normalise(input), *held

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.crossing.stash(gradients)
        return None, None, ctx.token, *[None] * (len(gradients) - 1)


class Again(Function):
    """A layer computed a second time, for a block's backward pass: its numbers without its graph."""

    @staticmethod
    def forward(ctx: Any, meeting: Meeting, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return meeting.normalise(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        remedy = "computes blocks again under torch.utils.checkpoint with use_reentrant=True; use use_reentrant=False"
        raise SettingError("norm", "sync_batch", remedy)


class Begin(Function):
    """The end of a pass, where its backward pass begins; after it come the meetings, by the token of the last."""

    @staticmethod
    def forward(ctx: Any, entered: Callable[[], None], last: Tensor | None, *results: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.entered = entered
        return tuple(result.view_as(result) for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.entered()
        return None, None, *gradients


def hooks_of(tensor: Tensor) -> Any:
    """A tensor's hooks, which belong to its gradient as a whole when it changes in place, those added later too."""
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
    return tensor._backward_hooks
