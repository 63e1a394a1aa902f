"""Each formula's course against values by hand: weights that move by gradients which are the data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scalar_courses import ONE_TO_FIVE, by, end, scalar_problem

from accum_core.frameworks.harness.formulas import RIGHT, Clip, Formula, Pace, Resume, Tail, candidates
from accum_core.frameworks.harness.oracle import course
from accum_core.frameworks.harness.own_problems import own_problem

ONE_AND_THREE = [[10.0], [2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    ("formula", "weight", "updates"),
    [
        (RIGHT, -(1.5 + 3.5 + 5), 3),
        (by("mean of means over N"), -(1.5 + 3.5 + 2.5), 3),
        (by("mean of means over N, divided by N again"), -(3 + 7 + 5) / 4, 3),
        (by("mean of means over the window's micro-batches"), -(1.5 + 3.5 + 5), 3),
        (by("sum over weight, as if the window were full"), -(1.5 + 3.5 + 2.5), 3),
        (by("sum of means"), -(3 + 7 + 5), 3),
        (by("sum over weight", tail="dropped"), -(1.5 + 3.5), 2),
        (by("sum over weight", tail="counted on"), -(1.5 + 3.5), 2),
    ],
    ids=lambda value: value.name if isinstance(value, Formula) else None,
)
def test_short_window(formula: Formula, weight: float, updates: int) -> None:
    """T12, T13: gradients 1 to 5 in windows of 2."""
    ran = course(scalar_problem(ONE_TO_FIVE, accumulation_steps=2), formula)
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.updates == updates


@pytest.mark.parametrize(
    ("tail", "weight", "updates"),
    [
        ("stepped", -2 * (1.5 + 3.5 + 5), 6),
        ("dropped", -2 * (1.5 + 3.5), 4),
        ("counted on", -(1.5 + 3.5 + 3 + 2.5 + 4.5), 5),  # 1 2 | 3 4 | 5 1 | 2 3 | 4 5
        ("left over", -(1.5 + 3.5 + 8 / 3 + 3.5), 4),  # 1 2 | 3 4 | 5 1 2 | 3 4
        ("first alone", -(1 + 2.5 + 4.5 + 1 + 2.5 + 4.5), 6),  # 1 | 2 3 | 4 5 | 1 | 2 3 | 4 5
    ],
)
def test_two_epochs(tail: Tail, weight: float, updates: int) -> None:
    """T14: what becomes of the fifth micro-batch when another epoch follows."""
    problem = scalar_problem(ONE_TO_FIVE, accumulation_steps=2, epochs=2)
    ran = course(problem, by("sum over weight", tail=tail))
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.updates == updates


@pytest.mark.parametrize(
    ("division", "weight"),
    [
        ("mean of means over the window's micro-batches", -3 * (1.5 + 3.5) - 2 * 5),
        ("mean of means over N", -3 * (1.5 + 3.5) - 2 * 2.5),
    ],
)
def test_what_is_left_is_added(division: str, weight: float) -> None:
    """Six updates are due in two epochs: 1 2 | 3 4 | 1 2, 5 | 3 4 | 1 2, 5 | 3 4, so a third epoch is begun."""
    problem = scalar_problem(ONE_TO_FIVE, accumulation_steps=2, epochs=2, sized=False)
    ran = course(problem, by(division, tail="added"))
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.updates == 6


@pytest.mark.parametrize(("tail", "weight"), [("stepped", -(2.5 + 5.5)), ("last alone", -(2.5 + 6))])
def test_the_last_micro_batch_alone(tail: Tail, weight: float) -> None:
    """1 to 6 in windows of 4."""
    problem = scalar_problem([*ONE_TO_FIVE, [6.0]], accumulation_steps=4)
    assert end(course(problem, by("sum over weight", tail=tail))) == pytest.approx([weight], rel=1e-12)


@pytest.mark.parametrize(
    ("division", "gradient"),
    [
        ("sum over weight", 16 / 4),
        ("mean of means over N", (10 + 2) / 2),
        ("sum of means", 10 + 2),
        ("sum", 16),
        ("sum over samples", 16 / 2),
        ("sum over N", 16 / 2),
        ("sum over weight, times N", 4 * 2),
        ("sum over weight, divided by N", 4 / 2),
        ("samples' mean of means", (10 + 2) / 2),
    ],
)
def test_tokens(division: str, gradient: float) -> None:
    """S1: 1 token of gradient 10 and 3 of gradient 2."""
    problem = scalar_problem(ONE_AND_THREE, accumulation_steps=2)
    assert end(course(problem, by(division))) == pytest.approx([-gradient], rel=1e-12)


@pytest.mark.parametrize(
    ("formula", "gradient"),
    [
        (RIGHT, 4),
        (by("sum over weight on each rank, mean over ranks"), (10 + 2) / 2),
        (by("mean of means over N of one rank"), 10 + 2),
        (by("sum over weight, divided by the ranks"), 4 / 2),
        (by("sum over weight, times the ranks"), 4 * 2),
    ],
    ids=lambda value: value.name if isinstance(value, Formula) else None,
)
def test_tokens_on_two_ranks(formula: Formula, gradient: float) -> None:
    """S2: a micro-batch of S1 on each."""
    problem = scalar_problem(ONE_AND_THREE, accumulation_steps=1, world_size=2)
    assert end(course(problem, formula)) == pytest.approx([-gradient], rel=1e-12)


@pytest.mark.parametrize(
    ("division", "gradient"),
    [
        ("sum over weight", (1 + 5 + 5 + 5) / 4),
        ("mean of means over N", (1 + 5) / 3),
        ("mean of means over the micro-batches with a label", (1 + 5) / 2),
    ],
)
def test_an_ignored_micro_batch(division: str, gradient: float) -> None:
    """S5: means of 1 and 5, and a micro-batch without a label."""
    problem = scalar_problem([[1.0], [None], [5.0, 5.0, 5.0]], accumulation_steps=3)
    assert end(course(problem, by(division))) == pytest.approx([-gradient], rel=1e-12)


def test_another_count() -> None:
    """16 over 8 of another kind, and means over that kind: (10 / 2 + 6 / 6) / 2."""
    problem = scalar_problem(ONE_AND_THREE, accumulation_steps=2)
    doubled = replace(problem, counts={"halves": lambda batch: 2.0 * batch["labels"].numel()})
    names = candidates(doubled.settings, 2, ["halves"], beside=False, across_samples=False)
    found = {formula.name: end(course(doubled, formula)) for formula in names}
    assert found["sum over halves"] == pytest.approx([-16 / 8], rel=1e-12)
    assert found["mean over halves of each micro-batch"] == pytest.approx([-3], rel=1e-12)


@pytest.mark.parametrize(
    ("division", "clip", "gradient"),
    [
        ("sum over weight", "window", [0.125**0.5, 0.125**0.5]),
        ("sum over weight", "exactly", [0.125**0.5, 0.125**0.5]),
        ("sum of means", "running sum", [0.05**0.5, 0.2**0.5]),  # [0.5, 0], then [0.5, 1] at a norm of 0.5
        ("sum of means", "micro-batch", [0.5, 0.5]),
        ("sum of means", "not", [1, 1]),
    ],
)
def test_clipping(division: str, clip: Clip, gradient: list[float]) -> None:
    """P27: [1, 0] and [0, 1], mean and then clipped to 0.5, or clipped at every pass: [0.2236, 0.4472]."""
    samples = [[[1.0, 0.0]], [[0.0, 1.0]]]
    problem = scalar_problem(samples, start=(0.0, 0.0), accumulation_steps=2, clip_norm=0.5)
    ran = course(problem, by(division, clip=clip))
    assert end(ran) == pytest.approx([-value for value in gradient], rel=1e-5)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize(
    ("pace", "weight", "rate"),
    [
        ("update", -(1 + 0.5 + 0.25), 0.125),
        ("schedule", -(1 + 0.5**4 + 0.5**8), 0.5**10),
        ("schedule ahead", -(0.5**3 + 0.5**7 + 0.5**9), 0.5**10),
        ("schedule an epoch", -3, 0.5),
    ],
)
def test_schedule(pace: Pace, weight: float, rate: float) -> None:
    """C19: gradients of 1 in windows of 4, 4 and 2; the rate is halved at each step, to 0.125 or 0.000977."""
    ran = course(scalar_problem([[1.0]] * 10, accumulation_steps=4, gamma=0.5), by("sum over weight", pace=pace))
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.final_lr == pytest.approx(rate, rel=1e-12)
    assert ran.updates == 3


def test_a_schedule_that_steps_for_each_rank() -> None:
    """Gradients of 1 in two windows of one micro-batch on each of two ranks: rates of 1 and 0.25, then 0.0625."""
    problem = scalar_problem([[1.0]] * 4, accumulation_steps=1, world_size=2, gamma=0.5)
    ran = course(problem, by("sum over weight", pace="schedule a rank"))
    assert end(ran) == pytest.approx([-(1 + 0.25)], rel=1e-12)
    assert ran.final_lr == pytest.approx(0.0625, rel=1e-12)


@pytest.mark.parametrize(("pace", "weight"), [("update", 0.99), ("optimizer", 0.99**4)])
def test_weight_decay(pace: Pace, weight: float) -> None:
    """C24: no gradient, decay 0.1 at a rate of 0.1, one window of 4: 0.99, or 0.9606."""
    settings = {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.1}
    problem = scalar_problem([[0.0]] * 4, start=(1.0,), accumulation_steps=4, **settings)
    assert end(course(problem, by("sum over weight", pace=pace))) == pytest.approx([weight], rel=1e-12)


@pytest.mark.parametrize(
    ("resume", "weight"),
    [
        ("inside", -(1.5 + 3.5 + 5.5)),
        ("lost", -(1.5 + 4 + 5.5)),  # of the second window only its second micro-batch is left
        ("skipped", -(1.5 + 5.5)),
        ("stepped", -(1.5 + 3 + 4.5 + 6)),
        ("new window", -(1.5 + 4.5 + 6)),
        ("new epoch", -(1.5 + 1.5 + 3.5 + 5.5)),
        ("first samples", -(1.5 + 1.5 + 3.5)),
        ("rest of first", -(1.5 + 1 + 2.5)),
        ("epoch inside", -(1.5 + 2 + 2.5 + 4.5)),  # 1 2 | 3 1 | 2 3 | 4 5, and 6 is left
    ],
)
def test_resume(resume: Resume, weight: float) -> None:
    """1 to 6 in windows of 2, interrupted after the third."""
    problem = scalar_problem([*ONE_TO_FIVE, [6.0]], accumulation_steps=2, stop_after=3)
    assert end(course(problem, by("sum over weight", resume=resume))) == pytest.approx([weight], rel=1e-12)


@pytest.mark.parametrize("resume", ["lost", "rest of first"])
def test_a_schedule_has_stepped_for_what_is_lost(resume: Resume) -> None:
    """Gradients of 1 at rates halved by each of six micro-batches, of which the third's is lost: 0.5, 0.5^3, 0.5^5."""
    problem = scalar_problem([[1.0]] * 6, accumulation_steps=2, stop_after=3, gamma=0.5)
    ran = course(problem, by("sum over weight", pace="schedule ahead", resume=resume))
    assert end(ran) == pytest.approx([-(0.5 + 0.5**3 + 0.5**5)], rel=1e-12)
    assert ran.final_lr == pytest.approx(0.5**6, rel=1e-12)


