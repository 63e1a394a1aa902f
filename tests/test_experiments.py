"""The contract of every experiment that is discovered, and the verdicts of the committed results, computed again."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from scipy import stats

import experiments
from accum_core.claims import Verdict, VerdictWord
from accum_core.errors import LabError, SettingError
from accum_core.experiment import Experiment
from accum_core.records import RunResult
from accum_core.result_file import ResultFile, ResultHeader, StoredRun
from accum_core.runs.store import Store
from accum_core.runs.sweep import run_experiment
from experiments.report import drawing, findings

EXPERIMENTS = [pytest.param(experiment, id=name) for name, experiment in experiments.discover().items()]
COMMITTED = [pytest.param(path, id=path.stem) for path in sorted(experiments.RESULTS.glob("*.jsonl"))]


def by_seed(runs: tuple[StoredRun, ...]) -> dict[int, dict[str, RunResult]]:
    """Seed -> label -> run, whose own summary of its records is held against one that is made here."""
    found: dict[int, dict[str, RunResult]] = {}
    for run in runs:
        records = run.result.records
        last = [record.validation for record in records if record.validation is not None][-1]
        measured = [r.instruments["gradient_error"] for r in records if "gradient_error" in r.instruments]
        counted = {"miou": last.miou, "pixel_accuracy": last.pixel_accuracy, "error": last.error}
        counted["token_loss"] = last.token_loss
        assert run.result.metrics == {
            **{name: value for name, value in counted.items() if value is not None},
            "loss": last.loss,
            "gradient_error": statistics.median(m["relative_error"] for m in measured),
            "cosine": statistics.median(m["cosine"] for m in measured),
        }
        found.setdefault(run.seed, {})[run.label] = run.result
    return found


def summarised(metrics: Mapping[str, Mapping[str, float]]) -> Any:
    """Runs of which nothing but the final metrics is known."""
    return {label: SimpleNamespace(metrics=of_run) for label, of_run in metrics.items()}


def check_verdicts(experiment: Experiment, runs: tuple[StoredRun, ...], verdicts: tuple[Verdict, ...]) -> None:
    """Hold each verdict against SciPy's own one-sample t interval over the seeds' effects."""
    effects = [experiment.measure(of_seed) for of_seed in by_seed(runs).values()]
    assert not any(experiment.presets[name].claims for name in ("smoke", "bench")), "these judge the experiment's own"
    assert [verdict.id for verdict in verdicts] == [claim.id for claim in experiment.claims]
    for claim, verdict in zip(experiment.claims, verdicts, strict=True):
        values = [effect[claim.effect] for effect in effects if claim.effect in effect]
        low = high = values[0]  # without spread the interval has no width; SciPy warns of it
        if len(set(values)) > 1:
            low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (verdict.effect, verdict.low, verdict.high) == pytest.approx((statistics.fmean(values), low, high))
        assert verdict.num_seeds == len(values)
        assert verdict.statement == claim.statement
        least = -math.inf if claim.at_least is None else claim.at_least
        most = math.inf if claim.at_most is None else claim.at_most
        outside, inside = high < least or low > most, least <= low and high <= most
        assert verdict.verdict == ("supported" if inside else "refuted" if outside else "inconclusive")


def with_errors(errors: Mapping[str, float]) -> Any:
    return summarised({label: {"error": error} for label, error in errors.items()})


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_says_what_it_asks_and_claims(experiment: Experiment) -> None:
    described = experiment.describe()
    assert set(described) == {"name", "title", "paper", "question", "presets", "claims"}
    assert all(described.values())
    assert experiment.question.endswith("?")
    for preset in experiment.presets:
        ids = [claim.id for claim in experiment.claims_of(preset)]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_tells_its_protocol_and_how_it_was_chosen(experiment: Experiment) -> None:
    assert experiment.papers and experiment.protocol and experiment.chosen and experiment.figures
    keys = [figure.key for figure in experiment.figures] + [paper.key for paper in experiment.published]
    assert len(set(keys)) == len(keys)
    claims = {claim.id for preset in experiment.presets for claim in experiment.claims_of(preset)}
    assert set(experiment.remarks) <= claims
    assert {word for remarks in experiment.remarks.values() for word in remarks} <= set(get_args(VerdictWord))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_claim_sets_a_bound_and_its_statement_names_it(experiment: Experiment) -> None:
    for claim in [claim for preset in experiment.presets for claim in experiment.claims_of(preset)]:
        bounds = {abs(bound) for bound in (claim.at_least, claim.at_most) if bound is not None}
        named = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", claim.statement)}
        assert bounds and bounds <= named, claim.statement


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_presets_are_runs_of_their_seed(experiment: Experiment) -> None:
    assert {"smoke", "bench"} <= set(experiment.presets)
    for preset in experiment.presets.values():
        assert len(set(preset.seeds)) == len(preset.seeds) >= 2
        digests = set()
        for seed in preset.seeds:
            for config in preset.configs(seed).values():
                config.check()
                assert config.seed == seed
                digests.add(config.digest())
        assert len(digests) == sum(len(preset.configs(seed)) for seed in preset.seeds)
    assert len(experiment.preset("bench").seeds) >= 3


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_smoke_preset_runs_to_verdicts(experiment: Experiment, tmp_path: Path) -> None:
    seeds = experiment.preset("smoke").seeds
    outcome = run_experiment(experiment, "smoke", seeds, Store(tmp_path / "runs.sqlite"), lambda _: None)
    labels = [(seed, label) for seed in seeds for label in experiment.preset("smoke").configs(seed)]
    assert [(run.seed, run.label) for run in outcome.runs] == labels
    assert outcome.seeds == seeds
    check_verdicts(experiment, outcome.runs, outcome.claims)
    found = findings.find(experiment, outcome)
    assert [judged.verdict for judged in found.judged] == list(outcome.claims)
    for figure in experiment.figures:
        chart = drawing.ours(figure, found.drawn[figure.key], dark=False)
        assert chart is not None and len(chart.title) > 10, figure.key


@pytest.mark.parametrize("path", COMMITTED)
def test_the_committed_verdicts_follow_from_their_records(path: Path) -> None:
    result = ResultFile.read(path)
    experiment = experiments.find(path.stem)
    assert (result.experiment, result.preset) == (path.stem, "bench")
    expected = {
        (seed, label): config
        for seed in result.seeds
        for label, config in experiment.preset("bench").configs(seed).items()
    }
    assert {(run.seed, run.label): run.result.config for run in result.runs} == expected
    assert all(run.result.records[-1].update == run.result.config.updates for run in result.runs)
    check_verdicts(experiment, result.runs, result.claims)


@pytest.mark.parametrize("path", COMMITTED)
def test_what_did_not_reproduce_has_a_word_on_it(path: Path) -> None:
    experiment = experiments.find(path.stem)
    for verdict in ResultHeader.read(path).claims:
        assert verdict.verdict == "supported" or experiment.remarks[verdict.id][verdict.verdict], verdict.id


def test_a_new_paper_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = next(iter(experiments.discover()))
    monkeypatch.setattr(experiments, "FOLDER", tmp_path)
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path), *experiments.__path__])
    monkeypatch.setattr(experiments, "discover", experiments.discover.__wrapped__)
    paper = tmp_path / "another_paper.py"
    paper.write_text(
        "from dataclasses import replace\n"
        f"from experiments.{original} import EXPERIMENT as original\n"
        "EXPERIMENT = replace(original, name='another_paper')\n"
    )
    assert list(experiments.discover()) == ["another_paper"]
    assert experiments.find("another_paper").name == "another_paper"
    (tmp_path / "no_paper.py").write_text("")
    with pytest.raises(LabError, match=r"no_paper\.py: must define EXPERIMENT"):
        experiments.discover()


def test_an_unknown_name_or_preset_is_refused_with_those_there_are() -> None:
    experiment = experiments.find("segmentation_batch_size")
    with pytest.raises(SettingError, match="name = 'nothing'.*segmentation_batch_size"):
        experiments.find("nothing")
    with pytest.raises(SettingError, match="preset = 'huge'.*smoke, bench"):
        experiment.preset("huge")


def test_discovery_imports_no_torch() -> None:
    code = "import experiments, sys; experiments.discover(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=experiments.FOLDER.parent).returncode == 0


def test_measured_effects_of_wu_he_2018_group_norm() -> None:
    """Differences of errors, the first less the second; what a seed did not run is left out."""
    experiment = experiments.find("wu_he_2018_group_norm")
    errors = {"batch_largest": 0.10, "batch_4": 0.15, "batch_2": 0.60, "group_largest": 0.12, "group_2": 0.11}
    assert experiment.measure(
        summarised({label: {"error": error} for label, error in errors.items()})
    ) == pytest.approx({"bn_rise_2": 0.50, "bn_rise_4": 0.05, "gn_change": -0.01, "gn_over_bn": 0.02})
    errors = {"conv_batch_largest": 0.10, "conv_batch_2": 0.11, "conv_instance_largest": 0.13}
    assert experiment.measure(
        summarised({label: {"error": error} for label, error in errors.items()})
    ) == pytest.approx({"conv_bn_rise": 0.01, "conv_in_over_bn": 0.03})


def test_the_full_presets_of_wu_he_2018_are_the_papers_recipe() -> None:
    """arXiv 1803.08494: 100 epochs, a tenth after 30, 60 and 90, rate 0.1 at 8 x 32 images, weight decay 1e-4."""
    experiment = experiments.find("wu_he_2018_group_norm")
    for preset, images in (("full", 50_000), ("full_imagenet", 1_281_167)):
        runs = experiment.preset(preset).configs(11)
        for norm in ("batch", "group"):
            sizes = {run.micro_batch_size for run in runs.values() if run.norm == norm}
            assert sizes == {32, 16, 8, 4, 2}
        for run in runs.values():
            epoch = images // 256
            assert (run.effective_batch_size, run.updates) == (256, 100 * epoch)
            rates = [run.peak_learning_rate * run.shape(made) for made in (0, 30 * epoch, 60 * epoch, 90 * epoch)]
            assert rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])
            assert (run.momentum, run.weight_decay, run.norm_groups) == (0.9, 1e-4, 32)


def test_measured_effects_of_segmentation_batch_size() -> None:
    """Plain differences: 0.55 - 0.25 = 0.30, 0.48 - 0.49 = -0.01; the errors are those of the split runs."""
    experiment = experiments.find("segmentation_batch_size")
    miou = {"batch_whole": 0.55, "batch_8": 0.5, "batch_2": 0.25, "group_whole": 0.48, "group_2": 0.49}
    errors = {"batch_whole": 0.0, "batch_8": 0.7, "batch_2": 1.5, "group_whole": 0.0, "group_2": 2e-6}
    metrics = {label: {"miou": miou[label], "gradient_error": errors[label]} for label in miou}
    assert experiment.measure(summarised(metrics)) == pytest.approx(
        {"bn_loss": 0.30, "gn_difference": -0.01, "gradient_error_group": 2e-6, "gradient_error_batch": 1.5}
    )
