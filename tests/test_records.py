"""Configurations and records: round trip through JSON (NaN and infinity included), identity, and refusals."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accum_core.errors import SettingError
from accum_core.records import (
    Change,
    Environment,
    Message,
    Record,
    RunConfig,
    RunResult,
    Term,
    UpdateRecord,
    Validation,
    summarise,
)

numbers = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(0, 2**40)
fields = st.sampled_from(["accumulation_steps", "norm", "learning_rate"])
values = st.one_of(st.integers(-100, 2**31), numbers, st.text(max_size=8))
terms = st.builds(Term, loss=numbers, weight=numbers)
validations = st.builds(
    Validation,
    miou=st.none() | numbers,
    pixel_accuracy=st.none() | numbers,
    error=st.none() | numbers,
    class_iou=st.lists(numbers, max_size=4).map(tuple),
    loss=numbers,
    pictures=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)
changes = st.builds(Change, field=fields, old=values, new=values, refused=st.none() | st.text(max_size=9))
measured = st.one_of(numbers, st.integers(), st.text(max_size=5), st.lists(numbers, max_size=3))
updates = st.builds(
    UpdateRecord,
    update=counts,
    epoch=counts,
    samples=counts,
    micro_batches=counts,
    seconds=numbers,
    samples_per_second=numbers,
    loss=numbers,
    terms=st.dictionaries(st.text(max_size=5), terms, max_size=2),
    learning_rate=numbers,
    micro_batch_size=counts,
    accumulation_steps=counts,
    norm=st.text(max_size=5),
    gradient_norm=numbers,
    instruments=st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), measured, max_size=2)),
    validation=st.none() | validations,
    changes=st.lists(changes, max_size=2).map(tuple),
)
configs = st.builds(
    lambda micro, steps, **rest: RunConfig(effective_batch_size=micro * steps, micro_batch_size=micro, **rest),
    micro=st.integers(1, 64),
    steps=st.integers(1, 64),
    norm=st.sampled_from(["batch", "group"]),
    learning_rate=st.floats(1e-8, 100),
    weight_decay=st.floats(0, 1),
    seed=st.integers(0, 2**31 - 1),
    precision=st.sampled_from(["float32", "float64"]),
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, where NaN equals NaN."""
    if isinstance(a, Record):
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=60)
@given(st.one_of(updates, validations, changes, configs))
def test_records_come_back_from_json_as_they_went(record: Record):
    assert same(type(record).model_validate_json(record.model_dump_json()), record)


def record(update: int = 1, **rest: Any) -> UpdateRecord:
    """A record with made-up numbers."""
    base = dict(
        update=update, epoch=0, samples=32 * update, micro_batches=16 * update, seconds=0.5, samples_per_second=64.0,
        loss=1.5, terms={"pixels": Term(loss=1.5, weight=9.0)}, learning_rate=0.01, micro_batch_size=2,
        accumulation_steps=16, norm="batch", gradient_norm=0.7,
    )  # fmt: skip
    return UpdateRecord(**{**base, **rest})


ENVIRONMENT = Environment(
    code_version="0", python="3.11", torch="2", platform="here", processor="a", device="cpu", threads=1, date="today",
)  # fmt: skip


def test_a_whole_result_comes_back_with_its_not_a_numbers():
    validation = Validation(miou=0.5, pixel_accuracy=0.75, class_iou=(0.5, math.nan), loss=math.inf)
    result = RunResult(
        config=RunConfig(),
        environment=ENVIRONMENT,
        records=(record(1, loss=math.nan), record(2, validation=validation)),
    )
    text = result.model_dump_json()
    assert same(RunResult.model_validate_json(text), result)
    assert math.isnan(json.loads(text)["records"][0]["loss"])  # Python's own reader takes the constants too


