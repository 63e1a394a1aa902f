"""Vary: one run of the experiment with another N, norm or seed, beside the committed run."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any, Final

import streamlit as st

from accum_core import catalogue
from accum_core.errors import LabError
from accum_core.experiment import Experiment
from accum_core.runs.store import LIVE, Store
from accum_ui import resources, take_home
from accum_ui.lab import literal
from accum_ui.navigation import PAGES
from accum_ui.reproduce import varied, words
from accum_ui.reproduce.cards import go_to
from accum_ui.reproduce.choice import Choice, base_of, label_of, runs_of, steps_of, takes_norm
from accum_ui.reproduce.varied import Varied
from accum_ui.words import norm_title
from experiments.report.findings import Findings

PREFIX: Final = "reproduce_set_"
PROBLEM: Final = "reproduce_vary_problem"
SECONDS: Final = 2.0
MORE_SEEDS: Final = (1, 2, 3)


def show(experiment: Experiment, choice: Choice, found: Findings | None, *, usable: bool) -> None:
    """The settings, the note, and the numbers of both.

    Args:
        usable: whether the store can be used; without it nothing is shown, as the page has told why.
    """
    problem = st.session_state.pop(PROBLEM, None)
    if not usable:
        return
    st.header("Vary it", anchor=False)
    st.markdown("Change one run of the experiment and compare. **A varied run no longer tests the claim.**")
    _controls(experiment, choice)
    if problem:
        st.error(literal(problem), icon=":material/error:")
    if refusal := varied.refusal(experiment, choice):
        st.error(literal(refusal), icon=":material/error:")
        return
    try:
        _compared(resources.store(), experiment, choice, found)
    except LabError as error:
        if str(error) != problem:  # the button met it already
            st.error(literal(str(error)), icon=":material/error:")


def _controls(experiment: Experiment, choice: Choice) -> None:
    base = base_of(experiment, choice)
    seeds = varied.seeds_of(experiment, choice)
    offered = sorted({*experiment.preset("bench").seeds, *MORE_SEEDS, *seeds})
    with st.container(border=True, horizontal=True, gap="medium", key="reproduce_vary"):
        st.selectbox(
            "Run", list(runs_of(experiment)), **_bound(experiment, choice, "run", label_of(experiment, choice))
        )
        st.selectbox(
            "N",
            steps_of(base),
            format_func=lambda steps: f"{steps} × {base.effective_batch_size // steps}",
            **_bound(experiment, choice, "steps", choice.steps or base.accumulation_steps),
        )
        if takes_norm(base):
            st.selectbox(
                "Norm",
                list(catalogue.entries("norms")),
                format_func=norm_title,
                **_bound(experiment, choice, "norm", choice.norm or base.norm),
            )
        st.multiselect("Seeds", offered, **_bound(experiment, choice, "seeds", list(seeds)))


def _bound(experiment: Experiment, choice: Choice, field: str, value: Any) -> dict[str, Any]:
    """What ties a widget to the address: its value is what the address says, and its moves write the address."""
    key = PREFIX + field
    st.session_state[key] = value
    return {"key": key, "on_change": _moved, "args": (experiment, choice, field)}


def _moved(experiment: Experiment, choice: Choice, field: str) -> None:
    value: Any = st.session_state[PREFIX + field]
    if field == "run":
        changed = replace(choice, run=value, steps=0, norm="")  # N and norm are the other run's own
    else:
        fields: dict[str, Any] = {field: tuple(value) if field == "seeds" else value}
        changed = replace(choice, **fields)
    base = base_of(experiment, changed)
    if changed.steps == base.accumulation_steps:
        changed = replace(changed, steps=0)
    if changed.norm == base.norm:
        changed = replace(changed, norm="")
    go_to(changed)


def _compared(store: Store, experiment: Experiment, choice: Choice, found: Findings | None) -> None:
    runs = varied.look(store, experiment, choice, found)
    label, base = label_of(experiment, choice), base_of(experiment, choice)
    if not varied.changes(experiment, choice):
        st.caption("These are the experiment's own settings. Change N, the norm or the seeds.")
    if any(one.run is not None and one.run.state in LIVE for one in runs):
        _watched(store, experiment, choice, found, words.varied_title(label, runs[0], base.norm))
    else:
        st.html(table(runs, words.varied_title(label, runs[0], base.norm)))
    missing = [one for one in runs if words.state(one) == "not run"]
    with st.container(horizontal=True, key="reproduce_vary_runs"):
        if missing:
            st.button(
                f"Run {len(missing)} varied {'run' if len(missing) == 1 else 'runs'}",
                icon=":material/play_arrow:",
                on_click=_submit,
                args=(store, missing),
                key="reproduce_vary_submit",
            )
        for one in runs:
            if one.run is not None:
                st.page_link(
                    PAGES / "1_Lab.py",
                    label=f"Watch seed {one.seed} in the Lab",
                    icon=":material/monitoring:",
                    query_params={"run": one.run.id},
                )
    for one in runs:
        if one.run is not None and one.run.state == "failed":
            st.warning(f"Seed {one.seed}: {literal(one.run.error or 'failed')}", icon=":material/block:")
    form = _bound(experiment, choice, "form", choice.form)
    take_home.show(runs[0].config, key="reproduce", form=form, what=f"{label}, seed {runs[0].seed}")


@st.fragment(run_every=SECONDS)
def _watched(store: Store, experiment: Experiment, choice: Choice, found: Findings | None, title: str) -> None:
    """The table while runs are under way; when they have ended the whole page is drawn anew."""
    try:
        runs = varied.look(store, experiment, choice, found)
    except LabError as error:
        st.error(literal(str(error)), icon=":material/error:")
        return
    if not any(one.run is not None and one.run.state in LIVE for one in runs):
        st.rerun(scope="app")
    st.html(table(runs, title))


def table(runs: list[Varied], title: str) -> str:
    """Each seed's numbers, committed and varied, as HTML."""
    metrics = list(dict.fromkeys(name for one in runs for name in (*one.committed, *one.numbers)))
    names = ["Seed", *(f"{words.metric_title(name)}, {which}" for name in metrics for which in ("ours", "varied"))]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (*names, "Varied run"))
    body = ""
    for one in runs:
        cells = [words.shown(name, part.get(name)) for name in metrics for part in (one.committed, one.numbers)]
        cells.append(words.state(one))
        row = "".join(
            f'<td data-label="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip((*names[1:], "Varied run"), cells, strict=True)
        )
        body += f'<tr><th scope="row">{one.seed}</th>{row}</tr>'
    return (
        f'<p class="varied">{escape(title)}, beside the committed run</p><table class="facts"><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>"
    )


def _submit(store: Store, runs: list[Varied]) -> None:
    try:
        for one in runs:
            store.submit(one.config)
    except LabError as error:
        st.session_state[PROBLEM] = str(error)
