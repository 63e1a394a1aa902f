"""Many runs through the store: what is computed, what is not computed again, and what is told when one fails.

A stand-in for the supervisor does what a test scripts; the real one with real workers is under ``run`` in test_cli.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_runs import ENVIRONMENT, claimed, record, set_message, small

from accum_core.claims import Claim
from accum_core.errors import SettingError
from accum_core.experiment import Experiment, Paper, Preset
from accum_core.records import Message, RunConfig, RunResult, Validation
from accum_core.runs import sweep
from accum_core.runs.store import Store
from accum_core.runs.sweep import Progress, SweepError, run_all, run_experiment

Work = Callable[[Store], None]


def finish_next(store: Store, miou: float = 0.5) -> None:
    """Do what a worker does with the next run of the queue, without training."""
    lease = claimed(store)
    validation = Validation(miou=miou, pixel_accuracy=0.5, class_iou=(0.5,), loss=1.0)
    lease.begin(ENVIRONMENT, 0, None)
    lease.write([*map(record, range(1, 12)), record(12, validation=validation)])
    lease.finish("done")


def supervised(monkeypatch: pytest.MonkeyPatch, *jobs: Work) -> None:
    """Have these jobs done, in order, when a supervisor is started."""

    @contextmanager
    def stand_in(path: Path) -> Iterator[None]:
        store = Store(path)
        for job in jobs:
            job(store)
        yield

    monkeypatch.setattr(sweep, "Supervisor", stand_in)


def quick(
    *configs: RunConfig, store: Store, watch: Callable[[Progress], None] = lambda _: None, fresh: bool = False
) -> dict[str, RunResult]:
    """``run_all`` without the waits between two looks."""
    return run_all(configs, store, watch, fresh=fresh, poll_seconds=0.001)


def test_each_configuration_is_computed_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised(monkeypatch, finish_next, finish_next)
    seen: list[Progress] = []
    results = quick(small(), small(seed=1), small(), store=store, watch=seen.append)
    assert {digest: result.config.seed for digest, result in results.items()} == {
        small().digest(): 0,
        small(seed=1).digest(): 1,
    }
    assert seen[0] == Progress(updates=0, total_updates=24, runs_done=0, runs=2, paused=())
    assert seen[-1] == Progress(updates=24, total_updates=24, runs_done=2, runs=2, paused=())


def test_what_the_store_holds_starts_no_worker(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised(monkeypatch, finish_next)
    first = quick(small(), store=store)
    monkeypatch.delattr(sweep, "Supervisor")
    assert quick(small(), store=store) == first
    assert len(store.runs()) == 1


def test_fresh_computes_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised(monkeypatch, finish_next)
    quick(small(), store=store)
    supervised(monkeypatch, lambda store: finish_next(store, miou=0.7))
    (result,) = quick(small(), store=store, fresh=True).values()
    assert result.metrics["miou"] == 0.7
    assert len(store.runs()) == 2


def test_an_interrupted_sweep_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.runs_done:
            raise KeyboardInterrupt

    supervised(monkeypatch, finish_next)
    with pytest.raises(KeyboardInterrupt):
        quick(small(), small(seed=1), store=store, watch=interrupt)
    supervised(monkeypatch, finish_next)
    assert len(quick(small(), small(seed=1), store=store)) == 2
    assert len(store.runs()) == 2


def test_a_failed_run_is_told_once_the_others_are_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(store: Store) -> None:
        lease = claimed(store)
        lease.write([record(1), record(2)])
        lease.fail("loss = nan at update 3: too fast.")

    supervised(monkeypatch, fail, finish_next)
    told = rf"^1 of 2 runs did not finish: run {small().digest()[:12]} failed after update 2 of 12 \(loss = nan at "
    with pytest.raises(SweepError, match=told):
        quick(small(), small(seed=1), store=store)
    supervised(monkeypatch, finish_next)
    assert len(quick(small(), small(seed=1), store=store)) == 2
    assert [run.state for run in store.runs()] == ["done", "done", "failed"]


def test_a_stopped_run_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised(monkeypatch, lambda store: store.send(small().digest()[:12], Message(kind="stop")))
    with pytest.raises(SweepError, match="stopped after update 0 of 12"):
        quick(small(), store=store)


def test_a_run_that_somebody_changed_is_asked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(store: Store) -> None:
        store.send(small().digest()[:12], set_message("learning_rate", 0.5))
        finish_next(store, miou=0.1)

    def as_asked(progress: Progress) -> None:
        if store.runs()[0].state == "queued" and len(store.runs()) == 2:
            finish_next(store, miou=0.9)

    supervised(monkeypatch, change)
    (result,) = quick(small(), store=store, watch=as_asked).values()
    assert result.metrics["miou"] == 0.9


def test_a_paused_run_is_named_while_the_sweep_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = small().digest()[:12]

    def pause(store: Store) -> None:
        store.send(run_id, Message(kind="pause"))
        lease = claimed(store)
        lease.take(lease.pending(), 1)

    def see(progress: Progress) -> None:
        if progress.paused:
            assert progress.paused == (run_id,)
            raise KeyboardInterrupt

    supervised(monkeypatch, pause)
    with pytest.raises(KeyboardInterrupt):
        quick(small(), store=store, watch=see)


def experiment(at_least: float) -> Experiment:
    """One run a seed, whose mIoU is the effect."""
    preset = Preset((1, 2), lambda seed: {"only": small(seed=seed)}, "two short runs")
    return Experiment(
        name="any",
        title="Any",
        question="How much?",
        papers=(Paper("Nobody", 2000, "None", "nowhere"),),
        claims=(Claim(id="enough", statement="It is enough.", effect="miou", at_least=at_least),),
        presets={"bench": preset},
        measure=lambda runs: {"miou": runs["only"].metrics["miou"]},
    )


def test_the_verdict_rests_on_every_seed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values 0.5 and 0.6: mean 0.55, and Student's t of one degree of freedom at 0.975 is tan(0.475 pi) = 12.7062."""
    supervised(monkeypatch, lambda store: finish_next(store, 0.5), lambda store: finish_next(store, 0.6))
    outcome = run_experiment(experiment(-0.1), "bench", (1, 2), store, lambda _: None)
    (verdict,) = outcome.claims
    half = math.tan(0.475 * math.pi) * 0.05
    assert (verdict.effect, verdict.low, verdict.high) == pytest.approx((0.55, 0.55 - half, 0.55 + half))
    assert (verdict.verdict, verdict.num_seeds) == ("supported", 2)
    assert [(run.label, run.seed, run.result.config.seed) for run in outcome.runs] == [("only", 1, 1), ("only", 2, 2)]
    (other,) = run_experiment(experiment(0.0), "bench", (1, 2), store, lambda _: None).claims
    assert other.verdict == "inconclusive"


def test_a_number_that_is_not_finite_decides_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    supervised(monkeypatch, finish_next, lambda store: finish_next(store, math.nan))
    with pytest.raises(SweepError, match=r"claims of any cannot be judged: .*must be finite"):
        run_experiment(experiment(0.0), "bench", (1, 2), store, lambda _: None)


@pytest.mark.parametrize(
    ("preset", "seeds", "told"),
    [
        ("bench", (1,), "seeds = '1': .*at least 2 seeds"),
        ("bench", (1, 1), "seeds = '1,1': names a seed twice"),
        ("smoke", (1, 2), "preset = 'smoke': is no preset of any; use one of bench"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_any_run(
    store: Store, preset: str, seeds: tuple[int, ...], told: str
) -> None:
    with pytest.raises(SettingError, match=told):
        run_experiment(experiment(0.0), preset, seeds, store, lambda _: None)
    assert store.runs() == []
