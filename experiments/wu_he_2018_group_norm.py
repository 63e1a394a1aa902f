"""What do few images per batch do to the error of networks with BatchNorm, GroupNorm, LayerNorm and InstanceNorm?

The effective batch stays and is accumulated from micro-batches of n, so that what the norm sees is the only thing that
changes. ``PROTOCOL`` has the paper's recipe beside ours, ``CHOSEN`` says how settings and thresholds were found.

``bench``: digits with noise in two networks. In the perceptron a channel has one value a sample, so that BatchNorm at
micro-batch 2 has two values to take a variance of; in the convolutional network it has 128 or 32. InstanceNorm has no
variance at all in the perceptron, and is run in the other one alone.
``full`` and ``full_imagenet``: the paper's recipe at its total batch of 8 x 32 = 256, each micro-batch one of its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

from accum_core.claims import Claim, VerdictWord
from accum_core.experiment import Difference, Drawn, Experiment, Figure, Preset, Published, SeedRuns
from accum_core.published import GROUP_NORMALIZATION, WU_HE_2018
from accum_core.quantities import MINUS
from accum_core.records import RunConfig

SEEDS = (11, 12, 13, 14, 15, 16, 17)
BESIDE = SEEDS[:3]
"""Seeds that also run GroupNorm and LayerNorm in the convolutional network: no claim rests on them."""

Runs = dict[str, RunConfig]


def _runs(seed: int, prefix: str, norm: str, micros: tuple[int, ...], **settings: Any) -> Runs:
    """One norm at several micro-batch sizes, the first of which is the one that the others are held against."""
    return {
        f"{prefix}{norm}_{micro if index else 'largest'}": RunConfig.of(
            norm=norm, micro_batch_size=micro, seed=seed, **settings
        )
        for index, micro in enumerate(micros)
    }


def _digits(model: str, **other: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "workload": "digits", "model": model, "effective_batch_size": 32, "learning_rate": 0.05,
        "updates": 100, "warmup_updates": 10, "validate_every": 25, "measure_every": 33,
    }  # fmt: skip
    return settings | other


def _bench(seed: int) -> Runs:
    runs = _runs(seed, "", "batch", (32, 16, 8, 4, 2), **_digits("mlp"))
    for norm in ("group", "layer"):
        runs |= _runs(seed, "", norm, (32, 8, 2), **_digits("mlp"))
    runs |= _runs(seed, "conv_", "batch", (32, 8, 2), **_digits("conv"))
    for norm in ("instance", "group", "layer") if seed in BESIDE else ("instance",):
        runs |= _runs(seed, "conv_", norm, (32, 2), **_digits("conv"))
    return runs


def _smoke(seed: int) -> Runs:
    short = {"effective_batch_size": 8, "updates": 2, "warmup_updates": 1, "validate_every": 2, "measure_every": 1}
    runs: Runs = {}
    for norm in ("batch", "group", "layer"):
        runs |= _runs(seed, "", norm, (8, 4, 2), **_digits("mlp", **short))
    for norm in ("batch", "instance"):
        runs |= _runs(seed, "conv_", norm, (8, 2), **_digits("conv", **short))
    return runs


def _paper(workload: str, model: str, updates_an_epoch: int, measure_every: int) -> dict[str, Any]:
    """The paper's recipe; an epoch's last images that fill no batch are left out."""
    return {
        "workload": workload,
        "model": model,
        "norm_groups": 32,
        "effective_batch_size": 256,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "warmup_updates": 0,
        "updates": 100 * updates_an_epoch,
        "schedule": "step",
        "milestones": tuple(epoch * updates_an_epoch for epoch in (30, 60, 90)),
        "decay_factor": 0.1,
        "validate_every": updates_an_epoch,
        "measure_every": measure_every,
    }


def _paper_runs(seed: int, settings: dict[str, Any]) -> Runs:
    runs: Runs = {}
    for norm in ("batch", "group"):
        runs |= _runs(seed, "", norm, (32, 16, 8, 4, 2), **settings)
    for norm in ("layer", "instance"):
        runs |= _runs(seed, "", norm, (32,), **settings)
    return runs


def _cifar(seed: int) -> Runs:
    return _paper_runs(seed, _paper("cifar10", "resnet18_small", 50_000 // 256, measure_every=1950))


def _imagenet(seed: int) -> Runs:
    epoch = 1_281_167 // 256
    return _paper_runs(seed, _paper("imagenet_folder", "resnet50", epoch, measure_every=100 * epoch))


def _measure(runs: SeedRuns) -> dict[str, float]:
    """One seed's effects: differences of validation error in [0, 1], positive where the first run named is worse."""
    metrics = {label: run.metrics for label, run in runs.items()}
    pairs = {
        "bn_rise_2": ("batch_2", "batch_largest"),
        "bn_rise_4": ("batch_4", "batch_largest"),
        "gn_change": ("group_2", "group_largest"),
        "ln_change": ("layer_2", "layer_largest"),
        "gn_over_bn": ("group_largest", "batch_largest"),
        "conv_bn_rise": ("conv_batch_2", "conv_batch_largest"),
        "conv_in_over_bn": ("conv_instance_largest", "conv_batch_largest"),
    }
    return {
        effect: metrics[first]["error"] - metrics[second]["error"]
        for effect, (first, second) in pairs.items()
        if first in metrics and second in metrics
    }


