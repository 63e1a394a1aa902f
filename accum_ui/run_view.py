"""A run's records as columns that grow: read once from the store, shared by every browser that looks at the run.

A run and its reference are one ``Track`` each; a ``RunView`` holds the two side by side. Nothing here knows who asks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from accum_core.records import UpdateRecord
from accum_core.runs.store import Run, Store
from accum_core.statistics import sketch_distance

COLUMNS: Final = (
    "update",
    "samples",
    "seconds",
    "loss",
    "loss_smooth",
    "learning_rate",
    "accumulation_steps",
    "gradient_norm",
    "samples_per_second",
    "gradient_error",
    "cosine",
    "miou",
    "pixel_accuracy",
    "error",
    "token_loss",
    "weight_distance",
)
QUALITY: Final = ("miou", "pixel_accuracy", "error", "token_loss")
"""Columns that a validation fills, each where the workload has such a measure."""
POSITION: Final = ("update", "samples", "seconds")
SMOOTHING: Final = 7
MOST_POINTS: Final = 2000
LEAST_AGE: Final = 0.1  # seconds between two looks into the store, however many browsers ask
PACE_SECONDS: Final = 20.0

Column = list[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A live change: where it took effect (``update``, ``samples``, ``seconds``) and what it says."""

    update: int
    samples: int
    seconds: float
    text: str
    refused: bool


@dataclass(slots=True)
class Track:
    """One run's columns; ``columns[name][i]`` belongs to the i-th record, None where nothing was due.

    Attributes:
        run: the run's row when it was last read.
        revision: times that records were deleted to be made anew; points of an earlier revision are void.
        layers, layer_errors: names, and one ``(record index, errors by layer)`` for each measurement.
        sketches: update -> (sketch, norm of the weights).
        saved_bytes: what one micro-batch and the full batch keep for backward, as last measured.
        pictures: update and predictions of the newest validation that kept them.
        class_iou: of the newest validation, NaN where a class is absent.
        settings: (record index, norm, accumulation steps), one for each stretch of equal settings.
    """

    run: Run
    revision: int = 0
    columns: dict[str, Column] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    layers: tuple[str, ...] = ()
    layer_errors: list[tuple[int, tuple[float | None, ...]]] = field(default_factory=list)
    sketches: dict[int, tuple[str, float]] = field(default_factory=dict)
    saved_bytes: Mapping[str, int] | None = None
    pictures: tuple[int, tuple[str, ...]] | None = None
    class_iou: tuple[float, ...] = ()
    marks: list[Mark] = field(default_factory=list)
    settings: list[tuple[int, str, int]] = field(default_factory=list)
    pace: deque[tuple[float, int]] = field(default_factory=deque)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHING))

    @property
    def length(self) -> int:
        """Records held; the i-th is of update i + 1."""
        return len(self.columns["update"])

    def extend(self, records: Sequence[UpdateRecord]) -> None:
        """Append records, in order, that follow those held."""
        for record in records:
            self._append(record)

    def _append(self, record: UpdateRecord) -> None:
        index = self.length
        error = record.instruments.get("gradient_error", {})
        self._recent.append(record.loss)
        row: dict[str, float | None] = {
            "update": record.update,
            "samples": record.samples,
            "seconds": record.seconds,
            "loss": record.loss,
            "loss_smooth": sum(self._recent) / len(self._recent),
            "learning_rate": record.learning_rate,
            "accumulation_steps": record.accumulation_steps,
            "gradient_norm": record.gradient_norm,
            "samples_per_second": record.samples_per_second,
            "gradient_error": error.get("relative_error"),
            "cosine": error.get("cosine"),
            **{name: getattr(record.validation, name, None) for name in QUALITY},
        }
        for name in COLUMNS:
            self.columns[name].append(finite(row.get(name)))
        if error.get("by_layer"):
            self.layers = self.layers or tuple(error["by_layer"])
            by_layer = error["by_layer"]
            self.layer_errors.append((index, tuple(finite(by_layer.get(name)) for name in self.layers)))
        if sketch := record.instruments.get("weight_sketch"):
            self.sketches[record.update] = (sketch["sketch"], sketch["norm"])
        self.saved_bytes = record.instruments.get("saved_bytes", self.saved_bytes)
        if record.validation:
            self.class_iou = record.validation.class_iou
            if record.validation.pictures:
                self.pictures = (record.update, record.validation.pictures)
        for change in record.changes:
            text = f"{FIELD_NAMES[change.field]} {change.old} → {change.new}"
            self.marks.append(
                Mark(record.update, record.samples, record.seconds, change.refused or text, change.refused is not None)
            )
        present = (record.norm, record.accumulation_steps)
        if not self.settings or self.settings[-1][1:] != present:
            self.settings.append((index, *present))

    def since_change(self, name: str) -> list[float]:
        """The column's values that were measured under the present norm and N."""
        start = self.settings[-1][0] if self.settings else 0
        return [value for value in self.columns[name][start:] if value is not None]

    def seconds_left(self) -> float | None:
        """Wall time to the last update at the pace of the last seconds; None while there is no pace to go by."""
        if self.run.state != "running" or len(self.pace) < 2:
            return None
        (first, before), (last, now) = self.pace[0], self.pace[-1]
        return (self.run.total - now) * (last - first) / (now - before) if now > before else None


