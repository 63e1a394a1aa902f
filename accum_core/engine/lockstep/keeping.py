"""Where a pass of a window that runs in step keeps what it needs later: as it is, on the host, or as a way to make it.

``none`` leaves everything on the device, where all passes of a window come to what one large batch needs. ``host``
moves what is saved for the backward pass there, and what a pass holds while it waits; on a CPU, whose memory is the
host's, that is everything where it is. ``recompute`` moves less: what
cheap operations make of something kept is made again when the backward pass asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from accum_core.engine.lockstep.contents import (
    Content,
    Given,
    is_cheap,
    is_mutable,
    layout_of,
    replaced,
    tensors_in,
    written,
)
from accum_core.engine.lockstep.device import Handle, Keep, is_rebased, unwatched
from accum_core.errors import SettingError
from accum_core.run_config import Offload

Away = dict[int, tuple[UntypedStorage, UntypedStorage]]
Known = dict[int, tuple[StorageWeakRef, Content | None]]  # the reference keeps its address from another storage
HOST: Final = torch.device("cpu")
SMALL: Final = 1024
"""Bytes that are not worth moving."""


class HostKeep(Keep, TorchDispatchMode):
    """Of one pass: saved tensors, and those that the pass holds while it waits, are on the host.

    Args:
        parameters: their storages, which are on the device anyway.
        recompute: make what is cheap again instead of moving it.
        away: storages that waiting passes have given up, and their bytes; shared by all passes of a window.
        known: storages that passes have written, and what is kept of their present content; shared likewise.
    """

    def __init__(self, parameters: frozenset[int], recompute: bool, away: Away, known: Known) -> None:
        TorchDispatchMode.__init__(self)
        self._parameters, self._recompute, self._away, self._contents = parameters, recompute, away, known
        self._fixed: dict[int, StorageWeakRef] = {}  # storages with views that forbid to rebase them
        self._live: list[TensorWeakRef] = []
        self._given_up: dict[int, tuple[Any, UntypedStorage]] = {}  # at the last meeting: what was known, and the bytes
        self._memo: dict[Content, Tensor] = {}

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
        return HostKeep(frozenset(), False, {}, {})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = _storages(kwargs.values(), _storages(args, set()))
        # What another pass made, such as a tensor that a layer caches, may be wanted here.
        if self._away:
            for place in inputs & self._away.keys():
                _bring(self._away, place)
        out = func(*args, **kwargs)
        self._note(func, args, kwargs, inputs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, inputs: set[int], out: Any) -> None:
        """Know what an operation has written."""
        if is_mutable(func):
            for tensor in written(func, args, kwargs):
                self._know(_storage(tensor), tensor, self._expression(tensor, func, args, kwargs, 0))
            return
        outputs = (out,) if isinstance(out, Tensor) else tuple(tensors_in((out,)))
        for index, tensor in enumerate(outputs):
            if not (place := _storage(tensor)):
                continue
            if place not in inputs:
                self._know(place, tensor, self._expression(tensor, func, args, kwargs, index))
                self._live.append(TensorWeakRef(tensor))
            elif len(outputs) > 1 or not torch.is_grad_enabled():
                # A view is no new content. One of several at once, made without gradients or by a Function of the
                # user's forbids to change its base in place.
                self._fixed[place] = StorageWeakRef(tensor.untyped_storage())

    def _expression(self, tensor: Tensor, func: Any, args: Any, kwargs: Any, index: int) -> Content | None:
        """How the tensor can be made again, if that is cheap."""
        if not self._recompute or not is_cheap(func):
            return None
        sources: list[Content] = []

        def source(tensor: Tensor) -> Content:
            """What stands for an argument, if it is kept."""
            place = _storage(tensor)
            content = Given(tensor) if place in self._parameters else self._known(place, tensor)
            if content is None:
                raise LookupError
            sources.append(content)
            return content

        try:
            args, kwargs = replaced(args, Tensor, source), replaced(kwargs, Tensor, source)
        except LookupError:
            return None
        return Content.expressed(tensor, sources, func, args, kwargs, index)

    def _know(self, place: int, tensor: Tensor, content: Content | None) -> None:
        if place:
            reference, _ = self._contents.get(place) or (StorageWeakRef(tensor.untyped_storage()), None)
            self._contents[place] = reference, content

    def _known(self, place: int, tensor: Tensor) -> Content | None:
        """The content of the tensor's storage, if it is kept and the tensor is the whole of it."""
        _, content = self._contents.get(place, (None, None))
        return content if content is not None and content.layout == layout_of(tensor) else None

    def made(self, tensor: Tensor, source: Handle, compute: Callable[[Tensor], Tensor]) -> None:
        """Note the output of a layer, whose computation this mode did not see."""
        content = Content.expressed(tensor, (source,), compute, (source,), {}) if self._recompute else None
        self._know(_storage(tensor), tensor, content)
        self._live.append(TensorWeakRef(tensor))

    def pack(self, tensor: Tensor) -> Handle:
        """On the host, once, however many operations save the same content."""
        if (place := _storage(tensor)) in self._parameters or not place:
            return Given(tensor)
        if (content := self._known(place, tensor)) is None:
            content = Content(tensor)
            content.host, _ = self.put(tensor)
            if self._contents.get(place, (None, content))[1] is None:
                self._know(place, tensor, content)
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
        copy: Tensor = host.to(device, non_blocking=True, copy=True)
        return copy

    def fetch(self, tensor: Tensor) -> None:
        """Move it back if it is away."""
        if self._away and (place := _storage(tensor)) in self._away:
            with unwatched():
                _bring(self._away, place)

    def pause(self) -> list[Tensor]:
        """Tensors with a graph that something in the pass still refers to, and that may change in place.

        Not views, whose base is among them, nor those whose ``.grad`` is asked for.
        """
        found = {id(tensor): (tensor, reference) for reference in self._live if (tensor := reference()) is not None}
        self._live = [reference for _, reference in found.values()]
        for place in [place for place, reference in self._fixed.items() if reference.expired()]:
            del self._fixed[place]
        return [
            tensor
            for tensor, _ in found.values()
            if tensor.grad_fn is not None
            and not (tensor._is_view() or tensor.retains_grad or _storage(tensor) in self._fixed)
        ]

    def leave(self) -> None:
        """Move what the pass still refers to, with a graph or without, to the host, and free it on the device."""
        before, self._given_up = self._given_up, {}
        for reference in self._live:
            if (tensor := reference()) is None:
                continue
            storage = tensor.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
            # One that numpy shares cannot be resized.
            if size >= SMALL and place not in self._parameters and storage.resizable():
                content, now = self._known(place, tensor), self._contents.get(place)
                host = content.bytes(size) if content is not None else None
                if host is None:
                    known, host = before.get(place, (None, None))
                    if host is None or known is not now:  # it has been written since
                        host = to_host(_bytes(storage)).untyped_storage()
                self._given_up[place] = now, host
                self._away[place] = storage, host
                storage.resize_(0)

    def check(self) -> None:
        """Whether no ``.grad`` is asked for of a tensor that has changed in place since.

        Raises:
            SettingError: it would be the part from after a normalising layer alone.
        """
        self._given_up = {}
        for reference in self._live:
            if (tensor := reference()) is not None and tensor.retains_grad and is_rebased(tensor):
                remedy = "was called when the tensor had passed a sync_batch layer; call it before, or use offload none"
                raise SettingError("retain_grad", list(tensor.shape), remedy)

    def end(self) -> None:
        """Move back what is not of any pass now, such as what is left of a tensor that a layer caches."""
        for place in list(self._away):
            _bring(self._away, place)
        self._contents.clear()

    def back(self) -> None:
        """Move back what no other pass has asked for."""
        for place in self._given_up:
            if place in self._away:
                _bring(self._away, place)