def _claim(name: str, effect: str, statement: str, **bounds: float) -> Claim:
    return Claim(id=name, statement=statement, effect=effect, unit="error", **bounds)


CLAIMS = (
    _claim(
        "batch_norm_rises",
        "bn_rise_2",
        "In the perceptron BatchNorm's error at micro-batch 2 is at least 20 points (0.2) above that at 32.",
        at_least=0.2,
    ),
    _claim(
        "batch_norm_rises_at_4",
        "bn_rise_4",
        "In the perceptron BatchNorm's error at micro-batch 4 is at least 2 points (0.02) above that at 32.",
        at_least=0.02,
    ),
    _claim(
        "group_norm_holds",
        "gn_change",
        "In the perceptron GroupNorm's error at micro-batch 2 and at 32 differ by less than 1 point (0.01).",
        at_least=-0.01,
        at_most=0.01,
    ),
    _claim(
        "layer_norm_holds",
        "ln_change",
        "In the perceptron LayerNorm's error at micro-batch 2 and at 32 differ by less than 1 point (0.01).",
        at_least=-0.01,
        at_most=0.01,
    ),
    _claim(
        "group_norm_close_to_batch_norm",
        "gn_over_bn",
        "In the perceptron GroupNorm's error is at most 3 points (0.03) above BatchNorm's, both at 32.",
        at_most=0.03,
    ),
    _claim(
        "batch_norm_survives_many_values",
        "conv_bn_rise",
        "In the convolutional network, with many values a channel, BatchNorm's error at micro-batch 2 is at most 2 "
        "points (0.02) above that at 32.",
        at_most=0.02,
    ),
    _claim(
        "instance_norm_loses",
        "conv_in_over_bn",
        "In the convolutional network InstanceNorm's error is at least 2 points (0.02) above BatchNorm's, both at 32.",
        at_least=0.02,
    ),
)


def _paper_claims(rise: float) -> tuple[Claim, ...]:
    return (
        _claim(
            "batch_norm_rises",
            "bn_rise_2",
            f"BatchNorm's error at micro-batch 2 is at least {100 * rise:g} points ({rise:g}) above that at 32.",
            at_least=rise,
        ),
        _claim(
            "group_norm_holds",
            "gn_change",
            "GroupNorm's error at micro-batch 2 and at 32 differ by less than 1 point (0.01).",
            at_least=-0.01,
            at_most=0.01,
        ),
    )


PUBLISHED = (
    WU_HE_2018,
    Published(
        key="group_count",
        citation=GROUP_NORMALIZATION.citation,
        statement="The same network at 32 images per GPU with other numbers of groups; one group is LayerNorm.",
        x_label="groups",
        y_label="validation error (%), ImageNet",
        series={"group": ((64, 24.6), (32, 24.1), (16, 24.6), (8, 24.4), (4, 24.6), (2, 24.7), (1, 25.3))},
    ),
)

