"""The gradient noise scale from the gradient of every single sample, at the weights that a window begins with.

McCandlish et al. 2018, arXiv 1812.06162, section 2.2: B_simple = tr(Sigma) / |G|^2, with G the gradient of the loss
over the distribution of samples and Sigma the covariance of one sample's gradient. The n training samples are n draws
from it. Let g_i be the gradient of sample i's own mean loss, p_i its part of the n samples' weight, P = sum p_i^2 and
g = sum p_i g_i, the gradient of the whole set. Then

    |G|^2 = (|g|^2 - sum p_i^2 |g_i|^2) / (1 - P)    and    S = (sum p_i^2 |g_i|^2 - P |g|^2) / (P (1 - P))

are unbiased for |G|^2 and tr(Sigma). With equal weights P = 1 / n, S is the variance that divides by n - 1, summed over
parameters, and |G|^2 = |g|^2 - S / n. It is what ``accum_core.noise_scale`` finds in one window of all n samples in
micro-batches of one, and the mean of what it finds in windows that are drawn without replacement. Late in a training
g almost vanishes, because these n samples were fitted, and |G|^2 falls below 0: then there is no noise scale.

Of more than 4,096 training samples that many are taken, evenly spread over the set, the same ones each time; outside of
a training the window's own are taken. Penalties are not in it. Only where layers are batch-independent has a sample a
gradient of its own. Exact to the rounding of the parameters' type (tests/test_sample_noise.py: against one backward
pass a sample).

Costs about three passes over those samples when due, which is more than most windows: it watches only a run that names
it in ``extra_instruments``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.norm_layers import norm_layers
from accum_core.engine.objectives import needs_whole_window
from accum_core.engine.recompute import is_computed_again
from accum_core.engine.sample_weights import sample_weights
from accum_core.noise_scale import window_estimate

TITLE = "Noise scale from per-sample gradients"
DEFAULT = False
MOST_SAMPLES = 4096
MOST_BYTES = 2**24  # of the gradients that are held at a time

Parameters = dict[str, Tensor]


class SampleNoise(Instrument):
    """Fields: ``samples``, ``gradient_square`` (|G|^2) and ``noise`` (S), both unbiased, ``set_gradient_square``
    (|g|^2 of these samples' own mean loss) and ``reason``: why the other fields are None, or None."""

    def measure(self, window: Window) -> dict[str, Any]:
        """Differentiate each sample's loss alone, as many samples at a time as the bound on bytes lets."""
        inputs, targets = _population(window)
        found: dict[str, Any] = {"samples": len(inputs), "gradient_square": None, "noise": None}
        found |= {"set_gradient_square": None, "reason": None}
        weights = sample_weights(window.objective, targets.split(1))
        if (reason := _refusal(window, weights)) is not None or weights is None:
            return found | {"reason": reason}
        parts = weights / weights.sum()
        norms, square = _norms(window, inputs, targets)
        estimate = window_estimate(norms, square**0.5, parts.tolist(), float(1 / np.square(parts).sum()))
        return found | {
            "gradient_square": estimate.gradient_square,
            "noise": estimate.noise,
            "set_gradient_square": square,
        }


def _population(window: Window) -> tuple[Tensor, Tensor]:
    """Samples ``[n, ...]`` and targets, on the CPU."""
    if window.draw is None:
        return window.inputs, window.targets
    count = min(window.num_samples, MOST_SAMPLES)
    return window.draw([place * window.num_samples // count for place in range(count)])


def _refusal(window: Window, weights: object) -> str | None:
    """Why a sample has no gradient of its own; None if it has."""
    if (layer := next((layer.name for layer in norm_layers(window.model) if layer.across), None)) is not None:
        return f"Layer {layer} looks across samples, so a sample has no gradient of its own; use a norm such as group."
    if is_computed_again(window.model):
        return "Blocks that are computed again cannot be followed sample by sample; leave activation checkpointing off."
    if needs_whole_window(window.objective):
        return "The samples meet in the loss, so none has a gradient of its own."
    return "The terms of the loss weigh samples differently, so none has a single weight." if weights is None else None


def _norms(window: Window, inputs: Tensor, targets: Tensor) -> tuple[list[float], float]:
    """Length of what each sample adds to the gradient of all, and the squared length of that gradient."""
    low = (torch.bfloat16, torch.float16)
    parameters: Parameters = {}
    fixed: Parameters = {}
    for name, tensor in (*window.model.named_parameters(), *window.model.named_buffers()):
        values = tensor.detach().float() if tensor.dtype in low else tensor.detach()
        (parameters if tensor.requires_grad else fixed)[name] = values
    like = next(iter(parameters.values()))
    totals = window.objective.weights(targets)

    def loss(varied: Parameters, sample: Tensor, target: Tensor) -> Tensor:
        def predict(batch: Tensor) -> Tensor:
            prediction: Tensor = functional_call(window.model, (varied, fixed), (batch,))
            return prediction

        sums = window.objective.sums(predict, sample[None], target[None])
        shares = [window.objective.coefficients[name] * sums[name] / total for name, total in totals.items() if total]
        return torch.stack(shares).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    at_a_time = max(1, MOST_BYTES // sum(values.nbytes for values in parameters.values()))
    whole = {name: torch.zeros_like(values, dtype=torch.float64) for name, values in parameters.items()}
    norms: list[Tensor] = []
    with torch.random.fork_rng(devices=[like.device] if like.device.type == "cuda" else []):
        for some, labels in zip(inputs.split(at_a_time), targets.split(at_a_time), strict=True):
            moved = some.to(like.device, like.dtype if some.is_floating_point() else some.dtype)
            gradients: Parameters = each(parameters, moved, labels.to(like.device))
            lengths = [g.reshape(len(some), -1).norm(dim=1).double() for g in gradients.values()]
            norms.append(torch.stack(lengths).norm(dim=0))
            for name, gradient in gradients.items():
                whole[name] += gradient.sum(0)
    return torch.cat(norms).tolist(), sum(float(part.square().sum()) for part in whole.values())


def create() -> Instrument:
    """A new instrument for single samples' gradients."""
    return SampleNoise()
