"""What one refresh of the charts carries: new points since the last one, and everything short as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from accum_ui import readings, words
from accum_ui.findings import numbers
from accum_ui.run_view import COLUMNS, POSITION, RunView, Track, columns_at, finite, thinned

STREAMED = tuple(name for name in COLUMNS if name != "weight_distance")


def payload(view: RunView, since: int, reference_since: int) -> dict[str, Any]:
    """The reply to a browser that holds the run up to ``since`` and its reference up to ``reference_since``.

    ``run`` and ``reference`` hold at most ``MOST_POINTS`` points each. ``distance`` holds the updates that both runs
    have made and the browser has not seen of both. Call with the view's lock held.
    """
    found = numbers(view)
    run, reference = view.run.run, view.reference
    left = view.run.seconds_left()
    return {
        "id": run.id,
        "state": run.state,
        "update": view.run.length,
        "total": run.total,
        "queue": view.queue,
        "seconds_left": None if left is None else round(left, 1),
        "error": run.error,
        "revision": view.revision,
        "progress": readings.progress(run.state, view.run.length, run.total, view.queue, found.speed, left),
        "sentence": words.answer(found),
        "titles": words.titles(found),
        "labels": words.labels(found),
        "tiles": [asdict(tile) for tile in readings.tiles(found)],
        "run": columns_at(view.run, thinned(view.run, since), STREAMED),
        "reference": reference
        and {
            "id": reference.run.id,
            "state": reference.run.state,
            "error": reference.run.error,
            "update": reference.length,
            "total": reference.run.total,
            "columns": columns_at(reference, thinned(reference, reference_since), STREAMED),
        },
        "distance": _distance(view, min(since, reference_since)),
        "layers": _layers(view.run, since),
        "memory": _memory(view.run),
        "marks": [asdict(mark) for mark in view.run.marks],
        "pictures": {"run": _pictures(view.run, since), "reference": _pictures(reference, reference_since)},
        "classes": [
            {"run": finite(value), "reference": finite(other)}
            for value, other in zip(view.run.class_iou, _class_iou(reference, len(view.run.class_iou)), strict=True)
        ],
    }


def _distance(view: RunView, since: int) -> dict[str, Any]:
    column = view.run.columns["weight_distance"]
    due = [index for index in range(since, view.both()) if column[index] is not None]
    return columns_at(view.run, due[:: max(1, len(due) // 1000)], (*POSITION, "weight_distance"))


def _layers(track: Track, since: int) -> dict[str, Any]:
    rows = [(index, errors) for index, errors in track.layer_errors if index >= since]
    rows = rows[:: max(1, len(rows) // 500)]
    at = columns_at(track, [index for index, _ in rows], POSITION)
    return {"names": [words.layer_title(name) for name in track.layers], **at, "errors": [errors for _, errors in rows]}


def _memory(track: Track) -> dict[str, Any]:
    if not track.saved_bytes:
        return {"names": [], "mebibytes": []}
    config = track.run.config
    steps = track.settings[-1][2] if track.settings else config.accumulation_steps
    bars = {
        f"one batch of {config.effective_batch_size}": track.saved_bytes["full_batch"],
        f"one pass of {config.effective_batch_size // steps}": track.saved_bytes["micro_batch"],
    }
    return {
        "names": [f"{name}<br><b>{readings.mebibytes(size)}</b>" for name, size in bars.items()],
        "mebibytes": [finite(size / 2**20) for size in bars.values()],
    }


def _pictures(track: Track | None, since: int) -> dict[str, Any] | None:
    if track is None or track.pictures is None or track.pictures[0] <= since:
        return None
    update, images = track.pictures
    return {"update": update, "images": images}


def _class_iou(reference: Track | None, count: int) -> list[float | None]:
    found: list[float | None] = list(reference.class_iou) if reference else []
    return found if len(found) == count else [None] * count


def table(view: RunView, names: tuple[str, ...]) -> list[list[object]]:
    """A header and a row for each update: position, the named columns of the run, then those of the reference.

    ``layers`` stands for one column a layer of the run. Call with the view's lock held.
    """
    plain = [name for name in names if name != "layers"]
    beside = [name for name in plain if name != "weight_distance"] if view.reference else []
    header: list[object] = [*POSITION, *plain, *(f"reference_{name}" for name in beside)]
    errors = dict(view.run.layer_errors) if "layers" in names else {}
    header += list(view.run.layers) if errors else []
    rows = [header]
    for index in range(view.run.length):
        row: list[object] = [view.run.columns[name][index] for name in (*POSITION, *plain)]
        if view.reference:
            held = index < view.reference.length
            row += [view.reference.columns[name][index] if held else None for name in beside]
        if errors:
            row += errors.get(index, (None,) * len(view.run.layers))
        rows.append(row)
    return rows
