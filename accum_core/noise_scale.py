"""The gradient noise scale: how many samples a batch needs until its gradient is more signal than noise. No torch.

McCandlish et al. 2018, arXiv 1812.06162, section 2.2: with the true gradient G and the covariance Sigma of a single
sample's gradient, a batch of B samples has E |G_B|^2 = |G|^2 + tr(Sigma) / B, and the simple noise scale is

    B_simple = S / |G|^2,    S = tr(Sigma)

A batch of that size has as much noise as signal, and needs twice the updates and twice the samples of the two extremes
(section 2.3). Their appendix A.1 finds both from gradients of two sizes; a window has one large gradient and N small
ones for nothing. Here they may be ragged and weigh differently: micro-batch i adds the share y_i to the window's
gradient y, with the part p_i of the window's weight. If samples differ in weight but are drawn alike,

    E |y|^2 = |G|^2 + Q S,    E sum_i |y_i|^2 = P |G|^2 + Q S,    P = sum_i p_i^2,    Q = sum over samples (u / W)^2

which is solved for |G|^2 and S: both are unbiased, and for equal micro-batches the paper's. Their ratio in one window
is not: the two are averaged over windows apart, and divided then. The interval is Fieller's (1954, for a ratio of means
of pairs that vary together): where |G|^2 cannot be told from 0 it has no upper end, where one from the delta method or
from resampling a dozen windows would give one (tests/test_noise_scale.py: coverage in a simulation).

The average is over the windows looked at, along which the noise scale grows as a run converges. Where a layer looks
across samples, as BatchNorm does, micro-batch gradients do not estimate the window's, and there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accum_core.errors import SettingError
from accum_core.records import UpdateRecord


@dataclass(frozen=True, slots=True)
class Estimate:
    """Unbiased estimates from one window, both of which noise can push below 0.

    Attributes:
        gradient_square: |G|^2.
        noise: S, the trace of one sample's gradient covariance.
    """

    gradient_square: float
    noise: float


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """The ratio of the two averages over windows.

    Attributes:
        value: B_simple, in samples; None where there is no answer.
        low, high: ends of its interval, ``high`` infinite where nothing bounds it; None without an interval. There may
            be one without a value: at least so many samples.
        level: the interval's coverage.
        windows: that were averaged over.
        gradient_square, noise: the two averages, None without a window.
        reason: a sentence on why there is no value, or no interval.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    windows: int
    gradient_square: float | None = None
    noise: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Accumulation steps whose effective batch is the noise scale; ``high`` is None where nothing bounds them."""

    steps: int
    low: int
    high: int | None


def window_estimate(
    norms: Sequence[float], window_norm: float, weights: Sequence[float], effective_samples: float
) -> Estimate:
    """|G|^2 and S from one window.

    Args:
        norms: |y_i|, of what each micro-batch adds to the gradient.
        window_norm: |y|, of their sum.
        weights: p_i, each micro-batch's part of the window's weight, 1 together.
        effective_samples: 1 / Q, the window's samples if all weigh alike.

    Raises:
        SettingError: when fewer than two micro-batches have a weight.
    """
    if sum(weight > 0 for weight in weights) < 2:
        raise SettingError("accumulation_steps", len(norms), "gives nothing to compare; 2 or more micro-batches do")
    shares, window = sum(norm**2 for norm in norms), window_norm**2
    parts = sum(weight**2 for weight in weights)
    return Estimate(
        gradient_square=(window - shares) / (1 - parts),
        noise=(shares - parts * window) / (1 - parts) * effective_samples,
    )


def noise_scale(estimates: Sequence[Estimate], level: float = 0.95) -> NoiseScale:
    """B_simple from the estimates of several windows, with Fieller's interval.

    Args:
        level: coverage of the interval, in (0, 1).
    """
    if not estimates:
        return NoiseScale(None, None, None, level, 0, reason="No window was measured yet.")
    pairs = np.array([(estimate.gradient_square, estimate.noise) for estimate in estimates])
    square, noise = (float(mean) for mean in pairs.mean(axis=0))
    value, reason = None, None
    if square > 0:
        value = max(noise, 0.0) / square
    else:
        reason = "The noise hides the gradient: its squared length cannot be told from 0; measure more windows."
    low = high = None
    if len(pairs) < 2:
        reason = reason or "One window was measured; an interval needs 2."
    else:
        low, high = _fieller(pairs, level)
    return NoiseScale(value, low, high, level, len(pairs), square, noise, reason)


def of_records(
    records: Iterable[UpdateRecord], *, reduction: str = "exact", since: int = 1, level: float = 0.95
) -> NoiseScale:
    """B_simple over the measured windows of a run, or the reason why there is none.

    Args:
        records: those without a measurement are passed over.
        reduction: the run's. What another than ``exact`` adds up is an estimate of the gradient only where all
            micro-batches weigh alike.
        since: the first update to look at; the last change of norm, say.
        level: coverage of the interval.
    """
    estimates, reason = [], None
    for record in records:
        measured = record.instruments.get("micro_gradient_norms")
        if measured is None or record.update < since:
            continue
        if (reason := _refusal(measured, reduction)) is None:
            found = window_estimate(*(measured[name] for name in _FIELDS))
            if math.isfinite(found.gradient_square) and math.isfinite(found.noise):
                estimates.append(found)
    if not estimates and reason is not None:
        return NoiseScale(None, None, None, level, 0, reason=reason)
    return noise_scale(estimates, level)


def steps(scale: NoiseScale, micro_batch_size: int, world_size: int = 1) -> Steps | None:
    """Accumulation steps that make an effective batch of the noise scale; None where that has no value or interval.

    Args:
        micro_batch_size: samples in one pass on one rank.
        world_size: ranks that share a window.

    Raises:
        SettingError: for a size below 1.
    """
    for name, size in (("micro_batch_size", micro_batch_size), ("world_size", world_size)):
        if size < 1:
            raise SettingError(name, size, "must be at least 1")
    if scale.value is None or scale.low is None or scale.high is None:
        return None
    value, low, high = (
        None if math.isinf(size) else max(1, round(size / (micro_batch_size * world_size)))
        for size in (scale.value, scale.low, scale.high)
    )
    return None if value is None or low is None else Steps(value, low, high)


_FIELDS = ("norms", "window_norm", "weights", "effective_samples")


def _refusal(measured: Mapping[str, Any], reduction: str) -> str | None:
    """Why a measured window says nothing; None if it does."""
    if (layer := measured.get("across")) is not None:
        return f"Layer {layer} looks across samples, so micro-batch gradients are no estimates of the window's."
    weights = measured.get("weights")  # records of earlier versions hold the norms alone
    if weights is None or len(weights) != len(measured["norms"]):
        return "The loss gives a micro-batch no single weight, so what it adds cannot be set against the window."
    if sum(weight > 0 for weight in weights) < 2:
        return "A window of one micro-batch has nothing to compare; 2 or more accumulation steps do."
    alike = max(weights) - min(weights) < 1e-9 and math.isclose(measured["effective_samples"], measured["samples"])
    if reduction != "exact" and not alike:
        return f"Reduction {reduction} with micro-batches that weigh differently adds up something else; use exact."
    return None


def _fieller(pairs: np.typing.NDArray[np.float64], level: float) -> tuple[float, float]:
    """Ends of the ratios r >= 0 with |mean(s - r g)| <= t standard errors, from pairs ``[K, 2]`` of g and s.

    That is A r^2 - 2 B r + C <= 0. With A <= 0 the denominator cannot be told from 0 and large ratios all belong.
    """
    from scipy.special import stdtrit

    t = float(stdtrit(len(pairs) - 1, (1 + level) / 2))
    g, s = pairs.mean(axis=0)
    (vgg, vgs), (_, vss) = t**2 * np.cov(pairs, rowvar=False) / len(pairs)
    a, b, c = g * g - vgg, g * s - vgs, s * s - vss
    discriminant = b * b - a * c
    if a > 0 and g > 0:
        half = math.sqrt(max(discriminant, 0.0))
        return max(0.0, (b - half) / a), max(0.0, (b + half) / a)
    # Below 0, a holds for all outside of the roots; between two positive ones lies a gap, which no interval shows.
    low = (b - math.sqrt(discriminant)) / a if a < 0 < c else 0.0
    return low, math.inf
