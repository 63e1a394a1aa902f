"""What the page of papers says. Pure: no Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from accum_core.experiment import Experiment
from accum_core.measures import MEASURES
from accum_core.quantities import number
from accum_ui.readings import duration
from accum_ui.reproduce.choice import takes_norm
from accum_ui.reproduce.plan import Plan, Planned, workers
from accum_ui.reproduce.varied import Varied
from accum_ui.words import norm_title
from experiments.report import drawing
from experiments.report.findings import Judged

TITLE: Final = "Which large-batch results hold on a small machine?"
CUT: Final = (
    "The committed result is of the present code. Of a long run it keeps only some records, too few for the queue, so "
    "such a run counts as missing here."
)
MOST_IN_SHORT: Final = 230  # letters of a paper's figures on a card


def command(experiment: Experiment) -> str:
    """What computes and commits an experiment's bench."""
    return f"python -m experiments run {experiment.name} --commit-results"


def theirs(experiment: Experiment) -> str:
    """The first published figure that has numbers, or the first statement, in short, with its authors where they are
    not those of the first paper; "" without any."""
    with_numbers = [paper for paper in experiment.published if paper.series]
    for paper in (*with_numbers, *experiment.published):
        text, authors = drawing.in_short(paper), paper.citation.partition(" (")[0]
        short = text if len(text) <= MOST_IN_SHORT else text[:MOST_IN_SHORT].rsplit(" ", 1)[0] + " …"
        return short if authors == experiment.papers[0].authors else f"{short} ({authors})"
    return ""


def paper(experiment: Experiment) -> str:
    """The first paper by authors, year and identifier, and how many more."""
    first, *more = experiment.papers
    return f"{first.authors} {first.year}, {first.identifier}" + (f", and {len(more)} more" if more else "")


def day(when: str) -> str:
    """A date for people, as a result's environment holds it."""
    try:
        return f"{date.fromisoformat(when[:10]):%-d %B %Y}"
    except ValueError:
        return when


def run_button(items: Sequence[Planned], total: int, seconds: float | None, *, again: bool = False) -> str:
    """The button that queues what is missing, or all of it once more."""
    missing = "missing run" if len(items) == 1 else f"{len(items)} missing runs"
    which = f"the {total} runs" if len(items) == total else f"the {missing}"
    return f"Run {which}{' again' * again}" + (f": about {duration(seconds)}" if seconds is not None else "")


def kept(plan: Plan) -> str:
    """How many runs need not be computed; "" for none."""
    done = len(plan.of("done"))
    return f"{done} of {len(plan.items)} runs {'is' if done == 1 else 'are'} done and kept. " if done else ""


def beside_committed(here: Sequence[Judged], committed: Sequence[Judged]) -> str:
    """Whether this machine's runs say what the committed ones say, in a sentence or two."""
    theirs = {one.claim.id: one for one in committed}
    pairs = [(one, theirs[one.claim.id]) for one in here if one.claim.id in theirs]
    others = [(ours, other) for ours, other in pairs if ours.verdict.verdict != other.verdict.verdict]
    equal = [value == other.effects.get(seed) for ours, other in pairs for seed, value in ours.effects.items()]
    numbers = "Every effect of every seed is equal to the committed one to the last bit."
    if not all(equal):
        numbers = (
            f"Effects, one a claim and seed, that differ from the committed ones: {equal.count(False)} of {len(equal)}."
        )
    if not others:
        return f"All verdicts ({len(pairs)} of {len(pairs)}) are those of the committed result. {numbers}"
    told = " ".join(
        f"Here {ours.verdict.verdict}, there {other.verdict.verdict}: {ours.claim.statement}" for ours, other in others
    )
    return f"Verdicts that are not those of the committed result: {len(others)} of {len(pairs)}. {told} {numbers}"


def estimate_line(items: Sequence[Planned], seconds: float | None) -> str:
    """What the estimate rests on."""
    if seconds is None:
        return "No committed run has recorded how long these take, so there is no estimate."
    side = workers(items)
    return (
        f"Estimated from the seconds that the committed runs recorded, {side} at a time"
        if side > 1
        else "Estimated from the seconds that the committed runs recorded, one after another"
    ) + "; validations and measurements come on top, and this machine may be slower or faster."


def progress_line(plan: Plan, left: float | None) -> str:
    """The line beside the progress bar."""
    done = len(plan.of("done"))
    parts = [f"{done} of {len(plan.items)} runs done"]
    waiting = len(plan.of("queued"))
    parts += [f"{waiting} waiting"] if waiting else []
    parts += [
        f"{item.label}, seed {item.seed}: {item.state}, update {item.run.update} of {item.run.total}"
        for item in plan.of("running", "paused")
        if item.run is not None
    ]
    return " · ".join(parts) + (f" · about {duration(left)} left" if left is not None else "")


def share(plan: Plan) -> float:
    """Updates made, of all, in [0, 1]."""
    made = sum(item.run.update for item in plan.items if item.run is not None and item.state != "missing")
    return min(1.0, made / sum(item.config.updates for item in plan.items))


def shown(metric: str, value: float | None) -> str:
    """A metric of a run for people."""
    if value is None:
        return "–"
    return MEASURES[metric].shown(value) if metric in MEASURES else number(value)


def metric_title(metric: str) -> str:
    """A metric's name for people."""
    return MEASURES[metric].title if metric in MEASURES else metric.replace("_", " ")


def varied_title(label: str, one: Varied, base_norm: str) -> str:
    """What the varied run is."""
    config = one.config
    split = f"at {config.accumulation_steps} × {config.micro_batch_size}"
    if not takes_norm(config):
        return f"{label} {split}"
    norm = norm_title(config.norm) + ("" if config.norm == base_norm else f" instead of {norm_title(base_norm)}")
    return f"{label} with {norm} {split}"


def state(one: Varied) -> str:
    """Where a varied run stands."""
    if one.run is None or one.run.state == "stopped":
        return "not run"
    if one.run.state == "running":
        return f"running, update {one.run.update} of {one.run.total}"
    return one.run.state