FIELD_NAMES: Final = {"accumulation_steps": "N", "norm": "norm", "learning_rate": "learning rate"}


def finite(value: float | None) -> float | None:
    """The value with five significant digits, or None for what a chart cannot show."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


class RunView:
    """A run beside its reference run (None for a run that is its own reference, or has none yet).

    Args:
        store: where both are read from.
        run_id: the run.

    Raises:
        SettingError: for a run that does not exist.
        StoreError: when the store cannot be read.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._looked = -math.inf
        self._distance_at = 0
        self.lock = threading.Lock()
        self.run = Track(store.get(run_id))
        self.reference: Track | None = None
        self.queue = 0
        self.version = 0
        self.replies: dict[object, bytes] = {}

    @property
    def revision(self) -> str:
        """Changes when points that a browser may hold are no longer true."""
        reference = f"{self.reference.run.id}.{self.reference.revision}" if self.reference else ""
        return f"{self.run.revision}.{reference}"

    def refresh(self) -> None:
        """Read what is new; call with ``lock`` held. A look that was made a moment ago is not repeated."""
        now = time.monotonic()
        if now - self._looked < LEAST_AGE:
            return
        before = self._fingerprint()
        self.run = self._advance(self.run, now)
        self._find_reference(now)
        self._measure_distance()
        self.queue = self._store.queue_position(self.run.run.id) if self.run.run.state == "queued" else 0
        self._looked = time.monotonic()
        if self._fingerprint() != before or self.version == 0:
            self.version += 1
            self.replies = {}

    def _fingerprint(self) -> tuple[object, ...]:
        reference = self.reference and (self.reference.run.state, self.reference.length)
        return (self.revision, self.run.run.state, self.run.run.error, self.run.length, self.queue, reference)

    def _advance(self, track: Track, now: float) -> Track:
        row = self._store.get(track.run.id)
        revision = sum(event.kind == "rewound" for event in self._store.events(row.id))
        if revision != track.revision or row.update < track.length:
            track = Track(row, revision)
        track.run = row
        if row.update > track.length:
            track.extend(self._store.records(row.id, since=track.length))
        track.pace.append((now, track.length))
        while now - track.pace[0][0] > PACE_SECONDS:
            track.pace.popleft()
        return track

    def _find_reference(self, now: float) -> None:
        if self.reference is not None:
            self.reference = self._advance(self.reference, now)
        if self.reference is None or self.reference.run.state in ("failed", "stopped"):
            found = self._store.find(self.run.run.config.reference())
            if found is not None and found.id not in (self.run.run.id, self.reference and self.reference.run.id):
                self.reference = self._advance(Track(found), now)

    def _measure_distance(self) -> None:
        """Fill ``weight_distance`` of the run wherever both runs have a sketch of the same update."""
        if self.reference is None:
            return
        column = self.run.columns["weight_distance"]
        self._distance_at = min(self._distance_at, self.both())
        for update in range(self._distance_at + 1, self.both() + 1):
            if column[update - 1] is None and update in self.run.sketches and update in self.reference.sketches:
                sketch, _ = self.run.sketches[update]
                column[update - 1] = finite(sketch_distance(sketch, *self.reference.sketches[update]))
        self._distance_at = self.both()

    def both(self) -> int:
        """The last update that both runs have made; 0 without a reference."""
        return min(self.run.length, self.reference.length) if self.reference else 0


class Views:
    """The views of a store, one a run, kept while they are looked at (the ``most`` newest)."""

    def __init__(self, store: Store, most: int = 64) -> None:
        self._store = store
        self._most = most
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run_id: str) -> RunView:
        """The view of a run, made at the first look.

        Raises:
            SettingError: for a run that does not exist.
            StoreError: when the store cannot be read.
        """
        with self._lock:
            if run_id not in self._views:
                self._views[run_id] = RunView(self._store, run_id)
            self._views.move_to_end(run_id)
            if len(self._views) > self._most:
                self._views.popitem(last=False)
            return self._views[run_id]


def thinned(track: Track, since: int) -> list[int]:
    """Indices of the records after update ``since``, at most ``MOST_POINTS``: measurements first, then evenly."""
    fresh = range(since, track.length)
    if len(fresh) <= MOST_POINTS:
        return list(fresh)
    sparse = [track.columns[name] for name in ("gradient_error", "miou", "error", "token_loss", "weight_distance")]
    due = [index for index in fresh if any(column[index] is not None for column in sparse)]
    kept = set(_evenly(due, MOST_POINTS // 2))
    kept.update(_evenly(fresh, MOST_POINTS - len(kept)))
    return sorted(kept)


def _evenly(items: Sequence[int], most: int) -> list[int]:
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def columns_at(track: Track, indices: Sequence[int], names: Sequence[str] = COLUMNS) -> dict[str, list[Any]]:
    """The named columns at those records."""
    return {name: [track.columns[name][index] for index in indices] for name in names}
