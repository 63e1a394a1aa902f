"""``finetune`` as a user types it: what it leaves, what it refuses, and how it goes on."""

from __future__ import annotations

import json
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import PLAIN, saved, sums, written
from transformers import AutoModelForCausalLM, AutoTokenizer

from accum_core.engine.causal import memory
from experiments.cli import main
from experiments.cli.finetuning import finetune
from experiments.cli.run_folder import RunFolder

# What transformers, peft and datasets warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finetune")
    saved(place / "llama", "llama")
    saved(place / "chatty", "gpt2", PLAIN)
    written(place / "sums.jsonl", sums(25))
    return place


def short(folder: Path, out: Path, *options: str, model: str = "llama", data: str = "sums.jsonl") -> int:
    sizes = ["--context", "48", "--effective", "8", "--micro", "2", "--lr", "0.01", "--hold-out", "5"]
    return main(
        ["finetune", "--model", str(folder / model), "--data", str(folder / data), "--out", str(out), *sizes, *options]
    )


def loss_of(network: Any, tokenizer: Any, rows: list[dict[str, str]]) -> float:
    """Mean over the completions' tokens and ends, by transformers alone."""
    total, count = 0.0, 0
    for row in rows:
        prompt, whole = (tokenizer(text)["input_ids"] for text in (row["prompt"], row["prompt"] + row["completion"]))
        tokens = torch.tensor([[*whole, tokenizer.eos_token_id]])
        labels = tokens.clone()
        labels[:, : len(prompt)] = -100
        with torch.no_grad():
            weight = tokens.shape[1] - len(prompt)
            total += network(input_ids=tokens, labels=labels).loss.item() * weight
            count += weight
    return total / count


def test_the_model_that_is_left_has_the_loss_that_was_told(folder: Path, tmp_path: Path) -> None:
    out, result = tmp_path / "out", tmp_path / "result.json"
    assert short(folder, out, "--epochs", "2", "--json", str(result)) == 0
    found = json.loads(result.read_text())
    network = AutoModelForCausalLM.from_pretrained(out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    held_out = sums(25)[4::5]
    assert found["metrics"]["token_loss"] == pytest.approx(loss_of(network, tokenizer, held_out), rel=1e-5)
    # 20 texts in windows of 8, 8 and 4, twice; each completion has an end.
    learnt = sum(len(row["completion"]) + 1 for index, row in enumerate(sums(25), 1) if index % 5)
    assert [record["samples"] for record in found["records"]] == [8, 16, 20, 28, 36, 40]
    assert found["tokens"] == 2 * learnt
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["records"][-1]["seconds"])
    assert found["model"] == str(out / "model") and found["peak_bytes"] > 0
    assert [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()] == found["records"]


def test_adapters_are_left_for_peft(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    out, result = tmp_path / "out", tmp_path / "result.json"
    assert short(folder, out, "--lora", "4", "--packed", "--updates", "4", "--json", str(result)) == 0
    base = AutoModelForCausalLM.from_pretrained(folder / "llama")
    held_out, tokenizer = sums(25)[4::5], AutoTokenizer.from_pretrained(folder / "llama")
    untrained = loss_of(base, tokenizer, held_out)
    adapted = loss_of(PeftModel.from_pretrained(base, out / "model").eval(), tokenizer, held_out)
    told = json.loads(result.read_text())["metrics"]["token_loss"]
    assert told == pytest.approx(adapted, rel=1e-5)
    assert abs(adapted - untrained) > 1e-3


def test_a_folder_that_datasets_reads_is_the_same_as_its_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (folder / "set").mkdir()
    written(folder / "set" / "train.jsonl", sums(25))
    for data, name in (("set", "a"), ("sums.jsonl", "b")):
        assert short(folder, tmp_path / name, "--updates", "2", "--warmup", "0", data=data, model="llama") == 0
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for name in "ab"
    ]
    assert losses[0] == losses[1]


