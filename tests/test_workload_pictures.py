"""CIFAR-10 and ImageNet folders, in small made files of the same form: reading, augmenting, resuming, refusing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from accum_core.engine import Training, augmentation, classification
from accum_core.engine.data_folder import VARIABLE
from accum_core.engine.workloads import cifar10, epoch_samples, imagenet_folder
from accum_core.errors import DataError, SettingError
from accum_core.records import RunConfig, UpdateRecord

PICTURES = 4  # a file of CIFAR-10


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def cifar(data: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """CIFAR-10's five training files and its test file with four pictures each; returns the training pictures."""
    folder = data / "cifar-10-batches-py"
    folder.mkdir()
    numbers = np.random.default_rng(0)
    rows = numbers.integers(0, 256, (6, PICTURES, 3072), dtype=np.uint8)
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    for k, name in enumerate(names):
        content = {"data": rows[k], "labels": [(k * PICTURES + i) % 10 for i in range(PICTURES)]}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {k}" for k in range(10)]}))
    # The published files' hashes are torchvision's to check; these are other files.
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: Path(path).exists())
    return rows[:5].reshape(-1, 3, 32, 32)


@pytest.fixture
def imagenet(data: Path) -> Path:
    """Two classes of pictures of unequal sizes and modes, each with its own grey."""
    for part, count in (("train", 3), ("val", 2)):
        for k, name in enumerate(("n01", "n02")):
            folder = data / "imagenet" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                grey = 40 + 100 * k
                picture = Image.new("L" if i else "RGB", (300 + 10 * i, 260), grey if i else (grey,) * 3)
                picture.save(folder / f"{i}.JPEG", "JPEG", quality=95)
    return data / "imagenet"


def test_cifar_is_read_and_normalised_by_colour(cifar: np.ndarray) -> None:
    workload = cifar10.load()
    assert workload.num_samples == 5 * PICTURES
    images, labels = workload.samples(range(workload.num_samples))
    assert labels.tolist() == [k % 10 for k in range(20)]
    unit = cifar / 255
    mean, deviation = unit.mean(axis=(0, 2, 3), keepdims=True), unit.std(axis=(0, 2, 3), keepdims=True, ddof=1)
    np.testing.assert_allclose(images.numpy(), (unit - mean) / deviation, rtol=1e-4, atol=1e-5)


