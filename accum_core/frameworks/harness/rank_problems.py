"""The problems of the kind ``ranks``: a module and a loss of the user's on two ranks, beyond the case ``two_ranks``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem

# As many micro-batches in a window as on one rank, but for the schedule, whose updates are then fewer; the ragged last
# one is cut so that both ranks pass as many micro-batches.
ON_RANKS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "equal": {"accumulation_steps": 2},
        "ragged": {"accumulation_steps": 2, "micro_batch_size": 3},
        "short_window": {"accumulation_steps": 2},
        "iterable": {"accumulation_steps": 2},
        "clipping": {"accumulation_steps": 2},
        "schedule": {},
    }
)


def rank_problem(case: str) -> Problem | None:
    """A case's problem for two ranks; None for a case that has nothing to ask there."""
    if case not in ON_RANKS:
        return None
    own = own_problem(case)
    return replace(own, settings=replace(own.settings, world_size=2, **ON_RANKS[case]))
