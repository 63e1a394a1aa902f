"""``finetune``: a causal model of transformers on text of the user's own, on one device."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from accum_core.errors import SettingError
from accum_core.language_settings import LanguageSettings
from accum_core.records import RunConfig
from experiments.cli import finetuning, ranks
from experiments.cli.output import json_option
from experiments.cli.run_folder import RunFolder

WARMUP = 20
"""The share of the updates that warms up, as its inverse."""
VALIDATIONS = 10
MOST_UPDATES = 1_000_000


@click.command("finetune")
@click.option("--model", "model", metavar="FOLDER|NAME", help="A causal model of transformers, with its tokenizer.")
@click.option("--data", "data", metavar="FILE|FOLDER|NAME", help="JSON lines, or a data set of the hub.")
@click.option("--out", "out", type=click.Path(path_type=Path), metavar="FOLDER", help="A new folder for all results.")
@click.option(
    "--resume",
    "resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Go on with the run in FOLDER, with its settings.",
)
@click.option("--lora", "lora_rank", type=int, metavar="RANK", help="Train adapters of this rank, not the weights.")
@click.option("--packed/--padded", "packed", default=False, help="Several texts a row, or one.  [default: padded]")
@click.option("--context", type=int, default=1024, show_default=True, help="Tokens that a pass may read.")
@click.option(
    "--effective", "effective_batch_size", type=int, default=128, show_default=True, help="Samples an update."
)
@click.option("--micro", "micro_batch_size", type=int, default=2, show_default=True, help="Samples a pass.")
@click.option("--updates", type=int, help="Optimizer steps; or give --epochs.")
@click.option("--epochs", type=int, help="Passes over the samples.  [default: 1]")
@click.option("--lr", "learning_rate", type=float, help="Peak learning rate.  [default: 2e-5, with --lora 2e-4]")
@click.option("--warmup", "warmup_updates", type=int, help=f"Updates of warm-up.  [default: 1/{WARMUP} of all]")
@click.option("--weight-decay", "weight_decay", type=float, default=0.0, show_default=True, help="AdamW's, an update.")
@click.option(
    "--clip-norm", "clip_norm", type=float, default=1.0, show_default=True, help="Bound on a window's gradient."
)
@click.option(
    "--precision",
    default="float32",
    show_default=True,
    help="Number types; bfloat16_autocast keeps the weights in float32, bfloat16 does not.",
)
@click.option(
    "--checkpoint-activations",
    "activation_checkpointing",
    is_flag=True,
    help="Keep only what each layer reads and compute it again in the backward pass.",
)
@click.option(
    "--hold-out", "hold_out_every", type=int, default=50, show_default=True, help="One text of so many validates."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of new adapters, dropout and the order.")
@click.option("--watch", "watched", is_flag=True, help="Measure gradient error and memory; a whole window must fit.")
@click.option(
    "--save-every", type=click.IntRange(1), default=20, show_default=True, help="Updates between checkpoints."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the computation.  [default: torch's choice]")
@json_option("configuration, final metrics, records, speed, memory and environment")
def finetune_command(
    out: Path | None,
    resume: Path | None,
    save_every: int,
    threads: int | None,
    json_path: Path | None,
    **settings: Any,
) -> None:
    """Fine-tune a language model, by AdamW at a rate that falls along a cosine; every predicted token weighs the same.

    The data is a JSON-lines file with text, prompt and completion, or messages in each line, of which completions and
    the assistant's messages are learnt; or a data set of such rows. Ctrl-C stops after the present micro-batch. FOLDER
    holds settings, records and the last checkpoint, to --resume from after a stop, a crash or a power cut, and in the
    end the model (or the adapters) for transformers.
    """
    if ranks.world_size() > 1:
        raise SettingError("--nproc-per-node", ranks.world_size(), "is for the command train; finetune uses one device")
    if resume is not None:
        _refuse_settings(click.get_current_context())
        folder = RunFolder(resume)
        config = folder.config()
    else:
        if out is None:
            raise SettingError("out", None, "name a new folder for checkpoint and model, or --resume one")
        folder = RunFolder(out)
        folder.check_new()
        config = _config(**settings)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with closing(folder):
        finished = finetuning.finetune(
            config, folder, _stopping(), is_new=resume is None, every=save_every, json_path=json_path
        )
    if not finished:
        click.get_current_context().exit(130)


def _config(
    *, model: str | None, data: str | None, updates: int | None, epochs: int | None, **settings: Any
) -> RunConfig:
    """The run that is asked for; its text is read if its length has to be known."""
    for field, value in (("model", model), ("data", data)):
        if not value:
            raise SettingError(field, value, "say which; see python -m experiments finetune --help")
    if updates is not None and epochs is not None:
        raise SettingError("epochs", epochs, f"cannot be with --updates {updates}; give one of the two")
    if epochs is not None and epochs < 1:
        raise SettingError("epochs", epochs, "must be at least 1")
    path = Path(str(data))
    language = LanguageSettings.of(
        model=str(Path(str(model)).resolve()) if Path(str(model)).is_dir() else model,
        data=str(path.resolve()) if path.exists() else data,
        **{name: settings.pop(name) for name in ("context", "packed", "lora_rank", "hold_out_every", "watched")},
    )
    if settings["learning_rate"] is None:
        settings["learning_rate"] = 2e-5 if language.lora_rank is None else 2e-4
    warmup = settings.pop("warmup_updates")

    def made(updates: int, language: LanguageSettings) -> RunConfig:
        return RunConfig.of(
            workload="causal_lm",
            model="pretrained",
            language=language,
            updates=updates,
            warmup_updates=updates // WARMUP if warmup is None else warmup,
            optimizer="adamw",
            schedule="cosine",
            tail="rescale",
            validate_every=max(1, updates // VALIDATIONS),
            measure_every=max(1, updates // VALIDATIONS),
            **settings,
        )

    # Refuses the other settings before model and text are read, with updates that leave any warm-up room.
    room = MOST_UPDATES if warmup is None else min(MOST_UPDATES, max(1, warmup + 1))
    made(room if updates is None else updates, language)
    from accum_core.engine.causal import places
    from accum_core.engine.workloads import causal_lm, load_with

    digests = {
        "model_digest": places.model_digest(language.model),
        "digest": causal_lm.data_digest(language.data),
    }
    language = language.model_copy(update=digests)
    if updates is None:
        samples = load_with("causal_lm", language).num_samples
        updates = (epochs or 1) * -(-samples // settings["effective_batch_size"])
    return made(updates, language)


def _refuse_settings(context: click.Context) -> None:
    """A run that goes on has its settings already."""
    free = {"resume", "save_every", "threads", "json_path"}
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in free and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            remedy = "is settled by the run in the folder; leave it away with --resume, or start anew with --out"
            value = context.params[name]
            raise SettingError(name, str(value) if isinstance(value, Path) else value, remedy)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C ends the process at once."""
    stop = threading.Event()

    def hear(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Not through sys.stderr, which the bar may be writing to at this moment.
        os.write(2, b"\nStops after the present micro-batch; Ctrl-C again ends it at once.\n")

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