def test_cifar_validates_on_the_test_file(cifar: np.ndarray) -> None:
    workload = cifar10.load()

    class Always(nn.Module):
        """Says class 2 with certainty."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, images: Tensor) -> Tensor:
            return self.scale * 50 * torch.eye(10)[2].expand(len(images), 10)

    with torch.no_grad():
        found = workload.validate(Always().eval())
    assert found.error == 0.75  # the test file's labels are 0, 1, 2, 3
    assert found.loss == pytest.approx(0.75 * 50)  # log(1 + 9 exp(-50)) is nothing beside it


@pytest.mark.parametrize("name", ["cifar", "imagenet"])
def test_augmentation_is_the_samples_own(name: str, request: pytest.FixtureRequest) -> None:
    """Whatever is asked for together and in which order: so the split of a window changes no picture."""
    request.getfixturevalue(name)
    workload = {"cifar": cifar10, "imagenet": imagenet_folder}[name].load()
    together, _ = epoch_samples(workload, [0, 1, 2, 3, 4, 5], seed=7, epoch=2)
    for order in ([5, 3], [4], [0, 1, 2]):
        alone, _ = epoch_samples(workload, order, seed=7, epoch=2)
        assert torch.equal(alone, together[order])
    if name == "cifar":  # made pictures of one grey look alike however they are cropped
        assert not torch.equal(epoch_samples(workload, [0, 1], seed=7, epoch=3)[0], together[:2])
        assert not torch.equal(epoch_samples(workload, [0, 1], seed=8, epoch=2)[0], together[:2])


def test_a_padded_crop_is_a_shift_with_zeros_and_reaches_every_place() -> None:
    image = torch.arange(1, 17, dtype=torch.float32).view(1, 4, 4)
    framed = torch.zeros(1, 8, 8)
    framed[:, 2:6, 2:6] = image
    places = {(top, left): framed[:, top : top + 4, left : left + 4] for top in range(5) for left in range(5)}
    found = set()
    for index in range(400):
        crop = augmentation.padded_crop(image, augmentation.draws(1, 0, index), 2)
        found.update(place for place, part in places.items() if torch.equal(part, crop))
    assert found == set(places)  # 25 places, 400 draws: the chance to miss one is 2e-6


def test_half_of_the_pictures_are_mirrored() -> None:
    mirrored = sum(augmentation.flips(augmentation.draws(0, 0, index)) for index in range(2000))
    assert 900 < mirrored < 1100  # 4.5 standard deviations


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (224, 224), (40, 2000)])
def test_resized_crops_lie_in_the_picture_with_the_stated_shape(size: tuple[int, int]) -> None:
    height, width = size
    boxes = [augmentation.resized_crop_box(augmentation.draws(3, 1, index), height, width) for index in range(300)]
    for top, left, part_height, part_width in boxes:
        assert 0 <= top <= top + part_height <= height
        assert 0 <= left <= left + part_width <= width
        # The sides are rounded to whole pixels.
        assert (part_width - 0.5) / (part_height + 0.5) <= 4 / 3 and (part_width + 0.5) / (part_height - 0.5) >= 3 / 4
    if min(size) > 200:
        areas = [h * w / (height * width) for _, _, h, w in boxes]
        assert min(areas) >= 0.075 and max(areas) > 0.8


def test_the_middle_of_a_picture_is_torchvisions_evaluation_transform(imagenet: Path) -> None:
    gradient = np.add.outer(np.arange(300), np.arange(400)).astype(np.uint16) % 256
    path = imagenet / "train" / "n01" / "0.JPEG"
    Image.fromarray(np.stack([gradient] * 3, -1).astype(np.uint8)).save(path, "JPEG")
    transform = v2.Compose(
        [
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    images, labels = imagenet_folder.load().samples([0, 3])
    torch.testing.assert_close(images[0], transform(Image.open(path)))
    assert labels.tolist() == [0, 1]


def test_grey_pictures_become_three_colours(imagenet: Path) -> None:
    images, _ = imagenet_folder.load().samples([1])
    mean, deviation = torch.tensor(imagenet_folder.MEAN), torch.tensor(imagenet_folder.DEVIATION)
    torch.testing.assert_close(images[0, :, 100, 100], (40 / 255 - mean) / deviation, atol=0.02, rtol=0)


def small(**settings: object) -> RunConfig:
    usual: dict[str, object] = {
        "workload": "cifar10", "model": "resnet18_small", "norm": "group", "effective_batch_size": 4,
        "micro_batch_size": 2, "updates": 7, "warmup_updates": 0, "validate_every": 100, "measure_every": 100,
        "learning_rate": 0.01,
    }  # fmt: skip
    return RunConfig.of(**(usual | settings))


class Narrow(nn.Module):
    """A network of two layers in the place of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.BatchNorm2d(8), nn.Tanh(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


@pytest.fixture
def training(cifar: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Training]:
    workload = cifar10.load()
    monkeypatch.setattr(workload, "build_model", lambda name: Narrow(), raising=False)
    monkeypatch.setattr("accum_core.engine.training.load", lambda name: workload)
    return lambda **settings: Training(small(**settings))


def losses(records: list[UpdateRecord]) -> list[float]:
    return [record.loss for record in records]


def test_a_training_goes_on_with_the_same_pictures(training: Callable[..., Training]) -> None:
    """7 updates of 4 of 20 pictures: stopped in the first epoch, gone on into the second."""
    whole = losses(list(training().run()))
    first = training()
    updates = first.run()
    begun = losses([next(updates) for _ in range(3)])
    second = training()
    second.load_state_dict(first.state_dict())
    assert begun + losses(list(second.run())) == whole
    assert len(set(whole)) == 7


def test_every_split_sees_the_same_pictures(training: Callable[..., Training]) -> None:
    split, whole = (losses(list(training(micro_batch_size=micro, precision="float64").run())) for micro in (1, 4))
    assert split == pytest.approx(whole, rel=1e-9)


def test_missing_data_says_what_to_place_where(data: Path) -> None:
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz.*cifar-10-batches-py.*ACCUMULATION_LAB_DATA"):
        cifar10.load()
    with pytest.raises(DataError, match=r"imagenet/train and imagenet/val.*ACCUMULATION_LAB_DATA"):
        imagenet_folder.load()


def test_another_file_in_the_place_of_cifars_is_refused(data: Path) -> None:
    folder = data / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / name).write_bytes(b"other")
    with pytest.raises(DataError, match="does not hold CIFAR-10 whole"):
        cifar10.load()


def test_classes_that_differ_and_a_damaged_picture_are_refused(imagenet: Path) -> None:
    (imagenet / "train" / "n01" / "0.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"picture 0\.JPEG: cannot be read"):
        imagenet_folder.load().samples([0])
    (imagenet / "val" / "n02").rename(imagenet / "val" / "n03")
    with pytest.raises(DataError, match="both need the same folders"):
        imagenet_folder.load()


def test_the_networks_are_torchvisions_with_gamma_zero(cifar: np.ndarray, imagenet: Path) -> None:
    for workload, name, layer in ((cifar10, "resnet18_small", "bn2"), (imagenet_folder, "resnet50", "bn3")):
        model = workload.load().build_model(name)
        last = [norm for path, norm in model.named_modules() if path.endswith(f".{layer}")]
        assert len(last) in (8, 16)  # blocks of ResNet-18 and of ResNet-50
        assert all((norm.weight == 0).all() for norm in last)
    small_model = cifar10.load().build_model("resnet18_small").eval()
    shapes: list[torch.Size] = []
    small_model.layer4.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    with torch.no_grad():
        assert small_model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert shapes == [torch.Size([1, 512, 4, 4])]


def test_other_than_three_colours_are_refused() -> None:
    from accum_core.engine.models import resnet18

    with pytest.raises(SettingError, match="in_channels = 1"):
        resnet18.build(1, 10)


def test_quality_counts_every_batch() -> None:
    """Two batches of unequal size: 1 of 3 is wrong, whatever the batches."""
    model = nn.Identity()
    model.register_parameter("any", nn.Parameter(torch.zeros(1)))
    certain = 50 * torch.eye(3)
    batches = [(certain[:2], torch.tensor([0, 1])), (certain[2:], torch.tensor([0]))]
    found = classification.validate(model, batches)
    assert found.error == pytest.approx(1 / 3)
    assert found.loss == pytest.approx(50 / 3)
