"""The loops of docs/sync_batch_recipes.md, run as they stand, train what full batches through nn.BatchNorm train."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_nets import gradients
from step_nets import apart
from torch import nn

DOCUMENT = Path(__file__).parents[1] / "docs" / "sync_batch_recipes.md"
START, *LOOPS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def needs_lightning() -> None:
    import lightning  # noqa: F401


def needs_accelerate() -> None:
    import accelerate  # noqa: F401


NEEDS: dict[str, Callable[[], None]] = {
    "torch": lambda: None,
    "lightning": needs_lightning,
    "accelerate": needs_accelerate,
}

# What these two packages and those that they import warn of is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


def test_the_document_has_a_loop_for_each():
    assert len(LOOPS) == len(NEEDS)
    for package, loop in zip(NEEDS, LOOPS, strict=True):
        assert package in loop


@pytest.mark.parametrize("name", NEEDS)
def test_a_loop_trains_as_full_batches_do(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Weights and running statistics after an epoch of three windows, and the gradient of the last."""
    try:
        NEEDS[name]()
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": name}
    exec(START, names)
    whole = copy.deepcopy(names["model"])
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    before = copy.deepcopy(whole.state_dict())
    for inputs, labels in names["loader"]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(inputs), labels).backward()
        optimizer.step()
    exec(LOOPS[list(NEEDS).index(name)], names)
    model = names["model"] if name != "lightning" else names["trainer"].model.model
    assert apart(model.state_dict(), whole.state_dict()) <= 1e-12
    assert apart(model.state_dict(), before) > 1e-3
    assert apart(gradients(model), gradients(whole)) <= 1e-12
    assert int(model[1].num_batches_tracked) == 3
