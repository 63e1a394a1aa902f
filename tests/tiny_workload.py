"""A workload of tiny images that stands in for the real one, so that a training takes milliseconds an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accum_core.engine.metrics import class_iou, confusion, pixel_accuracy
from accum_core.engine.objectives import CrossEntropy, mean_loss
from accum_core.records import RunConfig, UpdateRecord, Validation

CLASSES, CHANNELS = 3, 8


class TinyNet(nn.Module):
    """Two convolutions with norms and an image-pooling branch, smooth; in this it is a DeepLab of 8 x 8 pixels."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.Tanh())
        self.pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm2d(CHANNELS), nn.Tanh()
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Conv2d(CHANNELS, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        return self.head(self.drop(features + self.pool(features)))


class TinyWorkload:
    """Noise whose label at a pixel is which third the first colour lies in; what was asked for is written down.

    Args:
        num_samples: training samples.
        dropout: in the network.
        unlabelled: indices of samples without a valid label.
        poisoned: indices of samples with an infinite pixel.
    """

    def __init__(
        self, num_samples: int = 26, dropout: float = 0.0, unlabelled: Sequence[int] = (), poisoned: Sequence[int] = ()
    ) -> None:
        numbers = torch.Generator().manual_seed(9)
        self._images = torch.randn(num_samples + 4, 2, 4, 4, generator=numbers)
        self._labels = torch.bucketize(self._images[:, 0].contiguous(), torch.tensor([-0.43, 0.43]))
        self._labels[list(unlabelled)] = -100
        self._images[list(poisoned), 0, 0, 0] = torch.inf
        self._dropout = dropout
        self.num_samples = num_samples
        self.objective = CrossEntropy()
        self.windows: list[list[int]] = []

    def build_model(self, name: str) -> nn.Module:
        return TinyNet(self._dropout)

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        if isinstance(indices, list):  # a window; the check before training asks with a range
            self.windows.append(list(indices))
        chosen = torch.as_tensor(list(indices))
        if len(chosen) and int(chosen.max()) >= self.num_samples:
            raise IndexError(f"sample {int(chosen.max())} of {self.num_samples}")
        return self._images[chosen], self._labels[chosen]

    def validate(self, model: nn.Module) -> Validation:
        assert not model.training
        images, labels = self._images[self.num_samples :], self._labels[self.num_samples :]
        logits = model(images.to(next(model.parameters())))
        matrix = confusion(logits.argmax(1), labels, CLASSES)
        return Validation(
            miou=class_iou(matrix).nanmean().item(),
            pixel_accuracy=pixel_accuracy(matrix),
            class_iou=tuple(class_iou(matrix).tolist()),
            loss=mean_loss(self.objective, lambda _: logits, images, labels).item(),
        )


def tiny(**settings: Any) -> RunConfig:
    """A run of 10 updates of 8 samples in float64; 26 samples make 3 windows an epoch."""
    sizes: dict[str, Any] = {
        "effective_batch_size": 8, "micro_batch_size": 2, "updates": 10, "warmup_updates": 3, "learning_rate": 0.1,
        "norm": "group", "norm_groups": 4, "validate_every": 4, "measure_every": 4, "precision": "float64",
    }  # fmt: skip
    return RunConfig.of(**(sizes | settings))


TIMES = {"seconds", "samples_per_second"}


def course(records: Sequence[UpdateRecord], *without: str) -> list[str]:
    """What two runs of the same updates share to the last bit, as text: all but the times (and what is named)."""
    return [record.model_dump_json(exclude=TIMES | set(without)) for record in records]


def weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """A copy of the model's tensors in a training's state."""
    return {name: tensor.clone() for name, tensor in state["model"].items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two models' tensors are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


Use = Callable[..., TinyWorkload]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Put a tiny workload in the place of the real one; the function returned puts one with other settings there."""

    def use(**settings: Any) -> TinyWorkload:
        workload = TinyWorkload(**settings)
        monkeypatch.setattr("accum_core.engine.training.load", lambda name: workload)
        return workload

    use()
    return use
