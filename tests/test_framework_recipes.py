"""The recipes: what each computes follows from its division, and what it makes of a short last window."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalar_tasks import moved, scalar_task

from accum_core.frameworks import recipe_nanogpt, recipe_timm, recipe_torchtune
from accum_core.frameworks.harness import host

pytestmark = pytest.mark.timeout(180)
GOES_ON = "; the short window goes on into the next epoch"
STAYS = "; the short window's gradient stays for the next epoch's first window"
LEFT_OUT = "sum over weight; a smaller last micro-batch is left out"
SEEN_AGAIN = (
    "sum over weight; what the interrupted window had summed is lost, and the updates that are left take the epoch's "
    "first samples again"
)
EXPECTED = {
    ("recipe_nanogpt", "equal"): ("exact", "sum over weight"),
    ("recipe_nanogpt", "unequal_tokens"): ("user's duty", "mean of means over N"),
    ("recipe_nanogpt", "short_window"): ("wrong", f"sum over weight{GOES_ON}"),
    ("recipe_timm", "unequal_tokens"): ("user's duty", "mean of means over N"),
    ("recipe_timm", "short_window"): ("exact", "sum over weight"),
    ("recipe_timm", "iterable"): ("refuses", None),
    ("recipe_torchtune", "unequal_tokens"): ("exact", "sum over weight"),
    ("recipe_torchtune", "two_ranks"): ("exact", "sum over weight"),
    ("recipe_torchtune", "short_window"): ("wrong", f"sum over weight{STAYS}"),
    ("recipe_torchtune", "class_weights"): ("wrong", "mean of means over N"),
    ("recipe_torchtune", "ragged"): ("wrong", f"{LEFT_OUT}; the short window is dropped"),
    ("recipe_torchtune", "iterable"): ("refuses", None),
    ("recipe_timm", "ragged"): ("wrong", LEFT_OUT),
    ("recipe_nanogpt", "resume"): ("wrong", SEEN_AGAIN),
    ("recipe_timm", "resume"): ("exact", "sum over weight"),
    ("recipe_torchtune", "resume"): ("exact", "sum over weight"),
}


@pytest.mark.parametrize(("file", "case"), EXPECTED)
def test_a_recipe_computes_what_its_division_says(file: str, case: str) -> None:
    (row,) = host.rows(file, ["own"], [case], limit=120)
    assert (row.verdict, row.formula) == EXPECTED[file, case]
    assert row.mended_verdict in (None, "exact")
    assert (row.mended_verdict is None) == (row.verdict in ("exact",) or row.mend == "")


def test_timm_steps_a_short_window_twice(tmp_path: Path) -> None:
    """Seven gradients of 1, N = 4, rates of 1, 0.5 and 0.25: 4 / 4, then 2 / 3 and 1 / 3 where 3 / 3 is due."""
    task = scalar_task([[1.0]] * 7, tmp_path, accumulation_steps=4, gamma=0.5)
    recipe_timm.train(task)
    assert moved(task) == pytest.approx([-(1 + 0.5 * 2 / 3 + 0.25 / 3)], rel=1e-12)
    task = scalar_task([[1.0]] * 7, tmp_path, accumulation_steps=4, gamma=0.5)
    recipe_timm.train_mended(task)
    assert moved(task) == pytest.approx([-(1 + 0.5)], rel=1e-12)


def test_the_defect_shows(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, _, script),) = recipe_timm.DEFECTS
    exec(script, {})
    assert capsys.readouterr().out == "updates after micro-batches [4, 6, 7] instead of [4, 7]\n"


def test_torchtune_keeps_what_is_left_and_drops_a_smaller_micro_batch(tmp_path: Path) -> None:
    """1 to 5 in windows of 2, twice: 1.5, 3.5, then 5 + 1 + 2 over 3, and 3.5; of one smaller micro-batch nothing."""
    task = scalar_task([[1.0], [2.0], [3.0], [4.0], [5.0]], tmp_path, accumulation_steps=2, epochs=2)
    recipe_torchtune.train(task)
    assert moved(task) == pytest.approx([-(1.5 + 3.5 + 8 / 3 + 3.5)], rel=1e-12)
    task = scalar_task([[1.0], [2.0], [9.0]], tmp_path, micro_batch_size=2, accumulation_steps=1)
    recipe_torchtune.train(task)
    assert moved(task) == pytest.approx([-1.5], rel=1e-12)


ONE_TO_FIVE = [[1.0], [2.0], [3.0], [4.0], [5.0]]


def test_nanogpt_resumes_between_updates_with_the_first_data(tmp_path: Path) -> None:
    """1 to 6 in windows of 2 at rates of 1, 0.5 and 0.25, interrupted in the second: then 1 2 and 3 4 come again."""
    settings = {"accumulation_steps": 2, "gamma": 0.5, "stop_after": 3}
    task = scalar_task([*ONE_TO_FIVE, [6.0]], tmp_path, **settings)
    recipe_nanogpt.train(task)
    assert moved(task) == pytest.approx([-(1.5 + 0.5 * 1.5 + 0.25 * 3.5)], rel=1e-12)
    (tmp_path / "mended").mkdir()
    task = scalar_task([*ONE_TO_FIVE, [6.0]], tmp_path / "mended", **settings)
    recipe_nanogpt.train_mended(task)
    assert moved(task) == pytest.approx([-(1.5 + 0.5 * 3.5 + 0.25 * 5.5)], rel=1e-12)


def test_timm_begins_an_interrupted_epoch_again(tmp_path: Path) -> None:
    """1 to 5 in windows of 2, twice, at rates halved by each update, interrupted in the second epoch: as without."""
    for place, stop_after in enumerate((None, 3, 8)):
        (tmp_path / str(place)).mkdir()
        settings = {"accumulation_steps": 2, "epochs": 2, "gamma": 0.5, "stop_after": stop_after}
        task = scalar_task(ONE_TO_FIVE, tmp_path / str(place), **settings)
        recipe_timm.train(task)
        epoch = 1.5 + 0.5 * 3.5 + 0.25 * 5
        assert moved(task) == pytest.approx([-(epoch + 0.125 * epoch)], rel=1e-12)


@pytest.mark.parametrize(("stop_after", "second"), [(None, 8 / 3), (3, 8 / 3), (8, 1.5)])
def test_torchtune_saves_no_gradient_that_an_epoch_leaves(
    stop_after: int | None, second: float, tmp_path: Path
) -> None:
    """1 to 5 in windows of 2, twice: 5 joins 1 and 2, unless the second epoch begins from a checkpoint."""
    task = scalar_task(ONE_TO_FIVE, tmp_path, accumulation_steps=2, epochs=2, stop_after=stop_after)
    recipe_torchtune.train(task)
    assert moved(task) == pytest.approx([-(1.5 + 3.5 + second + 3.5)], rel=1e-12)
