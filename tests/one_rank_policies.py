"""What one rank of test_ranks_policies.py measures: what ranks decide together, and trainings over several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from over_ranks import Found, main
from small_nets import Product, ProductLoss, dense, gradients, gradients_of, product_batches, relative_error
from tiny_workload import TinyNet, TinyWorkload, tiny
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.batching import BatchPlan
from accum_core.engine import Training, training
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.precision import Precision
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.update import Updater
from accum_core.errors import NonFiniteLossError, OutOfMemoryError
from accum_core.reduction import LossReduction

RUNS: dict[str, dict[str, Any]] = {
    "plain": {"settings": {"tail": "rescale", "clip_norm": 0.5, "average_decay": 0.9}},
    "exchanging": {"settings": {"tail": "rescale", "exchange_every_micro_batch": True}},
    "adamw": {"settings": {"optimizer": "adamw", "learning_rate": 0.01, "tail": "rescale", "measure_every": 1}},
    "growing": {
        "settings": {
            "schedule": "step", "milestones": (2, 3), "decay_factor": 0.5, "decay": "batch", "tail": "rescale",
        },
    },
    "skip_micro_batch": {
        "settings": {"non_finite": "skip_micro_batch", "tail": "rescale"},
        "workload": {"poisoned": (3, 4, 11)},
    },
    "skip_window": {"settings": {"non_finite": "skip_window", "tail": "rescale"}, "workload": {"poisoned": (3,)}},
    "unlabelled": {"settings": {"tail": "rescale", "effective_batch_size": 4}, "workload": {"unlabelled": range(12)}},
}  # fmt: skip
SIZES = {"micro_batch_size": 1, "updates": 5}
LITTLE = {"micro_batch_size": 2, "updates": 3, "warmup_updates": 0, "shrink_on_out_of_memory": True}
WHOLE = {"num_samples": 25}  # in windows of 8 the tail holds one sample: one rank has it, the others none
TOO_MUCH = "not enough memory: you tried to allocate 1 bytes"


def updated(batches: list[list[tuple[Tensor, Tensor]]], world: int, **policies: Any) -> Found:
    """One update a window of a ``Product`` at w = 2 and rate 1."""
    model = Product(2.0)
    updater = Updater(model, torch.optim.SGD(model.parameters(), 1.0), **policies)
    updater.model = DistributedDataParallel(model)
    updates = [updater.update(window, ProductLoss(), world_size=world) for window in batches]
    return {
        "weight": float(model.weight.detach()),
        "made": [update.made for update in updates],
        "skipped": [update.window.skipped for update in updates],
        "kinds": [incident.kind for update in updates for incident in update.incidents],
        "counts": [updater.updates, updater.samples, updater.micro_batches, updater.skipped],
    }


def one_nan(rank: int, world: int, policy: Any) -> Found:
    """Three windows of two micro-batches a rank; in the second one rank 1 has a NaN, in the third nothing but."""
    bad = torch.nan if rank == 1 else 2.0
    windows = [product_batches([1.0], [2.0]), product_batches([3.0], [bad]), product_batches([bad], [bad])]
    return updated(windows, world, non_finite=policy)


def stopped(rank: int, world: int) -> str:
    try:
        one_nan(rank, world, "stop")
    except NonFiniteLossError as error:
        return str(error)
    return ""


class Limited(nn.Module):
    """A network whose device holds so many samples."""

    def __init__(self, model: nn.Module, most: float, error: Callable[[str], Exception] = RuntimeError) -> None:
        super().__init__()
        self.model, self.most, self.error = model, most, error
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > self.most:
            raise self.error(TOO_MUCH)
        self.sizes.append(len(inputs))
        output: Tensor = self.model(inputs)
        return output


def shrunk(rank: int, world: int, most: float) -> Found:
    """A window of 8 samples a rank in micro-batches of 8, of which rank 1 holds fewer; against all samples at once."""
    torch.manual_seed(1)
    model = dense().double()
    inputs, targets = torch.randn(8 * world, 3).double(), torch.randint(4, (8 * world,))
    targets[[0, 3, 9]] = -100
    expected = gradients_of(nn.functional.cross_entropy(model(inputs), targets), model)
    limited = Limited(model, most if rank == 1 else 64, torch.OutOfMemoryError if world == 4 else RuntimeError)
    wrapped = DistributedDataParallel(limited)
    own = slice(8 * rank, 8 * rank + 8)

    def cut(plan: BatchPlan | None) -> list[tuple[Tensor, Tensor]]:
        assert plan is not None
        return [(inputs[own][part], targets[own][part]) for part in plan.slices()]

    try:
        _, plan = accumulate_tolerantly(
            wrapped, cut, CrossEntropy(), LossReduction(), world_size=world, precision=Precision(),
            skip_non_finite=False, plan=BatchPlan(8 * world, 8, world),
        )  # fmt: skip
    except OutOfMemoryError as error:
        return {"refused": str(error), "left": len(gradients(model))}
    assert plan is not None
    return {
        "micro": plan.micro_batch_size,
        "steps": plan.accumulation_steps,
        "last": limited.sizes[-plan.accumulation_steps :],
        "error": relative_error(gradients(model), expected),
    }


def overflowed(rank: int, world: int) -> Found:
    """Two windows under a scaler: in the first, rank 1's gradient is beyond float16."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    updater = Updater(model, torch.optim.SGD(model.parameters(), 1.0), scaler=scaler)
    updater.model = DistributedDataParallel(model)
    found = []
    for x in (1000.0 if rank == 1 else 1.0, 2.0):
        batches = [(torch.full((1, 1), x), torch.ones(1, 1))] * 2
        update = updater.update(batches, ProductLoss(), world_size=world, autocast=torch.float16)
        found.append({"made": update.made, "kinds": [incident.kind for incident in update.incidents]})
    return {"updates": found, "scale": scaler.get_scale(), "weight": model.weight.item(), "skipped": updater.skipped}


