"""What the harness hands to a framework, and what it asks back.

A framework's file has the literal constants ``NAME`` (short and stable, as results and the command line call it),
``TITLE`` (as its makers write it), ``DISTRIBUTION`` (what is installed; its version stands beside each result) and
``ORDER``, and a function ``train(task) -> Outcome`` that trains the task's network as the framework's documentation
tells its users to, with the framework's own loop. Its source is shown to readers, so it holds what a user writes and
nothing else.

What else it may have, all literals but for the functions:

- ``KINDS = {kind: title}``: kinds of module, head or loader of its own, beside ``own``, which is every framework's: a
  module of the user's with a loss of the user's. Then also ``problem(kind, case) -> Problem | None``
  (``harness.problem``); None where the case says nothing about the kind. A case's name is that of ``cases.CASES``.
- ``EXPLANATIONS = {case: sentence}``: why it does what it does where that is not right.
- ``REMARKS = {case: sentence}``: what its users should know where it is right.
- ``MENDS = {case: sentence}``: the option or code that mends it, and ``train_mended(task) -> Outcome`` with it, so that
  each mend is measured.
- ``DUTIES = (case, ...)``: what its documentation leaves to the user's own code. Where ``train`` is wrong and
  ``train_mended`` exact, the verdict is then ``user's duty`` and not ``wrong``.
- ``COUNTS = {name: function}``: other counts of a batch by which it may divide; each becomes a candidate formula.
- ``DEFECTS = ((title, sentence, script), ...)``: what looks like a defect of theirs; in ``FILE_defects.py`` beside it
  where they are many.
- ``OWN = False``: for a framework that trains no module of the user's own; then it has ``KINDS``.
- ``VERSION``: for a recipe, which is not installed: what was read.

A key ``"kind/case"`` goes before ``"kind/*"``, which holds for every case of a kind, and that before ``"case"``, which
holds for every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from accum_core.conformance.cases import Settings

Sample = Mapping[str, Tensor]
"""One sample as a data set gives it: ``inputs [...]`` and ``labels [...]`` without a batch dimension."""
Batch = dict[str, Tensor]
"""Collated samples: the same names with a batch dimension ``[M, ...]``, padded where samples differ in length."""


@dataclass(frozen=True, slots=True)
class Task:
    """One training, as a framework's user would set it up.

    Attributes:
        settings: the numbers that decide it.
        model: new, with its initial weights, in the case's type (float64 but for bf16); ``model(inputs)`` gives logits,
            or, for a kind of the framework's own, what that kind gives.
        samples: in the order in which an epoch shows them, which the framework must not shuffle. Under two ranks, all
            of them: dealing them out is the framework's part.
        collate: makes a batch of samples; what a ``DataLoader`` takes as ``collate_fn``.
        loss: what a user writes: the mean loss of one micro-batch's logits and labels, a scalar.
        total: the same loss summed and not divided, for those who divide by what the window holds.
        weight: what the mean divides by, from labels ``[M, ...]`` alone (valid labels, or their class weights).
        folder: empty, for checkpoints and logs.
        rank: of this process, among ``settings.world_size``; torch.distributed (gloo) can be initialised by the
            framework from the environment variables of torchrun, which are set.
        kind: ``own``, or one of the file's ``KINDS``.
        case: name of the case, for what a file does for one case alone.
    """

    settings: Settings
    model: nn.Module
    samples: Sequence[Sample]
    collate: Callable[[Sequence[Sample]], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    total: Callable[[Tensor, Tensor], Tensor]
    weight: Callable[[Tensor], float]
    folder: Path
    rank: int = 0
    kind: str = "own"
    case: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training left that the harness cannot see by itself.

    The harness reads the weights from ``task.model``, and updates and rates from the torch optimizers that stepped.

    Attributes:
        logged: the training losses that the framework logged, in order, one a window where it logs so; empty where it
            logs none by itself.
        weights: for a framework whose network is not the task's: its weights by the names of the task's.
        updates, final_lr: for a framework whose optimizer is not torch's.
    """

    logged: Sequence[float] = ()
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    updates: int | None = None
    final_lr: float | None = None
