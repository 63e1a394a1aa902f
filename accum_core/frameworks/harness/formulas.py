"""The formulas that a loop may compute: the right one, and the wrong ones that frameworks are known for.

A formula has parts, each with a name: what the micro-batches' sums are divided by (``DIVISIONS``, ``OVER_RANKS``), what
samples the micro-batches hold (``cuts.CUTS``), what becomes of a window that is not full (``TAILS``), what happens once
a micro-batch instead of once an update (``PACES``), where the gradient is clipped (``CLIPS``), and where an interrupted
training goes on (``RESUMES``). What the first of each says is right, and goes without saying in a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Final, Literal

from accum_core.conformance.cases import Settings
from accum_core.frameworks.harness.cuts import CUTS, Cut, cuts

Tail = Literal["stepped", "dropped", "counted on", "left over", "added", "last alone", "first alone"]
Pace = Literal["update", "schedule", "schedule ahead", "schedule a rank", "schedule an epoch", "optimizer"]
Clip = Literal["window", "exactly", "running sum", "micro-batch", "not"]
Beside = Literal["whole", "mean", "sum"]
Resume = Literal[
    "inside", "lost", "skipped", "stepped", "new window", "new epoch", "first samples", "rest of first", "epoch inside"
]
RIGHT_CLIPS: Final[tuple[Clip, ...]] = ("window", "exactly")
"""To the bound, as torch does it, with 1e-6 beside the norm, or without."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What is known of a window's micro-batches before any division.

    Attributes:
        weights, samples: of each micro-batch.
        others: other counts of each, by their names.
        steps: micro-batches of a full window over all ranks.
        ranks: the rank that passes each.
    """

    weights: Sequence[float]
    samples: Sequence[int]
    others: Mapping[str, Sequence[float]]
    steps: int
    ranks: Sequence[int]


Factors = Callable[[Counted], list[float]]
"""The factor on each micro-batch's summed loss."""


def _each(window: Counted, divisor: Callable[[float], float]) -> list[float]:
    return [1 / divisor(weight) if weight else 0.0 for weight in window.weights]


def _over(count: float, window: Counted) -> list[float]:
    return [1 / count if count else 0.0] * len(window.weights)


def _over_count(name: str, window: Counted) -> list[float]:
    return _over(sum(window.others[name]), window)


def _over_each_count(name: str, window: Counted) -> list[float]:
    return [1 / (count * len(window.weights)) if count else 0.0 for count in window.others[name]]


def _rank_by_rank(window: Counted) -> list[float]:
    """Each rank's sum over its own weight, then the mean over the ranks."""
    own = {
        rank: sum(w for w, r in zip(window.weights, window.ranks, strict=True) if r == rank) for rank in window.ranks
    }
    return [1 / (own[rank] * len(own)) if own[rank] else 0.0 for rank in window.ranks]


DIVISIONS: Final[Mapping[str, Factors]] = MappingProxyType(
    {
        "sum over weight": lambda window: _over(sum(window.weights), window),
        "mean of means over N": lambda window: _each(window, lambda weight: weight * window.steps),
        "mean of means over the window's micro-batches": lambda window: _each(
            window, lambda weight: weight * len(window.weights)
        ),
        "mean of means over the micro-batches with a label": lambda window: _each(
            window, lambda weight: weight * sum(map(bool, window.weights))
        ),
        "sum of means": lambda window: _each(window, lambda weight: weight),
        "mean of means over N, divided by N again": lambda window: _each(window, lambda w: w * window.steps**2),
        "sum": lambda window: [1.0] * len(window.weights),
        "sum over samples": lambda window: _over(sum(window.samples), window),
        "sum over N": lambda window: _over(window.steps, window),
        "sum over weight, times N": lambda window: [
            factor * window.steps for factor in _over(sum(window.weights), window)
        ],
        "sum over weight, divided by N": lambda window: [
            factor / window.steps for factor in _over(sum(window.weights), window)
        ],
        "sum over weight, as if the window were full": lambda window: [
            factor * len(window.weights) / window.steps for factor in _over(sum(window.weights), window)
        ],
        "samples' mean of means": lambda window: [
            samples / (weight * sum(window.samples)) if weight else 0.0
            for samples, weight in zip(window.samples, window.weights, strict=True)
        ],
    }
)
OVER_RANKS: Final[Mapping[str, Factors]] = MappingProxyType(
    {
        "sum over weight on each rank, mean over ranks": _rank_by_rank,
        "sum over weight, divided by the ranks": lambda window: [
            factor / len(set(window.ranks)) for factor in _over(sum(window.weights), window)
        ],
        "sum over weight, times the ranks": lambda window: [
            factor * len(set(window.ranks)) for factor in _over(sum(window.weights), window)
        ],
        "mean of means over N of one rank": lambda window: _each(
            window, lambda weight: weight * window.steps / (max(window.ranks) + 1)
        ),
    }
)
TAILS: Final[Mapping[Tail, str]] = MappingProxyType(
    {
        "stepped": "",
        "dropped": "the short window is dropped",
        "counted on": "the short window goes on into the next epoch",
        "left over": "the short window's gradient stays for the next epoch's first window",
        "added": "the short window is divided by what it holds and added to the next epoch's first window, and epochs "
        "are begun until all updates are made",
        "last alone": "of the short window only its last micro-batch is stepped",
        "first alone": "an epoch's first micro-batch is a window of its own, and what is left at its end stays for the "
        "next epoch's first window",
    }
)
PACES: Final[Mapping[Pace, str]] = MappingProxyType(
    {
        "update": "",
        "schedule": "the schedule steps once a micro-batch",
        "schedule ahead": "the schedule steps once a micro-batch, and an update takes the rate of its last one",
        "schedule a rank": "the schedule steps once for each rank at every update",
        "schedule an epoch": "the schedule steps once an epoch",
        "optimizer": "the optimizer steps once a micro-batch",
    }
)
CLIPS: Final[Mapping[Clip, str]] = MappingProxyType(
    {
        "window": "",
        "exactly": "",
        "running sum": "the running sum is clipped after every micro-batch",
        "micro-batch": "each micro-batch's gradient is clipped",
        "not": "nothing is clipped",
    }
)
RESUMES: Final[Mapping[Resume, str]] = MappingProxyType(
    {
        "inside": "",
        "lost": "what the interrupted window had summed is lost",
        "skipped": "the interrupted window is skipped",
        "stepped": "the interrupted window is stepped as it is, and a new one begins",
        "new window": "what the interrupted window had summed is lost, and a new one begins",
        "new epoch": "the epoch begins anew",
        "first samples": "what the interrupted window had summed is lost, and the updates that are left take the "
        "epoch's first samples again",
        "rest of first": "what the interrupted window had summed is lost, and the micro-batches that are left are the "
        "epoch's first ones again",
        "epoch inside": "the interrupted window goes on with the epoch's first micro-batch, and all of the epoch "
        "follows",
    }
)
BESIDES: Final[Mapping[Beside, str]] = MappingProxyType(
    {
        "whole": "",
        "mean": "the loss beside it is the mean of each micro-batch's own",
        "sum": "the loss beside it is added N times",
    }
)


