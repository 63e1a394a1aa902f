"""The language model that comes with the project: its record, that it can be made again, and what it writes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from watched_windows import window

from accum_core import python_documentation, python_functions
from accum_core.engine import train
from accum_core.engine.generation import continuations
from accum_core.engine.instrument import Window, load_instruments
from accum_core.engine.models import tiny_lm
from accum_core.engine.models.gpt import GPT
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.workloads import load
from accum_core.errors import DataError, SettingError

ROOT = Path(__file__).parents[1]
RECORD = json.loads(tiny_lm.FILE.with_suffix(".json").read_text(encoding="utf-8"))


def script() -> ModuleType:
    """``data/train_tiny_lm.py`` as a module."""
    spec = importlib.util.spec_from_file_location("train_tiny_lm", ROOT / RECORD["script"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_its_text() -> bool:
    """Whether this Python's documentation is what the weights were trained on."""
    text = python_documentation.joined(python_documentation.load().training)
    return hashlib.sha256(text).hexdigest() == RECORD["text"]["training_sha256"]


its_text = pytest.mark.skipif(not is_its_text(), reason="another Python's documentation is another text")


def test_the_record_is_of_these_weights_and_this_script() -> None:
    made = script()
    assert RECORD["config"] == made.settings(made.UPDATES).model_dump(mode="json", exclude_none=True)
    assert RECORD["weights_sha256"] == tiny_lm.SHA256 == hashlib.sha256(tiny_lm.FILE.read_bytes()).hexdigest()
    assert len(RECORD["loss"]) == made.UPDATES
    assert RECORD["parameters"] == sum(parameter.numel() for parameter in tiny_lm.trained().parameters())


@its_text
def test_the_weights_have_the_loss_of_their_record() -> None:
    model = tiny_lm.trained().eval()
    with torch.no_grad():
        found = load("tiny_lm").validate(model)
    assert found.token_loss == pytest.approx(RECORD["token_loss"], abs=1e-5)
    # Stored as float16, they lose less than a thousandth of a nat.
    assert RECORD["token_loss"] == pytest.approx(RECORD["token_loss_float32"], abs=1e-3)


@its_text
def test_the_record_begins_as_a_training_does_today() -> None:
    records = train(script().settings(script().UPDATES), device="cpu")
    for recorded in RECORD["loss"][:2]:
        assert next(records).loss == pytest.approx(recorded, rel=1e-3)


def test_the_same_command_gives_the_same_weights() -> None:
    made = script()
    first, second = (made.weights(made.trained(3)[0]) for _ in range(2))
    assert first == second


def test_damaged_weights_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"weights lost\.safetensors cannot be read .* data/train_tiny_lm\.py"):
        tiny_lm.trained(tmp_path / "lost.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(tiny_lm.FILE.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"cut\.safetensors are damaged: .* expected 8af8"):
        tiny_lm.trained(cut)


def small() -> GPT:
    torch.manual_seed(0)
    return GPT(256, 24, width=16, depth=1, heads=2)


def one_by_one(model: GPT, prompt: bytes, longest: int) -> bytes:
    """The slow and plain way: the whole text, alone, for each byte."""
    text = list(prompt)
    with torch.no_grad():
        while len(text) < min(24, len(prompt) + longest):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
            if text[-1] == 10:
                break
    return bytes(text[len(prompt) :])


def test_the_likeliest_bytes_are_those_of_each_prompt_alone() -> None:
    prompts = (b"def a():\n", b"x", b"some longer prompt")
    found = continuations(small(), prompts, longest=9)
    assert found == [one_by_one(small(), prompt, 9) for prompt in prompts]
    assert len(found[2]) == 24 - len(prompts[2])  # where its context is full


class Certain(GPT):
    """It follows A with B or C, one to three, those with a line feed, and everything else with A."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.full((*tokens.shape, 256), -torch.inf)
        logits[..., ord("A")] = torch.where((tokens >= ord("A")) & (tokens <= ord("C")), -torch.inf, 0.0)
        after_a = tokens == ord("A")
        logits[after_a, ord("B")], logits[after_a, ord("C")] = 0.0, torch.tensor(3.0).log()
        logits[(tokens == ord("B")) | (tokens == ord("C")), 10] = 0.0
        return logits


def test_what_is_drawn_follows_the_probabilities_and_the_temperature() -> None:
    model = Certain(256, 24, width=16, depth=1, heads=2)
    prompts = (b"x",) * 2000

    def share(temperature: float) -> float:
        found = continuations(model, prompts, longest=9, temperature=temperature, seed=3)
        assert set(found) <= {b"AB\n", b"AC\n"}
        return found.count(b"AB\n") / len(found)

    # Four standard errors of a share of 2000.
    assert share(1.0) == pytest.approx(1 / 4, abs=4 * (1 / 4 * 3 / 4 / 2000) ** 0.5)
    assert share(0.5) == pytest.approx(1 / 10, abs=4 * (1 / 10 * 9 / 10 / 2000) ** 0.5)
    assert share(0.0) == 0
    first, again = (continuations(model, prompts[:20], longest=9, temperature=1.0, seed=5) for _ in range(2))
    assert first == again


def test_writing_leaves_no_trace() -> None:
    model = small().train()
    drawn = torch.get_rng_state()
    continuations(model, [b"def"], longest=3, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("prompt", "temperature", "field"), [(b"", 0, "prompts"), (b"a" * 24, 0, "prompts"), (b"a", -1, "temperature")]
)
def test_what_cannot_be_written_is_refused(prompt: bytes, temperature: float, field: str) -> None:
    with pytest.raises(SettingError, match=f"^{field} = "):
        continuations(small(), [prompt], longest=3, temperature=temperature)


def test_the_instrument_writes_after_held_out_prompts() -> None:
    torch.manual_seed(0)
    model = GPT(256, 256, width=16, depth=1, heads=2)
    empty = torch.empty(0)
    seen = Window(model, empty, empty, [], CrossEntropy(), 1, 1, False)
    found = load_instruments(("samples",))["samples"].measure(seen)
    prompts = python_functions.load().prompts
    assert found["prompts"] == [prompt.decode() for prompt in prompts]
    texts = continuations(model, prompts, longest=80)
    assert found["likeliest"] == [text.decode(errors="replace") for text in texts]
    assert len(found["drawn"]) == len(prompts) and found["drawn"] != found["likeliest"]


def test_a_model_of_another_kind_writes_nothing() -> None:
    found = load_instruments(("samples",))["samples"].measure(window())
    assert found["likeliest"] == found["drawn"] == []
