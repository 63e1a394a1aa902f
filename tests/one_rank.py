"""What one rank of test_ranks.py measures: gradients, and how often they are exchanged."""

from __future__ import annotations

import random
from typing import Any

import torch
from over_ranks import Found, main
from small_nets import Product, ProductLoss, TwoTerms, dense, gradients, gradients_of, product_batches, relative_error
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from accum_core.engine import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy, Penalized, mean_loss
from accum_core.engine.precision import Precision
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction

TOKENS = ([10.0], [2.0, 2.0, 2.0], [1.0, 5.0], [4.0])
SHARES = {2: ((7, 5), (11, 1), (12, 0)), 4: ((5, 4, 2, 1), (3, 3, 3, 3), (6, 0, 6, 0))}
EXCHANGES = ("window", "micro_batch", "end")


def gradient(model: nn.Module, batches: list[tuple[Tensor, Tensor]], world: int, **settings: Any) -> float:
    """Of the one weight of a ``Product``, wrapped or bare."""
    accumulate_gradients(model, batches, settings.pop("objective", ProductLoss()), world_size=world, **settings)
    (weight,) = model.parameters()
    return float(weight.grad)


def tokens(rank: int, world: int, model: nn.Module, reduction: Any) -> tuple[dict[str, float], int]:
    batches = product_batches(TOKENS[rank])
    result = accumulate_gradients(model, batches, ProductLoss(), reduction=reduction, world_size=world)
    term = result.terms["product"]
    return {
        "gradient": gradient(model, batches, world, reduction=reduction),
        "loss": result.loss,
        "weight": term.weight,
    }, (result.samples)