def counted(world: int) -> list[int]:
    """C23: 12 micro-batches of 8 a rank, N = 4."""
    batches = product_batches(*[[0.0] * 8] * 12)
    return updated([batches[start : start + 4] for start in (0, 4, 8)], world)["counts"]


def workload_of(name: str) -> TinyWorkload:
    """What a run trains on."""
    return TinyWorkload(**(WHOLE | RUNS[name].get("workload", {})))


def trained(name: str) -> list[str]:
    """The records of a run over as many ranks as there are."""
    return [record.model_dump_json() for record in Training(tiny(**(SIZES | RUNS[name]["settings"]))).run()]


def trained_over_ranks(name: str) -> list[str]:
    """The same in a process that has nothing else to do."""
    workload = workload_of(name)
    training.load = lambda _: workload
    return trained(name)


def trained_with_little_memory(rank: int) -> list[str]:
    """Rank 1 holds one sample; the others hold all."""

    class Small(TinyWorkload):
        def build_model(self, name: str) -> nn.Module:
            return Limited(TinyNet(), 1 if rank == 1 else 64)

    training.load = lambda name: Small(num_samples=24)
    # The check before training passes a whole micro-batch through; it is not what is tested here.
    training.check_sizes = lambda *_: None
    return [record.model_dump_json() for record in Training(tiny(**LITTLE)).run()]


def measure(rank: int, world: int) -> Found:
    return {
        "skip_micro_batch": one_nan(rank, world, "skip_micro_batch"),
        "skip_window": one_nan(rank, world, "skip_window"),
        "stop": stopped(rank, world),
        "shrunk": [shrunk(rank, world, most) for most in (8, 3, 1, 0)],
        "overflow": overflowed(rank, world),
        "counts": counted(world),
        "runs": {name: trained_over_ranks(name) for name in RUNS},
        "little_memory": trained_with_little_memory(rank),
    }


if __name__ == "__main__":
    main(measure)
