"""What a fine-tuning says before it starts: the work that is left, its time, and what validates without more memory."""

from __future__ import annotations

import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import saved, sums, written
from torch.profiler import ProfilerActivity, profile

from accum_core.engine import Training, accumulate_gradients
from accum_core.engine.causal import duration
from accum_core.engine.sampling import WindowSampler
from accum_core.engine.workloads import load_with
from accum_core.language_settings import LanguageSettings
from accum_core.records import RunConfig
from experiments.cli.finetuning_needs import micro_batches, needs, time_told, told

# What transformers warns of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """9 updates in windows of 8, 8 and 4 samples; every 4 of them and at the end it validates."""
    place = tmp_path_factory.mktemp("needs")
    saved(place / "gpt2", "gpt2", resid_pdrop=0.1)
    written(place / "sums.jsonl", sums(25))
    language = LanguageSettings(model=str(place / "gpt2"), data=str(place / "sums.jsonl"), context=48, hold_out_every=5)
    named = {"workload": "causal_lm", "model": "pretrained", "language": language, "optimizer": "adamw"}
    sizes = {"effective_batch_size": 8, "micro_batch_size": 2, "updates": 9, "warmup_updates": 0, "validate_every": 4}
    return Training(RunConfig.of(**named, **sizes, schedule="cosine", tail="rescale"))


def samples_of(training: Training) -> Any:
    return load_with("causal_lm", training.config.language)  # type: ignore[arg-type]


def made(training: Training, **settings: Any) -> RunConfig:
    return RunConfig.of(**{**training.config.model_dump(), **settings})


@pytest.mark.parametrize(("effective", "micro"), [(8, 2), (8, 8), (64, 4), (20, 5)])
@pytest.mark.parametrize("updates", [0, 1, 3, 7])
def test_micro_batches_are_counted_as_windows_come(
    training: Training, effective: int, micro: int, updates: int
) -> None:
    config = made(training, effective_batch_size=effective, micro_batch_size=micro)
    sampler = WindowSampler(20, drop_tail=False, seed=0)
    sizes = [len(sampler.next(effective)) for _ in range(updates)]
    # A micro-batch every ``micro`` samples, the last one short.
    assert micro_batches(config, 20, updates) == sum(len(range(0, size, micro)) for size in sizes)


def test_the_time_is_that_of_the_passes_and_validations_left(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a micro-batch takes 3 minutes and a validation 10, it is plain arithmetic."""
    now = [0.0]

    def takes(seconds: float, result: Any) -> Any:
        def function(*args: Any, **options: Any) -> Any:
            now[0] += seconds
            return result(*args, **options)

        return function

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(duration, "accumulate_gradients", takes(180, duration.accumulate_gradients))
    monkeypatch.setattr(training, "validate", takes(600, training.validate))
    # In an epoch 4 + 4 + 2 micro-batches; validated after updates 4, 8 and 9: 30 x 3 + 3 x 10 minutes.
    assert ": 2 hours for 9 updates on cpu." in time_told(training, samples_of(training))
    monkeypatch.setattr(Training, "update", 6)
    # 10 micro-batches, and updates 8 and 9.
    assert ": 50 min for 3 updates on cpu." in time_told(training, samples_of(training))


def test_trying_it_out_leaves_nothing_behind(training: Training) -> None:
    samples = samples_of(training)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    batches = [samples.samples([index]) for index in range(3)]
    assert duration.seconds_a_micro_batch(training.config, training.model, samples.objective, batches) > 0
    assert torch.equal(torch.rand(3), expected)
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in training.model.state_dict().items())


def test_an_effective_batch_above_the_data_is_told_as_what_it_is(training: Training) -> None:
    samples = samples_of(training)
    config = made(training, effective_batch_size=64, updates=3)
    text = told(config, samples, needs(config, training, samples))
    # 20 samples at a time, in micro-batches of 2.
    assert "3 updates of N = 10, 3 epochs. An update takes all 20 samples, fewer than --effective 64." in text


def test_validation_reads_no_more_at_a_time_than_the_longest_sample(training: Training) -> None:
    samples = samples_of(training)
    longest = samples.longest_samples(1)[0].shape[-1]
    # One token a byte, the end, and all but the last are read.
    assert longest == max(len(row["prompt"] + row["completion"]) for row in sums(25))
    batches = [targets for _, targets in samples._batches()]
    assert all(targets.numel() <= longest for targets in batches)
    assert sum(len(targets) for targets in batches) == 5
    learnt = sum(len(row["completion"]) + 1 for row in sums(25)[4::5])
    assert sum(int((targets != -100).sum()) for targets in batches) == learnt


def test_a_held_out_text_that_is_the_longest_is_what_the_memory_is_measured_on(tmp_path: Path) -> None:
    saved(tmp_path / "gpt2", "gpt2")
    written(tmp_path / "data.jsonl", [{"text": "ab"}, {"text": "abcdefgh"}])
    language = LanguageSettings(model=str(tmp_path / "gpt2"), data=str(tmp_path / "data.jsonl"), context=48)
    assert load_with("causal_lm", language).longest_samples(1)[0].shape == (1, 2, 8)  # type: ignore[attr-defined]


@pytest.mark.parametrize("lora_rank", [None, 3], ids=["whole", "adapters"])
def test_the_memory_told_is_what_torchs_profiler_sees_at_the_peak(tmp_path: Path, lora_rank: int | None) -> None:
    saved(tmp_path / "llama", "llama", hidden_size=32, vocab_size=1000)
    written(tmp_path / "data.jsonl", [{"text": "abcdefgh" * 5} for _ in range(9)])
    places = {"model": str(tmp_path / "llama"), "data": str(tmp_path / "data.jsonl")}
    language = LanguageSettings(**places, context=48, lora_rank=lora_rank)
    named = {"workload": "causal_lm", "model": "pretrained", "language": language, "optimizer": "adamw"}
    sizes = {"effective_batch_size": 8, "micro_batch_size": 4, "updates": 1, "warmup_updates": 0}
    training = Training(RunConfig.of(**named, **sizes, schedule="cosine", tail="rescale"))
    samples = samples_of(training)
    found = needs(training.config, training, samples)
    window = [samples.longest_samples(4)] * 2
    accumulate_gradients(training.model, window, samples.objective)  # makes what stays
    training.model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        accumulate_gradients(training.model, window, samples.objective)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak = max(accumulate(event.nbytes() for event in events))
    assert found.at(4) - found.optimizer == pytest.approx(peak, rel=0.03)
