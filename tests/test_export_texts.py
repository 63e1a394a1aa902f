"""What exports hold: every setting or a sentence on it, imports that are used, code formatted as ours is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accum_core import catalogue
from accum_core.errors import SettingError
from accum_core.export import FORMS, Form, departures, file_name, source
from accum_core.export.facts import LOSSES, loss_kind
from accum_core.records import RunConfig

ROOT = Path(__file__).parent.parent
NOT_NUMBERS = {"validate_every", "measure_every", "extra_instruments"}
"""Settings that no loss depends on."""
PLAIN = ("script", "notebook")
STEP = {"schedule": "step", "milestones": (50,), "decay_factor": 0.5}
OWN = {"workload": "causal_lm", "model": "pretrained", "language": {"model": "m", "data": "d.jsonl"}}
CHANGED: dict[str, tuple[dict[str, Any], Any]] = {
    "workload": ({}, "landcover_ignored"),
    "model": ({}, "unet"),
    "norm": ({}, "group"),
    "norm_groups": ({"norm": "group"}, 4),
    "norm_channels_per_group": ({"norm": "group"}, 4),
    "ghost_batch_size": ({"norm": "ghost_batch"}, 1),
    "renorm_r_max": ({"norm": "batch_renorm"}, 2.0),
    "renorm_d_max": ({"norm": "batch_renorm"}, 2.0),
    "renorm_warmup": ({"norm": "batch_renorm"}, 7),
    "offload": ({"norm": "sync_batch"}, "none"),
    "effective_batch_size": ({}, 64),
    "micro_batch_size": ({}, 4),
    "reduction": ({}, "mean_of_means"),
    "tail": ({}, "rescale"),
    "updates": ({}, 151),
    "learning_rate": ({}, 0.04),
    "warmup_updates": ({}, 21),
    "momentum": ({}, 0.8),
    "nesterov": ({}, True),
    "weight_decay": ({}, 0.5),
    "weight_decay_spares": ({}, "norms"),
    "seed": ({}, 1),
    "precision": ({}, "float64"),
    "optimizer": ({}, "adamw"),
    "beta2": ({"optimizer": "adamw"}, 0.99),
    "schedule": ({}, "cosine"),
    "milestones": (STEP, (50, 70)),
    "decay_factor": (STEP, 0.1),
    "decay": (STEP, "batch"),
    "largest_batch_size": ({**STEP, "milestones": (50, 70), "decay": "batch"}, 64),
    "scaling": ({"base_batch_size": 8}, "linear"),
    "base_batch_size": ({"scaling": "linear"}, 16),
    "clip_norm": ({}, 1.0),
    "clip_value": ({}, 1.0),
    "average_decay": ({}, 0.9),
    "accumulate_in_float32": ({"precision": "bfloat16"}, False),
    "non_finite": ({}, "skip_window"),
    "shrink_on_out_of_memory": ({}, True),
    "activation_checkpointing": ({}, True),
    "exchange_every_micro_batch": ({}, True),
    "language": (OWN, {"model": "m", "data": "d.jsonl", "packed": True}),
}
"""Each setting: what it needs beside it, and another value."""
SAMPLE: tuple[dict[str, Any], ...] = (
    {},
    {"norm": "sync_batch", "precision": "float16_autocast", "clip_norm": 0.1, "workload": "landcover_recipe",
     "model": "deeplabv3_resnet50"},
    {**STEP, "decay": "batch", "norm": "batch_corrected", "tail": "rescale", "workload": "landcover_ignored",
     "non_finite": "skip_window"},
    {"workload": "pydoc_paragraphs", "model": "gpt", "optimizer": "adamw", "scaling": "half_life",
     "weight_decay_spares": "norms_and_biases", "schedule": "cosine", "precision": "bfloat16_autocast",
     "clip_norm": 1.0, "average_decay": 0.9},
    {"reduction": "mean_of_means", "tail": "rescale", "precision": "bfloat16", "activation_checkpointing": True,
     "norm": "group", "weight_decay_spares": "norms", "clip_norm": 1.0, "shrink_on_out_of_memory": True},
    {"reduction": "sum", "norm": "sync_batch", "nesterov": True, "schedule": "linear", "workload": "digits",
     "model": "conv", "precision": "float64"},
    {"workload": "landcover_recipe", "model": "lraspp_mobilenet_v3_large", "reduction": "sum_of_means",
     "schedule": "constant", "warmup_updates": 0},
    OWN,
)  # fmt: skip


def python(form: Form, config: RunConfig) -> str:
    """The code of an export; a notebook's cells one after another."""
    text = source(form, config)
    if form != "notebook":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n\n\n".join("".join(cell["source"]) for cell in cells) + "\n"


