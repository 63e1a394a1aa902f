"""The Lab page's state: which run is shown, which settings stand in the controls, and what they ask of the store.

The controls' states are ``lab_<field>`` in the session: filled from the address when the page opens, read back as a
``RunConfig``. No widget is drawn here; ``controls`` draws them and calls these functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, get_args

import streamlit as st

from accum_core.errors import LabError, SettingError
from accum_core.records import LiveField, Message, RunConfig
from accum_core.runs.store import Run, Store
from accum_ui import settings

LIVE: Final = ("queued", "running", "paused")
LIVE_FIELDS: Final[tuple[LiveField, ...]] = get_args(LiveField)
# The settings as the controls know them; N stands for the micro-batch.
WIDGETS: Final = (
    "workload",
    "model",
    "norm",
    "effective_batch_size",
    "accumulation_steps",
    "reduction",
    "learning_rate",
    "updates",
    "seed",
)
MOST_RUNS: Final = 1000  # that are looked through for the nearest one; the committed results alone are hundreds
RUN_ID: Final = "lab_run"
SUBMITTED: Final = "lab_submitted"
PROBLEM: Final = "lab_problem"
NOTICE: Final = "lab_notice"
# What Markdown would take for formatting, a formula, a link or a picture; a mark inside a word is none.
MARKDOWN: Final = re.compile(r"[\\`*$~<\[\]]|:(?=\S)|(?<!\w)_|_(?!\w)")
# What makes a bare address of the text a link, after all formatting, so that only a character in between prevents it.
ADDRESSES: Final = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)", re.IGNORECASE)
WORD_JOINER: Final = "\u2060"  # has no width and breaks no line


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows.

    Attributes:
        run: the run whose charts stand below; None in an empty store.
        base: the run's present settings, or the defaults; the address says what differs from them.
        config: the settings in the controls; None when they cannot be.
        chosen: the address names the run; otherwise it is the stored one that comes nearest to the controls.
        refusals: sentences about what the address, the controls or a button asked for and cannot have.
        strayed: the address itself holds what cannot be, and stays as it is until a control is moved.
    """

    run: Run | None
    base: RunConfig
    config: RunConfig | None
    chosen: bool
    refusals: tuple[str, ...]
    strayed: bool

    @property
    def asked(self) -> RunConfig:
        """The settings that the page's question is about: the present ones of the run shown, if there is one."""
        if self.run is None:
            return self.config or self.base
        return self.base if self.chosen else self.run.config

    @property
    def live(self) -> bool:
        """The run waits, runs or pauses, so that it takes messages."""
        return self.run is not None and self.chosen and self.run.state in LIVE


def open_page(store: Store) -> Shown:
    """Read the address and the controls, and find the run to show.

    Raises:
        StoreError: when the store cannot be read.
    """
    refusals = [sentence for sentence in (st.session_state.pop(PROBLEM, None),) if sentence]
    told = len(refusals)
    run, base, wanted, form = None, RunConfig.of(), None, settings.USUAL_FORM
    try:
        run = _chosen_run(store)
        base = store.present_config(run.id) if run else base
    except SettingError as error:
        refusals.append(literal(str(error)))
    try:
        wanted = settings.read(st.query_params, base)
        form = settings.form(st.query_params)
    except SettingError as error:
        refusals.append(literal(str(error)))
    strayed = len(refusals) > told
    if key("norm") not in st.session_state:
        empty = not strayed and not _addressed()
        stored = stored_run(store, base) if empty and run is None else None
        fill(stored.config if stored else wanted or base)
        st.session_state[key(settings.FORM)] = form
    config = None
    try:
        config = _in_controls(base)
    except SettingError as error:
        refusals.append(str(error))
    chosen = run is not None
    run = run or stored_run(store, config or base)
    return Shown(run, base, config, chosen, tuple(refusals), strayed)


