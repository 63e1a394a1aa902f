"""The recipes: what each computes follows from its division, and what it makes of a short last window."""

from __future__ import annotations

from pathlib import Path

import pytest
from scalar_tasks import moved, scalar_task

from accum_core.frameworks import recipe_timm, recipe_torchtune
from accum_core.frameworks.harness import host

pytestmark = pytest.mark.timeout(180)
GOES_ON = "; the short window goes on into the next epoch"
STAYS = "; the short window's gradient stays for the next epoch's first window"
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
    ("recipe_torchtune", "ragged"): ("wrong", None),
    ("recipe_torchtune", "iterable"): ("refuses", None),
    ("recipe_timm", "ragged"): ("wrong", None),
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
