"""From a view's columns to the numbers that the page speaks of."""

from __future__ import annotations

from statistics import median
from typing import Final

from accum_ui.run_view import RunView, Track
from accum_ui.words import PARTED, Numbers

RECENT: Final = 20  # updates that a speed is the median of


def numbers(view: RunView) -> Numbers:
    """Everything that ``words`` needs of a view, at its present length."""
    track, reference = view.run, view.reference
    config = track.run.config
    start, norm, steps = track.settings[-1] if track.settings else (0, config.norm, config.accumulation_steps)
    loss = [value for value in track.columns["loss_smooth"] if value is not None]
    distances = [value for value in track.columns["weight_distance"] if value is not None]
    losses, parted_at = _losses(view)
    return Numbers(
        config=config,
        norm=norm,
        accumulation_steps=steps,
        state=track.run.state,
        update=track.length,
        measured_from=start + 1,
        loss=(loss[0], loss[-1]) if loss else None,
        losses=losses,
        parted_at=parted_at,
        miou=_miou(track, reference),
        gradient_error=_median(track.since_change("gradient_error")),
        cosine=_median(track.since_change("cosine")),
        reference_error=_median(reference.since_change("gradient_error")) if reference else None,
        reference_cosine=_median(reference.since_change("cosine")) if reference else None,
        layers=_layers(track, start),
        saved_bytes=(track.saved_bytes["micro_batch"], track.saved_bytes["full_batch"]) if track.saved_bytes else None,
        speed=_speed(track),
        reference_speed=_speed(reference) if reference else None,
        weight_distance=distances[-1] if distances else None,
    )


def _losses(view: RunView) -> tuple[tuple[float, float] | None, int | None]:
    """Smoothed losses at the last update of both, and the update after which they stay apart."""
    if view.reference is None or not view.both():
        return None, None
    ours, theirs = view.run.columns["loss_smooth"], view.reference.columns["loss_smooth"]
    last = view.both()
    parted = None
    for index in range(last - 1, -1, -1):
        run, reference = ours[index], theirs[index]
        if run is None or reference is None or abs(run - reference) <= PARTED * abs(reference):
            break
        parted = index + 1
    run, reference = ours[last - 1], theirs[last - 1]
    return (None if run is None or reference is None else (run, reference)), parted


def _miou(track: Track, reference: Track | None) -> tuple[float, float | None, int] | None:
    """The newest validation, at an update where the reference has one too if there is any."""
    ours = [(index, value) for index, value in enumerate(track.columns["miou"]) if value is not None]
    if not ours:
        return None
    if reference is not None:
        theirs = reference.columns["miou"]
        for index, value in reversed(ours):
            if index < len(theirs) and theirs[index] is not None:
                return value, theirs[index], index + 1
    index, value = ours[-1]
    return value, None, index + 1


def _layers(track: Track, start: int) -> dict[str, float]:
    rows = [errors for index, errors in track.layer_errors if index >= start]
    found = {}
    for k, name in enumerate(track.layers):
        if values := [value for row in rows if (value := row[k]) is not None]:
            found[name] = median(values)
    return found


def _speed(track: Track) -> float | None:
    return _median([value for value in track.columns["samples_per_second"][-RECENT:] if value is not None])


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
