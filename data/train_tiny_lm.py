"""Train the weights in ``data/tiny_lm`` anew, with a record of how they came to be.

    OMP_NUM_THREADS=1 python data/train_tiny_lm.py data/tiny_lm

Six to fifteen minutes on one core, and nothing beyond the app's own requirements. With the Python, torch, processor and
number of threads that the record names the weights come out equal bit for bit; elsewhere they differ by rounding.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
from tqdm import tqdm

from accum_core import python_documentation
from accum_core.records import RunConfig

if TYPE_CHECKING:
    from accum_core.engine import Training
    from accum_core.records import UpdateRecord

UPDATES = 400
NAME = "tiny_lm"


def settings(updates: int) -> RunConfig:
    """How the weights are trained: 8 blocks of 256 bytes at a time, 4 times, and a learning rate chosen among three."""
    return RunConfig.of(
        workload=NAME,
        model=NAME,
        norm="layer",
        effective_batch_size=32,
        micro_batch_size=8,
        updates=updates,
        optimizer="adamw",
        learning_rate=0.004,
        beta2=0.95,
        weight_decay=0.1,
        weight_decay_spares="norms_and_biases",
        clip_norm=1.0,
        schedule="cosine",
        warmup_updates=min(20, updates - 1),
        validate_every=25,
        measure_every=100,
        seed=0,
    )


def trained(updates: int) -> tuple[Training, list[UpdateRecord]]:
    """The training at its end, and its records."""
    from accum_core.engine import Training

    training = Training(settings(updates), device="cpu")
    return training, list(tqdm(training.run(), total=updates, unit="update"))


def weights(training: Training) -> bytes:
    """The network as a safetensors file holds it, in float16."""
    import torch
    from safetensors.torch import save

    return save({name: tensor.to(torch.float16) for name, tensor in training.model.state_dict().items()})


def record(training: Training, records: list[UpdateRecord], content: bytes) -> dict[str, Any]:
    """What is told about the weights, ready for JSON; losses in nats a byte, the last that of the stored weights."""
    import torch

    exact = training.validate().token_loss
    training.model.load_state_dict({name: t.half().float() for name, t in training.model.state_dict().items()})
    text = python_documentation.load()
    return {
        "script": f"data/{Path(__file__).name}",
        "config": training.config.model_dump(mode="json", exclude_none=True),
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "stored_as": str(torch.float16).removeprefix("torch."),
        "weights_sha256": hashlib.sha256(content).hexdigest(),
        "text": {
            "source": "pydoc_data.topics",
            "held_out": list(python_documentation.HELD_OUT),
            "training_sha256": hashlib.sha256(python_documentation.joined(text.training)).hexdigest(),
            "held_out_sha256": hashlib.sha256(python_documentation.joined(text.held_out)).hexdigest(),
        },
        "loss": [round(made.loss, 4) for made in records],
        "validation": [
            {"update": made.update, "token_loss": made.validation.token_loss} for made in records if made.validation
        ],
        "token_loss_float32": exact,
        "token_loss": training.validate().token_loss,
        "seconds": round(records[-1].seconds, 1),
        "environment": training.environment().model_dump(),
    }


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--updates", type=click.IntRange(1), default=UPDATES, show_default=True, help="Updates to make.")
def main(folder: Path, updates: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    training, records = trained(updates)
    content = weights(training)
    (folder / f"{NAME}.safetensors").write_bytes(content)
    told = json.dumps(record(training, records, content), indent=1)
    (folder / f"{NAME}.json").write_text(told + "\n", encoding="utf-8")
    click.echo(f"SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