@dataclass(frozen=True, slots=True)
class Formula:
    """One way to train through a case.

    Attributes:
        division: its name.
        factors: on each micro-batch's summed loss.
        cut, tail, pace, clip, resume: its other parts, each with a sentence in the mapping of that name.
        beside: whether a loss beside the sum (``Problem.beside``) is that of the whole window, or the mean or the sum
            of each micro-batch's own.
        whole: whether a window's samples are passed in one batch, which only layers that look across samples notice;
            ``seen`` says that there are some.
    """

    division: str
    factors: Factors
    cut: Cut = "in order"
    tail: Tail = "stepped"
    pace: Pace = "update"
    clip: Clip = "window"
    resume: Resume = "inside"
    beside: Beside = "whole"
    whole: bool = False
    seen: bool = False

    @property
    def name(self) -> str:
        """All that it does, in words."""
        parts = [self.division, CUTS[self.cut], TAILS[self.tail], PACES[self.pace], CLIPS[self.clip]]
        parts += [RESUMES[self.resume], BESIDES[self.beside]]
        parts += ["the statistics are each micro-batch's own"] if self.seen and not self.whole else []
        return "; ".join(part for part in parts if part)


RIGHT: Final = Formula("sum over weight", DIVISIONS["sum over weight"], whole=True)


def rights(settings: Settings) -> list[Formula]:
    """The right formulas of a case: a clip without torch's margin is as right as one with it."""
    return [replace(RIGHT, clip=clip) for clip in (RIGHT_CLIPS if settings.clip_norm else RIGHT_CLIPS[:1])]


def candidates(
    settings: Settings, samples: int, counts: Sequence[str], *, beside: bool, across_samples: bool
) -> Iterator[Formula]:
    """The right formulas, then every combination of parts that a case can tell apart.

    Args:
        samples: in an epoch.
        counts: names of further counts to divide by.
        beside: whether the loss has a part beside its sum.
        across_samples: whether a layer looks across samples, so that the right answer is one batch.
    """
    yield from rights(settings)
    divisions = dict(DIVISIONS) | (dict(OVER_RANKS) if settings.world_size > 1 else {})
    for name in counts:
        divisions[f"sum over {name}"] = partial(_over_count, name)
        divisions[f"mean over {name} of each micro-batch"] = partial(_over_each_count, name)
    paces: list[Pace] = ["update", "optimizer"] if settings.optimizer == "adamw" else ["update"]
    if settings.gamma:
        paces = [pace for pace in PACES if pace != "schedule a rank" or settings.world_size > 1]
    clips: list[Clip] = list(CLIPS) if settings.clip_norm else ["window"]
    resumes: list[Resume] = list(RESUMES) if settings.stop_after else ["inside"]
    ends: list[tuple[Cut, Tail]] = []
    for cut, short in cuts(samples, settings):
        tails: list[Tail] = list(TAILS) if short else ["stepped", "first alone"]
        if settings.sized and short:
            tails.remove("added")  # who knows an epoch's length counts its short window as an update
        if settings.stop_after:
            tails.remove("first alone")  # where the interrupted window begins is told for windows of N alone
        ends += [(cut, tail) for tail in tails]
    for resume, (cut, tail), pace, clip, (name, factors) in product(resumes, ends, paces, clips, divisions.items()):
        formula = Formula(name, factors, cut, tail, pace, clip, resume, seen=across_samples)
        if beside:
            yield replace(formula, beside="mean")
            yield replace(formula, beside="sum")
        else:
            yield formula
