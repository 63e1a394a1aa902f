"""The Lab's controls: widgets for the settings of a run, and the buttons that act on the run shown."""

from __future__ import annotations

from typing import Final, Literal

import streamlit as st

from accum_core import catalogue
from accum_core.batching import divisors
from accum_core.provenance import code_version
from accum_core.records import LiveField, Message
from accum_core.reduction import REDUCTION_KINDS
from accum_core.runs.store import Store
from accum_ui import about_run, lab, settings, words
from accum_ui.lab import Shown, key

MOST: Final = {"effective_batch_size": 512, "updates": 100_000, "seed": 2**31 - 1}


def bar(store: Store, shown: Shown) -> None:
    """The controls in three rows, and the buttons."""
    if notice := st.session_state.pop(lab.NOTICE, None):
        st.toast(notice, icon=":material/tune:")
    with st.container(border=True, key="lab_controls", gap="small"):
        _split_and_norm(store, shown)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            _rest(store, shown)
            _buttons(store, shown)


def _split_and_norm(store: Store, shown: Shown) -> None:
    batch, steps = st.columns([1, 4], gap="medium", vertical_alignment="bottom")
    effective = int(st.session_state[key("effective_batch_size")])
    batch.number_input(
        "Effective batch size",
        1,
        MOST["effective_batch_size"],
        key=key("effective_batch_size"),
        on_change=_new_effective,
        args=(effective,),
        help="Samples in one update, however they are split.",
    )
    steps.select_slider(
        "Accumulation steps N × micro-batch",
        divisors(effective),
        key=key("accumulation_steps"),
        format_func=lambda n: f"{n} × {effective // n}",
        disabled=effective == 1,
        on_change=_moved,
        args=(store, shown, "accumulation_steps"),
    )
    st.pills(
        "Norm",
        list(catalogue.entries("norms")),
        key=key("norm"),
        format_func=words.norm_title,
        required=True,
        on_change=_moved,
        args=(store, shown, "norm"),
        help=_family(),
    )


def _family() -> str:
    """What each norm looks at, and which are exact under accumulation, as Markdown."""
    lines = []
    for constants in catalogue.entries("norms").values():
        exact = constants.get("BATCH_INDEPENDENT") or constants.get("EXACT_UNDER_ACCUMULATION")
        lines.append(f"- **{constants['TITLE']}**{' (exact)' if exact else ''}: {constants['SUMMARY']}")
    return "What it normalises; exact: the same under accumulation as in one batch.\n" + "\n".join(lines)


def _rest(store: Store, shown: Shown) -> None:
    workloads = catalogue.entries("workloads")
    chosen = st.session_state[key("workload")]
    models = workloads[chosen]["MODELS"]
    offered = [name for name, constants in workloads.items() if constants.get("IN_LAB", True) or name == chosen]
    st.selectbox(
        "Workload",
        offered,
        key=key("workload"),
        format_func=lambda name: workloads[name]["TITLE"],
        on_change=_new_workload,
        width=185,
    )
    st.selectbox("Model", models, key=key("model"), width=110)
    st.selectbox(
        "Reduction",
        REDUCTION_KINDS,
        key=key("reduction"),
        width=145,
        help="What the window's summed loss is divided by.",
    )
    st.number_input(
        "Learning rate",
        1e-5,
        100.0,
        step=0.01,
        format="%g",
        key=key("learning_rate"),
        on_change=_moved,
        args=(store, shown, "learning_rate"),
        width=100,
    )
    st.number_input("Updates", 1, MOST["updates"], key=key("updates"), step=10, width=90)
    st.number_input("Seed", 0, MOST["seed"], key=key("seed"), width=80)


def _buttons(store: Store, shown: Shown) -> None:
    run, config = shown.run, shown.config
    same = run is not None and config == run.config and not run.altered
    again = same and not shown.live
    state = run.state if run is not None and shown.live else ""
    with st.container(horizontal=True, width="content", vertical_alignment="bottom", gap="small", key="lab_buttons"):
        st.button(
            "Run again" if again else "Run",
            type="primary",
            icon=":material/play_arrow:",
            disabled=config is None or (same and shown.live),
            on_click=lab.submit,
            args=(store, config),
            kwargs={"fresh": again},
        )
        if state == "paused":
            st.button("Resume", on_click=_ask, args=(store, shown, "resume"))
        else:
            st.button("Pause", disabled=state != "running", on_click=_ask, args=(store, shown, "pause"))
        st.button("Stop", disabled=not state, on_click=_ask, args=(store, shown, "stop"))


def about(store: Store, shown: Shown) -> None:
    """Which run stands below: its own settings, where it comes from, and how it differs from the controls."""
    run, config = shown.run, shown.config
    if run is None:
        return
    lines = [about_run.settings_line(run.config, shown.asked), about_run.reference_line(run.config)]
    if run.environment is not None and not shown.live:
        lines.append(about_run.provenance_line(run.source, run.environment))
    st.caption("  \n".join(lines))
    if config is not None and config != shown.asked:
        st.info(about_run.difference_line(config, shown.asked), icon=":material/tune:")
    if run.state in ("failed", "stopped") and shown.chosen:
        if run.error:
            st.error(run.error, icon=":material/error:")
        begun = run.checkpoint_update is not None or run.update > 0
        if begun and run.code_version == code_version() and config is not None:
            st.button(
                f"Resume from update {run.checkpoint_update or 0} with N, norm and learning rate as set above",
                icon=":material/restart_alt:",
                on_click=lab.resume,
                args=(store, run, config),
            )


def _ask(store: Store, shown: Shown, kind: Literal["pause", "resume", "stop"]) -> None:
    if shown.run is not None:
        lab.send(store, shown.run.id, Message(kind=kind))


def _moved(store: Store, shown: Shown, field: LiveField) -> None:
    """Send a moved control to the run that is shown, if it is under way."""
    if shown.run is None or not shown.live:
        return
    value = st.session_state[key(field)]
    lab.send(store, shown.run.id, Message(kind="set", field=field, value=value))
    if lab.PROBLEM not in st.session_state:
        st.session_state[lab.NOTICE] = f"{about_run.change(field, value)} takes effect at the next update."


def _new_workload() -> None:
    """Keep the model where the new workload has it too, or take its first."""
    models = catalogue.entries("workloads")[st.session_state[key("workload")]]["MODELS"]
    if st.session_state[key("model")] not in models:
        st.session_state[key("model")] = models[0]


def _new_effective(before: int) -> None:
    """Keep the micro-batch when the effective batch moves, or the nearest one below that divides."""
    micro = before // int(st.session_state[key("accumulation_steps")])
    effective = int(st.session_state[key("effective_batch_size")])
    st.session_state[key("accumulation_steps")] = settings.nearest_steps(effective, micro)
