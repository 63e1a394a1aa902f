"""The committed results as the page needs them: first lines for the cards, everything for the opened paper."""

from __future__ import annotations

import streamlit as st

from accum_core.result_file import ResultHeader
from accum_ui import results
from experiments import find, result_path
from experiments.report import drawing, findings
from experiments.report.drawing import Chart
from experiments.report.findings import Findings

MOST_OPENED = 12
"""Parsed results that stay in memory, some ten megabytes each."""


def header(name: str) -> ResultHeader | None:
    """What an experiment found, without its runs; None without a committed result.

    Raises:
        DataError: for a file that is damaged.
    """
    return _header(name, str(result_path(name)), _written(name))


def opened(name: str) -> Findings | None:
    """An experiment's committed result with all that follows from it; None without one.

    Raises:
        DataError: for a file that is damaged, or whose runs are not those that the experiment measures now.
    """
    return _opened(name, str(result_path(name)), _written(name))


def charts(name: str, *, dark: bool) -> tuple[Chart, ...]:
    """The figures of an experiment's committed result, drawn once.

    Args:
        dark: whether they stand on a dark surface.

    Raises:
        DataError: as ``opened``.
    """
    return _charts(name, str(result_path(name)), _written(name), dark)


def _written(name: str) -> tuple[int, int]:
    """What tells one version of a file from another."""
    path = result_path(name)
    if not path.exists():
        return 0, 0
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@st.cache_resource(max_entries=100, show_spinner=False)
def _header(name: str, path: str, written: tuple[int, int]) -> ResultHeader | None:
    return results.header(name)


@st.cache_resource(max_entries=MOST_OPENED, show_spinner=False)
def _opened(name: str, path: str, written: tuple[int, int]) -> Findings | None:
    result = results.read(name)
    return None if result is None else findings.find(find(name), result)


@st.cache_resource(max_entries=2 * MOST_OPENED, show_spinner=False)
def _charts(name: str, path: str, written: tuple[int, int], dark: bool) -> tuple[Chart, ...]:
    found = opened(name)
    if found is None:
        return ()
    drawn = [drawing.ours(figure, found.drawn[figure.key], dark=dark) for figure in found.experiment.figures]
    return tuple(chart for chart in drawn if chart is not None)
