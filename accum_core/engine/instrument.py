"""What every instrument is, and the window that it looks at."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from accum_core import catalogue
from accum_core.engine.accumulate import MicroBatch
from accum_core.engine.objectives import Objective
from accum_core.engine.tolerant import is_out_of_memory
from accum_core.records import Incident


@dataclass(frozen=True, slots=True)
class Window:
    """One window as training sees it, between its last backward pass and the optimizer step.

    Attributes:
        model: with the accumulated gradient in ``.grad``.
        inputs, targets: all samples ``[B, ...]``, on the CPU.
        micro_batches: the same samples as they are accumulated.
        update: the update that this window makes, counted from 1.
        every: updates between two measurements.
        split_is_new: whether the window is the first one with its N and norm.
        loss_scale: factor on the gradient in ``.grad`` until the last backward pass is done.
        buffers: those that the window began with, once its passes are done.
        num_samples: in the training set, 0 where it is not known.
        draw: from indices to training samples and targets as this epoch shows them, on the CPU.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    micro_batches: Sequence[MicroBatch]
    objective: Objective
    update: int
    every: int
    split_is_new: bool
    loss_scale: float = 1.0
    buffers: Mapping[str, Tensor] | None = None
    num_samples: int = 0
    draw: Callable[[Sequence[int]], tuple[Tensor, Tensor]] | None = None


class Instrument:
    """A measure taken while a model trains; it changes nothing that training sees.

    Subclasses live in one file each under ``instruments`` and are named by it. Times and defaults: due on the first
    update and every ``Window.every`` updates after it.

    Attributes:
        seconds: spent inside the passes of the window that it watched last, which are not training's.
    """

    seconds: float = 0.0

    def due(self, window: Window) -> bool:
        """Whether to measure this window."""
        return (window.update - 1) % window.every == 0

    def watching(self, window: Window) -> AbstractContextManager[None]:
        """What is to hold while the passes of a window that is due are made, hooks for example; nothing by default."""
        return nullcontext()

    def after_micro_batch(self, window: Window, index: int) -> None:
        """Called after each backward pass of a window that is due."""

    def measure(self, window: Window) -> dict[str, Any]:
        """The fields to record, ready for JSON."""
        raise NotImplementedError


def load_instruments(extra: Collection[str] = ()) -> dict[str, Instrument]:
    """A new instance of every instrument that is one by default, and of those asked for, by its file's name.

    Args:
        extra: names of files with ``DEFAULT = False``; others are there anyway.
    """
    found: dict[str, Instrument] = {}
    for name, constants in catalogue.entries("instruments").items():
        if constants.get("DEFAULT", True) or name in extra:
            found[name] = importlib.import_module(f"accum_core.engine.instruments.{name}").create()
    return found


@contextmanager
def watching(instruments: Iterable[Instrument], window: Window) -> Iterator[None]:
    """``Instrument.watching`` of all that are due."""
    with ExitStack() as stack:
        for instrument in instruments:
            stack.enter_context(instrument.watching(window))
        yield


@contextmanager
def seeing(layers: Mapping[str, nn.Module], see: Callable[[str, Any], None]) -> Iterator[None]:
    """Have ``see(name, input)`` called before each forward pass of a layer; no hook stays behind."""
    handles = [
        layer.register_forward_pre_hook(partial(_tell, see, name), with_kwargs=True) for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tell(see: Callable[[str, Any], None], name: str, _: nn.Module, args: Sequence[Any], named: dict[str, Any]) -> None:
    see(name, next(iter((*args, *named.values())), None))


def measure_all(
    instruments: Mapping[str, Instrument], window: Window, incidents: list[Incident]
) -> dict[str, dict[str, Any]]:
    """The fields of each instrument that fits into the memory.

    Some pass the full batch at once, which a run with a small memory accumulates to avoid: it goes on without them.

    Args:
        incidents: what did not fit is added here.
    """
    found = {}
    for name, instrument in instruments.items():
        try:
            found[name] = instrument.measure(window)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            text = f"the memory was too small for the instrument {name}: nothing was measured"
            incidents.append(Incident(kind="out_of_memory", text=text))
    return found
