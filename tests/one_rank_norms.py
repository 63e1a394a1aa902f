"""What one rank of test_norm_ranks.py measures: a training that changes to norms with parameters of their own."""

from __future__ import annotations

from typing import Any

from over_ranks import Found, main
from tiny_workload import TinyWorkload, tiny

from accum_core.engine import Training, training
from accum_core.records import Message

# Between them are updates that no instrument watches: only these are exchanged on the way.
CHANGES = {3: "evonorm_s0", 6: "filter_response", 9: "group"}
SETTINGS: dict[str, Any] = {"micro_batch_size": 1, "updates": 10, "measure_every": 100}


class Script:
    """Controls that change the norm; every rank hears the same."""

    def take(self, next_update: int, wait: bool) -> list[Message]:
        norm = CHANGES.get(next_update)
        return [] if norm is None else [Message(kind="set", field="norm", value=norm)]


def measure(rank: int, world: int) -> Found:
    """Losses, and every weight after the last update."""
    training.load = lambda name: TinyWorkload()
    made = Training(tiny(**SETTINGS))
    losses = [record.loss for record in made.run(Script())]
    return {"losses": losses, "weights": {name: p.flatten().tolist() for name, p in made.model.named_parameters()}}


if __name__ == "__main__":
    main(measure)
