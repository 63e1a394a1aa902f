"""Three papers on large batches: their effects worked out by hand, and their presets held against the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import experiments
from accum_core.experiment import Drawn, Experiment
from accum_core.records import RunConfig

GOYAL = experiments.find("goyal_2017_linear_scaling")
SMITH = experiments.find("smith_2018_increase_batch")
HOFFER = experiments.find("hoffer_2017_ghost_batch")


@dataclass
class Row:
    """What is read of a record."""

    update: int
    epoch: int
    samples: int
    loss: float
    validation: Any = None


def run(config: RunConfig, error: float, losses: tuple[float, ...] = (2.0, 1.0)) -> Any:
    """A run of two epochs of 8 samples with these losses, validated after each update with this error."""
    rows = [
        Row(k + 1, k * 2 // len(losses), (k + 1) * 16 // len(losses), loss, SimpleNamespace(error=error))
        for k, loss in enumerate(losses)
    ]
    return SimpleNamespace(config=config, metrics={"error": error}, records=tuple(rows))


def made(experiment: Experiment, errors: Mapping[str, float], **losses: tuple[float, ...]) -> dict[str, Any]:
    """One seed's runs of the smoke preset with these errors."""
    configs = experiment.preset("smoke").configs(901)
    assert configs.keys() == errors.keys()
    return {label: run(configs[label], errors[label], losses.get(label, (2.0, 1.0))) for label in configs}


def means(drawn: Drawn) -> dict[str, list[tuple[float, float]]]:
    """Of one seed: line -> its points."""
    return {name: list(points) for name, seeds in drawn.items() for points in seeds.values()}


def rates(config: RunConfig, *made_updates: int) -> list[float]:
    return [config.peak_learning_rate * config.shape(k) for k in made_updates]


GOYAL_ERRORS = {
    "linear_base": 0.12, "linear_held": 0.13, "linear_broken": 0.60,
    "fixed_held": 0.20, "root_held": 0.15, "unwarmed_held": 0.11,
}  # fmt: skip


def test_effects_of_goyal_2017() -> None:
    """0.13 - 0.12, 0.20 - 0.13, 0.15 - 0.13, 0.11 - 0.13 and 0.60 - 0.12."""
    assert GOYAL.measure(made(GOYAL, GOYAL_ERRORS)) == pytest.approx(
        {"linear_rise": 0.01, "fixed_loss": 0.07, "root_loss": 0.02, "warmup_gain": -0.02, "break_rise": 0.48}
    )


def test_figures_of_goyal_2017_say_what_is_drawn() -> None:
    error, loss = GOYAL.figures
    drawn = error.lines({1: made(GOYAL, GOYAL_ERRORS)})
    assert means(drawn) == {
        "in proportion": [(16, 12.0), (176, 13.0), (704, 60.0)],
        "no warm-up": [(16, 12.0), (176, 11.0)],
        "square root": [(16, 12.0), (176, 15.0)],
        "fixed rate": [(16, 12.0), (176, 20.0)],
    }
    assert "12.0 % at 16 samples an update, 13.0 % at 176 and 60.0 % at 704" in error.finding(drawn)
    assert "20.0 % at 176" in error.finding(drawn)
    drawn = loss.lines({1: made(GOYAL, GOYAL_ERRORS, fixed_held=(3.0, 2.5))})
    assert means(drawn)["176 (fixed rate)"] == [(1, 3.0), (2, 2.5)]
    assert "2.50 for 176 (fixed rate)" in loss.finding(drawn)


def test_every_batch_of_goyal_2017_is_accumulated_from_8_over_the_same_samples() -> None:
    """9 epochs of 1,408 samples, which every batch divides, so that no run sees more than another."""
    runs = GOYAL.preset("bench").configs(31)
    for config in runs.values():
        assert config.micro_batch_size == 8 and config.effective_batch_size > 8
        assert config.updates * config.effective_batch_size == 9 * 1408
    factors = {label: config.peak_learning_rate / 0.006 for label, config in runs.items()}
    assert factors["linear_held"] == factors["unwarmed_held"] == pytest.approx(11)
    assert factors["root_held"] == pytest.approx(11**0.5)
    assert factors["fixed_held"] == factors["linear_base"] == 1


