"""The passes of a training's windows: cut for this rank, made as the configuration says, and left on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.batching import BatchPlan
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.normalization import check_norms
from accum_core.engine.objectives import Objective, needs_whole_window
from accum_core.engine.precision import Precision
from accum_core.engine.ranks import any_over_ranks, bare, present_ranks
from accum_core.engine.snapshot import Snapshot, random_states, set_random_states
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.window import Accumulation, Exchange, MicroBatch, WindowResult
from accum_core.records import Incident, RunConfig
from accum_core.reduction import LossReduction


@dataclass(frozen=True, slots=True)
class Outcome:
    """A window's result, and the plan that it was cut by: a smaller one than asked for when the memory was too small.

    ``window`` is None when the passes were left between two micro-batches. ``start`` is the model before the window.
    """

    window: WindowResult | None
    plan: BatchPlan
    start: Snapshot


class Passes:
    """What a training does with the samples of a window.

    Args:
        model: wrapped by DistributedDataParallel when there are several ranks.
        objective: of every window.

    Attributes:
        objective: of every window.
        left: the state of a window that was left between two micro-batches; the next window goes on from it.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.rank, self.world_size = present_ranks()
        # Buffers are each rank's own: sending them round would be an exchange in every forward pass.
        self._model = DistributedDataParallel(model, forward_sync_buffers=False) if self.world_size > 1 else model
        self.objective = objective
        self.left: dict[str, Any] | None = None

    def cut(self, inputs: Tensor, targets: Tensor, plan: BatchPlan) -> list[MicroBatch]:
        """This rank's micro-batches of a window's samples ``[B, ...]``; none when the tail has too few for all."""
        own = plan.share(self.rank, len(inputs))
        inputs, targets = inputs[own], targets[own]
        return [(inputs[part], targets[part]) for part in plan.slices(len(inputs))]

    def accumulate(
        self,
        config: RunConfig,
        plan: BatchPlan,
        samples: tuple[Tensor, Tensor],
        precision: Precision,
        after_micro_batch: Callable[[int], None] | None,
        leave: Callable[[], bool] | None,
    ) -> Outcome:
        """Leave the gradient of a window's samples in ``.grad``, on every rank.

        Errors are those of ``accumulate_gradients`` and ``accumulate_tolerantly``.
        """
        rule = LossReduction(config.reduction, config.tail, plan.accumulation_steps)
        start = Snapshot(bare(self._model))
        if self.left is not None:
            start.buffers = {name: self.left["buffers"][name].to(held.device) for name, held in start.buffers.items()}
        if needs_whole_window(self.objective):
            micro_batches = self.cut(*samples, plan)
            window = accumulate_gradients(
                self._model,
                micro_batches,
                self.objective,
                reduction=rule,
                world_size=self.world_size,
                precision=precision,
                after_micro_batch=after_micro_batch,
            )
            return Outcome(window, plan, start)
        if config.shrink_on_out_of_memory or config.non_finite == "skip_micro_batch":
            tried: list[MicroBatch] = []

            def cut(present: BatchPlan | None) -> list[MicroBatch]:
                tried[:] = self.cut(*samples, present or plan)
                return list(tried)

            try:
                window, last = accumulate_tolerantly(
                    self._model,
                    cut,
                    self.objective,
                    rule,
                    world_size=self.world_size,
                    precision=precision,
                    skip_non_finite=config.non_finite == "skip_micro_batch",
                    plan=plan if config.shrink_on_out_of_memory else None,
                    after_micro_batch=after_micro_batch,
                )
            except ValueError:
                # BatchNorm may work on the micro-batches that were asked for and not on smaller ones.
                device = next(self._model.parameters()).device
                for inputs, _ in tried:
                    check_norms(bare(self._model), inputs.to(device))
                raise
            return Outcome(window, last or plan, start)
        exchange: Exchange = "micro_batch" if config.exchange_every_micro_batch else "window"
        # What a micro-batch adds can be seen before the gradients are exchanged alone; rank 0 looks, all have to know.
        watched = any_over_ranks(after_micro_batch is not None, self.world_size)
        accumulation = Accumulation(
            self._model,
            self.cut(*samples, plan),
            self.objective,
            rule,
            world_size=self.world_size,
            precision=precision,
            exchange="end" if watched else exchange,
        )
        leave = leave if self.world_size == 1 else None
        outcome = Outcome(self._complete(accumulation, after_micro_batch, leave), plan, start)
        if self.left is not None:
            self.left["buffers"] = start.buffers
        return outcome

    def _complete(
        self,
        accumulation: Accumulation,
        after_micro_batch: Callable[[int], None] | None,
        leave: Callable[[], bool] | None,
    ) -> WindowResult | None:
        try:
            if self.left is not None:
                accumulation.load_state_dict(self.left["window"])
                set_random_states(self.left["random"])
                self.left = None
            while leave is not None and accumulation.left > 1:
                accumulation.advance()
                if leave():
                    self.left = {"window": accumulation.state_dict(), "random": random_states()}
                    accumulation.abandon()
                    return None
        except BaseException:
            accumulation.abandon()
            raise
        return accumulation.complete(after_micro_batch)


def shrunk(asked: BatchPlan, plan: BatchPlan) -> Incident:
    """What is told of a window that fitted into the memory in smaller micro-batches alone."""
    sizes = f"micro-batch {asked.micro_batch_size} → {plan.micro_batch_size}"
    text = f"the memory was too small: {sizes}, N {asked.accumulation_steps} → {plan.accumulation_steps}"
    return Incident(kind="out_of_memory", text=text)
