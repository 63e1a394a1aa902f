"""The exports for frameworks train the run's own weights, or do what they say instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import execute, printed, recorded
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine.training import Training
from accum_core.engine.workloads import load
from accum_core.errors import SettingError
from accum_core.export import FORMS, Form, departures, source
from accum_core.records import RunConfig, Validation

FRAMEWORKS: tuple[Form, ...] = ("trainer", "lightning", "accelerate")
SHORT = {"effective_batch_size": 8, "micro_batch_size": 2, "updates": 4, "warmup_updates": 2, "precision": "float64"}
DIGITS = {**SHORT, "workload": "digits", "model": "conv", "norm": "group"}
TEXT = {**SHORT, "workload": "pydoc_paragraphs", "model": "gpt", "updates": 2, "warmup_updates": 1}
HEADS = {**SHORT, "workload": "landcover_recipe", "model": "lraspp_mobilenet_v3_large", "effective_batch_size": 4}

pytestmark = [
    pytest.mark.usefixtures("one_thread", "offline"),
    # Advice and deprecations of the frameworks' own, on loaders without workers and a CPU among others.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, where a framework may leave one of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def trained(form: Form, config: RunConfig) -> tuple[nn.Module, str]:
    names, output = execute(source(form, config))
    model: nn.Module = names["model"]
    return model, output


def distance(model: nn.Module, other: nn.Module) -> float:
    """norm(w - w') / norm(w') over all parameters and statistics."""
    found, wanted = (torch.cat([v.double().flatten() for v in m.state_dict().values()]) for m in (model, other))
    return ((found - wanted).norm() / wanted.norm()).item()


def check(form: Form, config: RunConfig) -> None:
    """The export's weights, losses and validation are the run's."""
    training = Training(config)
    losses, quality = recorded(list(training.run()))
    model, output = trained(form, config)
    assert distance(model, training.model) <= 1e-10
    found, validated = printed(output)
    assert validated == pytest.approx(quality, rel=1e-10)
    said = " ".join(departures(form, config))
    if "The loss that it prints" not in said:
        assert found == pytest.approx(losses, rel=1e-6 if "added up in float32" in said else 1e-10)


@pytest.mark.parametrize("form", FRAMEWORKS)
@pytest.mark.parametrize(
    "settings",
    [
        {**DIGITS, "clip_norm": 0.1, "nesterov": True},
        {**DIGITS, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "cosine", "weight_decay_spares": "norms"},
        {**DIGITS, "reduction": "sum_of_means", "learning_rate": 1e-3},
        {**DIGITS, "reduction": "sum", "learning_rate": 1e-3},
        {**TEXT, "clip_norm": 1.0},
        {**TEXT, "activation_checkpointing": True, "schedule": "constant"},
    ],
    ids=str,
)
def test_export_trains_the_runs_weights(form: Form, settings: dict[str, Any]) -> None:
    check(form, RunConfig.of(**settings))


def test_export_of_a_network_with_heads_trains_the_runs_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Validation(miou=0.5, pixel_accuracy=0.0, class_iou=(), loss=0.0)  # the real one takes seconds
    monkeypatch.setattr(load("landcover_recipe"), "validate", lambda model: nothing)
    check("accelerate", RunConfig.of(**{**HEADS, "updates": 2, "warmup_updates": 1}))


@pytest.mark.parametrize("form", FRAMEWORKS)
@pytest.mark.parametrize("workload", ["sft", "sft_packed"])
def test_export_of_fine_tuning_trains_the_runs_weights(
    monkeypatch: pytest.MonkeyPatch, form: Form, workload: str
) -> None:
    monkeypatch.setattr(load(workload), "validate", lambda model: Validation(token_loss=0.5, loss=0.5))
    tuned = {"optimizer": "adamw", "learning_rate": 1e-3, "beta2": 0.95, "clip_norm": 1.0, "schedule": "cosine"}
    sizes = {"effective_batch_size": 4, "updates": 2, "warmup_updates": 1}
    check(form, RunConfig.of(**{**SHORT, **sizes, **tuned, "workload": workload, "model": "tiny_lm"}))


@pytest.mark.parametrize(
    ("form", "reduction", "tail"),
    [
        *((form, "exact", "rescale") for form in FRAMEWORKS),
        ("lightning", "exact", "divide_by_n"),
        ("accelerate", "exact", "divide_by_n"),
        ("trainer", "mean_of_means", "rescale"),
        ("lightning", "mean_of_means", "divide_by_n"),
        ("accelerate", "mean_of_means", "divide_by_n"),
    ],
)
def test_export_treats_the_tail_as_the_run_where_it_says_nothing_else(
    monkeypatch: pytest.MonkeyPatch, form: Form, reduction: str, tail: str
) -> None:
    # 21 samples make two windows of 8 and a tail of 2 + 2 + 1, which is update 3.
    monkeypatch.setattr(load("digits"), "num_samples", 21)
    config = RunConfig.of(**{**DIGITS, "reduction": reduction, "tail": tail})
    assert not any("tail" in sentence for sentence in departures(form, config))
    training = Training(config)
    list(training.run())
    model, _ = trained(form, config)
    assert distance(model, training.model) <= 1e-10


@pytest.mark.parametrize(
    ("form", "tail", "done"),
    [
        ("trainer", "divide_by_n", "rescale"),
        ("lightning", "rescale", "divide_by_n"),
        ("accelerate", "rescale", "divide_by_n"),
    ],
)
def test_export_does_with_another_tail_what_it_says(
    monkeypatch: pytest.MonkeyPatch, form: Form, tail: str, done: str
) -> None:
    monkeypatch.setattr(load("digits"), "num_samples", 21)
    settings = {**DIGITS, "reduction": "mean_of_means"}
    asked, other = (RunConfig.of(**{**settings, "tail": rule}) for rule in (tail, done))
    assert any(f"does as {done} says" in sentence for sentence in departures(form, asked))
    model, _ = trained(form, asked)
    training = Training(other)
    list(training.run())
    assert distance(model, training.model) <= 1e-10
    training = Training(asked)
    list(training.run())
    assert distance(model, training.model) > 1e-6


def after_one_step(config: RunConfig, *, of_means: bool) -> Tensor:
    """The weights after plain SGD's first step on the first window of paragraphs, from its definition.

    Args:
        of_means: (1 / N) times the sum of each micro-batch's mean, and not one mean over the window's tokens.
    """
    workload = load(config.workload)
    torch.manual_seed(config.seed * 1_000_003)
    model = workload.build_model(config.model).double()
    order = np.random.default_rng((config.seed, 0)).permutation(workload.num_samples)[: config.effective_batch_size]
    size = config.micro_batch_size if of_means else config.effective_batch_size
    means = []
    for start in range(0, len(order), size):
        inputs, targets = workload.samples(order[start : start + size].tolist())
        means.append(F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100))
    gradients = torch.autograd.grad(torch.stack(means).mean(), list(model.parameters()))
    rate = config.learning_rate
    steps = zip(model.parameters(), gradients, strict=True)
    return torch.cat([(weight - rate * gradient).detach().flatten() for weight, gradient in steps])


@pytest.mark.parametrize("form", FRAMEWORKS)
def test_own_division_of_unequal_tokens_is_the_mean_of_means(form: Form) -> None:
    one_step = {"updates": 1, "warmup_updates": 0, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    config = RunConfig.of(**{**TEXT, **one_step, "reduction": "mean_of_means", "learning_rate": 0.5})
    assert any("mean of the micro-batches' means" in sentence for sentence in departures(form, config))
    model, _ = trained(form, config)
    found = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    theirs, right = (after_one_step(config, of_means=of_means) for of_means in (True, False))
    assert (found - theirs).norm() <= 1e-12 * theirs.norm()
    assert (found - right).norm() > 1e-3 * right.norm()
    model, _ = trained(form, RunConfig.of(**{**config.model_dump(), "reduction": "exact"}))
    found = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    assert (found - right).norm() <= 1e-12 * right.norm()


@pytest.mark.parametrize("form", FRAMEWORKS)
def test_sync_batch_becomes_batch_norm_of_a_micro_batch_and_says_so(form: Form) -> None:
    asked, plain = (RunConfig.of(**{**DIGITS, "norm": norm}) for norm in ("sync_batch", "batch"))
    assert any(sentence.startswith("sync_batch is not carried over") for sentence in departures(form, asked))
    training = Training(plain)
    list(training.run())
    model, _ = trained(form, asked)
    assert distance(model, training.model) <= 1e-10


def test_a_growing_batch_is_refused_by_all_but_the_plain_loop() -> None:
    growing = {"schedule": "step", "milestones": (2,), "decay": "batch", "decay_factor": 0.5}
    config = RunConfig.of(**{**DIGITS, **growing})
    for form in FORMS:
        if form in FRAMEWORKS:
            with pytest.raises(SettingError, match=r"^decay = 'batch': .*export the script or the notebook"):
                source(form, config)
        else:
            assert source(form, config)


def test_an_unknown_loss_is_refused_by_frameworks_and_told_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    from accum_core import catalogue

    entries = catalogue.entries("workloads")
    other = {**entries, "digits": {name: value for name, value in entries["digits"].items() if name != "LOSS"}}
    before = catalogue.entries
    monkeypatch.setattr(catalogue, "entries", lambda kind: other if kind == "workloads" else before(kind))
    config = RunConfig.of(**DIGITS)
    with pytest.raises(SettingError, match=r"^workload = 'digits': says nothing of its loss"):
        source("trainer", config)
    assert any("sums and weights" in sentence for sentence in departures("script", config))
    _, output = execute(source("script", config))
    assert printed(output) == recorded(list(Training(config).run()))
