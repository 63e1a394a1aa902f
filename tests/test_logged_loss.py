"""The instrument that says what a loop would log, against PyTorch's own cross-entropy of the same passes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watched_windows import watch, window

from accum_core.engine import train
from accum_core.engine.instrument import load_instruments
from accum_core.records import RunConfig


def measured(norm: str) -> tuple[dict[str, float | None], nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    seen = window(norm)
    before = copy.deepcopy(seen.model)
    instrument = load_instruments(("logged_loss",))["logged_loss"]
    watch(instrument, seen)
    return instrument.measure(seen), before, list(seen.micro_batches)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_both_losses_are_pytorchs(norm: str) -> None:
    """The window has micro-batches of 3, 2 and 2 samples, some of whose labels are ignored."""
    found, model, micro_batches = measured(norm)
    logits = [model(inputs) for inputs, _ in micro_batches]
    targets = [targets for _, targets in micro_batches]
    whole = F.cross_entropy(torch.cat(logits), torch.cat(targets)).item()
    means = [F.cross_entropy(*pair).item() for pair in zip(logits, targets, strict=True)]
    assert found["exact"] == pytest.approx(whole, rel=1e-12)
    assert found["mean_of_means"] == pytest.approx(sum(means) / 3, rel=1e-12)
    assert abs(whole - sum(means) / 3) > 1e-3  # the two are told apart


def test_passes_in_step_have_no_loss_of_their_own() -> None:
    found, _, _ = measured("sync_batch")
    assert found == {"exact": None, "mean_of_means": None}


def test_a_run_records_it_where_it_is_asked_for() -> None:
    config = RunConfig.of(
        workload="pydoc_paragraphs", model="gpt", norm="layer", effective_batch_size=4, micro_batch_size=1, updates=2,
        warmup_updates=0, measure_every=2, extra_instruments=("logged_loss",),
    )  # fmt: skip
    first, second = train(config)
    assert first.instruments["logged_loss"]["exact"] == pytest.approx(first.loss, rel=1e-5)
    assert "logged_loss" not in second.instruments
    (plain, *_) = train(config.model_copy(update={"extra_instruments": ()}))
    assert "logged_loss" not in plain.instruments
    assert plain.loss == first.loss
