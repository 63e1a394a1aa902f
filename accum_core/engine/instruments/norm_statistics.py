"""How far the micro-batches' statistics lie from the window's, at the input of every normalising layer.

Looked at is what the layers are given in the window's own passes, channel by channel, whatever they make of it: what a
GroupNorm is given has the micro-batch statistics that a BatchNorm in its place would use. The window's statistics are
those of the same values taken together; behind a layer that looks across samples they are not what one true batch
would have there, as its output depends on the split. A ghost BatchNorm uses smaller groups than a micro-batch.

The passes of a model with ``sync_batch`` layers run in step, so it is given the full batch in a pass of its own, in
which plain BatchNorm over what it is given is what the window computes. Running statistics are those that the
window's passes leave. ``accum_core.norm_statistics`` has the formulas. Under torchrun all is rank 0's part.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accum_core.engine.instrument import Instrument, Window, seeing
from accum_core.engine.norm_layers import NormLayer, norm_layers, runs_in_step
from accum_core.engine.snapshot import Snapshot
from accum_core.norm_statistics import distances, running_distances
from accum_core.statistics import encode_sketch

TITLE = "Micro-batch statistics"
MOST_OPENED = 2  # channels of a layer
MOST_VALUES = 2400  # kept sample by sample in one record, 13 kB of text

Moments = tuple[Tensor, Tensor]


class NormStatistics(Instrument):
    """Fields: ``sizes``, the samples of each micro-batch, and ``layers``, in the order in which the network runs them.

    A layer has ``name``, ``kind``, ``across`` (it looks across samples), ``channels``, ``pixels``, ``eps``,
    ``mean_distance``, ``variance_distance``, ``running_mean_distance`` and ``running_variance_distance`` (None without
    running statistics) and ``opened``, a few of its channels sample by sample (``accum_core.norm_statistics.opened``).
    One that the network runs several times counts as several: ``norm``, ``norm@2`` and so on.
    """

    def __init__(self) -> None:
        self._passing: dict[str, Moments] = {}
        self._passed: list[dict[str, Moments]] = []
        self._pixels: dict[str, int] = {}

    @contextmanager
    def watching(self, window: Window) -> Iterator[None]:
        """Take the moments of each layer's input in the window's passes, unless those run in step."""
        self.seconds = 0.0
        self._passed = []
        if runs_in_step(window.model):
            yield
            return
        with self._looking(window):
            yield

    @contextmanager
    def _looking(self, window: Window) -> Iterator[None]:
        calls: Counter[str] = Counter()
        is_passing = False

        def see(name: str, input: Tensor) -> None:
            nonlocal is_passing
            started = time.perf_counter()
            if name == _MODEL:
                is_passing = True
                calls.clear()
                self._passing = {}
            elif is_passing:
                calls[name] += 1
                call = name if calls[name] == 1 else f"{name}@{calls[name]}"
                self._passing[call] = _moments(input)
                self._pixels[call] = input[0, 0].numel()
            self.seconds += time.perf_counter() - started

        def end(*_: object) -> None:
            nonlocal is_passing
            is_passing = False  # what is called from now on is computed again for the backward pass

        handle = window.model.register_forward_hook(end)
        try:
            layers = {layer.name: layer.module for layer in norm_layers(window.model)}
            with seeing({_MODEL: window.model, **layers}, see):
                yield
        finally:
            handle.remove()

    def after_micro_batch(self, window: Window, index: int) -> None:
        """Keep what the forward pass has shown; a window that is begun again begins at 0."""
        if not runs_in_step(window.model):
            self._passed[index:] = [self._passing]

    def measure(self, window: Window) -> dict[str, Any]:
        """Combine what was seen."""
        if runs_in_step(window.model):
            self._pass_at_once(window)
        passed, self._passed = self._passed, []
        layers = {layer.name: layer for layer in norm_layers(window.model)}
        calls = [call for call in passed[0] if all(call in passing for passing in passed)] if passed else []
        sizes = [len(passing[calls[0]][0]) for passing in passed] if calls else []
        found = [
            self._layer(call, layers[call.partition("@")[0]], [passing[call] for passing in passed], channels)
            for call, channels in zip(calls, _opened(len(calls), sum(sizes)), strict=True)
        ]
        return {"sizes": sizes, "layers": found}

    def _pass_at_once(self, window: Window) -> None:
        """The window's samples as one batch, with no trace in the model."""
        before = Snapshot(window.model)
        inputs = torch.cat([inputs for inputs, _ in window.micro_batches])
        try:
            with torch.no_grad(), self._looking(window):
                window.model(inputs.to(next(window.model.parameters()).device))
        finally:
            before.restore(window.model)
        sizes = [len(inputs) for inputs, _ in window.micro_batches]
        split = {call: [part.split(sizes) for part in moments] for call, moments in self._passing.items()}
        self._passed = [
            {call: (means[index], variances[index]) for call, (means, variances) in split.items()}
            for index in range(len(sizes))
        ]

    def _layer(self, call: str, layer: NormLayer, seen: Sequence[Moments], opened: int) -> dict[str, Any]:
        means, variances = (torch.cat(parts).double().T.cpu().numpy() for parts in zip(*seen, strict=True))
        sizes = [len(mean) for mean, _ in seen]
        apart = distances(means, variances, sizes, layer.eps)
        running_mean, running_var = (getattr(layer.module, name, None) for name in ("running_mean", "running_var"))
        off = None
        if running_mean is not None and running_var is not None:
            running = (running_mean.double().cpu().numpy(), running_var.double().cpu().numpy())
            off = running_distances(means, variances, *running, self._pixels[call], layer.eps)
        chosen = [len(means) * place // opened for place in range(min(opened, len(means)))] if opened else []
        return {
            "name": call,
            "kind": layer.kind,
            "across": layer.across,
            "channels": len(means),
            "pixels": self._pixels[call],
            "eps": layer.eps,
            "mean_distance": _short(apart.mean),
            "variance_distance": _short(apart.variance),
            "running_mean_distance": off and _short(off.mean),
            "running_variance_distance": off and _short(off.variance),
            "opened": {"channels": chosen, "means": _text(means[chosen]), "variances": _text(variances[chosen])}
            if chosen
            else None,
        }


_MODEL = "the model"  # no layer's name: it holds a blank


def _moments(input: Tensor) -> Moments:
    """Mean and population variance of each channel of each sample over its pixels, ``[M, C]`` each."""
    values = input.detach()
    values = values if values.dtype == torch.float64 else values.float()
    if values.ndim == 2:
        return values.clone(), torch.zeros_like(values)
    pixels = tuple(range(2, values.ndim))
    mean = values.mean(pixels, keepdim=True)
    # var_mean would pass the values once instead of twice, and takes five times as long on the CPU.
    return mean.flatten(1), (values - mean).square_().mean(pixels)


def _opened(layers: int, samples: int) -> list[int]:
    """Channels to keep of each layer: two or one, or one of some layers spread over the depth, as the record allows."""
    affordable = MOST_VALUES // (2 * max(1, samples))
    if affordable >= layers > 0:
        return [min(MOST_OPENED, affordable // layers)] * layers
    kept = {round(place * (layers - 1) / max(1, affordable - 1)) for place in range(affordable)}
    return [int(layer in kept) for layer in range(layers)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _text(values: NDArray[np.float64]) -> str:
    return encode_sketch(values.ravel())


def create() -> Instrument:
    """A new instrument for normalising layers."""
    return NormStatistics()
