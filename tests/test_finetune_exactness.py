"""A fine-tuning's gradient is that of all predicted tokens in one batch, whatever the layout, and its loop is plain."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import model, saved, sums, written
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import Training, accumulate_gradients, train
from accum_core.engine.causal.model import CausalModel
from accum_core.engine.sampling import WindowSampler
from accum_core.engine.workloads import load, load_with
from accum_core.engine.workloads.causal_lm import OwnText
from accum_core.errors import SettingError
from accum_core.language_settings import LanguageSettings
from accum_core.records import RunConfig

# What transformers and peft warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for kind in ("gpt2", "llama"):
        saved(place / kind, kind)
    written(place / "sums.jsonl", sums(COUNT))
    return place


def language(folder: Path, kind: str, **settings: Any) -> LanguageSettings:
    return LanguageSettings(
        model=str(folder / kind), data=str(folder / "sums.jsonl"), context=48, hold_out_every=COUNT, **settings
    )


def run(folder: Path, kind: str, **settings: Any) -> RunConfig:
    """5 updates in float64, from 22 samples in windows of 8, 8 and 6."""
    asked = {name: settings.pop(name) for name in ("packed", "lora_rank", "watched") if name in settings}
    sizes = {"effective_batch_size": 8, "micro_batch_size": 2, "updates": 5, "warmup_updates": 2}
    rest = {"optimizer": "adamw", "learning_rate": 0.01, "schedule": "cosine", "tail": "rescale", "validate_every": 5}
    base: dict[str, Any] = {**sizes, **rest, "precision": "float64", "clip_norm": 1.0, "weight_decay": 0.1}
    named = {"workload": "causal_lm", "model": "pretrained", "language": language(folder, kind, **asked)}
    return RunConfig.of(**{**base, **named, **settings})


def each_alone(network: nn.Module, texts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean over all predicted tokens, each text passed alone, as transformers reads it, and shifted by hand."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for tokens, learnt in texts:
        logits = network(input_ids=tokens[None], attention_mask=torch.ones_like(tokens[None])).logits[0, :-1]
        total = total + F.cross_entropy(logits[learnt[1:]], tokens[1:][learnt[1:]], reduction="sum")
        count += int(learnt[1:].sum())
    return total / count


def texts_of(workload: OwnText) -> list[tuple[Tensor, Tensor]]:
    """The training texts in the order of the file, from the file."""
    found = []
    for row in sums(COUNT)[:-1]:
        prompt, whole = (
            workload.tokenizer(text)["input_ids"] for text in (row["prompt"], row["prompt"] + row["completion"])
        )
        tokens = torch.tensor([*whole, workload.tokenizer.eos_token_id])
        found.append((tokens, torch.arange(len(tokens)) >= len(prompt)))
    return found


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("lora_rank", [None, 3], ids=["whole", "adapters"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_gradient_is_that_of_every_text_alone(folder: Path, kind: str, lora_rank: int | None, packed: bool) -> None:
    workload: Any = load_with("causal_lm", language(folder, kind, packed=packed, lora_rank=lora_rank))
    built: Any = workload.build_model("pretrained").double()
    if lora_rank is not None:  # a new adapter's second factor is zero, and so would be the first one's gradient
        for name, parameter in built.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    texts = texts_of(workload)
    expected = each_alone(built.network, texts)
    trained = {name: p for name, p in built.named_parameters() if p.requires_grad}
    gradients = dict(zip(trained, torch.autograd.grad(expected, list(trained.values())), strict=True))

    inputs, targets = workload.samples(range(workload.num_samples))
    cuts = [slice(start, start + 3) for start in range(0, len(inputs), 3)]
    window = accumulate_gradients(built, [(inputs[cut], targets[cut]) for cut in cuts], workload.objective)

    # Every completion has its end as one more token, and no prompt counts.
    tokens = sum(len(row["completion"]) + 1 for row in sums(COUNT)[:-1])
    assert window.terms["cross_entropy"].weight == workload.tokens == tokens
    assert window.loss == pytest.approx(expected.item(), rel=1e-12)
    whole = torch.cat([gradient.flatten() for gradient in gradients.values()])
    found = torch.cat([p.grad.flatten() for p in trained.values()])
    assert (found - whole).norm() <= 1e-12 * whole.norm()
    assert all(p.grad is None for p in built.parameters() if not p.requires_grad)
    assert all(("lora_" in name) == (lora_rank is not None) for name in trained)
    assert (workload.num_samples < len(texts)) == packed


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("lora_rank", [None, 3], ids=["whole", "adapters"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_activations_computed_again_are_the_same_to_the_last_bit(
    folder: Path, kind: str, lora_rank: int | None, packed: bool
) -> None:
    ends = []
    for again in (False, True):
        config = run(folder, kind, lora_rank=lora_rank, packed=packed, activation_checkpointing=again, updates=3,
                     watched=True, effective_batch_size=4, micro_batch_size=1, precision="float32")  # fmt: skip
        training = Training(config)
        records = list(training.run())
        ends.append(([record.loss for record in records], training.state_dict()["model"]))
        kept = [
            record.instruments["saved_bytes"]["micro_batch"]
            for record in records
            if "saved_bytes" in record.instruments
        ]
        ends[-1] = (*ends[-1], kept[0])
        assert records[0].instruments["gradient_error"]["relative_error"] < 1e-5
    (losses, weights, kept), (losses_again, weights_again, kept_again) = ends
    assert losses == losses_again
    assert weights.keys() == weights_again.keys()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    assert kept_again < kept


def test_a_short_run_is_a_loop_written_by_hand(folder: Path) -> None:
    config = run(folder, "llama")
    training = Training(config)
    records = list(training.run())

    workload: Any = load_with("causal_lm", config.language)
    texts = texts_of(workload)
    network: Any = model("llama").double().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    order = WindowSampler(22, drop_tail=False, seed=0)
    # Two updates of linear warm-up, then (1 + cos(pi p)) / 2 at p = 0, 1/3 and 2/3.
    for record, rate in zip(records, (0.005, 0.01, 0.01, 0.0075, 0.0025), strict=True):
        loss = each_alone(network, [texts[index] for index in order.next(8)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert record.learning_rate == pytest.approx(rate, rel=1e-12)
        assert record.loss == pytest.approx(loss.item(), rel=1e-11)
    assert [record.samples for record in records] == [8, 16, 22, 30, 38]
    assert not any(record.instruments for record in records)  # which would pass a whole window at once
    for mine, theirs in zip(training.model.parameters(), network.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lora_rank", [None, 3], ids=["whole", "adapters"])
def test_low_precision_keeps_positions_and_adapters_wide(folder: Path, lora_rank: int | None) -> None:
    training = Training(run(folder, "llama", lora_rank=lora_rank, precision="bfloat16", updates=2, warmup_updates=0))
    frequencies = {name: b for name, b in training.model.named_buffers() if name.endswith("inv_freq")}
    assert frequencies and {b.dtype for b in frequencies.values()} == {torch.float32}
    types = {p.dtype for p in training.model.parameters() if p.requires_grad}
    assert types == {torch.bfloat16 if lora_rank is None else torch.float32}
    assert {p.dtype for p in training.model.parameters() if not p.requires_grad} <= {torch.bfloat16}
    losses = [record.loss for record in training.run()]
    exact = [record.loss for record in train(run(folder, "llama", lora_rank=lora_rank, updates=2, warmup_updates=0))]
    assert losses == pytest.approx(exact, rel=2**-6)  # bfloat16 rounds to 8 bits


def test_a_state_of_adapters_holds_no_frozen_weight(folder: Path) -> None:
    config = run(folder, "gpt2", lora_rank=3)
    training = Training(config)
    records = list(training.run())
    state = training.state_dict()
    assert state["model"] and all("lora_" in name for name in state["model"])
    again = Training(config)
    half = [next(iter(again.run())).loss for _ in range(2)]
    fresh = Training(config)
    fresh.load_state_dict(again.state_dict())
    assert [*half, *(record.loss for record in fresh.run())] == [record.loss for record in records]


class Lookahead(nn.Module):
    """A network whose logits depend on every token of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(257, 257)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        return type("Output", (), {"logits": self.table(input_ids).cumsum(1) + self.past(input_ids)})

    def past(self, tokens: Tensor) -> Tensor:
        return self.table(tokens).mean(1, keepdim=True)


class Recurrent(Lookahead):
    """One that sees what lies before in its row, whatever its positions say, as state-space models do."""

    def past(self, tokens: Tensor) -> Tensor:
        return torch.zeros(())


def test_a_model_that_sees_what_it_must_not_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^model = 'Lookahead': is not causal"):
        CausalModel(Lookahead(), packed=False).check()
    CausalModel(Recurrent(), packed=False).check()
    with pytest.raises(SettingError, match=r"^packed = True: does not keep the texts of one row apart"):
        CausalModel(Recurrent(), packed=True).check()


def test_the_workload_needs_a_model_and_text_and_others_take_none(folder: Path) -> None:
    with pytest.raises(SettingError, match="finetune --model"):
        load("causal_lm")
    with pytest.raises(SettingError, match=r"^language = .*landcover"):
        RunConfig.of(language=language(folder, "gpt2"))


def test_a_run_without_a_language_model_is_known_by_the_settings_that_it_had_before() -> None:
    settings = RunConfig().model_dump(mode="json")
    del settings["language"]
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    assert RunConfig().digest() == hashlib.sha256(canonical.encode()).hexdigest()