@pytest.mark.parametrize(
    ("formula", "gradient"),
    [(RIGHT, 1.5 + 3), (by("sum over weight"), 1.5 + 3), (by("sum over weight", beside="sum"), 1.5 + 6)],
)
def test_a_loss_beside_the_sum(formula: Formula, gradient: float) -> None:
    """It is 3 w at each pass, so its mean over the window is 3 w too."""
    plain = scalar_problem([[1.0], [2.0]], accumulation_steps=2)
    problem = replace(plain, beside=lambda model, _: 3 * next(model.parameters()).sum())
    assert end(course(problem, formula)) == pytest.approx([-gradient], rel=1e-12)


def test_what_may_be_logged() -> None:
    """At w = 1 the losses of S1 are its gradients: sums 10 and 6, means 10 and 2."""
    ran = course(scalar_problem(ONE_AND_THREE, start=(1.0,), accumulation_steps=2), RIGHT)
    (losses,) = ran.losses
    expected = {
        "sum over weight": 4,
        "mean of means": 6,
        "last micro-batch": 2,
        "first micro-batch": 10,
        "sum of means": 12,
        "mean over N again": 3,
        "last over N": 1,
        "sum": 16,
    }
    assert losses == pytest.approx(expected, rel=1e-12)
    assert ran.micro_losses == pytest.approx([10, 2], rel=1e-12)


def test_the_loss_through_batch_norm_is_that_of_one_batch() -> None:
    problem = own_problem("batch_norm")
    batch = problem.collate(problem.samples)
    parts = zip(batch["inputs"].split(2), batch["labels"].split(2), strict=True)
    one = problem.loss(problem.build()(batch["inputs"]), batch["labels"]).item()
    split = sum(problem.loss(problem.build()(inputs), labels).item() for inputs, labels in parts) / 4
    assert abs(split - one) > 1e-2
    (right,) = course(problem, RIGHT).losses
    assert right["sum over weight"] == pytest.approx(one, rel=1e-12)
    (alone,) = course(problem, replace(RIGHT, whole=False)).losses
    assert alone["sum over weight"] == pytest.approx(split, rel=1e-12)
