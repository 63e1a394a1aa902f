"""The noise scale along a run that is watched twice: by what accumulation measures anyway, and sample by sample.

The instrument ``micro_gradient_norms`` estimates it from the micro-batches of one window, ``sample_noise`` computes it
from the gradient of every training sample at the same weights. Both give |G|^2 and S, which are averaged over the same
windows before one is divided by the other, so that neither the weights nor the averaging tell the two apart. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from accum_core.noise_scale import Estimate, noise_scale, window_estimate
from accum_core.records import UpdateRecord


@dataclass(frozen=True, slots=True)
class Watched:
    """One window: its update, the estimate of its micro-batches, and that of all samples at the same weights."""

    update: int
    estimate: Estimate
    exact: Estimate

    @property
    def relative(self) -> float:
        """This window's own ratio S / |G|^2 over the exact one: 1 where they agree, negative where noise hides G."""
        return self.estimate.noise / self.estimate.gradient_square * self.exact.gradient_square / self.exact.noise


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring windows: the middle of their updates, and both noise scales over them, in samples."""

    middle: float
    estimate: float
    exact: float


def watched(records: Iterable[UpdateRecord]) -> list[Watched]:
    """The windows that both instruments looked at, and found something in."""
    found = []
    for record in records:
        norms, exact = (record.instruments.get(name) for name in ("micro_gradient_norms", "sample_noise"))
        if norms is not None and exact is not None and exact["reason"] is None:
            fields = (norms[name] for name in ("norms", "window_norm", "weights", "effective_samples"))
            both = window_estimate(*fields), Estimate(exact["gradient_square"], exact["noise"])
            found.append(Watched(record.update, *both))
    return found


def stretches(windows: Sequence[Watched], count: int) -> list[Stretch] | None:
    """The windows in that many parts of equal length; what is left over at the end is not looked at.

    Returns:
        None for fewer windows than parts, or if in one part the gradient cannot be told from 0, so that it has no
        noise scale.
    """
    each = len(windows) // count
    found = []
    for first in range(0, count * each, each or 1):
        part = windows[first : first + each]
        estimate = noise_scale([window.estimate for window in part]).value
        exact = noise_scale([window.exact for window in part]).value
        if not estimate or not exact:
            return None
        found.append(Stretch((part[0].update + part[-1].update) / 2, estimate, exact))
    return found or None


def mean_until(parts: Sequence[Stretch], update: float) -> float:
    """Mean over the updates up to that one of the estimated noise scale, each update taking its nearest stretch's.

    By McCandlish et al. 2018, section 2.2, an update at batch B makes 1 / (1 + B_noise / B) of the progress of one
    without noise. Where that takes s = 1 ... S_min updates with the noise scales B(s), a batch B takes
    S_min + sum B(s) / B: the hyperbola of ``steps_to_target``, whose critical batch size is the mean of B(s).
    """
    borders = [(one.middle + other.middle) / 2 for one, other in pairwise(parts)]
    starts, ends = [0.0, *borders], [*borders, max(update, *borders)]
    spans = [max(0.0, min(update, end) - start) for start, end in zip(starts, ends, strict=True)]
    return sum(span * part.estimate for span, part in zip(spans, parts, strict=True)) / sum(spans)


def pooled(windows: Sequence[Watched]) -> list[tuple[float, float]]:
    """What the first 1, 2, ... windows together give, over what all samples give at the same weights.

    Returns:
        For each number of windows the ratio of averages, and the average of ratios, which is biased.
    """
    estimates, exact = [window.estimate for window in windows], [window.exact for window in windows]

    def both(of: list[Estimate]) -> tuple[list[float], list[float]]:
        noise, square = accumulate(one.noise for one in of), accumulate(one.gradient_square for one in of)
        ratios = accumulate(one.noise / one.gradient_square for one in of)
        return [s / g for s, g in zip(noise, square, strict=True)], list(ratios)

    found, true = both(estimates), both(exact)
    return [(a / true_a, b / true_b) for a, b, true_a, true_b in zip(*found, *true, strict=True)]
