"""MNIST, in small made files of its published form: reading, normalising, refusing what is not whole."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accum_core.engine import train
from accum_core.engine.data_folder import VARIABLE
from accum_core.engine.workloads import mnist
from accum_core.errors import DataError
from accum_core.records import RunConfig

TRAINING, HELD_OUT = 24, 6
Bytes = NDArray[np.uint8]


def write(path: Path, values: Bytes) -> None:
    """The IDX form: two zeros, 8 for bytes, the number of dimensions, each dimension as a big-endian integer."""
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bytes, Bytes]:
    """The four files with a few digits; returns the training pictures and classes."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(mnist, "TRAINING", TRAINING)
    monkeypatch.setattr(mnist, "HELD_OUT", HELD_OUT)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 256, (TRAINING + HELD_OUT, 28, 28), dtype=np.uint8)
    labels = np.arange(TRAINING + HELD_OUT, dtype=np.uint8) % 10
    for name, part in (("train", slice(TRAINING)), ("t10k", slice(TRAINING, None))):
        write(folder / f"{name}-images-idx3-ubyte", images[part])
        write(folder / f"{name}-labels-idx1-ubyte", labels[part])
    return images[:TRAINING], labels[:TRAINING]


def test_samples_are_the_files_pictures_normalised_over_the_training_set(made: tuple[Bytes, Bytes]) -> None:
    pictures, classes = made
    workload = mnist.load()
    images, labels = workload.samples([3, 0, 23])
    assert workload.num_samples == TRAINING
    assert labels.tolist() == classes[[3, 0, 23]].tolist()
    values = pictures.astype(np.float64)
    expected = (values[[3, 0, 23], None] - values.mean()) / values.std(ddof=1)
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-5)


def test_validation_counts_the_held_out_digits(made: tuple[Bytes, Bytes]) -> None:
    """A head that always says 4: of the classes 4 to 9 one is right."""
    workload = mnist.load()
    model = workload.build_model("strided_conv").eval()
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.zero_()
        model.head[-1].bias[4] = 50.0
        found = workload.validate(model)
    assert found.error == pytest.approx(5 / 6)
    assert found.loss == pytest.approx(50 * 5 / 6)


def test_a_run_on_it_has_a_noise_scale_of_all_its_samples(
    made: tuple[Bytes, Bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig.of(
        workload="mnist", model="strided_conv", norm="group", effective_batch_size=8, micro_batch_size=4, updates=2,
        warmup_updates=0, validate_every=2, measure_every=1, extra_instruments=("sample_noise",),
    )  # fmt: skip
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: mnist.load())  # which else keeps it
    records = list(train(config))
    assert [record.instruments["sample_noise"]["samples"] for record in records] == [TRAINING, TRAINING]
    assert all(record.instruments["sample_noise"]["noise"] > 0 for record in records)


@pytest.mark.parametrize("damage", ["missing", "short", "other", "fewer"])
def test_what_is_not_whole_says_what_to_place_where(made: tuple[Bytes, Bytes], tmp_path: Path, damage: str) -> None:
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other":
        path.write_bytes(b"other")
    else:
        write(path, made[0][:5])
    with pytest.raises(DataError, match=r"MNIST whole: unpack.*MNIST/raw.*ACCUMULATION_LAB_DATA"):
        mnist.load()
