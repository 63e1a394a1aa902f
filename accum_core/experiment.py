"""What a paper's file in ``experiments`` holds: a question, claims fixed beforehand, presets and how to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accum_core.claims import Claim
from accum_core.errors import SettingError
from accum_core.records import RunConfig


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
        title, paper, question: for people.
        claims: fixed before the confirming seeds are run.
        presets: ``smoke`` (seconds, for tests) and ``bench`` (2 cores, under 10 minutes) at least, ``full`` for the
            paper's own recipe.
        measure: from one seed's final metrics by label to its effects by name; an effect whose runs that seed has
            not is left out, and the claim rests on the other seeds.
        published: figures that the experiment answers to.
    """

    name: str
    title: str
    paper: str
    question: str
    claims: tuple[Claim, ...]
    presets: Mapping[str, Preset]
    measure: Callable[[Mapping[str, Mapping[str, float]]], Mapping[str, float]]
    published: tuple[Published, ...] = field(default=())

    def preset(self, name: str) -> Preset:
        """The preset of that name.

        Raises:
            SettingError: naming the presets there are.
        """
        if name not in self.presets:
            raise SettingError("preset", name, f"{self.name} has {', '.join(self.presets)}")
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

    def verdicts(self, preset: str, metrics: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
        """One verdict a claim of the preset, from one mapping (label -> final metrics) a seed."""
        effects = [self.measure(of_seed) for of_seed in metrics]
        return [
            claim.judge([found[claim.effect] for found in effects if claim.effect in found]).model_dump()
            for claim in self.claims_of(preset)
        ]
