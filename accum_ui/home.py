"""The parts of the first page: the newest answer with its provenance, verdicts, the papers' figures, and the way on."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

import streamlit as st

from accum_core import palette
from accum_core.claims import Verdict
from accum_core.errors import LabError
from accum_core.experiment import Experiment
from accum_core.provenance import code_version
from accum_core.quantities import quantity
from accum_core.records import Environment, RunConfig
from accum_core.result_file import ResultFile
from accum_ui import figures, results, settings
from accum_ui.navigation import PAGES, page_files
from accum_ui.reproduce import reading
from accum_ui.reproduce.choice import Choice, address
from accum_ui.words import model_title, norm_title
from experiments import discover, find, result_path
from experiments.report.words import counts

STYLE: Final = Path(__file__).with_name("home.css")
CHART: Final = {"displayModeBar": False}
REPRODUCE: Final = PAGES / "5_Reproduce.py"
COLUMNS: Final = 2


def show(name: str) -> None:
    """The committed result of an experiment and what belongs to it, then a card for each of the others.

    Args:
        name: the file name of the experiment that the page begins with.
    """
    st.html(STYLE)
    try:
        experiment = find(name)
    except LabError as error:  # the file of an experiment is none
        st.error(str(error), icon=":material/error:")
        return
    result = _answer(name)
    origin = st.empty()
    _way_on(watched(result), experiment, stored=result is not None)
    if result is not None:
        _verdicts(result, experiment)
    _published(experiment)
    _others(name)
    _pages()
    if result is not None:  # last, as it takes the longest: the present code is read for its version
        origin.caption(provenance(result.environment, result.seeds, name))


def _answer(name: str) -> ResultFile | None:
    """The charts of a committed result, or what to do without one."""
    try:
        result = _read(name, _written(name))
        table = [] if result is None else results.rows(result)
        parts = [(part, results.splits(part)) for part in results.parts(table)]
    except LabError as error:
        st.error(str(error), icon=":material/error:")
        return None
    if result is None:
        st.info(f"There is no committed result yet: `python -m experiments run {name} --commit-results` makes it.")
        return None
    for part, splits in parts:
        network = model_title(part[0].model) if len(parts) > 1 else ""
        key = f"home_answer_{name}_{part[0].model}"
        with st.container(border=True, key=key):
            _panel(figures.split_panel(part, splits, dark=_dark(), network=network), 2, key)
            st.markdown(figures.reason(splits))
    st.download_button(
        "The runs' numbers (CSV)",
        lambda: results.to_csv(table),
        f"{name}.csv",
        "text/csv",
        icon=":material/download:",
        on_click="ignore",
        key=f"home_csv_{name}",
    )
    return result


def _others(name: str) -> None:
    """A card for each experiment but the named one."""
    others = [experiment for experiment in discover().values() if experiment.name != name]
    if others:
        st.header("More papers, measured again", anchor=False)
    for row in [others[place : place + COLUMNS] for place in range(0, len(others), COLUMNS)]:
        for column, experiment in zip(st.columns(COLUMNS, gap="small"), row, strict=False):
            with column.container(border=True, key=f"home_card_{experiment.name}", height="stretch"):
                _card(experiment)


def _card(experiment: Experiment) -> None:
    """Question and verdicts in short; the page of papers has the rest."""
    st.markdown(f"### {experiment.title}\n{experiment.question}")
    try:
        found = reading.header(experiment.name)
        st.markdown(f"**{counts([verdict.verdict for verdict in found.claims])}**" if found else "Not measured yet.")
    except LabError as error:
        st.error(str(error), icon=":material/error:")
    _details(experiment, "Claims and figures")


def _details(experiment: Experiment, label: str) -> None:
    chosen = address(Choice(experiment.name))
    st.page_link(REPRODUCE, label=label, icon=":material/arrow_forward:", query_params=chosen)


def watched(result: ResultFile | None) -> list[RunConfig]:
    """The runs to look at in the Lab: the finest split of each norm that was run split and whole, of the first seed.

    Without a result, the Lab's own settings with BatchNorm and with GroupNorm.
    """
    if result is None:
        return [RunConfig.of(norm=norm) for norm in ("batch", "group")]
    finest = {
        (part[0].model, split.norm, split.micro_batch_size)
        for part in results.parts(results.rows(result))
        for split in results.splits(part)
    }
    first = [run.result.config for run in result.runs if run.seed == result.seeds[0]]
    return [config for config in first if (config.model, config.norm, config.micro_batch_size) in finest]


def provenance(environment: Environment, seeds: Sequence[int], name: str) -> str:
    """Where a result comes from, and whether the present code is the code that made it."""
    threads = "1 thread" if environment.threads == 1 else f"{environment.threads} threads"
    text = (
        f"Computed on {environment.date} by code version {environment.code_version} with seeds "
        f"{', '.join(map(str, seeds))} on {environment.processor} ({environment.platform}), {threads} a run, "
        f"torch {environment.torch}."
    )
    if environment.code_version == code_version():
        return f"{text} That is the present code."
    return (
        f"{text} The present code is version {code_version()}: "
        f"`python -m experiments run {name}` tells whether the answer still stands."
    )


def verdict_row(verdict: Verdict, unit: str, *, dark: bool) -> str:
    """One claim as a table row of HTML."""
    color = palette.VERDICT_COLORS[verdict.verdict].on(dark)
    return (
        f'<tr><th scope="row">{escape(verdict.statement)}</th>'
        f'<td style="color: {color}; font-weight: 700">{verdict.verdict}</td>'
        f'<td data-label="Effect">{quantity(unit, verdict.effect)}</td>'
        f'<td data-label="95 % interval">{quantity(unit, verdict.low, verdict.high)}</td>'
        f'<td data-label="Seeds">{verdict.num_seeds}</td></tr>'
    )


def _verdicts(result: ResultFile, experiment: Experiment) -> None:
    held = sum(verdict.verdict == "supported" for verdict in result.claims)
    st.header(f"{held} of {len(result.claims)} claims are supported", anchor=False)
    st.markdown("Each claim stood with its threshold before the seeds that judge it were run.")
    units = {claim.id: claim.unit for claim in experiment.claims}
    body = "".join(verdict_row(verdict, units.get(verdict.id, ""), dark=_dark()) for verdict in result.claims)
    names = "".join(f'<th scope="col">{name}</th>' for name in ("Claim", "Verdict", "Effect", "95 % interval", "Seeds"))
    st.html(f'<table class="verdicts"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>')
    _details(experiment, "Every figure, and how to measure it again")


def _published(experiment: Experiment) -> None:
    st.header("What others published", anchor=False)
    st.markdown(
        "These figures are theirs, on other data and with other networks. They stand here for the direction and the "
        "size of the effect, not for its value."
    )
    drawn = [paper for paper in experiment.published if paper.series]
    for column, paper in zip(st.columns(max(1, len(drawn)), gap="medium"), drawn, strict=False):
        key = f"home_{experiment.name}_{paper.key}"
        with column.container(border=True, key=key):
            _panel(figures.published_panel(paper, dark=_dark()), 3, key)
            st.caption(f"{paper.statement} {paper.citation}.")
    for paper in experiment.published:
        if not paper.series:
            st.caption(f"{paper.statement} {paper.citation}.")


def _way_on(configs: Sequence[RunConfig], experiment: Experiment, *, stored: bool) -> None:
    """Links to runs in the Lab.

    Args:
        stored: they are a committed result's, which the store holds under the id that their settings give.
    """
    st.header("See it happen", anchor=False)
    several = len({config.model for config in configs}) > 1
    st.markdown(
        "The Lab shows each of these runs beside its reference, one batch of the same samples. Press Run there to "
        "train, and change N, norm or learning rate while it trains."
    )
    with st.container(horizontal=True, key=f"home_way_on_{experiment.name}"):
        for config in configs:
            st.page_link(
                PAGES / "1_Lab.py",
                label=f"Watch {norm_title(config.norm)} at {config.accumulation_steps} × {config.micro_batch_size}"
                + (f" in the {model_title(config.model)}" if several else ""),
                icon=":material/play_arrow:",
                query_params=settings.address(config, RunConfig.of(), config.digest()[:12] if stored else None),
            )


def _pages() -> None:
    st.header("The pages", anchor=False)
    for file in page_files()[1:]:
        # A link's text is cut on a narrow screen, where a caption wraps.
        st.page_link(file.path, label=f"**{file.title}**")
        st.caption(file.summary)


def _panel(panel: figures.Panel, level: int, key: str) -> None:
    st.markdown(f"{'#' * level} {panel.title}")
    st.caption(panel.subtitle)
    st.plotly_chart(panel.figure, theme=None, config=CHART, alt=panel.alt, key=f"{key}_chart")


def _dark() -> bool:
    return st.context.theme.type == "dark"


def _written(name: str) -> int:
    path = result_path(name)
    return path.stat().st_mtime_ns if path.exists() else 0


@st.cache_resource(max_entries=2, show_spinner=False)
def _read(name: str, written: int) -> ResultFile | None:
    """Read once a version of the file, which its time of writing tells apart."""
    return results.read(name)