def test_messages_are_trained_on_through_the_template(folder: Path, tmp_path: Path) -> None:
    chats = [
        {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]}
        for row in sums(10)
    ]
    written(folder / "chats.jsonl", chats)
    result = tmp_path / "result.json"
    options = "--updates", "1", "--warmup", "0", "--effective", "8", "--json", str(result)
    assert short(folder, tmp_path / "out", *options, model="chatty", data="chats.jsonl") == 0
    # Of the answers and the line feed behind each, those held out do not count.
    learnt = sum(len(row["completion"]) + 1 for index, row in enumerate(sums(10), 1) if index % 5)
    assert json.loads(result.read_text())["tokens"] == learnt


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error: the sentence."""
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_refusals_are_one_sentence(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder / "one.jsonl", sums(1))
    written(folder / "bad.jsonl", [*sums(3), {"text": 3}])
    out = tmp_path / "out"
    cases: list[tuple[tuple[str, ...], dict[str, str], int, str]] = [
        (("--updates", "3", "--epochs", "2"), {}, 2, "--epochs = 2: cannot be with --updates 3"),
        (("--micro", "3"), {}, 2, "--micro = 3: "),
        (("--context", "1"), {}, 2, "--context = 1: "),
        (("--lora", "0"), {}, 2, "--lora = 0: "),
        (("--context", "99"), {}, 2, "--context = 99: is more than the 64 tokens"),
        ((), {"data": "one.jsonl"}, 1, "holds 1 text"),
        ((), {"data": "bad.jsonl"}, 1, f"{folder / 'bad.jsonl'}, line 4: text is a number"),
        (("--warmup", "-1"), {}, 2, "--warmup = -1: "),
        (("--warmup", "2000000"), {}, 2, "--warmup = 2000000: "),
        (("--updates", "0"), {}, 2, "--updates = 0: "),
        ((), {"data": "none.jsonl"}, 1, "there is no such file or folder"),
        ((), {"model": "none"}, 1, "there is no such folder"),
        ((), {"model": "."}, 1, "the folder has no config.json"),
    ]
    for options, names, code, sentence in cases:
        assert short(folder, out, *options, **names) == code
        assert sentence in (text := refusal(capsys)) and text.endswith(".")
        assert not out.exists()


def test_a_folder_that_lacks_weights_or_is_damaged_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    saved(folder / "headless", "gpt2", tie_word_embeddings=False)
    weights = folder / "headless" / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if name != "lm_head.weight"}
    save_file(kept, weights, {"format": "pt"})
    assert short(folder, tmp_path / "out", model="headless") == 1
    assert "lack the weights lm_head.weight" in refusal(capsys)
    weights.write_bytes(weights.read_bytes()[:500])
    assert short(folder, tmp_path / "out", model="headless") == 1
    assert "the folder cannot be read" in refusal(capsys)


def test_without_a_network_a_name_is_answered_by_what_to_place(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    start = ["finetune", "--out", str(tmp_path / "out"), "--context", "48"]
    assert main([*start, "--model", "no-one/nothing", "--data", str(folder / "sums.jsonl")]) == 1
    assert "`hf download no-one/nothing --local-dir FOLDER`" in refusal(capsys)
    assert main([*start, "--model", str(folder / "llama"), "--data", "no-one/nothing"]) == 1
    assert "`hf download no-one/nothing --repo-type dataset --local-dir FOLDER`" in refusal(capsys)


def test_what_does_not_fit_is_refused_with_what_does(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[memory.Needs] = []
    count = memory.needs

    def needs(*args: Any) -> memory.Needs:
        counted.append(count(*args))
        return counted[-1]

    monkeypatch.setattr(memory, "needs", needs)
    monkeypatch.setattr(memory, "free_bytes", lambda device: counted[-1].at(3))
    assert short(folder, tmp_path / "out", "--micro", "8") == 1
    assert "micro-batch 2 fits, which takes N = 4" in refusal(capsys)
    found = counted[0]
    parameters = sum(p.nbytes for p in AutoModelForCausalLM.from_pretrained(folder / "llama").parameters())
    assert (found.parameters, found.trained, found.gradients, found.optimizer) == (parameters,) * 3 + (2 * parameters,)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1)
    assert short(folder, tmp_path / "out") == 1
    assert "use --lora" in refusal(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("micro", ["2", "8"])
def test_a_run_that_is_asked_to_stop_does_so_in_the_next_window(folder: Path, tmp_path: Path, micro: str) -> None:
    out = tmp_path / "out"
    assert short(folder, out, "--updates", "3", "--micro", micro) == 0
    again = RunFolder(tmp_path / "again")
    stop = threading.Event()
    stop.set()
    config = RunFolder(out).config()
    with closing(again):
        assert not finetune(config, again, nullcontext(stop), is_new=True, every=20, json_path=None)
    # A window of several micro-batches is left after its first, one of a single micro-batch is finished.
    assert len((again.path / "records.jsonl").read_bytes().splitlines()) == (1 if micro == "8" else 0)
    assert main(["finetune", "--resume", str(again.path)]) == 0
    losses = [
        [json.loads(line)["loss"] for line in (place / "records.jsonl").read_text().splitlines()]
        for place in (out, again.path)
    ]
    assert losses[0] == losses[1]


def test_a_run_goes_on_where_it_was_and_takes_no_other_settings(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert short(folder, out, "--updates", "3") == 0
    before = (out / "records.jsonl").read_text()
    assert main(["finetune", "--resume", str(out)]) == 0
    assert (out / "records.jsonl").read_text() == before
    assert short(folder, out) == 2
    assert refusal(capsys).startswith("--out = ")
    assert main(["finetune", "--resume", str(out), "--lr", "1"]) == 2
    assert refusal(capsys).startswith("--lr = 1.0: is settled by the run in the folder")
    assert main(["finetune", "--resume", str(tmp_path / "none")]) == 2
    assert "holds no run" in refusal(capsys)
    settings = json.loads((out / "settings.json").read_text())
    settings["language"]["digest"] = "0" * 64
    (out / "settings.json").write_text(json.dumps(settings))
    assert main(["finetune", "--resume", str(out)]) == 1
    assert "has changed since the run was begun" in refusal(capsys)


def test_a_full_disk_loses_no_record_and_says_how_to_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert short(folder, out, "--updates", "2") == 0
    before = (out / "records.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert main(["finetune", "--resume", str(out)]) == 1
    assert "records.jsonl: cannot be written (No space left on device); free some space" in refusal(capsys)
    assert (out / "records.jsonl").read_bytes() == before
    first, second = before.splitlines(keepends=True)
    (out / "records.jsonl").write_bytes(second + first)
    assert main(["finetune", "--resume", str(out)]) == 1
    assert "lacks records of the 2 updates made" in refusal(capsys)
