"""``evaluate``: torchvision's published weights on held-out pictures, beside the quality that torchvision states."""

from __future__ import annotations

import click

from accum_core.records import RunConfig

PUBLISHED_ON = "coco_voc"


@click.command("evaluate")
@click.argument("model")
@click.option(
    "--workload",
    type=click.Choice([PUBLISHED_ON, "voc2012"]),
    default=PUBLISHED_ON,
    show_default=True,
    help="Whose held-out pictures; both have VOC's classes.",
)
def evaluate_command(model: str, workload: str) -> None:
    """Print mIoU and pixel accuracy of the weights that torchvision published for MODEL.

    MODEL is one of the networks of torchvision's segmentation recipe, such as fcn_resnet50. Pictures are validated as
    after each epoch of a training.
    """
    RunConfig.of(workload=workload, model=model)  # refuses an unknown network before torch is loaded
    import torch

    from accum_core.engine import segmentation_models
    from accum_core.engine.modes import evaluating
    from accum_core.engine.workloads import load

    network = segmentation_models.published(model)
    network.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)  # type: ignore[call-overload]
    with evaluating(network):
        found = load(workload).validate(network)
    click.echo(f"miou {found.miou:.4g}  pixel_accuracy {found.pixel_accuracy:.4g}")
    if workload == PUBLISHED_ON:
        miou, accuracy = segmentation_models.published_quality(model)
        click.echo(f"published by torchvision: miou {miou:.4g}  pixel_accuracy {accuracy:.4g}")
