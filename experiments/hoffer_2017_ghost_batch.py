"""Where does the error that a large batch loses at equal epochs come from, and what brings it back?

Protocol of the paper (Hoffer et al. 2017, arXiv 1705.08741), step by step: a small batch; a large one for the same
epochs at the same rate; the rate by the square root of the batch; Ghost BatchNorm, whose statistics are those of parts
as large as the small batch; and "regime adaptation", as many updates as the small batch makes, so more epochs. The code
published with it (github.com/eladhoffer/bigBatch) computes Ghost BatchNorm by gradient accumulation: plain BatchNorm in
micro-batches, one update for all of them. So does one run here, beside the norm ``ghost_batch`` in a single pass.

The control that the paper does not have: the small batch, trained for as many epochs as the adapted large one.

``bench``: digits with noise, perceptron, 88 samples against 704 = 8 x 88. ``full``: ResNet-44 on CIFAR-10 by the
settings of the published code, 256 pictures against 2,048 = 8 x 256.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from accum_core.claims import Claim, VerdictWord
from accum_core.experiment import Difference, Drawn, Experiment, Figure, Paper, Preset, SeedRuns
from accum_core.quantities import bound
from accum_core.records import RunConfig, UpdateRecord

SEEDS = (31, 32, 33, 34, 35, 36)
TIMES = 8
"""Large batch over small batch."""
PAPER = Paper(
    "Hoffer et al.",
    2017,
    "Train longer, generalize better: closing the generalization gap in large batch training of neural networks",
    "arXiv 1705.08741",
    "sections 4 and 5",
)


def _runs(small: int, epochs: int, samples: int, validations: int, **settings: Any) -> dict[str, RunConfig]:
    """The paper's steps and the control.

    Args:
        small: the small batch, and the ghost batches of the large one.
        samples: in an epoch; the large batch divides them.
        validations: in each run, evenly spaced.
    """
    large = TIMES * small
    short = epochs * samples // large
    ghost = {"norm": "ghost_batch", "ghost_batch_size": small}
    by_root = {"effective_batch_size": large, "micro_batch_size": large, "scaling": "square_root"}
    ways: dict[str, dict[str, Any]] = {
        "small": {"updates": TIMES * short},
        "large": by_root | {"scaling": "none", "updates": short},
        "rate": by_root | {"updates": short},
        "ghost": by_root | ghost | {"updates": short},
        "accumulated": by_root | {"micro_batch_size": small, "updates": short},
        "adapted": by_root | ghost | {"updates": TIMES * short},
        "small_long": {"updates": TIMES * TIMES * short},
    }
    common: dict[str, Any] = {
        "norm": "batch", "effective_batch_size": small, "micro_batch_size": small, "base_batch_size": small,
        "warmup_updates": 0, "schedule": "step", "decay_factor": 0.1, "momentum": 0.9, "weight_decay": 1e-4,
        "clip_norm": 5.0,
    }  # fmt: skip
    runs = {}
    for label, way in ways.items():
        updates = way["updates"]
        rhythm = {
            "milestones": tuple(updates * epoch // 200 for epoch in (81, 122, 164)),
            "validate_every": max(1, updates // validations),
            "measure_every": updates,
        }
        runs[label] = RunConfig.of(**(common | rhythm | settings | way))
    return runs


def _bench(seed: int) -> dict[str, RunConfig]:
    return _runs(88, 12, 1408, 12, workload="digits", model="mlp", learning_rate=0.05, seed=seed)


def _smoke(seed: int) -> dict[str, RunConfig]:
    return _runs(8, 5, 64, 5, workload="digits", model="mlp", learning_rate=0.05, seed=seed)


def _full(seed: int) -> dict[str, RunConfig]:
    return _runs(256, 200, 49_152, 200, workload="cifar10", model="resnet44", learning_rate=0.1, seed=seed)


def _measure(runs: SeedRuns) -> dict[str, float]:
    """One seed's effects: differences of validation error in [0, 1], the first run named less the second."""
    pairs = {
        "gap": ("large", "small"),
        "rate_gain": ("large", "rate"),
        "ghost_gain": ("rate", "ghost"),
        "accumulated_difference": ("accumulated", "ghost"),
        "adapted_gap": ("adapted", "small"),
        "long_over_adapted": ("small_long", "adapted"),
    }
    errors = {label: run.metrics["error"] for label, run in runs.items()}
    return {effect: errors[first] - errors[second] for effect, (first, second) in pairs.items()}


def _claims(gap: float, rate: float, ghost: float, close: float) -> tuple[Claim, ...]:
    """The paper's claims and the control, with thresholds in shares of samples."""
    return (
        Claim(
            id="large_batch_loses",
            statement=f"At equal epochs and rate the large batch's error is at least {bound(gap)} above the small "
            "batch's.",
            effect="gap",
            at_least=gap,
            unit="error",
        ),
        Claim(
            id="square_root_gains",
            statement=f"The rate by the square root takes at least {bound(rate)} off the large batch's error.",
            effect="rate_gain",
            at_least=rate,
            unit="error",
        ),
        Claim(
            id="ghost_batch_norm_gains",
            statement=f"Ghost BatchNorm takes at least {bound(ghost)} more off it.",
            effect="ghost_gain",
            at_least=ghost,
            unit="error",
        ),
        Claim(
            id="accumulation_is_ghost_batch_norm",
            statement="Plain BatchNorm in accumulated micro-batches has the error of Ghost BatchNorm in one pass, to "
            "0.5 points (0.005).",
            effect="accumulated_difference",
            at_least=-0.005,
            at_most=0.005,
            unit="error",
        ),
        Claim(
            id="as_many_updates_close_the_gap",
            statement=f"With as many updates as the small batch the large one's error is at most {bound(close)} above "
            "the small batch's.",
            effect="adapted_gap",
            at_most=close,
            unit="error",
        ),
        Claim(
            id="small_batch_gains_too",
            statement="Control: trained for as many epochs, the small batch's error is at most 0.5 points (0.005) "
            "above the large one's.",
            effect="long_over_adapted",
            at_most=0.005,
            unit="error",
        ),
    )