@pytest.mark.parametrize(("preset", "images"), [("full", 50_000), ("full_imagenet", 1_281_167)])
def test_the_full_presets_of_goyal_2017_are_the_papers_recipe(preset: str, images: int) -> None:
    """arXiv 1706.02677, section 5.1: 0.1 kn / 256 on ImageNet, reached over 5 epochs from 0.1, a tenth after 30, 60 and
    80 of 90 epochs; section 5.3: 3.2 / sqrt(32) by the square root, 0.1 fixed, both at kn = 8192; no decay on norms."""
    runs = GOYAL.preset(preset).configs(31)
    base = runs["linear_base"].effective_batch_size
    for label, config in runs.items():
        epoch = images // config.effective_batch_size
        times = config.effective_batch_size / base
        peak = 0.1 * {"fixed": 1, "root": times**0.5}.get(label.split("_")[0], times)
        after = [rate * peak for rate in (1, 0.1, 0.1, 0.01, 0.01, 0.001)]
        edges = [edge * epoch for edge in (30, 60, 80)]
        found = rates(config, *(k for edge in edges for k in (edge - 1, edge)))
        assert found == pytest.approx(after)
        first = rates(config, 0)[0]
        warmed = label.split("_")[0] in ("linear", "root") and times > 1
        assert first == pytest.approx(0.1 + (peak - 0.1) / (5 * epoch) if warmed else peak)
        assert config.updates == 90 * epoch and config.micro_batch_size == 32
        assert (config.momentum, config.nesterov, config.weight_decay) == (0.9, True, 1e-4)
        assert config.weight_decay_spares == "norms"
    if preset == "full_imagenet":
        assert runs["linear_held"].peak_learning_rate == pytest.approx(3.2)
        assert runs["linear_broken"].peak_learning_rate == pytest.approx(6.4)


SMITH_ERRORS = {"rate": 0.12, "hybrid": 0.13, "batch": 0.11, "large": 0.15, "neither": 0.16}


def test_effects_of_smith_2018() -> None:
    """Differences from 0.12; 2 records against 4; where neither changes, of the mean of the last five validations:
    0.1, 0.2, 0.3, 0.4 and 0.5 have 0.3."""
    runs = made(SMITH, SMITH_ERRORS, rate=(2.0, 1.5, 1.2, 1.0))
    rows = [Row(k, 0, k, 1.0, SimpleNamespace(error=k / 10) if k else None) for k in (9, 0, 1, 2, 3, 4, 5)]
    runs["neither"] = SimpleNamespace(config=None, metrics={"error": 0.5}, records=rows)
    assert SMITH.measure(runs) == pytest.approx(
        {
            "hybrid_difference": 0.01, "batch_difference": -0.01, "large_difference": 0.03, "neither_difference": 0.18,
            "updates_ratio": 0.5,
        }
    )  # fmt: skip


def test_figures_of_smith_2018_say_what_is_drawn() -> None:
    """Four updates of 4 samples against two of 8: the same two epochs."""
    by_epoch, by_update = SMITH.figures
    runs = {1: made(SMITH, SMITH_ERRORS, rate=(2.0, 1.5, 1.2, 1.0), neither=(4.0, 3.0))}
    drawn = by_epoch.lines(runs)
    assert means(drawn)["rate falls"] == [(1, pytest.approx(1.75)), (2, pytest.approx(1.1))]
    assert "1.000 with N growing, 1.100 with the rate falling, 3.000 with neither" in by_epoch.finding(drawn)
    drawn = by_update.lines(runs)
    assert [x for x, _ in means(drawn)["rate falls"]] == [2, 4]
    assert "2 updates instead of 4" in by_update.finding(drawn)


@pytest.mark.parametrize(
    ("preset", "sizes", "shares"),
    [
        # Noise scale rate / batch after each milestone: 1/3, 1/9 and 1/27 of the first.
        ("bench", {"rate": [16] * 4, "hybrid": [16, 48, 48, 48], "batch": [16, 48, 144, 144]}, 3),
        # arXiv 1711.00489, section 5.1: a factor of 5, and 16,000 would be more than the 5,120 that it allows.
        ("full", {"rate": [128] * 4, "hybrid": [128, 640, 640, 640], "batch": [128, 640, 3200, 3200]}, 5),
    ],
)
def test_n_grows_where_the_rate_would_fall(preset: str, sizes: dict[str, list[int]], shares: int) -> None:
    runs = SMITH.preset(preset).configs(31)
    seen = {}
    for label, expected in sizes.items():
        config = runs[label]
        edges = [0, *config.milestones]
        plans = [config.plan_at(edge + 1) for edge in edges]
        assert [plan.effective_batch_size for plan in plans] == expected
        assert {plan.micro_batch_size for plan in plans} == {config.micro_batch_size}
        noise = [rate / size for rate, size in zip(rates(config, *edges), expected, strict=True)]
        assert noise == pytest.approx([noise[0] / shares**k for k in range(4)])
        lengths = [b - a for a, b in zip(edges, [*config.milestones, config.updates], strict=True)]
        seen[label] = [length * size for length, size in zip(lengths, expected, strict=True)]
    for label in ("hybrid", "batch"):
        for ours, theirs, size in zip(seen[label], seen["rate"], sizes[label], strict=True):
            assert 0 <= ours - theirs < size  # the same samples, up to the last window, which is filled