def test_every_setting_has_a_changed_value_here() -> None:
    assert set(CHANGED) | NOT_NUMBERS == set(RunConfig.model_fields)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("field", CHANGED)
def test_every_setting_is_in_the_export_or_told_or_refused(form: Form, field: str) -> None:
    """Two runs that differ in one setting alone have different texts: what is not carried over is told in them."""
    beside, value = CHANGED[field]
    before, after = RunConfig.of(**beside), RunConfig.of(**{**beside, field: value})
    if form not in PLAIN and (field in ("decay", "language") or before.decay == "batch"):
        with pytest.raises(SettingError, match="export the script or the notebook"):
            source(form, after)
        return
    text = source(form, after)
    if field == "offload" and form not in PLAIN:
        assert "sync_batch is not carried over" in text
        return
    assert text != source(form, before)


def test_live_changes_are_told() -> None:
    for form in FORMS:
        assert any("live changes" in sentence for sentence in departures(form, RunConfig.of(), altered=True))
        assert "live changes are not carried over" in source(form, RunConfig.of(), altered=True).replace("\n", " ")


def test_what_a_plain_run_has_is_carried_over_whole() -> None:
    assert all(departures(form, RunConfig.of()) == () for form in FORMS)


def test_departures_stand_in_the_export() -> None:
    for form in FORMS:
        config = RunConfig.of(shrink_on_out_of_memory=True, average_decay=0.9)
        text = " ".join(source(form, config).split())
        assert departures(form, config) and all(sentence in text for sentence in departures(form, config))


def test_exports_are_formatted_and_import_what_they_use(tmp_path: Path) -> None:
    for number, settings in enumerate(SAMPLE):
        config = RunConfig.of(**settings)
        for form in FORMS:
            try:
                (tmp_path / f"{form}_{number}.py").write_text(python(form, config), encoding="utf-8")
            except SettingError:
                continue
    assert len(list(tmp_path.iterdir())) > 4 * len(SAMPLE) - 8
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--config", "line-length=120"]
    rules = ["--select", "F,E,W,I", "--config", f"src=['{ROOT}']"]
    for command in (["check", *options, *rules], ["format", *options, "--diff"]):
        done = subprocess.run([*ruff, *command, "."], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_files_are_named_by_norm_split_and_form() -> None:
    config = RunConfig.of(norm="group", micro_batch_size=4)
    assert [file_name(form, config) for form in FORMS] == [
        "group_8x4.py",
        "group_8x4.ipynb",
        "group_8x4_trainer.py",
        "group_8x4_lightning.py",
        "group_8x4_accelerate.py",
    ]


NEED_DATA = (
    "cifar10",
    "coco_voc",
    "imagenet_folder",
    "mnist",
    "oxford_pet",
    "text_file",
    "text_file_paragraphs",
    "voc",
)
OFFLINE = [
    name
    for name, constants in catalogue.entries("workloads").items()
    if not name.startswith(NEED_DATA) and "LOSS" in constants
]


@pytest.mark.parametrize("workload", OFFLINE)
def test_the_loss_that_a_workload_names_is_its_objective(workload: str) -> None:
    from accum_core.engine.objectives import CrossEntropy, HeadsCrossEntropy
    from accum_core.engine.workloads import load, objective_of

    model = catalogue.entries("workloads")[workload]["MODELS"][0]
    loaded = load(workload)
    objective = objective_of(loaded, model)
    kind = loss_kind(RunConfig.of(workload=workload, model=model))
    if kind == "heads":
        assert isinstance(objective, HeadsCrossEntropy) and set(objective.coefficients) <= {"out", "aux"}
    else:
        assert type(objective) is CrossEntropy and objective.ignore_index == -100 and objective.class_weights is None
        _, targets = loaded.samples(range(64))
        assert bool((targets == -100).any()) == (kind == "valid" and workload != "pydoc_paragraphs_equal")


def test_every_named_loss_is_known() -> None:
    named = {constants["LOSS"] for constants in catalogue.entries("workloads").values() if "LOSS" in constants}
    assert named == set(LOSSES)
