"""Calls that advance together: each runs to a meeting point and waits there until all have come to it.

One call runs at any time. Each has a thread of its own, because a call that waits keeps its Python frames and what
torch holds for a thread: autocast, grad mode, hooks of saved tensors, modes. In a round the calls take turns in their
order. Each draws from torch's generators as if it ran alone, in a stream of its own: a block that is computed again for
its backward pass (torch.utils.checkpoint) starts from one state and has to meet the numbers that it met before.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accum_core.errors import SettingError

END = "the end of the model"


class Ended(BaseException):
    """Unwinds a call that waits when another one has failed; no ``except Exception`` on the way catches it."""


class Turns:
    """N calls in step.

    Attributes:
        present: the call that runs.

    Args:
        calls: what to run, each without arguments.
        around: contexts that each call runs in, made on its own thread.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], Any]],
        around: Callable[[int], Iterable[AbstractContextManager[Any]]],
    ) -> None:
        self.present = 0
        self._calls, self._around = calls, around
        count = len(calls)
        self._results: list[Any] = [None] * count
        self._values: list[Any] = [None] * count
        self._places: list[str | None] = [None] * count
        self._left = set(range(count))
        self._turns = [_closed() for _ in calls]
        self._main = _closed()
        self._error: BaseException | None = None
        self._joined: Sequence[Any] = ()
        self._streams: list[list[Tensor]] = []
        self._core: int | None = None

    def run(self) -> list[Any]:
        """The results of all calls, in their order.

        Raises:
            BaseException: the first error of any call, as it was raised, with a note that names the call. All others
                are unwound and their threads over by then.
        """
        inherited = _inherited()
        self._core = _present_core()
        self._streams = _streams(len(self._calls))
        state = _random_state()
        threads = []
        try:
            for index in range(len(self._calls)):
                run = contextvars.copy_context().run
                threads.append(threading.Thread(target=run, args=(self._thread, index, inherited), daemon=True))
                threads[-1].start()
        except BaseException as stop:  # those that have started end at once
            self._error = stop
            self._left = {index for index, thread in enumerate(threads) if thread.is_alive()}
        if self._left:
            self._turns[min(self._left)].release()
        while self._left:
            try:
                self._main.acquire()
            except BaseException as stop:  # a KeyboardInterrupt: all end at their next meeting point
                self._error = self._error or stop
        for thread in threads:
            if thread.ident is not None:  # it has been started
                thread.join()
        _set_random_state(state)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, and with it all that the calls made
        return self._results

    def meet(self, place: str, value: Any, join: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Wait until every call has come to this place; give the call's own part of what ``join`` makes of the values.

        Raises:
            SettingError: when another call of this round is at another place.
            Ended: when another call has failed.
        """
        index = self.present
        self._arrive(index, place)
        self._values[index] = value
        if index == len(self._calls) - 1:
            values, self._values = self._values, [None] * len(self._calls)
            self._joined = join(values)
        self._streams[index] = _random_state()
        self._pass_on(index)
        self._take(index)
        if self._error is not None:
            raise Ended
        return self._joined[index]

    def _arrive(self, index: int, place: str) -> None:
        self._places[index] = place
        # Those before it in this round wait, or have ended, where they went.
        if index and (other := self._places[index - 1]) != place:
            raise SettingError(
                "norm",
                "sync_batch",
                f"micro-batch {index + 1} of {len(self._calls)} came to {place} when those before it had come to "
                f"{other}; every micro-batch must pass the same normalising layers in the same order",
            )

    def _take(self, index: int) -> None:
        """Wait for the turn."""
        self._turns[index].acquire()
        self.present = index
        _set_random_state(self._streams[index])

    def _thread(self, index: int, inherited: Sequence[Callable[[], AbstractContextManager[Any]]]) -> None:
        if self._core is not None:
            os.sched_setaffinity(0, {self._core})  # of this thread alone
        self._take(index)
        try:
            if self._error is None:
                with ExitStack() as stack:
                    for context in inherited:
                        stack.enter_context(context())
                    for around in self._around(index):
                        stack.enter_context(around)
                    self._results[index] = self._calls[index]()
                self._arrive(index, END)
        except Ended:
            pass
        except BaseException as error:
            if self._error is None:
                error.add_note(f"in micro-batch {index + 1} of {len(self._calls)}, of a window that ran in step")
                self._error = error
        finally:
            self._left.discard(index)
            self._pass_on(index)

    def _pass_on(self, index: int) -> None:
        """The turn goes to the next call that is not over: after the last to the first, and at the end to ``run``."""
        if index + 1 in self._left:
            self._turns[index + 1].release()
        elif self._left:
            self._turns[min((later for later in self._left if later > index), default=min(self._left))].release()
        else:
            self._main.release()


def _closed() -> threading.Lock:
    """A gate that each ``release`` opens for one ``acquire``; faster than a semaphore, and one is all there is."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _present_core() -> int | None:
    """The core that all calls are to run on; None where they compute on several threads, or the system cannot say.

    Each turn would otherwise wake up on another core, whose caches hold nothing of what the last turn computed: a
    window of landcover took 3.2 times as long as naive accumulation, and takes 2.4 times as long (docs/log.md).
    """
    if torch.get_num_threads() > 1 or not hasattr(os, "sched_setaffinity"):
        return None
    core = int(ctypes.CDLL(None).sched_getcpu())
    return core if core in os.sched_getaffinity(0) else None


def _inherited() -> list[Callable[[], AbstractContextManager[Any]]]:
    """What torch keeps for each thread, of the thread that asks for the calls."""
    contexts: list[Callable[[], AbstractContextManager[Any]]] = []
    contexts.append(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    if torch.is_inference_mode_enabled():
        contexts.append(torch.inference_mode)
    if (device := torch.get_default_device()).type != "cpu":
        contexts.append(lambda: device)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            contexts.append(partial(torch.autocast, kind, torch.get_autocast_dtype(kind)))
    if torch.cuda.is_initialized():
        contexts.append(partial(torch.cuda.stream, torch.cuda.current_stream()))
    return contexts


def _generators() -> Sequence[torch.Generator]:
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return torch.default_generator, *on_gpus


def _random_state() -> list[Tensor]:
    return [generator.get_state() for generator in _generators()]


def _set_random_state(state: list[Tensor]) -> None:
    # A GPU that was first used meanwhile has no state here yet, and goes on from its own.
    for generator, own in zip(_generators(), state, strict=False):
        generator.set_state(own)


def _streams(count: int) -> list[list[Tensor]]:
    """A random state for each call to start from, all drawn from the present one."""
    present = _random_state()
    seeds = torch.randint(2**62, (count,), device="cpu").tolist()
    after, streams = _random_state(), []
    for seed in seeds:
        streams.append([generator.manual_seed(seed).get_state() for generator in _generators()])
    _set_random_state([after[0], *present[1:]])
    return streams
