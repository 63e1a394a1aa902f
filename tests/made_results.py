"""Results made up for tests of what reads them: the numbers are chosen, nothing was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accum_core.claims import Claim
from accum_core.records import Environment, RunConfig, RunResult, Term, UpdateRecord, Validation
from accum_core.result_file import ResultFile, StoredRun

ENVIRONMENT = Environment(
    code_version="0123456789ab",
    python="3.11.0",
    torch="2.0.0",
    platform="Linux x86_64",
    processor="Made-up CPU",
    device="cpu",
    threads=1,
    date="2026-01-02",
)
# The ids are those of the experiment that the made-up result stands for, as the pages look their units up there.
CLAIMS = (
    Claim(
        id="batch_norm_loses", statement="BatchNorm loses at least 20 points.", effect="x", at_least=0.2, unit="mIoU"
    ),
    Claim(id="group_norm_gradient_exact", statement="The gradient error is at most 1e-5.", effect="y", at_most=1e-5),
)


def record(update: int, *, miou: float | None = None, error: float | None = None, picture: str = "") -> UpdateRecord:
    """An update of 8 samples, validated or measured where a value is given."""
    measured = {} if error is None else {"gradient_error": {"relative_error": error, "cosine": 0.5}}
    validation = None
    if miou is not None:
        validation = Validation(
            miou=miou,
            pixel_accuracy=0.5,
            class_iou=(miou, float("nan")),
            loss=1.0,
            pictures=(picture,) if picture else (),
        )
    return UpdateRecord(
        update=update,
        epoch=0,
        samples=8 * update,
        micro_batches=update,
        seconds=float(update),
        samples_per_second=8.0,
        loss=1.0,
        terms={"cross_entropy": Term(loss=1.0, weight=8.0)},
        learning_rate=0.1,
        micro_batch_size=8,
        accumulation_steps=1,
        norm="batch",
        gradient_norm=1.0,
        instruments=measured,
        validation=validation,
    )


def result(
    mious: Mapping[tuple[str, int], Sequence[float]], *, errors: Mapping[str, float], seeds: Sequence[int] = (1, 2, 3)
) -> ResultFile:
    """A result at effective batch 8: the last mIoU of each (norm, micro-batch size), one value a seed."""
    runs = []
    for index, seed in enumerate(seeds):
        for (norm, micro), values in mious.items():
            config = RunConfig.of(
                norm=norm, effective_batch_size=8, micro_batch_size=micro, seed=seed, updates=2, warmup_updates=1
            )
            records = (
                record(1, miou=0.1, picture="early"),
                record(2, miou=values[index], error=errors[norm], picture="late"),
            )
            run = RunResult(config=config, environment=ENVIRONMENT, records=records)
            runs.append(StoredRun(label=f"{norm}_{micro}", seed=seed, result=run))
    return ResultFile(
        experiment="segmentation_batch_size",
        preset="bench",
        seeds=tuple(seeds),
        claims=(CLAIMS[0].judge([0.3, 0.29, 0.31]), CLAIMS[1].judge([1e-6, 2e-6, 1.5e-6])),
        environment=ENVIRONMENT,
        runs=tuple(runs),
    )


def digits() -> ResultFile:
    """BatchNorm's error rises from 0.1 to 0.5, 0.6 and 0.7 in one network of digits, and stays 0.1 in another."""
    runs = []
    for model, split in (("mlp", (0.5, 0.6, 0.7)), ("conv", (0.1, 0.1, 0.1))):
        for seed in (1, 2, 3):
            for micro, error in ((8, 0.1), (2, split[seed - 1])):
                config = RunConfig.of(
                    workload="digits", model=model, effective_batch_size=8, micro_batch_size=micro, seed=seed,
                    updates=2, warmup_updates=1,
                )  # fmt: skip
                last = record(2, error=1.0).model_copy(update={"validation": Validation(error=error, loss=1.0)})
                run = RunResult(config=config, environment=ENVIRONMENT, records=(record(1), last))
                runs.append(StoredRun(label=f"{model}_{micro}", seed=seed, result=run))
    return ResultFile(
        experiment="wu_he_2018_group_norm",
        preset="bench",
        seeds=(1, 2, 3),
        claims=(CLAIMS[0].judge([0.4, 0.5, 0.6]),),
        environment=ENVIRONMENT,
        runs=tuple(runs),
    )


def usual() -> ResultFile:
    """BatchNorm falls from 0.5, 0.6, 0.7 to 0.3 each; GroupNorm stays at 0.5, give or take 0.01."""
    return result(
        {
            ("batch", 8): (0.5, 0.6, 0.7),
            ("batch", 4): (0.5, 0.5, 0.5),
            ("batch", 2): (0.3, 0.3, 0.3),
            ("group", 8): (0.5, 0.5, 0.5),
            ("group", 2): (0.49, 0.5, 0.51),
        },
        errors={"batch": 1.25, "group": 2e-7},
    )
