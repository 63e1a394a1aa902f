"""The segmentation recipe's transforms and quality against torchvision's own presets and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_pictures import picture
from PIL import Image
from sklearn.metrics import accuracy_score, jaccard_score, log_loss
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import SemanticSegmentation

from accum_core.engine import train
from accum_core.engine.segmentation import DEVIATION, IGNORED, MEAN, Pair, Segmentation
from accum_core.engine.workloads import load
from accum_core.errors import DataError
from accum_core.records import RunConfig

CLASSES = 3
SIZES = ((60, 40), (30, 50), (45, 45))


class Made:
    """Pictures of unequal sizes; the class of a pixel follows its colours, every seventh row does not count."""

    def __init__(self, sizes: tuple[tuple[int, int], ...] = SIZES) -> None:
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> Pair:
        image = picture(index, self._sizes[index])
        classes = np.asarray(image)[..., 0] // 64 % CLASSES
        classes[::7] = IGNORED
        return image, Image.fromarray(classes)


def made(**settings: object) -> Segmentation:
    return Segmentation(Made(), Made(), CLASSES, **({"base": 52, "crop": 48, "pretrained": False} | settings))


class Stub(nn.Module):
    """Logits by head from the colours of a pixel: no training needed, nothing saturated."""

    def __init__(self, heads: tuple[str, ...] = ("out", "aux")) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.heads = nn.ModuleDict({head: nn.Conv2d(3, CLASSES, 1) for head in heads})

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {name: head(images) for name, head in self.heads.items()}


def held_out(base: int) -> list[tuple[Tensor, np.ndarray]]:
    """The held-out pictures by the preset of torchvision's published weights, with their maps resized to that size."""
    preset = SemanticSegmentation(resize_size=base)
    to_size = v2.Resize([base], interpolation=InterpolationMode.NEAREST)
    return [(preset(image)[None], np.asarray(to_size(classes))) for image, classes in map(Made().__getitem__, range(3))]


def test_validation_is_scikit_learns_over_all_pixels_that_count() -> None:
    """Each picture at its own size after the preset's resize; maps are compared there."""
    model = Stub().double().eval()
    with torch.no_grad():
        found = made().validate(model)
        outputs = [({k: v[0] for k, v in model(image.double()).items()}, truth) for image, truth in held_out(52)]
    kept = [truth != IGNORED for _, truth in outputs]
    truth = np.concatenate([truth[keep] for (_, truth), keep in zip(outputs, kept, strict=True)])
    logits = {
        head: torch.cat([each[head][:, keep] for (each, _), keep in zip(outputs, kept, strict=True)], dim=1).T
        for head in ("out", "aux")
    }
    guess = logits["out"].argmax(1).numpy()
    assert set(truth) == set(range(CLASSES))
    iou = jaccard_score(truth, guess, labels=range(CLASSES), average=None)
    assert found.class_iou == pytest.approx(iou, rel=1e-12)
    assert found.miou == pytest.approx(iou.mean(), rel=1e-12)
    assert found.pixel_accuracy == pytest.approx(accuracy_score(truth, guess), rel=1e-12)
    losses = {head: log_loss(truth, each.softmax(1).numpy(), labels=range(CLASSES)) for head, each in logits.items()}
    assert found.loss == pytest.approx(losses["out"] + 0.5 * losses["aux"], rel=1e-6)


def test_a_network_with_one_head_has_its_loss_alone() -> None:
    two, one = Stub().eval(), Stub(("out",)).eval()
    one.load_state_dict({name: value for name, value in two.state_dict().items() if "out" in name})
    with torch.no_grad():
        found, whole = made().validate(one), made().validate(two)
    assert found.miou == whole.miou
    assert found.loss < whole.loss


def test_passing_pictures_of_one_size_together_changes_nothing() -> None:
    workloads = [
        Segmentation(Made(), Made(((52, 52),) * 5), CLASSES, base=52, crop=48, pretrained=False, together=together)
        for together in (1, 2, 5)
    ]
    model = Stub().double().eval()
    with torch.no_grad():
        first, *others = (workload.validate(model) for workload in workloads)
    for other in others:
        assert (other.class_iou, other.pixel_accuracy) == (first.class_iou, first.pixel_accuracy)
        assert other.loss == pytest.approx(first.loss, rel=1e-12)


def test_pictures_in_the_middle_are_the_presets_with_torchvisions_crop() -> None:
    images, targets = made(crop=30).samples([0, 2])
    crop = v2.CenterCrop(30)
    for image, target, (expected, truth) in zip(images, targets, [held_out(52)[k] for k in (0, 2)], strict=True):
        torch.testing.assert_close(image, crop(expected[0]))
        assert torch.equal(target, crop(torch.from_numpy(truth.copy())).long())


