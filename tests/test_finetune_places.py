"""Where a fine-tuning's model and data lie: what is missing or damaged is named, and what changed is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_language import saved, sums, written
from transformers import AutoModelForCausalLM

from accum_core.engine.causal import places, pretrained
from accum_core.errors import DataError, SettingError
from experiments.cli import main

# What transformers, peft and datasets warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(saved(tmp_path / "llama", "llama"))


def finetune(model: Path | str, data: Path | str, out: Path, *options: str) -> int:
    sizes = ["--context", "48", "--effective", "4", "--updates", "2", "--hold-out", "5"]
    return main(["finetune", "--model", str(model), "--data", str(data), "--out", str(out), *sizes, *options])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error: the sentence."""
    return capsys.readouterr().err.strip().splitlines()[-1]


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def with_own_code(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "config.json").write_text(json.dumps({**settings, **own}))
    (folder / "own.py").write_text("raise SystemExit('was run')")


def with_a_number_that_is_none(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (without_tokenizer, "the folder has no tokenizer"),
        (with_own_code, "contains custom code"),
        (with_a_number_that_is_none, "gives logits that are not finite"),
    ],
)
def test_a_damaged_model_is_named(
    model: Path, tmp_path: Path, damage: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(model)
    assert finetune(model, written(tmp_path / "sums.jsonl", sums(10)), tmp_path / "out") in (1, 2)
    assert told in refusal(capsys)


def test_a_name_of_a_file_is_asked_of_no_hub(model: Path) -> None:
    with pytest.raises(DataError, match=r"^data chats.jsonl: there is no such file or folder"):
        pretrained.load_rows("chats.jsonl")
    with pytest.raises(DataError, match=r"config.json: is a file: name the folder that holds it"):
        places.model_digest(str(model / "config.json"))


def test_a_context_that_is_too_long_is_refused_without_the_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    pretrained.check_context(str(model), 64)
    with pytest.raises(SettingError, match=r"^context = 65: is more than the 64 tokens"):
        pretrained.check_context(str(model), 65)


def test_a_folder_of_data_is_named_by_its_fault_and_known_by_its_rows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data, out = tmp_path / "set", tmp_path / "out"
    data.mkdir()
    (data / "train.jsonl").write_text('{"text": "a"}\nb\n')
    assert finetune(model, data, out) == 1
    assert "JSON" in refusal(capsys)
    written(data / "train.jsonl", sums(10))
    assert finetune(model, data, out) == 0
    assert main(["finetune", "--resume", str(out)]) == 0
    written(data / "train.jsonl", [*sums(9), {"prompt": "9 plus 9 is ", "completion": "19"}])
    assert main(["finetune", "--resume", str(out)]) == 1
    assert f"data {data}: has changed since the run was begun: put it back" in refusal(capsys)


def test_a_model_of_the_hub_is_read_at_the_commit_that_the_run_was_begun_with(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache as huggingface_hub lays it out: https://huggingface.co/docs/huggingface_hub/guides/manage-cache."""
    kept, first, second = tmp_path / "cache" / "models--one--tiny", "1" * 40, "2" * 40
    shutil.copytree(model, kept / "snapshots" / first)
    network = AutoModelForCausalLM.from_pretrained(model)
    network.lm_head.weight.data.mul_(2)
    shutil.copytree(model, kept / "snapshots" / second)
    network.save_pretrained(kept / "snapshots" / second)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(first)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    data = written(tmp_path / "sums.jsonl", sums(10))
    assert finetune("one/tiny", data, tmp_path / "out", "--lora", "2") == 0
    (kept / "refs" / "main").write_text(second)
    assert places.model_digest("one/tiny") == second
    shutil.rmtree(kept / "snapshots" / second)
    assert main(["finetune", "--resume", str(tmp_path / "out")]) == 0
