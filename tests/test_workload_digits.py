"""The digits: what scikit-learn carries, the norms that its networks take, and quality as scikit-learn counts it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

from accum_core.engine import Training, check_norms, convert_norms, train
from accum_core.engine.workloads import digits, load
from accum_core.errors import SettingError
from accum_core.records import RunConfig


def config(**settings: object) -> RunConfig:
    small: dict[str, object] = {
        "workload": "digits", "model": "mlp", "effective_batch_size": 8, "micro_batch_size": 2, "updates": 2,
        "warmup_updates": 1, "validate_every": 2,
    }  # fmt: skip
    return RunConfig.of(**(small | settings))


def test_samples_are_the_digits_with_noise_of_the_stated_size() -> None:
    workload = load("digits")
    assert workload.num_samples == 1797 - 360
    images, labels = workload.samples(range(workload.num_samples))
    assert (images.shape, images.dtype) == ((1437, 1, 8, 8), torch.float32)
    clean = load_digits()
    assert labels.tolist() == clean.target[:1437].tolist()
    pixels = clean.images[:1437]
    noise = images[:, 0].numpy() - (pixels - pixels.mean()) / pixels.std(ddof=1)
    # 91,968 normal numbers: their mean and deviation are known to 0.3 % of the deviation.
    assert noise.mean() == pytest.approx(0, abs=4 * digits.NOISE / np.sqrt(noise.size))
    assert noise.std() == pytest.approx(digits.NOISE, rel=4 / np.sqrt(2 * noise.size))
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.02


def test_every_process_has_the_same_noise() -> None:
    one, _ = digits.load().samples([0, 7])
    torch.manual_seed(1)
    other, _ = digits.load().samples([0, 7])
    assert torch.equal(one, other)


class Chance(nn.Module):
    """Logits that a linear map with fixed weights gives: right for some digits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(10, 64, generator=torch.Generator().manual_seed(3)) / 8)
            self.head.bias.zero_()
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return self.head(images.flatten(1))


def test_error_and_loss_agree_with_scikit_learn() -> None:
    model = Chance().eval()
    with torch.no_grad():
        found = load("digits").validate(model)
        inputs = torch.cat(model.seen)
        logits = model.double()(inputs.double())
    truth = np.tile(load_digits().target[-360:], digits.DRAWS)
    assert len(inputs) == len(truth)
    assert found.error == pytest.approx(1 - accuracy_score(truth, logits.argmax(1)), abs=1e-3)
    assert found.loss == pytest.approx(log_loss(truth, logits.softmax(1).numpy(), labels=range(10)), rel=1e-4)
    assert (found.miou, found.class_iou, found.pictures) == (None, (), ())


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "none"])
def test_both_networks_take_the_norms(norm: str) -> None:
    for model in ("mlp", "conv"):
        (record,) = [r for r in train(config(model=model, norm=norm)) if r.validation]
        assert record.validation is not None and 0 <= (record.validation.error or 0) <= 1


def test_instance_norm_is_refused_where_a_channel_has_one_value() -> None:
    with pytest.raises(SettingError, match=r"norm = 'instance': layer layer1.* one pixel a channel"):
        Training(config(norm="instance"))
    images, _ = load("digits").samples(range(2))
    check_norms(convert_norms(load("digits").build_model("conv"), "instance"), images)


def test_layer_norm_of_the_perceptron_is_torchs_own() -> None:
    torch.manual_seed(0)
    model = convert_norms(load("digits").build_model("mlp"), "layer")
    inputs = torch.randn(5, 128)
    own = nn.LayerNorm(128)
    torch.testing.assert_close(model.get_submodule("layer2.1")(inputs), own(inputs))


def test_a_split_changes_the_error_only_where_the_norm_looks_across_samples() -> None:
    def gradient_error(norm: str) -> float:
        first = next(train(config(norm=norm, measure_every=1)))
        return float(first.instruments["gradient_error"]["relative_error"])

    assert gradient_error("group") < 1e-5 < 0.1 < gradient_error("batch")
