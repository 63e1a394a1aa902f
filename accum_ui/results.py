"""The committed results: found, checked, laid out as rows, and put into a store so that no page is ever empty."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median

from accum_core.errors import DataError, SettingError
from accum_core.measures import Measure, measure_of
from accum_core.result_file import ResultFile, ResultHeader, StoredRun
from accum_core.runs.store import Store
from accum_core.statistics import Interval, seed_interval
from experiments import discover, result_path

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """One run's final numbers; gradient error and cosine are medians over updates.

    Attributes:
        quality: the workload's measure at the last validation, in [0, 1].
        shares: all that the last validation counted, by name, ``quality`` among them.
    """

    label: str
    seed: int
    workload: str
    model: str
    norm: str
    effective_batch_size: int
    micro_batch_size: int
    accumulation_steps: int
    updates: int
    quality: float
    shares: Mapping[str, float]
    validation_loss: float
    gradient_error: float
    cosine: float
    code_version: str
    processor: str
    date: str

    @property
    def measure(self) -> Measure:
        """What ``quality`` is of."""
        return measure_of(self.workload)


@dataclass(frozen=True, slots=True)
class Split:
    """What splitting the effective batch did to one norm, over seeds.

    Attributes:
        norm: file name of the norm.
        micro_batch_size, accumulation_steps: the finest split that was run.
        loss: by how much the split is worse than the whole batch in the measure, paired by seed, in [-1, 1].
        gradient_error, cosine: of the split, medians over updates and then over seeds.
        measure: what ``loss`` is of.
    """

    norm: str
    micro_batch_size: int
    accumulation_steps: int
    loss: Interval
    gradient_error: float
    cosine: float
    measure: Measure


def read(experiment: str) -> ResultFile | None:
    """The committed result of an experiment, None if there is none.

    Raises:
        DataError: for a file that is damaged.
    """
    path = result_path(experiment)
    return ResultFile.read(path) if path.exists() else None


def header(experiment: str) -> ResultHeader | None:
    """What the committed result of an experiment found, None if there is none; quick, as no run of it is parsed.

    Raises:
        DataError: for a file that is damaged.
    """
    path = result_path(experiment)
    return ResultHeader.read(path) if path.exists() else None


def fill(store: Store) -> int:
    """Put the runs of every committed result into the store; those that it holds already are left as they are.

    A run whose file keeps a part of its records alone is passed over: in the store every update has one.

    A damaged file is logged and passed over: the app starts without it and the page that needs it says so.

    Returns:
        The number of those runs.

    Raises:
        StoreError: when the store cannot be written.
    """
    runs = 0
    for name in discover():
        try:
            result = read(name)
        except DataError as error:
            LOG.warning("%s", error)
            continue
        if result is not None:
            for run in result.runs:
                if len(run.result.records) == run.result.records[-1].update:
                    store.add_result(run.result, name)
                    runs += 1
    return runs


def rows(result: ResultFile) -> list[Row]:
    """One row a run, in the file's order.

    Raises:
        SettingError: for a run without a validation or a measured gradient error.
    """
    return [_row(run) for run in result.runs]


def _row(stored: StoredRun) -> Row:
    run = stored.result
    metrics = run.metrics
    measure = measure_of(run.config.workload).field
    missing = sorted({measure, "gradient_error"} - set(metrics))
    if missing:
        raise SettingError("run", stored.label, f"was stored without {' and '.join(missing)}; run its experiment again")
    return Row(
        label=stored.label,
        seed=stored.seed,
        workload=run.config.workload,
        model=run.config.model,
        norm=run.config.norm,
        effective_batch_size=run.config.effective_batch_size,
        micro_batch_size=run.config.micro_batch_size,
        accumulation_steps=run.config.accumulation_steps,
        updates=run.config.updates,
        quality=metrics[measure],
        shares={name: metrics[name] for name in ("miou", "pixel_accuracy", "error", "token_loss") if name in metrics},
        validation_loss=metrics["loss"],
        gradient_error=metrics["gradient_error"],
        cosine=metrics["cosine"],
        code_version=run.environment.code_version,
        processor=run.environment.processor,
        date=run.environment.date,
    )


def parts(table: list[Row]) -> list[list[Row]]:
    """The rows of each network on each workload: what belongs on one chart, in the order of the file."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        found.setdefault((row.workload, row.model), []).append(row)
    return list(found.values())


def by_norm(table: list[Row]) -> dict[str, dict[int, dict[int, Row]]]:
    """Rows by norm, micro-batch size (rising) and seed."""
    found: dict[str, dict[int, dict[int, Row]]] = {}
    for row in sorted(table, key=lambda row: row.micro_batch_size):
        found.setdefault(row.norm, {}).setdefault(row.micro_batch_size, {})[row.seed] = row
    return found


def splits(table: list[Row]) -> list[Split]:
    """The finest split of each norm that was run both whole and split, the greatest loss first.

    Raises:
        SettingError: with fewer than two seeds that ran both.
    """
    found = []
    for norm, sizes in by_norm(table).items():
        if len(sizes) < 2:
            continue
        finest, whole = min(sizes), max(sizes)
        split = sizes[finest]
        measure = next(iter(split.values())).measure
        found.append(
            Split(
                norm=norm,
                micro_batch_size=finest,
                accumulation_steps=next(iter(split.values())).accumulation_steps,
                loss=seed_interval(
                    [
                        measure.worsening(sizes[whole][seed].quality, row.quality)
                        for seed, row in split.items()
                        if seed in sizes[whole]
                    ]
                ),
                gradient_error=median(row.gradient_error for row in split.values()),
                cosine=median(row.cosine for row in split.values()),
                measure=measure,
            )
        )
    return sorted(found, key=lambda split: split.loss.mean, reverse=True)


def to_csv(table: list[Row]) -> str:
    """The rows as comma-separated values under a line of names; each measure has a column."""
    lines = []
    for row in table:
        line = asdict(row)
        del line["quality"]
        lines.append(line | line.pop("shares"))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