def keep_for(offload: Offload, model: nn.Module, passes: int) -> list[Keep]:
    """One a pass."""
    if offload == "none" or (offload == "host" and is_on_the_host(model)):
        return [Keep() for _ in range(passes)]
    parameters = frozenset(_storage(parameter) for parameter in model.parameters())
    away: Away = {}
    known: Known = {}
    return [HostKeep(parameters, offload == "recompute", away, known) for _ in range(passes)]


def is_on_the_host(model: nn.Module) -> bool:
    """Whether a model computes on the CPU, whose memory is the host's: to move there would only copy."""
    return all(tensor.device.type == "cpu" for tensor in chain(model.parameters(), model.buffers()))


def to_host(tensor: Tensor) -> Tensor:
    """A copy, in memory that a GPU copies to and from without waiting."""
    copy = torch.empty_like(tensor, device=HOST, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor, non_blocking=True)


def _bring(away: Away, place: int) -> None:
    """Give a storage its bytes back."""
    storage, host = away.pop(place)
    storage.resize_(host.nbytes())
    storage.copy_(host, non_blocking=True)


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _storage(tensor: Tensor) -> int:
    """Its address; 0 for what has none of its own, such as a sparse tensor."""
    try:
        place: int = tensor.untyped_storage()._cdata
        return place
    except NotImplementedError:
        return 0


def _storages(values: Iterable[Any], into: set[int]) -> set[int]:
    """Those of the tensors among an operation's arguments."""
    for value in values:
        if isinstance(value, Tensor):
            into.add(_storage(value))
        elif isinstance(value, (list, tuple)):
            _storages(value, into)
    return into