PROTOCOL = (
    Difference("Data", "ImageNet", "1,437 handwritten digits of 8 x 8 pixels with noise; 360 validate"),
    Difference("Network", "ResNet-50", "3 x 128 perceptron; small convolutional network"),
    Difference("Batch", "8 GPUs with n images each, so that it shrinks", "32, accumulated from micro-batches of n"),
    Difference("Learning rate", "0.1 n / 32, a tenth after 30, 60 and 90 epochs", "0.05, warm-up, polynomial decay"),
    Difference("Length", "100 epochs", "100 updates"),
    Difference("Weight decay", "1e-4 on every parameter", "1e-4 on every parameter"),
    Difference("Error", "median over the last five epochs", "at the last validation"),
)
CHOSEN = (
    "11 combinations of noise (0.5 to 1.0), learning rate (0.03 to 0.3) and updates (100 to 200) were tried on seeds "
    "1 to 4, in two rounds for the perceptron and three for the convolutional network, and two heads of the latter. "
    "There BatchNorm's error rose by 29 to 45 points in the perceptron and by at most half a point in the other. That "
    "InstanceNorm loses 2 points is the paper's finding (4.8 there), not what those seeds showed; it stands here to be "
    "judged. The confirming seeds (11 to 17) were run more than once, as micro-batch sizes were added for the curves; "
    "claims, thresholds and verdicts stayed."
)
REMARKS: dict[str, dict[VerdictWord, str]] = {
    "batch_norm_survives_many_values": {
        "supported": "What breaks BatchNorm is not few images but few values: two images of 8 x 8 pixels are 128 "
        "values a channel, enough for a mean and a variance."
    },
    "instance_norm_loses": {
        "refuted": "The paper's 4.8 points are not found here, as the seeds that chose the settings had said; the "
        "claim was kept because it is the paper's. Data and network differ from the paper's: which of the two decides, "
        "these runs cannot tell."
    },
}
TITLES = {"batch": "BatchNorm", "group": "GroupNorm", "layer": "LayerNorm", "instance": "InstanceNorm"}


def _errors(prefix: str, runs: Mapping[int, SeedRuns]) -> Drawn:
    """Validation error (%) of each norm against the micro-batch size, in one network."""
    drawn: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for seed, of_seed in runs.items():
        for label, run in of_seed.items():
            norm, _, size = label.removeprefix(prefix).partition("_")
            if label == f"{prefix}{norm}_{size}" and norm in TITLES:
                point = run.config.micro_batch_size, 100 * run.metrics["error"]
                drawn.setdefault(TITLES[norm], {}).setdefault(seed, []).append(point)
    return drawn


def _rises(drawn: Drawn) -> str:
    """How far each norm's error rises from the largest micro-batch to the smallest, mean over seeds."""
    rise = {name: fmean(min(points)[1] - max(points)[1] for points in seeds.values()) for name, seeds in drawn.items()}
    told = ", ".join(f"{name} {points:+z.1f}" for name, points in rise.items()).replace("-", MINUS)
    return f"From the largest to the smallest micro-batch the error changes by, in points: {told}"


X = "micro-batch size (samples)"
FIGURES = tuple(
    Figure(key, X, f"validation error (%), {network}", partial(_errors, prefix), _rises, log_x=True)
    for key, prefix, network in (("perceptron", "", "perceptron"), ("convolutions", "conv_", "convolutional network"))
)

EXPERIMENT = Experiment(
    name="wu_he_2018_group_norm",
    title="Images per batch and four normalisations",
    question="What do few images per batch do to the error of networks with BatchNorm, GroupNorm, LayerNorm and "
    "InstanceNorm?",
    papers=(GROUP_NORMALIZATION,),
    claims=CLAIMS,
    presets={
        "smoke": Preset((901, 902), _smoke, "2 seeds, effective batch 8, 2 updates: seconds, and decides nothing"),
        "bench": Preset(
            SEEDS, _bench, "7 seeds, noisy digits, two networks, effective batch 32, 100 updates: minutes on 2 cores"
        ),
        "full": Preset(
            (11, 12, 13),
            _cifar,
            "3 seeds, ResNet-18 on CIFAR-10 by the paper's recipe, effective batch 256, 100 epochs: for a GPU",
            claims=_paper_claims(0.01),
            long=True,
        ),
        "full_imagenet": Preset(
            (11, 12),
            _imagenet,
            "2 seeds, ResNet-50 on ImageNet by the paper's recipe, effective batch 256, 100 epochs: for a large GPU",
            claims=_paper_claims(0.05),
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
