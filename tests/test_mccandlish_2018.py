"""What mccandlish_2018_noise_scale measures, from made runs whose answers can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from small_runs import ENVIRONMENT, record
from watched_noise import watched_record

from accum_core.records import RunConfig, RunResult, UpdateRecord, Validation
from experiments.mccandlish_2018_noise_scale import EXPERIMENT

Pair = tuple[float, float]


def run(size: int, updates_to_target: float, records: Sequence[UpdateRecord] = (), rate: float = 0.1) -> RunResult:
    """A run whose validation loss is 0.6 after so many updates: from 1.0 at one before to 0.2 at one after."""
    config = RunConfig.of(
        workload="digits", model="mlp", norm="layer", effective_batch_size=size, micro_batch_size=4,
        learning_rate=rate, extra_instruments=("sample_noise",) if records else (),
    )  # fmt: skip
    ends = [
        record(1000, samples=0, validation=Validation(loss=loss)).model_copy(update={"update": at})
        for at, loss in ((updates_to_target - 1, 1.0), (updates_to_target + 1, 0.2))
    ]
    return RunResult(config=config, environment=ENVIRONMENT, records=(*records, *ends))


def windows(estimates: Sequence[Pair], exact: Sequence[Pair]) -> list[UpdateRecord]:
    return [watched_record(1 + 2 * k, *both) for k, both in enumerate(zip(estimates, exact, strict=True))]


COURSE = windows(
    [(1, 20), (1, 20), (2, 40), (2, 40), (1, 30), (1, 30), (1, 60), (1, 60)],
    [(1, 20), (1, 20), (1, 20), (1, 20), (1, 24), (1, 24), (1, 75), (1, 75)],
)
SINGLE = windows([(1, 20), (1, 26), (1, 10), (-0.5, 20)], [(1, 20)] * 4)
RUNS = {
    "batch_8": run(8, 20 + 800 / 8),
    "batch_32": run(32, 20 + 800 / 32, SINGLE),
    "batch_128": run(128, 20 + 800 / 128, COURSE),
}


def test_effects_of_a_seed() -> None:
    """Quarters 20, 20, 30 and 60 against 20, 20, 24 and 75, middles 2, 6, 10 and 14; single windows 1, 1.3, 0.5 and -2.

    Updates on S = 20 + 800 / B have the critical batch size 40, and 26.25 of them lead to the target at 128.
    """
    found = EXPERIMENT.measure(RUNS)
    mean = (8 * 20 + 4 * 30 + (26.25 - 12) * 60) / 26.25
    expected = {"single_windows_off": 0.75, "furthest": 1.25, "doublings": math.log2(3), "predicted": mean / 40}
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_best_rate_of_a_size_counts() -> None:
    worse = {"batch_8_rate_1.0": run(8, 500, rate=1.0), "batch_16_rate_1.0": run(16, 20 + 800 / 16, rate=1.0)}
    assert EXPERIMENT.measure(RUNS | worse) == pytest.approx(EXPERIMENT.measure(RUNS), rel=1e-6)


def test_what_a_seed_does_not_reach_is_left_out() -> None:
    """Without the target at 128 there is no way to it; with batch-dependent norms no window is watched at all."""
    lost = RUNS["batch_128"].model_copy(update={"records": tuple(COURSE)})
    assert set(EXPERIMENT.measure(RUNS | {"batch_128": lost})) == {"single_windows_off", "furthest", "doublings"}
    blind = {label: of.model_copy(update={"records": of.records[-2:]}) for label, of in RUNS.items()}
    assert EXPERIMENT.measure(blind) == {}
    for figure in EXPERIMENT.figures:
        assert isinstance(figure.lines({1: blind}), dict)


def test_figures_say_what_they_show() -> None:
    drawn = {figure.key: figure.lines({1: RUNS, 2: RUNS}) for figure in EXPERIMENT.figures}
    said = {figure.key: figure.finding(drawn[figure.key]) for figure in EXPERIMENT.figures}
    expected = {
        ("noise", "from the micro-batches"): [(2, 20), (6, 20), (10, 30), (14, 60)],
        ("noise", "from single samples"): [(2, 20), (6, 20), (10, 24), (14, 75)],
        ("updates", "measured"): [(8, 120), (32, 45), (128, 26.25)],
        ("updates", "fitted hyperbola"): [(8, 120), (32, 45), (128, 26.25)],
        ("windows", "ratio of the averages"): [(2, 46 / 2 / 20), (3, 56 / 3 / 20), (4, 76 / 2.5 / 20)],
        ("windows", "average of the ratios"): [(2, 46 / 40), (3, 56 / 60), (4, (56 - 40) / 80)],
    }
    for (key, name), points in expected.items():
        for seed in (1, 2):
            np.testing.assert_allclose(drawn[key][name][seed], points, rtol=1e-6)
    assert said["noise"].startswith("From 20 to 60 samples") and "within 25 %" in said["noise"]
    assert "from 120 to 45" in said["updates"] and "only to 26" in said["updates"]
    assert said["windows"].startswith("After 4 windows the ratio of averages is 52 % off")
    assert said["windows"].endswith("80 %")


def test_the_full_preset_looks_for_the_best_rate_of_each_size_on_mnist() -> None:
    runs = EXPERIMENT.preset("full").configs(31).values()
    assert {config.workload for config in runs} == {"mnist"}
    sizes = {config.effective_batch_size for config in runs}
    assert len(runs) == 4 * len(sizes)
    assert len([config for config in runs if config.extra_instruments]) == 2
