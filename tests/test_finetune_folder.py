"""The folder of a fine-tuning: one process's at a time, whole after a kill, and bound to its model and settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_language import saved, sums, written

from accum_core.engine import Training
from experiments.cli import main
from experiments.cli.run_folder import RunFolder

# What transformers, peft and datasets warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, data, and a run with adapters in ``out``."""
    place = tmp_path_factory.mktemp("begun")
    saved(place / "llama", "llama")
    written(place / "sums.jsonl", sums(10))
    assert begin(place, place / "out") == 0
    return place


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder."""
    out = tmp_path / "out"
    shutil.copytree(begun / "out", out)
    return out


def begin(place: Path, out: Path, *options: str, model: str = "llama", data: str = "sums.jsonl") -> int:
    sizes = ["--context", "48", "--effective", "4", "--micro", "2", "--updates", "2", "--hold-out", "5", "--lora", "2"]
    names = ["--model", str(place / model), "--data", str(place / data), "--out", str(out)]
    return main(["finetune", *names, *sizes, *options])


def resume(out: Path) -> int:
    return main(["finetune", "--resume", str(out)])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error: the sentence."""
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_folder_is_one_processs_at_a_time(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    other = RunFolder(out)
    other.hold("out")
    assert begin(begun, out) == 2
    assert refusal(capsys).startswith(f"--out = '{out}': is in use: another process trains there")
    other.close()
    assert begin(begun, out) == 0
    other.hold("resume")
    assert resume(out) == 2
    assert refusal(capsys).startswith(f"--resume = '{out}': is in use: another process trains there")
    other.close()
    assert resume(out) == 0


def test_what_a_killed_process_left_half_is_no_hindrance(begun: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "lock").touch()
    (out / "settings.part").write_text("{")
    assert begin(begun, out) == 0
    (out / "checkpoint.ptk3j_.part").write_bytes(b"half")
    (out / "model.part").mkdir()
    assert resume(out) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "checkpoint.pt", "lock", "model", "records.jsonl", "settings.json"
    ]  # fmt: skip


def test_a_folder_that_cannot_be_is_refused_before_model_and_text_are_read(
    begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    full = tmp_path / "full"
    full.mkdir()
    (full / "note").touch()
    for out, told in ((tmp_path / "file" / "out", "cannot be"), (full, "holds something already")):
        assert begin(begun, out, model="none", data="none") == 2
        assert (text := refusal(capsys)).startswith(f"--out = '{out}'") and told in text


def test_settings_that_are_no_fine_tunings_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    for change, told in (
        ({"workload": "landcover", "model": "deeplab", "language": None}, "names no language model and text"),
        ({"workload": "landcover", "model": "deeplab"}, "is nothing that landcover reads"),
        ({"updates": "many"}, "is damaged or of another version"),
    ):
        (folder / "settings.json").write_text(json.dumps({**settings, **change}))
        assert resume(folder) == 2
        assert told in refusal(capsys)
    (folder / "settings.json").write_bytes(b"\xff\x00")
    assert resume(folder) == 2
    assert "is damaged or of another version" in refusal(capsys)


def test_each_setting_that_was_changed_is_named_with_what_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    language = settings["language"]
    for change, told in (
        ({"language": {**language, "packed": True}}, "--packed = True: the checkpoint was made with False"),
        ({"language": {**language, "lora_rank": 3}}, "--lora = 3: the checkpoint was made with 2"),
        ({"updates": 9}, "--updates = 9: the checkpoint was made with 2"),
        ({"micro_batch_size": 3}, "--micro = 3: does not divide the effective batch of 4"),
        ({"tail": "drop", "effective_batch_size": 12}, "--effective = 12: is more than the 8 training samples"),
    ):
        (folder / "settings.json").write_text(json.dumps({**settings, **change}))
        assert resume(folder) == 2
        assert refusal(capsys).startswith(told)


def test_a_damaged_run_is_refused_in_one_sentence(
    folder: Path, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = folder / "checkpoint.pt"
    whole = torch.load(checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert resume(folder) == 1
    assert "checkpoint checkpoint.pt cannot be read" in refusal(capsys)
    lacking = {**whole, "model": dict(list(whole["model"].items())[1:])}
    for other in ([1], lacking):
        torch.save(other, checkpoint)
        assert resume(folder) == 1
        assert f"{checkpoint} is no checkpoint of this run, or damaged: start anew." in refusal(capsys)
    torch.save(whole, checkpoint)
    (folder / "records.jsonl").unlink()
    (folder / "records.jsonl").mkdir()
    assert resume(folder) == 1
    assert "lacks records of the 2 updates made" in refusal(capsys)


def test_a_model_that_changed_is_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Adapters are trained for the weights below them, which no checkpoint holds.
    saved(tmp_path / "llama", "llama")
    written(tmp_path / "sums.jsonl", sums(10))
    assert begin(tmp_path, tmp_path / "out") == 0
    (tmp_path / "llama" / "README.md").write_text("For people.")
    assert resume(tmp_path / "out") == 0
    weights = tmp_path / "llama" / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] * 2}, weights, {"format": "pt"})
    assert resume(tmp_path / "out") == 1
    assert f"model {tmp_path / 'llama'}: has changed since the run was begun" in refusal(capsys)


def test_a_window_that_does_not_fit_leaves_a_run_to_go_on_with(
    begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Training._make_update

    def small(self: Training, *args: object) -> object:
        if self.update == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return make(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_make_update", small)
        assert begin(begun, tmp_path / "out", "--save-every", "1") == 1
    assert "Update 2 did not fit into the memory at micro-batch 2: free some and go on by --resume" in refusal(capsys)
    assert resume(tmp_path / "out") == 0
    found, whole = ((place / "records.jsonl").read_text().splitlines() for place in (tmp_path / "out", begun / "out"))
    assert [json.loads(line)["loss"] for line in found] == [json.loads(line)["loss"] for line in whole]
