"""What a paper's file in ``experiments`` holds: a question, claims fixed beforehand, presets, measures and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accum_core.claims import Claim, VerdictWord
from accum_core.errors import SettingError
from accum_core.records import RunConfig, RunResult

SeedRuns = Mapping[str, RunResult]
"""One seed's runs by label."""
Points = Sequence[tuple[float, float]]
Drawn = Mapping[str, Mapping[int, Points]]
"""A figure's lines: name -> seed -> points (x, y)."""


@dataclass(frozen=True, slots=True)
class Paper:
    """What an experiment answers to.

    Args:
        authors, title: as a citation has them ("Goyal et al.").
        identifier: "arXiv 1706.02677", or where else it is to be found.
        place: section, table or figure of the claim.
    """

    authors: str
    year: int
    title: str
    identifier: str
    place: str = ""

    @property
    def citation(self) -> str:
        """In one line."""
        return f"{self.authors} ({self.year}), {self.title}, {self.identifier}{self.place and ', '}{self.place}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a protocol: what the paper does, and what the bench does."""

    what: str
    theirs: str
    ours: str


@dataclass(frozen=True, slots=True)
class Figure:
    """What to draw of an experiment's runs: a thin line for each seed, their mean and its interval.

    Args:
        key: unique in the experiment.
        x_label, y_label: with units.
        lines: from the runs by seed and label to what is drawn. Seeds of one line that share their x have a mean there.
        finding: the title, one sentence made from what is drawn.
        log_x, log_y: logarithmic axes.
    """

    key: str
    x_label: str
    y_label: str
    lines: Callable[[Mapping[int, SeedRuns]], Drawn]
    finding: Callable[[Drawn], str]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Preset:
    """A size of an experiment.

    Args:
        seeds: the seeds that confirm the claims; none of them chose the settings.
        configs: the runs of one seed, by the label that ``Experiment.measure`` knows them by.
        summary: what it takes, in one sentence.
        claims: those that it judges, where they are not the experiment's.
        long: hours or days; time and memory are then estimated from a few updates before it starts.
    """

    seeds: tuple[int, ...]
    configs: Callable[[int], Mapping[str, RunConfig]]
    summary: str
    claims: tuple[Claim, ...] = ()
    long: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """A figure from a paper, on other data than ours: shown beside ours and marked as theirs."""

    key: str
    citation: str
    statement: str
    x_label: str
    y_label: str
    series: Mapping[str, tuple[tuple[float, float], ...]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment; each file of ``experiments`` defines one as ``EXPERIMENT``.

    Args:
        name: the file's name.
        title, question: for people.
        papers: what it answers to, the first one first of all.
        claims: fixed before the confirming seeds are run.
        presets: ``smoke`` (seconds, for tests) and ``bench`` (2 cores, under 10 minutes) at least, ``full`` for the
            paper's own recipe.
        measure: from one seed's runs by label to its effects by name; an effect whose runs that seed has not is left
            out, and the claim rests on the other seeds.
        published: figures that the experiment answers to.
        protocol: the paper's beside ours.
        chosen: how the settings and thresholds were found: how many were tried, and on which seeds.
        figures: what is drawn of its runs.
        remarks: what we think of a verdict, by claim and by the verdict that it is meant for.
    """

    name: str
    title: str
    question: str
    papers: tuple[Paper, ...]
    claims: tuple[Claim, ...]
    presets: Mapping[str, Preset]
    measure: Callable[[SeedRuns], Mapping[str, float]]
    published: tuple[Published, ...] = field(default=())
    protocol: tuple[Difference, ...] = field(default=())
    chosen: str = ""
    figures: tuple[Figure, ...] = field(default=())
    remarks: Mapping[str, Mapping[VerdictWord, str]] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Authors, year and title of every paper, in one line."""
        return "; ".join(f"{paper.authors} ({paper.year}), {paper.title}" for paper in self.papers)

    def preset(self, name: str) -> Preset:
        """The preset of that name.

        Raises:
            SettingError: naming the presets there are.
        """
        if name not in self.presets:
            raise SettingError("preset", name, f"is no preset of {self.name}; use one of {', '.join(self.presets)}")
        return self.presets[name]

    def describe(self) -> dict[str, Any]:
        """The experiment as ``python -m experiments list --json`` prints it."""
        return {
            "name": self.name,
            "title": self.title,
            "paper": self.paper,
            "question": self.question,
            "presets": list(self.presets),
            "claims": [{"id": claim.id, "statement": claim.statement} for claim in self.claims],
        }

    def claims_of(self, preset: str) -> tuple[Claim, ...]:
        """What a preset judges.

        Raises:
            SettingError: for an unknown preset.
        """
        return self.preset(preset).claims or self.claims

    def verdicts(self, preset: str, runs: Sequence[SeedRuns]) -> list[dict[str, Any]]:
        """One verdict a claim of the preset, from the runs of each seed."""
        effects = [self.measure(of_seed) for of_seed in runs]
        return [
            claim.judge([found[claim.effect] for found in effects if claim.effect in found]).model_dump()
            for claim in self.claims_of(preset)
        ]
