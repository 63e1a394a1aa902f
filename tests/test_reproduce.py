"""The page of papers without a page: its address, the bench's runs in the store, estimates, varied runs, words."""

from __future__ import annotations

from dataclasses import replace

import made_findings
import pytest
from small_runs import claimed, compute, record, small

import experiments
from accum_core.claims import Claim
from accum_core.errors import SettingError
from accum_core.experiment import Experiment, Preset
from accum_core.provenance import code_version
from accum_core.records import RunConfig, RunResult
from accum_core.runs.store import Store
from accum_ui.reproduce import cards, choice, plan, varied, words
from accum_ui.reproduce.choice import Choice

NAME = made_findings.NAME
SEEDS = (11, 12)


def configs(seed: int) -> dict[str, RunConfig]:
    short = {"seed": seed, "updates": 2, "warmup_updates": 1}
    return {"whole": small(micro_batch_size=4, **short), "split": small(**short)}


TINY = Experiment(
    name=NAME,
    title="Two tiny runs",
    question="Do they?",
    papers=experiments.find(NAME).papers,
    claims=(Claim(id="same", statement="The losses differ by at most 1.", effect="loss", at_most=1),),
    presets={"bench": Preset(SEEDS, configs, "tiny")},
    measure=lambda runs: {"loss": runs["whole"].metrics["loss"] - runs["split"].metrics["loss"]},
)


@pytest.mark.parametrize(
    "wanted",
    [
        Choice(),
        Choice(NAME),
        Choice(NAME, run="batch_whole", steps=4, norm="group", seeds=(1, 2)),
        Choice("wu_he_2018_group_norm", seeds=(5,)),
    ],
)
def test_the_address_gives_the_choice_back(wanted: Choice) -> None:
    assert choice.read(choice.address(wanted)) == wanted


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"paper": "nothing"}, "paper = 'nothing': is no experiment; use one of "),
        ({"run": "batch_3"}, "run = 'batch_3': is no run of segmentation_batch_size; use one of batch_whole"),
        ({"norm": "bach"}, "norm = 'bach'"),
        ({"paper": "marek_2025_small_batches", "norm": "group"}, "norm = 'group': has no effect on this network"),
        ({"n": "3"}, "n = 3: must divide 32: 1, 2, 4"),
        ({"n": "x"}, "n = 'x': must be a whole number"),
        ({"n": "9" * 5000}, "must be a whole number from 0 to 2147483647"),
        ({"seeds": "0" * 12 + "9" * 12}, "must be a whole number from 0 to 2147483647"),
        ({"seeds": "1,-2"}, "seeds = '-2': must be a whole number"),
        ({"seeds": ",".join(map(str, range(13)))}, "too many; give at most 12"),
    ],
)
def test_an_address_that_cannot_be_is_refused_in_a_sentence(changed: dict[str, str], told: str) -> None:
    with pytest.raises(SettingError) as refused:
        choice.read({"paper": NAME} | changed)
    assert told in str(refused.value)


def test_a_split_run_is_varied_unless_another_is_chosen() -> None:
    experiment = experiments.find(NAME)
    assert choice.base_of(experiment, Choice(NAME)).accumulation_steps > 1
    assert choice.label_of(experiment, Choice(NAME, run="group_whole")) == "group_whole"


def add(store: Store, config: RunConfig, *, version: str, loss: float = 1.0) -> None:
    """A finished run that a committed result brings."""
    environment = made_findings.committed().environment.model_copy(update={"code_version": version})
    last = record(1, validation={"loss": loss, "miou": 0.5})
    store.add_result(RunResult(config=config, environment=environment, records=(last,)), "a_result")


def test_the_plan_knows_what_the_present_code_has_done(store: Store) -> None:
    first, second = configs(11), configs(12)
    add(store, first["whole"], version=code_version())
    add(store, first["split"], version="of another")
    store.submit(second["whole"])
    stopped = store.submit(second["split"])
    found = plan.look(store, TINY)
    assert [item.state for item in found.items] == ["done", "missing", "queued", "queued"]
    plan.stop(store, [item for item in found.items if item.run is not None and item.run.id == stopped])
    found = plan.look(store, TINY)
    assert [item.state for item in found.items] == ["done", "missing", "queued", "missing"]
    assert not found.here
    plan.submit(store, found.of("missing"))
    assert len(plan.look(store, TINY).live) == 3


