"""The committed results, those of this machine, and the versions that are installed. No Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from accum_core.conformance.loops import Loops
from accum_core.conformance.results import COMMITTED, Results, Row
from accum_ui.conformance import job


def committed() -> Results | None:
    """The committed results; None without any.

    Raises:
        DataError: for a file that is damaged.
    """
    return _read(COMMITTED)


def here() -> Results | None:
    """What was run on this machine, of each framework the newest; None without any.

    Raises:
        DataError: for a file that is damaged.
    """
    found = sorted(job.folder().glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    results = [result for path in found if path != job.job_path() and (result := _read(path)) is not None]
    if not results:
        return None
    rows: dict[str, tuple[Row, ...]] = {}
    for result in results:
        names = dict.fromkeys(row.framework for row in result.results)
        rows |= {name: tuple(row for row in result.results if row.framework == name) for name in names}
    return results[-1].model_copy(update={"results": tuple(row for mine in rows.values() for row in mine)})


def installed(distribution: str) -> str:
    """The version of a distribution in this environment; "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def can_run(loops: Loops) -> bool:
    """Whether what a framework's file needs is installed."""
    return not loops.distribution or bool(installed(loops.distribution))


def others(rows: Iterable[Row], loops: Mapping[str, Loops]) -> dict[str, tuple[str, str]]:
    """Framework -> (version of the results, version installed here, "" if none), where the two differ."""
    versions = {row.framework: row.version for row in rows}
    found = {name: (of, installed(loops[name].distribution)) for name, of in versions.items() if name in loops}
    return {name: both for name, both in found.items() if loops[name].distribution and both[0] != both[1]}


def _read(path: Path) -> Results | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return _parsed(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=40)
def _parsed(path: Path, changed: int, size: int) -> Results:
    return Results.read(path)
