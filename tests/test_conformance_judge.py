"""Loops written by hand, each wrong in its own way, which the judge must name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from accum_core.conformance.results import Measured
from accum_core.frameworks.contract import Batch
from accum_core.frameworks.harness.judge import Judge, Seen, near
from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem

RATE = 0.1


def batches(problem: Problem) -> list[Batch]:
    size = problem.settings.micro_batch_size
    return [problem.collate(problem.samples[i : i + size]) for i in range(0, len(problem.samples), size)]


def add(problem: Problem, model: nn.Module, batch: Batch, factor: float) -> None:
    (problem.total(model(batch["inputs"]), batch["labels"]) * factor).backward()


def mean(problem: Problem, model: nn.Module, window: Sequence[Batch]) -> None:
    """The right gradient of a window."""
    for batch in window:
        add(problem, model, batch, 1 / sum(problem.weight(one["labels"]) for one in window))


def step(model: nn.Module, rate: float = RATE) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data -= rate * parameter.grad
        parameter.grad = None


def judged(case: str, model: nn.Module, problem: Problem | None = None, **seen: object) -> Measured:
    """What the judge says of a model that is trained; whatever is not given is right."""
    judge = Judge(problem or own_problem(case), case)
    found = {"updates": judge.right.updates, "final_lr": judge.right.final_lr, "logged": (), "seconds": 0.0} | seen
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return judge.measure(Seen(weights=weights, **found))  # type: ignore[arg-type]


Factor = Callable[[float, int, list[float], list[int]], float]
"""On a micro-batch's sum, by its weight and samples and those of the whole window."""
DIVISIONS: dict[str, tuple[str, int, Factor]] = {
    "mean of means over N": ("unequal_tokens", 8, lambda w, m, ws, ms: 1 / (8 * w)),
    "sum of means": ("unequal_tokens", 8, lambda w, m, ws, ms: 1 / w),
    "mean of means over N, divided by N again": ("unequal_tokens", 8, lambda w, m, ws, ms: 1 / (64 * w)),
    "sum": ("unequal_tokens", 8, lambda w, m, ws, ms: 1.0),
    "sum over samples": ("unequal_tokens", 8, lambda w, m, ws, ms: 1 / sum(ms)),
    "sum over N": ("class_weights", 4, lambda w, m, ws, ms: 1 / 4),
    "sum over weight, times N": ("unequal_tokens", 8, lambda w, m, ws, ms: 8 / sum(ws)),
    "sum over weight, divided by N": ("unequal_tokens", 8, lambda w, m, ws, ms: 1 / (8 * sum(ws))),
    "mean of means over the micro-batches with a label": (
        "empty_micro_batch", 4, lambda w, m, ws, ms: 1 / (3 * w) if w else 0.0
    ),
    "samples' mean of means": ("ragged_weights", 3, lambda w, m, ws, ms: m / (w * sum(ms))),
    "mean of means over the window's micro-batches": ("short_weights", 3, lambda w, m, ws, ms: 1 / (w * len(ws))),
    "sum over weight, as if the window were full": ("short_weights", 3, lambda w, m, ws, ms: len(ws) / (3 * sum(ws))),
}  # fmt: skip


def weighed(name: str) -> Problem:
    """The class weights' problem in micro-batches of 3, 3 and 2, or of 2, 2, 2 and 2 in windows of 3."""
    problem, size = own_problem("class_weights"), {"ragged_weights": 3, "short_weights": 2}[name]
    return replace(problem, settings=replace(problem.settings, micro_batch_size=size, accumulation_steps=3))


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_division_is_named(division: str) -> None:
    case, steps, factor = DIVISIONS[division]
    problem = weighed(case) if case.endswith("_weights") and case != "class_weights" else own_problem(case)
    model, passed = problem.build(), batches(problem)
    for start in range(0, len(passed), steps):
        window = passed[start : start + steps]
        weights, samples = [problem.weight(b["labels"]) for b in window], [len(b["labels"]) for b in window]
        for batch, weight, count in zip(window, weights, samples, strict=True):
            add(problem, model, batch, factor(weight, count, weights, samples))
        step(model)
    found = judged(case, model, problem)
    assert (found.verdict, found.formula) == ("wrong", division)
    assert found.gradient_error is not None and found.gradient_error > 1e-2


