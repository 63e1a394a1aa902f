"""How exact each kind of window is: ``python -m benchmarks exactness`` writes docs/exactness.md.

A window of landcover tiles with unequal weights is accumulated in every combination of norm, number type, world size
and activation checkpointing, and under every reduction and tail rule; its gradient is held against the float64
gradient of one pass of the whole window at the same parameters.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core import catalogue
from accum_core.batching import BatchPlan
from accum_core.engine import CrossEntropy, Precision, accumulate_gradients, checkpoint_activations, convert_norms
from accum_core.engine.environment import describe
from accum_core.engine.models import unet
from accum_core.engine.reference import gradient_error, reference_gradient
from accum_core.engine.workloads import load
from accum_core.reduction import REDUCTION_KINDS, LossReduction
from benchmarks import Result

REPORT: Final = Path(__file__).parents[1] / "docs" / "exactness.md"
WORLDS: Final = (1, 2, 4)
PLAN: Final = BatchPlan(20, 4, allow_tail=True)  # 5 micro-batches of 4 in one process
WINDOWS: Final = 3
DOUBLE, SINGLE, TIMES_BATCH = 1e-12, 1e-5, 2.0
# Name of a number type: the parameters' type, and that of the passes under autocast.
TYPES: Final = {
    "float64": (torch.float64, None),
    "float32": (torch.float32, None),
    "bfloat16 autocast": (torch.float32, torch.bfloat16),
    "bfloat16, sums in float32": (torch.bfloat16, None),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One row: how a window is accumulated. ``samples`` are those of the window, fewer than a full one in the tail."""

    norm: str = "group"
    precision: str = "float64"
    world_size: int = 1
    checkpointing: bool = False
    reduction: str = "exact"
    tail: str = "rescale"
    samples: int = PLAN.effective_batch_size


@dataclass(frozen=True, slots=True)
class Row:
    """A case and its gradient error, median over windows.

    Attributes:
        bound: that it must hold; None where there is none.
        expected: what it must be, where arithmetic says so; None elsewhere.
        reason: where that comes from.
    """

    case: Case
    error: float
    bound: float | None
    expected: float | None
    reason: str

    @property
    def holds(self) -> bool:
        """Whether the error is as it must be."""
        if self.expected is not None:
            return abs(self.error - self.expected) <= 1e-9 * self.expected
        return self.bound is None or self.error <= self.bound


def cases() -> list[Case]:
    """Every combination that the table shows."""
    tails = (("rescale", 20), ("rescale", 10), ("divide_by_n", 10))
    divisions = [
        Case(reduction=kind, tail=tail, samples=samples) for kind, (tail, samples) in product(REDUCTION_KINDS, tails)
    ]
    return list(dict.fromkeys(_grid() + divisions))


def _grid() -> list[Case]:
    norms = catalogue.entries("norms")
    choices = product(norms, TYPES, (False, True), WORLDS)
    return [Case(norm, precision, world, again) for norm, precision, again, world in choices]


def rows() -> list[Row]:
    """Every case measured; those of several ranks in as many processes (gloo)."""
    every = cases()
    errors: dict[Case, float] = {}
    for world_size in WORLDS:
        mine = [case for case in every if case.world_size == world_size]
        found = [error(case) for case in mine] if world_size == 1 else _over_ranks(mine, world_size)
        errors |= dict(zip(mine, found, strict=True))
    batches = {
        (case.norm, case.precision): error(replace(case, world_size=1, checkpointing=False), whole=True)
        for case in every
    }
    return [_row(case, errors[case], batches[case.norm, case.precision]) for case in every]


def error(case: Case, rank: int = 0, *, whole: bool = False) -> float:
    """Relative gradient error against the float64 reference, median over windows; ``whole`` passes it undivided."""
    return median(_one(case, rank, seed, whole) for seed in range(WINDOWS))


def _one(case: Case, rank: int, seed: int, whole: bool) -> float:
    inputs, targets = _window(seed, case.samples)
    parameters, autocast = TYPES[case.precision]
    torch.manual_seed(seed)
    model = _network(case).to(parameters)
    reference = reference_gradient(model, inputs, targets, CrossEntropy(), dtype=torch.float64)
    if case.checkpointing:
        model = checkpoint_activations(model)
    plan = replace(PLAN, world_size=case.world_size, micro_batch_size=20 if whole else PLAN.micro_batch_size)
    own = plan.share(rank, case.samples)
    inputs, targets = inputs[own].to(parameters), targets[own]
    micro_batches = [(inputs[part], targets[part]) for part in plan.slices(len(inputs))]
    accumulate_gradients(
        DistributedDataParallel(model, forward_sync_buffers=False) if case.world_size > 1 else model,
        micro_batches,
        CrossEntropy(),
        reduction=LossReduction(case.reduction, case.tail, plan.accumulation_steps),  # type: ignore[arg-type]
        world_size=case.world_size,
        precision=Precision(autocast=autocast),
    )
    return gradient_error(model, reference).relative_error


def _network(case: Case) -> nn.Module:
    options = {"num_groups": 8} if case.norm == "group" else {}
    if case.norm == "batch_corrected":
        options = {"accumulation_steps": PLAN.accumulation_steps}
    # The default ReLUs have a kink; a smooth network shows rounding alone.
    model = convert_norms(unet.build(3, 6), case.norm, **options)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.set_submodule(name, nn.SiLU())
    return model


def _window(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    """Tiles ``[B, 3, 32, 32]`` and labels of which each sample has another share ignored, from none to most."""
    images, labels = load("landcover").samples(range(20 * seed, 20 * seed + samples))
    images, labels = images[:, :, :32, :32].double(), labels[:, :32, :32].clone()
    drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(seed))
    labels[drawn < torch.linspace(0, 0.9, samples)[:, None, None]] = -100
    return images, labels