def stored_run(store: Store, config: RunConfig) -> Run | None:
    """A finished run to look at before anything is run: these settings, else the nearest ones.

    Among runs whose reference is finished too, the one with the fewest other settings, then the newest.
    """
    exact = store.find(config)
    if exact is not None and exact.state == "done":
        return exact
    done = [run for run in store.runs(MOST_RUNS) if run.state == "done" and not run.altered]
    finished = {run.config_digest for run in done}
    wanted = config.model_dump()

    def rank(run: Run) -> tuple[bool, int, float]:
        other = sum(value != wanted[field] for field, value in run.config.model_dump().items())
        return run.config.reference().digest() in finished, -other, run.created

    return max(done, key=rank, default=None)


def remember(shown: Shown) -> None:
    """Write the address that gives this page in another browser."""
    config = shown.config
    if config is None or (shown.strayed and config == shown.base):
        return
    run_id = shown.run.id if shown.run and shown.chosen else None
    wanted = settings.address(config, shown.base, run_id)
    if axis := st.query_params.get(settings.AXIS):  # the charts' script writes it
        wanted[settings.AXIS] = axis
    if (form := st.session_state[key(settings.FORM)]) != settings.USUAL_FORM:
        wanted[settings.FORM] = form
    if wanted != st.query_params.to_dict():
        st.query_params.from_dict(wanted)


def key(field: str) -> str:
    """The session key of a setting's control."""
    return f"lab_{field}"


def literal(sentence: str) -> str:
    """A sentence that quotes the address, as Markdown that shows it letter by letter: a link that somebody sends
    must not format the page, nor make it load a picture from elsewhere."""
    return MARKDOWN.sub(r"\\\g<0>", ADDRESSES.sub(WORD_JOINER, sentence))


def fill(config: RunConfig) -> None:
    """Show these settings in the controls."""
    for field in WIDGETS:
        st.session_state[key(field)] = getattr(config, field)


def submit(store: Store, config: RunConfig, *, fresh: bool) -> None:
    """Ask for a run and its reference, and show it."""
    with Told():
        run_id = store.submit(config, fresh=fresh)
        if config.reference() != config:
            store.submit(config.reference())
        st.session_state[SUBMITTED] = run_id


def send(store: Store, run_id: str, message: Message) -> None:
    """Ask something of a run; a refusal is told on the page."""
    with Told():
        store.send(run_id, message)


def resume(store: Store, run: Run, config: RunConfig) -> None:
    """Let a failed or stopped run go on from its checkpoint with the live settings of ``config``."""
    with Told():
        present = store.present_config(run.id)
        changes = [
            Message(kind="set", field=field, value=getattr(config, field))
            for field in LIVE_FIELDS
            if getattr(config, field) != getattr(present, field)
        ]
        store.resume(run.id, changes)


class Told:
    """A block in a callback whose refusal becomes a sentence on the page, as a callback has no place to write."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, LabError):
            st.session_state[PROBLEM] = str(error)
            return True
        return False


def _chosen_run(store: Store) -> Run | None:
    """The run that the address names, or that this browser looked at before it went to another page."""
    if submitted := st.session_state.pop(SUBMITTED, None):
        st.query_params[settings.RUN] = submitted  # what a callback writes into the address does not reach the browser
    run_id = st.query_params.get(settings.RUN) or (None if _addressed() else st.session_state.get(RUN_ID))
    if not run_id:
        return None
    run = store.get(run_id)
    st.session_state[RUN_ID] = run_id
    return run


def _addressed() -> bool:
    """The address names a run or a setting."""
    return bool(st.query_params.keys() - {settings.AXIS, settings.FORM})


def _in_controls(base: RunConfig) -> RunConfig:
    wanted: dict[str, Any] = {field: st.session_state[key(field)] for field in WIDGETS}
    wanted["micro_batch_size"] = wanted["effective_batch_size"] // wanted.pop("accumulation_steps")
    return settings.adjusted(base, wanted)