def epochs(*windows: Sequence[int]) -> Measured:
    """Short windows: 10 micro-batches an epoch, N = 4, two epochs; steps on the windows of these numbers."""
    problem = own_problem("short_window")
    model, passed = problem.build(), batches(problem)
    for window in windows:
        mean(problem, model, [passed[number] for number in window])
        step(model)
    return judged("short_window", model, updates=len(windows))


FIRST, SECOND, TAIL = range(4), range(4, 8), range(8, 10)


@pytest.mark.parametrize(
    ("windows", "name"),
    [
        ([FIRST, SECOND] * 2, "the short window is dropped"),
        (
            [FIRST, SECOND, [8, 9, 0, 1], range(2, 6), range(6, 10)],
            "the short window goes on into the next epoch",
        ),
        (
            [FIRST, SECOND, [8, 9, 0, 1, 2, 3], SECOND],
            "the short window's gradient stays for the next epoch's first window",
        ),
        ([FIRST, SECOND, [9]] * 2, "of the short window only its last micro-batch is stepped"),
    ],
)
def test_a_tail_is_named(windows: list[Sequence[int]], name: str) -> None:
    found = epochs(*windows)
    assert (found.verdict, found.formula) == ("wrong", f"sum over weight; {name}")


def test_right_windows_are_right() -> None:
    found = epochs(*[FIRST, SECOND, TAIL] * 2)
    assert (found.verdict, found.formula) == ("exact", "sum over weight")


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("the schedule steps once a micro-batch", [1, 0.09, 0.09**2, 0.09**3]),
        ("the schedule steps once a micro-batch, and an update takes the rate of its last one",
         [0.3, 0.3**3, 0.3**5, 0.3**7]),
    ],
)  # fmt: skip
def test_a_pace_of_the_schedule_is_named(name: str, rates: list[float]) -> None:
    """Four windows of 2, by 0.3 at each step."""
    problem = own_problem("schedule")
    model, passed = problem.build(), batches(problem)
    for number, rate in enumerate(rates):
        mean(problem, model, passed[2 * number : 2 * number + 2])
        step(model, RATE * rate)
    found = judged("schedule", model, final_lr=RATE * 0.3**8)
    assert (found.verdict, found.formula) == ("wrong", f"sum over weight; {name}")
    assert "a last rate of 6.561e-06 instead of 0.00081" in found.explanation


def test_steps_of_the_optimizer_are_named() -> None:
    problem = own_problem("weight_decay")
    model, passed = problem.build(), batches(problem)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    for batch in passed:
        add(problem, model, batch, 1 / 8)
        optimizer.step()
        optimizer.zero_grad()
    found = judged("weight_decay", model, updates=4)
    assert (found.verdict, found.formula) == ("wrong", "sum over weight; the optimizer steps once a micro-batch")
    assert "4 updates instead of 1" in found.explanation


def bounded(gradients: Sequence[Tensor], margin: float) -> list[Tensor]:
    """At most 0.05 long; torch adds a margin of 1e-6 to the norm."""
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    return [gradient * min(1.0, 0.05 / (norm + margin)) for gradient in gradients]


@pytest.mark.parametrize(
    ("name", "verdict", "margin"),
    [
        ("", "exact", 1e-6),
        ("", "exact", 0.0),
        ("; the running sum is clipped after every micro-batch", "wrong", 1e-6),
        ("; each micro-batch's gradient is clipped", "wrong", 1e-6),
        ("; nothing is clipped", "wrong", 1e-6),
    ],
)
def test_a_clip_is_named(name: str, verdict: str, margin: float) -> None:
    problem = own_problem("clipping")
    model, passed = problem.build(), batches(problem)
    parameters = list(model.parameters())
    for window in (passed[:4], passed[4:]):
        summed = [torch.zeros_like(parameter) for parameter in parameters]
        for batch in window:
            total = problem.total(model(batch["inputs"]), batch["labels"]) / 8
            gradients: Sequence[Tensor] = torch.autograd.grad(total, parameters)
            if "each" in name:
                gradients = bounded(gradients, margin)
            summed = [a + b for a, b in zip(summed, gradients, strict=True)]
            if "running" in name:
                summed = bounded(summed, margin)
        for parameter, gradient in zip(parameters, summed if name else bounded(summed, margin), strict=True):
            parameter.data -= RATE * gradient
    found = judged("clipping", model)
    assert found.verdict == verdict
    assert (found.formula or "").startswith("sum over weight" + name)