def _over_ranks(mine: list[Case], world_size: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, folder, [asdict(case) for case in mine])
        multiprocessing.spawn(_rank, arguments, nprocs=world_size)
        found: list[float] = json.loads(Path(folder, "found.json").read_text())
    return found


def _rank(rank: int, world_size: int, folder: str, mine: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "ranks")), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    found = [error(Case(**case), rank) for case in mine]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _row(case: Case, measured: float, batch: float) -> Row:
    if case.reduction != "exact" or case.tail != "rescale":
        return Row(case, measured, None, *_wrong(case))
    if not catalogue.entries("norms")[case.norm]["BATCH_INDEPENDENT"]:
        return Row(case, measured, None, None, "not exact: the layer sees one micro-batch at a time")
    if case.precision == "float64":
        return Row(case, measured, DOUBLE, None, "rounding")
    if case.precision == "float32":
        return Row(case, measured, SINGLE, None, "rounding")
    return Row(case, measured, TIMES_BATCH * batch, None, f"twice that of one whole batch in this type, {batch:.1e}")


def _wrong(case: Case) -> tuple[float | None, str]:
    """The error that a wrong division must have: where the gradient is a multiple of the right one, the multiple less
    1."""
    if case.reduction == "exact":
        short = math.ceil(case.samples / PLAN.micro_batch_size) / PLAN.accumulation_steps
        return 1 - short, "1 - n / N, as the tail is divided as if it were full"
    if case.reduction == "sum":
        weights = [torch.count_nonzero(_window(seed, case.samples)[1] >= 0).item() for seed in range(WINDOWS)]
        return median(weights) - 1, "the window's weight less 1, as nothing is divided"
    if case.reduction == "sum_of_means":
        return None, "n times the mean of means, as nothing is divided by n"
    differently = "wrong where micro-batches weigh differently, as here"
    return None, differently + (", and times n / N" if case.tail == "divide_by_n" else "")


def measure() -> list[Result]:
    """The worst error of each number type among the rows that must be exact, and the table."""
    torch.set_num_threads(1)
    table = rows()
    REPORT.write_text(_report(table), encoding="utf-8")
    results = []
    for name in TYPES:
        bounded = [row for row in table if row.case.precision == name and row.bound is not None]
        worst = max(bounded, key=lambda row: row.error / (row.bound or 1))
        detail = f"the row of docs/exactness.md nearest to its bound, of {len(bounded)} ({worst.case.norm})"
        results.append(Result(f"gradient error, {name}", worst.error, worst.bound, "", detail))
    wrong = float(sum(not row.holds for row in table))
    results.append(Result("rows of docs/exactness.md that do not hold", wrong, 0, "rows", f"of {len(table)}"))
    return results


def _held() -> str:
    """The sizes of what one rank passes, for each number of ranks above 1."""
    told = []
    for world_size in WORLDS[1:]:
        parts = replace(PLAN, world_size=world_size).slices(PLAN.effective_batch_size // world_size)
        told.append(f"{', '.join(str(part.stop - part.start) for part in parts)} on each of {world_size}")
    return "; ".join(told)


def _report(table: list[Row]) -> str:
    environment = describe(torch.device("cpu"))
    grid = [row for row in table if row.case in set(_grid())]
    head = [
        "# Exactness",
        "",
        "Written by `python -m benchmarks exactness`. Gradient error: norm(accumulated - reference) / norm(reference), "
        "the reference in float64 from one pass of all samples at the same parameters; median over "
        f"{WINDOWS} windows. A window: {PLAN.effective_batch_size} landcover tiles of 32 x 32, a share of each tile's "
        f"labels ignored that rises from none to 90 %, in micro-batches of {PLAN.micro_batch_size} at most; the U-Net, "
        "with SiLU in place of ReLU, at whose kink rounding decides the side. Over ranks (gloo) each has its share of "
        f"the samples, in micro-batches of {_held()}.",
        "",
        f"{environment.date}, {environment.processor}, {environment.platform}, Python {environment.python}, "
        f"torch {environment.torch}, code version {environment.code_version}.",
        "",
        "## Every norm, number type and world size: reduction exact, tail rule rescale",
        "",
        "| norm | number type | checkpointing | 1 rank | 2 ranks | 4 ranks | bound | holds | bound from |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines: dict[tuple[str, str, bool], list[Row]] = {}
    for row in grid:
        lines.setdefault((row.case.norm, row.case.precision, row.case.checkpointing), []).append(row)
    for (norm, precision, checkpointing), over_ranks in lines.items():
        errors = " | ".join(f"{row.error:.1e}" for row in over_ranks)
        asked = f"| {norm} | {precision} | {'yes' if checkpointing else 'no'} | {errors} "
        head.append(asked + _judged(over_ranks))
    head += [
        "",
        "## Every reduction and tail rule: GroupNorm, float64, one process",
        "",
        "A full window holds 5 micro-batches, a tail of 10 samples holds 3. `drop` makes no update of a tail.",
        "",
        "| reduction | tail rule | samples | gradient error | bound | holds | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table:
        if row not in grid or row.case == Case():
            case = row.case
            asked = f"| {case.reduction} | {case.tail} | {case.samples} | {row.error:.6g} "
            head.append(asked + _judged([row]))
    return "\n".join([*head, ""])


def _judged(rows: list[Row]) -> str:
    first = rows[0]
    if first.bound is None and first.expected is None:
        return f"| none | – | {first.reason} |"
    bound = f"{first.bound:.2g}" if first.expected is None else f"= {first.expected:.6g}"
    return f"| {bound} | {'yes' if all(row.holds for row in rows) else '**no**'} | {first.reason} |"
