"""Papers, one file each: a question, claims with thresholds fixed beforehand, and the runs that answer them.

A new paper is a new file here that defines ``EXPERIMENT`` (``accum_core.experiment.Experiment``) under its own name;
the command line, the pages and the contract tests find it. Experiments never import one another.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from accum_core.errors import LabError, SettingError
from accum_core.experiment import Experiment

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results"


@cache
def discover() -> Mapping[str, Experiment]:
    """Every experiment of this folder, by name, in the order of their names.

    Raises:
        LabError: for a file that defines no ``EXPERIMENT``, or one under another name than the file's.
    """
    found: dict[str, Experiment] = {}
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        experiment = getattr(importlib.import_module(f"experiments.{path.stem}"), "EXPERIMENT", None)
        if not isinstance(experiment, Experiment) or experiment.name != path.stem:
            raise LabError(f"{path.name}: must define EXPERIMENT, an Experiment whose name is {path.stem!r}.")
        found[path.stem] = experiment
    return MappingProxyType(found)


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        SettingError: naming the experiments there are.
    """
    experiments = discover()
    if name not in experiments:
        raise SettingError("name", name, f"is no experiment; use one of {', '.join(experiments)}")
    return experiments[name]


def result_path(name: str) -> Path:
    """Where an experiment's committed result lies (``accum_core.result_file.ResultFile``)."""
    return RESULTS / f"{name}.jsonl"