def test_final_metrics_are_the_last_validation_and_medians_over_updates():
    errors = [0.4, 9.0, 0.2, 0.7]
    records = [
        record(k, instruments={"gradient_error": {"relative_error": error, "cosine": 1 - error, "by_layer": {}}})
        for k, error in enumerate(errors, 1)
    ]
    quality = [Validation(miou=x, pixel_accuracy=x / 2, class_iou=(x,), loss=1 - x) for x in (0.9, 0.5)]
    records += [record(5, validation=quality[0]), record(6, validation=quality[1]), record(7)]
    expected = {
        "miou": 0.5,
        "pixel_accuracy": 0.25,
        "loss": 0.5,
        "gradient_error": statistics.median(errors),
        "cosine": statistics.median(1 - error for error in errors),
    }
    assert summarise(records) == pytest.approx(expected)
    assert RunResult(config=RunConfig(), environment=ENVIRONMENT, records=tuple(records)).metrics == summarise(records)
    assert summarise([record()]) == {}


def test_a_validation_without_the_newer_measures_is_still_read():
    """As runs were stored before there was any workload but maps."""
    text = '{"miou":0.5,"pixel_accuracy":0.75,"class_iou":[0.5,NaN],"loss":1.25,"pictures":["a"]}'
    found = Validation.model_validate_json(text)
    expected = Validation(miou=0.5, pixel_accuracy=0.75, class_iou=(0.5, math.nan), loss=1.25, pictures=("a",))
    assert same(found, expected) and found.error is None


def test_final_metrics_hold_what_the_task_has():
    assert summarise([record(1, validation=Validation(error=0.25, loss=0.5))]) == {"error": 0.25, "loss": 0.5}


def test_records_cannot_be_altered():
    with pytest.raises(ValueError, match="frozen"):
        record().loss = 0.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="lossy"):
        record(lossy=1)


BAD_SETTINGS = [
    ("workload", "moon"),
    ("model", "resnet9000"),
    ("norm", "bach"),
    ("norm_groups", 0),
    ("effective_batch_size", 0),
    ("effective_batch_size", 2.5),
    ("micro_batch_size", 0),
    ("micro_batch_size", -1),
    ("micro_batch_size", 3),
    ("micro_batch_size", "two"),
    ("reduction", "average"),
    ("tail", "pad"),
    ("updates", 0),
    ("learning_rate", 0.0),
    ("learning_rate", -0.1),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("warmup_updates", -1),
    ("warmup_updates", 150),
    ("momentum", 1.0),
    ("weight_decay", -1e-4),
    ("seed", -1),
    ("seed", 2**31),
    ("validate_every", 0),
    ("measure_every", 0),
    ("precision", "float16"),
    ("batch_size", 32),
]


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS)
def test_refusals_are_one_sentence_with_the_field_and_the_value(field: str, value: object):
    with pytest.raises(SettingError) as refusal:
        RunConfig.of(**{field: value})
    assert refusal.value.field == field
    text = str(refusal.value)
    assert text.startswith(f"{field} = {value!r}: ")
    assert text.endswith(".") and "\n" not in text


def test_an_effective_batch_smaller_than_the_micro_batch_is_refused_with_both():
    with pytest.raises(SettingError, match=r"effective_batch_size = 4: .*8"):
        RunConfig.of(effective_batch_size=4, micro_batch_size=8)


@pytest.mark.parametrize(("field", "name"), [("workload", "landcover"), ("norm", "group"), ("reduction", "exact")])
def test_a_refused_name_offers_those_there_are(field: str, name: str):
    with pytest.raises(SettingError, match=name):
        RunConfig.of(**{field: "nothing"})


@pytest.mark.parametrize(("steps", "micro"), [(1, 32), (2, 16), (16, 2), (32, 1)])
def test_changing_n_keeps_the_effective_batch(steps: int, micro: int):
    before = RunConfig.of(effective_batch_size=32, micro_batch_size=8)
    changed = before.changed("accumulation_steps", steps)
    assert (changed.effective_batch_size, changed.micro_batch_size, changed.accumulation_steps) == (32, micro, steps)
    assert changed.model_copy(update={"micro_batch_size": 8}) == before


