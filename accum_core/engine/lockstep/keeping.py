"""Where a pass of a window that runs in step keeps what it needs later: as it is, on the host, or as a way to make it.

``none`` leaves everything on the device, where all passes of a window come to what one large batch needs. ``host``
moves what is saved for the backward pass there, and what a pass holds while it waits. ``recompute`` moves less: what
cheap operations make of something kept is made again when the backward pass asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from accum_core.engine.lockstep.contents import Content, Given, is_cheap, layout_of, replaced, tensors_in, written
from accum_core.engine.lockstep.device import Handle, Keep, is_rebased, unwatched
from accum_core.errors import SettingError
from accum_core.run_config import Offload

Away = dict[int, tuple[UntypedStorage, Tensor]]
Known = dict[int, tuple[StorageWeakRef, Content]]
SMALL = 1024
"""Bytes that are not worth moving."""


class HostKeep(Keep, TorchDispatchMode):
    """Of one pass: saved tensors, and those that the pass holds while it waits, are on the host.

    Args:
        parameters: their storages, which are on the device anyway.
        recompute: make what is cheap again instead of moving it.
        away: storages that waiting passes have given up, and their bytes; shared by all passes of a window.
        known: what each pass knows of the storages that it has written; shared by all passes of a window.
    """

    def __init__(self, parameters: frozenset[int], recompute: bool, away: Away, known: list[Known]) -> None:
        TorchDispatchMode.__init__(self)
        self._parameters, self._recompute, self._away, self._everyone = parameters, recompute, away, known
        self._contents: Known = {}
        known.append(self._contents)
        self._fixed: dict[int, StorageWeakRef] = {}  # storages with views that forbid to rebase them
        self._live: list[TensorWeakRef] = []
        self._memo: dict[Content, Tensor] = {}
        self._watches = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # guarding against a compiler that does not run costs more than the rest

    def contexts(self) -> Iterable[AbstractContextManager[Any]]:
        """Hooks for what autograd saves, and this mode, which sees what the pass computes."""
        return saved_tensors_hooks(self.pack, self.unpack), self

    def around(self) -> AbstractContextManager[Any]:
        """Torch notes in one place for all threads whether a mode is on, and each mode puts back what it found.

        Passes begin and end in the same order, so the last to end would leave it noted as on.
        """
        return HostKeep(frozenset(), False, {}, [])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not (self._watches or self._away):
            return func(*args, **kwargs)
        inputs = {_storage(tensor) for tensor in tensors_in(args)}
        inputs.update(_storage(tensor) for tensor in tensors_in(kwargs.values()))
        # What another pass made, such as a tensor that a layer caches, may be wanted here.
        for place in inputs & self._away.keys():
            _bring(self._away, place)
        out = func(*args, **kwargs)
        if self._watches:
            self._note(func, args, kwargs, inputs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, inputs: set[int], out: Any) -> None:
        """Know what an operation has written."""
        if func._schema.is_mutable:
            for tensor in written(func, args, kwargs):
                if _storage(tensor) not in self._contents:  # another pass made it, and no longer knows it
                    for known in self._everyone:
                        known.pop(_storage(tensor), None)
                self._know(tensor, self._expression(tensor, func, args, kwargs, 0))
            return
        outputs = list(tensors_in((out,)))
        for index, tensor in enumerate(outputs):
            if not (place := _storage(tensor)):
                continue
            if place not in inputs:
                self._know(tensor, self._expression(tensor, func, args, kwargs, index))
                self._live.append(TensorWeakRef(tensor))
            elif len(outputs) > 1 or not torch.is_grad_enabled():
                # A view is no new content. One of several at once, made without gradients or by a Function of the
                # user's forbids to change its base in place.
                self._fixed[place] = StorageWeakRef(tensor.untyped_storage())

    def _expression(self, tensor: Tensor, func: Any, args: Any, kwargs: Any, index: int) -> Content:
        content = Content(tensor)
        if not self._recompute or not is_cheap(func):
            return content
        try:
            args, kwargs = replaced(args, Tensor, self._source), replaced(kwargs, Tensor, self._source)
        except LookupError:
            return content
        content.express(func, args, kwargs, index)
        return content

    def _source(self, tensor: Tensor) -> Content:
        """What stands for an operation's argument.

        Raises:
            LookupError: when nothing does.
        """
        if _storage(tensor) in self._parameters:
            return Given(tensor)
        if (content := self._known(tensor)) is None:
            raise LookupError
        return content

    def _know(self, tensor: Tensor, content: Content) -> None:
        if place := _storage(tensor):
            self._contents[place] = StorageWeakRef(tensor.untyped_storage()), content

    def _known(self, tensor: Tensor) -> Content | None:
        """The content of the tensor's storage, if the tensor is the whole of it."""
        reference, content = self._contents.get(_storage(tensor), (None, None))
        if reference is None or content is None or reference.expired() or content.layout != layout_of(tensor):
            return None
        return content

    def made(self, tensor: Tensor, source: Handle, compute: Callable[[Tensor], Tensor]) -> None:
        """Note the output of a layer, whose computation this mode did not see."""
        content = Content(tensor)
        if self._recompute:
            content.express(compute, (source,), {}, 0)
        self._know(tensor, content)
        self._live.append(TensorWeakRef(tensor))

    def pack(self, tensor: Tensor) -> Handle:
        """On the host, once, however many operations save the same content."""
        if (place := _storage(tensor)) in self._parameters or not place:
            return Given(tensor)
        content = self._known(tensor) or Content(tensor)
        if not content.is_kept:
            content.host, _ = self.put(tensor)
        return content

    def unpack(self, handle: Handle) -> Tensor:
        """Moved back or computed again, once for all that ask in one part of the model."""
        found: Tensor = handle.tensor(self._memo)
        return found

    def forget(self) -> None:
        """Let go of what was unpacked."""
        self._memo.clear()

    def put(self, tensor: Tensor) -> Handle:
        """A copy on the host, and the device that it belongs to."""
        self.fetch(tensor)  # autograd saves an operation's inputs before this mode sees it
        with unwatched():
            return to_host(tensor.detach()), tensor.device

    def take(self, handle: Handle) -> Tensor:
        """A copy on the device."""
        host, device = handle
        return torch.empty_like(host, device=device, pin_memory=False).copy_(host, non_blocking=True)

    def fetch(self, tensor: Tensor) -> None:
        """Move it back if it is away."""
        if self._away and (place := _storage(tensor)) in self._away:
            _bring(self._away, place)

    def pause(self) -> list[Tensor]:
        """Tensors with a graph that something in the pass still refers to, and that may change in place.

        Not views, whose base is among them, nor those whose ``.grad`` is asked for.
        """
        self._watches = False
        found = {id(tensor): tensor for reference in self._live if (tensor := reference()) is not None}
        self._live = [TensorWeakRef(tensor) for tensor in found.values()]
        for known in (self._contents, self._fixed):
            for place in [place for place, entry in known.items() if _expired(entry)]:
                del known[place]
        return [
            tensor
            for place, tensor in ((_storage(tensor), tensor) for tensor in found.values())
            if tensor.grad_fn is not None and not (tensor._is_view() or tensor.retains_grad or place in self._fixed)
        ]

    def leave(self) -> None:
        """Move what the pass still refers to, with a graph or without, to the host, and free it on the device."""
        self._watches = False
        for reference in self._live:
            if (tensor := reference()) is None:
                continue
            storage = tensor.untyped_storage()
            # One that numpy shares cannot be resized.
            if storage.nbytes() >= SMALL and storage._cdata not in self._parameters and storage.resizable():
                content = self._known(tensor)
                host = content.bytes(storage.nbytes()) if content is not None else None
                self._away[storage._cdata] = storage, to_host(_bytes(storage)) if host is None else host
                storage.resize_(0)

    def check(self) -> None:
        """Whether no ``.grad`` is asked for of a tensor that has changed in place since.

        Raises:
            SettingError: it would be the part from after a normalising layer alone.
        """
        for reference in self._live:
            if (tensor := reference()) is not None and tensor.retains_grad and is_rebased(tensor):
                remedy = "was called when the tensor had passed a sync_batch layer; call it before, or use offload none"
                raise SettingError("retain_grad", list(tensor.shape), remedy)

    def end(self) -> None:
        """Move back what is not of any pass now, such as what is left of a tensor that a layer caches."""
        for place in list(self._away):
            _bring(self._away, place)

    def back(self) -> None:
        """Move back what no other pass has asked for."""
        for reference in self._live:
            if (tensor := reference()) is not None and (place := _storage(tensor)) in self._away:
                _bring(self._away, place)

    def watch(self) -> None:
        """Know what is computed from here."""
        self._watches = True


def keep_for(offload: Offload, model: nn.Module, passes: int) -> list[Keep]:
    """One a pass."""
    if offload == "none":
        return [Keep() for _ in range(passes)]
    parameters = frozenset(_storage(parameter) for parameter in model.parameters())
    away: Away = {}
    known: list[Known] = []
    return [HostKeep(parameters, offload == "recompute", away, known) for _ in range(passes)]


def to_host(tensor: Tensor) -> Tensor:
    """A copy, in memory that a GPU copies to and from without waiting."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor, non_blocking=True)


def _bring(away: Away, place: int) -> None:
    """Give a storage its bytes back."""
    storage, host = away.pop(place)
    storage.resize_(host.numel())
    _bytes(storage).copy_(host, non_blocking=True)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _storage(tensor: Tensor) -> int:
    """Its address; 0 for what has none of its own, such as a sparse tensor."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0


def _expired(entry: Any) -> bool:
    reference = entry[0] if isinstance(entry, tuple) else entry
    return bool(reference.expired())
