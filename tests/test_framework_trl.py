"""TRL's file: what it computes follows from TRL's source and from counting labels by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from accum_core.conformance.cases import Settings
from accum_core.conformance.frameworks import kinds
from accum_core.frameworks import hf_heads, trl_sft
from accum_core.frameworks.contract import Task
from accum_core.frameworks.harness import host

# transformers and TRL warn of their own deprecations, which are theirs to mend.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]


def row(kind: str, case: str):
    (found,) = host.rows("trl_sft", [kind], [case], limit=120)
    return found


@pytest.mark.parametrize("kind", ["llama", "prompt_completion", "packed", "causal_completion"])
def test_each_predicted_token_counts_the_same(kind: str) -> None:
    """A prompt's first label is ignored, and so not counted: then GPT-2 is right too."""
    found = row(kind, "unequal_tokens")
    assert (found.verdict, found.formula) == ("exact", "sum over weight")


def test_gpt2_counts_a_label_too_many_a_sequence() -> None:
    """Eight sequences of 166 tokens have 158 predicted ones: the gradient is 158 / 166 of the right one."""
    assert sum(hf_heads.LENGTHS) == 166
    found = row("causal", "unequal_tokens")
    assert (found.verdict, found.formula) == ("wrong", "sum over labels that are not -100")
    assert found.gradient_error == pytest.approx(8 / 166, rel=1e-4)
    assert found.mended_verdict == "exact"


def test_a_mixtures_loss_beside_the_sum_is_a_mean_over_micro_batches() -> None:
    found = row("mixture", "unequal_tokens")
    assert found.verdict == "wrong"
    assert found.formula == "sum over weight; the loss beside it is the mean of each micro-batch's own"


def test_a_window_of_fewer_micro_batches_than_n_is_right() -> None:
    assert row("llama", "n_above_epoch").verdict == "exact"


def test_one_that_trains_no_module_of_ones_own_is_not_tried_with_one() -> None:
    assert "own" not in kinds("trl_sft") and "own" in kinds("hf_trainer")


@pytest.mark.parametrize(("kind", "counted"), [("llama", 4), ("causal", 6)])
def test_two_micro_batches_of_one_and_three_tokens(kind: str, counted: int, tmp_path: Path) -> None:
    """The sums of one and three predicted tokens over 4; GPT-2's count has the two first tokens as well."""
    made = hf_heads.problem(kind, "unequal_tokens")
    assert made is not None
    samples = [{name: value[:length] for name, value in made.samples[1].items()} for length in (2, 4)]
    model = made.build()
    with torch.no_grad():
        logits = [model(sample["input_ids"][None]).logits[0, :-1] for sample in samples]
    sums = [
        F.cross_entropy(values, sample["labels"][1:], reduction="sum").item()
        for values, sample in zip(logits, samples, strict=True)
    ]
    task = Task(
        settings=Settings(micro_batch_size=1, accumulation_steps=2),
        model=model,
        samples=samples,
        collate=made.collate,
        loss=made.loss,
        total=made.total,
        weight=made.weight,
        folder=tmp_path,
        kind=kind,
    )
    assert trl_sft.train(task).logged == pytest.approx([sum(sums) / counted], rel=1e-5)
