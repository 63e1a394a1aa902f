"""Does raising N where a schedule would divide the learning rate give the same error in fewer updates?

Protocol of the paper (Smith et al. 2018, arXiv 1711.00489): a step schedule that divides the rate by 5, against one
that multiplies the batch by 5 instead, as long as it stays well below the data set's size, and divides the rate from
there on; a hybrid multiplies once. All see the same samples, and the noise scale rate x data set size / batch falls
alike.

Here the batch grows inside one run, by N alone: ``decay = "batch"`` raises N at each milestone up to
``largest_batch_size``, and the micro-batch stays. The milestones are those of the schedule that divides, at equal
samples (``accum_core.scaling.growing_batch``). ``bench``: digits with noise, perceptron with LayerNorm, 16 samples an
update, then 48, then 144. ``full``: Wide ResNet 16-4 on CIFAR-10, 128 pictures, then 640, then 3,200.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from statistics import fmean
from typing import Any

from accum_core.claims import Claim, VerdictWord
from accum_core.epochs import epoch_losses
from accum_core.experiment import Difference, Drawn, Experiment, Figure, Paper, Preset, Published, SeedRuns
from accum_core.quantities import bound
from accum_core.records import RunConfig
from accum_core.scaling import growing_batch

SEEDS = (31, 32, 33, 34, 35, 36)
SHARES = (60, 120, 160)
"""Milestones, in epochs of 200: those of Wide ResNets (Zagoruyko and Komodakis 2016, arXiv 1605.07146)."""
NAMES = {
    "rate": "rate falls",
    "hybrid": "N grows once",
    "batch": "N grows",
    "large": "large from the start",
    "neither": "neither",
}
PAPER = Paper(
    "Smith et al.",
    2018,
    "Don't Decay the Learning Rate, Increase the Batch Size",
    "arXiv 1711.00489",
    "sections 5.1 and 5.3",
)


def _schedule(batch: int, epochs: int, samples: int, factor: int) -> dict[str, Any]:
    """A batch of one size, and the rate divided at each milestone."""
    updates = epochs * samples // batch
    return {
        "effective_batch_size": batch,
        "updates": updates,
        "schedule": "step",
        "milestones": tuple(updates * share // 200 for share in SHARES),
        "decay_factor": 1 / factor,
    }


def _grown(schedule: dict[str, Any], largest: int, factor: int) -> dict[str, Any]:
    """The same samples with the batch multiplied at the milestones, while it does not exceed ``largest``."""
    bound = largest // schedule["effective_batch_size"]
    stages = growing_batch(schedule["milestones"], factor, updates=schedule["updates"], largest_batch_factor=bound)
    *milestones, updates = accumulate(stage.updates for stage in stages)
    grown = {"decay": "batch", "largest_batch_size": largest, "milestones": tuple(milestones), "updates": updates}
    return schedule | grown


def _runs(batch: int, largest: int, factor: int, epochs: int, samples: int, **settings: Any) -> dict[str, RunConfig]:
    """The paper's three schedules, and two controls: neither decays, and the largest batch from the first update on."""
    falling = _schedule(batch, epochs, samples, factor)
    ways = {
        "rate": falling,
        "hybrid": _grown(falling, batch * factor, factor),
        "batch": _grown(falling, largest, factor),
        "large": _schedule(largest, epochs, samples, factor),
        "neither": falling
        | {"schedule": "constant", "milestones": (), "validate_every": max(1, falling["updates"] // 25)},
    }
    common: dict[str, Any] = {"warmup_updates": 0, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    return {
        label: RunConfig.of(
            **(common | {"validate_every": way["updates"], "measure_every": way["updates"]} | settings | way)
        )
        for label, way in ways.items()
    }


def _digits(seed: int, epochs: int, samples: int) -> dict[str, RunConfig]:
    return _runs(
        16, 144, 3, epochs, samples,
        workload="digits", model="mlp", norm="layer", micro_batch_size=8, learning_rate=0.03, seed=seed,
    )  # fmt: skip


def _bench(seed: int) -> dict[str, RunConfig]:
    return _digits(seed, 6, 1408)


def _smoke(seed: int) -> dict[str, RunConfig]:
    return _digits(seed, 1, 720)


def _full(seed: int) -> dict[str, RunConfig]:
    return _runs(
        128, 3200, 5, 200, 49_920,
        workload="cifar10", model="wide_resnet16_4", norm="batch", micro_batch_size=64, learning_rate=0.1, seed=seed,
        validate_every=390,
    )  # fmt: skip


def _measure(runs: SeedRuns) -> dict[str, float]:
    """One seed's effects: differences of validation error in [0, 1] against the falling rate, and a ratio.

    Where neither changes the error does not come to rest, so there it is the mean of the last five validations.
    """
    errors = {label: run.metrics["error"] for label, run in runs.items()}
    validations = [record.validation for record in runs["neither"].records if record.validation is not None]
    errors["neither"] = fmean(found.error for found in validations[-5:] if found.error is not None)
    effects = {f"{label}_difference": errors[label] - errors["rate"] for label in NAMES if label != "rate"}
    return effects | {"updates_ratio": runs["batch"].records[-1].update / runs["rate"].records[-1].update}


def _claims(same: float, decay: float, large: float) -> tuple[Claim, ...]:
    """The paper's claims with their thresholds, shares of samples."""
    return (
        Claim(
            id="growing_batch_holds",
            statement=f"With N growing the error differs by less than {bound(same)} from that with the rate falling.",
            effect="batch_difference",
            at_least=-same,
            at_most=same,
            unit="error",
        ),
        Claim(
            id="hybrid_holds",
            statement=f"With N growing once and the rate falling from there on the error differs by less than "
            f"{bound(same)} from that with the rate falling.",
            effect="hybrid_difference",
            at_least=-same,
            at_most=same,
            unit="error",
        ),
        Claim(
            id="fewer_updates",
            statement="With N growing the run makes at most 0.5 times the updates.",
            effect="updates_ratio",
            at_most=0.5,
        ),
        Claim(
            id="decay_matters",
            statement=f"Control: with neither the error is at least {bound(decay)} higher.",
            effect="neither_difference",
            at_least=decay,
            unit="error",
        ),
        Claim(
            id="large_from_the_start_loses",
            statement="Control: with the largest batch from the start and the rate falling the error is at least "
            f"{bound(large)} higher.",
            effect="large_difference",
            at_least=large,
            unit="error",
        ),
    )


PUBLISHED = (
    Published(
        key="imagenet_updates",
        citation=PAPER.citation,
        statement="Inception-ResNet-V2 on ImageNet, two runs of each. With the batch multiplied at the first decay, "
        "where the rate was divided, the same epochs take below 6,000 updates instead of 14,000. "
        "The accuracies were read in a summary of the paper, not in the paper itself.",
        x_label="parameter updates",
        y_label="validation accuracy (%), ImageNet",
        series={
            "rate falls": ((14000, 78.7),),
            "rate falls, again": ((14000, 77.8),),
            "batch grows": ((6000, 78.1),),
            "batch grows, again": ((6000, 76.8),),
        },
    ),
)
PROTOCOL = (
    Difference("Network and data", "Wide ResNet 16-4, CIFAR-10; Inception-ResNet-V2, ImageNet", "perceptron, digits"),
    Difference("Factor", "5 at each milestone (CIFAR-10)", "3"),
    Difference("Batches", "128, 640, 3,200; at most 5,120, a tenth of CIFAR-10", "16, 48, 144: a tenth of the digits"),
    Difference("How it grows", "more samples at once", "N: 2, 6 and 18 micro-batches of 8, inside one run"),
    Difference("Rate", "0.1, momentum 0.9, with and without Nesterov's form", "0.03, momentum 0.9 in Nesterov's form"),
    Difference("Norm", "Ghost BatchNorm, so that the batch does not change it", "LayerNorm, for the same reason"),
    Difference("Controls", "none", "neither rate nor batch changes; the largest batch from the start"),
)
CHOSEN = (
    "Seeds 1 to 6. Rates 0.02, 0.03 and 0.05 over 8 epochs, then 0.03 over 6 (fewer updates to keep); all of them gave "
    "the same answer. With 0.03 over 6 epochs the error with N growing was 0.3 points above that with the rate falling "
    "(deviation over seeds 0.35), with neither 2.4 (1.2), with the large batch 3.5 (1.1). Six seeds: the claim of 1 "
    "point has a margin of 0.7, for which `seeds_needed` gives 5 at a power of 0.8, and the control with neither, with "
    "a margin of 1.9, gives 6."
)


def _by_epoch(runs: Mapping[int, SeedRuns]) -> Drawn:
    """Training loss of each epoch that every run has gone through; growing batches see some samples more."""
    losses = {seed: {label: epoch_losses(run.records) for label, run in runs[seed].items()} for seed in runs}
    whole = min(len(found) for of_seed in losses.values() for found in of_seed.values())
    return {
        name: {seed: [(row.epoch, row.loss) for row in losses[seed][label][:whole]] for seed in losses}
        for label, name in NAMES.items()
    }


def _by_update(runs: Mapping[int, SeedRuns]) -> Drawn:
    """The same at each epoch's last update, to the end."""
    return {
        name: {seed: [(row.update, row.loss) for row in epoch_losses(runs[seed][label].records)] for seed in runs}
        for label, name in NAMES.items()
    }


def _last(drawn: Drawn, name: str) -> tuple[float, float]:
    """The last point, mean over seeds."""
    ends = [points[-1] for points in drawn[name].values()]
    return fmean(x for x, _ in ends), fmean(y for _, y in ends)


def _epoch_finding(drawn: Drawn) -> str:
    loss = {label: _last(drawn, name)[1] for label, name in NAMES.items()}
    return (
        f"In the last epoch the loss is {loss['batch']:.3f} with N growing, {loss['rate']:.3f} with the rate falling, "
        f"{loss['neither']:.3f} with neither and {loss['large']:.3f} with the large batch from the start"
    )


def _update_finding(drawn: Drawn) -> str:
    made = {label: _last(drawn, name)[0] for label, name in NAMES.items()}
    return f"With N growing the same epochs take {made['batch']:,.0f} updates instead of {made['rate']:,.0f}"


FIGURES = (
    Figure("by_epoch", "epoch", "training loss", _by_epoch, _epoch_finding, log_y=True),
    Figure("by_update", "update", "training loss", _by_update, _update_finding, log_y=True),
)
REMARKS: dict[str, dict[VerdictWord, str]] = {
    "growing_batch_holds": {
        "supported": "So a schedule that decays can be turned into one that accumulates more: to within a point the "
        "error stays.",
        "inconclusive": "The difference is smaller than these seeds can tell from 1 point.",
    },
    "fewer_updates": {
        "supported": "This is arithmetic and the same for every seed; the finding is what the error does. On one "
        "device N micro-batches take about as long in one update as in N, so little time is gained: the gain is for "
        "those who have N devices, or a slow exchange between them.",
    },
    "decay_matters": {
        "supported": "Without this control equal errors would say nothing: here it does matter to end with less noise.",
        "inconclusive": "Then equal errors of the schedules say little: it may not matter here how a run ends.",
    },
    "large_from_the_start_loses": {
        "supported": "Few updates alone are not what is claimed: a batch that is large from the start loses.",
    },
}
EXPERIMENT = Experiment(
    name="smith_2018_increase_batch",
    title="Raise N instead of lowering the rate",
    question="Does raising N where a schedule would divide the learning rate give the same error in fewer updates?",
    papers=(PAPER,),
    claims=_claims(0.01, 0.005, 0.01),
    presets={
        "smoke": Preset((901, 902), _smoke, "2 seeds, one epoch of 720 samples: seconds, and decides nothing"),
        "bench": Preset(SEEDS, _bench, "6 seeds, noisy digits, perceptron, 6 epochs: about a minute on 2 cores"),
        "full": Preset(
            SEEDS[:3],
            _full,
            "3 seeds, Wide ResNet 16-4 on CIFAR-10, 200 epochs, 128 to 3,200 pictures, micro-batch 64: for a GPU",
            claims=_claims(0.005, 0.005, 0.005),
            long=True,
        ),
    },
    measure=_measure,
    published=PUBLISHED,
    protocol=PROTOCOL,
    chosen=CHOSEN,
    figures=FIGURES,
    remarks=REMARKS,
)