PROTOCOL = (
    Difference("Network and data", "several on MNIST, CIFAR-10, CIFAR-100, ImageNet", "perceptron, digits"),
    Difference("Batches (published code)", "2,048 against 256", "704 against 88"),
    Difference("Ghost batch", "as large as the small batch, computed by accumulation", "the same, and in one pass"),
    Difference("Rate", "by the square root of the batch from 0.1", "by the square root of the batch from 0.05"),
    Difference(
        "Schedule", "a tenth after 81, 122 and 164 of 200 epochs, of more when adapted", "the same shares of 12"
    ),
    Difference("Optimizer", "momentum 0.9, weight decay 1e-4, gradient clipped at norm 5", "the same"),
    Difference("Control", "none", "the small batch for as many epochs as the adapted large one"),
)
CHOSEN = (
    "Seeds 1 to 6. Rates 0.02, 0.05 and 0.1 were tried with a small batch of 64, then 0.05 with 88 (fewer updates to "
    "keep); the answers were the same. There the gap was 9.7 points (deviation over seeds 1.1), of which the rate took "
    "5.1 (1.0) and Ghost BatchNorm 0.0 (0.3); adapted, the large batch was 0.2 (0.2) below the small one, and that for "
    "as many epochs 0.35 (0.56) below this. Six seeds: `seeds_needed` gives 2 to 4 for the paper's claims and "
    "6 for the control. The figures of the paper's table could not be checked against it, so none is shown."
)
NAMES = {
    "small": "small",
    "large": "large",
    "rate": "√ rate",
    "ghost": "√ rate, ghost",
    "adapted": "as many updates",
    "small_long": "small, as long",
}


def _curves(place: Callable[[UpdateRecord], float], runs: Mapping[int, SeedRuns]) -> Drawn:
    """Validation error in percent."""
    return {
        name: {
            seed: [
                (place(record), 100 * record.validation.error)
                for record in of_seed[label].records
                if record.validation is not None and record.validation.error is not None
            ]
            for seed, of_seed in runs.items()
        }
        for label, name in NAMES.items()
    }


def _last(drawn: Drawn, label: str) -> float:
    """The last error, mean over seeds."""
    return fmean(points[-1][1] for points in drawn[NAMES[label]].values())


def _by_samples(drawn: Drawn) -> str:
    return (
        f"After the same samples the large batch's error is {_last(drawn, 'large'):.1f} % and the small one's "
        f"{_last(drawn, 'small'):.1f} %; the rate by the square root makes it {_last(drawn, 'rate'):.1f} %, Ghost "
        f"BatchNorm {_last(drawn, 'ghost'):.1f} %"
    )


def _by_updates(drawn: Drawn) -> str:
    return (
        f"After as many updates the large batch's error is {_last(drawn, 'adapted'):.1f} % and the small one's "
        f"{_last(drawn, 'small'):.1f} %; but trained for as long the small batch comes to "
        f"{_last(drawn, 'small_long'):.1f} %"
    )


FIGURES = (
    Figure(
        "by_samples", "samples seen", "validation error (%)",
        partial(_curves, lambda record: record.samples), _by_samples, log_x=True,
    ),
    Figure(
        "by_updates", "update", "validation error (%)",
        partial(_curves, lambda record: record.update), _by_updates, log_x=True,
    ),
)  # fmt: skip
REMARKS: dict[str, dict[VerdictWord, str]] = {
    "large_batch_loses": {
        "supported": "Here it is no gap between training and validation: with an eighth of the updates the large batch "
        "has not learnt the training samples either.",
    },
    "ghost_batch_norm_gains": {
        "refuted": "With 704 digits an update, statistics of 88 are no worse and no better than those of all. Whoever "
        "accumulates with BatchNorm gets it in any case.",
        "inconclusive": "Whoever accumulates with BatchNorm gets it in any case.",
    },
    "accumulation_is_ghost_batch_norm": {
        "supported": "It is the same computation: gradients and running statistics agree to rounding.",
    },
    "small_batch_gains_too": {
        "supported": "More updates bring the large batch to the small one, at eight times the samples; from as many "
        "samples the small batch gains no less. The paper's title is right of both.",
    },
}
EXPERIMENT = Experiment(
    name="hoffer_2017_ghost_batch",
    title="What a large batch loses, and what brings it back",
    question="Where does the error that a large batch loses at equal epochs come from, and what brings it back?",
    papers=(PAPER,),
    claims=_claims(0.05, 0.02, 0.01, 0.01),
    presets={
        "smoke": Preset((901, 902), _smoke, "2 seeds, batches of 8 and 64, 5 to 320 updates: seconds, decides nothing"),
        "bench": Preset(
            SEEDS, _bench, "6 seeds, noisy digits, perceptron, 12 and 96 epochs: about a minute on 2 cores"
        ),
        "full": Preset(
            SEEDS[:3],
            _full,
            "3 seeds, ResNet-44 on CIFAR-10 by the published code's settings, 200 and 1,600 epochs, 256 and 2,048 "
            "pictures: for a GPU",
            claims=_claims(0.01, 0.005, 0.005, 0.005),
            long=True,
        ),
    },
    measure=_measure,
    protocol=PROTOCOL,
    chosen=CHOSEN,
    figures=FIGURES,
    remarks=REMARKS,
)
