"""One opened cell: the loop, what it computed, what the batch's gradient is, and how to get it right."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from accum_core.conformance import findings, mathematics
from accum_core.conformance.cases import CASES
from accum_core.conformance.loops import Defect, Loops
from accum_core.conformance.results import Row
from accum_ui.conformance import matrix, words
from accum_ui.lab import literal


def show(row: Row, loops: Mapping[str, Loops]) -> None:
    """Everything of one framework in one case."""
    file = loops.get(row.framework)
    st.title(f"{findings.title(row.framework, loops)}: {findings.case_title(row.case)}", anchor=False)
    with st.container(key="frameworks_answer"):
        question = CASES[row.case].question if row.case in CASES else ""
        st.markdown(f"{question} **{words.verdict_line(row)}** {literal(f'{row.explanation} {row.remark}'.strip())}")
    kind = findings.kind_title(row.framework, row.kind, loops)
    st.caption(f"{literal(kind)}; {literal(words.version(row))}; {words.setting_line(row)}.")
    with st.container(key="frameworks_cell"):
        code, numbers = st.columns([1.6, 1], gap="medium")
        with code:
            st.markdown("### The loop as its users write it")
            if file is None:
                st.info("The file of this loop is no longer in the project.", icon=":material/info:")
            else:
                st.code(file.loop, language="python", height=560)
                st.caption(f"`{file.file}`")
                if file.beside:
                    with st.expander("What it takes from other files"):
                        st.code(file.beside, language="python", height=420)
        with numbers:
            _computed(row)
        _mend(row, file)


def _computed(row: Row) -> None:
    st.markdown("### What it computed")
    st.html(matrix.facts(row))
    if row.formula is not None and row.case != "logged_loss" and (division := mathematics.division(row.formula)):
        st.latex(division, width="content")
    if row.verdict != "refuses":
        st.markdown(literal(words.formula(row) + (", to rounding" if row.formula else "")))
    if same := words.same_line(row):
        st.caption(literal(same))
    st.markdown("### What the batch gives")
    st.latex(mathematics.right(row.case), width="content")
    if row.case in CASES:
        st.markdown(f"{CASES[row.case].right[0].upper()}{CASES[row.case].right[1:]}.")
    st.caption(mathematics.NOTATION)


def _mend(row: Row, file: Loops | None) -> None:
    if row.verdict == "exact":
        return
    st.header("How to get it right", anchor=False)
    st.markdown(literal(row.mend) or "No option of this framework mends it, as far as is known here.")
    if row.mended_verdict is not None:
        st.markdown(
            f"Measured with it: **{words.sign(row.mended_verdict)} {row.mended_verdict}**, gradient error "
            f"{findings.error(row.mended_error)}."
        )
        if file is not None and file.mended:
            st.code(file.mended, language="python", height=420)


def defects(found: tuple[Defect, ...]) -> None:
    """What looks like the framework's own faults, with a script each."""
    if found:
        st.header("What looks like a defect, with the smallest script that shows it", anchor=False)
    for defect in found:
        with st.expander(literal(defect.title)):
            st.markdown(literal(defect.sentence))
            st.code(defect.script.strip(), language="python")