def test_a_stopped_attempt_does_not_hide_a_finished_run(store: Store) -> None:
    config = configs(11)["whole"]
    add(store, config, version=code_version())
    plan.stop(store, [plan.Planned(11, "whole", config, store.get(store.submit(config, fresh=True)))])
    assert plan.look(store, TINY).items[0].state == "done"


def test_finished_runs_are_judged_from_their_records(store: Store) -> None:
    for loss, config in ((2.0, "whole"), (1.5, "split")):
        for seed in SEEDS:
            add(store, configs(seed)[config], version=code_version(), loss=loss)
    found = plan.look(store, TINY)
    assert not found.here  # nothing was computed here
    judged = plan.judged_here(store, TINY, found).judged
    assert judged[0].effects == {11: 0.5, 12: 0.5}
    assert judged[0].verdict.verdict == "supported"


def test_runs_of_this_app_are_told_from_committed_ones(store: Store, one_thread: None) -> None:
    plan.submit(store, plan.look(store, TINY).items)
    for _ in range(4):
        compute(store)
    found = plan.look(store, TINY)
    assert found.here
    assert words.share(found) == 1
    assert plan.judged_here(store, TINY, found).judged[0].effects.keys() == {11, 12}


def planned(label: str, *, state: str = "missing", update: int = 0, **changes: object) -> plan.Planned:
    config = small(updates=100)
    if state == "missing":
        return plan.Planned(1, label, config, None)
    row = {
        "id": "x", "config": config, "config_digest": "x", "code_version": "x", "state": state, "altered": False,
        "created": 0.0, "started": 0.0, "finished": None, "heartbeat": None, "update": update, "total": 100,
        "error": None, "environment": None, "checkpoint_update": None, "worker": None, "source": "lab",
    }  # fmt: skip
    return plan.Planned(1, label, config, plan.Run.model_validate(row | changes))


def test_the_estimate_adds_recorded_seconds_and_divides_by_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "cores", lambda: 8)
    pace = {"a": 0.5, "b": 0.1}
    items = [planned("a"), planned("b"), planned("a", state="running", update=40)]
    assert plan.estimate(items, pace) == pytest.approx((100 * 0.5 + 100 * 0.1 + 60 * 0.5) / 2)
    assert plan.estimate([planned("a")], pace) == pytest.approx(50)
    assert plan.estimate([planned("c")], pace) is None
    assert plan.estimate([], pace) is None


def test_the_time_left_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "cores", lambda: 1)
    done = planned("a", state="done", update=100, finished=200.0)  # 2 s an update, recorded with 0.5
    waiting, running = planned("b", state="queued", started=None), planned("b", state="running", update=50)
    # b takes 0.1 where a takes 0.5; in 200 + 20 s were made 100 * 0.5 + 50 * 0.1 = 55, and 15 are still to come.
    left = plan.left(plan.Plan((done, running, waiting)), {"a": 0.5, "b": 0.1}, now=20.0)
    assert left == pytest.approx(15 * 220 / 55)
    assert plan.left(plan.Plan((waiting,)), {}, now=20.0) is None


def test_the_pace_is_the_mean_over_seeds_of_an_update() -> None:
    assert plan.pace(made_findings.found())["batch_2"] == 1.0  # the second update ends after 2 s
    assert plan.pace(None) == {}


def test_the_progress_names_what_runs() -> None:
    shown = plan.Plan((planned("a", state="done", update=100), planned("b", state="running", update=50), planned("c")))
    assert words.progress_line(shown, 90.0) == (
        "1 of 3 runs done · b, seed 1: running, update 50 of 100 · about 2 min left"
    )
    assert words.share(shown) == pytest.approx(150 / 300)


