"""What the page on loss scaling says: question, answer and chart titles, made from the window's numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from accum_core.loss_scaling import MicroBatch, Outcome
from accum_core.quantities import number
from accum_core.reduction import LossReduction, ReductionKind
from accum_ui.scaling_numbers import EQUAL, counted, listed, percent, times, weights

PARALLEL: Final = 0.995  # cosines from here on are 1.00 for a sentence
FACTOR: Final = 1e-12  # a cosine that is 1 up to here belongs to a multiple of the reference
Outcomes = Mapping[ReductionKind, Outcome]


def title(kind: str) -> str:
    """A reduction's name for people."""
    return kind.replace("_", " ")


def question(micro_batches: Sequence[MicroBatch], unit: str) -> str:
    """The page's title."""
    count, valid = len(micro_batches), sum(micro.valid for micro in micro_batches)
    if not valid:
        return f"What is a window without a valid {unit.removesuffix('s')} divided by?"
    if count == 1:
        return f"Is one micro-batch divided like a batch of {counted(valid, unit)}?"
    return f"Is the mean of {count} means the mean of {'the' if valid == 1 else 'all'} {counted(valid, unit)}?"


def answer(micro_batches: Sequence[MicroBatch], outcomes: Outcomes, rule: LossReduction, unit: str) -> str:
    """The sentence under the title."""
    count, full = len(micro_batches), rule.accumulation_steps or len(micro_batches)
    exact, means = outcomes["exact"], outcomes["mean_of_means"]
    if exact.error is None:
        return (
            "No label of this window is valid: there is nothing to divide by, so no update, no step of the schedule "
            "and a warning."
        )
    if not exact.updates:
        return (
            f"This window holds {count} of {full} micro-batches, and the tail rule drop leaves it out: no update, so "
            f"this epoch learns nothing from its {counted(sum(micro.valid for micro in micro_batches), unit)}."
        )
    if means.error is None:
        return "The whole batch's gradient is zero, so there is no gradient error to speak of."
    if rule.tail == "divide_by_n" and count < full:
        return (
            f"No: the window holds {count} of {full} micro-batches and is divided by {full} all the same, so its "
            f"gradient is {number(count / full)} of what it should be, and off by {percent(exact.error)} even where "
            "each micro-batch is divided rightly."
        )
    if means.error <= EQUAL:
        same = "one micro-batch is the batch" if count == 1 else _why_equal(micro_batches)
        return f"Yes, here: {same}, so dividing by the number of micro-batches gives the gradient of the whole batch."
    least, most = extremes(means)
    low, high = means.label_weights[least], means.label_weights[most]
    exactly = _exactly(exact.error)
    if high - low <= EQUAL * high:
        return (
            f"No. In the mean of means every label counts for {weights([high])[0]} of a fair one, as a micro-batch "
            f"without a valid label is one of the {count} like any other: the gradient is off by "
            f"{percent(means.error)}. "
            f"{exactly}"
        )
    cosine = (
        ""
        if means.cosine is None or means.cosine > PARALLEL
        else f" and its cosine to the batch's is {number(means.cosine)}"
    )
    return (
        f"No. In the mean of means {counts_for(means)}: the gradient is off by {percent(means.error)}{cosine}. "
        f"{exactly}"
    )


def _exactly(error: float) -> str:
    if error > EQUAL:
        return (
            f"Dividing by what the window holds is off by {percent(error)}, which is rounding, as its gradients cancel "
            "one another almost."
        )
    bound = f"to within {number(error, 1)}" if error else "to the last bit"
    return f"Dividing by what the window holds is exact, {bound}."


def _why_equal(micro_batches: Sequence[MicroBatch]) -> str:
    weights = [micro.weight for micro in micro_batches]
    if math.isclose(min(weights), max(weights), rel_tol=EQUAL):
        return "every micro-batch weighs the same"
    return "the micro-batches' mean gradients are equal"


def empty_note(micro_batches: Sequence[MicroBatch]) -> str | None:
    """What a micro-batch without a valid label does to the loops that take its mean; None where there is none."""
    empty = [str(index) for index, micro in enumerate(micro_batches, 1) if not micro.weight]
    if not empty or len(empty) == len(micro_batches):
        return None
    many = len(empty) > 1
    return (
        f"Micro-batch{'es' if many else ''} {', '.join(empty)} hold{'' if many else 's'} no valid label. The mean over "
        "it is 0 / 0, which PyTorch gives as nan: so is the loss that a loop of means reports. It still counts as a "
        "micro-batch, and takes weight from the others. In the exact division it adds 0 to the sum and 0 to the weight."
    )


def extremes(outcome: Outcome) -> tuple[int, int]:
    """The micro-batches (from 0) whose labels weigh least and most, among those with a valid label."""
    weighed = [index for index, weight in enumerate(outcome.label_weights) if not math.isnan(weight)]
    return min(weighed, key=outcome.label_weights.__getitem__), max(weighed, key=outcome.label_weights.__getitem__)


def shares_title(outcomes: Outcomes) -> str:
    """The finding of the chart of label weights."""
    means = outcomes["mean_of_means"]
    least, most = extremes(means)
    low, high = means.label_weights[least], means.label_weights[most]
    if high - low <= EQUAL * high:
        if abs(high - 1) <= EQUAL:
            return "The mean of means gives every label its fair weight"
        return f"The mean of means gives every label {times(high)} its fair weight"
    return f"Under the mean of means, {counts_for(means)}"


