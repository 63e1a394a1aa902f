"""Text: what Python's documentation gives, how it is cut and padded, and a GPT held against PyTorch's own layer."""

from __future__ import annotations

import math
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accum_core import python_documentation
from accum_core.engine import language, train
from accum_core.engine.models.gpt import GPT, Block
from accum_core.engine.models.gpt2_small import build as build_gpt2_small
from accum_core.engine.workloads import load, text_file, text_file_paragraphs
from accum_core.errors import DataError
from accum_core.records import RunConfig

CORPORA = ("pydoc_paragraphs_equal", "pydoc_paragraphs_medium", "pydoc_paragraphs")


def lengths(workload: str) -> Tensor:
    """Valid tokens of each training sample."""
    found = load(workload)
    _, targets = found.samples(range(found.num_samples))
    return (targets != language.IGNORED).sum(1)


def test_no_paragraph_is_there_twice_and_each_is_of_its_topic() -> None:
    found = python_documentation.load()
    every = [paragraph for topic in found.training + found.held_out for paragraph in topic]
    assert len(set(every)) == len(every)
    everywhere = "\n".join(topics.values()).encode()
    assert set().union(*map(bytes.split, every)) == set(everywhere.split())
    for name, topic in zip(python_documentation.HELD_OUT, found.held_out, strict=True):
        assert topic and all(paragraph in topics[name].encode() for paragraph in topic)


def test_blocks_are_the_running_text_and_predict_its_next_byte() -> None:
    found = load("pydoc_blocks")
    inputs, targets = found.samples([0, 1, 2])
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((3, 64), torch.int64, torch.int64)
    text = python_documentation.joined(python_documentation.load().training)
    assert bytes(inputs.flatten().tolist()) == text[:192]
    assert bytes(targets.flatten().tolist()) == text[1:193]
    assert found.num_samples == (len(text) - 1) // 64


def test_a_padded_paragraph_weighs_its_bytes() -> None:
    found = load("pydoc_paragraphs")
    text = [paragraph for topic in python_documentation.load().training for paragraph in topic]
    short, long = (next(i for i, p in enumerate(text) if fits(len(p))) for fits in (lambda n: n < 9, lambda n: n > 256))
    inputs, targets = found.samples([short, long])
    assert bytes(inputs[0, : len(text[short])].tolist()) == b"\n" + text[short][:-1]
    assert bytes(targets[0, : len(text[short])].tolist()) == text[short]
    assert (inputs[0, len(text[short]) :] == language.START).sum() >= 255 - len(text[short])
    assert (targets[0, len(text[short]) :] == language.IGNORED).all()
    assert bytes(targets[1].tolist()) == text[long][:256]
    assert found.objective.weights(targets) == {"cross_entropy": len(text[short]) + 256}


def test_the_corpora_differ_in_the_spread_of_their_lengths_as_they_say() -> None:
    """Of Python 3.11.7; another version's text is a little different."""
    spreads = [(n.double().std(correction=0) / n.double().mean()).item() for n in map(lengths, CORPORA)]
    assert spreads == pytest.approx([0, 0.31, 0.68], abs=0.05)
    assert [lengths(name).double().mean().item() for name in CORPORA] == pytest.approx([128, 119, 132], rel=0.05)


