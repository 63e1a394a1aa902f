"""One rank of test_ranks.py: ``python one_rank.py RANK FOLDER`` writes what it found to FOLDER/RANK.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from small_nets import Product, ProductLoss, dense, gradients, gradients_of, product_batches, relative_error
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core.engine import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import SettingError

TOKENS = ([10.0], [2.0, 2.0, 2.0])
SIZES = ((3, 1), (2, 2))


def products(rank: int, reduction: Any) -> tuple[dict[str, float], int]:
    model = DistributedDataParallel(Product(1.0))
    batches = product_batches(TOKENS[rank])
    result = accumulate_gradients(model, batches, ProductLoss(), reduction=reduction, world_size=2)
    gradient = float(model.module.weight.grad)
    return {"gradient": gradient, "loss": result.loss, "weight": result.terms["product"].weight}, result.samples


def ragged(rank: int) -> tuple[float, float]:
    """Relative error of gradient and loss against one process with the samples of both ranks."""
    torch.manual_seed(0)
    model = dense().double()
    inputs, targets = torch.randn(8, 3).double(), torch.randint(4, (8,))
    targets[[1, 6]] = -100
    class_weights = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets, class_weights)
    expected = gradients_of(loss, model)
    own = slice(0, 4) if rank == 0 else slice(4, 8)
    batches = list(zip(inputs[own].split(SIZES[rank]), targets[own].split(SIZES[rank]), strict=True))
    objective = CrossEntropy(class_weights=class_weights)
    result = accumulate_gradients(DistributedDataParallel(model), batches, objective, world_size=2)
    return relative_error(gradients(model), expected), abs(result.loss / float(loss.detach()) - 1)


def exchanged(rank: int) -> float:
    """Gradient of micro-batches 1 and 3 on one rank, 5 and 7 on the other."""
    model = DistributedDataParallel(Product())
    batches = product_batches(*([1.0], [3.0]) if rank == 0 else ([5.0], [7.0]))
    accumulate_gradients(model, batches, ProductLoss(), world_size=2)
    return float(model.module.weight.grad)


def reductions() -> int:
    """Gradient buckets reduced in a window of three micro-batches."""
    calls: list[int] = []

    def counted(_, bucket):  # torch checks annotations here, which cannot be text
        calls.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(Product(1.0))
    model.register_comm_hook(None, counted)
    accumulate_gradients(model, product_batches([1.0], [2.0], [3.0]), ProductLoss(), world_size=2)
    return len(calls)


def refusal() -> str:
    try:
        accumulate_gradients(Product(), product_batches([1.0]), ProductLoss(), world_size=3)
    except SettingError as error:
        return str(error)
    return ""


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    exact, samples = products(rank, "exact")
    against_full_batch, against_loss = ragged(rank)
    found = {
        "rank": rank,
        "exact": exact,
        "samples": samples,
        "mean_of_means": products(rank, "mean_of_means")[0],
        "against_full_batch": against_full_batch,
        "against_loss": against_loss,
        "exchanged": exchanged(rank),
        "reductions": reductions(),
        "refusal": refusal(),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
