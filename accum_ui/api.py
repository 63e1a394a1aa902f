"""The routes beside Streamlit's own: a run's new points, a run as CSV, and the charts' script.

``GET /api/runs/{id}?since=k&reference_since=j``   new points of a run and of its reference, as JSON
``GET /api/runs/{id}.csv?columns=loss,miou``       all points of both; every column without ``columns``
``GET /assets/plotly-...min.js``                    the vendored Plotly bundle, compressed once
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accum_core.errors import LabError, SettingError
from accum_ui.payload import payload, table
from accum_ui.run_view import COLUMNS, POSITION, RunView, Views

PLOTLY: Final = Path(__file__).parents[1] / "static" / "plotly-cartesian-4.1.1.min.js"
PLOTLY_ADDRESS: Final = f"assets/{PLOTLY.name}"
MOST_REPLIES: Final = 200
FRESH: Final = {"Cache-Control": "no-store"}
CHOICES: Final = (*(name for name in COLUMNS if name not in POSITION), "layers")


class UnknownRunError(LabError):
    """A run that the store does not hold."""


def routes(views: Callable[[], Views]) -> list[Route]:
    """The routes over the views that ``views`` gives when the first request comes."""

    def points(request: Request) -> Response:
        since, reference_since = _count(request, "since"), _count(request, "reference_since")
        view = _view(views(), request.path_params["run_id"])
        with view.lock:
            view.refresh()
            # Browsers that hold the same points get the same bytes, made once.
            body = view.replies.get((since, reference_since))
            if body is None:
                if len(view.replies) >= MOST_REPLIES:
                    view.replies.clear()
                body = json.dumps(payload(view, since, reference_since), separators=(",", ":")).encode()
                view.replies[since, reference_since] = body
        return Response(body, media_type="application/json", headers=FRESH)

    def as_csv(request: Request) -> Response:
        names = _columns(request)
        run_id = request.path_params["run_id"]
        view = _view(views(), run_id)
        with view.lock:
            view.refresh()
            rows = table(view, names)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        chosen = f"_{names[0]}" if names != CHOICES else ""  # a download a chart, each with a name of its own
        disposition = {"Content-Disposition": f'attachment; filename="{run_id}{chosen}.csv"'}
        return Response(text.getvalue(), media_type="text/csv", headers=FRESH | disposition)

    return [
        Route("/api/runs/{run_id}.csv", _in_words(as_csv)),
        Route("/api/runs/{run_id}", _in_words(points)),
        Route(f"/{PLOTLY_ADDRESS}", _plotly),
    ]


def _in_words(handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Answer a refusal with its sentence: 400 for a bad parameter, 404 for an unknown run, 503 for a bad store."""

    @wraps(handler)
    def guarded(request: Request) -> Response:
        try:
            return handler(request)
        except UnknownRunError as error:
            status, sentence = 404, str(error)
        except SettingError as error:
            status, sentence = 400, str(error)
        except LabError as error:
            status, sentence = 503, str(error)
        return JSONResponse({"error": sentence}, status, headers=FRESH)

    return guarded


def _view(views: Views, run_id: str) -> RunView:
    try:
        return views.get(run_id)
    except SettingError as error:
        raise UnknownRunError(str(error)) from None


def _count(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise SettingError(name, text, "must be the number of an update, 0 or more")
    return int(text)


def _columns(request: Request) -> tuple[str, ...]:
    text = request.query_params.get("columns")
    if text is None:
        return CHOICES
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in CHOICES:
            raise SettingError("columns", name, f"is no column; use some of {', '.join(CHOICES)}")
    return names


@cache
def _compressed() -> bytes:
    return gzip.compress(PLOTLY.read_bytes(), 6, mtime=0)


def _plotly(request: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(PLOTLY.read_bytes(), media_type="text/javascript", headers=headers)
    return Response(_compressed(), media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})