def counts_for(outcome: Outcome) -> str:
    """What the most and the least heavy label count for, as a clause; 1 would be fair."""
    least, most = extremes(outcome)
    low, high = weights([outcome.label_weights[least], outcome.label_weights[most]])
    return f"a label of micro-batch {most + 1} counts for {high}, one of micro-batch {least + 1} for {low}"


def errors_title(outcomes: Outcomes) -> str:
    """The finding of the chart of gradient errors."""
    right = [title(kind) for kind, outcome in outcomes.items() if outcome.error is not None and outcome.error <= EQUAL]
    wrong = {title(kind): o.error for kind, o in outcomes.items() if o.error is not None and o.error > EQUAL}
    if not wrong:
        return "Every reduction gives the whole batch's gradient"
    worst = max(wrong, key=wrong.__getitem__)
    if not right:
        return f"No reduction gives the whole batch's gradient; {worst} is furthest off, by {percent(wrong[worst])}"
    means = wrong.get("mean of means")
    rest = f"; mean of means is off by {percent(means)}" if means is not None else ""
    return f"Only {listed(right)} give{'s' if len(right) == 1 else ''} the whole batch's gradient{rest}"


def loss_note(source: str, *, weighed: bool) -> str:
    """What the reported losses are measured in.

    Args:
        source: of the window, one of ``scaling_window.SOURCES``.
        weighed: whether its labels have class weights.
    """
    if source == "numbers":
        return "The loss of a label is w x at w = 1, a number without a unit."
    unit = "a unit of class weight" if weighed else "a label"
    return (
        f"The loss that exact and mean of means report is in nats {unit}. Sum of means adds up as many such means as "
        "there are micro-batches, and sum is the nats of the whole window, not divided by anything."
    )


def adam_note(outcomes: Outcomes) -> str:
    """Which wrong gradients Adam hides: by the cosines, the multiples of the right one. Empty where none is wrong."""
    wrong = {
        title(kind): outcome.cosine
        for kind, outcome in outcomes.items()
        if outcome.cosine is not None and outcome.error is not None and outcome.error > EQUAL
    }
    multiples = [name for name, cosine in wrong.items() if cosine >= 1 - FACTOR]
    turned = [name for name in wrong if name not in multiples]
    note = ""
    if multiples:
        are = "is a multiple" if len(multiples) == 1 else "are multiples"
        note += (
            f" Here {listed(multiples)} {are} of the right gradient (cosine 1). Where the factor stays the same from "
            "update to update, Adam divides it out again and hides the fault; SGD and gradient clipping show it."
        )
    if turned:
        point = "points" if len(turned) == 1 else "point"
        note += f" {listed(turned).capitalize()} {point} elsewhere (cosine below 1), which Adam does not divide out."
    return note.strip()


def window_note(micro_batches: Sequence[MicroBatch], rule: LossReduction) -> str:
    """What the formulas' letters stand for, in Markdown with LaTeX."""
    count, total = len(micro_batches), sum(micro.weight for micro in micro_batches)
    return (
        "Micro-batch $i$ of the $n$ that the window holds has a summed loss $s_i$ and a weight $w_i$: its valid "
        "labels, or the sum of their class weights. A full window holds $N$. "
        f"Here $n$ is {count}, $N$ is {rule.accumulation_steps or count} and the weights add up to {total:.6g}. The "
        "gradient is divided as the loss is."
    )


def formulas(micro_batches: Sequence[MicroBatch], rule: LossReduction) -> list[str]:
    """Each reduction of a window as a formula in LaTeX, with the factor of a tail that is divided by N."""
    count = len(micro_batches)
    tail = rule.tail == "divide_by_n" and count < (rule.accumulation_steps or count)
    by_n = r" \cdot \frac{n}{N}" if tail else ""
    return [
        rf"\text{{exact}} = \frac{{\sum_i s_i}}{{\sum_i w_i}}{by_n}",
        rf"\text{{mean of means}} = \frac{{1}}{{n}} \sum_i \frac{{s_i}}{{w_i}}{by_n}",
        r"\text{sum of means} = \sum_i \frac{s_i}{w_i}",
        r"\text{sum} = \sum_i s_i",
    ]


def worked_title(outcomes: Outcomes) -> str:
    """The heading of the worked example."""
    return f"How {_plain(outcomes['exact'])} becomes {_plain(outcomes['mean_of_means'])}"


def worked_example(micro_batches: Sequence[MicroBatch], outcomes: Outcomes) -> str:
    """A window of one-number gradients, divided step by step, as one paragraph."""
    held = " and ".join(
        f"{counted(micro.valid, 'labels')} with gradient {micro.mean_loss:g}" for micro in micro_batches
    )
    sums = " + ".join(f"{micro.gradient_sum[0]:g}" for micro in micro_batches)
    means = " + ".join(f"{micro.mean_loss:g}" for micro in micro_batches)
    total, count = sum(micro.weight for micro in micro_batches), len(micro_batches)
    first, *_, last = outcomes["mean_of_means"].label_weights
    return (
        f"{count} micro-batches hold {held}. The batch of all {total:g} has the gradient ({sums}) / {total:g} = "
        f"{_plain(outcomes['exact'])}. The mean of the micro-batches' means is ({means}) / {count} = "
        f"{_plain(outcomes['mean_of_means'])}: the label of the first weighs {times(first)} its fair weight, each "
        f"of the last {times(last)}. Nothing fails and nothing is infinite, so nothing warns."
    )


def _plain(outcome: Outcome) -> str:
    return f"{outcome.gradient[0]:.1f}"