def test_a_varied_run_keeps_all_but_what_is_varied(store: Store) -> None:
    experiment = experiments.find(NAME)
    asked = Choice(NAME, run="batch_2", steps=4, norm="group", seeds=(11, 99))
    config = varied.settings(experiment, asked, 99)
    base = choice.base_of(experiment, asked)
    assert config == base.model_copy(update={"micro_batch_size": 8, "norm": "group", "seed": 99})
    assert varied.changes(experiment, asked)
    assert not varied.changes(experiment, replace(asked, steps=0, norm="", seeds=(11,)))
    add(store, varied.settings(experiment, asked, 11), version="any")
    first, second = varied.look(store, experiment, asked, made_findings.found())
    assert (first.numbers["miou"], first.committed["miou"]) == (0.5, 0.3)
    assert (second.numbers, second.committed) == ({}, {})
    assert words.varied_title("batch_2", first, "batch") == "batch_2 with GroupNorm instead of BatchNorm at 4 × 8"


def test_settings_that_cannot_be_are_refused_in_a_sentence() -> None:
    experiment = experiments.find("wu_he_2018_group_norm")
    assert varied.refusal(experiment, Choice(experiment.name)) == ""
    assert "norm = 'bach'" in varied.refusal(experiment, Choice(experiment.name, norm="bach"))


def test_failed_runs_are_asked_for_again(store: Store) -> None:
    store.submit(configs(11)["whole"])
    claimed(store).fail("There was no room.")
    (failed,) = plan.look(store, TINY).of("failed")
    assert failed.run is not None and failed.run.error == "There was no room."
    assert words.run_button([failed], 4, None) == "Run the missing run"
    assert words.run_button([failed] * 4, 4, 31, again=True) == "Run the 4 runs again: about 31 s"


def test_a_card_says_claim_figure_verdict_and_origin() -> None:
    experiment = experiments.find(NAME)
    text = cards.card(experiment, made_findings.committed(), dark=False)
    for told in (
        experiment.claims[0].statement,
        "Theirs: mIoU (%), PASCAL VOC 2012 val",
        "(Chen, Papandreou, Schroff and Adam)",  # not of the first paper, which is Wu and He's
        "2 supported",
        "2 inconclusive",
        "2 January 2026 · seeds 11 to 13 · code version 0123456789ab",
        "Wu and He 2018, arXiv 1803.08494, and 1 more",
    ):
        assert told in text, told
    without = cards.card(experiment, None, dark=True)
    assert "python -m experiments run segmentation_batch_size --commit-results" in without
    hostile = replace(experiment, title="<script>", claims=(TINY.claims[0].model_copy(update={"statement": "a < b"}),))
    text = cards.card(hostile, None, dark=False)
    assert "<script>" not in text and "a &lt; b" in text


def test_what_was_found_here_is_told_beside_what_is_committed() -> None:
    """BatchNorm's loss of 0.2, 0.3 and 0.4 does not decide a threshold of 0.2, and 0.5 throughout does."""
    committed = made_findings.found().judged
    here = list(committed)
    same = "Every effect of every seed is equal to the committed one to the last bit."
    count = len(committed)
    told = words.beside_committed(here, committed)
    assert told == f"All verdicts ({count} of {count}) are those of the committed result. {same}"
    one = here[0]
    assert one.claim.id == "batch_norm_loses"
    near = {11: one.effects[11], 12: one.effects[12], 13: one.effects[13] + 1e-12}
    here[0] = replace(one, effects=near, verdict=one.claim.judge(list(near.values())))
    effects = sum(len(judged.effects) for judged in committed)
    assert words.beside_committed(here, committed).endswith(
        f"Effects, one a claim and seed, that differ from the committed ones: 1 of {effects}."
    )
    far = dict.fromkeys(one.effects, 0.5)
    here[0] = replace(one, effects=far, verdict=one.claim.judge(list(far.values())))
    told = words.beside_committed(here, committed)
    assert told.startswith(
        f"Verdicts that are not those of the committed result: 1 of {count}. Here supported, there in"
    )
    assert told.endswith(f": 3 of {effects}.")
