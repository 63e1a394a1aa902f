"""From a view's columns to the numbers that the page speaks of."""

from __future__ import annotations

from statistics import median

from accum_core.measures import measure_of
from accum_ui.run_view import SMOOTHING, RunView, Track
from accum_ui.words import PARTED, RECENT, Numbers


def numbers(view: RunView) -> Numbers:
    """Everything that ``words`` needs of a view, at its present length."""
    track, reference = view.run, view.reference
    config = track.run.config
    start, norm, steps = track.settings[-1] if track.settings else (0, config.norm, config.accumulation_steps)
    loss = [value for value in track.columns["loss_smooth"] if value is not None]
    distances = [value for value in track.columns["weight_distance"] if value is not None]
    losses, parted_at, widest = _losses(view)
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
        widest=widest,
        quality=_quality(track, reference),
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


def _losses(view: RunView) -> tuple[tuple[float, float] | None, int | None, tuple[float, int] | None]:
    """Smoothed losses at the last update of both, the update after which they stay apart, and their widest gap.

    They have parted once they have stayed apart for as many updates as the smoothing spans: a shorter gap may be one
    update's noise.
    """
    last = view.both()
    if view.reference is None or not last:
        return None, None, None
    pairs = zip(view.run.columns["loss_smooth"][:last], view.reference.columns["loss_smooth"][:last], strict=True)
    found = list(pairs)
    gaps = [None if ours is None or not theirs else abs(ours - theirs) / abs(theirs) for ours, theirs in found]
    close = [index for index, gap in enumerate(gaps) if gap is None or gap <= PARTED]
    parted = close[-1] + 2 if close else 1
    widest = max(((gap, index + 1) for index, gap in enumerate(gaps) if gap is not None), default=None)
    run, reference = found[-1]
    losses = None if run is None or reference is None else (run, reference)
    return losses, parted if last - parted + 1 >= SMOOTHING else None, widest


def _quality(track: Track, reference: Track | None) -> tuple[float, float | None, int] | None:
    """The newest validation, at an update where the reference has one too if there is any."""
    measure = measure_of(track.run.config.workload).field
    ours = [(index, value) for index, value in enumerate(track.columns[measure]) if value is not None]
    if not ours:
        return None
    if reference is not None:
        theirs = reference.columns[measure]
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
    """Of the last updates under the present norm and N, as another split has another speed."""
    return _median(track.since_change("samples_per_second")[-RECENT:])


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