def test_a_block_is_pytorchs_transformer_layer() -> None:
    torch.manual_seed(0)
    ours = Block(16, 4).double()
    theirs = nn.TransformerEncoderLayer(16, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64)
    theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias = ours.attention.weight, ours.attention.bias
    theirs.self_attn.out_proj.load_state_dict(ours.merge.state_dict())
    for name, layer in {
        "norm1": ours.norm1,
        "norm2": ours.norm2,
        "linear1": ours.widen,
        "linear2": ours.narrow,
    }.items():
        getattr(theirs, name).load_state_dict(layer.state_dict())
    inputs = torch.randn(3, 7, 16, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(ours(inputs), theirs(inputs, mask, is_causal=True), rtol=1e-12, atol=1e-12)


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = load("pydoc_blocks").build_model("gpt")
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    logits, others = model(tokens), model(changed)
    torch.testing.assert_close(logits[:, :40], others[:, :40])
    assert (logits[:, 40:] - others[:, 40:]).abs().amax(-1).min() > 1e-6


def test_sizes_of_the_networks() -> None:
    """12 w^2 + 13 w a block (GPT-2's, biases included), 2 w of the last norm, and the three tables."""

    def parameters(width: int, depth: int, vocabulary: int, context: int) -> int:
        return depth * (12 * width**2 + 13 * width) + 2 * width + (2 * vocabulary + context) * width

    small = load("pydoc_blocks").build_model("gpt")
    assert sum(p.numel() for p in small.parameters()) == parameters(64, 2, 256, 64) == 136_960
    with torch.device("meta"):
        large = build_gpt2_small(50_257, 1024)
    assert isinstance(large, GPT)
    # GPT-2 small shares one table between input and output: 124,439,808 parameters.
    assert sum(p.numel() for p in large.parameters()) - 50_257 * 768 == 124_439_808


class Frequencies(nn.Module):
    """Logits that are the same everywhere."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


@pytest.mark.parametrize("workload", ["pydoc_blocks", "pydoc_paragraphs"])
def test_the_loss_per_token_is_that_of_the_held_out_bytes(workload: str) -> None:
    found = load(workload)
    with torch.no_grad():
        assert found.validate(Frequencies(torch.zeros(256))).token_loss == pytest.approx(math.log(256))
    topics = python_documentation.load().held_out
    text = python_documentation.joined(topics)
    predicted = text[1 : 1 + (len(text) - 1) // 64 * 64]
    if workload == "pydoc_paragraphs":
        predicted = b"".join(paragraph[:256] for topic in topics for paragraph in topic)
    share = (np.bincount(np.frombuffer(predicted, np.uint8), minlength=256) + 1) / (len(predicted) + 256)
    expected = -np.log(share)[np.frombuffer(predicted, np.uint8)].mean()
    with torch.no_grad():
        validation = found.validate(Frequencies(torch.from_numpy(np.log(share)).float()))
    assert validation.token_loss == pytest.approx(expected, rel=1e-5)
    assert validation.loss == validation.token_loss


@pytest.mark.parametrize("workload", CORPORA)
def test_micro_batches_of_paragraphs_add_up_when_tokens_divide_and_else_only_where_all_weigh_the_same(
    workload: str,
) -> None:
    def error(reduction: str) -> float:
        config = RunConfig.of(
            workload=workload, model="gpt", norm="layer", effective_batch_size=8, micro_batch_size=1, updates=1,
            warmup_updates=0, precision="float64", reduction=reduction, seed=1,
        )  # fmt: skip
        (record,) = train(config)
        return float(record.instruments["gradient_error"]["relative_error"])

    assert error("exact") < 1e-12
    wrong = error("mean_of_means")
    assert wrong < 1e-12 if workload == "pydoc_paragraphs_equal" else wrong > 0.01


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCUMULATION_LAB_DATA", str(tmp_path))
    (tmp_path / "text").mkdir()
    return tmp_path / "text"


def test_text_files_are_read_in_the_order_of_their_names(folder: Path) -> None:
    (folder / "b.txt").write_bytes(b"second" * 1000)
    (folder / "a.txt").write_bytes(b"first" * 1000)
    found = text_file.load()
    inputs, _ = found.samples([0])
    assert bytes(inputs[0].tolist()) == (b"first" * 1000)[:1024]
    assert found.num_samples == (5000 + 2 + 6000 - 1025 - 1) // 1024
    model = found.build_model("gpt").eval()
    with torch.no_grad():
        assert found.validate(model).token_loss == pytest.approx(math.log(256), abs=0.2)


def test_paragraphs_of_text_files_stand_between_empty_lines(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"one\nparagraph\n\n  another  \n \n\n" + b"x" * 2000)
    found = text_file_paragraphs.load()
    _, targets = found.samples([0, 1])
    assert (targets != language.IGNORED).sum(1).tolist() == [13, 7]
    assert found.num_samples == 2


def test_a_folder_without_enough_text_says_what_to_place_there(folder: Path) -> None:
    for workload in (text_file, text_file_paragraphs):
        with pytest.raises(DataError, match=r"workload text_file.*text holds no text.*place plain text there"):
            workload.load()
    (folder / "a.txt").write_bytes(b"short")
    with pytest.raises(DataError, match="holds 5 bytes, fewer than two blocks of 1,024"):
        text_file.load()
    with pytest.raises(DataError, match="holds one paragraph"):
        text_file_paragraphs.load()