def cut(inputs: Tensor, targets: Tensor, rank: int, shares: tuple[int, ...], micro: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's samples in micro-batches; [] when it has none."""
    start = sum(shares[:rank])
    own = slice(start, start + shares[rank])
    if not shares[rank]:
        return []
    return list(zip(inputs[own].split(micro), targets[own].split(micro), strict=True))


def ragged(rank: int, world: int) -> float:
    """Largest relative error of gradients and losses against one process that sees all samples at once: unequal
    numbers of samples and of micro-batches a rank, labels ignored, classes weighted, each kind of exchange."""
    class_weights = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    objective = CrossEntropy(class_weights=class_weights)
    worst = 0.0
    for case, shares in enumerate(SHARES[world]):
        torch.manual_seed(case)
        model = dense().double()
        inputs, targets = torch.randn(12, 3).double(), torch.randint(4, (12,))
        targets[[1, 6, 7]] = -100
        loss = nn.functional.cross_entropy(model(inputs), targets, class_weights)
        expected = gradients_of(loss, model)
        wrapped = DistributedDataParallel(model)
        for exchange in EXCHANGES:
            batches = cut(inputs, targets, rank, shares, 2)
            result = accumulate_gradients(wrapped, batches, objective, world_size=world, exchange=exchange)
            assert result.samples == 12
            worst = max(worst, relative_error(gradients(model), expected), abs(result.loss / float(loss.detach()) - 1))
    return worst


def drawn(rank: int, world: int) -> float:
    """The same for twelve windows drawn at random: sizes, terms of unequal weight, and ranks that have nothing."""
    numbers = random.Random(world)
    model = dense().double()
    wrapped = DistributedDataParallel(model)
    worst = 0.0
    for case in range(12):
        torch.manual_seed(100 + case)
        shares = (*(numbers.choice([0, 1, 2, 5, 9]) for _ in range(world - 1)), numbers.randint(1, 4))
        inputs, targets = torch.randn(sum(shares), 3).double(), torch.randn(sum(shares)).double()
        objective = TwoTerms(squared=numbers.random(), absolute=numbers.random())
        expected = gradients_of(mean_loss(objective, model, inputs, targets), model)
        batches = cut(inputs, targets, rank, shares, numbers.randint(1, 4))
        accumulate_gradients(wrapped, batches, objective, world_size=world, exchange=numbers.choice(EXCHANGES))
        worst = max(worst, relative_error(gradients(model), expected))
    return worst


def reductions(world: int, exchange: Any) -> int:
    """Gradient buckets reduced in a window of three micro-batches."""
    calls: list[int] = []

    def counted(_, bucket):  # torch checks annotations here, which cannot be text
        calls.append(bucket.index())
        work = distributed.all_reduce(bucket.buffer().div_(world), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(Product(1.0))
    model.register_comm_hook(None, counted)
    gradient(model, product_batches([1.0], [2.0], [3.0]), world, exchange=exchange)
    return len(calls)


class Watched(Product):
    """Writes down whether its wrapper is about to exchange gradients, in the forward and in the backward pass."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.passes: list[tuple[str, bool]] = []
        self.wrapper: list[DistributedDataParallel] = []  # in a list, so that it is no submodule

    def forward(self, inputs: Tensor) -> Tensor:
        output = super().forward(inputs)
        self._note("forward")
        output.register_hook(lambda _: self._note("backward"))
        return output

    def _note(self, where: str) -> None:
        self.passes.append((where, self.wrapper[0].require_backward_grad_sync))


def silence(world: int) -> list[tuple[str, bool]]:
    """Where a window of three micro-batches may exchange."""
    model = Watched()
    wrapped = DistributedDataParallel(model)
    model.wrapper.append(wrapped)
    gradient(wrapped, product_batches([1.0], [2.0], [3.0]), world)
    return model.passes


def sharded(rank: int, world: int, exchange: Any) -> Found:
    """A network in shards: error of its gradient, and what is held after the first of 3 micro-batches, in gradients."""
    torch.manual_seed(0)
    model = dense(width=8).double()
    inputs, targets = torch.randn(6 * world, 3).double(), torch.randint(4, (6 * world,))
    targets[[1, 4]] = -100
    expected = gradients_of(nn.functional.cross_entropy(model(inputs), targets), model)
    size = sum(parameter.numel() for parameter in model.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    # torch has no public name for the gradients that wait to be reduced.
    shards = model._get_fsdp_state()._fsdp_param_group.fsdp_params
    held: list[float] = []

    def count(_: int) -> None:
        whole = [shard.unsharded_param.grad for shard in shards]
        parts = [parameter.grad.to_local() for parameter in model.parameters() if parameter.grad is not None]
        held.append(sum(gradient.numel() for gradient in [*whole, *parts] if gradient is not None) / size)

    batches = cut(inputs, targets, rank, (6,) * world, 2)
    accumulate_gradients(model, batches, CrossEntropy(), world_size=world, exchange=exchange, after_micro_batch=count)
    full = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    return {"error": relative_error(full, expected), "held": held[0]}


def uneven_shards(rank: int, world: int) -> str:
    model = fully_shard(dense().double(), mesh=init_device_mesh("cpu", (world,)))
    batches = [(torch.zeros(1, 3).double(), torch.zeros(1, dtype=torch.long))] * (rank + 1)
    try:
        accumulate_gradients(model, batches, CrossEntropy(), world_size=world)
    except SettingError as error:
        return str(error)
    return ""


def d35(rank: int, world: int, exchange: Any) -> float:
    """Gradient of micro-batches 1, 3 on rank 0, 5, 7 on rank 1, and so on, no two ranks alike."""
    batches = product_batches([4.0 * rank + 1], [4.0 * rank + 3])
    return gradient(DistributedDataParallel(Product()), batches, world, exchange=exchange)


def penalised(rank: int, world: int, exchange: Any) -> tuple[float, float]:
    """Gradient and loss with a penalty of 0.25 w^2 at w = 3."""
    model = DistributedDataParallel(Product(3.0))
    objective = Penalized(ProductLoss(), lambda named: named["weight"].square(), 0.25)
    batches = product_batches([1.0 + rank], [2.0])
    result = accumulate_gradients(model, batches, objective, world_size=world, exchange=exchange)
    return float(model.module.weight.grad), result.loss


def bfloat16(rank: int, world: int) -> float:
    """256 + 1 - 255 - 1 = 1 over two micro-batches of each rank; in bfloat16, 256 + 1 stays 256."""
    values = ([256.0, 1.0], [-255.0, -1.0])[rank] if rank < 2 else [0.0, 0.0]
    batches = [(torch.tensor([x], dtype=torch.bfloat16), torch.ones(1)) for x in values]
    return gradient(DistributedDataParallel(Product(1.0, torch.bfloat16)), batches, world)


def float16(world: int, exchange: Any) -> float:
    """60000 on every rank: their mean is a float16, their sum is not."""
    batches = [(torch.tensor([60000.0], dtype=torch.float16), torch.ones(1))]
    model = DistributedDataParallel(Product(0.5, torch.float16))
    return gradient(model, batches, world, exchange=exchange, precision=Precision(accumulators=None))


def short_tail(rank: int, world: int) -> float:
    """Two micro-batches on rank 0 and one on each other, all of gradient 1, divided as if each rank had four."""
    batches = product_batches(*[[1.0]] * (2 if rank == 0 else 1))
    rule = LossReduction("exact", "divide_by_n", 4)
    return gradient(DistributedDataParallel(Product()), batches, world, reduction=rule)


def refusal() -> str:
    try:
        accumulate_gradients(Product(), product_batches([1.0]), ProductLoss(), world_size=3)
    except SettingError as error:
        return str(error)
    return ""


def measure(rank: int, world: int) -> Found:
    exact, samples = tokens(rank, world, DistributedDataParallel(Product(1.0)), "exact")
    return {
        "exact": exact,
        "samples": samples,
        "bare": tokens(rank, world, Product(1.0), "exact")[0],
        "mean_of_means": tokens(rank, world, DistributedDataParallel(Product(1.0)), "mean_of_means")[0],
        "ragged": ragged(rank, world),
        "drawn": drawn(rank, world),
        "reductions": [reductions(world, exchange) for exchange in EXCHANGES],
        "silence": silence(world),
        "d35": [d35(rank, world, exchange) for exchange in EXCHANGES],
        "penalised": [penalised(rank, world, exchange) for exchange in EXCHANGES],
        "bfloat16": bfloat16(rank, world),
        "float16": [float16(world, exchange) for exchange in EXCHANGES],
        "short_tail": short_tail(rank, world),
        "sharded": [sharded(rank, world, exchange) for exchange in ("micro_batch", "window")],
        "uneven_shards": uneven_shards(rank, world),
        "refusal": refusal(),
    }


if __name__ == "__main__":
    main(measure)
