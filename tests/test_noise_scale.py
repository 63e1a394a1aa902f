"""The gradient noise scale: the paper's formulas, simulations with a known answer, and per-sample gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from small_nets import TwoTerms, dense
from tiny_workload import stand_in, tiny
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from watched_windows import measured, window

from accum_core.engine import train
from accum_core.engine.instrument import Window
from accum_core.engine.objectives import Contrastive, CrossEntropy
from accum_core.errors import SettingError
from accum_core.noise_scale import Estimate, NoiseScale, Steps, noise_scale, of_records, steps, window_estimate

SIZES = (4, 3, 3, 2)


# One window.


def test_equal_micro_batches_are_the_papers_formulas():
    """McCandlish et al. 2018, appendix A.1: |G|^2 and S from a gradient of B_small and one of B_big samples."""
    draw = np.random.default_rng(0)
    gradients = draw.normal(size=(8, 5)) + 1
    big, small = float(np.square(gradients.mean(axis=0)).sum()), float(np.square(gradients).sum(axis=1).mean())
    b_big, b_small = 32, 4
    shares = np.linalg.norm(gradients / 8, axis=1)
    found = window_estimate(shares, math.sqrt(big), [1 / 8] * 8, 32)
    assert found.gradient_square == pytest.approx((b_big * big - b_small * small) / (b_big - b_small), rel=1e-12)
    assert found.noise == pytest.approx((small - big) / (1 / b_small - 1 / b_big), rel=1e-12)


def test_one_micro_batch_says_nothing():
    for weights in ([1.0], [1.0, 0.0]):
        with pytest.raises(SettingError, match="accumulation_steps.*compare"):
            window_estimate([1.0] * len(weights), 1.0, weights, 4)


# Simulations.


def simulated(windows: int, mean: float, deviation: float, weighted: bool, dimensions: int = 20) -> list[Estimate]:
    """Windows of 12 ragged samples: |G|^2 = dimensions mean^2 and S = dimensions deviation^2."""
    draw = np.random.default_rng(7)
    found = []
    for _ in range(windows):
        weights = draw.uniform(0.1, 2, size=sum(SIZES)) if weighted else np.ones(sum(SIZES))
        weights /= weights.sum()
        shares = weights[:, None] * draw.normal(mean, deviation, size=(sum(SIZES), dimensions))
        parts = np.split(shares, np.cumsum(SIZES)[:-1])
        norms = [float(np.linalg.norm(part.sum(axis=0))) for part in parts]
        own = [float(part.sum()) for part in np.split(weights, np.cumsum(SIZES)[:-1])]
        effective = float(1 / np.square(weights).sum())
        found.append(window_estimate(norms, float(np.linalg.norm(shares.sum(axis=0))), own, effective))
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_both_estimates_are_unbiased_for_ragged_and_weighted_micro_batches(weighted: bool):
    """Within 4 standard errors of the truth over 3000 windows."""
    found = simulated(3000, 0.5, 2.0, weighted)
    for values, truth in (([e.gradient_square for e in found], 5.0), ([e.noise for e in found], 80.0)):
        assert abs(np.mean(values) - truth) < 4 * stats.sem(values)
    scale = noise_scale(found, level=0.9999)
    assert scale.low < 16 < scale.high
    assert scale.high - scale.low < 4


def test_the_ratio_of_single_windows_is_biased():
    """B_simple = 16, 12 samples a window: the average of ratios lies above it by more than 4 standard errors, while
    the ratio of averages does not. |G|^2 is told from 0 in every window, so that the ratios have moments."""
    found = simulated(3000, 0.5, 2.0, False, dimensions=400)
    ratios = [e.noise / e.gradient_square for e in found]
    assert min(e.gradient_square for e in found) > 0
    assert np.mean(ratios) - 16 > 4 * stats.sem(ratios)
    scale = noise_scale(found, level=0.9999)
    assert scale.low < 16 < scale.high < np.mean(ratios)


@pytest.mark.parametrize("signal", [10.0, 1.0], ids=["clear", "hidden"])
def test_the_interval_holds_the_truth_as_often_as_it_says(signal: float):
    """600 runs of 8 windows whose pairs are normal and vary together, where Fieller's interval is exact. With |G|^2 as
    large as its standard error most have no upper end, and none may claim more than it knows."""
    draw, level, runs = np.random.default_rng(5), 0.95, 600
    truth, held, unbounded = 3.0, 0, 0
    for _ in range(runs):
        pairs = draw.multivariate_normal((signal, truth * signal), [[8, -5], [-5, 12]], size=8)
        scale = noise_scale([Estimate(*pair) for pair in pairs.tolist()], level)
        held += scale.low <= truth <= scale.high
        unbounded += math.isinf(scale.high)
    slack = 4 * math.sqrt(level * (1 - level) / runs)
    assert held / runs > level - slack
    if signal == 10.0:
        assert held / runs < level + slack
        assert unbounded == 0
    else:
        assert unbounded > runs / 2


# Per-sample gradients.


def test_it_is_the_exact_noise_scale_of_a_network():
    """tr(Sigma) / |G|^2 from the gradients of 64 single samples, against windows drawn from them with replacement."""
    torch.manual_seed(0)
    model = dense().double()
    inputs, targets = torch.randn(64, 3).double(), torch.randint(4, (64,))

    def loss(parameters, one, label):  # type: ignore[no-untyped-def]
        return F.cross_entropy(functional_call(model, parameters, (one[None],)), label[None])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, targets)
    gradients = torch.cat([part.flatten(1) for part in each.values()], dim=1)
    square = float(gradients.mean(0).square().sum())
    noise = float(gradients.var(0, correction=0).sum())
    found = []
    for _ in range(500):
        chosen = torch.randint(64, (sum(SIZES),))
        parts = list(zip(inputs[chosen].split(SIZES), targets[chosen].split(SIZES), strict=True))
        seen = Window(model, inputs[chosen], targets[chosen], parts, CrossEntropy(), 1, 1, False)
        fields = measured("micro_gradient_norms", seen)
        assert fields["samples"] == fields["effective_samples"] == sum(SIZES)
        names = ("norms", "window_norm", "weights", "effective_samples")
        found.append(window_estimate(*(fields[name] for name in names)))
    for values, truth in (([e.gradient_square for e in found], square), ([e.noise for e in found], noise)):
        assert abs(np.mean(values) - truth) < 4 * stats.sem(values)
    scale = noise_scale(found, level=0.9999)
    assert scale.low < noise / square < scale.high < 2 * noise / square


# What is recorded.


def test_weights_are_those_of_the_valid_labels():
    """Sample 1 has no valid label and sample 3 half of its pixels: weights u of 1, 0, 1, 0.5, 1, 1, 1."""
    fields = measured("micro_gradient_norms", window("group"))
    assert fields["weights"] == pytest.approx([2 / 5.5, 1.5 / 5.5, 2 / 5.5], rel=1e-12)
    assert fields["effective_samples"] == pytest.approx(5.5**2 / 5.25, rel=1e-12)
    assert (fields["samples"], fields["across"]) == (7, None)


def test_passes_in_step_have_no_norms_of_their_own():
    fields = measured("micro_gradient_norms", window("sync_batch"))
    assert fields["norms"] == []
    assert fields["window_norm"] > 0
    assert fields["across"] == "stem.1"


def test_a_loss_without_one_weight_has_none():
    """Two terms of which one skips a sample, two terms that agree, and a loss whose samples meet."""
    torch.manual_seed(0)
    inputs = torch.randn(4, 3)
    for targets, agree in ((torch.tensor([1.0, -1, 1, 1]), False), (torch.ones(4), True)):
        parts = list(zip(inputs.split(2), targets.split(2), strict=True))
        fields = measured("micro_gradient_norms", Window(dense(), inputs, targets, parts, TwoTerms(), 1, 1, False))
        assert fields["weights"] == ([0.5, 0.5] if agree else None)
        assert fields["effective_samples"] == (4 if agree else None)
    pairs, counted = torch.randn(4, 2, 3), torch.ones(4, dtype=torch.long)
    parts = list(zip(pairs.split(2), counted.split(2), strict=True))
    fields = measured("micro_gradient_norms", Window(dense(), pairs, counted, parts, Contrastive(), 1, 1, False))
    assert fields["weights"] is None


# Of a run.


def run_of(monkeypatch: pytest.MonkeyPatch, unlabelled: Sequence[int] = (), **settings: object) -> NoiseScale:
    stand_in(monkeypatch)(unlabelled=unlabelled)
    config = tiny(**{"measure_every": 1, "learning_rate": 1e-3, **settings})
    return of_records(train(config), reduction=config.reduction)


def test_a_run_has_one(monkeypatch: pytest.MonkeyPatch):
    found = run_of(monkeypatch)
    assert (found.windows, found.reason, found.level) == (10, None, 0.95)
    assert 0 <= found.low < found.value < found.high


def test_it_does_not_depend_on_the_split(monkeypatch: pytest.MonkeyPatch):
    """Windows of the same samples cut into 8 or 4: two estimates of one thing, so their intervals meet."""
    one, two = (run_of(monkeypatch, micro_batch_size=size) for size in (1, 2))
    assert max(one.low, two.low) < min(one.high, two.high)
    assert one.value == pytest.approx(two.value, rel=0.5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"norm": "batch"}, "stem.1 looks across samples"),
        ({"norm": "sync_batch"}, "stem.1 looks across samples"),
        ({"micro_batch_size": 8}, "one micro-batch has nothing to compare"),
    ],
)
def test_where_there_is_no_answer_it_says_why(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], reason: str
):
    found = run_of(monkeypatch, **settings)
    assert (found.value, found.low, found.high, found.windows) == (None, None, None, 0)
    assert reason in found.reason
    assert steps(found, 2) is None


def test_other_reductions_need_equal_weights(monkeypatch: pytest.MonkeyPatch):
    """A mean of means of unequal micro-batches is no gradient of the window; of equal ones it is the exact run's."""
    assert run_of(monkeypatch, reduction="mean_of_means").value == pytest.approx(run_of(monkeypatch).value, rel=1e-9)
    ragged = {"unlabelled": range(0, 26, 2), "updates": 4}
    found = run_of(monkeypatch, reduction="mean_of_means", **ragged)
    assert (found.value, found.windows) == (None, 0)
    assert "weigh differently" in found.reason
    assert run_of(monkeypatch, **ragged).windows == 4


