"""What a storage holds after one operation: kept on the host, or a short expression over what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload

LONGEST: Final = 12
"""Operations in an expression; a chain of residual sums would otherwise be computed again from its beginning."""
# Besides all pointwise operations: those that read and write each element about once.
CHEAP: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy",
        "cat",
        "clone",
        "constant_pad_nd",
        "hardswish",
        "hardswish_",
        "upsample_bilinear2d",
        "upsample_nearest2d",
    )
)

Layout = tuple[torch.Size, tuple[int, ...], int, torch.dtype, bool, bool]


def layout_of(tensor: Tensor) -> Layout:
    """Shape, strides, offset, type and marks of a lazy conjugate or negative: what of its storage a tensor is."""
    marks = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype, *marks


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or outputs, which nest lists and tuples alone."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def replaced(value: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """The same nest of arguments with each value of a kind replaced."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(each, kind, replace) for each in value])
    if isinstance(value, dict):
        return {name: replaced(each, kind, replace) for name, each in value.items()}
    return value


class Content:
    """A storage's content, as of one moment.

    Attributes:
        layout: of the tensor that is the whole of it.
        device: where it belongs.
        host: its copy there, if it is kept.
    """

    __slots__ = ("_length", "_made", "device", "host", "layout")  # there are thousands, and the collector counts them

    def __init__(self, tensor: Tensor) -> None:
        self.layout, self.device = layout_of(tensor), tensor.device
        self.host: Tensor | None = None
        self._made: tuple[Callable[..., Any], Any, Mapping[str, Any], int] | None = None
        self._length = 0

    @classmethod
    def expressed(
        cls,
        tensor: Tensor,
        sources: Sequence[Content],
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        index: int = 0,
    ) -> Content | None:
        """By how it is made; None if that takes too many operations.

        Args:
            sources: what stands in ``args`` and ``kwargs``, those of ``func``, for each tensor.
            index: which of the outputs.
        """
        length = 1 + sum(source._length for source in sources)
        if length > LONGEST:
            return None
        content = Content(tensor)
        content._made, content._length = (func, args, kwargs, index), length
        return content

    def bytes(self, size: int) -> UntypedStorage | None:
        """The copy on the host as it lies in memory, if it is kept and the whole of a storage of that size."""
        host, (_, strides, offset, _, *marks) = self.host, self.layout
        if host is None or offset or any(marks) or host.stride() != strides or host.nbytes != size:
            return None
        return host.untyped_storage()

    def tensor(self, memo: dict[Content, Tensor]) -> Tensor:
        """A copy of it on its device.

        Args:
            memo: what has been made already.
        """
        if (found := memo.get(self)) is not None:
            return found
        if self.host is not None:
            found = self.host.to(self.device, non_blocking=True, copy=True)
        else:
            assert self._made is not None
            func, args, kwargs, index = self._made
            changed = args[0] if isinstance(func, OpOverload) and is_mutable(func) else None
            others_use_it = changed in memo or isinstance(changed, Given)
            args, kwargs = (replaced(part, Content, lambda source: source.tensor(memo)) for part in (args, kwargs))
            if changed is not None and others_use_it:
                args = (args[0].clone(), *args[1:])
            elif changed is not None:
                del memo[changed]
            with torch._C._DisableAutocast():  # the types are those of the first time, whatever surrounds this
                out = func(*args, **kwargs)
            found = out if isinstance(out, Tensor) else list(tensors_in(out))[index]
        memo[self] = found
        return found


class Given(Content):
    """The content of a tensor that stays on the device, such as a parameter."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor)
        self._tensor, self._version = tensor, tensor._version

    def tensor(self, memo: dict[Content, Tensor]) -> Tensor:
        """The tensor itself.

        Raises:
            RuntimeError: if it has been changed in place, as without a window in step.
        """
        if self._tensor._version != self._version:
            raise RuntimeError(
                f"a tensor {list(self._tensor.shape)} that the backward pass needs has been changed in place since its "
                "forward pass; call backward before a step of the optimizer, and change the input of a normalising "
                "layer by operations that make a new tensor"
            )
        return self._tensor


@cache
def is_mutable(func: OpOverload) -> bool:
    """Whether an operation changes one of its arguments."""
    return bool(func._schema.is_mutable)


@cache
def is_cheap(func: OpOverload) -> bool:
    """Whether an operation reads and writes each element about once, draws nothing, and changes its first argument at
    most."""
    draws = torch.Tag.nondeterministic_seeded in func.tags
    written = [argument.name for argument in func._schema.arguments if _is_written(argument)]
    first = func._schema.arguments[0].name if func._schema.arguments else None
    return not draws and written in ([], [first]) and (torch.Tag.pointwise in func.tags or func._schema.name in CHEAP)


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation changes in place."""
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if _is_written(argument):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tensors_in((value,))
    return found


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
