"""Fine-tuning on functions: which pairs there are, what they weigh, packing, and exactness under accumulation."""

from __future__ import annotations

import ast
import calendar
import inspect
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accum_core import python_functions
from accum_core.engine import accumulate_gradients
from accum_core.engine.language import IGNORED
from accum_core.engine.models.gpt import GPT
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.workloads import load, sft
from accum_core.errors import DataError
from accum_core.python_functions import Pair


def test_a_pair_is_a_signature_and_the_first_paragraph() -> None:
    source = b'''
class Box:
    def lift(self, height: float = 1.5, *, slowly: bool = True) -> None:
        """Lift the
        box.

        Slowly, unless asked otherwise.
        """
    async def wait(self):
        """Wait."""
    def _hidden(self):
        """Not public."""
    def bare(self):
        return 1
'''
    assert list(python_functions.pairs(source)) == [
        Pair(b"def lift(self, height=1.5, *, slowly=True):\n", b"Lift the box.\n"),
        Pair(b"def wait(self):\n", b"Wait.\n"),
    ]


@pytest.mark.parametrize("function", [statistics.mean, calendar.monthrange, shutil.copyfile])
def test_pairs_are_what_python_says_of_its_functions(function: Callable[..., Any]) -> None:
    by_prompt = {pair.prompt.decode(): pair.completion.decode() for pair in python_functions.load().held_out}
    paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    assert by_prompt[f"def {function.__name__}{inspect.signature(function)}:\n"] == " ".join(paragraph.split()) + "\n"


def test_nothing_held_out_is_trained_on_and_every_pair_fits() -> None:
    found = python_functions.load()
    training, held_out = ({pair.completion for pair in pairs} for pairs in (found.training, found.held_out))
    assert not training & held_out
    assert (len(training), len(held_out)) == (len(found.training), len(found.held_out))
    assert len(training) > 1000 and len(held_out) > 100
    for pair in (*found.training, *found.held_out):
        assert len(pair.prompt + pair.completion) <= python_functions.LONGEST
        ast.parse(pair.prompt + b"    pass")
    assert len(found.prompts) == python_functions.DISPLAYED
    assert set(found.prompts) <= {pair.prompt for pair in found.held_out}


def test_a_python_without_its_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not hold the standard library's source"):
        python_functions.load(tmp_path)


def test_a_sample_predicts_its_docstring_alone() -> None:
    pairs = (Pair(b"def a(b):\n", b"It.\n"), Pair(b"def long(name):\n", b"Much longer.\n"))
    inputs, targets = sft.padded(pairs)
    for line, pair in enumerate(pairs):
        text = pair.prompt + pair.completion
        assert bytes(inputs[line, : len(text) - 1].tolist()) == text[:-1]
        valid = targets[line] != IGNORED
        assert bytes(targets[line][valid].tolist()) == pair.completion
        # The prompt's last byte predicts the docstring's first one.
        assert valid.nonzero()[0].item() == len(pair.prompt) - 1
    assert CrossEntropy(IGNORED).weights(targets) == {"cross_entropy": len(b"It.\nMuch longer.\n")}


def network() -> GPT:
    torch.manual_seed(0)
    return GPT(256, 256, width=16, depth=2, heads=2).double()


def error(model: nn.Module, reference: dict[str, Tensor]) -> float:
    """Relative gradient error over all parameters."""
    ours = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    theirs = torch.cat([reference[name].flatten() for name, _ in model.named_parameters()])
    return float((ours - theirs).norm() / theirs.norm())


def by_autograd(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Gradient of the mean over all valid tokens, in one pass of PyTorch's own loss."""
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("workload", ["sft", "sft_packed"])
def test_accumulation_is_exact_and_the_mean_of_means_is_not(workload: str) -> None:
    found, model = load(workload), network()
    inputs, targets = found.samples([3, 500, 41, 7, 300])
    parts = list(zip(inputs.split(2), targets.split(2), strict=True))
    reference = by_autograd(model, inputs, targets)
    accumulate_gradients(model, parts, found.objective)
    assert error(model, reference) <= 1e-12
    accumulate_gradients(model, parts, found.objective, reduction="mean_of_means")
    assert error(model, reference) > 1e-3


def test_packing_changes_the_cost_alone() -> None:
    """A row's functions padded one a row give its gradient: they do not see one another."""
    packed, model = load("sft_packed"), network()
    inputs, targets = packed.samples([0, 600])
    pairs = {pair.prompt + pair.completion: pair for pair in python_functions.load().training}
    apart = [pairs[bytes(text.tokens)] for index in (0, 600) for text in packed.rows[index]]
    assert len(apart) > 2 and inputs.shape[1] == 2
    reference = by_autograd(model, *sft.padded(apart))
    accumulate_gradients(model, [(inputs, targets)], packed.objective)
    assert error(model, reference) <= 1e-12


def test_every_pair_is_in_one_row() -> None:
    packed = load("sft_packed")
    texts = sorted(bytes(text.tokens) for row in packed.rows for text in row)
    assert texts == sorted(pair.prompt + pair.completion for pair in python_functions.load().training)
    assert max(sum(len(text.tokens) - 1 for text in row) for row in packed.rows) <= 256
