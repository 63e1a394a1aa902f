"""A window in progress: one forward and backward pass after the other, and what they have added up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from accum_core.engine.lockstep import has_to_step, in_step, note_micro_batch
from accum_core.engine.objectives import Objective, needs_whole_window, window_loss
from accum_core.engine.objectives.penalty import add_penalties, penalty_loss
from accum_core.engine.precision import Precision, narrow, widen
from accum_core.engine.ranks import average_gradients, bare, check_world, is_sharded, silence, sum_over_ranks
from accum_core.errors import SettingError
from accum_core.records import Term
from accum_core.reduction import LossReduction

MicroBatch = tuple[Tensor, Tensor]
Exchange = Literal["window", "micro_batch", "end"]
EXCHANGES = get_args(Exchange)
SAMPLES, PASSES, SQUARED = "", " ", "  "  # beside the terms' names, of which none is blank


@dataclass(frozen=True, slots=True)
class WindowResult:
    """What a window was, over all ranks.

    Attributes:
        loss: weighted mean over the window's samples, whatever the reduction of the gradient.
        terms: the same for each term, with its weight in the window.
        samples: of the window, over all ranks.
        micro_batches: what this rank passed through the model.
        skipped: micro-batches left out because they were not finite, over all ranks.
    """

    loss: float
    terms: dict[str, Term]
    samples: int
    micro_batches: int
    skipped: int = 0

    @property
    def empty(self) -> bool:
        """No term has any weight: there is nothing to step by."""
        return not any(term.weight for term in self.terms.values())


class Accumulation:
    """One window whose micro-batches are passed through the model by ``advance``, and closed by ``finish``.

    In a model with ``sync_batch`` layers the passes wait for one another, so one ``advance`` makes them all.

    It can stop between two micro-batches: ``state_dict`` holds the gradient so far, and a window of the same
    micro-batches at the same parameters goes on from it bit-equal (tests/test_window.py).

    Args:
        exchange: ``window``: the last backward pass averages the gradients over the ranks, all others keep to
            themselves. ``micro_batch``: each backward pass does. ``end``: no pass exchanges anything; ``finish`` does,
            in one all-reduce, so that a rank may fail on the way, or have no micro-batch, without the others hanging.
        others: those of ``accumulate_gradients``.
    """

    def __init__(
        self,
        model: nn.Module,
        micro_batches: Sequence[MicroBatch],
        objective: Objective,
        rule: LossReduction,
        *,
        world_size: int = 1,
        precision: Precision,
        exchange: Exchange = "window",
    ) -> None:
        check_world(world_size)
        if exchange not in EXCHANGES:
            raise SettingError("exchange", exchange, f"use one of {', '.join(EXCHANGES)}")
        if needs_whole_window(objective) and rule.kind == "exact" and (len(micro_batches) > 1 or world_size > 1):
            remedy = "samples meet one another in this loss, so it has no parts; use accumulate_gradients"
            raise SettingError("objective", type(objective).__name__, remedy)
        parameters = list(model.parameters())
        self._trainable = [parameter for parameter in parameters if parameter.requires_grad]
        self._widened = precision.widened(self._trainable)
        self._micro_batches = micro_batches
        self._objective = objective
        self._world_size = world_size
        self._precision = precision
        self._names = tuple(objective.coefficients)
        weights = [objective.weights(targets) for _, targets in micro_batches]
        own = {name: sum(float(weight[name]) for weight in weights) for name in self._names}
        passes = len(micro_batches)
        self.totals = sum_over_ranks({**own, PASSES: passes, SQUARED: passes**2}, world_size)
        all_passes, squared = self.totals.pop(PASSES), self.totals.pop(SQUARED)
        # Buckets of DistributedDataParallel have the parameters' type, which is not that of the sums; and where ranks
        # make unequal numbers of passes, or none, one would wait for an exchange that another does not come to.
        alike = all_passes**2 == world_size * squared
        silent = silence(model) if world_size > 1 else None
        on_the_way = alike and silent is not None and not self._widened
        self._in_step = has_to_step(model, len(micro_batches), world_size)
        self._exchange = exchange if world_size == 1 or (on_the_way and not self._in_step) else "end"
        if self._exchange == "end" and world_size > 1 and is_sharded(model):
            remedy = "its ranks exchange in every pass: give each as many micro-batches, skip none, keep 32 bits"
            raise SettingError("model", type(model).__name__, f"is sharded, and {remedy}")
        self._model = bare(model) if self._exchange == "end" else model
        # Averaging over ranks divides by their number, which a window's total weight has counted in already. A tail
        # divided by N is n / N of all ranks' micro-batches, of which a rank's factors know its own.
        ranks = 1.0
        if rule.kind == "exact":
            ranks = all_passes / passes if rule.tail == "divide_by_n" and passes else world_size
        self._factors = {
            name: [
                objective.coefficients[name] * precision.loss_scale * ranks * factor
                for factor in rule.factors([weight[name] for weight in weights], total_weight=self.totals[name])
            ]
            for name in self._names
        }
        self._starts: dict[tuple[float, torch.dtype], Tensor] = {}
        self._device = parameters[0].device if parameters else micro_batches[0][0].device
        self._silent = silent if self._exchange == "window" else None
        self._clear()
        widen(self._widened, precision.accumulators)
        self._summed = {name: torch.zeros((), dtype=torch.float64, device=self._device) for name in self._names}
        self.index = 0

    @property
    def left(self) -> int:
        """Micro-batches not passed through the model yet."""
        return len(self._micro_batches) - self.index

    def complete(self, after_micro_batch: Callable[[int], None] | None = None) -> WindowResult:
        """Make the passes that are left and close the window."""
        try:
            while self.left:
                first = self.index
                self.advance()
                if after_micro_batch is not None:
                    for index in range(first, self.index):
                        after_micro_batch(index)
        except BaseException:
            self.abandon()
            raise
        return self.finish()

    def advance(self) -> None:
        """One forward and backward pass, or all of them in step."""
        if self._in_step:
            passes = [partial(self._forward, index) for index in range(len(self._micro_batches))]
            sums = in_step(self._model, passes, world_size=self._world_size)
            try:
                self._backward(sums)
            except BaseException as error:
                note_micro_batch(self._model, error)
                raise
            self.index = len(passes)
            return
        # Forward and backward: the reducer is told in the forward pass whether there is anything to exchange.
        if self._silent is not None and self.left > 1:
            with self._silent():
                self._backward([self._forward(self.index)])
        else:
            self._backward([self._forward(self.index)])
        self.index += 1

    def advance_if_finite(self, *, gradient: bool) -> bool:
        """One forward pass, and a backward pass if its loss is finite; False if it was not, or its gradient was not.

        After a gradient that is not finite the sum is empty.

        Raises:
            SettingError: for passes in step, of which one that is not finite spoils all.
        """
        if self._in_step:
            remedy = "cannot take a micro-batch out of statistics that all share in sync_batch layers; use skip_window"
            raise SettingError("non_finite", "skip_micro_batch", remedy)
        sums = self._forward(self.index)
        good = all(bool(torch.isfinite(total)) for total in sums.values())
        if good:
            self._backward([sums])
            good = not gradient or self._is_finite()
            if not good:
                self._clear()
        self.index += 1
        return good

    def finish(self) -> WindowResult:
        """Close the window: the gradient is in ``.grad``, the same on every rank.

        Raises:
            SettingError: when passes are left.
        """
        if self.left:
            raise SettingError("micro_batches", self.left, "are left; pass them through the model by advance first")
        try:
            if self._exchange == "end":
                average_gradients(self._model, self._world_size)
            penalties = add_penalties(self._model, self._objective, self._precision.loss_scale)
        except BaseException:
            self.abandon()
            raise
        narrow(self._widened)
        summed = {name: total.item() for name, total in self._summed.items()}
        samples = float(sum(inputs.shape[0] for inputs, _ in self._micro_batches))
        over_ranks = sum_over_ranks({**summed, SAMPLES: samples}, self._world_size)
        samples = over_ranks.pop(SAMPLES)
        return WindowResult(
            loss=window_loss(over_ranks, self.totals, self._objective.coefficients)
            + penalty_loss(self._objective, penalties),
            terms={
                name: Term(loss=over_ranks[name] / weight if weight else 0.0, weight=weight)
                for name, weight in self.totals.items()
            }
            | {name: Term(loss=value, weight=0.0) for name, value in penalties.items()},
            samples=round(samples),
            micro_batches=len(self._micro_batches),
        )

    def abandon(self) -> None:
        """Give up: no gradient stays, and the parameters take gradients of their own type again."""
        self._clear()
        narrow(self._widened)

    def state_dict(self) -> dict[str, Any]:
        """The passes made and what they added up to."""
        named = bare(self._model).named_parameters()
        gradients = {name: p.grad for name, p in named if p.requires_grad and p.grad is not None}
        return {
            "index": self.index,
            "micro_batches": len(self._micro_batches),
            "gradients": {name: gradient.clone() for name, gradient in gradients.items()},
            "sums": {name: total.item() for name, total in self._summed.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            SettingError: when the window had another number of micro-batches.
        """
        present = len(self._micro_batches)
        if state["micro_batches"] != present:
            raise SettingError(
                "accumulation_steps",
                present,
                f"the checkpoint was made inside a window of {state['micro_batches']} micro-batches; use as many",
            )
        for name, parameter in bare(self._model).named_parameters():
            if parameter.requires_grad:
                gradient = state["gradients"].get(name)
                parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        for name, total in state["sums"].items():
            self._summed[name].fill_(total)
        self.index = state["index"]

    def _forward(self, index: int) -> Mapping[str, Tensor]:
        inputs, targets = self._micro_batches[index]
        if inputs.device != self._device or targets.device != self._device:
            inputs, targets = (part.to(self._device, non_blocking=True) for part in (inputs, targets))
        if self._precision.autocast is None:
            sums = self._objective.sums(self._model, inputs, targets)
        else:
            with self._precision.forward(self._device):
                sums = self._objective.sums(self._model, inputs, targets)
        for name in self._names:
            self._summed[name] += sums[name].detach()
        return sums

    def _backward(self, passes: Sequence[Mapping[str, Tensor]]) -> None:
        """From the present pass's sums, or those of it and all that follow."""
        # The backward pass starts from each term's factor: nothing is scaled afterwards, when it could already have
        # overflowed. A term without a valid label may be a plain zero, which has no graph.
        terms, factors = [], []
        for index, sums in enumerate(passes, self.index):
            for name in self._names:
                if (total := sums[name]).requires_grad:
                    factor = self._factors[name][index]
                    # Most micro-batches of a window share one factor, so its tensor is made once.
                    if (start := self._starts.get((factor, total.dtype))) is None:
                        start = self._starts[factor, total.dtype] = torch.full_like(total, factor, requires_grad=False)
                    terms.append(total)
                    factors.append(start)
        if terms:
            torch.autograd.backward(terms, factors)
        elif any(any(self._factors[name][self.index : self.index + len(passes)]) for name in self._names):
            remedy = "has no graph; train some parameter, with gradients on (no torch.no_grad, no detach)"
            raise SettingError("model", type(self._model).__name__, f"its loss {remedy}")

    def _is_finite(self) -> bool:
        gradients = [parameter.grad for parameter in self._trainable if parameter.grad is not None]
        # A norm that is finite needs one look; one that is not may be a sum of squares that was too large.
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))) or all(
            bool(torch.isfinite(gradient).all()) for gradient in gradients
        )

    def _clear(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None