def test_training_views_have_the_recipes_scales_flips_and_crops() -> None:
    """In a picture whose red is its row and whose green is its column, a view tells where it was cut and how large."""
    side = 120
    ramp = np.arange(side, dtype=np.uint8)
    blue = np.full((side, side), 9, dtype=np.uint8)
    colours = np.stack([np.repeat(ramp[:, None], side, 1), np.repeat(ramp[None], side, 0), blue], axis=-1)

    class Ramp(Made):
        def __getitem__(self, index: int) -> Pair:
            return Image.fromarray(colours), Image.new("L", (side, side), 1)

    base, crop = 60, 50
    workload = Segmentation(Ramp(), Ramp(), CLASSES, base=base, crop=crop, pretrained=False)
    views = [tuple(part[0] for part in workload.augmented([0], 3, epoch)) for epoch in range(300)]
    black = -(torch.tensor(MEAN) / torch.tensor(DEVIATION)).view(3, 1, 1)
    scales, mirrored, filled = [], 0, 0
    for image, target in views:
        assert image.shape == (3, crop, crop) and target.shape == (crop, crop)
        valid = target == 1
        assert torch.equal(valid, target != IGNORED)
        red, green = (image[k] * DEVIATION[k] + MEAN[k] for k in (0, 1))
        height, width = int(valid[:, 0].sum()), int(valid[0].sum())
        assert height == width and valid[:height, :width].all()
        if height < crop:  # filled up to the right and below, with black
            filled += 1
            torch.testing.assert_close(image[:, height:], black.expand(3, crop - height, crop))
        mirrored += bool(green[0, width - 1] < green[0, 0])
        slope = (red[height - 2, 1] - red[1, 1]).item() * 255 / (height - 3)
        scales.append(side / slope)
    assert min(scales) == pytest.approx(base / 2, rel=0.05) and max(scales) == pytest.approx(2 * base, rel=0.05)
    # Uniform lengths between 30 and 120, of which those below 50 are filled up: two ninths; half of all are mirrored.
    assert filled / 300 == pytest.approx(2 / 9, abs=0.08)
    assert mirrored / 300 == pytest.approx(0.5, abs=0.1)
    assert np.mean(scales) == pytest.approx(75, abs=5)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_view_depends_on_seed_epoch_and_index_alone(processes: int) -> None:
    whole, targets = made().augmented([2, 0, 1], 7, 1)
    workload = made(processes=processes)
    workload.expect([1], 7, 1)
    for place, index in ((2, 1), (0, 2), (1, 0)):
        image, target = workload.augmented([index], 7, 1)
        assert torch.equal(image[0], whole[place]) and torch.equal(target[0], targets[place])
    for seed, epoch in ((7, 2), (8, 1)):
        assert not torch.equal(workload.augmented([2, 0, 1], seed, epoch)[0], whole)


def test_what_cannot_be_read_is_named() -> None:
    class Broken(Made):
        def __getitem__(self, index: int) -> Pair:
            if index == 1:
                raise FileNotFoundError(2, "No such file or directory", "2007_000001.jpg")
            image, classes = super().__getitem__(index)
            return (image, Image.new("L", classes.size, 30)) if index == 2 else (image, classes.resize((5, 5)))

    workload = Segmentation(Broken(), Made(), CLASSES, pretrained=False)
    with pytest.raises(DataError, match=r"picture 1: cannot be read \(.*2007_000001\.jpg.*restore it"):
        workload.samples([1])
    with pytest.raises(DataError, match="picture 2: .*classes up to 30 of 3"):
        workload.augmented([2], 0, 0)
    with pytest.raises(DataError, match="picture 0: is 60 x 40 pixels and its map 5 x 5"):
        workload.samples([0])


def test_the_land_cover_tiles_are_the_workloads_own() -> None:
    """They have the base size already, so their middles are what the workload landcover gives."""
    recipe, plain = load("landcover_recipe"), load("landcover")
    (images, targets), (expected, labels) = (workload.samples(range(3)) for workload in (recipe, plain))
    torch.testing.assert_close(images, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(targets, labels)
    assert recipe.num_samples == plain.num_samples


def test_a_training_records_the_loss_of_each_head() -> None:
    """The window's loss is out + 0.5 aux, as in torchvision's recipe, at the recipe's ten times larger rate for aux."""
    config = RunConfig.of(
        workload="landcover_recipe", model="deeplabv3_mobilenet_v3_large", effective_batch_size=4, micro_batch_size=2,
        updates=1, warmup_updates=0, learning_rate=0.01, validate_every=1, measure_every=1,
    )  # fmt: skip
    (record,) = train(config, device="cpu")
    assert set(record.terms) == {"out", "aux"}
    assert record.loss == pytest.approx(record.terms["out"].loss + 0.5 * record.terms["aux"].loss, rel=1e-6)
    assert record.terms["out"].weight == record.terms["aux"].weight > 0
    assert record.validation is not None and record.validation.pictures


def test_momentum_replaces_every_running_statistics_own() -> None:
    """MobileNetV3's layers have 0.01 in torchvision; the land cover tiles are too few updates for that."""
    momenta = {
        layer.momentum
        for layer in load("landcover_recipe").build_model("lraspp_mobilenet_v3_large").modules()
        if isinstance(layer, nn.BatchNorm2d)
    }
    assert momenta == {0.1}
