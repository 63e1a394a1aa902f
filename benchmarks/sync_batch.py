"""What ``sync_batch`` costs: bytes on the device and on the host, and time, of one window.

``python -m benchmarks sync_batch`` writes results/sync_batch_costs.json, which the page Normalisation shows. Held
against one another: naive accumulation of the same micro-batches with BatchNorm, a window in step with each place to
keep its work in, and one true batch. On the CPU the bytes are counted by where they would live: copies that a window
makes for the host count there, everything else that is alive counts on the device, parameters and data aside. On a CPU
``host`` has nowhere to move to and is ``none``; here it moves all the same, as for a GPU.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.environment import describe
from accum_core.engine.lockstep import keeping
from accum_core.engine.lockstep.meeting import Meeting
from accum_core.engine.window import Accumulation, MicroBatch
from accum_core.engine.workloads import load
from benchmarks import Result

REPORT: Final = Path(__file__).parents[1] / "results" / "sync_batch_costs.json"
EFFECTIVE: Final = 32
SIZES: Final = (1, 2, 4, 8)
PLACES: Final = ("none", "host", "recompute")
MODELS: Final = ("unet", "deeplab")
REPEATS: Final = 25
DEVICE_BAR, TIME_BAR = 1.25, 2.5
Ways = dict[str, list[MicroBatch]]


@dataclass(frozen=True, slots=True)
class Row:
    """One window. ``how`` is "naive", a place to keep its work in, or "true_batch"; bytes are peaks."""

    model: str
    micro_batch_size: int
    how: str
    device_bytes: int
    host_bytes: int
    seconds: float


class Bytes(TorchDispatchMode):
    """Counts the bytes of all storages made while it is on, and their highest sum after any operation.

    A storage belongs to the host once ``to_host`` has made it.
    """

    def __init__(self, device: dict[int, StorageWeakRef], host: dict[int, StorageWeakRef], peaks: list[int]) -> None:
        super().__init__()
        self.device, self.host, self.peaks = device, host, peaks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = {_place(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and _place(leaf) not in known | self.host.keys():
                self.device[_place(leaf)] = StorageWeakRef(leaf.untyped_storage())
        self.count()
        return out

    def made(self, tensor: Tensor) -> Tensor:
        """Note a tensor that was made where no mode looks."""
        self.device[_place(tensor)] = StorageWeakRef(tensor.untyped_storage())
        self.count()
        return tensor

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy as a window does, and note where the copy belongs."""
        made = torch.empty_like(tensor).copy_(tensor)
        self.host[_place(made)] = StorageWeakRef(made.untyped_storage())
        self.device.pop(_place(made), None)
        self.count()
        return made

    def count(self) -> None:
        """Take the present sums."""
        for which, storages in enumerate((self.device, self.host)):
            for place in [place for place, reference in storages.items() if reference.expired()]:
                del storages[place]
            present = sum(_size(reference) for reference in storages.values())
            self.peaks[which] = max(self.peaks[which], present)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(reference: StorageWeakRef) -> int:
    storage = UntypedStorage._new_with_weak_ptr(reference.cdata)
    return 0 if storage is None else int(storage.nbytes())


def peak_bytes(model: nn.Module, window: Callable[[nn.Module], Any]) -> tuple[int, int]:
    """Peak bytes on the device and on the host while a window is made, besides what was there before it."""
    device: dict[int, StorageWeakRef] = {}
    host: dict[int, StorageWeakRef] = {}
    peaks = [0, 0]

    def watched() -> Bytes:
        return Bytes(device, host, peaks)

    forward, normalise = Accumulation._forward, Meeting.normalise

    def counted(self: Accumulation, index: int) -> Any:
        # Passes in step have threads of their own, and a mode counts on one thread alone.
        with watched():
            return forward(self, index)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Accumulation, "_forward", counted))
        stack.enter_context(patch.object(Meeting, "normalise", lambda *args: watched().made(normalise(*args))))
        stack.enter_context(patch.object(keeping, "to_host", watched().to_host))
        stack.enter_context(watched())
        window(model)
    return peaks[0], peaks[1]


def moving() -> AbstractContextManager[Any]:
    """Windows move their work on a CPU too."""
    return patch.object(keeping, "is_on_the_host", return_value=False)


def rows() -> Iterator[Row]:
    """Every network, micro-batch size and way to accumulate; a network that pools to one pixel cannot do with one
    sample at a time where each micro-batch is normalised by itself."""
    workload = load("landcover")
    inputs, targets = workload.samples(range(EFFECTIVE))
    for name in MODELS:
        torch.manual_seed(0)
        network = workload.build_model(name).to(memory_format=torch.channels_last)
        for micro in SIZES if name == "unet" else SIZES[1:]:
            micro_batches = [(inputs[i : i + micro], targets[i : i + micro]) for i in range(0, EFFECTIVE, micro)]
            ways = dict.fromkeys(("naive", *PLACES), micro_batches) | {"true_batch": [(inputs, targets)]}

            def window(model: nn.Module, how: str, ways: Ways = ways) -> None:
                accumulate_gradients(model, ways[how], workload.objective)

            models = {
                how: convert_norms(copy.deepcopy(network), "sync_batch", offload=how)
                if how in PLACES
                else convert_norms(copy.deepcopy(network), "batch")
                for how in ways
            }
            seconds = dict.fromkeys(ways, float("inf"))
            for _ in range(REPEATS + 1):  # in turn, so that a busy moment of the machine meets all of them
                for how, model in models.items():
                    started = time.perf_counter()
                    window(model, how)
                    seconds[how] = min(seconds[how], time.perf_counter() - started)
            for how, model in models.items():
                model.zero_grad()
                device, host = peak_bytes(model, partial(window, how=how))
                yield Row(f"landcover {name}", micro, how, device, host, seconds[how])


def measure() -> list[Result]:
    """The largest ratios to naive accumulation of the same micro-batches, and the file."""
    torch.set_num_threads(1)
    with moving():
        table = list(rows())
    environment = describe(torch.device("cpu"))
    written = {
        "effective_batch_size": EFFECTIVE,
        "environment": environment.model_dump(),
        "rows": [asdict(row) for row in table],
    }
    REPORT.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    naive = {(row.model, row.micro_batch_size): row for row in table if row.how == "naive"}
    results = []
    for how, quantity in (*product(("host", "recompute"), ("device_bytes", "seconds")), ("none", "seconds")):
        of_how = [row for row in table if row.how == how]
        ratios = {
            row: getattr(row, quantity) / getattr(naive[row.model, row.micro_batch_size], quantity) for row in of_how
        }
        worst = max(ratios, key=lambda row: ratios[row])
        bar = DEVICE_BAR if quantity == "device_bytes" else TIME_BAR
        place = "host on a CPU, which is none" if how == "none" else how
        name = f"sync_batch, {place}: {'device memory' if quantity == 'device_bytes' else 'time'} against naive"
        detail = f"worst of {len(ratios)}: {worst.model} at micro-batch {worst.micro_batch_size}, effective {EFFECTIVE}"
        results.append(Result(name, ratios[worst], bar, "x", detail))
    return results