def test_norm_and_rate_change_alone():
    config = RunConfig.of()
    assert config.changed("norm", "group") == config.model_copy(update={"norm": "group"})
    assert config.changed("learning_rate", 0.5) == config.model_copy(update={"learning_rate": 0.5})
    assert config.learning_rate != 0.5 and config.norm == "batch"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accumulation_steps", 0),
        ("accumulation_steps", 3),
        ("accumulation_steps", 64),
        ("accumulation_steps", 2.0),
        ("accumulation_steps", "2"),
        ("accumulation_steps", True),
        ("norm", "bach"),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("learning_rate", "fast"),
    ],
)
def test_a_live_change_that_cannot_be_is_refused_by_field_and_value(field: Any, value: object):
    with pytest.raises(SettingError) as refusal:
        RunConfig.of().changed(field, value)
    assert str(refusal.value).startswith(f"{field} = {value!r}: ")


def test_only_live_settings_change():
    with pytest.raises(SettingError, match="seed"):
        RunConfig.of().changed("seed", 4)  # type: ignore[arg-type]


def test_the_reference_is_one_true_batch_divided_exactly():
    config = RunConfig.of(micro_batch_size=2, reduction="mean_of_means", norm="group", seed=5)
    reference = config.reference()
    assert (reference.micro_batch_size, reference.accumulation_steps, reference.reduction) == (32, 1, "exact")
    differing = {name for name in RunConfig.model_fields if getattr(config, name) != getattr(reference, name)}
    assert differing == {"micro_batch_size", "reduction"}
    assert reference.reference() == reference


OTHER_VALUES = {
    "norm": "group", "norm_groups": 4, "norm_channels_per_group": 4, "ghost_batch_size": 4, "renorm_r_max": 2.0,
    "renorm_d_max": 2.0, "renorm_warmup": 7, "offload": "none", "effective_batch_size": 64, "micro_batch_size": 4,
    "reduction": "sum", "tail": "rescale", "updates": 151, "learning_rate": 0.031, "warmup_updates": 21,
    "momentum": 0.5, "weight_decay": 0.0, "seed": 1, "validate_every": 14, "measure_every": 9, "precision": "float64",
    "model": "unet", "workload": "other", "optimizer": "adamw", "beta2": 0.95, "schedule": "cosine", "nesterov": True,
    "milestones": (60,), "decay_factor": 0.5, "decay": "batch", "scaling": "linear", "base_batch_size": 16,
    "clip_norm": 1.0, "clip_value": 0.5, "average_decay": 0.99, "largest_batch_size": 64, "non_finite": "skip_window",
    "accumulate_in_float32": False, "shrink_on_out_of_memory": True, "activation_checkpointing": True,
    "exchange_every_micro_batch": True, "extra_instruments": ("sample_noise",), "weight_decay_spares": "norms",
    "language": RunConfig.model_validate({"language": {"model": "folder", "data": "text.jsonl"}}).language,
}  # fmt: skip


def test_every_setting_is_part_of_a_runs_identity():
    assert OTHER_VALUES.keys() == RunConfig.model_fields.keys()
    digests = {RunConfig().model_copy(update={name: value}).digest() for name, value in OTHER_VALUES.items()}
    assert len(digests | {RunConfig().digest()}) == len(OTHER_VALUES) + 1


@given(configs)
def test_equal_settings_have_equal_digests_through_json(config: RunConfig):
    assert RunConfig.model_validate_json(config.model_dump_json()).digest() == config.digest()


def test_digest_does_not_depend_on_the_process():
    program = "from accum_core.records import RunConfig; print(RunConfig(learning_rate=1, seed=3).digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert printed == RunConfig(seed=3, learning_rate=1.0).digest()
    assert len(printed) == 64


@given(st.builds(Message, kind=st.just("set"), field=fields, value=values))
def test_messages_come_back_from_json(message: Message):
    assert same(Message.model_validate_json(message.model_dump_json()), message)
