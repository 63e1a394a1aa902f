"""One stored run's normalising layers, update by update, sample by sample. No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from accum_core import noise_scale, norm_statistics
from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.noise_scale import NoiseScale, Steps
from accum_core.norm_statistics import Distances, Opened
from accum_core.records import RunConfig
from accum_core.runs.store import Store
from accum_ui.normalisation import depth
from accum_ui.normalisation.choice import Choice
from accum_ui.normalisation.depth import Depth

Array = NDArray[np.float64]
MOST_KEPT: Final = 16  # runs whose layers stay in memory, about a megabyte each


@dataclass(frozen=True, slots=True)
class RunLayers:
    """What a run kept of its layers.

    Attributes:
        layers: measured update -> layers as recorded that kept samples, in the order in which the network runs them.
        depths: measured update -> its gradient error over depth, where it was measured.
        noise: the run's gradient noise scale.
    """

    run: str
    config: RunConfig
    layers: Mapping[int, Mapping[str, Mapping[str, Any]]]
    depths: Mapping[int, Depth]
    noise: NoiseScale

    @property
    def steps(self) -> Steps | None:
        """Accumulation steps that the noise scale suggests at the run's own micro-batch."""
        return noise_scale.steps(self.noise, self.config.micro_batch_size)


@dataclass(frozen=True, slots=True)
class Cut:
    """One channel of one layer in one window, cut into micro-batches.

    Attributes:
        means: (mean of each micro-batch - the window's) / the window's deviation.
        deviations: each micro-batch's deviation / the window's.
        distances: of this channel, at this cut.
        recorded: over all channels, at the cut that the run itself made.
    """

    layer: Opened
    channel: int
    update: int
    sizes: tuple[int, ...]
    means: Array
    deviations: Array
    distances: Distances
    recorded: Distances

    @property
    def samples(self) -> int:
        """In the window."""
        return sum(self.sizes)

    @property
    def steps(self) -> int:
        """N."""
        return len(self.sizes)


def layers_of(store: Store, run_id: str) -> RunLayers:
    """The layers of a run, read once.

    Raises:
        SettingError: for a run that there is not.
        StoreError: when the store cannot be read.
    """
    return _layers_of(store.path, run_id, store.get(run_id).update)


@lru_cache(maxsize=MOST_KEPT)
def _layers_of(path: Path, run_id: str, updates: int) -> RunLayers:
    store = Store(path)
    config, records = store.get(run_id).config, store.records(run_id)
    found = {}
    for record in records:
        kept = [
            layer for layer in record.instruments.get("norm_statistics", {}).get("layers", ()) if layer.get("opened")
        ]
        if kept:
            found[record.update] = {layer["name"]: layer for layer in kept}
    depths = {record.update: over for record in records if (over := depth.of_record(record.instruments)) is not None}
    return RunLayers(run_id, config, found, depths, noise_scale.of_records(records, reduction=config.reduction))


def settled(choice: Choice, held: RunLayers) -> tuple[str, int, int, int]:
    """Layer, channel, update and N: what was chosen, as far as the run has it, and the first (for N: its own, or that
    of micro-batches of 2) elsewhere."""
    update = choice.update if choice.update in held.layers else next(iter(held.layers))
    layer = choice.layer if choice.layer in held.layers[update] else next(iter(held.layers[update]))
    opened = _opened(held, update, layer)
    channel = choice.channel if choice.channel in opened.channels else opened.channels[0]
    possible = divisors(opened.means.shape[1])
    own = held.config.accumulation_steps if held.config.accumulation_steps > 1 else opened.means.shape[1] // 2
    steps = next((steps for steps in (choice.steps, own) if steps in possible), possible[-1])
    return layer, channel, update, steps


def cut(held: RunLayers, layer: str, channel: int, update: int, steps: int) -> Cut:
    """A channel's micro-batches when its window is cut into N.

    Raises:
        SettingError: for an N that does not divide the window.
    """
    opened = _opened(held, update, layer)
    place = opened.channels.index(channel)
    means, variances = opened.means[place], opened.variances[place]
    if steps < 1 or len(means) % steps:
        raise SettingError("n", steps, f"does not divide the window's {len(means)} samples")
    sizes = norm_statistics.sizes_of(len(means), len(means) // steps)
    mean, variance = norm_statistics.whole(means, variances)
    own_means, own_variances = norm_statistics.split(means, variances, sizes)
    scale = np.sqrt(np.maximum(variance + opened.eps, np.finfo(np.float64).tiny))
    recorded = held.layers[update][layer]
    return Cut(
        layer=opened,
        channel=channel,
        update=update,
        sizes=tuple(sizes),
        means=(own_means - mean) / scale,
        deviations=np.sqrt(own_variances + opened.eps) / scale,
        distances=norm_statistics.distances(means[None], variances[None], sizes, opened.eps),
        recorded=Distances(recorded["mean_distance"], recorded["variance_distance"]),
    )


def _opened(held: RunLayers, update: int, layer: str) -> Opened:
    found = norm_statistics.opened(held.layers[update][layer])
    assert found is not None  # those without samples were left out
    return found
