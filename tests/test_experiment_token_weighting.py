"""Mean of means against sums over tokens: what a pair of runs shares, and effects and figures from made-up runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.token_weighting_2024 import EXPERIMENT


def made(error: float, loss: float, logged: tuple[tuple[float, float], ...] = ((2.0, 2.0),)) -> Any:
    """A run with a gradient error, a held-out loss (or mIoU) and (exact, mean of means) of some windows."""
    records = [
        SimpleNamespace(
            update=1 + 25 * k,
            instruments={
                "gradient_error": {"relative_error": error * (k + 1)},
                "logged_loss": {"exact": exact, "mean_of_means": means},
            },
        )
        for k, (exact, means) in enumerate(logged)
    ]
    return SimpleNamespace(
        metrics={"gradient_error": error, "token_loss": loss, "miou": loss},
        records=[*records, SimpleNamespace(update=99, instruments={})],
    )


RUNS = {
    "equal_means": made(1e-7, 2.9),
    "medium_means": made(0.2, 2.8),
    "all_means": made(0.5, 2.75, ((2.0, 2.1), (4.0, 3.8))),
    "all_exact": made(0.0, 2.7),
    "masks_means": made(0.6, 0.35, ((1.0, 0.9),)),
    "masks_exact": made(0.0, 0.38),
}


def test_effects_of_one_seed() -> None:
    """0.1 / 2 and 0.2 / 4 are both 0.05; losses and mIoU are plain differences."""
    assert EXPERIMENT.measure(RUNS) == pytest.approx(
        {
            "error_equal": 1e-7, "error_medium": 0.2, "error_all": 0.5, "error_masks": 0.6, "error_grows": 0.3,
            "logged_equal": 0.0, "logged_medium": 0.0, "logged_all": 0.05, "logged_masks": 0.1,
            "text_loss": 0.05, "map_loss": 0.03,
        }
    )  # fmt: skip


def test_the_full_preset_has_the_effects_of_its_claims() -> None:
    text = {label: RUNS[label] for label in ("all_means", "all_exact")}
    assert set(EXPERIMENT.preset("full").configs(31)) == set(text)
    assert {claim.effect for claim in EXPERIMENT.claims_of("full")} <= set(EXPERIMENT.measure(text))


@pytest.mark.parametrize("preset", ["smoke", "bench", "full"])
def test_a_pair_differs_in_the_division_alone(preset: str) -> None:
    """And in what is measured, and in the micro-batch of the exact run, which changes nothing but rounding."""
    apart = {"reduction", "micro_batch_size", "measure_every", "extra_instruments"}
    runs = EXPERIMENT.preset(preset).configs(31)
    pairs = [label.removesuffix("_exact") for label in runs if label.endswith("_exact")]
    assert pairs
    for name in pairs:
        wrong, exact = (runs[f"{name}_{kind}"].model_dump() for kind in ("means", "exact"))
        assert {field for field in wrong if wrong[field] != exact[field]} <= apart
        assert (wrong["reduction"], exact["reduction"]) == ("mean_of_means", "exact")
        assert wrong["effective_batch_size"] > wrong["micro_batch_size"]


def test_figures_draw_what_was_measured() -> None:
    by_spread, by_update, logged = (figure.lines({5: RUNS, 6: RUNS}) for figure in EXPERIMENT.figures)
    assert by_spread == {"mean of means": {seed: [(0.0, 1e-7), (0.31, 0.2), (0.68, 0.5)] for seed in (5, 6)}}
    assert by_update["text, all lengths"][5] == [(0, 0.5), (25, 1.0)]
    assert by_update["partly labelled tiles"][6] == [(0, 0.6)]
    (gaps,) = logged.values()
    assert [(update, pytest.approx(gap)) for update, gap in gaps[5]] == [(0, 0.1), (25, -0.2)]
    titles = [figure.finding(figure.lines({5: RUNS})) for figure in EXPERIMENT.figures]
    assert titles[0] == "Where lengths spread by 68 % of their mean, the gradient is off by 50 %"
    assert titles[1].endswith("is off by 50 % at first and by 100 % after 25 updates")
    assert "off by 0.15 nats per token either way" in titles[2]
