"""The whole page: the answer, the matrix or what the address opens of it, the data, and a run for the versions here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import streamlit as st

from accum_core.conformance import findings
from accum_core.conformance.loops import Loops, all_loops
from accum_core.conformance.results import Results, Row
from accum_core.errors import LabError, SettingError
from accum_ui.conformance import cell, choice, matrix, reading, run, words
from accum_ui.conformance.choice import HERE, Choice
from accum_ui.lab import literal
from accum_ui.navigation import PAGES

STYLE: Final = Path(__file__).with_name("conformance.css")
PREFIX: Final = "frameworks_set_"
ALL: Final = ""


def show() -> None:
    """The page that the address asks for; one that cannot be is told in a sentence above the matrix."""
    st.html(STYLE)
    loops = all_loops()
    try:
        committed, here = reading.committed(), reading.here()
    except LabError as error:
        st.title(words.TITLE, anchor=False)
        st.error(literal(str(error)), icon=":material/error:")
        run.show((), "", {}, loops)
        return
    asked, strayed = Choice(), ""
    try:
        asked = choice.read(
            st.query_params.to_dict(), committed.results if committed else (), here.results if here else ()
        )
    except SettingError as error:
        strayed = str(error)
    results = here if asked.results == HERE else committed or here
    if results is None:
        _nothing(loops)
        return
    opened = _opened(results.results, asked)
    if opened is None:
        st.title(literal(words.title(asked.framework, loops)), anchor=False)
        told = f"{findings.finding(results.results, loops)} {findings.everywhere(results.results, loops)}"
        if asked.framework:
            told = words.framework_line(results.results, asked.framework, loops)
        with st.container(key="frameworks_answer"):
            st.markdown(literal(told))
        if strayed:
            st.error(literal(strayed), icon=":material/error:")
        _table(results, asked, bool(committed and here), loops)
    else:
        _back(asked, loops)
        cell.show(opened, loops)
        st.header(f"{findings.title(opened.framework, loops)} in the other cases", anchor=False)
        _drawn(matrix.matrix(results.results, asked, loops, opened=opened), results.results)
    if asked.framework and asked.framework in loops:
        cell.defects(loops[asked.framework].defects)
    others = reading.others(results.results, loops)
    _origin(results, asked, others, is_here=results is here, loops=loops)
    run.show(results.results, asked.framework, others, loops, is_here=results is here)


def _nothing(loops: Mapping[str, Loops]) -> None:
    st.title(words.TITLE, anchor=False)
    names = ", ".join(one.title for one in loops.values())
    st.info(
        f"There are no results yet. With them, this page shows for each of {names} what it computed in every case, the "
        "loop as its users write it, and how to get it right.",
        icon=":material/info:",
    )
    run.show((), "", {}, loops)


def _opened(rows: Sequence[Row], asked: Choice) -> Row | None:
    """The cell that the address opens; of a framework with several kinds the first, unless one is named."""
    mine = [row for row in rows if (row.framework, row.case) == (asked.framework, asked.case)]
    if not mine:
        return None
    kind = asked.kind or findings.first_kind([row.kind for row in mine])
    return next(row for row in mine if row.kind == kind)


def _table(results: Results, asked: Choice, both: bool, loops: Mapping[str, Loops]) -> None:
    rows = results.results
    with st.container(border=True, horizontal=True, gap="medium", key="frameworks_filters"):
        st.selectbox(
            "Framework",
            [ALL, *findings.frameworks_of(rows, loops)],
            format_func=lambda name: findings.title(name, loops) if name else "All frameworks",
            **_bound(asked, "framework"),
        )
        st.selectbox(
            "Case",
            [ALL, *findings.cases_of(rows)],
            format_func=lambda name: findings.case_title(name) if name else "All cases",
            **_bound(asked, "case"),
        )
        if both:
            st.selectbox(
                "Results",
                [ALL, HERE],
                format_func=lambda name: "of this machine" if name else "committed",
                **_bound(asked, "results"),
            )
    if asked.case:
        st.markdown(words.case_line(asked.case))
        _drawn(matrix.of_case(rows, asked, loops), rows)
    else:
        _drawn(matrix.matrix(rows, asked, loops), rows)


def _drawn(table: str, rows: Sequence[Row]) -> None:
    dark = st.context.theme.type == "dark"
    st.html(f'<div style="{matrix.colours(dark)}">{matrix.key(rows)}{table}</div>')


def _bound(asked: Choice, field: str) -> dict[str, Any]:
    """What ties a widget to the address: its value is what the address says, and its moves write the address."""
    key = PREFIX + field
    st.session_state[key] = getattr(asked, field)
    return {"key": key, "on_change": _moved, "args": (asked, field), "width": 300}


def _moved(asked: Choice, field: str) -> None:
    changed = replace(asked, kind="", **{field: st.session_state[PREFIX + field]})
    _go_to(Choice(results=changed.results) if field == "results" else changed)


def _go_to(asked: Choice) -> None:
    """Callback: let this be the page's address, as a step in the browser's history."""
    st.query_params.from_dict(choice.address(asked))


def _back(asked: Choice, loops: Mapping[str, Loops]) -> None:
    places = {
        "All frameworks": Choice(results=asked.results),
        f"All of {findings.title(asked.framework, loops)}": Choice(asked.framework, results=asked.results),
        f"All in this case: {findings.case_title(asked.case)}": Choice(case=asked.case, results=asked.results),
    }
    with st.container(horizontal=True, gap="small", key="frameworks_back"):
        for place, (label, to) in enumerate(places.items()):
            icon = ":material/arrow_back:" if not place else None
            st.button(literal(label), icon=icon, on_click=_go_to, args=(to,), key=f"frameworks_back_{place}")


def _origin(
    results: Results, asked: Choice, others: Mapping[str, tuple[str, str]], *, is_here: bool, loops: Mapping[str, Loops]
) -> None:
    st.caption(literal(words.origin_line(results, here=is_here)))
    if differing := words.others_line(others, loops):
        st.warning(literal(differing), icon=":material/update:")
    with st.container(horizontal=True, vertical_alignment="center", key="frameworks_data"):
        for label, name, kind, data in (
            ("The results (JSON)", "conformance.json", "application/json", results.model_dump_json(indent=1)),
            ("The results (CSV)", "conformance.csv", "text/csv", words.to_csv(results.results)),
        ):
            st.download_button(
                label, data, name, kind, icon=":material/download:", on_click="ignore", key=f"frameworks_{name}"
            )
        st.page_link(PAGES / "2_Loss_scaling.py", label="What the divisions do to a window: Loss scaling")