def test_the_full_preset_of_smith_2018_is_a_wide_resnets_recipe() -> None:
    """Zagoruyko and Komodakis 2016: 0.1, a fifth after 60, 120 and 160 of 200 epochs of 390 updates, 5e-4, Nesterov."""
    config = SMITH.preset("full").configs(31)["rate"]
    assert (config.model, config.updates, config.weight_decay, config.nesterov) == (
        "wide_resnet16_4", 200 * 390, 5e-4, True,
    )  # fmt: skip
    edges = [60 * 390, 120 * 390, 160 * 390]
    assert rates(config, 0, *edges) == pytest.approx([0.1, 0.02, 0.004, 0.0008])


HOFFER_ERRORS = {
    "small": 0.11, "large": 0.21, "rate": 0.16, "ghost": 0.15, "accumulated": 0.152, "adapted": 0.12,
    "small_long": 0.10,
}  # fmt: skip


def test_effects_of_hoffer_2017() -> None:
    assert HOFFER.measure(made(HOFFER, HOFFER_ERRORS)) == pytest.approx(
        {
            "gap": 0.10, "rate_gain": 0.05, "ghost_gain": 0.01, "accumulated_difference": 0.002, "adapted_gap": 0.01,
            "long_over_adapted": -0.02,
        }
    )  # fmt: skip


def test_figures_of_hoffer_2017_say_what_is_drawn() -> None:
    by_samples, by_updates = HOFFER.figures
    runs = {1: made(HOFFER, HOFFER_ERRORS)}
    drawn = by_samples.lines(runs)
    assert means(drawn)["large"] == [(8, 21.0), (16, 21.0)]
    assert "the large batch's error is 21.0 % and the small one's 11.0 %" in by_samples.finding(drawn)
    assert "16.0 %, Ghost BatchNorm 15.0 %" in by_samples.finding(drawn)
    drawn = by_updates.lines(runs)
    assert means(drawn)["as many updates"] == [(1, 12.0), (2, 12.0)]
    assert "12.0 % and the small one's 11.0 %" in by_updates.finding(drawn)
    assert "comes to 10.0 %" in by_updates.finding(drawn)


@pytest.mark.parametrize(("preset", "small", "epochs", "rate"), [("bench", 88, 12, 0.05), ("full", 256, 200, 0.1)])
def test_presets_of_hoffer_2017_follow_the_published_code(preset: str, small: int, epochs: int, rate: float) -> None:
    """Eight times the batch: rate x sqrt(8), a tenth after 81, 122 and 164 of 200 epochs, the gradient's norm at most
    5; equal samples, or equal updates when adapted; Ghost BatchNorm in parts as large as the small batch."""
    runs = HOFFER.preset(preset).configs(31)
    samples = {label: config.updates * config.effective_batch_size for label, config in runs.items()}
    assert samples["large"] == samples["rate"] == samples["ghost"] == samples["accumulated"] == samples["small"]
    assert samples["adapted"] == samples["small_long"] == 8 * samples["small"]
    assert runs["adapted"].updates == runs["small"].updates
    for label, config in runs.items():
        assert config.effective_batch_size == (small if label.startswith("small") else 8 * small)
        raised = label not in ("small", "small_long", "large")
        assert config.peak_learning_rate == pytest.approx(rate * (8**0.5 if raised else 1))
        assert config.clip_norm == 5 and config.momentum == 0.9 and config.weight_decay == 1e-4
        assert config.milestones == tuple(config.updates * epoch // 200 for epoch in (81, 122, 164))
        assert (config.norm, config.ghost_batch_size) in (("batch", 2), ("ghost_batch", small))
    assert runs["accumulated"].micro_batch_size == runs["ghost"].ghost_batch_size
    assert runs["accumulated"].accumulation_steps == 8 and runs["ghost"].accumulation_steps == 1
