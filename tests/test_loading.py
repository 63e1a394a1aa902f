"""Loader processes: the same items for any number of them, expected or not, and errors that stay sentences."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from accum_core.engine.loading import Loader, loader_processes
from accum_core.engine.sampling import WindowSampler
from accum_core.engine.workloads import expect_samples
from accum_core.errors import DataError, SettingError


def item(key: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Noise that the key alone decides, and the process that drew it."""
    if key[0] < 0:
        raise DataError(f"picture {key[1]}: cannot be read.")
    numbers = torch.Generator().manual_seed(1000 * key[0] + key[1])
    return torch.randn(5, generator=numbers), torch.tensor(os.getpid())


FIRST, SECOND = [(1, k) for k in (3, 1, 2)], [(2, k) for k in (0, 5)]


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_items_depend_on_their_keys_alone(processes: int) -> None:
    loader = Loader(item, processes)
    for keys in (FIRST, SECOND, FIRST):
        found = list(loader.items(keys))
        assert [values.tolist() for values, _ in found] == [item(key)[0].tolist() for key in keys]
        inside = {int(process) for _, process in found} <= {os.getpid()}
        assert inside == (processes == 0)


@pytest.mark.parametrize("processes", [0, 2])
def test_what_was_expected_changes_nothing(processes: int) -> None:
    """Rightly expected, wrongly expected, and expected twice."""
    loader = Loader(item, processes)
    for expectations, asked in (([FIRST], FIRST), ([FIRST], SECOND), ([FIRST, SECOND], SECOND), ([], FIRST)):
        for keys in expectations:
            loader.expect(keys)
        assert [values.tolist() for values, _ in loader.items(asked)] == [item(key)[0].tolist() for key in asked]


@pytest.mark.parametrize("processes", [0, 2])
def test_an_error_stays_its_sentence(processes: int) -> None:
    loader = Loader(item, processes)
    with pytest.raises(DataError, match=r"^picture 7: cannot be read\.$"):
        list(loader.items([(1, 1), (-1, 7), (1, 2)]))
    assert len(list(loader.items(SECOND))) == 2


def test_no_random_number_of_the_run_is_drawn() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(Loader(item, 1).items(FIRST))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("drop_tail", [True, False])
def test_what_is_expected_is_what_comes_next(drop_tail: bool) -> None:
    """Over the ends of epochs of 10 samples, and without moving the sampler."""
    told: list[tuple[list[int], int, int]] = []
    workload = SimpleNamespace(expect=lambda *arguments: told.append(arguments))
    sampler = WindowSampler(10, drop_tail=drop_tail, seed=3)
    for _ in range(7):
        expect_samples(workload, sampler, 4, 3)
        indices = sampler.next(4)
        assert told.pop() == (indices, 3, sampler.epoch)
    assert sampler.epoch > 1
    expect_samples(SimpleNamespace(), sampler, 4, 3)  # one that does not want to know


def test_the_number_of_processes_is_the_variables_or_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCUMULATION_LAB_LOADERS", raising=False)
    assert loader_processes() == torch.get_num_threads()
    monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", "0")
    assert loader_processes() == 0
    for wrong in ("many", "-1", "257"):
        monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", wrong)
        with pytest.raises(SettingError, match="ACCUMULATION_LAB_LOADERS = .*from 0 to 256"):
            loader_processes()
