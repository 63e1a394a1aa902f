"""PyTorch-Ignite: ``create_supervised_trainer`` with ``gradient_accumulation_steps``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from ignite import distributed as idist
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from torch import Tensor, nn

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Batch, Outcome, Task

NAME = "ignite"
TITLE = "PyTorch-Ignite"
DISTRIBUTION = "pytorch-ignite"
ORDER = 70
DUTIES = ("schedule", "logged_loss")
EXPLANATIONS = {
    "ragged": "It divides the mean of each micro-batch by gradient_accumulation_steps.",
    "unequal_tokens": "It divides the mean of each micro-batch by gradient_accumulation_steps.",
    "ignored_pixels": "It divides the mean of each micro-batch by gradient_accumulation_steps.",
    "class_weights": "It divides the mean of each micro-batch by gradient_accumulation_steps.",
    "empty_micro_batch": "It divides by gradient_accumulation_steps, however many micro-batches have a label.",
    "two_ranks": "Each rank divides its micro-batches' means by gradient_accumulation_steps, and the exchange takes "
    "the mean of the ranks.",
    "short_window": "It steps at every N-th iteration, and iterations are counted on over epochs; what is left at the "
    "end of the run is never stepped.",
    "iterable": "It steps at every N-th iteration, and iterations are counted on over epochs; what is left at the end "
    "of the run is never stepped.",
    "n_above_epoch": "It steps at every N-th iteration, and iterations are counted on over epochs.",
    "schedule": "Its iterations are micro-batches, and a handler is called at each unless told otherwise.",
    "batch_norm": "Each micro-batch passes the layer alone; use layers that do not look across samples.",
    "resume": "A checkpoint holds no gradients, the loader begins at its first sample again, and the schedule counts "
    "micro-batches.",
    "logged_loss": "The engine's output is the loss of the micro-batch that it has just passed.",
}
MENDS = {
    "ragged": "Run an engine over windows, whose update function divides sums by the window's weight.",
    "unequal_tokens": "Run an engine over windows, whose update function divides sums by the window's weight.",
    "ignored_pixels": "Run an engine over windows, whose update function divides sums by the window's weight.",
    "class_weights": "Run an engine over windows, whose update function divides sums by the window's weight.",
    "empty_micro_batch": "Run an engine over windows, whose update function divides sums by the window's weight.",
    "two_ranks": "Run an engine over windows, whose update function divides sums by the weight over all ranks.",
    "short_window": "Run an engine over windows, of which an epoch's last may be short.",
    "iterable": "Run an engine over windows, of which an epoch's last may be short.",
    "n_above_epoch": "Run an engine over windows, of which an epoch's last may be short.",
    "schedule": "Run an engine over windows; or attach the handler at Events.ITERATION_COMPLETED(every=N).",
    "resume": "Run an engine over windows, save between windows alone, and pass over what was seen of the loader.",
    "logged_loss": "Run an engine over windows, whose update function returns the window's loss.",
}
DEFECTS = (
    (
        "LRScheduler skips the first rate of ExponentialLR",
        "In this version of PyTorch ExponentialLR decays at its first get_lr too, unless its own constructor calls it.",
        """
import torch
from ignite.engine import Engine, Events
from ignite.handlers import LRScheduler
from torch.optim.lr_scheduler import ExponentialLR

optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
trainer = Engine(lambda engine, batch: None)
trainer.add_event_handler(Events.ITERATION_STARTED, LRScheduler(ExponentialLR(optimizer, gamma=0.5)))
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: print(optimizer.param_groups[0]["lr"]))
trainer.run([0] * 3)  # 0.5, 0.25, 0.125
""",
    ),
    (
        "A deterministic trainer cannot be restored by load_objects",
        "Its state holds numpy's random state, which Checkpoint.load_objects refuses to read from a file.",
        """
import tempfile
from ignite.engine import DeterministicEngine, Events
from ignite.handlers import Checkpoint, DiskSaver

trainer = DeterministicEngine(lambda engine, batch: None)
with tempfile.TemporaryDirectory() as folder:
    saver = Checkpoint({"trainer": trainer}, DiskSaver(folder))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), saver)
    trainer.run([0] * 4)
    try:
        Checkpoint.load_objects({"trainer": trainer}, str(saver.last_checkpoint))
    except Exception as error:
        print(type(error).__name__)  # UnpicklingError
""",
    ),
    (
        "amp_mode is CUDA's autocast on any device",
        "On a CPU amp_mode='amp' trains in float32; only a warning of PyTorch says so.",
        """
import torch
from ignite.engine import create_supervised_trainer

network = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
trainer = create_supervised_trainer(
    network, optimizer, torch.nn.functional.mse_loss, device="cpu", amp_mode="amp",
    output_transform=lambda x, y, y_pred, loss: print(y_pred.dtype),
)
trainer.run([(torch.ones(1, 1), torch.ones(1, 1))])  # torch.float32
""",
    ),
)


def train(task: Task) -> Outcome:
    """Its factory of trainers; where that has no option, the hooks that it and PyTorch document."""
    stop = task.settings.stop_after or 0
    return in_processes(task, lambda: live_twice(task, micro_batches, stop) if stop else micro_batches(task))


def micro_batches(task: Task, stop_after: int = 0, resume_after: int = 0) -> Outcome:
    """The life of one process; an iteration of its engine is a micro-batch."""
    settings, steps = task.settings, task.settings.accumulation_steps
    optimizer = idist.auto_optim(plain.optimizer(task))
    trainer = create_supervised_trainer(
        idist.auto_model(task.model),
        optimizer,
        task.loss,
        prepare_batch=lambda batch, device, non_blocking: (batch["inputs"], batch["labels"]),
        model_fn=in_precision(task),
        gradient_accumulation_steps=steps,
    )
    scheduler = plain.scheduler(task, optimizer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    if bound := settings.clip_norm:

        def clip(*_: Any) -> None:
            nn.utils.clip_grad_norm_(task.model.parameters(), bound)

        optimizer.register_step_pre_hook(clip)
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=steps), lambda: losses.append(trainer.state.output))
    state = {"trainer": trainer, "model": task.model, "optimizer": optimizer, "scheduler": scheduler}
    save_and_restore(task, state, stop_after, resume_after)
    trainer.run(loader(task), max_epochs=settings.epochs)
    return Outcome(logged=losses)


def train_mended(task: Task) -> Outcome:
    """An engine over windows instead of micro-batches, with a training step of one's own."""
    stop = (task.settings.stop_after or 0) // task.settings.accumulation_steps
    return in_processes(task, lambda: live_twice(task, windows, stop) if stop else windows(task))


def windows(task: Task, stop_after: int = 0, resume_after: int = 0) -> Outcome:
    """The life of one process; an iteration of its engine is an update, and so all it does counts updates."""
    settings = task.settings
    model = idist.auto_model(task.model)
    optimizer = idist.auto_optim(plain.optimizer(task))
    forward = in_precision(task)

    def update(engine: Engine, window: list[Batch]) -> float:
        model.train()
        optimizer.zero_grad()
        weight = idist.all_reduce(sum(task.weight(batch["labels"]) for batch in window))
        summed = 0.0
        for batch in window:
            total = task.total(forward(model, batch["inputs"]), batch["labels"])
            # The exchange between ranks takes the mean of their gradients.
            (total * idist.get_world_size() / weight).backward()
            summed += total.item()
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        return float(idist.all_reduce(summed) / weight)

    trainer = Engine(update)
    scheduler = plain.scheduler(task, optimizer)
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
    state = {"trainer": trainer, "model": task.model, "optimizer": optimizer, "scheduler": scheduler}
    save_and_restore(task, state, stop_after, resume_after)
    data = Windows(loader(task), settings.accumulation_steps, skipped=resume_after)
    trainer.run(data, max_epochs=settings.epochs)
    return Outcome(logged=losses)


class Windows:
    """The micro-batches of a loader in lists of N, the last of which may be shorter.

    Args:
        batches: the loader.
        steps: N.
        skipped: windows of the first epoch that were seen before an interruption.
    """

    def __init__(self, batches: Any, steps: int, skipped: int) -> None:
        self.batches = batches
        self.steps = steps
        self.skipped = skipped

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / self.steps)

    def __iter__(self) -> Iterator[list[Batch]]:
        batches = islice(self.batches, self.skipped * self.steps, None)
        self.skipped = 0
        while window := list(islice(batches, self.steps)):
            yield window


def live_twice(task: Task, process: Callable[..., Outcome], stop_after: int) -> Outcome:
    """A process that is interrupted, and one that goes on from its checkpoint."""
    before = process(task, stop_after=stop_after)
    task.model.zero_grad()  # what the interrupted process held goes with it
    after = process(task, resume_after=stop_after)
    return Outcome(logged=[*before.logged, *after.logged])


def save_and_restore(task: Task, state: dict[str, Any], stop_after: int, resume_after: int) -> None:
    """Have the engine stop after an iteration and save its state there, or start from what was saved so."""
    if resume_after:
        Checkpoint.load_objects(state, str(task.folder / f"checkpoint_{resume_after}.pt"))
    if stop_after:
        here = Events.ITERATION_COMPLETED(once=stop_after)
        state["trainer"].add_event_handler(here, Checkpoint(state, DiskSaver(str(task.folder), require_empty=False)))
        state["trainer"].add_event_handler(here, state["trainer"].terminate)


def loader(task: Task) -> Any:
    """Micro-batches; over several ranks, each takes its part, and the given batch size is that of all of them."""
    settings = task.settings
    if settings.world_size == 1:
        return plain.loader(task)
    batch_size = settings.micro_batch_size * settings.world_size
    return idist.auto_dataloader(task.samples, batch_size=batch_size, shuffle=False, collate_fn=task.collate)


def in_precision(task: Task) -> Callable[[nn.Module, Tensor], Tensor]:
    """What calls the network; in bfloat16 through autocast, as ``amp_mode`` has that of CUDA in float16 alone."""

    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=task.settings.precision == "bfloat16"):
            output: Tensor = model(inputs)
        return output

    return forward


def in_processes(task: Task, training: Callable[[], Outcome]) -> Outcome:
    """Over several ranks, within the process group that the launcher's environment describes."""
    if task.settings.world_size == 1:
        return training()
    outcomes: list[Outcome] = []
    with idist.Parallel(backend="gloo") as ranks:
        ranks.run(lambda local_rank: outcomes.append(training()))  # it gives nothing back
    return outcomes[0]