def test_what_came_before_a_change_is_left_out(monkeypatch: pytest.MonkeyPatch):
    stand_in(monkeypatch)
    records = list(train(tiny(measure_every=1)))
    assert of_records(records, since=4) == of_records(records[3:])
    assert of_records(records, since=4).windows == 7
    assert of_records([]).reason == "No window was measured yet."
    norms = {"norms": records[0].instruments["micro_gradient_norms"]["norms"]}
    earlier = records[0].model_copy(update={"instruments": {"micro_gradient_norms": norms}})
    assert "no single weight" in of_records([earlier]).reason


def test_noise_that_hides_the_gradient_gives_a_bound_at_most():
    """|G|^2 below 0 on average: no value; S clearly above 0 with |G|^2 near 0: at least so many samples."""
    found = noise_scale([Estimate(-0.1, 10.0), Estimate(0.05, 11.0), Estimate(-0.02, 9.0), Estimate(0.03, 10.5)])
    assert found.value is None
    assert "hides the gradient" in found.reason
    assert found.low > 50
    assert found.high == math.inf


def test_one_window_has_no_interval():
    found = noise_scale([Estimate(2.0, 10.0)])
    assert (found.value, found.low, found.high) == (5.0, None, None)
    assert "interval needs 2" in found.reason


def test_steps_make_a_batch_of_the_noise_scale():
    """64 samples in 16 to 100: N = 8, 2 to 12 (12.5 is rounded to even) at micro-batch 8; on 4 ranks a quarter."""
    scale = NoiseScale(64.0, 16.0, 100.0, 0.95, 9)
    assert steps(scale, 8) == Steps(8, 2, 12)
    assert steps(scale, 8, world_size=4) == Steps(2, 1, 3)
    assert steps(scale, 1000) == Steps(1, 1, 1)
    assert steps(NoiseScale(64.0, 16.0, math.inf, 0.95, 9), 8) == Steps(8, 2, None)
    for wrong in ((0, 1), (8, 0)):
        with pytest.raises(SettingError, match="at least 1"):
            steps(scale, *wrong)
