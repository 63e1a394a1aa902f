"""The options of ``train``: each sets its field, and a bad value is one sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest

from accum_core.records import RunConfig
from experiments.cli import main
from experiments.cli.train import train_command

CHOSEN: list[tuple[str, str, Any]] = [
    ("--optimizer adamw --beta2 0.95", "beta2", 0.95),
    ("--optimizer adamw", "optimizer", "adamw"),
    ("--nesterov", "nesterov", True),
    ("--decay-spares norms", "weight_decay_spares", "norms"),
    ("--schedule cosine", "schedule", "cosine"),
    ("--schedule step --milestones 60,120", "milestones", (60, 120)),
    ("--schedule step --milestones 60 --decay-factor 0.2", "decay_factor", 0.2),
    ("--schedule step --milestones 60 --decay-factor 0.5 --decay batch", "decay", "batch"),
    (
        "--schedule step --milestones 60 --decay-factor 0.5 --decay batch --largest-batch 64",
        "largest_batch_size",
        64,
    ),
    ("--scaling linear", "scaling", "linear"),
    ("--scaling square_root --base-batch 256", "base_batch_size", 256),
    ("--clip-norm 1.5", "clip_norm", 1.5),
    ("--clip-value 0.1", "clip_value", 0.1),
    ("--precision bfloat16_autocast", "precision", "bfloat16_autocast"),
    ("--average-decay 0.99", "average_decay", 0.99),
    ("--accumulate-in-float32", "accumulate_in_float32", True),
    ("--accumulate-in-parameters", "accumulate_in_float32", False),
    ("--non-finite skip_window", "non_finite", "skip_window"),
    ("--shrink-on-out-of-memory", "shrink_on_out_of_memory", True),
    ("--activation-checkpointing", "activation_checkpointing", True),
    ("--exchange-every-micro-batch", "exchange_every_micro_batch", True),
    ("--instrument sample_noise", "extra_instruments", ("sample_noise",)),
]


class Seen(Exception):
    """Carries the configuration that a training was to be made of."""


@pytest.fixture(autouse=True)
def _no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def training(config: RunConfig, device: str | None) -> None:
        raise Seen(config)

    monkeypatch.setattr("accum_core.engine.Training", training)


def configured(arguments: str) -> RunConfig:
    with pytest.raises(Seen) as seen:
        main(["train", *arguments.split()])
    (config,) = seen.value.args
    return config


def test_without_options_a_run_has_the_defaults():
    assert configured("") == RunConfig.of()


@pytest.mark.parametrize(("arguments", "field", "value"), CHOSEN)
def test_an_option_sets_its_field(arguments: str, field: str, value: Any):
    assert getattr(configured(arguments), field) == value


def test_options_set_fields_of_a_run():
    """No option is left over, and every setting of the optimizer step and the passes has one."""
    names = {parameter.name for parameter in train_command.params} - {"threads", "json_path"}
    assert names <= RunConfig.model_fields.keys()
    assert {field for _, field, _ in CHOSEN} <= names


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--instrument noise", ["--instrument = 'noise'", "sample_noise"]),
        ("--optimizer adam", ["--optimizer = 'adam'", "sgd"]),
        ("--beta2 1", ["--beta2 = 1.0", "less than 1"]),
        ("--optimizer adamw --nesterov", ["--nesterov = True", "sgd"]),
        ("--decay-spares all", ["--decay-spares = 'all'", "norms"]),
        ("--schedule stairs", ["--schedule = 'stairs'", "cosine"]),
        ("--schedule step", ["--milestones = ()", "at least one"]),
        ("--milestones 60", ["--milestones = (60,)", "step"]),
        ("--schedule step --milestones 120,60", ["--milestones = (120, 60)", "rise"]),
        ("--schedule step --milestones 60;120", ["--milestones = '60;120'", "separated by commas"]),
        ("--decay-factor 2", ["--decay-factor = 2.0", "less than 1"]),
        ("--decay batch", ["--decay = 'batch'", "step"]),
        ("--largest-batch 64", ["--largest-batch = 64", "decay = batch"]),
        ("--decay both", ["--decay = 'both'", "rate"]),
        ("--scaling cubic", ["--scaling = 'cubic'", "linear"]),
        ("--scaling half_life", ["--scaling = 'half_life'", "adamw"]),
        ("--base-batch 0", ["--base-batch = 0", "greater than or equal to 1"]),
        ("--clip-norm 0", ["--clip-norm = 0.0", "greater than 0"]),
        ("--clip-value inf", ["--clip-value = inf", "finite"]),
        ("--precision half", ["--precision = 'half'", "bfloat16"]),
        ("--average-decay 1", ["--average-decay = 1.0", "less than 1"]),
        ("--non-finite ignore", ["--non-finite = 'ignore'", "skip_window"]),
        ("--accumulate-in-bfloat16", ["--accumulate-in-bfloat16", "--help"]),
        ("--clip-norm one", ["--clip-norm", "'one'", "--help"]),
    ],
)
def test_a_bad_value_is_one_sentence_and_code_2(arguments: str, told: list[str], capfd: pytest.CaptureFixture[str]):
    assert main(["train", *arguments.split()]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.endswith(".\n")
    assert all(part in captured.err for part in told), captured.err
