"""A pass of a window that runs in step and keeps all that it needs later where it is, on the device.

``HostKeep`` of ``keeping`` moves it elsewhere; both are what a layer sees of the pass that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from accum_core.engine.lockstep.contents import Given

Handle = Any
"""What stands for a tensor until it is unpacked."""


class Keep:
    """Of one pass: everything stays where it is."""

    def contexts(self) -> Iterable[AbstractContextManager[Any]]:
        """What the pass runs in, on its thread."""
        return ()

    def fetch(self, tensor: Tensor) -> None:
        """Have a tensor on the device that another pass may have made and put away."""

    def around(self) -> AbstractContextManager[Any]:
        """What all passes run in, on the thread that asks for them."""
        return nullcontext()

    def pack(self, tensor: Tensor) -> Handle:
        """Keep a tensor for the backward pass."""
        return Given(tensor)

    def unpack(self, handle: Handle) -> Tensor:
        """The tensor again, on its device."""
        found: Tensor = handle.tensor({})
        return found

    def put(self, tensor: Tensor) -> Handle:
        """Keep a tensor that is taken once."""
        return tensor

    def take(self, handle: Handle) -> Tensor:
        """What was put."""
        assert isinstance(handle, Tensor)
        return handle

    def pause(self) -> list[Tensor]:
        """A meeting begins: what the pass goes on with after it, and what a gradient will come back for."""
        return []

    def made(self, tensor: Tensor, source: Handle, compute: Callable[[Tensor], Tensor]) -> None:
        """Note how a tensor was made of something kept."""

    def leave(self) -> None:
        """The pass is about to wait."""

    def back(self) -> None:
        """The pass goes on: what it held is here again."""

    def check(self) -> None:
        """The pass is over, and what it asked of autograd can be given."""

    def end(self) -> None:
        """The window's passes are over: nothing that is left of them is away."""

    def forget(self) -> None:
        """The backward pass comes to another part of the model."""


def is_rebased(tensor: Tensor) -> bool:
    """Whether the tensor, with a graph, has passed a layer that it was no output of."""
    return tensor.output_nr > 0 and type(tensor.grad_fn).__name__ == "LeaveBackward"


def unwatched() -> AbstractContextManager[None]:
    """Without modes: what is computed here is no pass's."""
    guard: AbstractContextManager[None] = torch._C._DisableTorchDispatch()
    return guard
