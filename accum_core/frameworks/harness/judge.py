"""From what a training left to what it computed, and whether that is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from accum_core.conformance.results import Measured, Verdict
from accum_core.frameworks.contract import Batch
from accum_core.frameworks.harness.formulas import candidates, rights
from accum_core.frameworks.harness.oracle import LOGS, Course, course, mean_gradient
from accum_core.frameworks.harness.problem import Problem

EXACT: Final = 1e-10
AGREES: Final = 1e-9
LOGGED: Final = 1e-4
"""Logged values are often rounded to four decimals; wrong ones are a hundred times further off."""
TIMES_ONE_BATCH: Final = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a training left.

    Attributes:
        weights: at its end, by name.
        updates, final_lr, logged: as the optimizers, or the framework, have them.
        seconds: that it took.
        ranks_agree: whether all ranks held the same weights at the end.
    """

    weights: Mapping[str, Tensor]
    updates: int
    final_lr: float
    logged: Sequence[float]
    seconds: float
    ranks_agree: bool = True


class Judge:
    """Holds a training against the right one and against each candidate.

    Args:
        counts: of the framework's file, beside those of the problem.
    """

    def __init__(
        self, problem: Problem, case: str, counts: Mapping[str, Callable[[Batch], float]] | None = None
    ) -> None:
        self.problem, self.case = replace(problem, counts={**problem.counts, **(counts or {})}), case
        self.rights = [course(problem, formula) for formula in rights(problem.settings)]
        self.right = self.rights[0]
        start = problem.build()
        self.start = {name: p.detach() for name, p in start.named_parameters()}
        self._across_samples = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in start.modules())
        self._exact, self._agrees = max(EXACT, problem.rounding), max(AGREES, problem.rounding)
        if problem.settings.precision == "bfloat16":
            # Autocast's parameters are float32, and its passes as exact as one batch under it.
            self.start = {name: value.float().double() for name, value in self.start.items()}
            one_batch = distance(mean_gradient(problem, autocast=True), mean_gradient(problem))
            self._exact = self._agrees = TIMES_ONE_BATCH * one_batch

    @property
    def right_logged(self) -> tuple[float, ...]:
        """The loss of each window of the right training."""
        return tuple(losses["sum over weight"] for losses in self.right.losses)

    def measure(self, seen: Seen) -> Measured:
        """The verdict on a training."""
        movement = self._movement(seen.weights)
        error = min(distance(movement, self._movement(right.weights)) for right in self.rights)
        found = self._found(movement)
        names = list(found)
        if self.case == "logged_loss":
            ran = next(iter(found.values()), self.right)
            verdict, explanation, names = judge_logged(seen.logged, ran)
        else:
            verdict, explanation = self._verdict(seen, error, names)
        return Measured(
            gradient_error=error if math.isfinite(error) else None,
            updates=seen.updates,
            final_lr=seen.final_lr if math.isfinite(seen.final_lr) else None,
            logged=tuple(value if math.isfinite(value) else None for value in seen.logged),
            formula=names[0] if names else None,
            same_here=tuple(names[1:]),
            verdict=verdict,
            explanation=explanation,
            seconds=round(seen.seconds, 3),
        )

    def _movement(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: weights[name].detach().double() - start for name, start in self.start.items()}

    def _found(self, movement: Mapping[str, Tensor]) -> dict[str, Course]:
        """The first candidate that gives this movement, the right one if it does, and those near it that do."""
        possible = candidates(
            self.problem.settings,
            len(self.problem.samples),
            list(self.problem.counts),
            beside=self.problem.beside is not None,
            across_samples=self._across_samples,
        )
        found: dict[str, Course] = {}
        for formula in possible:
            # Hundreds of candidates for an interrupted training: of the rest only those that would be told are tried.
            if formula.name not in found and (not found or near(formula.name, next(iter(found)))):
                ran = course(self.problem, formula)
                if distance(movement, self._movement(ran.weights)) <= self._agrees:
                    found[formula.name] = ran
        return found

    def _verdict(self, seen: Seen, error: float, names: Sequence[str]) -> tuple[Verdict, str]:
        wrong = []
        if not math.isfinite(error):
            wrong.append("the weights are no longer finite")
        elif error > self._exact:
            formula = f"it computed: {names[0]}" if names else "none of the candidate formulas gives what it computed"
            wrong.append(formula)
        if seen.updates != self.right.updates and self.case != "resume":  # it may repeat what it had not saved
            made = f"{seen.updates} {'update' if seen.updates == 1 else 'updates'}"
            wrong.append(f"{made} instead of {self.right.updates}")
        if not math.isclose(seen.final_lr, self.right.final_lr, rel_tol=AGREES):
            wrong.append(f"a last rate of {seen.final_lr:.4g} instead of {self.right.final_lr:.4g}")
        if not seen.ranks_agree:
            wrong.append("the ranks hold different weights at the end")
        if wrong:
            text = "; ".join(wrong)
            return "wrong", f"{text[0].upper()}{text[1:]}."
        return "exact", "It computed the large batch's gradient, and made its updates."


def near(name: str, first: str) -> bool:
    """Whether two formulas differ in the division alone, or in all but the division."""
    (division, _, rest), (first_division, _, first_rest) = name.partition("; "), first.partition("; ")
    return division == first_division or rest == first_rest


def judge_logged(logged: Sequence[float], ran: Course) -> tuple[Verdict, str, list[str]]:
    """Verdict, sentence and the names of what was logged, beside what the training that ran could have logged."""
    if not logged:
        return "user's duty", "It logs no loss by itself; what is logged is up to the loop.", []
    means = list(ran.micro_losses)
    series = {name: [losses[name] for losses in ran.losses] for name in LOGS}
    told = dict(LOGS)
    for name, values, text in (
        ("every micro-batch", means, "each micro-batch's own mean"),
        ("mean so far", [sum(means[:i]) / i for i in range(1, len(means) + 1)], "the mean of all micro-batches so far"),
        ("mean of the epoch", [sum(means) / len(means)], "one value, the mean of all micro-batches' means"),
    ):
        series[name], told[name] = values, text
    names = [name for name, values in series.items() if _agree(logged, values)]
    if "sum over weight" in names:
        return "exact", "It logs the loss of each window.", names
    if names:
        return "wrong", f"It logs {told[names[0]]}, not the window's loss.", names
    return "wrong", "What it logs is neither the window's loss nor another mean of it.", []


def _agree(logged: Sequence[float], values: Sequence[float]) -> bool:
    pairs = zip(logged, values, strict=False)
    return len(logged) == len(values) and all(math.isclose(a, b, rel_tol=LOGGED, abs_tol=LOGGED) for a, b in pairs)


def distance(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """norm(found - right) / norm(right) over all tensors by name; NaN where something is not finite."""
    apart = torch.stack([(found[name] - value).square().sum() for name, value in right.items()]).sum()
    size = torch.stack([value.square().sum() for value in right.values()]).sum()
    return float((apart / size).sqrt()) if apart else 0.0