@pytest.mark.parametrize(
    ("windows", "name"),
    [
        ([FIRST, [6, 7], range(8, 12)], "what the interrupted window had summed is lost"),
        ([FIRST, range(8, 12)], "the interrupted window is skipped"),
        (
            [FIRST, [4, 5], range(6, 10), [10, 11]],
            "the interrupted window is stepped as it is, and a new one begins",
        ),
        ([FIRST, range(6, 10), [10, 11]], "what the interrupted window had summed is lost, and a new one begins"),
        ([FIRST, FIRST, SECOND, range(8, 12)], "the epoch begins anew"),
    ],
)
def test_a_resume_is_named(windows: list[Sequence[int]], name: str) -> None:
    """12 micro-batches, interrupted after 6; the rate is halved at each update."""
    problem = own_problem("resume")
    model, passed = problem.build(), batches(problem)
    for number, window in enumerate(windows):
        mean(problem, model, [passed[place] for place in window])
        step(model, RATE * 0.5**number)
    found = judged("resume", model)
    assert (found.verdict, found.formula) == ("wrong", f"sum over weight; {name}")


RANKS: dict[str, Factor] = {
    "sum over weight on each rank, mean over ranks": lambda w, own, ws, ms: 1 / (2 * own),
    "sum over weight, divided by the ranks": lambda w, own, ws, ms: 1 / (2 * sum(ws)),
    "sum over weight, times the ranks": lambda w, own, ws, ms: 2 / sum(ws),
    "mean of means over N of one rank": lambda w, own, ws, ms: 1 / (4 * w),
}


@pytest.mark.parametrize("division", RANKS)
def test_a_division_over_ranks_is_named(division: str) -> None:
    """Micro-batches 0, 2, 4 and 6 on one rank, the others on the other; ``own`` is the weight of all on its rank."""
    problem = own_problem("two_ranks")
    model, passed = problem.build(), batches(problem)
    weights = [problem.weight(batch["labels"]) for batch in passed]
    for number, batch in enumerate(passed):
        own = int(sum(weights[number % 2 :: 2]))
        add(problem, model, batch, RANKS[division](weights[number], own, weights, []))
    step(model)
    found = judged("two_ranks", model)
    assert (found.verdict, found.formula) == ("wrong", division)


def test_statistics_of_micro_batches_are_named() -> None:
    problem = own_problem("batch_norm")
    model = problem.build()
    mean(problem, model, batches(problem))
    step(model)
    found = judged("batch_norm", model)
    assert (found.verdict, found.formula) == (
        "wrong",
        "sum over weight; the statistics are each micro-batch's own",
    )


def test_a_loss_beside_the_sum_is_named() -> None:
    def beside(model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = model(batch["inputs"]).square().mean()
        return found

    problem = replace(own_problem("equal"), beside=beside)
    model, passed = problem.build(), batches(problem)
    mean(problem, model, passed)
    for batch in passed:
        beside(model, batch).backward()
    step(model)
    assert judged("equal", model, problem).formula == "sum over weight; the loss beside it is added N times"


def test_another_count_is_named() -> None:
    problem = own_problem("unequal_tokens")
    model, passed = problem.build(), batches(problem)
    for batch in passed:
        add(problem, model, batch, 1 / sum(one["labels"].numel() + 1 for one in passed))
    step(model)
    counted = replace(problem, counts={"tokens and ends": lambda batch: batch["labels"].numel() + 1.0})
    assert judged("unequal_tokens", model, counted).formula == "sum over tokens and ends"
    unnamed = judged("unequal_tokens", model)
    assert (unnamed.verdict, unnamed.formula) == ("wrong", None)
    assert unnamed.explanation == "None of the candidate formulas gives what it computed."


def test_what_gives_the_same_differs_in_one_thing() -> None:
    """Of two divisions and two tails that are all the same here, the one that differs in both is left out."""
    names = ["sum of means; dropped", "sum; counted on", "sum of means; counted on", "sum"]
    assert [near(name, "sum; dropped") for name in names] == [True, True, False, True]
